"""The plan of a private run: its facts, the event to account for, and its cost."""

# The event is derived from the same objects that the training step uses, so the two cannot disagree.
#
# Symbols: z noise multiplier, C clipping norm, q sampling rate, B expected batch size, T steps, N records,
# s_b noise on the count of adaptive clipping, s_l noise on the reported loss.

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, TypedDict, Unpack

from tacit import accounting
from tacit.accounting import PrivacyCurve
from tacit.clipping.rules import AdaptiveClipping, ClippingRule, FlatClipping
from tacit.correlation import Correlation
from tacit.errors import BudgetExceeded, InvalidInput, check_integer, check_real, listing, warn_if_weak
from tacit.events import Adjacency, Compose, CyclicPoissonSampled, Event, Gaussian, GroupPrivacy
from tacit.events.base import FAMILY as EVENTS
from tacit.notebook import facts
from tacit.plan.facts import (
    CORRELATIONS,
    RULES,
    SAMPLERS,
    GroupScoreReport,
    LossReport,
    Mechanism,
    ScoreReport,
)
from tacit.plan.signal import Signal
from tacit.rounding import NOISE_DIGITS, round_up
from tacit.sampling import (
    BallsInBinsSampling,
    ByDate,
    CyclicPoissonSampling,
    FullBatch,
    PoissonSampling,
    Sampling,
    TruncatedPoissonSampling,
)
from tacit.serial import Family, from_json, to_data


class _Needed(TypedDict):
    delta: float
    records: int
    clipping: ClippingRule | float
    adjacency: Adjacency | str
    unit: str


class PlanSettings(_Needed, total=False):
    """The keyword arguments of :meth:`Plan.with_noise` and :meth:`Plan.calibrate`.

    The first five are required.

    Attributes:
        delta: the probability that the bound on epsilon fails, such as 1e-5. It must be below ``1 /
            records``.
        records: the number of examples. Under add-remove, give a rough public number, because the exact one
            is secret. It is never read from the data.
        clipping: the norm to which the gradient of one example is clipped; 1.0 if unsure. A number C stands
            for :class:`~tacit.clipping.FlatClipping`; other rules are in :mod:`tacit.clipping`.
        adjacency: how neighbouring datasets differ: "add-remove" if unsure, "replace-one" or "zero-out"
            (:class:`~tacit.events.Adjacency`).
        unit: what one record is, as a word: "image", "patient", "row". The guarantee names it.
        batch_size: the expected number of examples per step. Default: all examples. For batches by date, give
            a rough public mean.
        epochs: the number of passes over the data. Give either ``epochs`` or ``steps``.
        steps: the number of steps.
        sampling: how batches are drawn. Default: Poisson sampling at the rate ``batch_size / records``.
            "epochs" draws each example once per epoch. Other samplers are in :mod:`tacit.sampling`.
        largest_batch: the most examples in a batch. A larger Poisson sample is cut to this size at random.
        preparation: the events (:mod:`tacit.events`) of earlier releases about the same records, such as
            DP-PCA.
        views: the number of augmented views per example. Their gradients are averaged, then clipped once.
        rows_per_user: the most rows of one unit, such as a user, if it may have several. The cost covers all
            rows of a unit.
        correlation: correlated noise (:mod:`tacit.correlation`). Default: independent noise in each step.
        loss_report: release a noisy training loss in each step (:class:`LossReport`).
        score_report: release one noisy score on held-out records (:class:`ScoreReport`).
        allow_large_delta: accept a ``delta`` of ``1 / records`` or more. Such a guarantee permits publishing
            one whole record.

    >>> from tacit.plan import Plan
    >>> settings: PlanSettings = {
    ...     "delta": 1e-5, "records": 1000, "clipping": 1.0, "adjacency": "add-remove", "unit": "row",
    ...     "steps": 1}
    >>> Plan.with_noise(noise_multiplier=4.0, **settings).event
    Repeat(event=Gaussian(noise_multiplier=4.0), count=1)
    """

    batch_size: int | None
    epochs: float | None
    steps: int | None
    sampling: Sampling | Literal["epochs"] | None
    largest_batch: int | None
    preparation: Sequence[Event]
    views: int
    rows_per_user: int | None
    correlation: Correlation | None
    loss_report: LossReport | None
    score_report: ScoreReport | GroupScoreReport | None
    allow_large_delta: bool


