"""Guards around a step, which keep model and batch unchanged and compute products in full precision."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tacit.clipping.isolation.modules import Survey
from tacit.clipping.isolation.reasons import MODE
from tacit.clipping.isolation.state import same, version_of
from tacit.errors import UnsupportedModel

_CUDA: bool = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute float32 products in float32: with TF32 or bfloat16, norms would not match the sum."""
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
    """Run compiled models eagerly, as the recorder cannot see how compiled code reads parameters."""
    compiled = "torch._dynamo" in sys.modules  # importing it takes seconds; without it nothing is compiled
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


@contextmanager
def unchanged(batch: Sequence[Tensor]) -> Iterator[None]:
    """Refuse a step that changes the batch in place; this refusal replaces any other one."""
    versions = [tensor._version for tensor in batch]
    refusal: UnsupportedModel | None = None
    try:
        yield
    except UnsupportedModel as error:
        refusal = error
    if versions != [tensor._version for tensor in batch]:
        raise UnsupportedModel(
            "the model or the loss changes the batch in place, but not in the first pass. "
            "Write x = x * 2 instead of x *= 2, or begin with x = x.clone()."
        ) from refusal
    if refusal is not None:
        raise refusal


def refuse_modes() -> None:
    """Refuse a step under a mode of torch: it would see the operations on the tensors of all records.

    A default device is such a mode too, but it looks at no tensor.
    """
    functions: list[object] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    modes = [*functions, *_get_current_dispatch_mode_stack()]
    foreign = [type(mode).__name__ for mode in modes if not isinstance(mode, DeviceContext)]
    if foreign:
        raise UnsupportedModel(MODE.format(foreign[0]))


_BUFFERS = (
    "the forward pass changes the buffers {}: they would carry raw data of the records into the released "
    "model. Use layers without running statistics (tacit.models.private_ready.make_private_ready)."
)
_VECTORS = (
    "the forward pass changes the buffers {}, the vectors of spectral_norm. They contain no data of "
    "records, but the weights would depend on the number of passes in a step. After each "
    "model.train(), call module.parametrizations.weight.eval(), or module.eval() for the old "
    "torch.nn.utils.spectral_norm. To renew the vectors between steps, at no privacy cost: p.train(); "
    "module.weight; p.eval() under torch.no_grad(), with p = module.parametrizations.weight."
)


@contextmanager
def untouched(model: nn.Module, survey: Survey, *, by_value: bool) -> Iterator[None]:
    """Delete gradients after the step. If the step changed buffers, restore them and refuse the step.

    Args:
        model: the module whose buffers the refusal names.
        survey: its parameters and buffers.
        by_value: whether Python may read values of records. It could write them into buffers unseen, so the
            buffers' values are compared, which waits for the device. Otherwise torch's version counters
            suffice: under vmap, no value of a record can enter a buffer, not even through ``.data``.
    """
    buffers = [buffer for _, _, buffer in survey.buffers]
    copies, versions = [torch.empty_like(buffer) for buffer in buffers], list(map(version_of, buffers))
    if buffers:
        torch._foreach_copy_(copies, buffers)
    changed: list[Tensor] = []
    refusal: UnsupportedModel | None = None
    try:
        yield
    except UnsupportedModel as error:  # the names of changed buffers say more than this refusal
        refusal = error
    finally:
        for parameter in survey.parameters:
            if parameter.requires_grad:
                parameter.grad = None
        for (module, name, buffer), copy, before in zip(survey.buffers, copies, versions, strict=True):
            may_differ = by_value or before is None or before != version_of(buffer)
            if module._buffers.get(name) is not buffer or (may_differ and not same(buffer, copy)):
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
    "the model has checkpoints with use_reentrant=True: their backward pass is separate from the "
    "model's. Pass use_reentrant=False to torch.utils.checkpoint.checkpoint."
)


@contextmanager
def naming_checkpoints() -> Iterator[None]:
    """Explain torch's error about reentrant checkpoints, whose gradients cannot be assigned to records."""
    try:
        yield
    except RuntimeError as error:
        if "use_reentrant=True" not in str(error):
            raise
        raise UnsupportedModel(_REENTRANT) from error


def refuse_reentrant(losses: Tensor) -> None:
    """Refuse reentrant checkpoints that raise no error in torch.

    They are nodes in the graph of the losses. The parameters inside such a checkpoint would not be trained.
    """
    ahead, visited = [losses.grad_fn], set[object]()
    while ahead:
        node = ahead.pop()
        if node is None or node in visited:
            continue
        if node.name() == "CheckpointFunctionBackward":
            raise UnsupportedModel(_REENTRANT)
        visited.add(node)
        ahead += [before for before, _ in node.next_functions]
