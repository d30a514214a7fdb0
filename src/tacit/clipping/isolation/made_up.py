"""A check on made-up records, before any data are read: a record's loss must not depend on other records.

Under vmap no record can reach another, whatever the model does. A model that mixes records would be trained
as if each record were alone. That is private, but not what its user intends. So the losses of a batch are
compared with those of each record alone. If they differ, the model or loss is refused. It is also refused if
it stores values of records.

Letters: n records; K views; B = n K rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tacit.clipping.isolation.modules import check_losses
from tacit.clipping.isolation.randomness import WithoutDraws, begin_at, devices_of, only_torch_draws
from tacit.clipping.isolation.state import Memory, Place, refuse_kept
from tacit.errors import InvalidInput, TacitError, UnsupportedModel

Losses: TypeAlias = Callable[..., Tensor]
Alone: TypeAlias = Callable[[tuple[Tensor, ...], Memory], Tensor]
"""A function that returns the (B,) losses of rows, running each record alone from the state in the memory."""
_Outcome: TypeAlias = tuple[Tensor, Mapping[Place, Any]]
"""(B,) losses, and the state that the pass changed."""
RECORDS = 8
"""The number of made-up records: enough to detect mixing in groups of four, or beyond a small capacity."""
MIXES = (
    "a record's loss in a batch differs from its loss alone: the model or the loss mixes records, but a "
    "private step needs the gradient of each record alone. Look for batch statistics "
    "(x - x.mean(0), batch_norm in training), for sums over the batch in the loss and divisors such as "
    "len(x), for arange(len(x)), for padding up to the longest record that no mask hides, and for layers "
    "that take (T, B, d) but get (B, T, d) (batch_first=False)."
)
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}
_NARROW = 2e-2


def made_up(batch: Sequence[Tensor], views: int, integers: int = 2) -> tuple[Tensor, ...]:
    """Return made-up records: normally distributed floats, and integers from 0 to ``integers`` - 1.

    They have the shapes and types of the batch. Their number is that of the batch, but at least 2 and at most
    8.
    """
    generator = torch.Generator().manual_seed(0)
    rows = min(RECORDS, max(2, len(batch[0]) // views)) * views

    def like(t: Tensor) -> Tensor:
        shape = rows, *t.shape[1:]
        if t.is_floating_point():
            return torch.randn(shape, generator=generator).to(t)
        return torch.randint(integers, shape, generator=generator).to(t)

    return tuple(map(like, batch))


def check_records(
    model: nn.Module,
    per_example_loss: Losses,
    batch: tuple[Tensor, ...],
    views: int,
    around: Memory,
    after_zeros: Mapping[Place, Any],
    alone: Alone,
) -> bool:
    """Refuse a model or loss that mixes or stores records.

    Args:
        model: the model, which is left unchanged.
        per_example_loss: a function that returns the losses of the rows of a batch.
        batch: (B, ...) rows; only their shapes and types are read.
        views: K, the number of rows per record.
        around: the current state of model and loss.
        after_zeros: the state in the model that a pass of zeros changes.
        alone: a function that computes the loss of each record alone.

    Returns:
        Whether a pass changes the model, or a counter of the loss.
    """
    types, devices = _Types(), devices_of(batch)

    def together(rows: tuple[Tensor, ...]) -> Tensor:
        with only_torch_draws(), torch.enable_grad(), types:
            result = per_example_loss(model, *rows)
        return check_losses(result, len(rows[0])).detach()

    def one_by_one(rows: tuple[Tensor, ...]) -> Tensor:
        with warnings.catch_warnings(action="ignore"):  # such as that of std of a single value
            return alone(rows, around).detach()

    def outcome(losses: Losses, rows: tuple[Tensor, ...], draws: bool) -> _Outcome:
        with torch.random.fork_rng(devices=devices), nullcontext() if draws else WithoutDraws():
            begin_at(0, devices)
            try:
                result = losses(rows)
            finally:
                left = around.restore()
        return result, left

    def same(draws: bool, integers: int = 2) -> tuple[bool, Mapping[Place, Any]]:
        rows = made_up(batch, views, integers)
        (one, left), (other, _) = (outcome(losses, rows, draws) for losses in (together, one_by_one))
        most = _NARROW if types.narrow else _ROUNDING.get(one.dtype, _NARROW)
        return _same(one, other, most), left

    try:
        is_same, left = same(draws=False)
    except TacitError:
        raise
    except Exception:  # noqa: BLE001 (the user's own code may fail on integers above 0)
        is_same, left = same(draws=False, integers=1)
    if not is_same and not same(draws=True)[0]:  # some models need real draws, such as a permutation
        raise UnsupportedModel(MIXES)
    refuse_kept(around, after_zeros, around.in_model(left))
    return around.counts(left)


def pass_of_zeros(model: nn.Module, per_example_loss: Losses, rows: Sequence[Tensor]) -> Tensor:
    """Run an ordinary forward pass on zeros of these shapes; its effects depend on no record."""
    zeros = tuple(torch.zeros_like(t) for t in rows)
    with torch.enable_grad(), torch.random.fork_rng(devices=devices_of(rows)):
        return per_example_loss(model, *zeros)


def each_alone(
    model: nn.Module, per_example_loss: Losses, views: int, rows: tuple[Tensor, ...], around: Memory
) -> Tensor:
    """Return the losses (B,) of records that the model sees one after the other."""
    losses = []
    for start in range(0, len(rows[0]), views):
        around.restore()
        try:
            with torch.enable_grad():
                one = per_example_loss(model, *(t[start : start + views] for t in rows))
        except Exception as reason:
            error = f"{type(reason).__name__}: {reason}".partition("\n")[0]
            raise UnsupportedModel(f"{MIXES} On one record alone, model or loss fails: {error}.") from reason
        losses.append(check_losses(one, views).detach())
    return torch.cat(losses)


def never_finite(
    model: nn.Module, per_example_loss: Losses, of_zeros: object, zeros: tuple[Tensor, ...], around: Memory
) -> bool:
    """Return whether losses are infinite or NaN for zeros and also for random numbers in (0, 1).

    Zeros alone prove nothing: the losses of some correct models are not finite for zeros.
    """
    if not _is_nan(of_zeros):
        return False
    rows = [torch.rand_like(t) if t.is_floating_point() else torch.ones_like(t) for t in zeros]
    try:
        return _is_nan(per_example_loss(model, *rows))
    except Exception:  # noqa: BLE001 (failures of the user's own code on made-up records do not matter here)
        return False
    finally:
        around.restore()


def _is_nan(losses: object) -> bool:
    return isinstance(losses, Tensor) and not bool(losses.detach().isfinite().all())


def refuse_zeros(
    model: nn.Module,
    per_example_loss: Losses,
    views: int,
    batch: tuple[Tensor, ...],
    reason: Exception,
    around: Memory,
) -> NoReturn:
    """Refuse a model or loss that fails on zeros, with an error that contains no value of a record.

    A real record goes through the model too, to find out whether only zeros fail. The state of model and loss
    is restored afterwards.
    """
    error = f"{type(reason).__name__}: {str(reason).strip().partition(chr(10))[0].rstrip('.')}"
    try:
        with torch.enable_grad():
            per_example_loss(model, *(t[:views].clone() for t in batch))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001 (its text may contain a value of a record)
        shapes = ", ".join(
            f"{str(t.dtype).removeprefix('torch.')} of shape {tuple(t.shape[1:])}" for t in batch
        )
        raise InvalidInput(
            f"loss(model, ...) fails on a batch of these records: {error}. This is the error on records of "
            f"zeros; the records are {shapes}. Make model and loss fit the shapes and types of the records "
            "(x.float(), y.long()) and the number of arguments."
        ) from reason
    finally:
        around.restore()
    raise UnsupportedModel(
        f"the model or the loss fails on records of zeros: {error}. It runs on them once before the first "
        "step. Let it accept any record of the right shape; with lengths, use lengths.clamp(min=1)."
    ) from reason


def refuse_constant(losses: Tensor) -> None:
    """Refuse losses that depend on no parameter: each step would be noise alone."""
    if not losses.requires_grad:
        raise InvalidInput(
            "the losses depend on no trainable parameter: they have no gradient, and training would be "
            "noise alone. Compute them from the model's output without detach(), torch.no_grad(), argmax "
            "or NumPy."
        )


@final
class _Types(TorchFunctionMode):
    """Detects results of narrow types, as under autocast, which limit the precision of losses."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_floating_point():
            self.narrow |= result.dtype not in _ROUNDING or torch.is_autocast_enabled(result.device.type)
        return result


def _same(a: Tensor, b: Tensor, most: float) -> bool:
    """Return whether two tensors are equal up to rounding; non-finite values must agree exactly."""
    return torch.allclose(a.double(), b.double(), rtol=most, atol=most * _scale(a), equal_nan=True)


def _scale(a: Tensor) -> float:
    finite = a[a.isfinite()].abs()
    return float(finite.max()) if len(finite) else 1.0
