"""Is a record's loss the same beside others?  Asked once, on made-up records, before any data are read.

Under vmap no record can reach another, whatever the model does: a model that mixes records would be trained
as if each record were alone.  That is private, and not what its user means.  So the losses of a batch are
compared with those of its records, each alone, and a model or loss for which they differ is refused.  So is
one that keeps what it saw.

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
"""(B,) losses of rows, each record alone, and each beginning with what is in memory."""
_Tried: TypeAlias = tuple[Tensor, Mapping[Place, Any]]
"""(B,) losses, and what their pass changed."""
RECORDS = 8
"""How many are made up: mixing in groups of four, or above a capacity of a few, is seen."""
MIXES = (
    "a record's loss in a batch is another than that of the record alone: the model or the loss mixes "
    "records, and a private step takes the gradient of each record by itself. Look for batch statistics "
    "(x - x.mean(0), batch_norm in training), for sums over the batch in the loss and divisors such as "
    "len(x), for arange(len(x)), for padding up to the longest record that no mask hides, and for layers "
    "that take (T, B, d) and are given (B, T, d) (batch_first=False)."
)
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}
_NARROW = 2e-2


def made_up(batch: Sequence[Tensor], views: int, integers: int = 2) -> tuple[Tensor, ...]:
    """Return records of normal numbers, and of the whole numbers from 0 to below ``integers``.

    Of these shapes and types, and no more than there are, but two.
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
    """Refuse a model or loss that mixes or keeps records; return whether a pass changes the model or counts.

    Args:
        model: it is left as it was.
        per_example_loss: of the rows of a batch.
        batch: (B, ...) rows of which shapes and types are read, and nothing else.
        views: K.
        around: model and loss as they are.
        after_zeros: what a pass of zeros changes in the model.
        alone: how losses of records alone are had.
    """
    types, devices = _Types(), devices_of(batch)

    def together(rows: tuple[Tensor, ...]) -> Tensor:
        with only_torch_draws(), torch.enable_grad(), types:
            found = per_example_loss(model, *rows)
        return check_losses(found, len(rows[0])).detach()

    def by_itself(rows: tuple[Tensor, ...]) -> Tensor:
        with warnings.catch_warnings(action="ignore"):  # of one record: std of a single number
            return alone(rows, around).detach()

    def tried(losses: Losses, rows: tuple[Tensor, ...], draws: bool) -> _Tried:
        with torch.random.fork_rng(devices=devices), nullcontext() if draws else WithoutDraws():
            begin_at(0, devices)
            try:
                found = losses(rows)
            finally:
                left = around.restore()
        return found, left

    def same(draws: bool, integers: int = 2) -> tuple[bool, Mapping[Place, Any]]:
        rows = made_up(batch, views, integers)
        (one, left), (other, _) = (tried(losses, rows, draws) for losses in (together, by_itself))
        most = _NARROW if types.narrow else _ROUNDING.get(one.dtype, _NARROW)
        return _same(one, other, most), left

    try:
        is_same, left = same(draws=False)
    except TacitError:
        raise
    except Exception:  # noqa: BLE001 (of whole numbers the user's own code may take 0 alone)
        is_same, left = same(draws=False, integers=1)
    if not is_same and not same(draws=True)[0]:  # where what is drawn has a meaning, as an order of places
        raise UnsupportedModel(MIXES)
    refuse_kept(around, after_zeros, around.in_model(left))
    return around.counts(left)


def pass_of_zeros(model: nn.Module, per_example_loss: Losses, rows: Sequence[Tensor]) -> Tensor:
    """Carry out an ordinary forward pass of zeros of these shapes, which leaves what no record says."""
    zeros = tuple(torch.zeros_like(t) for t in rows)
    with torch.enable_grad(), torch.random.fork_rng(devices=devices_of(rows)):
        return per_example_loss(model, *zeros)


def each_alone(
    model: nn.Module, per_example_loss: Losses, views: int, rows: tuple[Tensor, ...], around: Memory
) -> Tensor:
    """Return the losses (B,) of records that the model sees one after the other."""
    found = []
    for start in range(0, len(rows[0]), views):
        around.restore()
        try:
            with torch.enable_grad():
                one = per_example_loss(model, *(t[start : start + views] for t in rows))
        except Exception as reason:
            said = f"{type(reason).__name__}: {reason}".partition("\n")[0]
            raise UnsupportedModel(f"{MIXES} It fails for a record alone: {said}.") from reason
        found.append(check_losses(one, views).detach())
    return torch.cat(found)


def never_finite(
    model: nn.Module, per_example_loss: Losses, of_zeros: object, zeros: tuple[Tensor, ...], around: Memory
) -> bool:
    """Whether losses are NaN or infinite, for zeros and for numbers in (0, 1): of zeros alone some are."""
    if not _is_nan(of_zeros):
        return False
    rows = [torch.rand_like(t) if t.is_floating_point() else torch.ones_like(t) for t in zeros]
    try:
        return _is_nan(per_example_loss(model, *rows))
    except Exception:  # noqa: BLE001 (what the user's own code cannot do with made-up records is no matter)
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
    """Refuse what fails on zeros; the text of that error holds no value of a record.

    What is in memory is put back: a record goes through the model, to see whether it fails too.
    """
    said = f"{type(reason).__name__}: {str(reason).strip().partition(chr(10))[0].rstrip('.')}"
    try:
        with torch.enable_grad():
            per_example_loss(model, *(t[:views].clone() for t in batch))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001 (whose text may hold a value of a record)
        shapes = ", ".join(
            f"{str(t.dtype).removeprefix('torch.')} of shape {tuple(t.shape[1:])}" for t in batch
        )
        raise InvalidInput(
            f"loss(model, ...) fails on a batch of these records, which are {shapes}: {said}. (This is "
            "what it says of records of zeros.) Make model and loss fit the records: their shapes, their "
            "types, as by x.float() and y.long(), and the number of arguments."
        ) from reason
    finally:
        around.restore()
    raise UnsupportedModel(
        "the model or the loss fails on records of zeros, beside which it is tried before the first "
        f"step: {said}. Let it take any record of the right shape; with lengths, lengths.clamp(min=1)."
    ) from reason


def refuse_constant(losses: Tensor) -> None:
    """Refuse losses that depend on no parameter: each step would be noise alone."""
    if not losses.requires_grad:
        raise InvalidInput(
            "the losses depend on no trainable parameter, so they have no gradient, and training would be "
            "noise alone. Compute them from the model's output without detach(), torch.no_grad(), argmax "
            "or NumPy."
        )


@final
class _Types(TorchFunctionMode):
    """Sees whether results are of a narrow type, as under autocast: losses are no better than those then."""

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
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and found.is_floating_point():
            self.narrow |= found.dtype not in _ROUNDING or torch.is_autocast_enabled(found.device.type)
        return found


def _same(a: Tensor, b: Tensor, most: float) -> bool:
    """Equal up to rounding; what is not finite, to the last bit."""
    return torch.allclose(a.double(), b.double(), rtol=most, atol=most * _scale(a), equal_nan=True)


def _scale(a: Tensor) -> float:
    finite = a[a.isfinite()].abs()
    return float(finite.max()) if len(finite) else 1.0
