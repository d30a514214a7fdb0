"""The threshold against sums in multi-precision: never too low, and no higher than it must be."""

from __future__ import annotations

from fractions import Fraction

import mpmath as mp
import pytest

from tacit.errors import InvalidInput
from tacit.queries.measures import threshold

SCALES = [Fraction(1, 3), Fraction(1), Fraction(7, 2), Fraction(20), Fraction(70)]
DELTAS = [1e-2, 1e-6, 1e-15]


def shown(law: str, scale: Fraction, least: int, each: int, groups: int) -> mp.mpf:
    """P[one of ``groups`` groups with a true count of ``each`` reaches ``least``], term by term."""
    with mp.workdps(50):
        b = mp.mpf(scale.numerator) / scale.denominator

        def weight(k: int) -> mp.mpf:
            return mp.exp(-k / b) if law == "laplace" else mp.exp(-(mp.mpf(k) ** 2) / (2 * b * b))

        reach = int(12 * b if law == "gaussian" else 70 * b) + 40
        whole = 1 + 2 * mp.fsum(weight(k) for k in range(1, reach))
        tail = mp.fsum(weight(k) for k in range(least - each, least - each + reach))
        return 1 - (1 - tail / whole) ** groups


@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@pytest.mark.parametrize("groups", [1, 5])
@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("place", range(len(SCALES)))
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_the_threshold_is_the_smallest_that_keeps_delta(
    law: str, place: int, delta: float, groups: int
) -> None:
    scale, each = SCALES[place], 2
    t = threshold(law, scale, each=each, groups=groups, delta=delta)
    assert shown(law, scale, t, each, groups) <= delta
    spare = 2 if law == "gaussian" and scale > 64 else 1
    assert shown(law, scale, t - spare, each, groups) > delta


def test_more_groups_and_less_delta_need_more() -> None:
    one = threshold("laplace", Fraction(10), each=1, groups=1, delta=1e-6)
    assert threshold("laplace", Fraction(10), each=1, groups=10, delta=1e-6) > one
    assert threshold("laplace", Fraction(10), each=1, groups=1, delta=1e-9) > one
    assert threshold("laplace", Fraction(10), each=4, groups=1, delta=1e-6) == one + 3


def test_a_tail_beyond_what_doubles_hold() -> None:
    t = threshold("gaussian", Fraction(1000), each=1, groups=1, delta=1e-300)
    assert 36_000 < t < 38_000


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, float("nan")])
def test_a_delta_that_is_none_is_refused(delta: float) -> None:
    for law in ("laplace", "gaussian"):
        with pytest.raises(InvalidInput):
            threshold(law, Fraction(1), each=1, groups=1, delta=delta)
