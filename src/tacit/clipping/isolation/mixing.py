"""Whether one record's row reaches another's loss: the same records are tried beside other neighbours.

Letters: n records; B rows.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from tacit.clipping.isolation.double import InDouble
from tacit.clipping.isolation.history import HISTORY, check_first, check_history, near, rounded
from tacit.clipping.isolation.modules import check_losses
from tacit.clipping.isolation.randomness import RepeatedDraws, begin_at, devices_of, drawn_so_far
from tacit.clipping.isolation.state import Memory, Surroundings, differing
from tacit.errors import TacitError, UnsupportedModel

__all__ = ["SEEN_LATE", "check_still_apart", "mixing_probe", "works_in_place"]

_FEW = 4
"""Records that the first probes look at."""
_STATES = 8
"""States in which they look at a model that changes by itself: as it is, and as passes leave it."""


def mixing_probe(
    model: nn.Module, per_example_loss: Callable[..., Tensor], batch: tuple[Tensor, ...], *, views: int = 1
) -> bool:
    """Refuse a model or loss in which a record's loss depends on the other records of the batch.

    Return whether it does not to the last bit.  Operations whose shape hangs on the records, such as those on
    packed sequences, round a record otherwise beside others; but so does what mixes records a little, and
    only an engine that takes each record by itself may go on with either.

    Computes the losses of a few records with the same random numbers beside copies of themselves, then with
    one half of the batch replaced by zeros, then with the other: what is left of either must have the same
    losses.  Halves are taken in several ways, so that each two records are apart in one of them.  And what
    the passes leave in the model must not hang on the records (``isolation/state.py``).  Passes that
    are compared begin with the model in the same state: as it is, then as each of some passes leaves it.
    The same with the whole batch, for what happens in large ones alone, such as a capacity that is exceeded.
    Then a few alone (dropout is left out, and other random numbers are the same for copies, where that can be
    done): they must be the same up to rounding, for a divisor such as the number of rows would make each
    record's gradient depend on how many others there are.  Rare branches that no record of the batch enters
    are not seen.
    """
    n = len(batch[0]) // views
    chosen = torch.arange(min(n, _FEW)) * n // min(n, _FEW)  # evenly spaced: data may be sorted by class
    positions = (chosen[:, None] * views + torch.arange(views)).flatten()
    few = tuple(t[positions.to(t.device)] for t in batch)
    rows, zeros = len(positions), tuple(torch.zeros_like(t) for t in few)
    memory = state = Memory(model)
    begun = Surroundings(per_example_loss, model)
    exact = True

    def losses(*parts: tuple[Tensor, ...], seed: int = 0, ends: list[Tensor] | None = None) -> Tensor:
        state.restore()
        return _losses(model, per_example_loss, parts, seed, ends)

    def is_exact(whole: tuple[Tensor, ...], ways: int, *, in_order: bool = True) -> bool:
        return _is_exact(model, per_example_loss, losses, whole, views, ways, in_order=in_order)

    try:
        # first, so that what is made once and out of sight is made of no record
        _check_zeros(losses, zeros, few)
        blank, after_zeros = memory.changes(), Surroundings(per_example_loss, model)
        _, kept = losses(few, few), memory.changes()
        _refuse_kept(memory.names(differing(kept, blank)))
        if made := begun.changed() - after_zeros.changed():
            check_first(losses, begun, made, Surroundings(per_example_loss, model), few)
        check_history(memory, partial(_losses, model, per_example_loss), few)
        state.restore()
        for _ in range(_STATES):
            exact &= is_exact(tuple(torch.cat([t, t]) for t in few), 2 * _FEW)
            if not state.changes():
                break
            state = Memory(model)
        if n > 2 * _FEW:
            exact &= is_exact(batch, 2, in_order=False)
        with RepeatedDraws(rows):
            ends: list[Tensor] = []
            alone, twice = losses(few, ends=ends), losses(few, few, ends=ends)
            same_draws = torch.equal(alone, losses(few, seed=1)) or (
                torch.equal(*ends) and torch.equal(alone, losses(few))
            )
            copies = max(2, -(-n // len(chosen)))  # as many as records: a divisor may grow in steps
            many = losses(*[few] * copies)[:rows]
        alike = near(alone, twice[:rows]) and near(alone, many)
        same = alike or not same_draws or _near_in_double(model, per_example_loss, few, copies)
        for whole in (few, batch) if same and n > 1 else ():
            _check_places(model, per_example_loss, losses, whole, views)
    finally:
        memory.restore()
    if not same:
        raise UnsupportedModel(
            "a record's loss changes with the number of records in the batch, so each gradient depends on "
            "how many others there are and clipping bounds nothing. Divide by the number of positions of the "
            "record itself, never by a number of the batch; a layer may also take its batch dimension "
            "for another one (batch_first=False)."
        )
    return exact


def works_in_place(
    model: nn.Module, per_example_loss: Callable[..., Tensor], batch: tuple[Tensor, ...], *, views: int = 1
) -> bool:
    """Whether model or loss change the tensors that they are given."""
    memory, rows = Memory(model), tuple(t[: _FEW * views].clone() for t in batch)
    versions = [t._version for t in rows]
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=devices_of(rows)):
            per_example_loss(model, *rows)
    finally:
        memory.restore()
    return versions != [t._version for t in rows]


def check_still_apart(
    model: nn.Module, per_example_loss: Callable[..., Tensor], batch: tuple[Tensor, ...], *, views: int = 1
) -> None:
    """Refuse a model that mixes the records of this batch, though it passed :func:`mixing_probe` on another.

    Training changes models: where experts have a capacity, it is exceeded once many records go to one.
    """
    memory = Memory(model)

    def losses(part: tuple[Tensor, ...], seed: int = 0, ends: list[Tensor] | None = None) -> Tensor:
        memory.restore()
        return _losses(model, per_example_loss, [part], seed, ends)

    try:
        check_history(memory, partial(_losses, model, per_example_loss), batch)
        _is_exact(model, per_example_loss, losses, batch, views, 2, in_order=False, passed=True)
        if len(batch[0]) > views:
            _check_places(model, per_example_loss, losses, batch, views)
    except UnsupportedModel as refusal:
        raise UnsupportedModel(f"{refusal} {SEEN_LATE}") from None
    finally:
        memory.restore()


def _is_exact(
    model: nn.Module,
    per_example_loss: Callable[..., Tensor],
    losses: Callable[..., Tensor],
    whole: tuple[Tensor, ...],
    views: int,
    ways: int,
    *,
    in_order: bool,
    passed: bool = False,
) -> bool:
    """Whether records have the same ``losses`` to the last bit beside others and beside zeros.

    Refuse what is more than rounding.  ``in_order``: sums are taken to be in the same order each time.
    ``passed``: the model did once, and what may be rounding is, where double precision cannot tell.
    """
    halves = _halves(len(whole[0]) // views, ways).repeat_interleave(views, 1).to(whole[0].device)
    together, beside_zeros = _both_ways(losses, whole, halves)
    if torch.equal(together, beside_zeros):
        return True
    if not in_order and not torch.equal(together[0], losses(whole)) and near(together, beside_zeros):
        return True  # sums in a random order
    in_double = rounded(together, beside_zeros) and _rounded_in_double(model, per_example_loss, whole, halves)
    if in_double is False or (in_double is None and not passed):
        raise UnsupportedModel(_MIXES if rounded(losses(whole), together[0]) else HISTORY)
    return False


def _check_places(
    model: nn.Module,
    per_example_loss: Callable[..., Tensor],
    losses: Callable[..., Tensor],
    whole: tuple[Tensor, ...],
    views: int,
) -> None:
    """Refuse what gives records other losses where the first is not there and all others move up by one.

    Or where the second half is not there.  All records have the same random numbers, if they hang on a seed;
    nothing is said if there are some that cannot be made the same.
    """
    half = -(-len(whole[0]) // views // 2) * views
    rest, first = tuple(t[views:] for t in whole), tuple(t[:half] for t in whole)
    certain = torch.equal(losses(whole), losses(whole, seed=1))

    def differ(losses: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        with nullcontext() if certain else RepeatedDraws(views):
            beside, *without = (losses(part, ends=ends) for part in (whole, rest, first))
        return torch.cat([beside[views:], beside[:half]]), torch.cat(without)

    ends: list[Tensor] = []
    beside, without = differ(losses)
    if rounded(beside, without) or not (certain or all(torch.equal(ends[0], end) for end in ends)):
        return
    in_double = _holds_in_double(lambda wide: near(*differ(wide), 1e-6), model, per_example_loss)
    if in_double is False or (in_double is None and not near(beside, without)):
        raise UnsupportedModel(_BY_PLACE)


def _check_zeros(losses: Callable[..., Tensor], zeros: tuple[Tensor, ...], few: tuple[Tensor, ...]) -> None:
    """Carry out the model on records of zeros, which it may not expect; if it can be on the ``few``."""
    try:
        losses(zeros, zeros)
    except (TacitError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, LookupError) as reason:
        losses(few, few)  # which says what is wrong, if that is not the zeros
        raise UnsupportedModel(
            "the model or the loss fails on records of zeros, beside which it is tried before the first "
            f"step: {reason} Let it take any record of the right shape; with lengths, lengths.clamp(min=1)."
        ) from reason


def _halves(records: int, ways: int) -> Tensor:
    """(w, n) bool: the later half of the records, every other one, every other two, ...

    With as many ways as there are records, each two records are in different halves at least once.
    """
    number = torch.arange(records)
    strides = [2**k for k in range(max(0, (records - 1).bit_length() - 1)) if 2**k < ways]
    return torch.stack([number >= records // 2, *(number // stride % 2 == 1 for stride in strides)])


def _both_ways(
    losses: Callable[..., Tensor], batch: tuple[Tensor, ...], halves: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (w, n) losses of a batch, and those that each record has with the other half zeroed.

    ``halves``: (w, n) bool.
    """

    def zeroed(t: Tensor, half: Tensor) -> Tensor:
        return t.where(half.view(-1, *[1] * (t.dim() - 1)).to(t.device), t.new_zeros(()))  # of t's own type

    def kept(half: Tensor) -> Tensor:
        return losses(tuple(zeroed(t, half) for t in batch))

    together = losses(batch)
    apart = [torch.where(half.to(together.device), kept(half), kept(~half)) for half in halves]
    return together.expand(len(apart), -1), torch.stack(apart)


