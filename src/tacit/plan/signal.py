"""A prediction, from public facts alone, of whether a plan leaves a model enough signal to learn."""

# In a step the weights move by the mean of B clipped gradients, of norm at most C, plus noise.  Noise of
# standard deviation z C / B in each of d coordinates has a norm of about z C sqrt(d) / B:
#
#     noise of a step   rho = z sqrt(d) / B     in units of C, the largest norm of a mean gradient
#     noise of the run  s = rho / sqrt(T)       for the mean of T steps
#
# Only a few directions in weight space change a model's answers, so the norm of the noise says little about
# its effect: the noise per coordinate, u, has nearly the same effect on 650 weights as on 170,000.  The
# formula
#
#     u = s / sqrt(d) = z / (B sqrt(T)),    share lost = 1 / (1 + h / (u d^a)),
#
# was fitted to real runs.  The gain is the improvement over a constant prediction, by training without
# noise.  The share lost is the share of the gain that noise takes away (``python -m experiments.can_learn``;
# table in docs/how-to/which-settings.md).
#
# * Correlated noise: s uses the noise on the sum of all T steps, which the correlation makes small.
# * Clipping by layer, automatic or adaptive: C is the bound on all layers together.  z includes the cost of a
#   step's other releases.  Views are averaged before they are clipped once, so they change neither gradient
#   norm nor noise.
# * rows_per_user: B counts rows, each clipped separately, and z is the multiplier that covers all rows of a
#   unit.
# * Truncated batches divide by the same B.  For cyclic, shuffled and dated batches, B is also the batch size.
#
# Symbols: z noise multiplier of the gradients, C clipping norm, B expected batch size, d trained weights, T
# steps.

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, Protocol, final

from tacit.accounting import calibrate
from tacit.accounting.calibrate import LooseBudget
from tacit.correlation import Correlation
from tacit.correlation.forms import noise_of_step, noise_of_sums
from tacit.errors import WeakSignalWarning, check_integer, users_level
from tacit.events import Adjacency, Event
from tacit.notebook import facts
from tacit.rounding import NOISE_DIGITS
from tacit.sampling import FullBatch, PoissonSampling, Sampling

_HALF, _POWER = 0.016, 0.045
"""h and a: half of the gain is lost where u d^a = h.  Both are fitted to the runs of the table."""
_LITTLE, _NOTHING = 0.25, 0.6
"""From these shares lost on, a model learns little, or nothing; the second separates the table's runs."""
_TIMES = 4  # the factor of a suggested change of records, batch size, steps or epsilon
_LEAST_EPSILON = 1e-3  # a smaller cost of a plan counts as this one
_MOST_EPSILON = 8.0  # the largest epsilon that is suggested
_FEWEST = 1_000  # weights of the smallest model suggested: linear, 500 features, two classes


class Verdict(Enum):
    """The prediction for a run, from the share of the gain that is lost to noise."""

    LEARNS = "can learn"
    LITTLE = "learns little"
    NOTHING = "cannot learn"


