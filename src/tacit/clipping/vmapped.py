"""The fast engine: one call of the loss for all records, none of which can see another.

Letters: n records; K views; B = n K rows; G groups of parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import final

import torch
from torch import Tensor, nn
from torch.func import vmap

from tacit.clipping.engine import GradientEngine, PerExampleLoss, full_precision, group_index
from tacit.clipping.isolation import modules
from tacit.clipping.isolation.randomness import begin_at, devices_of, draw_again, states_of
from tacit.clipping.isolation.state import Memory, refuse_kept, refuse_wrapped
from tacit.clipping.isolation.probe import READS_KEPT
from tacit.clipping.made_up import MIXES, made_up, only_torch_draws, refuse_if_mixed
from tacit.clipping.memory import FAST, MemoryBudget
from tacit.clipping.passes import Passes, keep_memory
from tacit.clipping.per_example.parameter import Gradient, Joined, gradients_of, joined
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import ClippingRule
from tacit.clipping.under_vmap import OWN_SEED, Answers, FirstAnswer, KeptTensor, NotCarried, Pass
from tacit.clipping.vmap_draws import Group, drawn_once
from tacit.clipping.vmap_rules import RULES
from tacit.clipping.warnings import warn_of
from tacit.errors import TacitError, UnsupportedModel

__all__ = ["VmapEngine"]

_NOT_CARRIED = (NotCarried, RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, KeyError)


@final
class VmapEngine(GradientEngine):
    """sum_i factor_i g_i with one forward and one backward pass, per-record gradients mostly unformed."""

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
        self._reference._use_vmap = False
        self._small_first = sorted(self.names, key=lambda name: self.parameters[name].numel())
        parameter_bytes = sum(p.numel() * p.element_size() for p in self.parameters.values())
        self._cuts = Passes(budget.pass_bytes, parameter_bytes, views, self.measured)
        self._why_slow: str | None = None
        self._asks = False
        self._group: Group | None = None
        self._inside: PerExampleLoss = per_example_loss

    @property
    def route(self) -> str:
        """``"fast"``, or why records go one by one."""
        return "fast" if self._why_slow is None else f"record by record: {self._why_slow}"

    def _judge(self, batch: tuple[Tensor, ...]) -> None:
        """Refuse a model or loss that mixes or keeps records; find out whether vmap carries it."""
        memory, around = Memory(self.model), Memory(self.model, self.per_example_loss)
        rows = self._made_up(batch, around)
        try:
            after_zeros = self._left_by_zeros(rows, memory)
            around.restore()
            left = self._try(rows, memory, around)
            refuse_kept(memory, after_zeros, left)
            self.changes_itself |= bool(left)
        finally:
            around.restore()

    def _made_up(self, batch: tuple[Tensor, ...], memory: Memory) -> tuple[Tensor, ...]:
        """Return made-up records that the loss takes: of whole numbers it may take 0 alone."""
        rows = made_up(batch, self.views)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=devices_of(batch)):
                self.per_example_loss(self.model, *rows)
        except Exception:  # noqa: BLE001 (the user's own code may raise anything)
            rows = made_up(batch, self.views, integers=1)
        finally:
            memory.restore()
        return rows

    def _left_by_zeros(self, rows: tuple[Tensor, ...], memory: Memory) -> dict:
        with torch.enable_grad(), torch.random.fork_rng(devices=devices_of(rows)):
            self.per_example_loss(self.model, *(torch.zeros_like(t) for t in rows))
        return memory.changes()

    def _try(self, rows: tuple[Tensor, ...], memory: Memory, around: Memory) -> dict:
        left = []

        def together() -> Tensor:
            around.restore()
            with only_torch_draws(), torch.enable_grad():
                found = self.per_example_loss(self.model, *rows)
            left.append(memory.changes())
            return modules.check_losses(found, len(rows[0])).detach()

        def alone() -> Tensor:
            around.restore()
            return self._losses_alone(rows)

        refuse_if_mixed(together, alone, rows)
        return left[0]

    def _losses_alone(self, rows: tuple[Tensor, ...]) -> Tensor:
        """(B,) losses of records each of which is alone; learn how they can be had."""
        if self._why_slow is None:
            try:
                return self._by_groups(rows, self._look_at)[0]
            except _NOT_CARRIED as reason:
                self._why_slow = _said(reason)
                warn_of(self._why_slow)
        k, found = self.views, []
        memory = Memory(self.model, self.per_example_loss)
        for start in range(0, len(rows[0]), k):
            memory.restore()
            try:
                with torch.enable_grad():
                    one = self.per_example_loss(self.model, *(t[start : start + k] for t in rows))
            except Exception as reason:  # noqa: BLE001
                raise UnsupportedModel(f"{MIXES} It fails for a record alone: {_said(reason)}.") from reason
            found.append(modules.check_losses(one, k).detach())
        return torch.cat(found)

    def _look_at(self, rows: tuple[Tensor, ...]) -> tuple[Tensor]:
        run = self._open(len(rows[0]) // self.views)
        try:
            losses = self._forward(run, rows)
            run.backward(losses)
            refuse_wrapped(self.model)
            return (run.each.detach().flatten(),)
        finally:
            run.clear()

    def _passes(self, batch: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        if self._why_slow is not None or any(p.is_cuda for p in self.parameters.values()):
            return [batch]
        kind = "".join(str(int(flag)) for flag in self._survey.flags)

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
        if self._why_slow is not None:
            return self._one_by_one(accumulator, batch, thresholds, scale)
        devices = devices_of(batch)
        states = states_of(devices)
        try:
            with only_torch_draws():
                norms, losses = self._by_groups(batch, partial(self._add_pass, accumulator, thresholds, scale))
            return norms, losses
        except TacitError:
            raise
        except KeptTensor:
            raise UnsupportedModel(READS_KEPT) from None
        except _NOT_CARRIED as reason:
            draw_again(states, devices)
            self._refuse_if_records_decide(batch, reason)
            self._why_slow = _said(reason)
            warn_of(self._why_slow)
        return self._one_by_one(accumulator, batch, thresholds, scale)

    def _refuse_if_records_decide(self, batch: tuple[Tensor, ...], reason: Exception) -> None:
        """Refuse a batch that vmap does not carry if it carries zeros of its shape: the records decide."""
        zeros = tuple(t.new_zeros(2 * self.views, *t.shape[1:]) for t in batch)
        memory = Memory(self.model, self.per_example_loss)
        try:
            self._by_groups(zeros, self._look_at)
        except _NOT_CARRIED:
            return
        finally:
            memory.restore()
        raise UnsupportedModel(
            "the model or the loss fails for some records: whether it does may depend on one record, and would "
            'decide how all others are clipped. Make the session with engine="reference", or let no operation '
            f"fail: {type(reason).__name__}."
        ) from None

    def _by_groups(self, batch, go, group=None):
        """Let ``go`` take the batch, in groups of records that give Python the same numbers."""
        if self._asks and group is None:
            with drawn_once(len(batch[0]) // self.views, batch[0], devices_of(batch)) as group:
                return self._by_groups(batch, go, group)
        memory = self._keep_state() if self._asks else None
        try:
            self._restart()
            self._group = group
            if group is not None:
                group.begin()
            return go(batch)
        except FirstAnswer:
            self._asks = True
            return self._by_groups(batch, go)
        except Answers as answers:
            groups = answers.groups
        finally:
            if memory is not None:
                memory.restore()
        n, parts = len(groups), []
        for number in groups.unique():
            chosen = groups == number
            rows = chosen.repeat_interleave(self.views)
            parts.append((chosen, self._by_groups(tuple(t[rows] for t in batch), go, group.part(chosen))))
        found = []
        for column in zip(*(values for _, values in parts), strict=True):
            k = len(column[0]) // int(parts[0][0].sum())
            whole = column[0].new_zeros(n, k, *column[0].shape[1:])
            for (chosen, _), part in zip(parts, column, strict=True):
                whole[chosen] = part.reshape(-1, k, *part.shape[1:])
            found.append(whole.flatten(0, 1))
        return tuple(found)

    def _keep_state(self) -> Memory:
        return Memory(self.model, self.per_example_loss)

    def _one_by_one(
        self, accumulator: Mapping[str, Tensor], batch: tuple[Tensor, ...], thresholds: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """The loop over records, each of which begins with the state of the first."""
        memory, k = self._keep_state(), self.views
        norms, losses = [], []
        try:
            for start in range(0, len(batch[0]), k):
                memory.restore()
                one = tuple(t[start : start + k] for t in batch)
                with only_torch_draws():
                    norm, loss = self._reference._add(accumulator, one, thresholds, scale)
                norms.append(norm)
                losses.append(loss)
        finally:
            memory.restore()
        return torch.cat(norms), torch.cat(losses)

    def _open(self, n: int) -> Pass:
        return Pass(self.parameters.values(), n, self.views, RULES, self.budget, asks=self._asks, group=self._group)

    def _add_pass(self, accumulator, thresholds, scale, batch):
        n = len(batch[0]) // self.views
        run = self._open(n)
        try:
            losses = self._forward(run, batch)
            run.backward(losses)
            with full_precision():
                return self._add_from(run, accumulator, n, thresholds, scale), losses.detach()
        finally:
            run.clear()

    def _forward(self, run: Pass, batch: tuple[Tensor, ...]) -> Tensor:
        """Return the (n,) losses of records under vmap."""
        records = tuple(t.reshape(run.n, self.views, *t.shape[1:]) for t in batch)
        each = []

        def one(*rows: Tensor) -> Tensor:
            run.level = torch._C._functorch.maybe_current_level()
            run.mark(rows)
            with run:
                losses = self.per_example_loss(self.model, *rows)
            if run.failed is not None:
                raise run.failed
            if torch.initial_seed() not in run.seeds:
                raise UnsupportedModel(OWN_SEED)
            losses = modules.check_losses(losses, self.views)
            if run.checkpointed:
                run.backward_within(losses if self.views == 1 else losses.mean(0, keepdim=True))
            return losses

        with torch.enable_grad():
            run.each = vmap(one, randomness="different")(*records)
            return run.each[:, 0] if self.views == 1 else run.each.mean(1)

    def _add_from(
        self, run: Pass, accumulator: Mapping[str, Tensor], n: int, thresholds: Tensor, scale: float
    ) -> Tensor:
        """Add the clipped sum of n records; return the (n, G) norms."""
        gradients = gradients_of(self.parameters, run)  # type: ignore[arg-type]
        small = [joined(gradients, group) for group in self.groups]
        norms = self._norms(gradients, small, n, thresholds)
        kept = norms
        if not bool(norms.sum() < torch.inf):
            finite = (norms < torch.inf).all(1)
            kept, norms[~finite] = norms[finite], torch.inf
            if len(kept) == 0:
                return norms
            gradients = {name: gradients.pop(name).of(finite) for name in list(gradients)}
            small = [None if together is None else together.of(finite) for together in small]
        factors = self._factors(kept, thresholds, scale).unbind(1)
        for together, of_group in zip(small, factors, strict=True):
            if together is not None:
                together.add_weighted(partial(self._buffer, accumulator), of_group)
        number = group_index(self.groups)
        for name in self._small_first:
            gradient = gradients.pop(name, None)
            if gradient is not None and gradient.used:
                gradient.add_weighted(self._buffer(accumulator, name), factors[number[name]])
        return norms

    def _norms(
        self, gradients: Mapping[str, Gradient], small: Sequence[Joined | None], n: int, thresholds: Tensor
    ) -> Tensor:
        squares = []
        for group, together in zip(self.groups, small, strict=True):
            used = [] if together is None else [together.squared_norms()]
            apart = [gradients[name] for name in group if name in gradients]
            used += [gradient.squared_norms(n) for gradient in apart if gradient.used]
            total = torch.stack(used).sum(0, dtype=thresholds.dtype) if used else thresholds.new_zeros(n)
            squares.append(total)
        return torch.stack(squares, 1).sqrt_()


def _said(reason: Exception) -> str:
    return f"{type(reason).__name__}: {str(reason).partition(chr(10))[0]}"[:200]
