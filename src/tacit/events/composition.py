"""Events that consist of other events: compositions, group privacy and private selection."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.errors import InvalidInput, check_real
from tacit.events.base import Event


@dataclass(frozen=True)
class Repeat(Event):
    """``event``, performed ``count`` times with fresh randomness, possibly adaptively.

    >>> from tacit.events import Gaussian
    >>> from tacit.accounting import account
    >>> round(account(Repeat(Gaussian(10.0), 2), adjacency="add-remove").epsilon(1e-5), 3)
    0.497
    """

    event: Event
    count: int


@dataclass(frozen=True)
class Compose(Event):
    """All of ``events``, one after the other.

    The query of each event may depend on the earlier answers.  The parameters of the events are fixed
    beforehand.  ``Compose(())`` releases nothing.

    >>> from tacit.events import Gaussian
    >>> from tacit.accounting import account
    >>> both = Compose((Gaussian(10.0), Gaussian(10.0)))
    >>> round(account(both, adjacency="add-remove").epsilon(1e-5), 3)
    0.497
    """

    events: tuple[Event, ...]


@dataclass(frozen=True)
class GroupPrivacy(Event):
    """``event``, accounted for neighbours that differ in a group of ``size`` records.

    Under add-remove and zero-out, one data set has all records of the group and the other has none.  Under
    replace-one, all of them are exchanged.  Every record of the group is sampled independently.

    >>> from tacit.events import Gaussian
    >>> GroupPrivacy(Gaussian(8.0), size=4)
    GroupPrivacy(event=Gaussian(noise_multiplier=8.0), size=4)
    """

    event: Event
    size: int


@dataclass(frozen=True)
class PrivateSelection(Event):
    """The best outcome of a random, secret number of runs of ``event``.

    Only the best outcome is released (Papernot & Steinke 2022, 2110.03620).  Each selection draws its number
    of runs.  If ``distribution`` is ``poisson``, the number has the mean ``mean`` > 0, and 0 runs release a
    fixed outcome.  If it is ``negative-binomial``, the number is conditioned on at least 1 run, with the
    conditional mean ``mean`` > 1 and ``shape`` > -1.  Shape 1 is the geometric distribution, and shape 0 the
    logarithmic one.

    >>> from tacit.events import Gaussian
    >>> PrivateSelection(Gaussian(8.0), distribution="poisson", mean=10)
    PrivateSelection(event=Gaussian(noise_multiplier=8.0), distribution='poisson', mean=10.0, shape=None)
    """

    event: Event
    distribution: str
    mean: float
    shape: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        poisson = self.distribution == "poisson"
        mean = check_real("mean", self.mean, low=0.0 if poisson else 1.0, open_low=True)
        object.__setattr__(self, "mean", mean)
        if poisson and self.shape is not None:
            raise InvalidInput(
                f"distribution 'poisson' has no shape; got shape {self.shape!r}. Leave it out."
            )
        if not poisson:
            shape = check_real("shape", self.shape, low=-1.0, open_low=True)
            object.__setattr__(self, "shape", shape)
