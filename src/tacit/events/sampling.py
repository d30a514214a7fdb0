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
    """``event`` on a Poisson sample of the records.

    Every record is sampled with probability ``sampling_rate``, independently of the other records and steps.

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
    """``event`` on a Poisson sample with at most ``largest_batch`` records.

    Each of ``records`` records is sampled with probability ``sampling_rate``. If more than ``largest_batch``
    are sampled, a uniformly random subset of that size is used (Chua et al. 2024, 2411.04205). ``records`` is
    public. Under add-remove, it is the size of the larger of two neighbouring datasets.

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
    """``event`` on a uniformly random batch of exactly ``batch_size`` different records out of ``records``.

    Every step draws a new batch.  Both numbers are public.

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
    """``event`` on a batch of ``batch_size`` records, each drawn uniformly from all ``records`` records.

    The draws are independent, so a record may be drawn several times.  It then counts several times in the
    sum.

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

    The step of a record does not depend on other records (Chua et al. 2024, 2412.16802). Each step performs
    ``event`` on its records. With ``passes`` above 1, the run repeats the epoch that many times, with the
    same records in each step. If each epoch assigns the records anew, use ``Repeat(BallsInBins(bins, event),
    epochs)``.

    If each record takes part in k random steps out of t (random allocation), use ``Repeat(BallsInBins(t // k,
    event), k)``, which costs at least as much (Feldman & Shenfeld 2025, 2502.08202).

    The accountant ``pld`` needs a noise multiplier of at least 0.3. Below that, use ``rdp``.
    """

    bins: int
    event: Event
    passes: int = 1


@dataclass(frozen=True)
class Partitioned(Event):
    """One epoch of ``batches`` steps of ``event``, each on a separate batch of records.

    The batch of a record depends only on a public name: a hash of its public identifier, or its row number in
    a file in which rows may be blanked but are never removed. So under every adjacency, adding, removing or
    changing one record changes only one batch.

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
    """One epoch of ``batches`` steps of ``event``, on consecutive batches of a fixed size.

    The records are in any order, shuffled or not, and their number is public. Shuffling does not lower the
    cost, because no tight bound is proven. There is no guarantee under add-remove, because one more record
    would move the others between batches.

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
    """A run with correlated noise, in which each step samples from one part of the records.

    The records are divided into ``cycle`` parts. The part of a record depends only on its public name, as in
    :class:`Partitioned`. Step i samples each record of part i modulo ``cycle`` with probability
    ``sampling_rate`` (Choquette-Choo et al. 2023, 2306.08153, Algorithm 2).

    ``event`` is the ``MatrixFactorization`` of the noise, with at most ``cycle`` coefficients. Leave its
    ``participations`` and ``separation`` at 1, because the cycle determines when a record takes part.

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
                "noise, use one with coefficients=(1.0,)."
            )
        if (self.event.participations, self.event.separation) != (1, 1):
            raise InvalidInput(
                "participations and separation must be 1 inside CyclicPoissonSampled, which sets them "
                f"itself; got {self.event.participations} and {self.event.separation}."
            )
        if len(self.event.coefficients) > self.cycle:
            raise InvalidInput(
                f"coefficients must have at most one entry per step of the cycle ({self.cycle}); got "
                f"{len(self.event.coefficients)}. With more, noise would be correlated between two uses of "
                "the same record."
            )
