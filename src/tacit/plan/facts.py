"""The public facts of a private run, and checks that refuse runs without a guarantee.

All that the guarantee depends on is a field of :class:`Mechanism`.  Its constructor refuses a mechanism
without a proven bound, before any data is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.accounting.flatten import LEAST_NOISE
from tacit.clipping.rules import (
    AdaptiveClipping,
    AutomaticClipping,
    ClippingRule,
    FlatClipping,
    PerLayerClipping,
)
from tacit.correlation import BLT, Banded, BandedInverse, Correlation, Tree
from tacit.errors import InvalidInput, PrivacyRefusal, check_integer, check_real, check_small_delta
from tacit.events import Adjacency, Event, Gaussian, Repeat
from tacit.events.base import check_event
from tacit.sampling import (
    BallsInBinsSampling,
    ByDate,
    CyclicPoissonSampling,
    FullBatch,
    PoissonSampling,
    Sampling,
    ShuffledBatches,
    TruncatedPoissonSampling,
)

SAMPLERS = (
    PoissonSampling, FullBatch, ShuffledBatches, TruncatedPoissonSampling, BallsInBinsSampling,
    CyclicPoissonSampling, ByDate,
)  # fmt: skip
RULES = (FlatClipping, PerLayerClipping, AutomaticClipping, AdaptiveClipping)
CORRELATIONS = (Banded, BandedInverse, BLT, Tree)


@dataclass(frozen=True)
class LossReport:
    """A noisy mean of the training loss, released in every step. The plan's cost includes it.

    Each record's loss is clamped to ``[0, bound]``, then scaled to [-1/2, 1/2]. The sum over the batch gets
    noise of standard deviation s_l = ``relative_noise * z``, where z is the plan's noise multiplier.

    The report does not raise epsilon. Instead, the gradients get more noise: z_g in place of z, with ``z^-2 =
    z_g^-2 + (2 s_l)^-2 + ...`` (Andrew et al., 1905.03871, theorem 1). At the default, z_g is 0.5 % above z.

    >>> from tacit.plan import Plan
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
    """One noisy score of the model on held-out records. The plan's cost includes it.

    A record with score v in [0, 1] adds v to one sum and 1 - v to another. So one record changes the two sums
    by at most 1 (in the l2 norm). Both get Gaussian noise of standard deviation ``noise``, in records. The
    costs of the score and of training add up, although they use different records of the dataset.

    >>> ScoreReport(noise=20.0).event
    Gaussian(noise_multiplier=20.0)
    """

    noise: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", check_real("noise", self.noise, low=LEAST_NOISE))

    @property
    def event(self) -> Event:
        """The event to account for: the two noisy sums."""
        return Gaussian(self.noise)


