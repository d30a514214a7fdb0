"""The privacy curve of an event, and the accountants by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TypeVar, final

import numpy as np

from tacit.accounting import pld
from tacit.accounting.closed_form import gaussian_price, pure_claim
from tacit.accounting.flatten import Steps, check_noise, flatten
from tacit.accounting.gaussian_dp import GaussianDP, gaussian_bound
from tacit.accounting.price import Array, BoundedPrice, ErrorBudget, GroupPrice, LeastPrice, Price, SumPrice
from tacit.accounting.renyi import moments_price, rdp_price, zcdp_price
from tacit.accounting.theorems import BasicPrice, OptimalPrice, StrongPrice, theorem_price
from tacit.accounting.tradeoff import false_negative_rates, largest_loss
from tacit.errors import (
    InvalidInput,
    UnsupportedEvent,
    check_in,
    check_integer,
    check_probability,
    check_real,
)
from tacit.events import Adjacency, Compose, Event, GroupPrivacy, PrivateSelection

# The accountants by name, and the cost of an event by one of them.

METHODS: MappingProxyType[str, Callable[[Steps, Adjacency], Price]] = MappingProxyType(
    {
        "pld": pld.price,
        "rdp": rdp_price,
        "moments": moments_price,
        "gaussian": gaussian_price,
        "zcdp": zcdp_price,
        "optimal": partial(theorem_price, OptimalPrice),
        "strong": partial(theorem_price, StrongPrice),
        "basic": partial(theorem_price, BasicPrice),
    }
)
"""The accountants by name.  Each one computes the cost of a flattened event under an adjacency."""


BEST = "best"
"""The method that returns the least of all proven bounds."""
_CANDIDATES = ("pld", "rdp", "optimal")  # one of these has the least bound; no other accountant proves less
_OF_CLAIMS = ("pld", "optimal", "strong", "basic")
_TOLERANCE = 1e-6  # of epsilon: methods closer than this count as equal, and the first one is used


def price_of(event: Event, adjacency: Adjacency, method: str) -> Price:
    """Compute the cost of ``event`` by the accountant ``method``."""
    if method == "gdp":
        raise InvalidInput(
            "method 'gdp' was removed, because its epsilon can be too small. Use method 'best'."
        )
    check_in("method", method, (*METHODS, BEST))
    steps = flatten(event)
    check_noise(steps, method)
    if not steps:  # nothing is released: exactly 0, whatever the method
        return gaussian_price(steps, adjacency)
    return _by(method, steps, adjacency) if method != BEST else _best(steps, adjacency)


def _by(method: str, steps: Steps, adjacency: Adjacency) -> Price:
    """Compute the cost of ``steps`` by one accountant; for pure claims, also by their exact sum."""
    price = METHODS[method](steps, adjacency)
    claim = pure_claim(steps, adjacency) if method in _OF_CLAIMS else None
    return price if claim is None else BoundedPrice(price, *claim)


def _best(steps: Steps, adjacency: Adjacency) -> Price:
    """Return the least of all proven bounds.  If there is none, raise the first accountant's refusal."""
    prices: dict[str, Price] = {}
    refusals: list[UnsupportedEvent] = []
    selects = any(isinstance(base, PrivateSelection) for base, _ in steps)  # pld's curve ends at about 1e-14
    for name in _CANDIDATES:
        if name == "optimal" and "pld" in prices and not selects:
            break  # "pld" composes the same pairs, to four digits at least
        try:
            prices[name] = _by(name, steps, adjacency)
        except UnsupportedEvent as refusal:
            refusals.append(refusal)
    if not prices:
        raise refusals[0]
    return LeastPrice(prices, alike=_TOLERANCE)


# The cost of an event as a privacy curve, from delta to epsilon and back.  One long class, mostly examples.
#
# The curve also bounds what an attacker gains, with no further assumption (Dong, Roth & Su 2019, 1905.02383;
# Kairouz, Oh & Viswanath 2015, 1311.0776): see :mod:`tacit.accounting.tradeoff`.

Numbers = TypeVar("Numbers", float, Array)  # one number, or an array of any shape

_LONGEST = 200  # characters of an event that ``repr`` shows
_MOST_RECORDS = 10**6


