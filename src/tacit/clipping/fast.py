"""The fast engine: one call of the loss under vmap, which isolates each record.

The engine checks a model once, on made-up records: whether each loss depends on its record alone, and whether
vmap can run the model. If vmap cannot, a loop over records runs it. If Python reads a value of a record
(``bool``, ``item``), the records are grouped by these values, and each group takes a pass. Each such pass
starts with model and loss in their state at the start of the step. After the step, they are left as a record
of zeros leaves them.

Letters: n records; K views; B = n K rows; G groups of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch._C._functorch import _set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
from torch.func import vmap

from tacit.clipping.around import full_precision
from tacit.clipping.engine import PerExampleLoss
from tacit.clipping.isolation import modules
from tacit.clipping.isolation.draws import Group, whole_batch
from tacit.clipping.isolation.functions import functions_carried
from tacit.clipping.isolation.randomness import begin_at, devices_of, draw_again, only_torch_draws, states_of
from tacit.clipping.isolation.reasons import Answers, FirstRead, KeptTensor, NotCarried, describe, warn_of
from tacit.clipping.isolation.state import READS_KEPT, Memory, Place, refuse_wrapped
from tacit.clipping.isolation.under_vmap import Pass
from tacit.clipping.memory import FAST, MemoryBudget
from tacit.clipping.per_example.parameter import Gradient
from tacit.clipping.per_example.registry import RULES
from tacit.clipping.per_example.together import Several
from tacit.clipping.per_example.use import Kept
from tacit.clipping.rules import ClippingRule
from tacit.clipping.summing import SummingEngine, SumsApart
from tacit.errors import TacitError, UnsupportedModel, of_device

_Results: TypeAlias = tuple[Tensor, ...]
"""Tensors with the same number of rows for each record of a batch, in the order of the records."""
_NOT_CARRIED = (NotCarried, RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, KeyError)
_BY_RECORD, _READS = "record by record", "groups of records"


@final
class FastEngine(SummingEngine):
    """Computes sum_i factor_i g_i in one forward and one backward pass, mostly without per-record gradients.

    ``budget``: limits on memory, such as :data:`tacit.clipping.FAST` or :data:`tacit.clipping.LEAN`.
    """

    kind = "FastEngine under vmap"

    def __init__(
        self,
        model: nn.Module,
        per_example_loss: PerExampleLoss,
        rule: ClippingRule,
        *,
        views: int = 1,
        budget: MemoryBudget = FAST,
    ) -> None:
        super().__init__(model, per_example_loss, rule, views=views, budget=budget)
        self._reads = 0  # 1 if Python reads values of records; 2 if it also does so after a kernel drew
        self._apart = SumsApart(self.parameters, torch.float64)
        self._group: Group | None = None  # the records of a pass, if Python reads values
        self.draws = False  # until a pass draws
        self._added = False  # whether a pass has begun to add to the sum

    @property
    def route(self) -> str:
        """The route: ``"fast"``, or the reason for the record loop."""
        return "fast" if self._why_slow is None else f"{_BY_RECORD}: {self._why_slow}"

    def _use_record_loop(self, reason: BaseException) -> None:
        """Use the record loop from now on, also after a resume, so that dropout draws the same numbers."""
        self._why_slow = str(reason) if isinstance(reason, NotCarried) else describe(reason)
        self.measured[_BY_RECORD], self.draws = 1, True

    def _judge(self, batch: tuple[Tensor, ...], around: Memory, after_zeros: Mapping[Place, Any]) -> None:
        """Refuse a model or loss that mixes or stores records; find out whether vmap can run it."""
        try:
            super()._judge(batch, around, after_zeros)
            warn_of(self._why_slow)
        finally:
            self._begun = None

    def _losses_alone(self, rows: tuple[Tensor, ...], around: Memory) -> Tensor:
        """Return (B,) losses, each computed from its record alone; choose the engine's route."""
        if self._why_slow is None:
            self._begun = around  # a pass that stops at Python's first read may have changed a counter
            try:
                return self._by_groups(rows, self._pass_losses)[0]
            except KeptTensor:
                raise UnsupportedModel(READS_KEPT) from None
            except _NOT_CARRIED as reason:
                if of_device(reason):
                    raise
                self._use_record_loop(reason)
        return super()._losses_alone(rows, around)

    def _pass_losses(self, rows: tuple[Tensor, ...]) -> _Results:
        """Return the (B,) losses of a pass that adds nothing to the sum."""
        run = self._open(len(rows[0]) // self.views)
        try:
            losses = self._forward(run, rows)
            run.backward(self._means(losses))
            refuse_wrapped(self.model)
            return (losses.detach().flatten(),)
        finally:
            run.clear()

    def _first_pass(self, zeros: tuple[Tensor, ...]) -> Tensor:
        """Return the losses of zeros, and measure the memory of a record."""
        if self._devices:
            return super()._first_pass(zeros)
        losses: list[Tensor] = []
        self._cuts.measure(
            zeros, lambda rows: losses.append(self.per_example_loss(self.model, *rows)), self._flags
        )
        return losses[0]

    def _passes(self, batch: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        if self._why_slow is not None or self._devices:
            return [batch]

        def forward(rows: tuple[Tensor, ...]) -> None:
            memory = Memory(self.model, self.per_example_loss)
            try:
                self.per_example_loss(self.model, *(torch.zeros_like(t) for t in rows))
            finally:
                memory.restore()

        return self._cuts.cut(batch, forward, self._flags)

    @property
    def _devices(self) -> list[int]:
        return devices_of(self.parameters.values())

    @property
    def _flags(self) -> str:
        """The training flags, on which activations depend in addition to the shapes of rows."""
        return "".join(str(int(flag)) for flag in self._survey.flags)

    def _may_change(self) -> bool:
        return bool(self.changes_itself or self._reads or self._why_slow is not None)

    def _settle(self, batch: tuple[Tensor, ...]) -> None:
        super()._settle(batch)
        if not self._may_change():  # Python read nothing, so stored tensors of records are unreadable
            refuse_wrapped(self.model)

    def _add(
        self, accumulator: Mapping[str, Tensor], batch: tuple[Tensor, ...], thresholds: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        with self._settled(batch):
            results = self._add_whole(accumulator, batch, thresholds, scale)
            if results is None:
                results = self._reference.add_each(accumulator, batch, thresholds, scale, self._restart)
        return results

    def _add_whole(
        self, accumulator: Mapping[str, Tensor], batch: tuple[Tensor, ...], thresholds: Tensor, scale: float
    ) -> tuple[Tensor, Tensor] | None:
        """Add the sum in passes under vmap; return None if the record loop must add it."""
        if self._why_slow is None and self.measured.get(_BY_RECORD):
            self._why_slow, self.draws = "as when the run began", True
        self._reads = max(self._reads, self.measured.get(_READS, 0))
        if self._why_slow is not None:
            return None
        devices, apart = devices_of(batch), self._apart
        apart.clear()
        states, self._added = states_of(devices), False
        go = partial(self._add_pass, accumulator, apart, thresholds, scale)
        try:
            with only_torch_draws():
                norms, losses = self._by_groups(batch, go)
        except KeptTensor:
            raise UnsupportedModel(READS_KEPT) from None
        except TacitError:
            raise
        except _NOT_CARRIED as reason:
            if of_device(reason):
                raise
            if self._added:  # too late for the loop: part of the sum was added
                message = f"the model computes differently each time: {type(reason).__name__}."
                raise UnsupportedModel(message) from None
            of_zeros = self._refuse_if_records_decide(batch, reason)
            draw_again(states, devices)
            self._use_record_loop(of_zeros)
            warn_of(self._why_slow)
            return None
        self._add_sums(accumulator, apart)
        apart.clear()
        return norms, losses

    def _add_sums(self, accumulator: Mapping[str, Tensor], sums: Mapping[str, Tensor]) -> None:
        """Add ``sums``, which were computed separately, to ``accumulator`` in one call."""
        if sums:
            buffers = [self._buffer(accumulator, name) for name in sums]
            self._added = True
            torch._foreach_add_(buffers, list(sums.values()))

    def _refuse_if_records_decide(self, batch: tuple[Tensor, ...], reason: Exception) -> Exception:
        """Refuse a batch that vmap cannot run if it can run zeros: then the failure depends on the records.

        Returns:
            The error that zeros raise, which contains no value of a record.
        """
        zeros = tuple(t.new_zeros(2 * self.views, *t.shape[1:]) for t in batch)
        try:
            self._by_groups(zeros, self._pass_losses)
        except _NOT_CARRIED as of_zeros:
            if of_device(of_zeros):
                raise
            return of_zeros
        self._restart()
        with torch.enable_grad():
            self.per_example_loss(self.model, *batch)  # the model's own error, if any, says most
        raise UnsupportedModel(
            "the model or the loss fails for some records: one record could cause that, and so change how "
            'all others are clipped. Make the session with engine="reference", or avoid the error: '
            f"{type(reason).__name__}."
        ) from None

    def _by_groups(self, batch: tuple[Tensor, ...], go: Callable[[tuple[Tensor, ...]], _Results]) -> _Results:
        """Call ``go`` on the batch or, if Python reads values, on groups of records with equal values."""
        devices = devices_of(batch)
        states = states_of(devices)
        while True:
            try:
                if not self._reads:
                    self._restart()
                    return go(batch)
                n = len(batch[0]) // self.views
                results = self._by_read_values(batch, go, whole_batch(n, devices, exact=self._reads > 1))
            except FirstRead:
                draw_again(states, devices)
                self._reads += 1
                self.measured[_READS] = self._reads
                self._apart.clear()
                continue
            finally:
                self._group = None
            draw_again(states, devices)
            torch.randint(2, ())  # the only draw that advances the generators for the next step
            return results

    def _by_read_values(
        self, batch: tuple[Tensor, ...], go: Callable[[tuple[Tensor, ...]], _Results], group: Group
    ) -> _Results:
        """Call ``go`` on a group of records, or on its parts if Python reads different values from them."""
        self._restart()
        self._group = group
        group.begin()
        try:
            return go(batch)
        except Answers as answers:
            groups = answers.groups
        parts: list[tuple[Tensor, _Results]] = []
        for number in groups.unique():  # type: ignore[no-untyped-call]
            members = groups == number
            rows = members.repeat_interleave(self.views)
            own = tuple(t[rows] for t in batch)
            parts.append((members, self._by_read_values(own, go, group.part(members))))
        return _join_groups(parts)

    def _open(self, n: int) -> Pass:
        """Return a pass of n records; seed the generators with a number that no model sets by chance."""
        if self._group is None:
            begin_at(int(torch.randint(2**62, ())), self._devices)
        return Pass(self.parameters.values(), n, self.views, RULES, Kept, self.budget, group=self._group)

    def _add_pass(
        self,
        accumulator: Mapping[str, Tensor],
        apart: Mapping[str, Tensor],
        thresholds: Tensor,
        scale: float,
        batch: tuple[Tensor, ...],
    ) -> _Results:
        """Add the clipped sum of one pass; return its (n, G) norms and (n,) losses.

        The sums of groups go to ``apart`` first: a later group may fail under vmap, and then the record loop
        must compute the whole batch.
        """
        run, begun = self._open(len(batch[0]) // self.views), states_of(self._devices)
        try:
            return self._add_of(run, batch, apart if self._reads else accumulator, thresholds, scale)
        finally:
            self.draws |= not all(map(torch.equal, begun, states_of(self._devices)))

    def _add_of(
        self,
        run: Pass,
        batch: tuple[Tensor, ...],
        sums: Mapping[str, Tensor],
        thresholds: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        try:
            losses = self._means(self._forward(run, batch))
            run.backward(losses)
            losses = losses.detach()  # frees the graph
            with full_precision():
                return self._add_from(run, sums, run.n, thresholds, scale), losses
        finally:
            run.clear()

    def _means(self, losses: Tensor) -> Tensor:
        """Return the (n,) mean losses of records from the (n, K) losses of rows."""
        with torch.enable_grad():
            return losses[:, 0] if self.views == 1 else losses.mean(1)

    def _forward(self, run: Pass, batch: tuple[Tensor, ...]) -> Tensor:
        """Return the (n, K) losses of the records under vmap."""
        records = tuple(t.reshape(run.n, self.views, *t.shape[1:]) for t in batch)

        def one(*rows: Tensor) -> Tensor:
            run.begin(rows)
            with run:
                losses = self.per_example_loss(self.model, *rows)
            run.returns(losses)
            losses = modules.check_losses(losses, self.views)
            if run.checkpointed:
                run.backward_within(losses if self.views == 1 else losses.mean(0, keepdim=True))
            return losses

        with torch.enable_grad(), _without_hints(), functions_carried(run):
            losses: Tensor = vmap(one, randomness="different")(*records)
        return losses

    def _add_each(
        self,
        gradients: dict[str, Gradient],
        several: list[list[Several]],
        accumulator: Mapping[str, Tensor],
        factors: Sequence[Tensor],
    ) -> None:
        self._added = not self._reads
        super()._add_each(gradients, several, accumulator, factors)


@contextmanager
def _without_hints() -> Iterator[None]:
    """Silence torch's warnings about operations without a vmap rule."""
    _set_vmap_fallback_warning_enabled(False)
    try:
        yield
    finally:
        _set_vmap_fallback_warning_enabled(True)


def _join_groups(parts: Sequence[tuple[Tensor, _Results]]) -> _Results:
    """Join the results of groups of records; each part is an (n,) bool of members and their results."""
    n, tensors = len(parts[0][0]), []
    for columns in zip(*(values for _, values in parts), strict=True):
        of_one = len(columns[0]) // int(parts[0][0].sum())
        whole = columns[0].new_zeros(n, of_one, *columns[0].shape[1:])
        for (members, _), column in zip(parts, columns, strict=True):
            whole[members] = column.reshape(-1, of_one, *column.shape[1:])
        tensors.append(whole.flatten(0, 1))
    return tuple(tensors)
