"""Whether what a tape recorded lies with the record that it belongs to: judged on a few records.

Letters: n records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor

from tacit.clipping.isolation.mixing import SEEN_LATE
from tacit.clipping.isolation.randomness import RepeatedDraws, devices_of, drawn_so_far
from tacit.clipping.isolation.tolerance import HANGS, HangsOnOthers, confirmed, norms_on, sketch, tolerance_of
from tacit.clipping.per_example.parameter import Gradient
from tacit.clipping.per_example.recorder import Tape, Unseen
from tacit.clipping.per_example.use import Use
from tacit.errors import UnsupportedModel

__all__ = [
    "MOST_WAYS",
    "Doubt",
    "Ownership",
    "owned_uses",
    "three_of",
]

NEGLIGIBLE = 1e-12
"""A norm of this part of the threshold is what rounding leaves of nothing."""
MOST_WAYS = 1024
"""How many are remembered: a way is another one for each number that Python is told on it."""
DISSENTING = 4
"""Records that are tried of those which alone would have told Python something else."""
_REFUTED = -1
Way: TypeAlias = tuple[tuple[bool, ...], tuple[str, ...], tuple[torch.Size, ...], int]
"""Training flags, sites, shapes of a record and number of uses."""


def three_of(losses: Tensor, dissenting: Sequence[int] = ()) -> Tensor:
    """Return the numbers of three records, finite losses first; some twice if there are fewer.

    Then those which alone go the way of the batch, not the ``dissenting`` ones: three of these may not.
    """
    rank = 2 * losses.isfinite().logical_not().to(torch.uint8)
    rank[list(dissenting)] += 1
    order = rank.argsort(stable=True)
    return order[torch.arange(3, device=order.device) % len(order)]


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
        tolerance_of(probe).check(sketch(use, j), beside, total)
    return reached


@dataclass(frozen=True)
class Doubt:
    """What is still to be shown of a way that a batch took.

    Attributes:
        way: the way.
        path: its operations, see :attr:`tacit.clipping.per_example.recorder.Tape.path`.
        steepest: the number of the record with the largest gradient.
        dissenting: some of the records which alone would have told Python something else.
    """

    way: Way
    path: int
    steepest: int
    dissenting: Sequence[int]


@final
class Ownership:
    """Proves, once for each way through a model, that what a tape records lies with its record.

    ``run``: a forward and a backward pass of a few records with fixed random numbers, of all their losses or
    of one record's; all passes in a scope ``from_one_state`` begin alike.  ``gradients``: those of each
    parameter by name, which are taken from a tape.  ``measured``: what is proven, and
    what a run that does steps again needs to know.
    """

    def __init__(
        self,
        run: Callable[..., AbstractContextManager[Tape]],
        from_one_state: Callable[[], AbstractContextManager[None]],
        elsewhere: Callable[[int], AbstractContextManager[None]],
        gradients: Callable[[Tape], dict[str, Gradient]],
        views: int,
        measured: dict[str, int],
    ) -> None:
        self._run, self._from_one_state, self._elsewhere = run, from_one_state, elsewhere
        self._gradients, self._views, self._measured = gradients, views, measured
        self._keys: dict[Way, str] = {}
        self._tried: set[str] = set()  # by this process, on three records
        self._shown_apart: set[Way] = set()
        self._fresh: set[Way] = set()  # ways whose proof is not yet all there
        self._agreed: set[Way] = set()  # on which records that dissent are the same where they do not
        self._followed: set[int] = set()  # paths on which no record's numbers reach another's
        self.went_another_way = False
        """Whether the last batch went another way through the model than three of its records."""

    def look_again(self) -> None:
        """Try again to show wrong what is proven, on the next batch of each way."""
        self._shown_apart.clear()
        self._agreed.clear()

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
        self.went_another_way = False
        if len(losses) == 1:
            return True
        uses, sites = list(tape.all_uses()), tuple(tape.sites)
        way = _way(tape, batch, flags)
        if way not in self._keys and len(self._keys) > MOST_WAYS:
            self._keys.clear()
            self._tried.clear()
            self._shown_apart.clear()
            self._fresh.clear()
        key = self._keys.get(way) or self._keys.setdefault(way, f"way {_digest(way)}")
        proven = self._measured.get(key, 0)
        if proven == _REFUTED:
            raise HangsOnOthers(HANGS)
        sufficient = proven > 0 and _is_sufficient(proven, uses, thresholds)
        if sufficient and (key in self._tried or way in self._shown_apart):
            return True
        three = self._rows_of(three_of(losses, tape.dissenting))
        try:
            with self._from_one_state():
                reached = self.reached(tuple(t[three.to(t.device)] for t in batch), sites)
        except Unseen as reason:
            if sufficient:
                raise UnsupportedModel(f"{reason}. {SEEN_LATE}") from reason
            raise
        self._tried.add(key)
        self.went_another_way = reached is None
        if sufficient or reached is None:
            return sufficient
        self._fresh.add(way)
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
        return confirmed(lambda: self._reached(three, sites), self._elsewhere)

    def _reached(self, three: tuple[Tensor, ...], sites: tuple[str, ...] | None) -> set[int] | None:
        reached: set[int] = set()
        for chosen in (torch.tensor([1, 0]), torch.arange(3)):
            rows = self._rows_of(chosen)
            part = tuple(t[rows.to(t.device)] for t in three)
            with self._run(part, follow=len(chosen) > 2) as probe:
                sites = tuple(probe.sites) if sites is None else sites
                if tuple(probe.sites) != sites:
                    return None
                summed = [[sketch(use, i) for i in range(len(chosen))] for use in probe.all_uses()]
            if len(chosen) > 2:
                self._keep(probe.path)
            for j in range(len(chosen)):
                with self._run(part, j) as probe:
                    if tuple(probe.sites) != sites:
                        return None
                    reached |= owned_uses(probe, j, summed)
        return reached

    def doubtful(
        self, tape: Tape, batch: tuple[Tensor, ...], losses: Tensor, flags: tuple[bool, ...]
    ) -> Doubt | None:
        """What is still to be shown of the way: that no record hangs on others.  None if all is shown.

        A model may do with the whole batch what one large record moves it to, or what it does with more than
        three, or what some of the records alone would not have it do.
        """
        way, path, dissenting = _way(tape, batch, flags), tape.path, tape.dissenting
        agreed = not dissenting or way in self._agreed
        if len(losses) == 1 or (agreed and way in self._shown_apart and path in self._followed):
            return None
        squares = sum(use.squared_norms().double() for use in tape.all_uses())
        finite = isinstance(squares, Tensor) and squares.nan_to_num(nan=0.0, posinf=0.0)
        steepest = int(finite.argmax()) if isinstance(finite, Tensor) else 0
        step = max(1, len(dissenting) // DISSENTING)
        return Doubt(way, path, steepest, [] if agreed else dissenting[::step][:DISSENTING])

    def refuse_what_hangs_on_others(self, batch: tuple[Tensor, ...], doubt: Doubt) -> None:
        """Raise :class:`Unseen` if what is recorded for a record is another by the losses of some.

        Beside zeros.  Losses that are the same do not say that gradients are: a backward pass may use what
        was computed from the whole batch, and rows may be in another order, by number or by content, than in
        three.  Nothing is said if zeros go another way.
        """
        with self._from_one_state():
            self._refuse(batch, doubt)

    def _refuse(self, batch: tuple[Tensor, ...], doubt: Doubt) -> None:
        way = doubt.way
        if doubt.path not in self._followed:
            with self._run(batch, follow=True) as probe:
                self._keep(probe.path)
        try:
            confirmed(lambda: self._try_alone(batch, way, doubt.dissenting), self._elsewhere)
        except Unseen:  # batches in which all agree were right
            self._refute(way)
            raise
        try:
            if way not in self._shown_apart:
                confirmed(lambda: self._try(batch, way, doubt.steepest), self._elsewhere)
                confirmed(lambda: self._try_without_first(batch), self._elsewhere)
        except Unseen as reason:
            if way not in self._fresh:
                raise UnsupportedModel(f"{reason}. {SEEN_LATE}") from reason
            self._refute(way)
            raise
        self._fresh.discard(way)
        self._shown_apart.add(way)
        if doubt.dissenting:
            self._agreed.add(way)

    def _refute(self, way: Way) -> None:
        """Take it for wrong, whatever the next batch shows."""
        self._fresh.discard(way)
        self._measured[self._keys[way]] = _REFUTED

    def _try_alone(self, batch: tuple[Tensor, ...], way: Way, records: Sequence[int]) -> bool:
        """Raise if a record is another where all of the batch are copies of it: then Python is told as of it.

        The same places of the batch have the same random numbers.  Operations may be others, as where a mask
        that hides nothing is left out.  What a record adds to each parameter may not, and neither may the
        form of its norm.  Returned is whether all was compared.
        """
        if not records:
            return True
        with self._run(batch) as probe:
            if tuple(probe.sites) != way[1]:
                return False
            forms, beside = self._of_parameters(probe, records)
        for i, wanted in zip(records, beside, strict=True):
            rows = self._rows_of(torch.full((len(batch[0]) // self._views,), i))
            with self._run(tuple(t[rows.to(t.device)] for t in batch)) as probe:
                forms_alone, (alone,) = self._of_parameters(probe, [i])
                if forms_alone != forms:
                    raise HangsOnOthers("what Python is told of other records decides how one is computed")
                tolerance_of(probe).check_each(alone, wanted)
        return True

    def _of_parameters(
        self, probe: Tape, records: Sequence[int]
    ) -> tuple[dict[str, str], list[list[Tensor]]]:
        """The forms of the parameters' norms, and for each record a sketch of each parameter's gradient."""
        used = {name: gradient for name, gradient in self._gradients(probe).items() if gradient.used}
        forms = {name: gradient.form for name, gradient in used.items()}
        return forms, [[sketch(gradient, i) for gradient in used.values()] for i in records]

    def _try(self, batch: tuple[Tensor, ...], way: Way, steepest: int) -> bool:
        """One record alone, in all that is recorded; then each half, in the norms of all its records.

        Returned is whether all was compared: nothing is where zeros go another way.
        """
        n = len(batch[0]) // self._views
        number = torch.arange(n)
        with self._run(batch) as probe:
            if tuple(probe.sites) != way[1]:
                return False
            beside = [sketch(use, steepest) for use in probe.all_uses()]
            norms = norms_on(probe)
        with self._run(self._beside_zeros(batch, number == steepest), steepest) as probe:
            found = [sketch(use, steepest) for use in probe.all_uses()]
            compared = tuple(probe.sites) == way[1] and tolerance_of(probe).check_each(found, beside)
        for half in (number % 2 == 0, number % 2 == 1):
            with self._run(self._beside_zeros(batch, half), half) as probe:
                same_way = tuple(probe.sites) == way[1]
                compared &= same_way and tolerance_of(probe).check_norms(norms_on(probe), norms, half)
        return compared

    def _try_without_first(self, batch: tuple[Tensor, ...]) -> bool:
        """Raise if records leave something else where the first is left out and they move up by one.

        Where nothing is random but what can be drawn again, all records having the same random numbers.
        Returned is whether it was compared.
        """
        n, devices = len(batch[0]) // self._views, devices_of(batch)
        if n == 1:
            return True
        seen = []
        try:
            with RepeatedDraws(self._views):
                for first in (0, 1):
                    with self._run(tuple(t[first * self._views :] for t in batch)) as probe:
                        sketches = [
                            [sketch(use, i - first) for use in probe.all_uses()] for i in {1, n // 2, n - 1}
                        ]
                        seen.append((tuple(probe.sites), drawn_so_far(devices), sketches))
                        tolerance = tolerance_of(probe)
        except Unseen:  # something else is as long as this batch, which is judged when it comes
            return False
        if seen[0][0] != seen[1][0] or not torch.equal(seen[0][1], seen[1][1]):
            return False
        return all(tolerance.check_each(*pair) for pair in zip(seen[1][2], seen[0][2], strict=True))

    def _keep(self, path: int) -> None:
        if len(self._followed) > MOST_WAYS:
            self._followed.clear()
        self._followed.add(path)

    def _beside_zeros(self, batch: tuple[Tensor, ...], kept: Tensor) -> tuple[Tensor, ...]:
        """Return the batch with zeros for all records but those ``kept``, (n,) bool."""
        rows = kept.repeat_interleave(self._views)
        return tuple(
            torch.where(rows.view(-1, *[1] * (t.dim() - 1)).to(t.device), t, torch.zeros_like(t))
            for t in batch
        )

    def _rows_of(self, records: Tensor) -> Tensor:
        """Return the numbers of the rows of these records."""
        return (records[:, None] * self._views + torch.arange(self._views, device=records.device)).flatten()


def _way(tape: Tape, batch: tuple[Tensor, ...], flags: tuple[bool, ...]) -> Way:
    """With the number of uses, of which a loss may leave some out."""
    return flags, tuple(tape.sites), tuple(t.shape[1:] for t in batch), len(list(tape.all_uses()))


def _digest(way: Way) -> str:
    return hashlib.blake2b(repr(way).encode(), digest_size=16).hexdigest()


def _is_sufficient(proven: int, uses: Sequence[Use], thresholds: Tensor) -> bool:
    """Whether the uses that are not among the ``proven`` ones have no gradient worth the name."""
    unproven = [use for number, use in enumerate(uses) if not proven >> number & 1]
    if not unproven:
        return True
    negligible = (NEGLIGIBLE * float(thresholds.min())) ** 2
    return all(bool((use.squared_norms() <= negligible).all()) for use in unproven)