@final
@dataclass(frozen=True)
class PrivacyCurve:
    """The privacy cost of an event: the (epsilon, delta) pairs that one accountant proves for it.

    :func:`account` computes the curve from ``event``, ``method`` (the accountant) and ``adjacency``.
    ``records`` is the number of records that the curve protects together: 1, or the size of a :meth:`group`.

    The methods accept a number or an array, and return the same shape.

    **Guarantee**

    * ``epsilon(delta)`` is an upper bound: the event is (epsilon(delta), delta)-DP under ``adjacency``.
    * ``delta(epsilon)`` is an upper bound: the event is (epsilon, delta(epsilon))-DP.
    * ``epsilon_bounds(delta)`` encloses the exact epsilon. This is the smallest epsilon that holds for the
      event's worst-case pair of output distributions. The upper bound is ``epsilon(delta)``.
      ``delta_bounds(epsilon)`` does the same for delta.
    * No value is negative or NaN. Epsilon is infinite only if no finite value is known.
    * No membership test (a guess whether a record took part) does better than ``false_negative_rate``,
      ``advantage``, ``success`` and ``posterior`` allow.

    >>> from tacit.accounting import account
    >>> from tacit.events import Gaussian
    >>> curve = account(Gaussian(1.0), adjacency="add-remove")
    >>> round(curve.epsilon(1e-5), 6), round(curve.delta(1.0), 6)
    (4.377178, 0.126937)
    >>> curve
    PrivacyCurve(Gaussian(noise_multiplier=1.0), add-remove, by 'pld')
    """

    method: str
    adjacency: Adjacency
    event: Event
    _price: Price = field(repr=False, compare=False)
    records: int = 1

    def __repr__(self) -> str:  # shows no epsilon, as computing one may take seconds
        event = repr(self.event)
        event = event if len(event) <= _LONGEST else f"{event[: _LONGEST - 3]}..."
        group = "" if self.records == 1 else f", for {self.records} records together"
        return f"PrivacyCurve({event}, {self.adjacency}, by {self.method!r}{group})"

    # --- the curve ----------------------------------------------------------------------------------------

    def epsilon(self, delta: Numbers) -> Numbers:
        """Return an upper bound on epsilon at ``delta``, a number in (0, 1).

        A ``delta`` of 0 is also allowed if a finite epsilon is known for it, as with Laplace noise.

        Raises:
            InvalidInput: for any other delta.

        >>> from tacit.accounting import account
        >>> from tacit.events import Compose, Laplace
        >>> account(Compose((Laplace(1.0), Laplace(2.0))), adjacency="add-remove").epsilon(0.0)
        1.5
        """
        pure = self._price.pure_epsilon

        def check(value: object) -> float:
            return check_real("delta", value, low=0.0, high=1.0, open_low=pure is None, open_high=True)

        def epsilons(deltas: Array) -> Array:
            result = np.full(deltas.shape, pure or 0.0)
            some = deltas > 0.0
            result[some] = self._price.epsilons(deltas[some])
            return result

        return _answered(self._price.epsilon, epsilons, check, delta)

    def delta(self, epsilon: Numbers) -> Numbers:
        """Return an upper bound on delta, in [0, 1], at ``epsilon``.

        Raises:
            InvalidInput: if an epsilon is negative or not finite.
        """
        return _answered(self._price.delta, self._price.deltas, _check_epsilon, epsilon, most=1.0)

    def epsilon_bounds(self, delta: Numbers) -> tuple[Numbers, Numbers]:
        """Return a lower and an upper bound on the exact epsilon at ``delta``.

        The exact epsilon is the smallest one that holds for the event's worst-case pair of output
        distributions. The lower bound is 0.0 if the accountant has none.

        Raises:
            InvalidInput: if a delta is not in (0, 1).
        """
        return _both(self._price.epsilon_bounds, _check_delta, delta)

    def delta_bounds(self, epsilon: Numbers) -> tuple[Numbers, Numbers]:
        """Return a lower and an upper bound on the exact delta at ``epsilon``.

        The exact delta is the smallest one that holds for the event's worst-case pair of output
        distributions. The lower bound is 0.0 if the accountant has none.

        Raises:
            InvalidInput: if an epsilon is negative or not finite.

        >>> from tacit.accounting import account
        >>> from tacit.events import Gaussian
        >>> [round(d, 6) for d in account(Gaussian(1.0), adjacency="add-remove").delta_bounds(1.0)]
        [0.126937, 0.126937]
        """
        return _both(self._price.delta_bounds, _check_epsilon, epsilon, most=1.0)

    def error_budget(self, delta: float) -> ErrorBudget:
        """Return the bounds of :meth:`epsilon_bounds` at ``delta``, and the numerical errors between them.

        ``parts`` maps each error, such as rounding, to the most that it adds to the distance of the bounds.
        It is empty if the accountant does not know its errors.

        Raises:
            InvalidInput: if delta is not in (0, 1).
        """
        return self._price.error_budget(_check_delta(delta))

    def by_direction(self, delta: float) -> Mapping[str, float]:
        """Return two upper bounds on epsilon: for removing a record (``remove``) and adding one (``add``).

        The larger one is the epsilon of the event. The result is empty if the two are equal, or if the
        accountant does not distinguish them.

        Raises:
            InvalidInput: if delta is not in (0, 1).
        """
        return self._price.by_direction(_check_delta(delta))

    # --- what an attacker gains ---------------------------------------------------------------------------

    def false_negative_rate(self, false_positive_rate: Numbers) -> Numbers:
        """Return the smallest false-negative rate of any membership test with this ``false_positive_rate``.

        The test guesses whether a record took part. If the result is f, the test detects at most the share 1
        - f of the records that did. Perfect privacy means f = 1 - ``false_positive_rate``, the largest
        possible value. As a function of the false-positive rate, f is convex and decreasing (the trade-off
        function).

        The result is a lower bound, within about 1e-6 of the exact value for the deltas of this curve.

        Raises:
            InvalidInput: if a rate is not in [0, 1].

        >>> from tacit.accounting import account
        >>> from tacit.events import Gaussian
        >>> round(account(Gaussian(1.0), adjacency="add-remove").false_negative_rate(0.05), 5)  # Phi(0.6449)
        0.74049
        """

        def epsilon(delta: float) -> float:
            return float(self._price.epsilons(np.array([delta]))[0])

        def least(rates: Array) -> Array:
            return false_negative_rates(lambda at: _within(self._price.deltas(at), 1.0), epsilon, rates)

        return _answered(
            lambda rate: float(least(np.array([rate]))[0]),
            least,
            partial(check_probability, "false_positive_rate"),
            false_positive_rate,
        )

    def gaussian_dp(self) -> GaussianDP:
        """Return mu, one number for the whole curve, and ``regret``, the error of this summary.

        mu is the smallest parameter of Gaussian DP (see :class:`GaussianDP`) that follows from the curve. It
        covers all membership tests whose error rates are 1e-10 or more (Gomez et al. 2025, 2503.10945).

        >>> from tacit.accounting import account
        >>> from tacit.events import Gaussian, PoissonSampled, Repeat
        >>> event = Repeat(PoissonSampled(0.328, Gaussian(9.4)), 2000)
        >>> bound = account(event, adjacency="add-remove").gaussian_dp()
        >>> round(bound.mu, 3), round(bound.regret, 3)
        (1.568, 0.001)
        """
        return gaussian_bound(self.delta, self.false_negative_rate)

    def advantage(self) -> float:
        """Return the largest TPR - FPR (true minus false-positive rate) of any membership test.

        The test guesses whether a record took part. If the record did so with probability 1/2, the guess is
        right with probability at most (1 + advantage) / 2. The advantage is delta at epsilon 0.

        >>> from tacit.accounting import account
        >>> from tacit.events import Gaussian
        >>> round(account(Gaussian(1.0), adjacency="add-remove").advantage(), 6)  # 2 Phi(1/2) - 1
        0.382925
        """
        return self.delta(0.0)

    def success(self, prior: Numbers) -> Numbers:
        """Return the largest probability with which an attacker guesses correctly whether a record took part.

        With q = min(p, 1 - p), the result is 1 - q + q delta(log((1 - q) / q)).

        Args:
            prior: p in [0, 1], the probability that the record took part, before the release.

        Raises:
            InvalidInput: if a prior is not in [0, 1].

        >>> from tacit.accounting import account
        >>> from tacit.events import Gaussian
        >>> round(account(Gaussian(1.0), adjacency="add-remove").success(0.5), 6)  # Phi(1/2)
        0.691462
        """
        p = _numbers(partial(check_probability, "prior"), prior)
        rarer = np.minimum(p, 1.0 - p)
        epsilons = np.zeros(p.shape)
        some = rarer > 0.0
        epsilons[some] = np.log1p(-rarer[some]) - np.log(rarer[some])
        epsilons *= 1.0 - 1e-15  # delta decreases, so this rounds up
        # delta(700) replaces delta at larger epsilons; the difference is at most e^-700
        deltas = self.delta(np.minimum(epsilons, 700.0))
        chance = (1.0 - rarer + rarer * np.where(some, deltas, 0.0)) * (1.0 + 4e-16)
        return _shaped(chance, prior, most=1.0)

    def posterior(self, prior: Numbers, *, delta: float) -> Numbers:
        """Return an upper bound on an attacker's probability that a record took part, after the release.

        Args:
            prior: this probability before the release, in [0, 1].
            delta: the probability that the bound fails, in (0, 1), such as 1e-6.

        Raises:
            InvalidInput: if a prior is not in [0, 1] or delta is not in (0, 1).

        >>> from tacit.accounting import account
        >>> from tacit.events import Laplace
        >>> round(account(Laplace(1.0), adjacency="add-remove").posterior(0.5, delta=1e-9), 3)
        0.731
        """
        p = _numbers(partial(check_probability, "prior"), prior)
        loss = largest_loss(self._price.epsilons, _check_delta(delta))
        with np.errstate(over="ignore"):  # p / (p + (1 - p) e^-L)
            chance = np.where(p > 0.0, p / (p + (1.0 - p) * math.exp(-loss) + (p == 0.0)), 0.0)
        return _shaped(chance * (1.0 + 1e-15), prior, most=1.0)

    def best_method(self, delta: float) -> str:
        """Return the name of the accountant that proves ``epsilon(delta)``.

        If the curve's ``method`` is ``best``, it is the accountant with the smallest bound at this delta.
        Otherwise it is ``method``.

        >>> from tacit.accounting import account
        >>> from tacit.events import ExponentialMechanism, Repeat
        >>> choices = Repeat(ExponentialMechanism(0.1), 100)
        >>> account(choices, adjacency="add-remove", method="best").best_method(1e-6)
        'rdp'
        """
        _check_delta(delta)
        if self.method != BEST:
            return self.method
        return self._price.best(delta)[1] if isinstance(self._price, LeastPrice) else "pld"

    # --- further curves -----------------------------------------------------------------------------------

    def group(self, size: int) -> PrivacyCurve:
        """Return the curve that protects ``size`` records together, such as all records of a person.

        It is the smaller of two upper bounds:

        * the curve of ``GroupPrivacy(event, size)``, if the accountant supports that event,
        * a bound for every mechanism: (eps, delta)-DP for one record implies (k eps, delta (exp(k eps) - 1) /
          (exp(eps) - 1))-DP for k records (Vadhan, "The Complexity of Differential Privacy" 2017, Lemma 2.2).

        With the second alone, the lower bounds of the curve are those for one record.

        Raises:
            InvalidInput: if ``size`` is not an integer in [1, 1e6].

        >>> from tacit.accounting import account
        >>> from tacit.events import Laplace
        >>> round(account(Laplace(10.0), adjacency="add-remove").group(3).epsilon(1e-9), 6)
        0.3
        """
        count = check_integer("size", size, low=1, high=_MOST_RECORDS)
        if count == 1:
            return self
        price: Price = GroupPrice(self._price, count)
        records = self.records * count
        if self.method in (*METHODS, BEST):  # not after ``compose`` of curves of two methods
            with suppress(UnsupportedEvent):
                together = price_of(GroupPrivacy(self.event, records), self.adjacency, self.method)
                price = LeastPrice({self.method: together, "one record": price})
        return PrivacyCurve(self.method, self.adjacency, self.event, price, records)

    def compose(self, other: PrivacyCurve) -> PrivacyCurve:
        """Return the curve of this release and ``other`` together, on the same records.

        The second release may depend on the output of the first. If both curves have the same method, the
        accountant accounts for both events together. Otherwise their epsilons and deltas add up, a valid but
        loose bound (Dwork & Lei 2009).

        Raises:
            UnsupportedEvent: if the two curves have different adjacencies or groups.

        >>> from tacit.accounting import account
        >>> from tacit.events import Gaussian
        >>> curve = account(Gaussian(1.0), adjacency="add-remove")
        >>> round(curve.compose(curve).epsilon(1e-5), 4), round(2 * curve.epsilon(5e-6), 4)
        (6.573, 9.0725)
        """
        if not isinstance(other, PrivacyCurve):
            raise InvalidInput(f"other must be a PrivacyCurve, such as account(event); got {other!r}.")
        mine, theirs = (f"{c.adjacency.value}, {c.records} record(s)" for c in (self, other))
        if mine != theirs:
            raise UnsupportedEvent(
                f"compose needs two curves with the same adjacency and group; got {mine} and {theirs}. Use "
                "one adjacency for both, and call group() after compose()."
            )
        event = Compose((self.event, other.event))
        if self.method == other.method and self.method in (*METHODS, BEST):
            together = price_of(event, self.adjacency, self.method)
            return PrivacyCurve(self.method, self.adjacency, event, together).group(self.records)
        price = SumPrice(self._price, other._price)
        return PrivacyCurve(f"{self.method} + {other.method}", self.adjacency, event, price, self.records)