def _losses(
    model: nn.Module,
    per_example_loss: Callable[..., Tensor],
    parts: Iterable[tuple[Tensor, ...]],
    seed: int = 0,
    ends: list[Tensor] | None = None,
) -> Tensor:
    """Return the losses of a batch of these parts, 0 for NaN, with random numbers from ``seed``.

    ``ends`` gets the state of the generators afterwards.
    """
    joined = tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
    devices, elsewhere = devices_of(joined), _drawn_elsewhere()
    with torch.enable_grad(), torch.random.fork_rng(devices=devices):
        begin_at(seed, devices)
        found = check_losses(per_example_loss(model, *joined), len(joined[0]))
        if ends is not None:
            ends.append(drawn_so_far(devices))
    if _drawn_elsewhere() != elsewhere:
        raise UnsupportedModel(
            "the model or the loss draws random numbers by Python's random or NumPy, which all records have "
            "in common and which are others when a step is done again. Draw by torch, for each record: "
            "torch.rand(len(x))."
        )
    return found.detach().nan_to_num(nan=0.0)


def _drawn_elsewhere() -> tuple[object, ...]:
    """How far the generators are that are not torch's."""
    _, key, *rest = np.random.get_state()  # noqa: NPY002 (models that draw from it do)
    return random.getstate(), np.asarray(key).tobytes(), *rest


