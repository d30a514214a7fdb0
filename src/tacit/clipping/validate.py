"""What is refused before a step: models and losses in which one record's row reaches another's gradient.

Letters: n records; B rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

from tacit.clipping.keeping import Memory, differing
from tacit.errors import InvalidInput, UnsupportedModel

__all__ = ["can_mix", "check_losses", "check_model", "check_module", "mixing_probe"]

_FEW = 4
"""Records that the first probes look at."""
_STATES = 8
"""States in which they look at a model that changes by itself: as it is, and as passes leave it."""


def check_model(model: nn.Module) -> None:
    """Refuse a model with nothing to train, or with a layer that mixes the records of a batch."""
    if not any(p.requires_grad for p in model.parameters()):
        raise UnsupportedModel(
            "the model has no trainable parameters, so there is nothing to train privately. "
            "Set requires_grad on the parameters to train."
        )
    for name, module in model.named_modules():
        check_module(name, module)


def can_mix(module: nn.Module) -> bool:
    """Whether :func:`check_module` judges by settings of the module, which may change at any time."""
    return isinstance(module, _BatchNorm | _InstanceNorm | nn.Embedding | nn.EmbeddingBag)


def check_module(name: str, module: nn.Module) -> None:
    """Refuse a layer that mixes the records of a batch, or keeps something of them."""
    kind = type(module).__name__
    where = f"module {name!r} ({kind})" if name else f"the model ({kind})"
    if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
        raise UnsupportedModel(
            f"{where} normalises with statistics of the whole batch, so one record reaches every "
            "gradient and no per-record bound holds. Replace it: "
            "model = tacit.models.private_ready.make_private_ready(model) puts GroupNorm in its place."
        )
    if isinstance(module, _InstanceNorm) and module.track_running_stats and module.training:
        raise UnsupportedModel(
            f"{where} keeps running statistics of the records, which would leave with the model without "
            "noise. Replace it: model = tacit.models.private_ready.make_private_ready(model)."
        )
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise UnsupportedModel(
            f"{where} copies the model or sums gradients before they are clipped. "
            "Pass the module inside it (model.module)."
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and (
        module.max_norm is not None or module.scale_grad_by_freq
    ):
        raise UnsupportedModel(
            f"{where} has max_norm or scale_grad_by_freq, which depend on the whole batch. "
            "Make it without these options."
        )


def check_losses(losses: object, rows: int) -> Tensor:
    """Return ``losses`` if it is a (rows,) floating tensor, else say how to get one.

    >>> check_losses(torch.zeros(3), 3).shape
    torch.Size([3])
    """
    if not isinstance(losses, Tensor):
        raise InvalidInput(f"the loss function must return a tensor of losses; got {type(losses).__name__}.")
    if losses.shape != (rows,) or not losses.is_floating_point():
        raise InvalidInput(
            f"the loss function must return one loss per row, shape ({rows},); got {losses.dtype} of shape "
            f'{tuple(losses.shape)}. Use reduction="none", and take the mean over all dimensions but the '
            "first."
        )
    return losses


def mixing_probe(
    model: nn.Module, per_example_loss: Callable[..., Tensor], batch: tuple[Tensor, ...], *, views: int = 1
) -> None:
    """Refuse a model or loss in which a record's loss depends on the other records of the batch.

    Computes the losses of a few records with the same random numbers beside copies of themselves, then with
    the later, then with the earlier half of the batch replaced by zeros: the losses of the other half must
    be the same bit for bit, and what the passes leave in the model must not hang on the records
    (:mod:`tacit.clipping.keeping`).  Passes that are compared begin with the model in the same state: as it
    is, then as each of some passes leaves it.  The same with the whole batch, for what happens in large ones
    alone, such as a capacity that is exceeded.  Then, where the losses are not random (dropout is left out),
    a few alone: they must be the same up to rounding, for a divisor such as the number of rows would make
    each record's gradient depend on how many others there are.  Rare branches that no record of the batch
    enters are not seen.
    """
    n = len(batch[0]) // views
    chosen = torch.arange(min(n, _FEW)) * n // min(n, _FEW)  # evenly spaced: data may be sorted by class
    positions = (chosen[:, None] * views + torch.arange(views)).flatten()
    few = tuple(t[positions.to(t.device)] for t in batch)
    rows, zeros = len(positions), tuple(torch.zeros_like(t) for t in few)
    memory = state = Memory(model)

    def losses(*parts: tuple[Tensor, ...], seed: int = 0) -> Tensor:
        state.restore()
        return _losses(model, per_example_loss, parts, seed)

    def compare() -> None:
        twice = losses(few, few)
        same_first = torch.equal(twice[:rows], losses(few, zeros)[:rows])
        if not same_first or not torch.equal(twice[rows:], losses(zeros, few)[rows:]):
            raise UnsupportedModel(_MIXES)

    try:
        _, kept = losses(few, few), memory.changes()
        _, blank = losses(zeros, zeros), memory.changes()
        _refuse_kept(memory.names(differing(kept, blank)))
        state.restore()
        for _ in range(_STATES):
            compare()
            if not state.changes():
                break
            state = Memory(model)
        if n > 2 * _FEW:
            _whole_batch(losses, batch, n // 2 * views)
        with _WithoutDropout():
            alone, twice = losses(few), losses(few, few)
            random = not torch.equal(alone, losses(few, seed=1))
        near = random or _near(alone, twice[:rows]) or _near_in_double(model, per_example_loss, few)
    finally:
        memory.restore()
    if not near:
        raise UnsupportedModel(
            "a record's loss changes with the number of records in the batch, so each gradient depends on "
            "how many others there are and clipping bounds nothing. Divide by the number of positions of the "
            "record itself, never by a number of the batch; a layer may also take its batch dimension "
            "for another one (batch_first=False)."
        )


def _whole_batch(losses: Callable[..., Tensor], batch: tuple[Tensor, ...], half: int) -> None:
    """Compare the losses of each half of the batch with those beside zeros."""
    first, second = tuple(t[:half] for t in batch), tuple(t[half:] for t in batch)
    blank_first, blank_second = (tuple(torch.zeros_like(t) for t in part) for part in (first, second))
    whole = losses(first, second)
    found = torch.cat([losses(first, blank_second)[:half], losses(blank_first, second)[half:]])
    if torch.equal(whole, found):
        return
    if torch.equal(whole, losses(first, second)) or not _near(whole, found):  # else sums in a random order
        raise UnsupportedModel(_MIXES)


def _losses(
    model: nn.Module, per_example_loss: Callable[..., Tensor], parts: Iterable[tuple[Tensor, ...]], seed: int
) -> Tensor:
    """Return the losses of a batch of these parts, 0 for NaN, with random numbers from ``seed``."""
    joined = tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
    devices = sorted({t.device.index or 0 for t in joined if t.is_cuda})
    with torch.enable_grad(), torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        found = check_losses(per_example_loss(model, *joined), len(joined[0]))
    return found.detach().nan_to_num(nan=0.0)


def _near(a: Tensor, b: Tensor, tolerance: float = 1e-3) -> bool:
    """Equal up to rounding."""
    return bool((a - b).abs().max() <= tolerance * (1 + b.abs().max()))


def _near_in_double(
    model: nn.Module, per_example_loss: Callable[..., Tensor], few: tuple[Tensor, ...]
) -> bool:
    """Whether the losses of a few are the same alone and beside copies of themselves, in double precision.

    Where large terms cancel, single precision leaves more than what :func:`_near` takes for rounding.
    """
    try:
        wide = copy.deepcopy(model).double()
        batch = tuple(t.double() if t.is_floating_point() else t for t in few)
        with _WithoutDropout():
            alone, twice = (_losses(wide, per_example_loss, parts, 0) for parts in ([batch], [batch, batch]))
    except Exception:  # noqa: BLE001 (not every model can be copied, or is of this type: it stays refused)
        return False
    return _near(alone, twice[: len(alone)], 1e-6)


def _refuse_kept(names: list[str]) -> None:
    if names:
        raise UnsupportedModel(
            f"the forward pass writes something of the records into the model: {', '.join(names)}. It would "
            "leave with the model, or reach later steps, without noise. Return it instead of keeping it, and "
            "set what is computed from data before training, on public records."
        )


_MIXES = (
    "a record's loss changes when other records of the batch change: the model or the loss mixes "
    "records, and clipping cannot bound a record that reaches other records' gradients. Look for "
    "batch statistics (x - x.mean(0), batch_norm) in the model and for sums over the batch in the "
    "loss."
)


class _WithoutDropout(TorchFunctionMode):
    """Within it, dropout functions return their input."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _DROPOUTS:
            return args[0]
        return func(*args, **(kwargs or {}))


_DROPOUTS = frozenset(
    {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout}
)