def _check_delta(delta: object) -> float:
    return check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)


def _check_epsilon(epsilon: object) -> float:
    return check_real("epsilon", epsilon, low=0.0)


def _numbers(check: Callable[[object], float], values: float | Array) -> Array:
    """Check the number, or every number of the array, and return them as a one-dimensional array."""
    row = values.ravel().tolist() if isinstance(values, np.ndarray) else [values]
    return np.array([check(value) for value in row], dtype=np.float64)


def _answered(
    one: Callable[[float], float],
    on_array: Callable[[Array], Array],
    check: Callable[[object], float],
    values: Numbers,
    most: float = math.inf,
) -> Numbers:
    row = _numbers(check, values)
    if isinstance(values, np.ndarray):
        return _shaped(on_array(row), values, most)
    return _shaped(np.array([one(float(row[0]))]), values, most)


def _both(
    bounds: Callable[[float], tuple[float, float]],
    check: Callable[[object], float],
    values: Numbers,
    most: float = math.inf,
) -> tuple[Numbers, Numbers]:
    ends = np.array([bounds(float(value)) for value in _numbers(check, values)]).reshape(-1, 2)
    return _shaped(ends[:, 0], values, most), _shaped(ends[:, 1], values, most)


def _shaped(row: Array, like: Numbers, most: float) -> Numbers:
    """Return ``row`` clipped to [0, most], in the shape of ``like``."""
    result = _within(row, most)
    if isinstance(like, np.ndarray):
        return result.reshape(like.shape)
    return float(result[0])


