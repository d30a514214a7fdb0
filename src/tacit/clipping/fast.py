"""The fast engine: norms and the clipped sum of one pass. Long: one class runs, proves and adds.

Letters: n records; K views; B = n K rows; G groups of parameters.

A batch is *run*, *proven* and *added*.  A :class:`~tacit.clipping.per_example.recorder.Recorder` sees a
forward and a backward pass and keeps what norms and sums need.  :class:`~tacit.clipping.isolation.Isolation`
gives the verdict on the trace that the pass took; what is new is learned after the pass has let go of its
memory, and the pass is done again with the same random numbers.  Then the clipped sum is added.

**What a norm may depend on.**  Norms are rounded up, by more in some forms than in others and not at all in
the reference engine.  So the way in which a record's norm is found follows from the model and from the record
itself, never from the records beside it: one record more would change what all the others are clipped to.
Whether a model goes to the reference engine is judged on records of zeros, before any other is seen.  Where a
batch is taken record by record, each is clipped by the same rules as in any other batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import final

import torch
from torch import Tensor, nn

from tacit.clipping.engine import PerExampleLoss, full_precision
from tacit.clipping.isolation import ALWAYS_ANOTHER, Isolation, Kind, Verdict, modules
from tacit.clipping.isolation.probe import LATE, READS_KEPT
from tacit.clipping.isolation.provenance import Provenance
from tacit.clipping.isolation.randomness import devices_of, draw_again, states_of
from tacit.clipping.isolation.state import Memory, values_around
from tacit.clipping.isolation.trace import Kept, NewTrace, ReadsKept, Unseen
from tacit.clipping.memory import FAST, MemoryBudget
from tacit.clipping.per_example import vmap_fallback
from tacit.clipping.per_example.recorder import Recorder
from tacit.clipping.per_example.registry import HANDLERS
from tacit.clipping.rules import ClippingRule
from tacit.clipping.summing import SummingEngine
from tacit.clipping.warnings import warn_of
from tacit.errors import UnsupportedModel

__all__ = ["FastEngine"]

_TRIES = 4
"""How often a batch is run: something new may be learned after each, until it takes a known trace."""


@final
class FastEngine(SummingEngine):
    """sum_i factor_i g_i with one forward and one backward pass, per-record gradients mostly unformed.

    ``budget``: what may be kept on the way, :data:`tacit.clipping.FAST` or :data:`tacit.clipping.LEAN`.
    """

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
        self._isolation = Isolation(model, lambda: self.per_example_loss, self._open, self._constants, views)
        self._first: Provenance | None = None
        self._kept = Kept()
        self._tables: list[Tensor] = []  # constants that are no buffers
        self._went_whole: set[str] = set()  # kinds of which this engine, too, took a batch whole

    @property
    def route(self) -> str:
        """``"fast"``, or why batches go to the reference engine, or some of them record by record."""
        return "fast" if self._why_slow is None else self._why_slow

    def _judge(self, batch: tuple[Tensor, ...]) -> None:
        """Nothing here: each trace is judged when a batch takes it."""

    def _first_pass(self, zeros: tuple[Tensor, ...]) -> Tensor:
        self._first = Provenance(zeros, self.views)
        with self._first:
            return self.per_example_loss(self.model, *zeros)

    def _passes(self, batch: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        goes_by_reference = self._isolation.reference.get(self._kind(batch)) is not None
        if goes_by_reference or any(p.is_cuda for p in self.parameters.values()):
            return [batch]
        kind = _digits(self._survey.flags)

        def forward(rows: tuple[Tensor, ...]) -> None:
            memory = Memory(self.model)
            try:
                self.per_example_loss(self.model, *rows)
            finally:
                memory.restore()

        return self._cuts.cut(batch, forward, kind)

    def _add(
        self, accumulator: Mapping[str, Tensor], batch: tuple[Tensor, ...], thresholds: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        kind, devices = self._kind(batch), devices_of(batch)
        states = states_of(devices)
        try:
            if kind not in self._isolation.reference:
                self._judge_kind(kind, batch)
            if (by_reference := self._isolation.reference[kind]) is not None:
                self._why_slow = f"reference: {by_reference}"
                return self._add_by_reference(accumulator, batch, thresholds, scale)
            marks = self._isolation.marks()
            found = self._add_whole(accumulator, batch, thresholds, scale)
            self._isolation.refuse_marks(marks)
            if not isinstance(found, str):
                return found
            reason = found
        except ReadsKept:
            raise UnsupportedModel(READS_KEPT) from None
        except Unseen as unseen:
            reason = str(unseen)
        draw_again(states, devices)
        self._why_slow = f"record by record: {reason}"
        n = len(batch[0]) // self.views
        if n > 1:
            self._per_record(kind, batch)
        else:
            return self._add_by_reference(accumulator, batch, thresholds, scale)
        rows = (tuple(t[i * self.views : (i + 1) * self.views] for t in batch) for i in range(n))
        norms, losses = zip(*(self._add(accumulator, one, thresholds, scale) for one in rows), strict=True)
        return torch.cat(norms), torch.cat(losses)

    def _add_by_reference(
        self, accumulator: Mapping[str, Tensor], batch: tuple[Tensor, ...], thresholds: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        self._restart()
        self._reference.changes_itself, self._reference._begun = self.changes_itself, self._begun
        return self._reference._add(accumulator, batch, thresholds, scale)

    def _judge_kind(self, kind: Kind, batch: tuple[Tensor, ...]) -> None:
        tables = (value for module in self._survey.modules for value in vars(module).values())
        around = values_around(self.per_example_loss, self.model)
        kept = [value for value in (*tables, *around) if isinstance(value, Tensor)]
        self._tables = [t for t in kept if not t.requires_grad and not any(t is part for part in batch)]
        first, self._first = self._first, None  # which holds as much memory as a pass of a few records
        try:
            self._isolation.judge(kind, batch, first)
        finally:
            self.changes_itself |= self._isolation.changes_itself
            warn_of(self._isolation.reference.get(kind))

    def _add_whole(
        self, accumulator: Mapping[str, Tensor], batch: tuple[Tensor, ...], thresholds: Tensor, scale: float
    ) -> tuple[Tensor, Tensor] | str:
        """Add the sum if the batch takes a trace whose records are isolated; else return why not.

        What is new is learned after the pass has let go of its memory; then it is done again, with the same
        random numbers.
        """
        kind, devices = self._kind(batch), devices_of(batch)
        n = len(batch[0]) // self.views
        if n > 1 and (known := self._per_record(kind, batch)) is not None:
            return known
        states, learned = states_of(devices), False
        for _ in range(_TRIES):
            self._restart()
            with self._open(batch, None) as (recorder, carry_out):
                try:
                    losses = carry_out()
                    verdict: Verdict | None = self._isolation.verdict(recorder, n)
                except NewTrace:
                    apart = tuple(recorder.disagreeing)
                    verdict = Verdict(apart=apart) if apart else None
                if verdict == Verdict():
                    if n > 1:
                        self._went_whole.add(name := self._name(batch))
                        self.measured[name] = 1
                    with full_precision():
                        return self._add_from(recorder, accumulator, n, thresholds, scale), losses
            self._restart()
            draw_again(states, devices)
            if verdict is None:
                self._isolation.learn(kind, batch, again=learned)
                self.changes_itself |= self._isolation.changes_itself
                learned = True
            elif verdict.per_record is not None:
                return verdict.per_record
            elif verdict.apart:
                return self._add_apart(accumulator, batch, thresholds, scale, verdict.apart)
            elif verdict.open is not None:
                verdict.open(batch)
            draw_again(states, devices)
        raise Unseen("the model does something else each time")

    def _per_record(self, kind: Kind, batch: tuple[Tensor, ...]) -> str | None:
        """Why the records of a kind go one by one from here on; None if they do not.

        A run that does a step again must take the batch as before: else dropout draws other numbers, and
        two sums have the same noise.  So the resume state says it, and a resumed run that finds otherwise at
        once, where the run before took batches whole, is refused.
        """
        reason, name = self._isolation.per_record.get(kind), self._name(batch)
        if reason is not None and self.measured.get(name) == 1 and name not in self._went_whole:
            raise UnsupportedModel(f"{reason}. {LATE}")
        if reason is not None:
            self.measured[name] = 0
        return "as when the run began" if reason is None and self.measured.get(name) == 0 else reason

    def _name(self, batch: tuple[Tensor, ...]) -> str:
        shapes = " ".join(f"{tuple(t.shape[1:])} {t.dtype}" for t in batch)
        return f"isolated {_digits(self._survey.flags)} {shapes}"

    def _add_apart(
        self,
        accumulator: Mapping[str, Tensor],
        batch: tuple[Tensor, ...],
        thresholds: Tensor,
        scale: float,
        apart: Sequence[int],
    ) -> tuple[Tensor, Tensor] | str:
        """Add records that alone would take another trace by themselves, and the others likewise.

        So each goes through the model as it would alone, whatever is beside it.
        """
        n = len(batch[0]) // self.views
        chosen = torch.zeros(n, dtype=torch.bool)
        chosen[list(apart)] = True
        if chosen.all():
            return ALWAYS_ANOTHER
        norms, losses = thresholds.new_zeros(n, len(self.groups)), thresholds.new_zeros(n)
        for part in (~chosen, chosen):
            rows = part.repeat_interleave(self.views)
            of_part = self._add(accumulator, tuple(t[rows] for t in batch), thresholds, scale)
            norms[part], losses[part] = of_part[0], of_part[1].to(losses)
        return norms, losses

    def _kind(self, batch: tuple[Tensor, ...]) -> Kind:
        return self._survey.flags, *((t.shape[1:], t.dtype) for t in batch)

    def _constants(self) -> list[Tensor]:
        """Data-independent tensors, beside the private parameters."""
        constants: list[Tensor] = [p for p in self._survey.parameters if not p.requires_grad]
        return [*constants, *(buffer for _, _, buffer in self._survey.buffers), *self._tables]

    @contextmanager
    def _open(
        self, batch: tuple[Tensor, ...], provenance: Provenance | None, kind: Kind | None = None
    ) -> Iterator[tuple[Recorder, Callable[..., Tensor]]]:
        """The scope of a pass: its recorder, and what carries it out and returns the (n,) losses."""
        kind = self._kind(batch) if kind is None else kind
        recorder = Recorder(
            self.parameters.values(),
            self._constants(),
            HANDLERS,
            rows=len(batch[0]),
            views=self.views,
            kept=self._kept,
            known=self._isolation.known(kind),
            provenance=provenance,
            budget=self.budget,
            fallback=vmap_fallback.vmap_fallback,
            batch_second=self._isolation.batch_second.get(kind, False),
            exact=self._survey.flags in self._isolation.exact,
        )
        try:
            yield recorder, partial(self._carry_out, recorder, batch)
        finally:
            recorder.clear()

    def _carry_out(self, recorder: Recorder, batch: tuple[Tensor, ...], only: int | None = None) -> Tensor:
        """Forward, and backward of the sum of the losses or of one; return the (n,) losses."""
        recorder.give(batch)
        with torch.enable_grad():
            with recorder, recorder.following():
                seed = torch.initial_seed()
                losses = self.per_example_loss(self.model, *batch)
            losses = modules.check_losses(losses, len(batch[0]))
            recorder.raise_caught()
            recorder.returns(losses)
            if torch.initial_seed() != seed:
                raise Unseen("the model or the loss chooses a seed by itself")
            with recorder.by_row(losses):
                pass
            means = losses if self.views == 1 else losses.view(-1, self.views).mean(1)
            if losses.requires_grad:
                weights = torch.ones_like(means)
                if only is not None:
                    weights = torch.zeros_like(means)
                    weights[only] = 1.0
                recorder.start_backward()
                # What torch.autograd.backward calls, which itself would leave the recorder: checkpointed
                # layers are recomputed in here.  With ``inputs``, no other tensor gets a gradient.
                with recorder, recorder.following():
                    torch.autograd.Variable._execution_engine.run_backward(
                        (means,),
                        (weights,),
                        False,
                        False,
                        (*self.parameters.values(), recorder.anchor),
                        True,
                        True,
                    )
            recorder.raise_caught()
        _refuse_gradients(self.parameters)
        return means.detach()


@lru_cache(maxsize=16)
def _digits(flags: tuple[bool, ...]) -> str:
    return "".join(str(int(flag)) for flag in flags)


def _refuse_gradients(parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise if the backward pass brought a gradient to a parameter past the recorder."""
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            raise UnsupportedModel(
                f"a gradient reaches parameter {name!r} by a way that is not seen, so it cannot be clipped. "
                "Parameters must be read in the forward pass of this batch, in Python: do not keep tensors "
                "computed from them between calls, and pass modules that are not scripted or traced "
                "(torch.jit)."
            )
