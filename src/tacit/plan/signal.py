"""Can a plan teach a model of so many weights anything? Known before a record is read, from public facts.

A step moves the weights by the mean of B clipped gradients, which is at most C long, and by noise.  Noise of
standard deviation z C / B in each of d directions has the length z C sqrt(d) / B, whoever is drawn:

    noise of a step   rho = z sqrt(d) / B     in units of the longest mean gradient, C
    noise of the run  s = rho / sqrt(T)       of the mean of T steps

Of all directions few change what a model answers, so the length of the noise tells little of what it does:
that of a run counts almost the same in a model of 650 and of 170,000 weights.  Real runs were fitted to

    u = s / sqrt(d) = z / (B sqrt(T)),    share lost = 1 / (1 + h / (u d^a)),

the share of the gain over a constant answer which the same training without noise has and this one does not
(``python -m experiments.can_learn``; docs/how-to/learns-nothing.md has the table).

* Correlated noise: s has the noise of the sum of all T steps, which is what its form makes small.
* Clipping by layer, automatic or adaptive: C is the bound on all layers together; z counts what the releases
  beside the gradients cost.  Views are averaged before the one clip, so they change neither side.
* rows_per_user: B counts rows, each clipped by itself; z is that of all rows of one unit.
* Truncated batches divide by the same B.  Of cyclic, shuffled and dated batches B is the size of one, too.

Symbols: z noise multiplier of the gradients, C clipping norm, B expected batch size, d trained weights, T
steps.
"""

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
"""h, the noise u d^a at which half of the gain is lost, and a: fitted to the runs of the table."""
_LITTLE, _NOTHING = 0.25, 0.6
"""From which predicted loss on a model learns little, and nothing: the second parts the runs of the table."""
_TIMES = 4  # how much more of records, steps or epsilon a change takes
_LEAST_EPSILON = 1e-3  # below it, a plan costs as good as nothing
_MOST_EPSILON = 8.0  # no larger one is advised
_FEWEST = 1_000  # the weights of the least model that is advised: linear, of 500 features and two classes


class Verdict(Enum):
    """What is to be expected of a run, by the share of the gain that noise takes away.

    >>> Verdict.NOTHING.value
    'cannot learn'
    """

    LEARNS = "can learn"
    LITTLE = "learns little"
    NOTHING = "cannot learn"


class Planned(Protocol):
    """What a signal needs of a :class:`tacit.plan.Plan`."""

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
    """What has a signal: a plan."""

    def signal(self, weights: int) -> Signal: ...


@dataclass(frozen=True)
class Change:
    """One change of a run, and what it does at the same promise.

    Attributes:
        what: of what there is less or more: "weights", "batch_size", "steps", "epsilon" or "records".
        value: what to take of it.
        noise_of_run, lost: those of the changed run.

    >>> Change("weights", 1540, noise_of_run=0.01, lost=0.05).value
    1540
    """

    what: str
    value: float
    noise_of_run: float
    lost: float

    def __str__(self) -> str:
        words = {
            "weights": "train {:,.0f} weights, such as a linear head on frozen features",
            "batch_size": "take {:,.0f} records a step",
            "steps": "take {:,.0f} steps",
            "epsilon": "allow epsilon {:.3g}",
            "records": "train on {:,.0f} records, the same share of them in a step",
        }[self.what].format(self.value)
        return f"{words}: {self.lost:.0%} of the gain would be lost"