_FIELDS = {field.name: field.default for field in fields(Mechanism) if field.default is not MISSING}
_ADVICE = {
    "delta": "Give a probability below 1 / records, such as 1e-5.",
    "records": "Give the number of examples; under add-remove, a rough public one.",
    "clipping": "Give the largest norm of one example's gradient; 1.0 if unsure.",
    "adjacency": 'Give "add-remove" if unsure: neighbouring datasets then differ by one added record.',
    "unit": 'Give a word for one record, such as "image" or "patient".',
}
listing_settings = listing(
    PlanSettings,
    {name: _FIELDS.get(name) for name in PlanSettings.__optional_keys__},
    needed=_ADVICE,
)


def rule_of(clipping: ClippingRule | float) -> ClippingRule:
    return clipping if isinstance(clipping, ClippingRule) else FlatClipping(clipping)


def facts_of(
    *,
    records: int,
    clipping: ClippingRule | float,
    batch_size: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    sampling: Sampling | Literal["epochs"] | None = None,
    largest_batch: int | None = None,
    preparation: Sequence[Event] = (),
    **others: Any,
) -> dict[str, Any]:
    """Return the fields of a plan that follow from its settings.  ``others`` are returned unchanged."""
    records = check_integer("records", records, low=1)
    if batch_size is None and isinstance(sampling, ByDate):
        raise InvalidInput(
            "is missing for batches by date",
            argument="batch_size",
            fix="Give the mean number of records in a step, as a rough public number.",
        )
    batch = records if batch_size is None else check_integer("batch_size", batch_size, low=1)
    if batch > records:
        raise InvalidInput(
            f"{batch} is larger than the data ({records} records)",
            argument="batch_size",
            fix=f"Take at most {records}, the full batch.",
        )
    if isinstance(preparation, Event) or not isinstance(preparation, Iterable):
        raise InvalidInput(
            "must be a list of events, such as [tacit.Gaussian(8.0)]",
            argument="preparation",
            value=preparation,
        )
    sampler = _sampling(sampling, batch, records, largest_batch)
    mean = records / round(records / batch) if sampling == "epochs" else float(batch)
    return others | {
        "records": records,
        "clipping": rule_of(clipping),
        "sampling": sampler,
        "steps": _steps(epochs, steps, mean, records),
        "expected_batch_size": mean,
        "preparation": tuple(preparation),
    }


def _sampling(
    sampling: Sampling | Literal["epochs"] | None, batch: int, records: int, largest_batch: int | None
) -> Sampling:
    if largest_batch is not None:
        if sampling is not None:
            raise InvalidInput(
                "cannot be combined with `sampling`",
                argument="largest_batch",
                why="It truncates Poisson samples.",
                fix="Leave out `sampling`, or give `sampling=TruncatedPoissonSampling(...)` alone.",
            )
        return TruncatedPoissonSampling(batch / records, records, largest_batch)
    if sampling is None:
        return FullBatch() if batch == records else PoissonSampling(batch / records)
    if sampling == "epochs":
        bins = round(records / batch)
        return FullBatch() if bins == 1 else BallsInBinsSampling(bins)
    return sampling


def _steps(epochs: float | None, steps: int | None, batch: float, records: int) -> int:
    if (epochs is None) == (steps is None):
        raise InvalidInput("give exactly one of epochs and steps.")
    if steps is not None:
        return check_integer("steps", steps, low=1)
    passes = check_real("epochs", epochs, low=0.0, open_low=True)
    return max(1, math.ceil(passes * records / batch - 1e-9))


_BLANK_NOISE = 1.0  # a placeholder that calibration replaces; no clipping rule may depend on it
_LEAST_NOISE = 1e-100  # its square is still a normal float