@dataclass(frozen=True)
class GroupScoreReport:
    """A :class:`ScoreReport` that also releases figures by group, such as the error rate of each sex.

    ``by`` names columns, each of which divides the records into groups. The figures cost as much as the
    score. Together they are one release. One record changes it by at most :attr:`length` (in the l2 norm),
    and its noise has the standard deviation ``noise * length``.

    >>> GroupScoreReport(noise=20.0, by=("sex",)).event
    Repeat(event=Gaussian(noise_multiplier=20.0), count=2)
    """

    noise: float
    by: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", check_real("noise", self.noise, low=LEAST_NOISE))

    @property
    def length(self) -> float:
        """An upper bound on the l2 norm of what one record adds to the figures by group.

        For each column, a record adds at most 1 to counts and at most 1/2 to one other sum.
        """
        return math.sqrt(1.25 * len(self.by)) * (1.0 + 1e-9)

    @property
    def event(self) -> Event:
        """The event to account for: the two noisy sums of the score, then the figures by group."""
        return Repeat(Gaussian(self.noise), 2)


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """The facts of a :class:`~tacit.plan.Plan`, without its cost; ``Plan`` documents each attribute."""

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
    score_report: ScoreReport | GroupScoreReport | None = None
    epsilon_budget: float | None = None
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        self._check_kinds()
        if not self.unit.strip():
            raise InvalidInput(
                "must name one record, such as 'image' or 'patient'; it is empty", argument="unit"
            )
        object.__setattr__(self, "adjacency", Adjacency.parse(self.adjacency))
        check_real("delta", self.delta, low=0.0, high=1.0, open_low=True, open_high=True)
        for name in ("records", "steps", "views", "rows_per_user"):
            if name != "rows_per_user" or self.rows_per_user is not None:
                check_integer(name, getattr(self, name), low=1)
        for name in ("noise_multiplier", "expected_batch_size", "epsilon_budget"):
            if name != "epsilon_budget" or self.epsilon_budget is not None:
                check_real(name, getattr(self, name), low=0.0, open_low=True)
        self._check_parts()
        self._check_batches()
        self._check_users()
        self._check_correlation()
        self._check_score()
        self._check_delta()

    def _check_kinds(self) -> None:
        for name, value, kind, words in (
            ("unit", self.unit, str, "a word for one record, such as 'image' or 'patient'"),
            ("allow_large_delta", self.allow_large_delta, bool, "True or False"),
            ("loss_report", self.loss_report, LossReport | None, "LossReport(bound=...), or None"),
            (
                "score_report",
                self.score_report,
                ScoreReport | GroupScoreReport | None,
                "ScoreReport(noise=...), or None",
            ),
        ):
            if not isinstance(value, kind):
                raise InvalidInput(f"must be {words}", argument=name, value=value)
        for event in self.preparation:
            check_event("each item of preparation", event)

    def _check_parts(self) -> None:
        """Refuse parts of unknown classes, because a subclass could perform something else than its event."""
        for name, part, classes in (
            ("sampling", self.sampling, SAMPLERS),
            ("clipping", self.clipping, RULES),
            ("correlation", self.correlation, (*CORRELATIONS, type(None))),
        ):
            if type(part) not in classes:
                names = ", ".join(kind.__name__ for kind in classes if kind is not type(None))
                raise PrivacyRefusal(
                    f"must be one of {names}",
                    argument=name,
                    value=part,
                    why="Others have no proven guarantee.",
                )

    def _check_batches(self) -> None:
        """Check that the sampler fits ``records`` and draws ``expected_batch_size`` of them."""
        planned = getattr(self.sampling, "records", self.records)
        if planned != self.records:
            raise InvalidInput(
                f"the plan has {self.records} records and its sampler {planned}. Give both the same number."
            )
        expected, size = self.sampling.expected_batch(self.records), self.expected_batch_size
        if expected is not None and abs(expected - size) > 0.5:
            raise InvalidInput(
                f"is {size:g}, but `sampling` draws {expected:g} of {self.records} records in a step on "
                "average",
                argument="batch_size",
                fix="Set `batch_size` to that mean.",
            )
        if isinstance(self.sampling, BallsInBinsSampling):
            self.sampling.check_steps(self.steps)
        if isinstance(self.sampling, TruncatedPoissonSampling) and self.sampling.largest_batch < size - 0.5:
            raise InvalidInput(
                f"{self.sampling.largest_batch} is smaller than the expected batch size, {size:g}",
                argument="largest_batch",
                why="It would truncate most batches.",
                fix=f"Take at least {min(self.records, math.ceil(size + 5 * math.sqrt(size)))}, which "
                "batches hardly ever exceed, or a smaller `batch_size`.",
            )

    def _check_users(self) -> None:
        if self.rows_per_user is None:
            return
        if self.preparation:
            raise PrivacyRefusal(
                f"the cost of preparation is known only if each {self.unit} has one row. Remove preparation; "
                "or remove rows_per_user, sample people, and prepare with one row of each person."
            )
        if isinstance(self.sampling, CyclicPoissonSampling) and self.sampling.sampling_rate < 1.0:
            raise PrivacyRefusal(
                "rows_per_user has no proven bound with cyclic sampling, because one person's rows are in "
                "several parts of a cycle. Sample people (remove rows_per_user), or use Poisson sampling of "
                "all rows."
            )
        if isinstance(self.sampling, BallsInBinsSampling):
            raise PrivacyRefusal(
                'rows_per_user has no tight bound with sampling="epochs", because one person\'s rows are in '
                "several batches of an epoch. Sample people (remove rows_per_user), or use Poisson sampling "
                "of all rows."
            )
        if isinstance(self.sampling, ByDate):
            raise PrivacyRefusal(
                "rows_per_user does not apply to batches by date, whose cost depends on how often a person "
                "participates. Remove rows_per_user, and train on DatedRecords(UserRecords(...), ...)."
            )

    def _check_correlation(self) -> None:
        if self.correlation is None:
            return
        if self.sampling.participations_in(self.steps) is None:
            raise PrivacyRefusal(
                f"correlated noise has no proven bound with {self.sampling.describe()}, because it does not "
                "limit in which steps a record may participate. Use sampling=CyclicPoissonSampling(rate, "
                "cycle), ByDate(), or all records in each step."
            )
        sampled = isinstance(self.sampling, CyclicPoissonSampling) and self.sampling.sampling_rate < 1.0
        if sampled and not isinstance(self.correlation, Banded):
            raise PrivacyRefusal(
                "cyclic sampling has a proven bound only with banded noise, whose correlation ends within a "
                "cycle. Use correlation=Banded(...), or a sampling rate of 1."
            )
        for name, present in (
            ("adaptive clipping", isinstance(self.clipping, AdaptiveClipping)),
            ("a loss report", self.loss_report is not None),
            ("rows_per_user in the plan", self.rows_per_user is not None),
        ):
            if present:
                raise PrivacyRefusal(
                    f"{name} has no proven bound with correlated noise. Remove it, or use independent noise."
                )

    def _check_score(self) -> None:
        if self.score_report is not None and self.adjacency is not Adjacency.ADD_REMOVE:
            raise PrivacyRefusal(
                f"has no guarantee under {self.adjacency}",
                argument="score_report",
                why="A replaced record may move from the training to the test split, and change both "
                "sizes, which are public under this adjacency.",
                fix='Use `adjacency="add-remove"`, or test on another dataset.',
            )

    def _check_delta(self) -> None:
        if not self.allow_large_delta:
            check_small_delta(self.delta, self.records, self.unit)