def _near_in_double(
    model: nn.Module, per_example_loss: Callable[..., Tensor], few: tuple[Tensor, ...], copies: int
) -> bool:
    """Whether the losses of a few are the same alone and beside copies of themselves, in double precision.

    Where large terms cancel, single precision leaves more than what ``near`` takes for rounding.
    """

    def alike(losses: Callable[..., Tensor]) -> bool:
        with RepeatedDraws(len(few[0])):
            alone, others = losses(few), (losses(few, few), losses(*[few] * copies))
        return all(near(alone, beside[: len(alone)], 1e-6) for beside in others)

    return _holds_in_double(alike, model, per_example_loss) is True


def _rounded_in_double(
    model: nn.Module,
    per_example_loss: Callable[..., Tensor],
    batch: tuple[Tensor, ...],
    halves: Tensor,
) -> bool | None:
    """Whether what the halves of a batch do to each other is rounding in double precision as well, or None.

    What mixes records by as little as single precision rounds, such as what normalisation leaves of a record,
    is seen there.
    """
    return _holds_in_double(
        lambda losses: rounded(*_both_ways(losses, batch, halves)), model, per_example_loss
    )


def _holds_in_double(
    judge: Callable[[Callable[..., Tensor]], bool],
    model: nn.Module,
    per_example_loss: Callable[..., Tensor],
) -> bool | None:
    """What ``judge`` says of the losses of parts in double precision; None if they cannot be had."""
    try:
        wide = copy.deepcopy(model).double()

        def losses(*parts: tuple[Tensor, ...], ends: list[Tensor] | None = None) -> Tensor:
            widened = (tuple(t.double() if t.is_floating_point() else t for t in part) for part in parts)
            with InDouble():
                return _losses(wide, per_example_loss, widened, 0, ends)

        return judge(losses)
    except Exception:  # noqa: BLE001 (not every model can be copied, or is of this type)
        return None


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
_BY_PLACE = (
    "a record's loss changes when another record is left out, by its place in the batch or by how many "
    "others there are: clipping cannot bound a record that moves all others. Look for positions that are "
    "added along the batch dimension (a layer that takes (T, B, d) is given (B, T, d); batch_first=False), "
    "for arange(len(x)) in the loss, and for divisors that hang on len(x)."
)
SEEN_LATE = (
    "The batches before did not show it, but steps of this run may hang on one record by more than they are "
    "priced for: do not release what they trained, and begin anew with another model."
)
