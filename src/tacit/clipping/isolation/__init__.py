"""Does a record's gradient depend on other records? One verdict for each trace, by one long class.

Letters: n records; K views; B = n K rows.

:class:`Isolation` is the entry.  A trace that is new is recorded on a few records at two batch sizes, with
*provenance* switched on: which record each number comes from, through every operation of both passes.  It
goes by shapes and dimensions alone, so what it shows holds for all records that take the trace.  *One probe*
looks for what provenance cannot see: a record's place in the batch, the number of records, and an error of
provenance itself.  *One check of state* looks at what the passes leave in the model.  A known trace costs
nothing more.

* ``trace.py``: the execution trace, and its comparison with later passes.
* ``control_flow.py``: values that Python reads, and what each record alone would give.
* ``provenance.py``, ``call.py``: which record each number comes from.
* ``op_table.py``, ``op_rules.py``, ``index_rules.py``, ``op_table.py``: how operations hand provenance on.
* ``randomness.py``: random numbers that are the same for each record.
* ``probe.py``: records compared among many and among few.
* ``state.py``: writes to parameters, buffers and attributes.
* ``modules.py``: what a model consists of, and what is refused by its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Protocol, TypeAlias, final

import torch
from torch import Tensor, nn

from tacit.clipping.isolation.modules import Survey
from tacit.clipping.isolation.probe import (
    BY_PLACE,
    HISTORY,
    LATE,
    READS_KEPT,
    DependsOnOthers,
    Look,
    check_records,
    confirmed,
    doubled,
    holds_in_double,
    look_of,
    losses_of,
    moved,
    near,
    only_torch_draws,
    places_of,
    refuse_mixed,
    refuse_place,
    rounded,
    rows_of,
    shuffled_places,
)
from tacit.clipping.isolation.provenance import EARLIER, Provenance
from tacit.clipping.isolation.randomness import RepeatedDraws, begin_at, devices_of, drawn_so_far
from tacit.clipping.isolation.state import KEPT, WRITTEN, Memory, refuse_kept
from tacit.clipping.isolation.trace import MOST_TRACES, NewTrace, Recording, Trace, Unseen, combined
from tacit.errors import UnsupportedModel

__all__ = ["ALWAYS_ANOTHER", "Isolation", "Kind", "Pass", "Verdict"]

Kind: TypeAlias = tuple[Any, ...]
"""Training flags, and shapes and types of a record: batches of a kind may share a trace."""
_Batch: TypeAlias = tuple[Tensor, ...]
SEED = 5_918_204_736_301_937
"""Of passes that are compared; one that models do not choose by themselves."""
SIZES = (2, 3, 5, 7, 11, 13, 17)
"""Numbers of records with which a trace is recorded: two that are no dimension of anything else."""
IN_DOUBLE = 8
"""Of how many records it is seen whether they differ in double precision too, if more cannot matter."""
ALWAYS_ANOTHER = "Python reads a number that is computed from all records, as by if, float() or item()"
_BY_COUNT = "which operations there are, or a number given to one, depends on how many records there are"


class Pass(Protocol):
    """What a recorder tells of a pass."""

    @property
    def reads_batch(self) -> bool:
        """Whether Python reads what only the whole batch says."""

    @property
    def reads_values(self) -> bool:
        """Whether Python reads values of records."""

    @property
    def own_backward(self) -> bool:
        """Whether backward passes are not torch's."""

    @property
    def recording(self) -> Recording:
        """Of a pass with provenance."""

    @property
    def disagreeing(self) -> list[int]:
        """Records that alone would have given Python another value."""

    @property
    def floats(self) -> list[str]:
        """Numbers that Python hands to operations."""

    @property
    def in_16_bits(self) -> bool:
        """Whether some gradients came in 16 bits."""

    def ended(self) -> Trace:
        """The known trace that it took."""

    def all_uses(self) -> Iterator[Any]:
        """What it left of each use of a parameter."""


Run: TypeAlias = Callable[..., AbstractContextManager[tuple[Pass, Callable[..., Tensor]]]]
"""``run(batch, provenance, kind)``, the scope of a pass: its recorder, what carries it out for the losses.

``kind``: whose traces it may take, if not those of its own kind.
"""


