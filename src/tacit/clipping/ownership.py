"""Whether what a tape recorded lies with the record that it belongs to: judged on a few records.

Letters: n records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import final

import torch
from torch import Tensor

from tacit.clipping.layers.tape import Tape, Unseen
from tacit.clipping.layers.use import Use
from tacit.clipping.validate import SEEN_LATE
from tacit.errors import UnsupportedModel

__all__ = ["Ownership", "check_alike", "owned_uses", "sketch", "some_of", "three_of"]

LINEAR = 1e-3
"""Gradients of a record alone and beside others may differ by this part of their norm."""
ROUNDED = 1e-6
"""What is below this part of a record's whole gradient may be rounding of parts that cancel."""
NEGLIGIBLE = 1e-12
"""A norm of this part of the threshold is what rounding leaves of nothing."""
MOST_WAYS = 1024
"""How many are remembered: a way is another one for each number that Python is told on it."""
SOME = 16
"""Records of a batch among which gradients are compared with those beside zeros."""


def three_of(losses: Tensor) -> Tensor:
    """Return the numbers of three records, finite losses first; some twice if there are fewer."""
    order = losses.isfinite().logical_not().to(torch.uint8).argsort(stable=True)
    return order[torch.arange(3, device=order.device) % len(order)]


def some_of(losses: Tensor, records: Tensor) -> Tensor:
    """Return the numbers of some of n records in order: evenly spaced, and the extreme ones.

    ``records``: (n, d) of any type.  A model may do with the whole batch what one large record moves it to.
    """
    n = len(losses)
    m = min(n, max(4, min(SOME, n // 4)))
    even = torch.arange(m, device=losses.device) * n // m
    sizes = [losses]
    if records.numel():
        numbers = (records.abs() if records.is_complex() else records).to(losses)
        sizes += [numbers.amax(1), numbers.amin(1)]
    extremes = [find(size) for size in sizes for find in (torch.argmax, torch.argmin)]
    some: Tensor = torch.unique(torch.cat([even, torch.stack(extremes)]))
    return some


def sketch(use: Use, i: int) -> Tensor:
    """Return what the gradient of record i is compared by: its norm and up to 2048 of its numbers."""
    row = use.gradients(i, i + 1).flatten().nan_to_num(nan=0.0)
    return torch.cat([row.norm()[None], row[:: max(1, row.numel() // 1024)]])


def owned_uses(probe: Tape, j: int, summed: list[list[Tensor]]) -> set[int]:
    """Return the numbers of the uses that record j's loss reaches; none may be reached in another record.

    ``summed``: for each use the sketches of the n records when all losses are summed; j's must be the same.
    """
    reached = set()
    total = sum(float(sketches[j][0]) for sketches in summed)
    for number, (use, sketches) in enumerate(zip(probe.all_uses(), summed, strict=True)):
        n, beside = len(sketches), sketches[j]
        # NaN is what 0 times infinity leaves; it does not come from another record's loss
        for i in (i for i in range(n) if bool(use.gradients(i, i + 1).nan_to_num(nan=0.0).any())):
            if i != j:
                raise Unseen("the model does not keep the rows of a record together, or reorders them")
            reached.add(number)
        _check_same(sketch(use, j), beside, total)
    return reached


def check_alike(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    """Raise unless one record's sketches, one for each use, are the same; nothing is said of other uses."""
    if len(found) == len(wanted):
        total = sum(float(sketched[0]) for sketched in wanted)
        for one, other in zip(found, wanted, strict=True):
            _check_same(one, other, total)


def _check_same(found: Tensor, wanted: Tensor, total: float) -> None:
    difference = float((found - wanted).norm())
    if difference > LINEAR * float(wanted.norm()) + ROUNDED * total:
        raise Unseen("the backward pass of a record depends on the other records")


@final
class Ownership:
    """Proves, once for each way through a model, that what a tape records lies with its record.

    ``run``: a forward and a backward pass of a few records with fixed random numbers, of all their losses or
    of one record's.  ``measured``: what is proven, and what a run that does steps again needs to know.
    """

    def __init__(
        self,
        run: Callable[..., AbstractContextManager[Tape]],
        views: int,
        measured: dict[str, int],
    ) -> None:
        self._run, self._views, self._measured = run, views, measured
        self._keys: dict[tuple[object, ...], str] = {}
        self._tried: set[str] = set()  # by this process, on three records
        self._shown_apart: set[tuple[object, ...]] = set()

    def look_again(self) -> None:
        """Try again to show wrong what is proven, on the next batch of each way."""
        self._shown_apart.clear()

    def holds(
        self,
        tape: Tape,
        batch: tuple[Tensor, ...],
        losses: Tensor,
        thresholds: Tensor,
        flags: tuple[bool, ...],
    ) -> bool:
        """Whether what was recorded lies with the record that it belongs to; once for each way through.

        Proven on three of the records (:meth:`reached`).  If these go another way than the batch, or leave a
        use without a gradient that is not ``NEGLIGIBLE`` in others, nothing is proven.  One record alone
        needs no proof.  Which uses are proven is kept in ``measured``, as the bits of a number, and grows
        where it does not suffice alone: so a resumed run takes a batch whole, or in parts, as it was taken
        before.  Each process tries for itself all the same to show it wrong.
        """
        if len(losses) == 1:
            return True
        uses, sites = list(tape.all_uses()), tuple(tape.sites)
        shapes = tuple(t.shape[1:] for t in batch)
        way = (flags, sites, shapes, len(uses))  # of uses a loss may leave some out
        if len(self._keys) > MOST_WAYS:
            self._keys.clear()
            self._tried.clear()
            self._shown_apart.clear()
        key = self._keys.get(way) or self._keys.setdefault(way, f"way {_digest(way)}")
        proven = self._measured.get(key, 0)
        sufficient = proven > 0 and _is_sufficient(proven, uses, thresholds)
        if sufficient and way in self._shown_apart:
            return True
        try:
            if sufficient and key in self._tried:
                self._refuse_what_hangs_on_others(batch, losses, sites)
                self._shown_apart.add(way)
                return True
            three = self._rows_of(three_of(losses))
            reached = self.reached(tuple(t[three.to(t.device)] for t in batch), sites)
            if reached is not None and way not in self._shown_apart:
                self._refuse_what_hangs_on_others(batch, losses, sites)
                self._shown_apart.add(way)
        except Unseen as reason:
            if sufficient:
                raise UnsupportedModel(f"{reason}. {SEEN_LATE}") from reason
            raise
        self._tried.add(key)
        if sufficient or reached is None:
            return sufficient
        proven |= sum(1 << number for number in reached)
        if key in self._measured or len(self._measured) < MOST_WAYS:
            self._measured[key] = proven
        return _is_sufficient(proven, uses, thresholds)

    def reached(self, three: tuple[Tensor, ...], sites: tuple[str, ...] | None = None) -> set[int] | None:
        """Return the numbers of the uses in which three records have gradients, each record its own.

        The gradient of one record's loss must be exactly 0 in what was recorded for the others, and in its
        own what it is when all losses are summed: a backward pass that is not linear, such as one that scales
        gradients by their largest, mixes records too.  That, a first dimension that counts something else,
        rows in another order and positions that go by time before record are found by it, on two of the
        records and on all, and :class:`Unseen` is raised.  None is returned if they go different ways, or
        others than ``sites``.
        """
        reached: set[int] = set()
        for chosen in (torch.tensor([1, 0]), torch.arange(3)):
            rows = self._rows_of(chosen)
            part = tuple(t[rows.to(t.device)] for t in three)
            with self._run(part) as probe:
                sites = tuple(probe.sites) if sites is None else sites
                if tuple(probe.sites) != sites:
                    return None
                summed = [[sketch(use, i) for i in range(len(chosen))] for use in probe.all_uses()]
            for j in range(len(chosen)):
                with self._run(part, j) as probe:
                    if tuple(probe.sites) != sites:
                        return None
                    reached |= owned_uses(probe, j, summed)
        return reached

    def _refuse_what_hangs_on_others(
        self, batch: tuple[Tensor, ...], losses: Tensor, sites: tuple[str, ...]
    ) -> None:
        """Raise :class:`Unseen` if what is recorded for a record is another where the others are zeros.

        Losses that are the same do not say that gradients are: a backward pass may use what was computed from
        the whole batch, and rows may be in another order, by number or by content, than in three.  Nothing is
        said if zeros go another way.
        """
        some = some_of(losses, batch[0].reshape(len(losses), -1))
        m, rows = len(some), self._rows_of(some)
        part = tuple(t[rows.to(t.device)] for t in batch)
        with self._run(part) as probe:
            if tuple(probe.sites) != sites:
                return
            beside = {j: [sketch(use, j) for use in probe.all_uses()] for j in {1 % m, m // 2}}
        for j, sketches in beside.items():
            own = self._rows_of(torch.tensor([j]))
            lone = tuple(torch.zeros_like(t) for t in part)
            for zeros, t in zip(lone, part, strict=True):
                zeros[own.to(t.device)] = t[own.to(t.device)]
            with self._run(lone) as probe:
                if tuple(probe.sites) == sites:
                    check_alike([sketch(use, j) for use in probe.all_uses()], sketches)

    def _rows_of(self, records: Tensor) -> Tensor:
        """Return the numbers of the rows of these records."""
        return (records[:, None] * self._views + torch.arange(self._views, device=records.device)).flatten()


def _digest(way: tuple[object, ...]) -> str:
    return hashlib.blake2b(repr(way).encode(), digest_size=16).hexdigest()


def _is_sufficient(proven: int, uses: Sequence[Use], thresholds: Tensor) -> bool:
    """Whether the uses that are not among the ``proven`` ones have no gradient worth the name."""
    unproven = [use for number, use in enumerate(uses) if not proven >> number & 1]
    if not unproven:
        return True
    negligible = (NEGLIGIBLE * float(thresholds.min())) ** 2
    return all(bool((use.squared_norms() <= negligible).all()) for use in unproven)
