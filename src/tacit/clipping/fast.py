"""The fast engine: all per-record norms and the clipped sum from one forward and one backward pass.

Letters: n records; K views; B = n K rows; G groups of parameters.

**What is done how.**  A ``per_example.recorder.Tape`` sees every operation that reads a trainable
parameter.  Operations in :mod:`tacit.clipping.per_example.registry` have a rule; operations that read
parameters alone are differentiated per record, others carried out once more per record; where neither can
be, the model goes to the reference engine, and ``FastEngine.route`` says why.  A gradient that reaches a
parameter by a way that the tape did not see raises.

**What a norm may hang on.**  Norms are rounded up, by more in some forms than in others and not at all in the
reference engine.  So the way in which a record's norm is found follows from the model and from the record
itself, never from the records beside it: one record more would change what all the others are clipped to.
Whether a model goes to the reference engine is judged on records of zeros, before any other is seen.  A batch
that does not go through as a whole is taken in parts, in the end record by record, each by the rules by which
it is taken in any other batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import chain
from typing import final

import torch
from torch import Tensor, nn

from tacit.clipping.engine import GradientEngine, PerExampleLoss, full_precision, group_index
from tacit.clipping.isolation import mixing, modules
from tacit.clipping.isolation.probe import MOST_WAYS, Ownership
from tacit.clipping.isolation.provenance import Flow
from tacit.clipping.isolation.randomness import begin_at, devices_of, draw_again, states_of
from tacit.clipping.isolation.state import Memory
from tacit.clipping.isolation.tables import tables_around
from tacit.clipping.isolation.tolerance import HangsOnOthers, moved
from tacit.clipping.memory import FAST, MemoryBudget
from tacit.clipping.passes import Passes, cut, keep_memory
from tacit.clipping.per_example import vmap_fallback
from tacit.clipping.per_example.parameter import Gradient, Joined, gradients_of, joined
from tacit.clipping.per_example.recorder import ANSWERED, Tape, Unseen
from tacit.clipping.per_example.registry import HANDLERS
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import ClippingRule
from tacit.clipping.warnings import ALWAYS_ANOTHER, numbers_told, warn_of
from tacit.errors import UnsupportedModel

__all__ = ["FastEngine"]

_FEW = 3
"""Records of which one at least is alone after they are halved."""
ROUNDED_BESIDE = "beside other records, losses differ by what may be rounding"
"""Why records go one by one that lie where they should."""
SEED = 5_918_204_736_301_937
"""Of passes that are compared; one that models do not choose by themselves."""
SEEDS = 8
"""Random numbers with which a model is tried for random ways."""


@final
class FastEngine(GradientEngine):
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
        super().__init__(model, per_example_loss, rule, views=views)
        self.budget = budget
        keep_memory(budget.pass_bytes)
        self._reference = ReferenceEngine(model, per_example_loss, rule, views=views)
        self._small_first = sorted(self.names, key=lambda name: self.parameters[name].numel())
        self._judged_ways: dict[tuple[bool, ...], str | None] = {}
        self._lone = False  # whether each record goes by itself
        self._unseen: str | None = None  # why the model, as its flags are, is not fast
        self._exact: set[tuple[bool, ...]] = set()  # flags with which Python is told of the records
        self._time_first: set[tuple[bool, ...]] = set()  # flags with which the rows lie second
        self._told = False  # whether Python asks it for numbers of the batch
        self._apart: str | None = None
        parameter_bytes = sum(p.numel() * p.element_size() for p in self.parameters.values())
        self._cuts = Passes(budget.pass_bytes, parameter_bytes, views, self.measured)
        of_tape = partial(gradients_of, self.parameters)
        self._ownership = Ownership(
            self._run_seeded, self._from_one_state, self._elsewhere, of_tape, views, self.measured
        )
        self._memory: Memory | None = None  # what passes of a proof begin with
        self._batches, self._largest, self._most = 0, 0.0, 0
        self._attributes: list[Tensor] = []  # tables that are no buffers

    @property
    def route(self) -> str:
        """``"fast"``, or why batches go to the reference engine, or some of them record by record."""
        if self._unseen is not None:
            return f"reference: {self._unseen}"
        return "fast" if self._apart is None else f"record by record: {self._apart}"

    def _probe(self, batch: tuple[Tensor, ...]) -> None:
        """Refuse models that mix rows; find out on zeros whether this one goes to the reference engine."""
        super()._probe(batch)
        flags = self._survey.flags
        if flags not in self._judged_ways:
            around = (table for _, table in tables_around(self.per_example_loss, self.model))
            tables = chain(map(vars, self._survey.modules), around)
            kept = (value for table in tables for value in table.values())
            self._attributes = [t for t in kept if isinstance(t, Tensor) and not t.requires_grad]
            self._judged_ways[flags] = self._why_unseen(batch)
            apart = None if self._probed[flags] else ROUNDED_BESIDE
            warn_of(self._judged_ways[flags] or apart, told=self._told)
        reason, same = self._judged_ways[flags], self._probed[flags]
        began_fast = self.measured.setdefault(f"fast {_digits(flags)}", int(reason is None and same))
        if began_fast and not same:
            raise UnsupportedModel(
                "beside other records, losses differ by what may be rounding, and did not when this run "
                "began: a step that is done again would draw other random numbers under the same noise."
            )
        self._unseen, self._lone = reason, reason is None and not began_fast
        if self._lone:
            self._apart = ROUNDED_BESIDE
        self._look_again(batch)

    def _give_copies(self) -> None:
        super()._give_copies()
        self._reference.per_example_loss = self.per_example_loss

    def _look_again(self, batch: tuple[Tensor, ...]) -> None:
        """Try anew to show wrong what was found right: at batches 4, 16, 64, ..., as training changes models,
        where a record has numbers twice as large as all before, for which a model may have another way, and
        where there are a tenth more records.
        """
        self._batches += 1
        more = len(batch[0]) > 1.1 * self._most
        self._most = max(self._most, len(batch[0]))
        largest = max((_largest(t) for t in batch), default=0.0)
        larger, self._largest = largest > 2 * self._largest, max(self._largest, largest)
        if (
            self._unseen is None
            and not self._lone
            and self._batches > 1
            and (larger or more or _is_power_of_four(self._batches))
        ):
            mixing.check_still_apart(self.model, self.per_example_loss, batch, views=self.views)
            self._ownership.look_again()

    def _why_unseen(self, batch: tuple[Tensor, ...]) -> str | None:
        three = tuple(t.new_zeros(3 * self.views, *t.shape[1:]) for t in batch)
        reason = self._why_unseen_on(three)
        if reason is not None and reason != ALWAYS_ANOTHER:
            self._time_first.add(self._survey.flags)
            if self._why_unseen_on(three) is None:
                return None
            self._time_first.discard(self._survey.flags)
        return reason

    def _why_unseen_on(self, three: tuple[Tensor, ...]) -> str | None:
        try:
            with self._from_one_state():
                self._refuse_random_ways(tuple(t[: 2 * self.views] for t in three))
                self._ownership.reached(three)
        except Unseen as unseen:
            return str(unseen)
        return None

    @contextmanager
    def _from_one_state(self) -> Iterator[None]:
        """All passes of a proof begin with model and loss as they are, which are left so: they may count."""
        before = self._memory
        self._memory = memory = before or Memory(self.model)
        try:
            yield
        finally:
            memory.restore()
            self._memory = before

    @contextmanager
    def _elsewhere(self, seed: int) -> Iterator[None]:
        """All passes of a proof begin with parameters that are moved a little."""
        before = self._memory
        if before is not None:
            before.restore()
        self._memory = None
        try:
            with moved(self.parameters.values(), seed), self._from_one_state():
                yield
        finally:
            self._memory = before

    def _passes(self, batch: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        if self._unseen is not None or self._lone or any(p.is_cuda for p in self.parameters.values()):
            return [batch]
        kind = _digits(self._survey.flags)
        return self._cuts.cut(batch, lambda rows: self.per_example_loss(self.model, *rows), kind)

    def _add(
        self,
        accumulator: Mapping[str, Tensor],
        batch: tuple[Tensor, ...],
        thresholds: Tensor,
        scale: float,
        *,
        halve: bool = True,
    ) -> tuple[Tensor, Tensor]:
        parts = 1
        if self._unseen is None and (parts := self._measured_parts(batch)) == 1:
            found = self._add_whole(accumulator, batch, thresholds, scale, halve=halve)
            if not isinstance(found, int):
                return found
            parts = found
        if parts == 1:
            return self._reference._add(accumulator, batch, thresholds, scale)
        each = [
            self._add(accumulator, part, thresholds, scale, halve=False)
            for part in cut(batch, parts, self.views)
        ]
        norms, of_parts = zip(*each, strict=True)
        return torch.cat(norms), torch.cat(of_parts)

    def _add_whole(
        self,
        accumulator: Mapping[str, Tensor],
        batch: tuple[Tensor, ...],
        thresholds: Tensor,
        scale: float,
        *,
        halve: bool,
    ) -> tuple[Tensor, Tensor] | int:
        """Add the sum if the batch goes a proven way; else return into how many parts it is cut.

        What is shown by other passes of the whole batch is shown after this one has let go of its memory.  It
        is then done again, with the same random numbers.
        """
        tape, devices = self._tape(len(batch[0])), devices_of(batch)
        try:
            for _ in range(2):
                states = states_of(devices)
                with self._run(batch, tape=tape) as (_, losses):
                    if tape.follows_batch:
                        self._apart = ALWAYS_ANOTHER
                        return len(losses)
                    if not self._ownership.holds(tape, batch, losses, thresholds, self._survey.flags):
                        parts = self._parts(tape.sites, len(losses))
                        if parts == 2 and self._ownership.went_another_way:
                            self._measure_halves(tape, batch)
                        return parts
                    with full_precision():
                        doubt = self._ownership.doubtful(tape, batch, losses, self._survey.flags)
                        if doubt is None:
                            return self._add_from(tape, accumulator, len(losses), thresholds, scale), losses
                with full_precision():
                    self._ownership.refuse_what_hangs_on_others(batch, doubt)
                tape = self._tape(len(batch[0]))
                draw_again(states, devices)
            raise Unseen("the model goes another way each time")
        except Unseen as reason:
            n = len(batch[0]) // self.views
            of_size = tape.in_order and not (_asked(tape.sites) or isinstance(reason, HangsOnOthers))
            if halve and n > _FEW and of_size:
                self._measure_halves(tape, batch)
                return 2
            self._apart = str(reason)
            return n

    def _measured_parts(self, batch: tuple[Tensor, ...]) -> int:
        """By its own rules where each record is alone: norms are then what they are beside others."""
        if self._lone:
            return len(batch[0]) // self.views
        return self.measured.get(self._size(batch), 1)

    def _measure_halves(self, tape: Tape, batch: tuple[Tensor, ...]) -> None:
        """Remember that batches of this size are halved: as many records as positions are taken for these."""
        if len(self.measured) < MOST_WAYS and not _asked(tape.sites):
            self.measured[self._size(batch)] = 2

    def _size(self, batch: tuple[Tensor, ...]) -> str:
        shapes = " ".join(str(tuple(t.shape)) for t in batch)
        return f"parts {_digits(self._survey.flags)} of {shapes}"

    def _parts(self, sites: Sequence[str], n: int) -> int:
        """Into how many parts n records are cut that go an unproven way.

        Into halves, as one of these may go a proven one.  Where Python was told a number on it, this is
        hardly so: then each record is alone.
        """
        of_numbers = numbers_told(sites)
        if of_numbers or (n <= _FEW and _asked(sites)):
            self._apart = ALWAYS_ANOTHER
        return n if of_numbers else 2

    @contextmanager
    def _run(
        self, batch: tuple[Tensor, ...], only: int | Tensor | None = None, *, tape: Tape | None = None
    ) -> Iterator[tuple[Tape, Tensor]]:
        """Forward, and backward of the sum of the losses or of some; give the tape, (n,) losses."""
        tape = self._tape(len(batch[0])) if tape is None else tape
        try:
            yield tape, self._recorded(tape, batch, only)
        finally:
            tape.clear()

    def _tape(self, rows: int, flow: Flow | None = None) -> Tape:
        constants: list[Tensor] = [p for p in self._survey.parameters if not p.requires_grad]
        constants += [buffer for _, _, buffer in self._survey.buffers]
        constants += self._attributes
        return Tape(
            self.parameters.values(),
            constants,
            HANDLERS,
            rows=rows,
            views=self.views,
            budget=self.budget,
            other=vmap_fallback.island,
            time_first=self._survey.flags in self._time_first,
            exact=self._survey.flags in self._exact,
            flow=flow,
        )

    def _recorded(self, tape: Tape, batch: tuple[Tensor, ...], only: int | Tensor | None) -> Tensor:
        """Fill the tape; return the (n,) losses."""
        tape.give(batch)
        with torch.enable_grad():
            with tape, tape.following():
                losses = self.per_example_loss(self.model, *batch)
            losses = modules.check_losses(losses, len(batch[0]))
            tape.raise_caught()
            with tape.by_row(losses):
                pass
            means = losses if self.views == 1 else losses.view(-1, self.views).mean(1)
            if losses.requires_grad:
                weights = torch.ones_like(means)
                if only is not None:
                    weights = torch.zeros_like(means)
                    weights[only] = 1.0
                tape.start_backward()
                # What torch.autograd.backward calls, which itself would leave the tape: checkpointed layers
                # are recomputed in here.  With ``inputs``, no other tensor gets a gradient.
                with tape, tape.following():
                    torch.autograd.Variable._execution_engine.run_backward(
                        (means,),
                        (weights,),
                        False,
                        False,
                        (*self.parameters.values(), tape.anchor),
                        True,
                        True,
                    )
            tape.raise_caught()
        _refuse_gradients(self.parameters)
        return means.detach()

    def _refuse_random_ways(self, batch: tuple[Tensor, ...]) -> None:
        """Raise :class:`Unseen` if the model takes one of several ways, such as through some of its layers.

        Whether a batch then goes another way than was proven, and is done again in parts, would hang on the
        random numbers and on how many records there are; so would what is kept of its records.
        """
        ways, of_all = set(), False
        for seed in range(SEEDS):
            if self._memory is not None:
                self._memory.restore()
            tape = self._tape(len(batch[0]))
            try:
                with _seeded(batch, seed), torch.enable_grad(), tape:
                    self.per_example_loss(self.model, *batch)
                tape.raise_caught()
            finally:
                tape.clear()
            ways.add(tuple(tape.sites))
            of_all |= tape.follows_batch
            if tape.exact:
                self._exact.add(self._survey.flags)
        self._told = of_all or any(numbers_told(way) for way in ways)
        if len(ways) > 1:
            raise Unseen(ALWAYS_ANOTHER if self._told else "the way through the model is random")

    @contextmanager
    def _run_seeded(
        self, batch: tuple[Tensor, ...], only: int | Tensor | None = None, *, follow: bool = False
    ) -> Iterator[Tape]:
        if follow:
            batch = tuple(t.contiguous() for t in batch)  # rows that share memory would share an owner
        if self._memory is not None:
            self._memory.restore()
        with _seeded(batch):
            tape = self._tape(len(batch[0]), Flow(batch, self.views) if follow else None)
            with self._run(batch, only, tape=tape):
                yield tape

    def _add_from(
        self,
        tape: Tape,
        accumulator: Mapping[str, Tensor],
        n: int,
        thresholds: Tensor,
        scale: float,
    ) -> Tensor:
        """Add the clipped sum of n records that the tape holds; return the (n, G) norms.

        Records that are not finite are left out, as 0 * inf is NaN.  The others are as they were beside them:
        done again without them, dropout would draw anew, and keep other records where that makes them finite.

        What a parameter's sum needs is let go before the next one's buffer is asked for, and small ones come
        first: buffers that are made on demand then take the place of the activations.
        """
        gradients = gradients_of(self.parameters, tape)
        small = [joined(gradients, group) for group in self.groups]
        norms = self._norms(gradients, small, n, thresholds)
        kept = norms
        if _skip_zeros(gradients.values()) and _skip_zeros(small):  # then a device need not be waited for
            kept = norms = norms.where(_finite(norms)[:, None], torch.inf)
        elif not _all_finite(norms):
            finite = _finite(norms)
            kept, norms[~finite] = norms[finite], torch.inf
            if len(kept) == 0:
                return norms
            gradients = {name: gradients.pop(name).of(finite) for name in list(gradients)}
            small = [None if together is None else together.of(finite) for together in small]
        factors = self._factors(kept, thresholds, scale).unbind(1)
        for together, of_group in zip(small, factors, strict=True):
            if together is not None:
                together.add_weighted(partial(self._buffer, accumulator), of_group)
        self._add_each(gradients, accumulator, factors)
        return norms

    def _add_each(
        self, gradients: dict[str, Gradient], accumulator: Mapping[str, Tensor], factors: Sequence[Tensor]
    ) -> None:
        """Add the weighted sums of the ``gradients``, which are used up; ``factors`` (n,) of each group."""
        number = group_index(self.groups)
        try:
            for name in self._small_first:
                gradient = gradients.pop(name, None)
                if gradient is not None and gradient.used:
                    gradient.add_weighted(self._buffer(accumulator, name), factors[number[name]])
        except Unseen as reason:  # too late for the reference engine: the sum is half made
            raise UnsupportedModel(f"the model computes differently each time: {reason}.") from reason

    def _norms(
        self, gradients: Mapping[str, Gradient], small: Sequence[Joined | None], n: int, thresholds: Tensor
    ) -> Tensor:
        """Return the (n, G) norms, in the type of the thresholds."""
        squares = []
        for group, together in zip(self.groups, small, strict=True):
            used = [] if together is None else [together.squared_norms()]
            apart = [gradients[name] for name in group if name in gradients]
            used += [gradient.squared_norms(n) for gradient in apart if gradient.used]
            total = torch.stack(used).sum(0, dtype=thresholds.dtype) if used else thresholds.new_zeros(n)
            squares.append(total)
        return torch.stack(squares, 1).sqrt_()


def _asked(sites: Sequence[str]) -> bool:
    """Whether Python was told something of a tensor."""
    return any(site.startswith(ANSWERED) for site in sites)


@contextmanager
def _seeded(batch: tuple[Tensor, ...], seed: int = SEED) -> Iterator[None]:
    """Draw fixed random numbers, and leave the generators as they were."""
    with torch.random.fork_rng(devices=(devices := devices_of(batch))):
        begin_at(seed, devices)
        yield


def _is_power_of_four(number: int) -> bool:
    return number.bit_count() == 1 and number.bit_length() % 2 == 1


def _largest(tensor: Tensor) -> float:
    """The largest absolute value; 0 if it is not finite, and on a device, which would be waited for."""
    if not tensor.is_floating_point() or not tensor.is_cpu or tensor.numel() == 0:
        return 0.0
    low, high = map(float, tensor.aminmax())
    return size if (size := max(-low, high)) < torch.inf else 0.0


@lru_cache(maxsize=16)
def _digits(flags: tuple[bool, ...]) -> str:
    return "".join(str(int(flag)) for flag in flags)


def _skip_zeros(gradients: Iterable[Gradient | Joined | None]) -> bool:
    return all(one is None or one.skips_zeros for one in gradients)


def _all_finite(norms: Tensor) -> bool:
    """Whether all norms are finite; one sum says it but where finite norms overflow together."""
    return float(norms.sum()) < torch.inf or bool(_finite(norms).all())


def _finite(norms: Tensor) -> Tensor:
    """(n,) bool: whether all norms (n, G) of a record are finite; no norm is below 0."""
    return (norms < torch.inf).all(1)


def _refuse_gradients(parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise if the backward pass brought a gradient to a parameter past the tape."""
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            raise UnsupportedModel(
                f"a gradient reaches parameter {name!r} by a way that is not seen, so it cannot be clipped. "
                "Parameters must be read in the forward pass of this batch, in Python: do not keep tensors "
                "computed from them between calls, and pass modules that are not scripted or traced "
                "(torch.jit)."
            )