@dataclass(frozen=True)
class Verdict:
    """What is known of a pass.

    Attributes:
        per_record: why its records go one by one; None if they are isolated.
        apart: records that alone would take another trace, so that they go through the model by themselves.
        open: what has to be shown of the batch before the pass may count; None if nothing has.
    """

    per_record: str | None = None
    apart: tuple[int, ...] = ()
    open: Callable[[_Batch], None] | None = None


@dataclass(frozen=True)
class _Recorded:
    """A pass with provenance.

    ``failed``: why records are not isolated; the recording then ends where this was seen, and ``look`` is
    None.  ``per_record``: why they go one by one all the same.
    """

    recording: Recording
    provenance: Provenance
    look: Look | None
    changes: dict[Any, Any]
    failed: str | None
    per_record: str | None
    apart: Sequence[int]
    reads_values: bool
    own_backward: bool


@final
class Isolation:
    """The traces of one model and loss, and their verdicts.

    Args:
        model: the model.
        loss: gives the loss function.
        run: the scope of a pass.
        constants: gives data-independent tensors.
        views: K.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[], Callable[..., Tensor]],
        run: Run,
        constants: Callable[[], Iterable[Tensor]],
        views: int,
    ) -> None:
        self._model, self._loss, self._run, self._views = model, loss, run, views
        self._constants = constants
        self._known: dict[Kind, list[Trace]] = {}
        self.reference: dict[Kind, str | None] = {}
        """Of kinds that were judged, why their batches go to the reference engine, or None."""
        self.per_record: dict[Kind, str] = {}
        """Why the records of a kind go one by one, whatever is in them."""
        self.batch_second: dict[Kind, bool] = {}
        self.exact: set[Any] = set()
        """Training flags with which lengths, or what Python reads, depend on the records."""
        self.reads_values = False
        """Whether Python reads values of records, so that a record may leave a mark in plain attributes."""
        self.changes_itself = False
        """Whether passes change the model, as a counter does; each pass of a step then begins alike."""
        self._memory: Memory | None = None

    def known(self, kind: Kind) -> list[Trace]:
        """Traces that batches of a kind may take."""
        return self._known.setdefault(kind, [])

    def verdict(self, taken: Pass, n: int) -> Verdict:
        """What is known of a pass of ``n`` records that took a known trace.

        Raises:
            NewTrace: it did not.
        """
        trace = taken.ended()
        if n == 1:
            return Verdict()  # all that is in the batch is its own
        if trace.per_record is not None or taken.reads_batch:
            return Verdict(trace.per_record or ALWAYS_ANOTHER)
        if taken.disagreeing:
            return Verdict(apart=tuple(taken.disagreeing))
        if taken.floats != trace.floats:
            floats = taken.floats
            return Verdict(open=lambda batch: self._check_floats(trace, floats, batch))
        if trace.up_to is not None and (n > trace.up_to or (trace.counts_rows and n not in trace.probed)):
            return Verdict(open=lambda batch: self._probe_place(trace, batch))
        return Verdict()

    def judge(self, kind: Kind, batch: _Batch, before: Provenance | None) -> None:
        """Judge the model on records of zeros, before any other is seen; then learn the batch's trace.

        Whether a model goes to the reference engine must not depend on data.  ``before``: of the pass before,
        from which tensors may have been kept.

        Raises:
            Unseen: the records of this batch are not isolated.
        """
        with self._from_one_state():
            small, _ = self._sizes(batch)
            zeros = tuple(t.new_zeros(small * self._views, *t.shape[1:]) for t in batch)
            self.batch_second[kind] = False
            first = self._record(zeros, before)
            if first.failed is not None:
                self.batch_second[kind] = True
                turned = self._record(zeros, before)
                self.batch_second[kind] = turned.failed is None
                first = first if turned.failed is not None else turned
            if (reason := first.failed or first.per_record) is not None:
                self._restore()
                found = check_records(self._model, self._loss(), batch, views=self._views)
                self.changes_itself |= found  # the recording may have ended before what changes it
            self.reference[kind] = reason
            if reason is None and len(batch[0]) > self._views:
                self._learn(kind, batch, first)

    def learn(self, kind: Kind, batch: _Batch, *, again: bool) -> None:
        """Learn the trace of a batch from a few of its records.

        ``again``: these take another than the batch, though each record alone would take the same.

        Raises:
            Unseen: its records are not isolated.
        """
        if len(self.known(kind)) > MOST_TRACES:
            self.known(kind).clear()
        with self._from_one_state():
            if len(batch[0]) == self._views:
                self._learn_alone(kind, batch)
            elif again:
                self._refuse_mixed(batch, late=True)
                self.per_record[kind] = _BY_COUNT
                raise Unseen(_BY_COUNT)
            else:
                self._learn(kind, batch, None)

    def _learn_alone(self, kind: Kind, batch: _Batch) -> None:
        """The trace of one record, whose loss must be what it is beside a copy of the record."""
        found = self._record(batch, repeated=True)
        if found.failed is not None or found.look is None:
            raise Unseen(found.failed or "")
        twice = self._of(batch, torch.tensor([0, 0]))
        beside = self._record(twice, repeated=True).look

        def same(losses: Callable[..., Tensor]) -> bool:
            with RepeatedDraws(self._views):
                both, alone = (self._by_record(losses(rows)) for rows in (twice, batch))
            return near(both[:1], alone, 1e-6)

        comparable = beside is not None and torch.equal(beside.drawn, found.look.drawn)
        differ = beside is not None and comparable and not near(beside.losses[:1], found.look.losses)
        if differ and not holds_in_double(same, self._model, self._loss()):
            raise UnsupportedModel(f"{BY_PLACE} {LATE}")
        self.known(kind).append(found.recording.trace())

    def _learn(self, kind: Kind, batch: _Batch, zeros: _Recorded | None) -> None:
        """From the records of zeros, or as many others, and a few more."""
        small, large = self._sizes(batch)
        places = places_of(len(batch[0]) // self._views, large)
        few = self._record(self._of(batch, places), None if zeros is None else zeros.provenance)
        if zeros is not None and self._memory is not None:
            refuse_kept(self._memory, zeros.changes, few.changes)
        if few.apart:  # of those that agree; the others are learned when they come
            agreed = [i for number, i in enumerate(places.tolist()) if number not in few.apart]
            if not agreed:
                raise Unseen(ALWAYS_ANOTHER)
            places = torch.tensor((agreed * large)[:large])
            few = self._record(self._of(batch, places), few.provenance)
        trace = None if zeros is None else combined(zeros.recording, few.recording)
        if trace is None:
            fewer = self._record(self._of(batch, places[:small]), few.provenance)
            trace = combined(fewer.recording, few.recording)
        if trace is None and few.failed is None and few.per_record is None:
            few = replace(few, failed=_BY_COUNT)
        if few.failed == _BY_COUNT:
            self.per_record[kind] = _BY_COUNT
        self.changes_itself |= bool(few.changes)
        self._remember(kind, few, trace, batch, places)

    def _remember(
        self, kind: Kind, found: _Recorded, trace: Trace | None, batch: _Batch, places: Tensor
    ) -> None:
        """Keep a trace with its verdict; ``places`` are the records of the batch that it was recorded with.

        Raises:
            Unseen: records that take it are not isolated.
        """
        trace = found.recording.trace() if trace is None else trace
        trace.failed, trace.per_record = found.failed, found.failed or found.per_record
        trace.reads_values = found.reads_values
        trace.counts_rows |= found.own_backward  # which may go by the number of records, out of sight
        self.reads_values |= found.reads_values
        late = len(self.known(kind)) > 0
        self.known(kind).append(trace)
        try:
            if trace.per_record is None:
                self._cross_check(self._of(batch, places), found)
                self._probe_place(trace, batch)
        except Unseen as reason:
            trace.per_record = self.per_record[kind] = str(reason)
        if trace.per_record is not None:
            self._refuse_mixed(batch, late=late)
        if trace.failed is not None:
            raise Unseen(trace.failed)

    def _record(
        self, batch: _Batch, before: Provenance | None = None, *, repeated: bool = False
    ) -> _Recorded:
        """Carry out a pass with provenance on; ``repeated``: all records draw the same random numbers."""
        assert self._memory is not None
        batch = tuple(t.contiguous() for t in batch)  # rows that share memory would share provenance
        self._memory.restore()
        if before is not None:
            before.forget(self._memory.tensors())
        devices, look, failed = devices_of(batch), None, None
        draws = RepeatedDraws(self._views) if repeated else nullcontext()
        with _seeded(devices), only_torch_draws(), draws:
            provenance = Provenance(batch, self._views, before)
            with self._run(batch, provenance) as (taken, carry_out):
                try:
                    losses = carry_out()
                    look = look_of(taken, losses, range(len(losses)), drawn_so_far(devices))
                except Unseen as reason:
                    failed = str(reason)
                    if EARLIER in failed:
                        raise UnsupportedModel(READS_KEPT) from reason
                if provenance.follows_content:
                    self.exact.add(Survey(self._model).flags)
                if any(map(provenance.is_laden, (*self._memory.tensors(), *self._constants()))):
                    raise UnsupportedModel(WRITTEN)
                return _Recorded(
                    taken.recording,
                    provenance,
                    look,
                    self._memory.changes(),
                    failed,
                    ALWAYS_ANOTHER if taken.reads_batch else None,
                    taken.disagreeing,
                    taken.reads_values,
                    taken.own_backward,
                )

    def _cross_check(self, few: _Batch, together: _Recorded) -> None:
        """Compare provenance with a pass of one record's loss: the others have no gradient, it has its own.

        And the losses with those of the pass before, which began with the same model.
        """
        assert together.look is not None
        n, j, devices = len(together.look.losses), 1, devices_of(few)
        self._restore()
        try:
            with _seeded(devices), self._run(few, None) as (taken, carry_out):
                losses = carry_out(only=j)
                taken.ended()
                own = look_of(taken, losses, range(n), drawn_so_far(devices))
        except NewTrace as reason:
            raise UnsupportedModel(HISTORY) from reason
        before, after = together.look.losses, own.losses
        if not rounded(after, before) and not (after.is_cuda and near(after, before)):
            raise UnsupportedModel(HISTORY)
        if any(bool(one.any()) for i, sketches in own.sketches.items() if i != j for one in sketches):
            raise DependsOnOthers("a record's loss reaches the gradient of another record")
        together.look.of([j]).check(own.of([j]))

    def _probe_place(self, trace: Trace, batch: _Batch) -> None:
        """Compare the records of the batch with the same without the first, and some with the same among few.

        Raises:
            Unseen: they leave something else there.
        """
        n = len(batch[0]) // self._views
        others: list[Sequence[int]] = [shuffled_places(n) if n > 4 else range(n - 1)]
        if n <= 4 or trace.counts_rows or trace.computes_with_rows:
            others.append(range(1, n))  # else neither a place nor a number of records can be in it

        def compare(
            batch: _Batch = batch, others: Sequence[Sequence[int]] = others, kind: Kind | None = None
        ) -> bool:
            many, taken = self._look(batch, range(len(batch[0]) // self._views), kind)
            if taken.disagreeing:
                return False  # a batch of records that agree is probed when it comes
            for chosen in others:
                part = self._of(batch, torch.tensor(list(chosen)))
                alone, _ = self._look(part, range(len(chosen)), kind)

                def losses_hold(part: _Batch = part, chosen: Sequence[int] = chosen) -> bool | None:
                    def same(losses: Callable[..., Tensor]) -> bool:
                        with RepeatedDraws(self._views):
                            beside, alone = (self._by_record(losses(rows)) for rows in (batch, part))
                        return near(beside[list(chosen)], alone, 1e-6)

                    return holds_in_double(same, self._model, self._loss())

                refuse_place(many.of(chosen), alone, losses_hold, lambda: self._ignores_draws(batch))
            return True

        def in_double() -> bool | None:
            if n <= IN_DOUBLE or len(others) > 1:
                return self._in_double(trace, batch, compare)
            few = self._of(batch, places_of(n, IN_DOUBLE))  # more could make no difference, and take memory
            return self._in_double(trace, few, partial(compare, others=[shuffled_places(IN_DOUBLE)]))

        try:
            with self._from_one_state():
                probed = confirmed(compare, in_double, self._elsewhere)
        except NewTrace as reason:
            raise Unseen(_BY_COUNT) from reason
        if probed:
            trace.probed.add(n)
            trace.up_to = n if trace.counts_rows else None

    def marks(self) -> Memory | None:
        """The plain attributes of the model, where one record could change them; see :meth:`refuse_marks`."""
        return Memory(self._model, tensors=False) if self.reads_values and not self.changes_itself else None

    def refuse_marks(self, before: Memory | None) -> None:
        """Refuse a model in which a batch changed attributes that the first batches left alone."""
        if before is not None and (changes := before.changes()):
            before.restore()
            raise UnsupportedModel(f"{KEPT.format(', '.join(before.names(set(changes))))} {LATE}")

    def _check_floats(self, trace: Trace, floats: list[str], batch: _Batch) -> None:
        """Numbers that changed must have changed for a few records as well: then they depend on none."""
        n = len(batch[0]) // self._views
        few = self._of(batch, places_of(n, self._sizes(batch)[1]))
        with self._from_one_state(), _seeded(devices_of(batch)), self._run(few, None) as (taken, carry_out):
            carry_out()
            if taken.floats != floats:
                raise UnsupportedModel(
                    f"a number that Python hands to an operation is another for {n} records than for "
                    f"{len(few[0]) // self._views} of them, or another at each call. {LATE}"
                )
        trace.floats = floats

    def _look(self, batch: _Batch, records: Sequence[int], kind: Kind | None = None) -> tuple[Look, Pass]:
        """What records leave in a pass in which all draw the same random numbers.

        ``kind``: whose traces the pass may take, if not those of its own kind.
        """
        self._restore()
        devices = devices_of(batch)
        with _seeded(devices), RepeatedDraws(self._views), self._run(batch, None, kind) as (taken, carry_out):
            losses = carry_out()
            taken.ended()
            return look_of(taken, losses, records, drawn_so_far(devices)), taken

    def _ignores_draws(self, batch: _Batch) -> bool:
        """Whether the losses of a batch do not depend on random numbers, though it draws some."""
        found = []
        for seed in (0, 1):
            self._restore()
            found.append(losses_of(self._model, self._loss(), batch, seed))
        return torch.equal(*found)

    def _refuse_mixed(self, batch: _Batch, *, late: bool = False) -> None:
        """Refuse what is not isolated and would be another model if its records went one by one."""
        try:
            refuse_mixed(self._model, self._loss(), batch, self._views, self._restore)
        except UnsupportedModel as refusal:
            raise UnsupportedModel(f"{refusal} {LATE}" if late else str(refusal)) from None

    def _sizes(self, batch: _Batch) -> tuple[int, int]:
        """Two numbers of records that are no other length, so that rows are known from all else."""
        tensors = chain(self._model.parameters(), self._model.buffers())
        taken = {size for t in tensors for size in t.shape[:1]} | {s for t in batch for s in t.shape[1:]}
        free = [size for size in SIZES if size * self._views not in taken]
        return (free[0], free[1]) if len(free) > 1 else SIZES[:2]

    def _of(self, batch: _Batch, records: Tensor) -> _Batch:
        rows = rows_of(records, self._views)
        return tuple(t[rows.to(t.device)] for t in batch)

    def _by_record(self, losses: Tensor) -> Tensor:
        return losses.view(-1, self._views).mean(1)

    def _restore(self) -> None:
        assert self._memory is not None
        self._memory.restore()

    @contextmanager
    def _from_one_state(self) -> Iterator[None]:
        """All passes that are compared begin with the model as it is, which is left so."""
        before = self._memory
        self._memory = memory = before or Memory(self._model)
        try:
            yield
        finally:
            memory.restore()
            self._memory = before

    def _in_double(self, trace: Trace, batch: _Batch, compare: Callable[..., bool]) -> bool | None:
        """What a comparison gives in double precision; None if something differs there, or nothing can."""
        kind = next(kind for kind, traces in self._known.items() if trace in traces)
        wide = tuple(t.double() if t.is_floating_point() else t for t in batch)
        before = self._memory
        self._restore()
        self._memory = None
        try:
            with doubled(self._model), self._from_one_state():
                return compare(wide, kind=kind)
        except Exception:  # noqa: BLE001 (not every model can be of this type)
            return None
        finally:
            self._memory = before

    @contextmanager
    def _elsewhere(self, seed: int) -> Iterator[None]:
        """The same with parameters that are moved a little."""
        before = self._memory
        self._restore()
        self._memory = None
        try:
            with moved(self._model.parameters(), seed), self._from_one_state():
                yield
        finally:
            self._memory = before


@contextmanager
def _seeded(devices: Sequence[int]) -> Iterator[None]:
    """Draw fixed random numbers, and leave the generators as they were."""
    with torch.random.fork_rng(devices=list(devices)):
        begin_at(SEED, devices)
        yield
