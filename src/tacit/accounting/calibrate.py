"""The noise and the number of steps for a budget, and epsilon along a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from tacit.accounting.account import BEST, PrivacyCurve, account, price_of
from tacit.accounting.closed_form import GaussianPrice, SinglePrice
from tacit.accounting.contour import ContourPrice, epsilons_along
from tacit.accounting.flatten import LEAST_NOISE, MOST_NOISE, NoiseOutOfRange, Steps, flatten
from tacit.accounting.pld import TruncatedPrice, estimate, uncut
from tacit.accounting.price import BoundedPrice, LeastPrice, brent, crossing, last_whole
from tacit.errors import BudgetExceeded, InvalidInput, check_integer, check_real
from tacit.events import (
    Adjacency,
    BallsInBins,
    Compose,
    DiscreteGaussian,
    Event,
    Gaussian,
    PoissonSampled,
    Repeat,
)
from tacit.rounding import raised

# Goals of a search for noise: a quantity of a plan's privacy curve, such as epsilon, and its limit.

TOLERANCE = 8e-5  # relative, of the noise multiplier, if the goal is an epsilon
FINE = 8e-7  # relative, of the noise multiplier, if the goal limits an attack
_TINY = 1e-15


@dataclass(frozen=True)
class Goal:
    """A quantity that falls as noise grows, such as epsilon, and its ``limit``.

    ``figure`` computes a certified bound on it; ``near`` and ``rough`` are cheaper estimates.  ``least`` is
    its value for a plan that reveals nothing.  ``tolerance`` is the relative tolerance of the noise.
    """

    words: str  # a format string, with {} for the value
    limit: float
    figure: Callable[[Event], float]
    near: Callable[[Event], float]
    rough: Callable[[Event], float]
    least: float = 0.0
    tolerance: float = TOLERANCE

    def excess(self, value: float) -> float:
        """Return the log of the ratio of ``value`` to the limit, after subtracting ``least`` from both."""
        return math.log(max(_TINY, value - self.least) / (self.limit - self.least))

    def says(self, excess: float = 0.0, digits: str = "g") -> str:
        """Format the value with this excess, in words."""
        value = self.least + (self.limit - self.least) * math.exp(excess)
        return self.words.format(format(value, digits))


def check_budget(epsilon: object) -> float:
    """Check an epsilon that a run may cost; if it is infinite, say how to train without privacy.

    >>> check_budget(3)
    3.0
    """
    why = ""
    if epsilon == math.inf:
        why = (
            "An infinite epsilon gives no privacy. To train without privacy, take batches from a torch "
            "DataLoader, and replace session.step(step) by loss.backward() and optimizer.step()."
        )
    return check_real("epsilon", epsilon, low=0.0, open_low=True, why=why)


def goal_of(arguments: Mapping[str, float | None], adjacency: Adjacency, method: str) -> Goal:
    """Make the goal from the arguments of :func:`tacit.accounting.calibrate`; None means not given."""

    def risk(words: str, limit: float, figure: Callable[[PrivacyCurve], float], least: float = 0.0) -> Goal:
        def of(event: Event) -> float:
            return figure(account(event, adjacency=adjacency, method=method))

        return Goal(words, limit, of, of, of, least=least, tolerance=FINE)

    goals = {name: value for name, value in arguments.items() if value is not None}
    match tuple(goals):
        case ("epsilon", "delta"):
            delta = goals["delta"]
            return Goal(
                f"epsilon {{}} at delta {delta:g}",
                check_budget(goals["epsilon"]),
                lambda event: account(event, adjacency=adjacency, method=method).epsilon(delta),
                lambda event: price_of(event, adjacency, method).near(delta),
                rough_epsilon(delta, adjacency, method),
            )
        case ("advantage",):
            limit = check_real(
                "advantage", goals["advantage"], low=0.0, high=1.0, open_low=True, open_high=True
            )
            return risk("an advantage of {}", limit, PrivacyCurve.advantage)
        case ("true_positive_rate", "false_positive_rate"):
            false = check_real("false_positive_rate", goals["false_positive_rate"], low=0.0, high=1.0)
            limit = check_real(
                "true_positive_rate", goals["true_positive_rate"], low=false, high=1.0, open_low=True
            )
            words = f"a true-positive rate of {{}} at a false-positive rate of {false:g}"
            return risk(words, limit, lambda curve: 1.0 - curve.false_negative_rate(false), false)
    raise InvalidInput(
        "give exactly one target: epsilon with delta, advantage, or true_positive_rate with "
        f"false_positive_rate; got {', '.join(goals) or 'none'}."
    )


def rough_epsilon(delta: float, adjacency: Adjacency, method: str) -> Callable[[Event], float]:
    """Return a function that estimates epsilon cheaply, to start a search."""
    check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    if method in ("pld", BEST):
        return lambda event: _rough_best(event, adjacency, method, delta)
    return lambda event: account(event, adjacency=adjacency, method=method).epsilon(delta)


def _gaussians(steps: Steps, *, sampled: bool) -> Event:
    """Replace mechanisms that take seconds by Gaussians that cost about as much."""
    # Balls in bins cost about as much as Poisson samples if noise is large, as known bins if it is small.
    events = list[Event]()
    for base, count in steps:
        match base:
            case DiscreteGaussian(scale, sensitivity):
                events.append(Repeat(Gaussian(scale / sensitivity), count))
            case BallsInBins(bins, inner) if sampled:
                events.append(Repeat(PoissonSampled(1.0 / bins, inner), count * bins))
            case BallsInBins(_, inner):
                events.append(Repeat(inner, count))
            case _:
                events.append(Repeat(base, count))
    return Compose(tuple(events))


def _rough_best(event: Event, adjacency: Adjacency, method: str, delta: float) -> float:
    price, steps = price_of(event, adjacency, method), flatten(event)
    if any(isinstance(base, BallsInBins | DiscreteGaussian) for base, _ in steps):
        sampled, plain = (_gaussians(steps, sampled=sampled) for sampled in (True, False))
        return min(_rough_best(event, adjacency, method, delta) for event in (sampled, plain))
    if isinstance(price, BoundedPrice):
        price = price.inner
    if isinstance(price, LeastPrice):
        if not isinstance(price.first, ContourPrice):
            return price.near(delta)
        price = price.first
    if isinstance(price, TruncatedPrice) and price.is_enough(delta):
        price, steps = price.whole, uncut(steps)
    match price:
        case ContourPrice():
            return price.estimate(delta)
        case GaussianPrice() | SinglePrice():
            return price.epsilon(delta)
    return estimate(steps, adjacency, delta)


# The noise and the number of steps for a budget, and epsilon along a run.
#
# Every result is checked with :func:`tacit.accounting.account` itself, so it is as certain as that bound.

_MOST_STEPS = 10**9
_FEWEST_DIGITS = 6  # of a noise multiplier: with fewer, rounding costs more than the search's tolerance
_SECANTS = 6
_LARGE = 10.0  # an epsilon above it promises little
_LOW, _HIGH = math.log(LEAST_NOISE), math.log(MOST_NOISE)


class LooseBudget(InvalidInput):
    """Raised if ``noise``, the least noise that can be accounted for, is more than the budget needs."""

    def __init__(self, reason: str, noise: float, *, argument: str | None, fix: str) -> None:
        super().__init__(reason, argument=argument, fix=fix)
        self.noise = noise


def calibrate(
    family: Callable[[float], Event],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    advantage: float | None = None,
    true_positive_rate: float | None = None,
    false_positive_rate: float | None = None,
    adjacency: Adjacency | str,
    method: str = "pld",
    digits: int | None = None,
) -> float:
    """Find the smallest noise multiplier for a privacy budget, or for a limit on attacks.

    Set one of three goals: ``epsilon`` with ``delta``; ``advantage``; or ``true_positive_rate`` with
    ``false_positive_rate``. The last two limit attacks directly, and need less noise than an epsilon that
    implies the same limit (Kulynych et al. 2024, 2407.02191).

    Args:
        family: a function from a noise multiplier to the event of everything that is released. Epsilon must
            fall as the noise grows. Parts of the event may have a fixed noise.
        epsilon: the largest epsilon, above 0.
        delta: the delta of that epsilon, in (0, 1).
        advantage: the largest TPR - FPR (true minus false-positive rate) of any membership test, in (0, 1).
            Such a test guesses whether a record took part.
        true_positive_rate: the largest TPR of any membership test with this ``false_positive_rate``. It is
            above ``false_positive_rate``, and at most 1.
        false_positive_rate: the FPR of these tests, in [0, 1].
        adjacency: how neighbouring datasets differ, as in :func:`account`.
        method: the accountant, as in :func:`account`.
        digits: round the result up to this many significant digits, at least 6. Then every processor returns
            the same noise. Default: no rounding.

    Returns:
        The noise multiplier, in [0.1, 1e6].

    Raises:
        BudgetExceeded: if no supported noise meets the goal, for instance because the parts with fixed noise
            cost too much.
        LooseBudget: if even the smallest supported noise, 0.1 or more, meets the goal. The message states
            this noise and its cost. It is a subclass of ``InvalidInput``.
        InvalidInput: if no goal is given, or more than one.

    **Guarantee**

    * The curve of ``family(result)`` meets the goal. This is checked before the result is returned.
    * The noise is almost the smallest possible. Without ``digits``, noise that is smaller by a factor of
      1.0001 does not meet a goal of epsilon. For the other goals, the factor is 1.000001.

    >>> from tacit.events import Gaussian, PoissonSampled, Repeat
    >>> def plan(sigma):
    ...     return Repeat(PoissonSampled(0.01, Gaussian(sigma)), 10_000)
    >>> round(calibrate(plan, epsilon=2.0, delta=1e-5, adjacency="add-remove"), 3)
    2.127
    >>> round(calibrate(plan, advantage=0.1, adjacency="add-remove"), 3)
    4.039
    """
    if not callable(family):
        raise InvalidInput(
            "family must be a function that takes a noise multiplier and returns an event, such as "
            f"tacit.Gaussian; got {type(family).__name__}."
        )
    relation = Adjacency.parse(adjacency)
    if digits is not None:
        check_integer("digits", digits, low=_FEWEST_DIGITS)
    goals = {
        "epsilon": epsilon,
        "delta": delta,
        "advantage": advantage,
        "true_positive_rate": true_positive_rate,
        "false_positive_rate": false_positive_rate,
    }
    goal = goal_of(goals, relation, method)
    least = _least_priced(lambda log_noise: price_of(family(_noise(log_noise)), relation, method))

    def excess_of(figure: Callable[[Event], float]) -> Callable[[float], float]:
        @cache
        def at(log_noise: float) -> float:
            try:
                return goal.excess(figure(family(_noise(log_noise))))
            except NoiseOutOfRange as problem:
                if problem.too_small:
                    raise
                return -math.inf  # a trial with too much noise is private enough

        return at

    excess, near_excess, rough_excess = map(excess_of, (goal.figure, goal.near, goal.rough))
    start = _start(rough_excess, least)
    if start == math.inf and excess(_HIGH) > 0.0:
        raise BudgetExceeded(
            f": no noise multiplier reaches {goal.says()}. With {MOST_NOISE:g} the plan still costs "
            f"{goal.says(excess(_HIGH), '.6g')} under {relation.value} (method {method!r}), because a part "
            "of the cost does not depend on the noise",
            argument=next(name for name, value in goals.items() if value is not None),
            fix="Leave out or weaken that part, or allow a higher cost, or raise `delta`.",
        )
    if start is not None or excess(least) > 0.0:
        near = least if start is None else min(start, _HIGH)
        solution = _refine(excess, _secant(near_excess, near, least, goal.tolerance), least, goal.tolerance)
        if solution > least:
            noise = _noise(solution)
            if digits is not None:
                # each one is checked: bounds are accurate only to about 1e-7, and may rise with more noise
                noise = raised(noise, digits)
                while noise < MOST_NOISE and excess(math.log(noise)) > 0.0:
                    noise = raised(math.nextafter(noise, math.inf), digits)
            _check_priced(lambda: price_of(family(noise), relation, method), goal.says())
            return noise
    limit = goal.says()
    large = f", to {_LARGE:g} or less," if epsilon is not None and epsilon > _LARGE else ""
    useless = ". Such a budget protects nothing" if large or epsilon is None else ""
    raise LooseBudget(
        f"{limit.removeprefix('epsilon ')} is too loose: with the least noise that Tacit accounts for, "
        f"multiplier {_noise(least):.4g}, this plan costs only {goal.says(excess(least), '.4g')} under "
        f"{relation.value} (method {method!r}){useless}",
        raised(_noise(least), _FEWEST_DIGITS),
        argument="epsilon" if limit.startswith("epsilon") else None,
        fix=f"Lower `epsilon`{large} or `delta`, or the risk; or give that noise multiplier itself.",
    )


def _check_priced(price: Callable[[], object], goal: str) -> None:
    """Refuse a result that counted as private enough only because its noise is out of range."""
    try:
        price()
    except NoiseOutOfRange as problem:
        raise BudgetExceeded(f"{goal} needs more noise than Tacit can account for: {problem}") from problem


def _noise(log_noise: float) -> float:
    if log_noise in (_LOW, _HIGH):
        return LEAST_NOISE if log_noise == _LOW else MOST_NOISE
    return min(max(math.exp(log_noise), LEAST_NOISE), MOST_NOISE)


def _least_priced(price: Callable[[float], object]) -> float:
    """Find, to a few digits, the log of the least noise that the accountant supports for this plan."""

    def refused(log_noise: float) -> bool:
        try:
            price(log_noise)
        except NoiseOutOfRange as problem:
            if log_noise == _HIGH and problem.too_small:
                raise
            return problem.too_small
        return False

    low, high = _LOW, _HIGH
    if not refused(low) or refused(high):
        return low
    while high - low > TOLERANCE:
        middle = (low + high) / 2.0
        low, high = (middle, high) if refused(middle) else (low, middle)
    return high


def _start(rough_excess: Callable[[float], float], least: float) -> float | None:
    """Find the zero of the rough excess.  Return None below ``least``, infinity above the range."""
    low, high, stride = max(0.0, least), max(0.0, least), math.log(4.0)
    while rough_excess(high) > 0.0:
        if high == _HIGH:
            return math.inf
        low, high = high, min(high + stride, _HIGH)
    while rough_excess(low) <= 0.0:
        if low == least:
            return None
        low, high = max(low - stride, least), low
    return brent(rough_excess, low, high, xtol=1e-2)


def _secant(excess: Callable[[float], float], start: float, least: float, tolerance: float) -> float:
    """Find a point near the root of ``excess``, which is smooth and decreasing, by a few secant steps."""
    if not math.isfinite(excess(start)):
        return start
    before, here = start, start + excess(start)  # log epsilon falls about as fast as log noise rises
    for _ in range(_SECANTS):
        here = min(max(here, least), _HIGH)
        if abs(here - before) <= tolerance / 8.0 or not math.isfinite(excess(here) - excess(before)):
            break
        if excess(before) == excess(here):
            break
        slope = (excess(here) - excess(before)) / (here - before)
        before, here = here, here - min(max(excess(here) / slope, -0.5), 0.5)
    return min(max(here, least), _HIGH)


def _refine(excess: Callable[[float], float], start: float, least: float, tolerance: float) -> float:
    """Find an x with excess(x) <= 0, at most the tolerance above the root of the decreasing ``excess``."""
    # If the root is below ``least``, the start of the range, return ``least``.
    step = tolerance / 4.0
    low, high = start - step, min(start + step, _HIGH)
    while excess(high) > 0.0:
        if high >= _HIGH:
            raise BudgetExceeded(
                f"even noise multiplier {MOST_NOISE:g} is not enough for the target. Raise epsilon or delta, "
                "or use method 'pld', whose bound is the tightest."
            )
        low, high, step = high, min(high + step, _HIGH), 4.0 * step
    low = max(low, least)
    while excess(low) <= 0.0:
        if low == least:
            return least
        low, high, step = max(low - step, least), low, 4.0 * step
    if high - low <= tolerance:
        return high
    return crossing(excess, low, high, xtol=tolerance / 4.0)


def largest_steps(
    family: Callable[[int], Event],
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency | str,
    method: str = "pld",
) -> int:
    """Find the largest number of steps that the budget (epsilon, delta) allows.

    Args:
        family: a function from a number of steps, at least 1, to the event of everything that is released.
            Epsilon must grow with the number of steps.
        epsilon: the largest epsilon, 0 or more.
        delta: the delta of that epsilon, in (0, 1).
        adjacency: how neighbouring datasets differ, as in :func:`account`.
        method: the accountant, as in :func:`account`.

    Returns:
        The number of steps, below 1e9. It is 0 if the budget does not allow a single step.

    Raises:
        InvalidInput: if the budget allows 1e9 steps, probably because ``family`` ignores its argument.

    **Guarantee**

    * ``account(family(result), ...).epsilon(delta) <= epsilon``. This is checked before the return.
    * The epsilon of ``result + 1`` steps exceeds the budget.

    >>> from tacit.events import Gaussian, Repeat
    >>> largest_steps(lambda n: Repeat(Gaussian(50.0), n), epsilon=2.0, delta=1e-5, adjacency="add-remove")
    628
    """
    target = check_real("epsilon", epsilon, low=0.0)
    relation = Adjacency.parse(adjacency)
    rough = rough_epsilon(delta, relation, method)

    @cache
    def fits(count: int) -> bool:
        return (
            count == 0 or account(family(count), adjacency=relation, method=method).epsilon(delta) <= target
        )

    low, high = 0, 1
    while high <= _MOST_STEPS and rough(family(high)) <= target:
        low, high = high, 2 * high
    while high - low > 1 + low // 100_000:
        middle = (low + high) // 2
        low, high = (middle, high) if rough(family(middle)) <= target else (low, middle)
    return _boundary(fits, low, _MOST_STEPS)


def _boundary(fits: Callable[[int], bool], guess: int, most: int) -> int:
    """Find the last count at which ``fits`` is true: gallop away from ``guess``, then bisect."""
    low, high, stride = guess, guess, 1 + guess // 20_000
    while low > 0 and not fits(low):
        low, high, stride = max(0, low - stride), low, 4 * stride
    if high == low:
        high = low + stride
        while fits(high):
            low, high, stride = high, high + stride, 4 * stride
            if low >= most:
                raise InvalidInput(
                    f"even {most} steps stay within the budget. Check that family uses its argument."
                )
    return last_whole(fits, low, high)


def epsilon_schedule(
    family: Callable[[int], Event],
    counts: Sequence[int],
    *,
    delta: float,
    adjacency: Adjacency | str,
    method: str = "pld",
) -> list[float]:
    """Compute epsilon after each of ``counts`` steps, for a progress bar or a plot.

    Each count takes about ten microseconds for Gaussian noise, with or without sampling, and about ten
    milliseconds for other mechanisms.

    Args:
        family: a function from a number of steps to the event of that many steps.
        counts: the numbers of steps, each at least 1, in any order.
        delta: the delta of every epsilon, in (0, 1).
        adjacency: how neighbouring datasets differ, as in :func:`account`.
        method: the accountant, as in :func:`account`.

    Returns:
        Upper bounds on epsilon, in the order of ``counts``.

    >>> from tacit.events import Gaussian, Repeat
    >>> [round(e, 3) for e in epsilon_schedule(
    ...     lambda n: Repeat(Gaussian(10.0), n), [1, 100], delta=1e-5, adjacency="add-remove")]
    [0.341, 4.377]
    """
    relation = Adjacency.parse(adjacency)
    check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    prices = [price_of(family(check_integer("count", count, low=1)), relation, method) for count in counts]
    schedule = [0.0] * len(prices)
    alike: dict[object, list[tuple[int, ContourPrice]]] = {}  # compositions that differ in their counts only
    for index, price in enumerate(prices):
        if isinstance(price, ContourPrice):
            alike.setdefault(tuple(price.ways.items()), []).append((index, price))
        else:
            schedule[index] = max(0.0, price.epsilon(delta))
    for group in alike.values():
        along = epsilons_along([price for _, price in group], delta)
        for (index, _), epsilon in zip(group, along, strict=True):
            schedule[index] = epsilon
    return schedule
