"""The request to the planner: the unit of privacy, the privacy budget, and the compute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from tacit.accounting import PrivacyCurve, account
from tacit.accounting.pld import left_for_poisson
from tacit.accounting.price import last_whole
from tacit.errors import InvalidInput, check_integer, check_real, check_small_delta
from tacit.events import Adjacency, Compose, Event, Gaussian
from tacit.sampling import FullBatch, PoissonSampling

_LARGEST_EPSILON = 100.0  # a larger one promises nothing, and calibration would return the least noise


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A request to the planner: the unit of privacy, the privacy budget, and the compute.

    Attributes:
        records: N, the public number of records (under add-remove a public estimate).
        unit: a word for one record: "image", "patient".
        epsilon, delta, adjacency: the guarantee of the whole run; epsilon is at most 100.
        advantage: instead of epsilon, the most by which the true positive rate of any membership test may
            exceed its false positive rate.
        true_positive_rate, false_positive_rate: instead of epsilon, the largest true positive rate of any
            membership test with that false positive rate.
        epochs, compute, steps: give exactly one: the expected number of passes over the records; the total
            number of per-record gradients, T B; or the number of steps, for any batch size.
        largest_physical_batch: how many records fit into memory at once; larger batches are accumulated.
        largest_batch: L, the size to which larger Poisson samples are cut; None if samples are not cut.  With
            L, only those batch sizes are compared for which cut samples take at most a tenth of delta.
        preparation: other releases about the same records, such as DP-PCA, charged to the same budget.
        allow_large_delta: accept a delta of 1/N or more.

    Raises:
        InvalidInput: if a value is out of range; if not exactly one of epochs, compute and steps is given;
            or if a largest batch is given without epsilon.
        PrivacyRefusal: if delta is 1/N or more.

    >>> question = PlanRequest(
    ...     records=50_000, unit="image", epsilon=8, delta=1e-5, adjacency="add-remove", epochs=30)
    >>> question.steps_of(1024)
    1465
    """

    records: int
    unit: str
    epsilon: float | None = None
    delta: float
    adjacency: Adjacency | str
    advantage: float | None = None
    true_positive_rate: float | None = None
    false_positive_rate: float | None = None
    epochs: float | None = None
    compute: float | None = None
    steps: int | None = None
    largest_physical_batch: int | None = None
    largest_batch: int | None = None
    preparation: tuple[Event, ...] = ()
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        check_integer("records", self.records, low=1)
        if not str(self.unit).strip():
            raise InvalidInput(
                "must name one record, such as 'image' or 'patient'; it is empty", argument="unit"
            )
        self._check_budget()
        check_real("delta", self.delta, low=0.0, high=1.0, open_low=True, open_high=True)
        object.__setattr__(self, "adjacency", Adjacency.parse(self.adjacency))
        object.__setattr__(self, "preparation", tuple(self.preparation))
        self._check_amount()
        if self.largest_physical_batch is not None:
            check_integer("largest_physical_batch", self.largest_physical_batch, low=1)
        if self.largest_batch is not None:
            check_integer("largest_batch", self.largest_batch, low=1, high=self.records)
        if not self.allow_large_delta:
            check_small_delta(self.delta, self.records, self.unit)

    def _check_budget(self) -> None:
        budgets = [
            name for name in ("epsilon", "advantage", "true_positive_rate") if getattr(self, name) is not None
        ]
        if len(budgets) != 1 or (self.true_positive_rate is None) != (self.false_positive_rate is None):
            raise InvalidInput(
                "give exactly one budget: epsilon, or advantage, or true_positive_rate with "
                f"false_positive_rate; got {' and '.join(budgets) or 'none'}."
            )
        if self.epsilon is not None:
            epsilon = check_real("epsilon", self.epsilon, low=0.0, high=_LARGEST_EPSILON, open_low=True)
            object.__setattr__(self, "epsilon", epsilon)
        elif self.largest_batch is not None:
            raise InvalidInput(
                "needs a budget in epsilon, not a risk",
                argument="largest_batch",
                why="Cut samples take a part of delta, and a risk has no delta.",
                fix="Leave it out, or give `epsilon`.",
            )

    def _check_amount(self) -> None:
        amounts = [name for name in ("epochs", "compute", "steps") if getattr(self, name) is not None]
        if len(amounts) != 1:
            raise InvalidInput(
                f"give exactly one of epochs, compute and steps; got {' and '.join(amounts) or 'none'}. "
                "Epochs are passes over the records, compute is the number of per-record gradients."
            )
        if self.epochs is not None:
            object.__setattr__(self, "epochs", check_real("epochs", self.epochs, low=0.0, open_low=True))
        if self.compute is not None:
            object.__setattr__(self, "compute", check_real("compute", self.compute, low=1.0))
        if self.steps is not None:
            check_integer("steps", self.steps, low=1)
        if self.epochs is not None and self.epochs * self.records < 1.0:
            raise InvalidInput(
                f"epochs = {self.epochs:g} is too small for {self.records} records: it makes less than one "
                f"gradient. Give at least {1 / self.records:.2g} epochs."
            )

    def budget(self, delta: float | None = None) -> dict[str, float | None]:
        """Return the budget as keywords of :func:`tacit.accounting.calibrate`, with ``delta`` if given."""
        return {
            "epsilon": self.epsilon,
            "delta": None if self.epsilon is None else delta or self.delta,
            "advantage": self.advantage,
            "true_positive_rate": self.true_positive_rate,
            "false_positive_rate": self.false_positive_rate,
        }

    @property
    def budget_in_words(self) -> str:
        """The budget, for a title."""
        if self.advantage is not None:
            return f"advantage of any attack ≤ {self.advantage:g}"
        if self.true_positive_rate is not None:
            most, at = self.true_positive_rate, self.false_positive_rate
            return f"true positives of any attack ≤ {most:g} at {at:g} false ones"
        return f"ε = {self.epsilon:g} at δ = {self.delta:g}"

    @property
    def gradients(self) -> float:
        """T B, the total number of per-record gradients; infinite if ``steps`` is given instead."""
        if self.steps is not None:
            return math.inf
        return self.compute if self.compute is not None else (self.epochs or 0.0) * self.records

    @property
    def largest_step(self) -> int:
        """The largest batch size with which the compute allows at least one step."""
        return min(self.records, math.floor(min(self.records, self.gradients) * (1.0 + 1e-12)))

    def steps_of(self, batch_size: int) -> int:
        """Return T, the number of steps that the budget allows with that batch size.

        Epochs are rounded up, as in :class:`tacit.plan.Plan`.  Compute is a limit and is rounded down.
        """
        if self.steps is not None:
            return self.steps
        steps = self.gradients / batch_size
        return math.floor(steps + 1e-9) if self.epochs is None else max(1, math.ceil(steps - 1e-9))

    def delta_of(self, batch_size: int) -> float | None:
        """Return the delta at which uncut samples must keep epsilon, so that cut ones keep it at ``delta``.

        The result is None if cut batches would take more than a tenth of delta.
        """
        if self.largest_batch is None or self.largest_batch >= self.records:
            return self.delta
        if batch_size > self.largest_batch:
            return None
        rate, steps = batch_size / self.records, self.steps_of(batch_size)
        return left_for_poisson(rate, self.records, self.largest_batch, steps, self.delta)

    @cached_property
    def largest_size(self) -> int:
        """The largest batch size that can be compared; 0 if every size is cut too often."""
        return last_whole(lambda size: self.delta_of(size) is not None, 0, self.largest_step + 1)

    def event(self, batch_size: int, steps: int, noise: float) -> Event:
        """Return the event of a run with that batch size, for samples that are not cut."""
        sampling = FullBatch() if batch_size == self.records else PoissonSampling(batch_size / self.records)
        training = sampling.event(Gaussian(noise), steps, Adjacency.parse(self.adjacency))
        return Compose((*self.preparation, training)) if self.preparation else training

    def curve(self, batch_size: int, steps: int, noise: float) -> PrivacyCurve:
        """Return the privacy curve of the run that :meth:`event` describes."""
        return account(self.event(batch_size, steps, noise), adjacency=self.adjacency, method="best")
