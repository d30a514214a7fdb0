"""Events that are mechanisms on a sample of the records.

The sample stays secret.  ``event`` is performed on the sampled records, and its Delta bounds one record's
contribution to the sum over the sample.
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit.errors import InvalidInput, UnsupportedEvent, check_integer
from tacit.events.base import Event
from tacit.events.mechanisms import MatrixFactorization


@dataclass(frozen=True)
class PoissonSampled(Event):
    """``event`` on a Poisson sample.

    Every record takes part with probability ``sampling_rate``, independently of the other records and steps.

    >>> from tacit.events import Gaussian, Repeat
    >>> from tacit.accounting import account
    >>> step = PoissonSampled(0.01, Gaussian(1.0))
    >>> round(account(Repeat(step, 100), adjacency="add-remove").epsilon(1e-5), 3)
    0.718
    """

    sampling_rate: float
    event: Event


@dataclass(frozen=True)
class TruncatedPoissonSampled(Event):
    """``event`` on a Poisson sample of ``records`` at ``sampling_rate``, cut to ``largest_batch``.

    A larger sample is replaced by a uniformly random subset of ``largest_batch`` of its records (Chua et al.
    2024, 2411.04205).  ``records`` is the public number of records.  Under add-remove it is the number in the
    larger of two neighbours.

    >>> from tacit.events import Gaussian, Repeat
    >>> from tacit.accounting import account
    >>> step = TruncatedPoissonSampled(0.01, 10_000, 130, Gaussian(1.0))
    >>> round(account(Repeat(step, 100), adjacency="zero-out").epsilon(1e-5), 3)
    2.09
    """

    sampling_rate: float
    records: int
    largest_batch: int
    event: Event


@dataclass(frozen=True)
class WithoutReplacement(Event):
    """``event`` on a uniformly random subset of exactly ``batch_size`` of the ``records`` records.

    Every step draws a new subset.  Both numbers are public.

    >>> from tacit.events import Gaussian
    >>> WithoutReplacement(records=1000, batch_size=10, event=Gaussian(1.0))
    WithoutReplacement(records=1000, batch_size=10, event=Gaussian(noise_multiplier=1.0))
    """

    records: int
    batch_size: int
    event: Event

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("batch_size", self.batch_size, low=1, high=self.records)


@dataclass(frozen=True)
class WithReplacement(Event):
    """``event`` on ``batch_size`` independent uniform draws from the ``records`` records.

    A record that is drawn several times contributes several times Delta.

    >>> from tacit.events import Gaussian
    >>> WithReplacement(records=1000, batch_size=10, event=Gaussian(1.0)).batch_size
    10
    """

    records: int
    batch_size: int
    event: Event


@dataclass(frozen=True)
class BallsInBins(Event):
    """One epoch of ``bins`` steps, in which each record takes part in one uniformly random step.

    Every record is put into one of the bins, independently of the others, and step i is ``event`` on bin i
    (Chua et al. 2024, 2412.16802).  With ``passes`` > 1 the run goes through the same bins that many times.
    If every epoch draws new bins, use ``Repeat(BallsInBins(bins, event), epochs)``.

    This is random allocation of one step out of ``bins``. For k random steps out of t, account for
    ``Repeat(BallsInBins(t // k, event), k)``, which costs no less (Feldman & Shenfeld 2025, 2502.08202): k
    random parts of t // k steps, each with one random step, give k random steps, and the parts are released
    too. Method ``pld`` needs a noise of at least 0.3. Below that, ``rdp`` has a bound.
    """

    bins: int
    event: Event
    passes: int = 1


@dataclass(frozen=True)
class Partitioned(Event):
    """One epoch of ``batches`` steps of ``event`` on disjoint batches that do not depend on other records.

    The batch of a record depends only on a name that neighbours share: its row number in a file in which
    rows are blanked but never removed, or a hash of its public identifier.  Under every adjacency, one
    record's presence or value therefore changes only one batch.

    >>> from tacit.events import Gaussian
    >>> from tacit.accounting import account
    >>> epoch = Partitioned(10, Gaussian(2.0))  # a record is in one of ten batches, and pays for one
    >>> round(account(epoch, adjacency="zero-out").epsilon(1e-5), 3)
    1.993
    """

    batches: int
    event: Event


@dataclass(frozen=True)
class Shuffled(Event):
    """One epoch of ``batches`` steps of ``event`` on disjoint batches of a fixed size, cut from an ordering.

    The ordering, random or not, has a public number of records. There is no guarantee under add-remove,
    because one more record would move the others between batches. A random, secret ordering counts as no
    amplification, because no tight bound is proven.

    >>> from tacit.events import Gaussian
    >>> from tacit.accounting import account
    >>> epoch = Shuffled(10, Gaussian(2.0))
    >>> round(account(epoch, adjacency="replace-one").epsilon(1e-5), 3)
    4.377
    """

    batches: int
    event: Event


@dataclass(frozen=True)
class CyclicPoissonSampled(Event):
    """Noise correlated over at most ``cycle`` steps, on Poisson samples of one part of the records at a time.

    Every record belongs to one of ``cycle`` parts, chosen by its public name (see :class:`Partitioned`).
    Step i samples each record of part i modulo ``cycle`` with probability ``sampling_rate`` (Choquette-Choo
    et al. 2023, 2306.08153, Algorithm 2).  ``event`` is the ``MatrixFactorization`` that is performed, with
    at most ``cycle`` coefficients.  Its fields ``participations`` and ``separation`` stay 1, as this event
    already determines when a record takes part.

    >>> from tacit.accounting import account
    >>> noise = MatrixFactorization(noise_multiplier=2.0, steps=100, coefficients=(1.0, 0.5))
    >>> run = CyclicPoissonSampled(0.1, 4, noise)
    >>> 0 < account(run, adjacency="add-remove").epsilon(1e-5) < 3
    True
    """

    sampling_rate: float
    cycle: int
    event: Event

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.event, MatrixFactorization):
            raise UnsupportedEvent(
                f"CyclicPoissonSampled needs a MatrixFactorization; got {self.event!r}. For independent "
                "noise, use coefficients=(1.0,)."
            )
        if (self.event.participations, self.event.separation) != (1, 1):
            raise InvalidInput(
                "participations and separation must be 1 in CyclicPoissonSampled, whose sampling "
                f"determines them; got {self.event.participations} and {self.event.separation}."
            )
        if len(self.event.coefficients) > self.cycle:
            raise InvalidInput(
                f"coefficients must be at most one per step of the cycle ({self.cycle}); got "
                f"{len(self.event.coefficients)}. With more, the noise of one participation would reach "
                "into the next."
            )
