"""What can provenance not see? Place, count, its own errors. Long: each comparison has its tolerance.

Letters: n records; B rows.

Records are compared in two passes: among many and among few, at other places, or beside zeros.  What differs
by more than rounding depends on other records.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from tacit.clipping.isolation.modules import check_losses
from tacit.clipping.isolation.randomness import RepeatedDraws, begin_at, devices_of, drawn_so_far
from tacit.clipping.isolation.state import Memory, refuse_kept
from tacit.clipping.isolation.trace import Unseen
from tacit.errors import UnsupportedModel

__all__ = [
    "DependsOnOthers",
    "Look",
    "beside_zeros",
    "confirmed",
    "doubled",
    "look_of",
    "losses_of",
    "moved",
    "refuse_mixed",
    "rounded",
    "shuffled_places",
]

_Batch: TypeAlias = tuple[Tensor, ...]
Losses: TypeAlias = Callable[..., Tensor]
"""Of a batch, the (B,) losses with random numbers from a seed."""
_FEW = 4
_ROUNDINGS = 64
"""By how many units in the last place of the largest loss rounding may move one."""
NOTHING = 1e-13
"""What the norm of no gradient comes out as, at most."""
_SINGLE, _SIXTEEN_BITS = (1e-3, 1e-6), (2e-2, 1e-3)
"""By how much rounding may move a norm: of itself, and of all norms of the record."""
BACKWARD = "the backward pass of a record depends on the other records"
AGAIN = 2
"""How often parameters are moved to see whether what differs does so elsewhere."""


class DependsOnOthers(Unseen):
    """What a record leaves is another beside other records."""


class _Use(Protocol):
    def squared_norms(self) -> Tensor:
        """(n,)."""

    def gradients(self, start: int, stop: int) -> Tensor:
        """(m, *shape) of these records."""


class _Pass(Protocol):
    @property
    def in_16_bits(self) -> bool:
        """Whether some gradients came in 16 bits."""

    def all_uses(self) -> Iterator[Any]:
        """What it left of each use of a parameter."""


@dataclass(frozen=True)
class Look:
    """What some records left in a pass.

    Attributes:
        norms: (n, uses), of the gradients of each use of a parameter.
        sketches: of the first, the last and some records between, by number: up to 2048 numbers of each of
            these gradients.
        losses: (n,).
        drawn: the state of the generators in the end.
        in_16_bits: whether some gradients came in 16 bits.
    """

    norms: Tensor
    sketches: dict[int, list[Tensor]]
    losses: Tensor
    drawn: Tensor
    in_16_bits: bool

    def of(self, records: Sequence[int]) -> Look:
        """That of some records, numbered anew."""
        chosen = list(records)
        sketches = {number: self.sketches[i] for number, i in enumerate(chosen) if i in self.sketches}
        return Look(self.norms[chosen], sketches, self.losses[chosen], self.drawn, self.in_16_bits)

    def check(self, other: Look) -> None:
        """Raise :class:`DependsOnOthers` unless the same records left the same in another pass."""
        if self.norms.shape != other.norms.shape:
            raise Unseen("which layers a record passes depends on how many records there are")
        linear, rounding = _SIXTEEN_BITS if self.in_16_bits or other.in_16_bits else _SINGLE
        total = self.norms.sum(1, keepdim=True)
        finite = (total + other.norms.sum(1, keepdim=True)).isfinite()
        differ = (self.norms - other.norms).abs() > linear * self.norms + rounding * total + NOTHING
        if bool((differ & finite).any()):
            raise DependsOnOthers(BACKWARD)
        for i in self.sketches.keys() & other.sketches.keys():
            for a, b in zip(self.sketches[i], other.sketches[i], strict=True):
                if a.shape != b.shape:
                    raise DependsOnOthers("a weight is as long as the batch")
                if float((a - b).norm()) > linear * float(a.norm()) + rounding * float(total[i]):
                    raise DependsOnOthers(BACKWARD)


def look_of(taken: _Pass, losses: Tensor, records: Sequence[int], drawn: Tensor) -> Look:
    """What these records left."""
    uses, n = list(taken.all_uses()), len(losses)
    squares = [use.squared_norms().double() for use in uses]
    norms = torch.stack(squares, 1).sqrt() if uses else losses.new_zeros(n, 0, dtype=torch.float64)
    few = {*range(min(n, _FEW)), *shuffled_places(n)} if n > _FEW else set(range(n))
    sketches = {i: [_sketch(use, i) for use in uses] for i in few}
    whole = Look(norms, sketches, losses.nan_to_num(nan=0.0), drawn, taken.in_16_bits)
    return whole if len(records) == n else whole.of(records)


def _sketch(use: _Use, i: int) -> Tensor:
    row = use.gradients(i, i + 1).flatten().nan_to_num(nan=0.0)
    return torch.cat([row.norm()[None], row[:: max(1, row.numel() // 1024)]])


def refuse_place(
    beside: Look, alone: Look, in_double: Callable[[], bool | None], ignores_draws: Callable[[], bool]
) -> None:
    """Refuse what gives records other losses or gradients ``beside`` many others than ``alone``.

    Nothing is said where the passes drew a different amount of random numbers, and losses depend on these.
    """
    if not torch.equal(beside.drawn, alone.drawn) and not ignores_draws():
        return
    finite = beside.losses.isfinite() & alone.losses.isfinite()
    a, b = (look.losses.where(finite, 0.0) for look in (beside, alone))
    if not rounded(a, b):
        holds = in_double()
        if holds is False or (holds is None and not near(a, b)):
            raise UnsupportedModel(BY_PLACE)
    beside.check(alone)


def refuse_mixed(
    model: nn.Module, per_example_loss: Losses, batch: _Batch, views: int, restore: Callable[[], None]
) -> None:
    """Refuse a model or loss in which a record's loss depends on the other records of the batch.

    For what provenance does not show to be isolated, and the engine takes record by record: bounded so, it
    would be another model all the same.  The losses of the batch are compared with those that records have
    where the others are zeros, and with those of a few alone, at other places.
    """

    def losses(part: _Batch, seed: int = 0, ends: list[Tensor] | None = None) -> Tensor:
        restore()
        return losses_of(model, per_example_loss, part, seed, ends)

    n = len(batch[0]) // views
    restore()
    whole = batch if n > 1 else tuple(torch.cat([t, t]) for t in batch)
    n = max(n, 2)
    chosen = torch.tensor(shuffled_places(n) if n > _FEW else [*range(1, n)])
    few = tuple(t[rows_of(chosen, views).to(t.device)] for t in whole)
    try:
        certain = torch.equal(losses(few), losses(few, 1))
        # which random numbers a record draws may depend on the lengths of others, as in a packed sequence
        with nullcontext() if certain else RepeatedDraws(views):
            twice = tuple(torch.cat([t, t]) for t in few)
            _refuse_beside_zeros(model, per_example_loss, losses, twice, views)
            if n > 2 * _FEW:
                _refuse_beside_zeros(model, per_example_loss, losses, whole, views)
        ends: list[Tensor] = []
        repeated = nullcontext() if certain else RepeatedDraws(views)
        with repeated:
            alone = losses(few, 0, ends)
            beside = losses(whole, 0, ends)[rows_of(chosen, views)]
        if (certain or torch.equal(*ends)) and not rounded(beside, alone):

            def same(wide: Losses) -> bool:
                with nullcontext() if certain else RepeatedDraws(views):
                    return near(wide(few), wide(whole)[rows_of(chosen, views)], 1e-6)

            holds = holds_in_double(same, model, per_example_loss)
            if holds is False or (holds is None and not near(beside, alone)):
                raise UnsupportedModel(BY_PLACE)
    finally:
        restore()


def _refuse_beside_zeros(
    model: nn.Module, per_example_loss: Losses, losses: Losses, whole: _Batch, views: int
) -> None:
    halves = _halves(len(whole[0]) // views).repeat_interleave(views, 1).to(whole[0].device)
    together, apart = _both_ways(losses, whole, halves)
    if torch.equal(together, apart):
        return
    again = losses(whole)
    if not rounded(again, together[0]):
        raise UnsupportedModel(HISTORY)
    if not torch.equal(again, together[0]) and near(together, apart):
        return  # sums in a random order
    in_double = rounded(together, apart) and holds_in_double(
        lambda wide: rounded(*_both_ways(wide, whole, halves)), model, per_example_loss
    )
    if in_double is False:
        raise UnsupportedModel(MIXES)


def losses_of(
    model: nn.Module,
    per_example_loss: Losses,
    batch: _Batch,
    seed: int = 0,
    ends: list[Tensor] | None = None,
) -> Tensor:
    """Return the losses of a batch, 0 for NaN; ``ends`` gets the state of the generators afterwards."""
    devices = devices_of(batch)
    with torch.enable_grad(), torch.random.fork_rng(devices=devices), only_torch_draws():
        begin_at(seed, devices)
        found = check_losses(per_example_loss(model, *batch), len(batch[0]))
        if ends is not None:
            ends.append(drawn_so_far(devices))
    return found.detach().nan_to_num(nan=0.0)


@contextmanager
def only_torch_draws() -> Iterator[None]:
    """Refuse a pass in which Python's or NumPy's random numbers are drawn."""

    def state() -> tuple[object, ...]:
        _, key, *rest = np.random.get_state()  # noqa: NPY002 (models that draw from it do)
        return random.getstate(), np.asarray(key).tobytes(), *rest

    before = state()
    yield
    if state() != before:
        raise UnsupportedModel(
            "the model or the loss draws random numbers by Python's random or NumPy, which all records have "
            "in common and which are others when a step is done again. Draw by torch, for each record: "
            "torch.rand(len(x))."
        )


def holds_in_double(
    judge: Callable[[Losses], bool], model: nn.Module, per_example_loss: Losses
) -> bool | None:
    """What ``judge`` says of losses in double precision; None if they cannot be had."""
    try:
        wide = copy.deepcopy(model).double()

        def losses(part: _Batch, seed: int = 0) -> Tensor:
            widened = tuple(t.double() if t.is_floating_point() else t for t in part)
            found = losses_of(wide, per_example_loss, widened, seed)
            if found.dtype != torch.float64:
                raise TypeError("the model computes in single precision whatever it is given")
            return found

        return judge(losses)
    except Exception:  # noqa: BLE001 (not every model can be copied, or is of this type)
        return None


def shuffled_places(n: int) -> list[int]:
    """Four of n numbers, of four or more, each at another place, and the first one at an odd one.

    >>> shuffled_places(9)
    [8, 0, 4, 5]
    """
    return [n - 1, 0, n // 2, min(n // 2 + 1, n - 1)]


def places_of(n: int, m: int) -> Tensor:
    """m of n numbers, the first, the last and some between, evenly spaced: data may be sorted by class.

    >>> places_of(9, 3).tolist(), places_of(1, 2).tolist()
    ([0, 4, 8], [0, 0])
    """
    return torch.arange(m) * (n - 1) // max(m - 1, 1)


def rows_of(records: Tensor, views: int) -> Tensor:
    """The numbers of the rows of these records."""
    return (records[:, None] * views + torch.arange(views, device=records.device)).flatten()


def beside_zeros(batch: _Batch, kept: Tensor) -> _Batch:
    """The batch with zeros for all rows but those ``kept``, (B,) bool."""
    return tuple(
        torch.where(kept.view(-1, *[1] * (t.dim() - 1)).to(t.device), t, torch.zeros_like(t)) for t in batch
    )


def _halves(records: int) -> Tensor:
    """(w, n) bool: the later half of the records, and of a few every other one, every other two, ...

    With as many ways as there are of a few records, each two are in different halves at least once.
    """
    number = torch.arange(records)
    most = 4 if records <= 2 * _FEW else 1
    strides = [2**k for k in range(max(0, (records - 1).bit_length() - 1)) if 2**k < most]
    return torch.stack([number >= records // 2, *(number // stride % 2 == 1 for stride in strides)])


def _both_ways(losses: Losses, batch: _Batch, halves: Tensor) -> tuple[Tensor, Tensor]:
    """Return (w, n) losses of a batch, and those that each record has with the other half zeroed."""
    together = losses(batch)
    apart = [
        torch.where(half, losses(beside_zeros(batch, half)), losses(beside_zeros(batch, ~half)))
        for half in halves
    ]
    return together.expand(len(apart), -1), torch.stack(apart)


def rounded(a: Tensor, b: Tensor) -> bool:
    """Equal up to the rounding of a few operations; 0 and infinite losses to the last bit.

    >>> [rounded(torch.tensor([loss]), torch.ones(1)) for loss in (1.000001, 1.1)]
    [True, False]
    """
    most = _ROUNDINGS * torch.finfo(a.dtype).eps * b.abs().max()
    return torch.equal(a, b) or bool((a - b).abs().max() <= most < torch.inf)


def near(a: Tensor, b: Tensor, tolerance: float = 1e-3) -> bool:
    """Equal up to rounding; equal infinite losses are not.

    >>> near(torch.tensor([1.0001]), torch.ones(1))
    True
    """
    return bool((a - b).abs().max() <= tolerance * b.abs().max())


def confirmed(
    look: Callable[[], bool],
    in_double: Callable[[], bool | None],
    elsewhere: Callable[[int], AbstractContextManager[None]],
) -> bool:
    """Return what a look returns; raise what it finds wrong if it finds it in other ways, too.

    Batches of other sizes are rounded otherwise, by a ten-millionth, or by a thousandth where a GPU
    multiplies in TF32 or in 16 bits.  Where a number is as near to a kink, as to 0 before a ReLU, that
    decides on which side it lies, and gradients differ by far more.  In double precision no number is.
    Models that cannot be had ``in_double`` are looked at with parameters that are moved a little: numbers lie
    elsewhere then.  Records that depend on others still do in both.
    """
    try:
        return look()
    except (DependsOnOthers, UnsupportedModel):
        if (holds := in_double()) is not None:
            return holds
        for seed in range(AGAIN):
            try:
                with elsewhere(seed):
                    return look()
            except (DependsOnOthers, UnsupportedModel):
                continue
        raise


@contextmanager
def doubled(model: nn.Module) -> Iterator[None]:
    """Parameters and buffers in double precision; they are put back as they were."""
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    kept = [t.data for t in tensors]
    with _unsafe_preserve_version_counter(
        tuple(tensors)
    ):  # by the number of writes those of the model are seen
        try:
            for tensor, values in zip(tensors, kept, strict=True):
                tensor.data = values.double()
            yield
        finally:
            for tensor, values in zip(tensors, kept, strict=True):
                tensor.data = values


@contextmanager
def moved(parameters: Iterable[Tensor], seed: int) -> Iterator[None]:
    """Parameters that differ by far more than rounding, and far less than by what training moves them.

    By the square root of what their type rounds by, relative to each.  They are put back bit for bit.
    """
    tensors = list(parameters)
    kept = [tensor.detach().clone() for tensor in tensors]
    uncounted = tuple(tensors)  # by the number of writes those of the model are seen
    try:
        with torch.no_grad(), _unsafe_preserve_version_counter(uncounted):
            for tensor in tensors:
                generator = torch.Generator(tensor.device).manual_seed(seed)
                by = torch.empty_like(tensor).normal_(generator=generator)
                tensor.addcmul_(tensor, by, value=torch.finfo(tensor.dtype).eps ** 0.5)
        yield
    finally:
        with torch.no_grad(), _unsafe_preserve_version_counter(uncounted):
            for tensor, as_it_was in zip(tensors, kept, strict=True):
                tensor.copy_(as_it_was)


MIXES = (
    "a record's loss changes when other records of the batch change: the model or the loss mixes "
    "records, and clipping cannot bound a record that reaches other records' gradients. Look for "
    "batch statistics (x - x.mean(0), batch_norm) in the model and for sums over the batch in the "
    "loss."
)
BY_PLACE = (
    "a record's loss changes when another record is left out, by its place in the batch or by how many "
    "others there are: clipping cannot bound a record that moves all others. Look for positions that are "
    "added along the batch dimension (a layer that takes (T, B, d) is given (B, T, d); batch_first=False), "
    "for arange(len(x)) in the loss, and for divisors such as len(x): divide by the number of positions of "
    "the record itself."
)
HISTORY = (
    "the same batch gave other losses in a second pass, with the same model and random numbers: the loss or "
    "the model keeps something of earlier batches, goes by how often it was called, or draws from a random "
    "number generator of its own. Later steps would depend on the records of earlier ones without noise; and "
    "how often the loss is called depends on how many records there are. Compute stored values before "
    "training, on public records; set what changes during training between the steps; draw by torch."
)
READS_KEPT = (
    "the loss or the model reads a tensor that it kept of an earlier batch: later steps would depend on the "
    "records of earlier ones without noise. Compute stored values before training, on public records; to log "
    "losses, keep the numbers and read them between the steps."
)
LATE = (
    "The batches before did not show it, but steps of this run may depend on one record by more than the "
    "noise covers: do not release what they trained, and begin anew with another model."
)


def check_records(model: nn.Module, per_example_loss: Losses, batch: _Batch, *, views: int = 1) -> bool:
    """Refuse models and losses that keep or mix records, by comparing losses; return if passes change it.

    For an engine that takes each record by itself.
    """
    memory = Memory(model)
    n = len(batch[0]) // views
    few = tuple(t[rows_of(places_of(n, min(n, 3)), views).to(t.device)] for t in batch)
    try:
        losses_of(model, per_example_loss, tuple(torch.zeros_like(t) for t in few))
        after_zeros = memory.changes()
        memory.restore()
        first = losses_of(model, per_example_loss, few)
        changes = memory.changes()
        refuse_kept(memory, after_zeros, changes)
        memory.restore()
        again = losses_of(model, per_example_loss, few)
        if not rounded(first, again) and not (first.is_cuda and near(first, again)):
            raise UnsupportedModel(HISTORY)
        refuse_mixed(model, per_example_loss, batch, views, memory.restore)
    finally:
        memory.restore()
    return bool(changes)