@final
@dataclass(frozen=True)
class Signal:
    """How loud a run's noise is beside what the records say; made by :meth:`tacit.plan.Plan.signal`.

    Attributes:
        plan: the plan.
        weights: d, the trained weights.

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
        """rho: the length of the noise on a step's mean gradient, in units of the longest such gradient."""
        plan = self.plan
        return self._noise_of_draw * noise_of_step(plan.correlation, plan.steps)

    @cached_property
    def noise_of_run(self) -> float:
        """s: the same of the mean over all steps.

        Correlated noise counts by what it makes of the noise of sums of steps, against independent noise.
        """
        form, T = self.plan.correlation, self.plan.steps
        return self._noise_of_draw * noise_of_sums(form, T) / noise_of_sums(None, T) / math.sqrt(T)

    @property
    def _noise_of_draw(self) -> float:
        """The same of independent noise with the plan's multiplier."""
        plan = self.plan
        return plan.gradient_noise_multiplier * math.sqrt(self.weights) / plan.expected_batch_size

    @property
    def lost(self) -> float:
        """The predicted share of the gain without noise that is lost, between 0 and 1."""
        return _lost(self.noise_of_run, self.weights)

    @property
    def verdict(self) -> Verdict:
        """What is to be expected."""
        if self.lost < _LITTLE:
            return Verdict.LEARNS
        return Verdict.LITTLE if self.lost < _NOTHING else Verdict.NOTHING

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """What would help, most first, each by itself.

        All changes that leave a run which can learn count as equal: then what costs time alone comes first.
        """
        found = (change for change in self._tried() if change.lost < self.lost)
        return tuple(sorted(found, key=lambda change: max(change.lost, _LITTLE)))

    @property
    def change(self) -> Change | None:
        """The first of :attr:`changes`; None if the run can learn, or none helps."""
        if self.verdict is Verdict.LEARNS or not self.changes:
            return None
        return self.changes[0]

    def _tried(self) -> Iterator[Change]:
        """Changes of the run, those that cost the least first: time, a model, the promise, records."""
        plan = self.plan
        if type(plan.sampling) is PoissonSampling and plan.expected_batch_size < plan.records:
            batch = min(plan.records, math.ceil(_TIMES * plan.expected_batch_size))
            drawn = FullBatch() if batch == plan.records else PoissonSampling(batch / plan.records)
            yield self._changed("batch_size", batch, sampling=drawn, expected_batch_size=float(batch))
        if plan.correlation is None:  # whose form is made for so many steps
            yield self._changed("steps", _TIMES * plan.steps, steps=_TIMES * plan.steps)
        if self.weights > _FEWEST:
            noise = self.noise_of_run * math.sqrt(_FEWEST / self.weights)
            yield Change("weights", _FEWEST, noise, _lost(noise, _FEWEST))
        if plan.epsilon < _MOST_EPSILON:
            yield self._changed("epsilon", min(_MOST_EPSILON, max(_LEAST_EPSILON, _TIMES * plan.epsilon)))
        yield self._of("records", _TIMES * plan.records, self.noise_of_run / _TIMES)  # same rate, same z

    def _changed(self, what: str, value: float, **facts: Any) -> Change:
        """The run with other facts and the noise that the promise asks for then."""
        epsilon = max(_LEAST_EPSILON, value if what == "epsilon" else self.plan.epsilon)
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
        return self._of(what, value, again.noise_of_run)

    def _of(self, what: str, value: float, noise_of_run: float) -> Change:
        return Change(what, value, noise_of_run, _lost(noise_of_run, self.weights))

    def in_words(self) -> str:
        """The noise beside the longest mean gradient, the verdict, and what to change."""
        told = (
            f"A step's noise is {self.noise_of_step:.2g} times as long as the longest mean gradient, for "
            f"{self.weights:,} trained weights; over {self.plan.steps:,} steps it is {self.noise_of_run:.2g} "
            f"times. So the model {self.verdict.value}: about {self.lost:.0%} of what the same training "
            "without noise gains over a constant answer is lost."
        )
        return told if self.change is None else f"{told} What helps most: {self.change}."

    @property
    def reason(self) -> str:
        """Why a loss does not fall, as far as the plan knows; cheap, for no change is priced."""
        if self.verdict is Verdict.LEARNS:
            return (
                f"By its plan, noise takes about {self.lost:.0%} of what the model can gain, so look at the "
                "learning rate, the steps, and whether the same model learns without noise on public records."
            )
        return (
            f"By its plan, noise takes about {self.lost:.0%} of what the model can gain: it "
            f"{self.verdict.value}. docs/how-to/learns-nothing.md says what to change."
        )

    def __str__(self) -> str:
        return self.in_words()

    def as_data(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return {
            "weights": self.weights, "noise_of_step": self.noise_of_step, "noise_of_run": self.noise_of_run,
            "lost": self.lost, "verdict": self.verdict.value,
            "changes": [] if self.verdict is Verdict.LEARNS else [vars(change) for change in self.changes],
            "in_words": self.in_words(),
        }  # fmt: skip

    def _repr_html_(self) -> str:
        rows = [
            ("Trained weights", f"{self.weights:,}"),
            ("Noise of a step", f"{self.noise_of_step:.3g} times the longest mean gradient"),
            ("Noise of the run", f"{self.noise_of_run:.3g} times, over {self.plan.steps:,} steps"),
            ("Lost to noise", f"{self.lost:.0%} of the gain over a constant answer"),
            ("What helps most", "nothing is needed" if self.change is None else str(self.change)),
        ]
        return facts(f"The model {self.verdict.value}", rows)


@dataclass(frozen=True)
class Ranked:
    """A way to train a public model: its ``name``, how many ``weights`` it trains, and what it can learn."""

    name: str
    weights: int
    signal: Signal

    def as_data(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return {"name": self.name} | self.signal.as_data()


def rank_tuning(options: Mapping[str, int], plan_of: Callable[[str], Plans]) -> list[Ranked]:
    """Ways to train a public model, those first that lose least of what each gains without noise.

    Args:
        options: of each way, how many weights it trains.
        plan_of: of each way, its plan.

    >>> from tacit.plan import Plan
    >>> plan = Plan.with_noise(noise_multiplier=4.3, steps=80, records=12_500, batch_size=2000, clipping=1.0,
    ...                        delta=1e-5, adjacency="add-remove", unit="review")
    >>> [one.name for one in rank_tuning({"full": 22_713_986, "head": 770}, lambda name: plan)]
    ['head', 'full']
    """
    found = [Ranked(name, weights, plan_of(name).signal(weights)) for name, weights in options.items()]
    return sorted(found, key=lambda one: one.signal.lost)


def warn_if_drowned(signal: Signal) -> None:
    """Warn of a run that cannot learn, at the user's line.

    >>> from tacit.plan import Plan
    >>> plan = Plan.with_noise(noise_multiplier=1.0, steps=100, records=10_000, batch_size=500, clipping=1.0,
    ...                        delta=1e-5, adjacency="add-remove", unit="row")
    >>> warn_if_drowned(plan.signal(650))
    """
    if signal.verdict is Verdict.NOTHING:
        warnings.warn(
            f"the plan is too noisy for this model. {signal.in_words()} See docs/how-to/learns-nothing.md",
            WeakSignalWarning,
            stacklevel=users_level(),
        )


def _lost(noise_of_run: float, weights: int) -> float:
    """The share that is lost: half at :data:`_HALF`."""
    return 1.0 / (1.0 + _HALF / (noise_of_run * math.pow(weights, _POWER - 0.5)))