@dataclass(frozen=True, kw_only=True)
class Plan(Mechanism):
    """The settings of a private run, and its privacy cost.

    Make a plan with :meth:`calibrate` or :meth:`with_noise`.

    Attributes:
        unit: what one record is, as a word: "image", "patient", "row". The guarantee names it.
        adjacency: how neighbouring datasets differ (:class:`~tacit.events.Adjacency`).
        delta: the delta of the guarantee.
        records: N, the public number of records. Under add-remove, it is a rough number, because the true one
            is secret. It is never read from the data.
        sampling: how a step draws its records.
        clipping: the rule that bounds each record's gradient.
        steps: the number of steps.
        noise_multiplier: the standard deviation of a step's noise, as a multiple of the clipping norm.
        expected_batch_size: the mean number of records in a step. Every noisy sum is divided by it.
        preparation: the events of earlier releases about the same records, such as DP-PCA.
        views: the number of augmented views per record. Their gradients are averaged, then clipped once.
        rows_per_user: the most rows of one unit, such as a user; None if each record is one unit. Rows are
            drawn and clipped separately, but the cost covers all rows of a unit.
        correlation: the correlation of the noise between steps (:mod:`tacit.correlation`), or None.
        loss_report: the release of a noisy training loss in each step, or None.
        score_report: the release of one noisy score on held-out records, or None.
        epsilon_budget: the largest epsilon that the plan may cost; None for no limit.

    **Guarantee**

    * ``event`` describes training with this plan. What a step releases (gradient sum, count and loss) is
      together one Gaussian mechanism of multiplier ``noise_multiplier``, on the records that ``sampling``
      draws.
    * ``epsilon`` is an upper bound on the cost of ``event`` at ``delta`` under ``adjacency``.

    Raises:
        BudgetExceeded: if the plan costs more than ``epsilon_budget``. The message says how many steps fit.
        PrivacyRefusal: if ``sampling`` or ``score_report`` has no guarantee under this adjacency, or if delta
            is at least 1/N without ``allow_large_delta``.

    >>> plan = Plan.calibrate(
    ...     epsilon=3.0, delta=1e-5, records=60_000, batch_size=600, epochs=10,
    ...     clipping=1.0, adjacency="add-remove", unit="image",
    ... )
    >>> plan.steps, plan.epsilon <= 3.0
    (1000, True)
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.gradient_noise_multiplier, self.event  # both raise if the plan cannot be accounted for
        self._check_budget()

    def __getstate__(self) -> dict[str, object]:
        """Return the facts without the cached costs, which cannot be pickled."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    @listing_settings
    def with_noise(
        cls, *, noise_multiplier: float, epsilon_budget: float | None = None, **settings: Unpack[PlanSettings]
    ) -> Plan:
        """Make a plan from a given noise multiplier.

        Args:
            noise_multiplier: the standard deviation of the noise, as a multiple of the clipping norm.
            epsilon_budget: refuse the plan if it costs more than this epsilon.
            settings: the keywords of :class:`PlanSettings`.

        Returns:
            The plan.  ``plan.epsilon`` is its cost.

        >>> plan = Plan.with_noise(noise_multiplier=1.0, delta=1e-5, records=60_000, batch_size=600,
        ...     epochs=10, clipping=1.0, adjacency="add-remove", unit="image")
        >>> print(plan)
        Plan: epsilon = 1.829 at delta = 1e-05 for one image (add-remove); 1,000 steps of 600 expected
        examples of 60,000, noise multiplier 1, FlatClipping(norm=1.0)
        """
        return cls(noise_multiplier=noise_multiplier, epsilon_budget=epsilon_budget, **facts_of(**settings))

    @classmethod
    @listing_settings
    def calibrate(
        cls,
        *,
        epsilon: float | None = None,
        advantage: float | None = None,
        true_positive_rate: float | None = None,
        false_positive_rate: float | None = None,
        **settings: Unpack[PlanSettings],
    ) -> Plan:
        """Make the plan with the least noise that stays within a budget.

        Give one budget: ``epsilon``, or ``advantage``, or the two rates together.

        Args:
            epsilon: the largest epsilon at ``delta``: 1 is strong, 3 useful, 8 weak.
            advantage: the largest TPR - FPR that any membership test may have, in (0, 1).
            true_positive_rate: the largest TPR that any membership test may have at ``false_positive_rate``.
            false_positive_rate: the FPR at which ``true_positive_rate`` holds, in (0, 1).
            settings: the keywords of :class:`PlanSettings`.

        Returns:
            The plan.  Its cost covers ``preparation`` and ``score_report`` too.  The noise multiplier is
            rounded up to six significant digits, so that the plan is the same on every processor.

        >>> plan = Plan.calibrate(advantage=0.1, delta=1e-6, records=60_000, batch_size=600, steps=1000,
        ...     clipping=1.0, adjacency="add-remove", unit="image")
        >>> round(plan.noise_multiplier, 3), round(plan.curve.advantage(), 5)
        (1.422, 0.1)
        """
        goal: dict[str, float | None] = {
            "advantage": advantage,
            "true_positive_rate": true_positive_rate,
            "false_positive_rate": false_positive_rate,
        }
        whole = cls.with_noise(noise_multiplier=_BLANK_NOISE, **_without_count(settings))
        if epsilon is not None or set(goal.values()) == {None}:
            goal |= {"epsilon": epsilon, "delta": whole.delta}
        noise = accounting.calibrate(
            whole.event_with, **goal, adjacency=whole.adjacency, method="best", digits=NOISE_DIGITS
        )
        warn_if_weak(epsilon, stacklevel=3)  # level 2 is the decorator that checks the settings
        rule = rule_of(settings["clipping"])
        return replace(whole, noise_multiplier=noise, clipping=rule, epsilon_budget=epsilon)

    def to_json(self) -> str:
        """Return the plan as JSON, from which :meth:`from_json` makes exactly the same plan.

        >>> plan = Plan.with_noise(noise_multiplier=2.0, delta=1e-4, records=1000, batch_size=100, steps=20,
        ...     clipping=1.0, adjacency="add-remove", unit="patient")
        >>> Plan.from_json(plan.to_json()) == plan
        True
        """
        return json.dumps(to_data(self, _FAMILIES))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan that :meth:`to_json` wrote.

        Raises:
            InvalidInput: if the text is not a plan.  The message names unknown kinds and fields.
            TacitError: if :class:`Plan` refuses these values.
        """
        plan = from_json(text, _FAMILIES)
        if not isinstance(plan, cls):
            raise InvalidInput(f"the JSON describes a {type(plan).__name__}, not a plan.")
        return plan

    def event_with(self, noise_multiplier: float) -> Event:
        """Return the event of the whole run with another ``noise_multiplier``."""
        return self._event(noise_multiplier, self.steps)

    @cached_property
    def event(self) -> Event:
        """The event of the whole run: the description from which accounting computes the privacy cost."""
        return self.event_after(self.steps)

    def event_after(self, steps: int) -> Event:
        """Return the event of the first ``steps`` steps, the preparation and the score report together."""
        check_integer("steps", steps, low=0, high=self.steps)
        if steps == 0:
            return Compose(self.beside)
        return self._event(self.noise_multiplier, steps)

    @property
    def beside(self) -> tuple[Event, ...]:
        """The events of all releases except the steps: the preparation, then the score report."""
        return self.preparation if self.score_report is None else (*self.preparation, self.score_report.event)

    @property
    def charging_unit(self) -> int:
        """The number of successive steps that are paid for together.

        This is an epoch for shuffled batches or balls in bins, a cycle for cyclic sampling, all steps for
        correlated noise or batches by date, and otherwise 1.
        """
        return self.steps if self.correlation is not None else self.sampling.paid_together(self.steps)

    def event_between(self, first: int, stop: int) -> Event:
        """Return the event of the steps ``first``, ..., ``stop - 1``.

        If ``first`` is 0, it includes the preparation and the score report. You may cut the run at multiples
        of :attr:`charging_unit`: the events of the parts together make up the event of the whole run.

        Raises:
            InvalidInput: if ``first`` is not a multiple of :attr:`charging_unit`.

        >>> plan = Plan.with_noise(noise_multiplier=2.0, delta=1e-4, records=1000, batch_size=100, steps=20,
        ...     clipping=1.0, adjacency="add-remove", unit="patient", preparation=[Gaussian(8.0)])
        >>> plan.event_between(15, 20)
        Repeat(event=PoissonSampled(sampling_rate=0.1, event=Gaussian(noise_multiplier=2.0)), count=5)
        """
        check_integer("first", first, low=0, high=self.steps - 1)
        check_integer("stop", stop, low=first + 1, high=self.steps)
        if first == 0:
            return self.event_after(stop)
        if first % self.charging_unit:
            raise InvalidInput(
                f"first must be a multiple of {self.charging_unit}; got {first}. Tacit accounts for "
                f"{self.charging_unit} steps at a time."
            )
        return self._of_unit(
            self.sampling.event(Gaussian(self.noise_multiplier), stop - first, self.adjacency)
        )

    def _training(self, noise_multiplier: float, steps: int) -> Event:
        """Return the event of the first ``steps`` steps, for single records."""
        independent = self.sampling.event(Gaussian(noise_multiplier), steps, self.adjacency)
        pattern = self.sampling.participations_in(steps)
        if self.correlation is None or pattern is None:
            return independent
        match self.sampling:
            case CyclicPoissonSampling(rate, cycle) if rate < 1.0:
                alone = self.correlation.event(noise_multiplier, steps, participations=1, separation=1)
                return CyclicPoissonSampled(rate, cycle, alone)
        times, apart = pattern
        return self.correlation.event(noise_multiplier, steps, participations=times, separation=apart)

    def _of_unit(self, training: Event) -> Event:
        """Convert an event for single records to one for all records of a unit."""
        several = self.rows_per_user is not None and self.rows_per_user > 1
        return GroupPrivacy(training, self.rows_per_user or 1) if several else training

    def _event(self, noise_multiplier: float, steps: int) -> Event:
        training = self._of_unit(self._training(noise_multiplier, steps))
        return Compose((*self.beside, training)) if self.beside else training

    @cached_property
    def curve(self) -> PrivacyCurve:
        """The privacy curve of the whole run (epsilon for every delta), by the tightest accountant."""
        return accounting.account(self.event, adjacency=self.adjacency, method="best")

    @cached_property
    def epsilon(self) -> float:
        """An upper bound on the epsilon of the whole run at ``delta``."""
        return self.curve.epsilon(self.delta)

    def epsilon_after(self, counts: Sequence[int]) -> list[float]:
        """Return epsilon at the plan's delta after n steps, for each n in ``counts``.

        Every value includes the preparation and the score report.
        """
        later = sorted({count for count in counts if count > 0})
        spent = {0: accounting.account(self.event_after(0), adjacency=self.adjacency).epsilon(self.delta)}
        if later:
            epsilons = accounting.epsilon_schedule(
                self.event_after, later, delta=self.delta, adjacency=self.adjacency
            )
            spent |= dict(zip(later, epsilons, strict=True))
        return [spent[count] for count in counts]

    @property
    def sampling_rate(self) -> float:
        """The expected batch size divided by the public number of records."""
        return self.expected_batch_size / self.records

    @property
    def epochs(self) -> float:
        """The expected number of passes over the records."""
        return self.steps * self.sampling_rate

    @cached_property
    def steps_per_epoch(self) -> int:
        """The number of steps in one expected pass over the records, rounded."""
        return max(1, round(1 / self.sampling_rate))

    @property
    def count_noise(self) -> float | None:
        """The standard deviation of the noise on the count of adaptive clipping; None for other rules."""
        rule = self.clipping
        return rule.count_std(self.expected_batch_size) if isinstance(rule, AdaptiveClipping) else None

    @property
    def loss_noise(self) -> float | None:
        """The standard deviation of the noise on the sum of losses; None without a :class:`LossReport`."""
        return None if self.loss_report is None else self.loss_report.relative_noise * self.noise_multiplier

    @cached_property
    def gradient_noise_multiplier(self) -> float:
        """z_g, the noise on the sum of gradients, as a multiple of the clipping norm.

        It exceeds ``noise_multiplier`` if a step also releases a noisy loss or count: the step then costs as
        much as one that releases gradients alone, with ``noise_multiplier``.
        """
        if self.noise_multiplier < _LEAST_NOISE:
            raise InvalidInput(
                f"{self.noise_multiplier:g} is too small",
                argument="noise_multiplier",
                why="It protects nothing.",
                fix="Increase it; 1 is a usual value.",
            )
        precision = self.noise_multiplier**-2
        for noise in (self.count_noise, self.loss_noise):
            if noise is not None:
                precision -= (2 * noise) ** -2
        if precision <= 0 and self.count_noise is None:
            raise InvalidInput(
                f"{self.noise_multiplier:g} is too large",
                argument="noise_multiplier",
                fix="Take less.",
            )
        if precision <= 0:
            raise InvalidInput(
                ": the noisy count that adapts the clipping norm costs more than the whole step may",
                argument="count_noise",
                why=f"Its noise, {self.count_noise:g}, is too small for the noise multiplier "
                f"{self.noise_multiplier:g}.",
                fix=f"Raise `count_noise` above {self.noise_multiplier / 2:g}, or take larger batches.",
            )
        return 1 / math.sqrt(precision)

    def signal(self, weights: int) -> Signal:
        """Predict, without data, whether a model with this many trained weights can learn despite the noise.

        >>> plan = Plan.calibrate(epsilon=3.0, delta=1e-5, records=12_500, batch_size=2000, steps=80,
        ...     clipping=1.0, adjacency="add-remove", unit="review")
        >>> print(plan.signal(770).verdict.value)
        can learn
        """
        return Signal(self, weights)

    def check_records(self, records: int) -> None:
        """Raise an error if the plan does not cover data with this number of records.

        Raises:
            InvalidInput: if the number is public and differs from the plan's.
            PrivacyRefusal: if Poisson samples are truncated, and there are more records than the plan states.
        """
        if self.adjacency is not Adjacency.ADD_REMOVE and records != self.records:
            raise InvalidInput(
                f"the plan has {self.records} records and the data {records}. Under {self.adjacency} the "
                f"number of records is public and must be exact. Make the plan with records={records}, or "
                "pass the data for which it was made."
            )
        if isinstance(self.sampling, TruncatedPoissonSampling):
            self.sampling.check_records(records)

    def __str__(self) -> str:
        batch = f"{self.expected_batch_size:,.6g}"
        return (
            f"Plan: epsilon = {round_up(self.epsilon)} at delta = {self.delta:.15g} for one {self.unit} "
            f"({self.adjacency}); {self.steps:,} steps of {batch} expected examples of {self.records:,}, "
            f"noise multiplier {self.noise_multiplier:.4g}, {self.clipping!r}"
        )

    def _repr_html_(self) -> str:
        loss, score = self.loss_report, self.score_report
        rows = [
            ("Epsilon", f"{round_up(self.epsilon)} at delta {self.delta:.15g}, for the whole run"),
            ("Protected", f"one {self.unit}, adjacency {self.adjacency}"),
            ("Steps", f"{self.steps:,} of {self.expected_batch_size:,.6g} expected records"),
            ("Epochs", f"{self.epochs:.4g} over {self.records:,} records, a public number"),
            ("Sampling", self.sampling.describe()),
            ("Clipping", repr(self.clipping)),
            ("Noise multiplier", f"{self.noise_multiplier:.4g}"),
            ("Noise in time", "independent" if self.correlation is None else repr(self.correlation)),
            ("Views per record", str(self.views)),
            ("Records of one unit", str(self.rows_per_user or 1)),
            ("Noisy training loss", "none" if loss is None else f"every step, bound {loss.bound:g}"),
            ("Noisy test score", "none" if score is None else f"one, noise of {score.noise:g} records"),
            ("Preparation", ", ".join(map(repr, self.preparation)) or "none"),
        ]
        return facts("Plan of a private run", rows)

    def _check_budget(self) -> None:
        if self.epsilon_budget is None or self.epsilon <= self.epsilon_budget:
            return
        fits = accounting.largest_steps(
            lambda steps: self._event(self.noise_multiplier, steps),
            epsilon=self.epsilon_budget,
            delta=self.delta,
            adjacency=self.adjacency,
        )
        raise BudgetExceeded(
            f": the plan costs epsilon = {self.epsilon:.4g} at delta = {self.delta:g}; the budget is "
            f"{self.epsilon_budget:g}",
            argument="epsilon_budget",
            why=f"The plan has {self.steps} steps with noise multiplier {self.noise_multiplier:g}.",
            fix=f"At most {fits} steps fit. Take fewer steps, more noise, or a larger budget.",
        )


def _without_count(settings: PlanSettings) -> PlanSettings:
    """Return settings for calibration, with a clipping rule that needs no noise multiplier."""
    rule = settings.get("clipping")
    if not isinstance(rule, AdaptiveClipping):
        return settings
    return {**settings, "clipping": FlatClipping(rule.norm)}


_FAMILIES = (
    Family("kind", (Plan, LossReport, ScoreReport, GroupScoreReport, *SAMPLERS, *RULES, *CORRELATIONS)),
    EVENTS,
)