def _within(row: Array, most: float) -> Array:
    if np.isnan(row).any():  # pragma: no cover - a defect of an accountant, never let through
        raise ArithmeticError("an accountant returned NaN; please report the event and the method.")
    return np.clip(row, 0.0, most) + 0.0  # never -0.0


def account(event: Event, *, adjacency: Adjacency | str, method: str = "pld") -> PrivacyCurve:
    """Compute the privacy curve of ``event``.

    Args:
        event: what is released: an event of :mod:`tacit.events`, which may contain other events.
        adjacency: how neighbouring datasets differ: ``add-remove``, ``replace-one`` or ``zero-out``.
        method: the accountant. The default, ``pld``, is tight. ``best`` takes the smallest bound of all
            accountants. The others are ``rdp``, ``moments``, ``gaussian``, ``zcdp``, ``optimal``, ``strong``
            and ``basic``; most of their bounds are looser.

    Raises:
        UnsupportedEvent: if the accountant has no proven bound for an event. The message names the event.
        NoiseOutOfRange: if the noise is too small or too large to account for, such as a noise multiplier
            below 0.1 or above 1e6 on a sample. It is a subclass of ``UnsupportedEvent``.
        InvalidInput: if the adjacency or the method is unknown.

    **Guarantee**

    * Every number on the curve is an upper bound, whatever the method.
    * An event repeated n times costs the same as a list of n such events.

    >>> from tacit.events import Gaussian, PoissonSampled, Repeat
    >>> event = Repeat(PoissonSampled(0.01, Gaussian(noise_multiplier=4.0)), 10_000)
    >>> round(account(event, adjacency="add-remove").epsilon(delta=1e-5), 3)
    0.947
    >>> from tacit.accounting import METHODS
    >>> {method: round(account(event, adjacency="add-remove", method=method).epsilon(1e-5), 2)
    ...  for method in METHODS if method in ("pld", "rdp", "moments")}
    {'pld': 0.95, 'rdp': 1.04, 'moments': 1.26}
    """
    relation = Adjacency.parse(adjacency)
    return PrivacyCurve(method, relation, event, price_of(event, relation, method))
