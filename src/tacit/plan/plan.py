"""What will a private run do, and what does it cost? One long class: sampler, clipping, noise, steps.

Everything that decides the guarantee is here, as frozen public facts, and nowhere else.  The event that
is accounted for is derived from the very objects that the training step will run, so the two cannot
disagree.  A plan that cannot be accounted for is refused when it is made, before any data is read.

Symbols: z noise multiplier, C clipping norm, q sampling rate, B expected batch size, T steps, N records,
s_b noise of the count of adaptive clipping, s_l noise of the reported loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

from tacit import accounting
from tacit.accounting import PrivacyCurve
from tacit.clipping.rules import (
    AdaptiveClipping,
    AutomaticClipping,
    ClippingRule,
    FlatClipping,
    PerLayerClipping,
)
from tacit.correlation import BLT, Banded, BandedInverse, Correlation, Tree
from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal, check_integer, check_real
from tacit.events import Adjacency, Compose, CyclicPoissonSampled, Event, Gaussian, GroupPrivacy
from tacit.events.base import check_event
from tacit.notebook import facts
from tacit.rounding import NOISE_DIGITS, round_up
from tacit.sampling import (
    ByDate,
    CyclicPoissonSampling,
    FullBatch,
    PoissonSampling,
    Sampling,
    ShuffledBatches,
    TruncatedPoissonSampling,
)
from tacit.strength import warn_if_weak


@dataclass(frozen=True)
class LossReport:
    """Release a noisy mean of the losses in every step; the plan's cost includes it.

    A record's loss is clamped to ``[0, bound]`` and scaled to [-1/2, 1/2]; the sum over the batch gets
    noise of standard deviation ``relative_noise * z``.  It is one more coordinate of the step's Gaussian:
    the noise on the gradients grows from z to z_g with ``z^-2 = z_g^-2 + (2 s_l)^-2 + ...`` (the joint
    release of Andrew et al., 1905.03871, theorem 1).  At the default, z_g is 0.5 % above z.

    >>> plan = Plan.with_noise(noise_multiplier=1.0, steps=100, records=10_000, clipping=1.0, delta=1e-5,
    ...                        adjacency="add-remove", unit="row", loss_report=LossReport(bound=5.0))
    >>> round(plan.gradient_noise_multiplier, 3)  # more noise on the gradients pays for the losses
    1.005
    """

    bound: float = 5.0
    relative_noise: float = 5.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", check_real("bound", self.bound, low=0.0, open_low=True))
        noise = check_real("relative_noise", self.relative_noise, low=0.5, open_low=True)
        object.__setattr__(self, "relative_noise", noise)


@dataclass(frozen=True)
class ScoreReport:
    """Release, once, how well the model does on records of the same data set; the plan's cost includes it.

    Each record adds its score v in [0, 1] to one sum and 1 - v to another, so one record more or less
    changes the two by at most 1 (in the l2 norm); both get Gaussian noise of standard deviation ``noise``, in
    records.  Training takes other records, but the two costs are added, whatever separates the records.

    >>> ScoreReport(noise=20.0).event
    Gaussian(noise_multiplier=20.0)
    """

    noise: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", check_real("noise", self.noise, low=0.0, open_low=True))

    @property
    def event(self) -> Event:
        """The release: the two sums with their noise."""
        return Gaussian(self.noise)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a private run will do, and what it costs; make one with :meth:`calibrate` or :meth:`with_noise`.

    Attributes:
        unit: what one record is: "image", "patient", "row"; the guarantee names it.
        adjacency: which data sets are neighbours.
        delta: the delta of the guarantee.
        records: the public number of records.  Under add-remove the true number is secret and this is
            a public figure for it; it is never read from the data.
        sampling, clipping, steps, noise_multiplier: the mechanism of T steps.
        expected_batch_size: B, the public divisor of every noisy sum.
        preparation: other releases about the same records that come before training, such as DP-PCA.
        views: K, augmented views per record, averaged before the one clip.
        rows_per_user: None where a record is one unit.  Else records are rows, of which one unit has at most
            so many: each is drawn and clipped by itself, and the price is that of all of them.
        correlation: how the noise of the steps is correlated (:mod:`tacit.correlation`); None for independent
            noise.
        loss_report: release a noisy training loss per step, or None.
        score_report: release one noisy score of the model on records of the data set, or None.
        epsilon_budget: the plan is refused if it costs more.

    **Guarantee**

    * ``event`` is what training with this plan does: each step's joint release of gradient sum, count and
      loss is one Gaussian of multiplier ``noise_multiplier`` on the records that ``sampling`` draws.
    * ``epsilon`` is an upper bound on what ``event`` costs at ``delta`` under ``adjacency``.

    Raises:
        BudgetExceeded: it costs more than ``epsilon_budget``; the message names the steps that fit.
        PrivacyRefusal: the sampler or the score has no guarantee under this adjacency, or delta is 1/N or
            more and ``allow_large_delta`` is not set.

    >>> plan = Plan.calibrate(
    ...     epsilon=3.0, delta=1e-5, records=60_000, batch_size=600, epochs=10,
    ...     clipping=1.0, adjacency="add-remove", unit="image",
    ... )
    >>> plan.steps, plan.epsilon <= 3.0
    (1000, True)
    """

    unit: str
    adjacency: Adjacency
    delta: float
    records: int
    sampling: Sampling
    clipping: ClippingRule
    steps: int
    noise_multiplier: float
    expected_batch_size: float
    preparation: tuple[Event, ...] = ()
    views: int = 1
    rows_per_user: int | None = None
    correlation: Correlation | None = None
    loss_report: LossReport | None = None
    score_report: ScoreReport | None = None
    epsilon_budget: float | None = None
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        self._check_kinds()
        if not self.unit.strip():
            raise InvalidInput(
                "must say what one record is, such as 'image' or 'patient'; got nothing", argument="unit"
            )
        object.__setattr__(self, "adjacency", Adjacency.parse(self.adjacency))
        check_real("delta", self.delta, low=0.0, high=1.0, open_low=True, open_high=True)
        check_integer("records", self.records, low=1)
        check_integer("steps", self.steps, low=1)
        check_integer("views", self.views, low=1)
        if self.rows_per_user is not None:
            check_integer("rows_per_user", self.rows_per_user, low=1)
        check_real("noise_multiplier", self.noise_multiplier, low=0.0, open_low=True)
        check_real("expected_batch_size", self.expected_batch_size, low=0.0, open_low=True)
        self._check_parts()
        self._check_delta()
        _ = self.gradient_noise_multiplier, self.event  # either refuses what cannot be accounted for
        self._check_budget()

    def __getstate__(self) -> dict[str, object]:
        """The facts alone: prices are computed again, and hold what cannot be pickled."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def with_noise(
        cls,
        *,
        noise_multiplier: float,
        delta: float,
        records: int,
        clipping: ClippingRule | float,
        adjacency: Adjacency | str,
        unit: str,
        batch_size: int | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        sampling: Sampling | None = None,
        largest_batch: int | None = None,
        preparation: Sequence[Event] = (),
        views: int = 1,
        rows_per_user: int | None = None,
        correlation: Correlation | None = None,
        loss_report: LossReport | None = None,
        score_report: ScoreReport | None = None,
        epsilon_budget: float | None = None,
        allow_large_delta: bool = False,
    ) -> Plan:
        """A plan from a given noise multiplier.

        Args:
            batch_size: expected records per step; None, or ``records``, is full batch; of batches by date a
                public figure for how many there are on average.
            epochs, steps: exactly one of them.
            clipping: a rule, or a number C for :class:`FlatClipping`.
            sampling: None for Poisson sampling at ``batch_size / records`` (full batch if they are equal).
            largest_batch: cuts larger Poisson samples to this many records, kept at random.
        """
        records = check_integer("records", records, low=1)
        if batch_size is None and isinstance(sampling, ByDate):
            raise InvalidInput(
                "is missing",
                argument="batch_size",
                fix="Give a public figure for the records of a step's dates, on average.",
            )
        batch = _batch_size(batch_size, records)
        return cls(
            unit=unit,
            adjacency=Adjacency.parse(adjacency),
            delta=delta,
            records=records,
            sampling=_sampling(sampling, batch, records, largest_batch),
            clipping=clipping if isinstance(clipping, ClippingRule) else FlatClipping(clipping),
            steps=_steps(epochs, steps, batch, records),
            noise_multiplier=noise_multiplier,
            expected_batch_size=float(batch),
            preparation=_events(preparation),
            views=views,
            rows_per_user=rows_per_user,
            correlation=correlation,
            loss_report=loss_report,
            score_report=score_report,
            epsilon_budget=epsilon_budget,
            allow_large_delta=allow_large_delta,
        )

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float | None = None,
        delta: float,
        records: int,
        clipping: ClippingRule | float,
        adjacency: Adjacency | str,
        unit: str,
        batch_size: int | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        sampling: Sampling | None = None,
        largest_batch: int | None = None,
        preparation: Sequence[Event] = (),
        views: int = 1,
        rows_per_user: int | None = None,
        correlation: Correlation | None = None,
        loss_report: LossReport | None = None,
        score_report: ScoreReport | None = None,
        allow_large_delta: bool = False,
        advantage: float | None = None,
        true_positive_rate: float | None = None,
        false_positive_rate: float | None = None,
    ) -> Plan:
        """The plan with the least noise that stays within a budget; see :meth:`with_noise`.

        What ``preparation`` and ``score_report`` cost is taken from the same budget.  The noise multiplier is
        rounded up to six significant digits, for the plan to be the same on every processor.

        Args:
            epsilon: the budget is ``(epsilon, delta)``.
            advantage: or: by how much, at most, true positives of any test for a record may exceed its false
                positives, in (0, 1).
            true_positive_rate, false_positive_rate: or: the most true positives of any test with so many
                false ones.  Of such a risk ``delta`` is no part; it is where the promise is stated.

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
        if epsilon is not None or set(goal.values()) == {None}:
            goal |= {"epsilon": epsilon, "delta": delta}
        blank = cls.with_noise(
            noise_multiplier=_BLANK_NOISE,
            delta=delta,
            records=records,
            clipping=_without_count(clipping),
            adjacency=adjacency,
            unit=unit,
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            sampling=sampling,
            largest_batch=largest_batch,
            preparation=preparation,
            views=views,
            rows_per_user=rows_per_user,
            correlation=correlation,
            loss_report=loss_report,
            score_report=score_report,
            allow_large_delta=allow_large_delta,
        )
        noise = accounting.calibrate(
            blank.event_with, **goal, adjacency=blank.adjacency, method="best", digits=NOISE_DIGITS
        )
        warn_if_weak(epsilon)
        rule = clipping if isinstance(clipping, ClippingRule) else FlatClipping(clipping)
        return replace(blank, noise_multiplier=noise, clipping=rule, epsilon_budget=epsilon)

    def event_with(self, noise_multiplier: float) -> Event:
        """What the whole run would do to the data with another noise multiplier."""
        return self._event(noise_multiplier, self.steps)

    @cached_property
    def event(self) -> Event:
        """What the whole run does to the data."""
        return self.event_after(self.steps)

    def event_after(self, steps: int) -> Event:
        """What the first ``steps`` steps and the releases beside them do to the data."""
        check_integer("steps", steps, low=0, high=self.steps)
        if steps == 0:
            return Compose(self.beside)
        return self._event(self.noise_multiplier, steps)

    @property
    def beside(self) -> tuple[Event, ...]:
        """The releases beside the steps: preparation, then the score report."""
        return self.preparation if self.score_report is None else (*self.preparation, self.score_report.event)

    @property
    def charging_unit(self) -> int:
        """Steps that can only be paid for together: an epoch of shuffled batches, all with correlated noise
        or by date, else one."""
        if self.correlation is not None or isinstance(self.sampling, ByDate):
            return self.steps
        if isinstance(self.sampling, CyclicPoissonSampling):
            return self.sampling.cycle
        return self.sampling.steps_per_epoch if isinstance(self.sampling, ShuffledBatches) else 1

    def event_between(self, first: int, stop: int) -> Event:
        """What the steps ``first``, ..., ``stop - 1`` do; if ``first`` is 0, the releases beside them too.

        The parts of a run that is cut at multiples of :attr:`charging_unit` compose to its whole event.

        Raises:
            InvalidInput: ``first`` is no such multiple.

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
                f"first must be a multiple of {self.charging_unit}, the steps of an epoch, because the "
                f"batches of one epoch are paid for together; got {first}."
            )
        return self._of_unit(
            self.sampling.event(Gaussian(self.noise_multiplier), stop - first, self.adjacency)
        )

    def _training(self, noise_multiplier: float, steps: int) -> Event:
        """The first steps, on records."""
        independent = self.sampling.event(Gaussian(noise_multiplier), steps, self.adjacency)
        known = self.sampling.participations_in(steps)
        if self.correlation is None or known is None:
            return independent
        match self.sampling:
            case CyclicPoissonSampling(rate, cycle) if rate < 1.0:
                alone = self.correlation.event(noise_multiplier, steps, participations=1, separation=1)
                return CyclicPoissonSampled(rate, cycle, alone)
        times, apart = known
        return self.correlation.event(noise_multiplier, steps, participations=times, separation=apart)

    def _of_unit(self, training: Event) -> Event:
        """Steps on records, from the view of one unit."""
        several = self.rows_per_user is not None and self.rows_per_user > 1
        return GroupPrivacy(training, self.rows_per_user or 1) if several else training

    def _event(self, noise_multiplier: float, steps: int) -> Event:
        training = self._of_unit(self._training(noise_multiplier, steps))
        return Compose((*self.beside, training)) if self.beside else training

    @cached_property
    def curve(self) -> PrivacyCurve:
        """The privacy curve of the whole run, by the accountant that proves the least."""
        return accounting.account(self.event, adjacency=self.adjacency, method="best")

    @cached_property
    def epsilon(self) -> float:
        """An upper bound on what the whole run costs at ``delta``."""
        return self.curve.epsilon(self.delta)

    def epsilon_after(self, counts: Sequence[int]) -> list[float]:
        """What the first n steps and the releases beside them cost at ``delta``, for each n of ``counts``."""
        later = sorted({count for count in counts if count > 0})
        spent = {0: accounting.account(self.event_after(0), adjacency=self.adjacency).epsilon(self.delta)}
        if later:
            found = accounting.epsilon_schedule(
                self.event_after, later, delta=self.delta, adjacency=self.adjacency
            )
            spent |= dict(zip(later, found, strict=True))
        return [spent[count] for count in counts]

    @property
    def sampling_rate(self) -> float:
        """Expected part of the public number of records that takes part in a step."""
        return self.expected_batch_size / self.records

    @property
    def epochs(self) -> float:
        """Expected passes over the records."""
        return self.steps * self.sampling_rate

    @cached_property
    def steps_per_epoch(self) -> int:
        """Steps that make one expected pass over the records, rounded."""
        return max(1, round(1 / self.sampling_rate))

    @property
    def count_noise(self) -> float | None:
        """s_b, the noise on the centred count of adaptive clipping; None for other rules."""
        rule = self.clipping
        return rule.count_std(self.expected_batch_size) if isinstance(rule, AdaptiveClipping) else None

    @property
    def loss_noise(self) -> float | None:
        """s_l, the noise on the centred sum of scaled losses; None without a loss report."""
        return None if self.loss_report is None else self.loss_report.relative_noise * self.noise_multiplier

    @cached_property
    def gradient_noise_multiplier(self) -> float:
        """z_g: with the releases beside it, noise z_g C on the sum costs what z alone would."""
        if self.noise_multiplier < _LEAST_NOISE:
            raise InvalidInput(
                f"{self.noise_multiplier:g} is too small to compute with, and protects nothing",
                argument="noise_multiplier",
                fix="Take more; 1 is a usual value.",
            )
        precision = self.noise_multiplier**-2
        for noise in (self.count_noise, self.loss_noise):
            if noise is not None:
                precision -= (2 * noise) ** -2
        if precision <= 0 and self.count_noise is None:
            raise InvalidInput(
                f"{self.noise_multiplier:g} is too large to compute with",
                argument="noise_multiplier",
                fix="Take less.",
            )
        if precision <= 0:
            raise InvalidInput(
                f": the noise on the count of adaptive clipping, {self.count_noise:g}, is too small for the "
                f"noise multiplier {self.noise_multiplier:g}: the count alone would cost more than the whole "
                "step may",
                argument="count_noise",
                fix=f"Raise `count_noise` above {self.noise_multiplier / 2:g}, or take larger batches.",
            )
        return 1 / math.sqrt(precision)

    def check_records(self, records: int) -> None:
        """Refuse data with another number of ``records`` than this plan has a price for.

        Raises:
            InvalidInput: the number is public, and another one.
            PrivacyRefusal: it is secret, and more than truncated Poisson sampling was priced for.
        """
        if self.adjacency is not Adjacency.ADD_REMOVE and records != self.records:
            raise InvalidInput(
                f"the plan was made for {self.records} records and the data has {records}. Under "
                f"{self.adjacency} the number of records is public and must be exact. Make the plan with "
                f"records={records}, or pass the records that it was made for."
            )
        if isinstance(self.sampling, TruncatedPoissonSampling):
            self.sampling.check_records(records)

    def _repr_html_(self) -> str:
        loss, score = self.loss_report, self.score_report
        rows = [
            ("Epsilon", f"{round_up(self.epsilon)} at delta {self.delta:.15g}, for the whole run"),
            ("Protected", f"one {self.unit}, adjacency {self.adjacency}"),
            ("Steps", f"{self.steps:,} of {self.expected_batch_size:,.6g} expected records"),
            ("Epochs", f"{self.epochs:.4g} over {self.records:,} records, a public figure"),
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

    def _check_kinds(self) -> None:
        """Refuse parts of another kind, of which the checks of values would fail without a word."""
        for name, value, kind, words in (
            ("unit", self.unit, str, "a word for what one record is, such as 'image' or 'patient'"),
            ("allow_large_delta", self.allow_large_delta, bool, "True or False"),
            ("loss_report", self.loss_report, LossReport | None, "LossReport(bound=...), or None"),
            ("score_report", self.score_report, ScoreReport | None, "ScoreReport(noise=...), or None"),
        ):
            if not isinstance(value, kind):
                raise InvalidInput(f"{name} must be {words}; got {value!r}.")
        for event in self.preparation:
            check_event("each item of preparation", event)
        if self.epsilon_budget is not None:
            check_real("epsilon_budget", self.epsilon_budget, low=0.0, open_low=True)

    def _check_parts(self) -> None:
        """Only parts whose guarantee is known: a subclass could name another event than it performs."""
        for name, part, known in (
            ("sampling", self.sampling, _SAMPLINGS),
            ("clipping", self.clipping, _RULES),
        ):
            if type(part) not in known:
                names = ", ".join(kind.__name__ for kind in known)
                raise PrivacyRefusal(
                    f"must be one of {names}, whose guarantee is known", argument=name, value=part
                )

        self._check_correlation()
        if self.rows_per_user is not None and self.preparation:
            raise PrivacyRefusal(
                f"the price of a preparation is that of one record, and one {self.unit} has several rows. "
                "Leave rows_per_user out of the plan and draw people, with a preparation that counts each "
                "once; or leave the preparation out."
            )
        match self.sampling:
            case CyclicPoissonSampling(rate) if rate < 1.0 and self.rows_per_user is not None:
                raise PrivacyRefusal(
                    "rows of one person lie in several parts of a cycle, and samples of these have no proven "
                    "price for all rows together. Draw people (leave rows_per_user out of the plan), or take "
                    "Poisson samples of all rows."
                )
            case ByDate() if self.rows_per_user is not None:
                raise PrivacyRefusal(
                    "rows of one person by date are priced by how often the person takes part. Leave "
                    "rows_per_user out of the plan, and give the session DatedRecords(UserRecords(...), "
                    "...)."
                )
            case TruncatedPoissonSampling(_, records, largest):
                _check_truncation(records, largest, self.records, self.expected_batch_size)
        if self.score_report is not None and self.adjacency is not Adjacency.ADD_REMOVE:
            raise PrivacyRefusal(
                f": a score report has no guarantee under {self.adjacency}: there the number of records is "
                "taken to be public, and a record that becomes another may go over from training to testing, "
                "so that both parts change their size",
                argument="score_report",
                fix='Plan with `adjacency="add-remove"`, or test on records of another data set.',
            )

    def _check_correlation(self) -> None:
        """Refuse what has no proof with noise that is correlated in time."""
        if self.correlation is None:
            return
        kinds = (Banded, BandedInverse, BLT, Tree)
        if type(self.correlation) not in kinds:
            names = ", ".join(kind.__name__ for kind in kinds)
            raise PrivacyRefusal(
                f"must be one of {names}, whose guarantee is known",
                argument="correlation",
                value=self.correlation,
            )
        if self.sampling.participations_in(self.steps) is None:
            raise PrivacyRefusal(
                "noise that is correlated in time needs to know at which steps a record can take part, and "
                f"{self.sampling.describe()} leaves that open. Take sampling=CyclicPoissonSampling(rate, "
                "cycle), or ByDate(), or all records in each step."
            )
        sampled = isinstance(self.sampling, CyclicPoissonSampling) and self.sampling.sampling_rate < 1.0
        if sampled and not isinstance(self.correlation, Banded):
            raise PrivacyRefusal(
                "cyclic samples have a proven price with banded noise alone, of which a step reaches no "
                "further than a cycle. Take correlation=Banded(...), or all of each part, a rate of 1."
            )
        for name, given in (
            ("adaptive clipping", isinstance(self.clipping, AdaptiveClipping)),
            ("a loss report", self.loss_report is not None),
            ("rows_per_user in the plan", self.rows_per_user is not None),
        ):
            if given:
                raise PrivacyRefusal(
                    f"{name} has no proven price with noise that is correlated in time. Leave it out, or "
                    "take independent noise."
                )

    def _check_delta(self) -> None:
        if self.delta >= 1 / self.records and not self.allow_large_delta:
            raise PrivacyRefusal(
                f"= {self.delta:g} is not below 1/N = {1 / self.records:.3g} for N = {self.records} records: "
                f"a mechanism that publishes one {self.unit} in full would satisfy it",
                argument="delta",
                fix=f"Choose a smaller delta, such as {self.records**-1.1:.1g}, or say "
                "`allow_large_delta=True`.",
            )

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
            f": {self.steps} steps with noise multiplier {self.noise_multiplier:g} cost epsilon = "
            f"{self.epsilon:.4g} at delta = {self.delta:g}; the budget is {self.epsilon_budget:g}",
            argument="epsilon_budget",
            fix=f"The largest number of steps that fits is {fits}. Take fewer steps, more noise, or a larger "
            "budget.",
        )


_SAMPLINGS = (
    PoissonSampling, FullBatch, ShuffledBatches, TruncatedPoissonSampling, CyclicPoissonSampling, ByDate,
)  # fmt: skip
_RULES = (FlatClipping, PerLayerClipping, AutomaticClipping, AdaptiveClipping)
# Large enough that any rule accepts it; replaced by the calibrated value before the plan is used.
_BLANK_NOISE = 1.0
_LEAST_NOISE = 1e-100  # whose square is far from the least float


def _without_count(clipping: ClippingRule | float) -> ClippingRule | float:
    """The rule without what depends on the noise, for the plan that calibration starts from."""
    return FlatClipping(clipping.norm) if isinstance(clipping, AdaptiveClipping) else clipping


def _events(preparation: Sequence[Event]) -> tuple[Event, ...]:
    if isinstance(preparation, Event) or not isinstance(preparation, Iterable):
        raise InvalidInput(
            f"preparation must be a list of events, such as [tacit.Gaussian(8.0)]; got {preparation!r}."
        )
    return tuple(preparation)


def _batch_size(batch_size: int | None, records: int) -> int:
    if batch_size is None:
        return records
    batch = check_integer("batch_size", batch_size, low=1)
    if batch > records:
        raise InvalidInput(
            f"{batch} is larger than the data, {records} records",
            argument="batch_size",
            fix=f"Take at most {records}, which is full batch.",
        )
    return batch


def _check_truncation(priced: int, largest: int, records: int, expected: float) -> None:
    if priced != records:
        raise InvalidInput(f"the sampler was made for {priced} records, the plan for {records}.")
    if largest < expected - 0.5:
        raise InvalidInput(
            f"{largest} is smaller than the expected batch size, {expected:g}, so that most batches would be "
            "cut, and sums divided by more records than there ever are",
            argument="largest_batch",
            fix=f"Take at least {min(records, math.ceil(expected + 5 * math.sqrt(expected)))}, which is "
            "hardly ever exceeded, or a smaller `batch_size`.",
        )


def _sampling(
    sampling: Sampling | None, batch: int, records: int, largest_batch: int | None = None
) -> Sampling:
    if largest_batch is not None:
        if sampling is not None:
            raise InvalidInput(
                "cuts Poisson samples, and a sampler was given too",
                argument="largest_batch",
                fix="Leave out `sampling`, or give `sampling=TruncatedPoissonSampling(...)` alone.",
            )
        return TruncatedPoissonSampling(batch / records, records, largest_batch)
    if sampling is None:
        return FullBatch() if batch == records else PoissonSampling(batch / records)
    match sampling:
        case PoissonSampling(rate) | TruncatedPoissonSampling(rate):
            expected = rate * records
        case CyclicPoissonSampling():
            expected = sampling.expected_share * records
        case ByDate():
            expected = float(batch)
        case ShuffledBatches(size, planned):
            expected = float(size)
            if planned != records:
                raise InvalidInput(f"the sampler was made for {planned} records, the plan for {records}.")
        case _:
            expected = float(records)
    if abs(expected - batch) > 0.5:
        raise InvalidInput(
            f"the sampler draws {expected:g} records a step, batch_size says {batch}; make them agree."
        )
    return sampling


def _steps(epochs: float | None, steps: int | None, batch: int, records: int) -> int:
    if (epochs is None) == (steps is None):
        raise InvalidInput("give exactly one of epochs and steps.")
    if steps is not None:
        return check_integer("steps", steps, low=1)
    passes = check_real("epochs", epochs, low=0.0, open_low=True)
    return max(1, math.ceil(passes * records / batch - 1e-9))