class Planned(Protocol):
    """The attributes of a :class:`tacit.plan.Plan` that a :class:`Signal` reads."""

    @property
    def records(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def sampling(self) -> Sampling: ...
    @property
    def expected_batch_size(self) -> float: ...
    @property
    def correlation(self) -> Correlation | None: ...
    @property
    def gradient_noise_multiplier(self) -> float: ...
    @property
    def noise_multiplier(self) -> float: ...
    @property
    def delta(self) -> float: ...
    @property
    def adjacency(self) -> Adjacency: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def event_with(self) -> Callable[[float], Event]: ...


class Plans(Protocol):
    """An object with a signal, such as a plan."""

    def signal(self, weights: int) -> Signal: ...


@dataclass(frozen=True)
class Change:
    """One change of a setting to ``value``, and its effect at the same guarantee."""

    quantity: str
    value: float
    noise_of_run: float
    share_lost: float

    def as_data(self) -> dict[str, Any]:
        return {
            "what": self.quantity, "value": self.value, "noise_of_run": self.noise_of_run,
            "lost": self.share_lost,
        }  # fmt: skip

    def __str__(self) -> str:
        words = {
            "weights": "train {:,.0f} weights, such as a linear head on frozen features",
            "batch_size": "take {:,.0f} records per step",
            "steps": "take {:,.0f} steps",
            "epsilon": "allow epsilon {:.3g}",
            "records": "train on {:,.0f} records at the same sampling rate",
        }[self.quantity].format(self.value)
        return f"{words}; then {self.share_lost:.0%} of the gain is lost"


@final
@dataclass(frozen=True)
class Signal:
    """A prediction, without data, whether a model can learn despite the noise of a run.

    Make it with :meth:`tacit.plan.Plan.signal`. It compares the noise to the largest possible gradient.

    Attributes:
        plan: the plan of the run.
        weights: the number of trained weights.

    >>> from tacit.plan import Plan
    >>> plan = Plan.calibrate(epsilon=8.0, delta=1e-5, records=6000, batch_size=300, steps=60, clipping=1.0,
    ...                       adjacency="add-remove", unit="review")
    >>> few, many = plan.signal(770), plan.signal(222_338)
    >>> round(many.noise_of_step, 2), few.noise_of_run < many.noise_of_run
    (1.01, True)
    """

    plan: Planned
    weights: int

    def __post_init__(self) -> None:
        check_integer("weights", self.weights, low=1)

    @cached_property
    def noise_of_step(self) -> float:
        """rho: the norm of the noise on the mean gradient of a step, as a multiple of the clipping norm."""
        plan = self.plan
        return self._noise_of_draw * noise_of_step(plan.correlation, plan.steps)

    @cached_property
    def noise_of_run(self) -> float:
        """s: the norm of the noise on the mean gradient of all steps, as a multiple of the clipping norm.

        For correlated noise, s is multiplied by how much noise sums of steps have, relative to independent
        noise.
        """
        form, T = self.plan.correlation, self.plan.steps
        return self._noise_of_draw * noise_of_sums(form, T) / noise_of_sums(None, T) / math.sqrt(T)

    @property
    def _noise_of_draw(self) -> float:
        """rho if the noise were independent, with the plan's multiplier."""
        plan = self.plan
        return plan.gradient_noise_multiplier * math.sqrt(self.weights) / plan.expected_batch_size

    @property
    def lost(self) -> float:
        """The predicted share, from 0 to 1, of the gain of training that is lost to noise."""
        return _lost(self.noise_of_run, self.weights)

    @property
    def verdict(self) -> Verdict:
        """The prediction: the run can learn, learns little, or cannot learn."""
        if self.lost < _LITTLE:
            return Verdict.LEARNS
        return Verdict.LITTLE if self.lost < _NOTHING else Verdict.NOTHING

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The changes of the plan that would each help by itself, the most effective first.

        All changes that let the run learn count as equally effective; among these, the cheapest comes first.
        """
        helpful = (change for change in self._candidates() if change.share_lost < self.lost)
        return tuple(sorted(helpful, key=lambda change: max(change.share_lost, _LITTLE)))

    @property
    def change(self) -> Change | None:
        """The change that helps most; None if the run can already learn, or no change helps."""
        if self.verdict is Verdict.LEARNS or not self.changes:
            return None
        return self.changes[0]

    def _candidates(self) -> Iterator[Change]:
        """Yield changes of the run, the cheapest first: batch size and steps, weights, epsilon, records."""
        plan = self.plan
        if type(plan.sampling) is PoissonSampling and plan.expected_batch_size < plan.records:
            batch = min(plan.records, math.ceil(_TIMES * plan.expected_batch_size))
            sampling = FullBatch() if batch == plan.records else PoissonSampling(batch / plan.records)
            yield self._changed("batch_size", batch, sampling=sampling, expected_batch_size=float(batch))
        if plan.correlation is None:  # a correlation is made for one number of steps
            yield self._changed("steps", _TIMES * plan.steps, steps=_TIMES * plan.steps)
        if self.weights > _FEWEST:
            noise = self.noise_of_run * math.sqrt(_FEWEST / self.weights)
            yield Change("weights", _FEWEST, noise, _lost(noise, _FEWEST))
        if plan.epsilon < _MOST_EPSILON:
            yield self._changed("epsilon", min(_MOST_EPSILON, max(_LEAST_EPSILON, _TIMES * plan.epsilon)))
        yield self._change_to(
            "records", _TIMES * plan.records, self.noise_of_run / _TIMES
        )  # same rate, same z

    def _changed(self, quantity: str, value: float, **facts: Any) -> Change:
        """Return the change to a run with these facts, and with noise calibrated to the same guarantee."""
        epsilon = max(_LEAST_EPSILON, value if quantity == "epsilon" else self.plan.epsilon)
        other: Any = replace(self.plan, epsilon_budget=None, **facts)  # type: ignore[type-var]
        try:
            noise = calibrate(
                other.event_with,
                epsilon=epsilon,
                delta=other.delta,
                adjacency=other.adjacency,
                method="best",
                digits=NOISE_DIGITS,
            )
        except LooseBudget as least:
            noise = least.noise
        again = Signal(replace(other, noise_multiplier=noise), self.weights)
        return self._change_to(quantity, value, again.noise_of_run)

    def _change_to(self, quantity: str, value: float, noise_of_run: float) -> Change:
        return Change(quantity, value, noise_of_run, _lost(noise_of_run, self.weights))

    def in_words(self) -> str:
        """Describe the noise, the verdict and the change that helps most."""
        words = (
            f"With {self.weights:,} trained weights, the noise of a step has {self.noise_of_step:.2g} times "
            f"the largest norm of the mean gradient; averaged over {self.plan.steps:,} steps, "
            f"{self.noise_of_run:.2g} times. The model {self.verdict.value}: about {self.lost:.0%} of the "
            "gain over a majority-class baseline is lost to noise."
        )
        return words if self.change is None else f"{words} The change that helps most: {self.change}."

    @property
    def reason(self) -> str:
        """The likely reason why the loss does not fall, from the plan alone.

        It is cheap to compute, because it does not look for :attr:`changes`.
        """
        if self.verdict is Verdict.LEARNS:
            return (
                f"The plan predicts that about {self.lost:.0%} of the gain is lost to noise. Check the "
                "learning rate, the number of steps, and whether the model learns public data without noise."
            )
        return (
            f"The plan predicts that about {self.lost:.0%} of the gain is lost to noise: the model "
            f"{self.verdict.value}. See docs/how-to/which-settings.md for what to change."
        )

    def __str__(self) -> str:
        return self.in_words()

    def as_data(self) -> dict[str, Any]:
        """Return all numbers and the verdict as plain data, for JSON."""
        changes = [] if self.verdict is Verdict.LEARNS else self.changes
        return {
            "weights": self.weights, "noise_of_step": self.noise_of_step, "noise_of_run": self.noise_of_run,
            "lost": self.lost, "verdict": self.verdict.value,
            "changes": [change.as_data() for change in changes],
            "in_words": self.in_words(),
        }  # fmt: skip

    def _repr_html_(self) -> str:
        rows = [
            ("Trained weights", f"{self.weights:,}"),
            ("Noise of a step", f"{self.noise_of_step:.3g} times the largest mean gradient"),
            ("Noise of the run", f"{self.noise_of_run:.3g} times, over {self.plan.steps:,} steps"),
            ("Lost to noise", f"{self.lost:.0%} of the gain over a majority-class baseline"),
            ("Change that helps most", "nothing is needed" if self.change is None else str(self.change)),
        ]
        return facts(f"The model {self.verdict.value}", rows)


@dataclass(frozen=True)
class Ranked:
    """One method of fine-tuning a public model, its number of trained weights, and its signal."""

    name: str
    weights: int
    signal: Signal

    def as_data(self) -> dict[str, Any]:
        return {"name": self.name} | self.signal.as_data()


def rank_tuning(options: Mapping[str, int], plan_of: Callable[[str], Plans]) -> list[Ranked]:
    """Rank methods of fine-tuning by predicted loss of gain.  ``options``: the number of weights of each."""
    ranked = [Ranked(name, weights, plan_of(name).signal(weights)) for name, weights in options.items()]
    return sorted(ranked, key=lambda one: one.signal.lost)


def warn_if_drowned(signal: Signal) -> None:
    """Warn at the user's line of code if a run cannot learn."""
    if signal.verdict is Verdict.NOTHING:
        warnings.warn(
            f"the plan is too noisy for this model. {signal.in_words()} See docs/how-to/which-settings.md",
            WeakSignalWarning,
            stacklevel=users_level(),
        )


def _lost(noise_of_run: float, weights: int) -> float:
    """Return the share of the gain that is lost; it is one half where u d^a is :data:`_HALF`."""
    return 1.0 / (1.0 + _HALF / (noise_of_run * math.pow(weights, _POWER - 0.5)))
