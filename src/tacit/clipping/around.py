"""What is around a step: the model and the batch stay as they were, and products are in full precision."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from tacit.clipping.isolation.modules import Survey
from tacit.clipping.isolation.state import same, version_of
from tacit.errors import UnsupportedModel

_CUDA: bool = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute float32 products in float32: norms in TF32 or bfloat16 would not be those of the sum."""
    matmul, cudnn = torch.get_float32_matmul_precision(), _CUDA and torch.backends.cudnn.allow_tf32
    if matmul != "highest":
        torch.set_float32_matmul_precision("highest")
    if cudnn:
        torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        if matmul != "highest":
            torch.set_float32_matmul_precision(matmul)
        if cudnn:
            torch.backends.cudnn.allow_tf32 = True


def uncompiled() -> AbstractContextManager[object]:
    """Run what ``torch.compile`` made as it was written: compiled code reads parameters unseen."""
    compiled = "torch._dynamo" in sys.modules  # whose import takes seconds, and without which there is none
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


@contextmanager
def unchanged(batch: Sequence[Tensor]) -> Iterator[None]:
    """Refuse a step that changes the batch, whatever else is said of it."""
    versions = [tensor._version for tensor in batch]
    refusal: UnsupportedModel | None = None
    try:
        yield
    except UnsupportedModel as error:
        refusal = error
    if versions != [tensor._version for tensor in batch]:
        raise UnsupportedModel(
            "the model or the loss changes the batch in place, and did not at first. "
            "Write x = x * 2 instead of x *= 2, or begin with x = x.clone()."
        ) from refusal
    if refusal is not None:
        raise refusal


_BUFFERS = (
    "the forward pass changes the buffers {}: they would carry raw data of the records into the released "
    "model. Use layers without running statistics (tacit.models.private_ready.make_private_ready)."
)
_VECTORS = (
    "the forward pass changes the buffers {}, the vectors of spectral_norm. They hold nothing of the "
    "records, but a step takes several passes, and the weights would depend on how many. After each "
    "model.train(), call module.parametrizations.weight.eval(), or module.eval() for the old "
    "torch.nn.utils.spectral_norm. To renew the vectors between steps, at no privacy cost: p.train(); "
    "module.weight; p.eval() under torch.no_grad(), with p = module.parametrizations.weight."
)


@contextmanager
def untouched(model: nn.Module, survey: Survey, compared: Callable[[], bool]) -> Iterator[None]:
    """Leave no gradients behind, and put back buffers that the forward pass changed, then refuse.

    ``compared``: whether Python was given numbers, which it may write unseen, so that values are compared; a
    device is waited for then.  Else torch's count of writes is enough: under vmap no number of a record goes
    into a buffer, be it through ``.data``.
    """
    buffers = [buffer for _, _, buffer in survey.buffers]
    copies, versions = [torch.empty_like(buffer) for buffer in buffers], list(map(version_of, buffers))
    if buffers:
        torch._foreach_copy_(copies, buffers)
    changed: list[Tensor] = []
    refusal: UnsupportedModel | None = None
    by_value = True
    try:
        yield
        by_value = compared()
    except UnsupportedModel as error:  # what is seen of changed buffers says less than their names do
        refusal = error
    finally:
        for parameter in survey.parameters:
            if parameter.requires_grad:
                parameter.grad = None
        for (module, name, buffer), copy, before in zip(survey.buffers, copies, versions, strict=True):
            written = by_value or before is None or before != version_of(buffer)
            if module._buffers.get(name) is not buffer or (written and not same(buffer, copy)):
                changed.append(buffer)
                module._buffers[name] = buffer
                with torch.no_grad():
                    buffer.copy_(copy)
    if changed:
        names = [name for name, buffer in model.named_buffers() if any(buffer is c for c in changed)]
        vectors = all(name.endswith(("_u", "_v")) for name in names)
        raise UnsupportedModel(_VECTORS.format(names) if vectors else _BUFFERS.format(names)) from refusal
    if refusal is not None:
        raise refusal


_REENTRANT = (
    "the model has checkpoints with use_reentrant=True, whose backward pass stands apart from the "
    "model's. Pass use_reentrant=False to torch.utils.checkpoint.checkpoint."
)


@contextmanager
def naming_checkpoints() -> Iterator[None]:
    """Refuse by name what torch refuses: reentrant checkpoints, whose gradients cannot be told apart."""
    try:
        yield
    except RuntimeError as error:
        if "use_reentrant=True" not in str(error):
            raise
        raise UnsupportedModel(_REENTRANT) from error


def refuse_reentrant(losses: Tensor) -> None:
    """Refuse such checkpoints where torch does not: behind a leaf that is no parameter none is trained."""
    ahead, seen = [losses.grad_fn], set[object]()
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            raise UnsupportedModel(_REENTRANT)
        seen.add(node)
        ahead += [before for before, _ in node.next_functions]
