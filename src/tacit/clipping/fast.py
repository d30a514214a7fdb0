"""The fast engine: one call of the loss under vmap, which isolates each record.

Python sees no value of a record: it may read shapes, parameters and the number of passes, and all of them are
public. So nothing that a loss or a model keeps in Python can depend on a record, and nothing is put back.

Letters: n records; K views; B = n K rows; G groups of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, final

import torch
from torch import Tensor, nn
from torch.func import vmap

from tacit.clipping.around import full_precision
from tacit.clipping.engine import PerExampleLoss
from tacit.clipping.isolation import modules
from tacit.clipping.isolation.functions import isolated
from tacit.clipping.isolation.randomness import begin_at, devices_of, only_torch_draws, states_of
from tacit.clipping.isolation.reasons import FAILURES, unsupported
from tacit.clipping.isolation.state import refuse_wrapped
from tacit.clipping.isolation.under_vmap import Pass
from tacit.clipping.memory import FAST, MemoryBudget
from tacit.clipping.per_example.registry import RULES
from tacit.clipping.per_example.use import Kept
from tacit.clipping.rules import ClippingRule
from tacit.clipping.summing import SummingEngine
from tacit.errors import TacitError, UnsupportedModel, of_device


@final
class FastEngine(SummingEngine):
    """Computes sum_i factor_i g_i in one forward and one backward pass, mostly without per-record gradients.

    ``budget``: limits on memory, such as :data:`tacit.clipping.FAST` or :data:`tacit.clipping.LEAN`.
    """

    kind = "FastEngine under vmap"
    by_value = False

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
        self.draws = False  # until a pass draws

    @property
    def route(self) -> str:
        """The engine's route: ``"fast"``, one pass for all records."""
        return "fast"

    def _losses_alone(self, rows: tuple[Tensor, ...]) -> Tensor:
        """Return (B,) losses, each computed from its record alone; refuse a model that vmap cannot run."""
        try:
            return self._pass_losses(rows)
        except FAILURES as reason:
            if of_device(reason):
                raise
            raise unsupported(reason) from None

    def _pass_losses(self, rows: tuple[Tensor, ...]) -> Tensor:
        """Return the (B,) losses of a pass that adds nothing to the sum."""
        run = self._open(len(rows[0]) // self.views)
        try:
            with isolated(run):
                losses = self._forward(run, rows)
                run.backward(self._means(losses))
            refuse_wrapped(self.model)
            return losses.detach().flatten()
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
        if self._devices:
            return [batch]

        def forward(rows: tuple[Tensor, ...]) -> None:
            self.per_example_loss(self.model, *(torch.zeros_like(t) for t in rows))

        return self._cuts.cut(batch, forward, self._flags, self.expected)

    @property
    def _devices(self) -> list[int]:
        return devices_of(self.parameters.values())

    @property
    def _flags(self) -> str:
        """The training flags, on which activations depend in addition to the shapes of rows."""
        return "".join(str(int(flag)) for flag in self._survey.flags)

    def _add(
        self, accumulator: Mapping[str, Tensor], batch: tuple[Tensor, ...], thresholds: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        try:
            with only_torch_draws():
                results = self._add_pass(accumulator, batch, thresholds, scale)
        except TacitError:
            raise
        except FAILURES as reason:
            if of_device(reason):
                raise
            self._refuse(batch, reason)
        refuse_wrapped(self.model)
        return results

    def _refuse(self, batch: tuple[Tensor, ...], reason: Exception) -> NoReturn:
        """Refuse a batch on which a pass failed, with an error that contains no value of a record."""
        zeros = tuple(t.new_zeros(2 * self.views, *t.shape[1:]) for t in batch)
        self._losses_alone(zeros)
        if "out of bounds" in str(reason) or "out of range" in str(reason):
            raise reason  # the session names it without the number
        raise UnsupportedModel(
            "the model or the loss fails for some records: one record could cause that, and so change how "
            'all others are clipped. Make the session with engine="reference", or avoid the error: '
            f"{type(reason).__name__}."
        ) from None

    def _open(self, n: int) -> Pass:
        """Return a pass of n records; seed the generators with a number that no model sets by chance."""
        begin_at(int(torch.randint(2**62, ())), self._devices)
        return Pass(self.parameters.values(), n, self.views, RULES, Kept, self.budget)

    def _add_pass(
        self, accumulator: Mapping[str, Tensor], batch: tuple[Tensor, ...], thresholds: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Add the clipped sum of one pass; return its (n, G) norms and (n,) losses."""
        run = self._open(len(batch[0]) // self.views)
        begun = states_of(self._devices)
        try:
            with isolated(run):
                losses = self._means(self._forward(run, batch))
                run.backward(losses)
            losses = losses.detach()  # frees the graph
            with full_precision():
                return self._add_from(run, accumulator, run.n, thresholds, scale), losses
        finally:
            run.clear()
            self.draws |= not all(map(torch.equal, begun, states_of(self._devices)))

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

        with torch.enable_grad():
            losses: Tensor = vmap(one, randomness="different")(*records)
        return losses
