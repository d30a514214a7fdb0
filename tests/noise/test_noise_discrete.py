"""The discrete laws: all paths of the sampler's choices summed, against formulas in multi-precision."""

from __future__ import annotations

import contextlib
import math
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.errors import InvalidInput
from tacit.noise import discrete
from tacit.noise.discrete import Bits, discrete_gaussian, discrete_laplace, rounded_gaussian

Sampler = Callable[..., list[int]]
LEVEL = 1e-5


# --- the laws, written down without the sampler -----------------------------------------------------------


@pytest.fixture(autouse=True)
def fixed_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the operating system's: a verdict on draws is the same in each run."""
    monkeypatch.setattr(os, "urandom", random.Random(1).randbytes)


def laplace_law(scale: Fraction, k: int) -> mpmath.mpf:
    p = mpmath.exp(-mpmath.mpf(scale.denominator) / scale.numerator)
    return (1 - p) / (1 + p) * p ** abs(k)


def gaussian_law(sigma_squared: Fraction, k: int) -> mpmath.mpf:
    s = mpmath.mpf(sigma_squared.numerator) / sigma_squared.denominator
    return mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * s)) / mpmath.jtheta(3, 0, mpmath.exp(-1 / (2 * s)))


LAWS = {"laplace": (discrete_laplace, laplace_law), "gaussian": (discrete_gaussian, gaussian_law)}


# --- exactly: the tree of choices -------------------------------------------------------------------------


class TooLight(Exception):
    """A path that weighs too little to be followed."""


class Rejected(Exception):
    """A path that starts anew, which is the whole tree again."""


class Tree:
    """Runs a sampler once for every sequence of choices that weighs at least ``lightest``."""

    def __init__(self, lightest: float) -> None:
        self.lightest = lightest
        self.undecided = self.rejected = 0.0
        self._waiting: list[tuple[tuple[int, ...], float]] = []
        self._path: tuple[int, ...] = ()
        self._at, self._rounds, self._weight = 0, 0, 1.0

    def choose(self, weights: Sequence[float]) -> int:
        """One of the numbers 0, 1, ... at these weights: the one planned, or 0 with the others put off."""
        if self._at == len(self._path):
            for choice, weight in enumerate(weights[1:], 1):
                self._put_off((*self._path, choice), self._weight * weight)
            self._path, self._weight = (*self._path, 0), self._weight * weights[0]
            if self._weight < self.lightest:
                self.undecided += self._weight
                raise TooLight
        self._at += 1
        return self._path[self._at - 1]

    def starts(self) -> None:
        """Called where a round of rejection sampling starts; only the first is followed."""
        self._rounds += 1
        if self._rounds > 1:
            self.rejected += self._weight
            raise Rejected

    def masses(self, draw: Callable[[], int]) -> dict[int, float]:
        found: dict[int, float] = defaultdict(float)
        self._put_off((), 1.0)
        while self._waiting:
            self._path, self._weight = self._waiting.pop()
            self._at = self._rounds = 0
            with contextlib.suppress(TooLight, Rejected):
                found[draw()] += self._weight
        return found

    def _put_off(self, path: tuple[int, ...], weight: float) -> None:
        if weight < self.lightest:
            self.undecided += weight
        else:
            self._waiting.append((path, weight))


def check_tree(tree: Tree, draw: Callable[[], int], law: Callable[[int], mpmath.mpf]) -> None:
    """Every outcome weighs what the law says, but for what was left undecided."""
    found = tree.masses(draw)
    accepted = 1.0 - tree.rejected
    assert sum(found.values()) + tree.undecided == pytest.approx(accepted)
    assert tree.undecided < 1e-3
    for k, mass in found.items():
        assert mass - 1e-9 <= law(k) * accepted <= mass + tree.undecided + 1e-9


def ideal_coins(monkeypatch: pytest.MonkeyPatch, tree: Tree) -> None:
    """Uniform integers are choices, and so are the coins of chance exp(-n / d)."""

    def coin(n: int, d: int, bits: Bits) -> bool:
        heads = math.exp(-n / d)
        return bool(tree.choose([1.0 - heads, heads]))

    def below(n: int, bits: Bits) -> int:
        tree.starts()  # a round of the Laplace sampler starts with its only uniform integer
        return tree.choose([1.0 / n] * n)

    monkeypatch.setattr(discrete, "_below", below)
    monkeypatch.setattr(discrete, "_exp_minus", coin)


def no_bits(width: int) -> int:
    raise AssertionError(width)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_uniform_integers_are_uniform(n: int) -> None:
    tree = Tree(1e-6)

    def bits(width: int) -> int:
        tree.starts()
        assert 2 ** (width - 1) < n <= 2**width
        return tree.choose([0.5**width] * 2**width)

    check_tree(tree, lambda: discrete._below(n, bits), lambda k: mpmath.mpf(1) / n if 0 <= k < n else 0)


@pytest.mark.parametrize(("n", "d"), [(0, 3), (1, 3), (1, 1), (7, 3), (2, 1), (9, 2)])
def test_a_coin_falls_heads_with_probability_exp_minus(
    n: int, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(1e-7)
    monkeypatch.setattr(discrete, "_below", lambda n, bits: tree.choose([1.0 / n] * n))
    heads = mpmath.exp(-mpmath.mpf(n) / d)
    check_tree(tree, lambda: discrete._exp_minus(n, d, no_bits), lambda k: heads if k else 1 - heads)


@pytest.mark.parametrize(
    "scale", [Fraction(1), Fraction(1, 2), Fraction(2, 3), Fraction(3), Fraction(7, 2)], ids=str
)
def test_laplace_summed_over_all_choices_is_the_formula(
    scale: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(1e-6)
    ideal_coins(monkeypatch, tree)
    check_tree(
        tree,
        lambda: discrete._laplace(*scale.as_integer_ratio(), lambda width: tree.choose([0.5, 0.5])),
        lambda k: laplace_law(scale, k),
    )


@pytest.mark.parametrize("sigma_squared", [Fraction(1, 3), Fraction(1), Fraction(5, 2), Fraction(4)], ids=str)
def test_gaussian_summed_over_all_choices_is_the_formula(
    sigma_squared: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(1e-6)
    ideal_coins(monkeypatch, tree)
    law = {k: laplace_law(Fraction(math.isqrt(math.floor(sigma_squared)) + 1), k) for k in range(60)}

    def laplace(t: int, s: int, bits: Bits) -> int:  # ideal too: its own test is above
        tree.starts()
        assert s == 1
        weights = [float(law[abs(k)]) for k in range(-40, 41)]
        return tree.choose([*weights, max(0.0, 1.0 - sum(weights))]) - 40

    monkeypatch.setattr(discrete, "_laplace", laplace)
    check_tree(
        tree,
        lambda: discrete_gaussian(sigma_squared, 1, bits=no_bits)[0],
        lambda k: gaussian_law(sigma_squared, k),
    )


@pytest.mark.parametrize("losses", [(0,), (3, 0, 1), (-5, -5, 2, -4)], ids=str)
def test_a_choice_summed_over_all_choices_is_the_formula(
    losses: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(1e-6)
    ideal_coins(monkeypatch, tree)
    weights = [mpmath.exp(-mpmath.mpf(2) * loss / 3) for loss in losses]
    check_tree(
        tree,
        lambda: discrete.exponential_choice(losses, Fraction(2, 3), bits=no_bits),
        lambda place: weights[place] / sum(weights),
    )


# --- by chance: larger parameters -------------------------------------------------------------------------


def chi_square(draws: list[int], law: Callable[[int], mpmath.mpf]) -> float:
    """p-value of the numbers of draws in about 40 intervals of like probability, and in the two tails."""
    n, counts = len(draws), Counter(draws)
    observed: list[int] = []
    expected: list[float] = []
    seen, due = 0, 0.0
    for k in range(min(draws), max(draws) + 1):
        seen, due = seen + counts[k], due + n * float(law(k))
        if due >= n / 40:
            observed, expected, seen, due = [*observed, seen], [*expected, due], 0, 0.0
    observed, expected = [*observed, n - sum(observed)], [*expected, n - sum(expected)]
    return float(stats.chisquare(observed, expected).pvalue)


@pytest.mark.thorough(cases=2)
@pytest.mark.untraced
@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("laplace", Fraction(7, 2)),
        ("laplace", Fraction(40)),
        ("gaussian", Fraction(49, 3)),
        ("gaussian", Fraction(900)),
    ],
    ids=str,
)
def test_draws_follow_the_law_and_the_test_sees_five_percent(name: str, parameter: Fraction) -> None:
    sampler, formula = LAWS[name]
    count = 60_000

    def law(k: int) -> mpmath.mpf:
        return formula(parameter, k)

    assert chi_square(sampler(parameter, count), law) > LEVEL
    larger = parameter * (Fraction(21, 20) if sampler is discrete_laplace else Fraction(21, 20) ** 2)
    assert chi_square(sampler(larger, count), law) < LEVEL


@pytest.mark.parametrize("scale", [Fraction(2) ** 40 / 3, Fraction(10) ** 30], ids=["2^40/3", "10^30"])
def test_a_large_scale_has_the_continuous_law(scale: Fraction) -> None:
    laplace = np.array([float(k / scale) for k in discrete_laplace(scale, 4000)])
    gaussian = np.array([float(k / scale) for k in discrete_gaussian(scale**2, 4000)])
    assert stats.kstest(laplace, "laplace").pvalue > LEVEL
    assert stats.kstest(gaussian, "norm").pvalue > LEVEL
    assert stats.kstest(1.5 * laplace, "laplace").pvalue < LEVEL
    assert stats.kstest(1.5 * gaussian, "norm").pvalue < LEVEL


def test_low_bits_of_a_large_draw_are_uniform() -> None:
    draws = np.array([k % 16 for k in discrete_gaussian(Fraction(2) ** 60, 8000)])
    assert stats.chisquare(np.bincount(draws, minlength=16)).pvalue > LEVEL


# --- properties -------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.fractions(min_value=Fraction(1, 10**6), max_value=10**9, max_denominator=10**6),
    st.integers(0, 5),
    st.randoms(use_true_random=False),
)
def test_draws_are_integers_and_a_function_of_the_bits(
    parameter: Fraction, size: int, random: object
) -> None:
    for sampler in (discrete_laplace, discrete_gaussian):
        asked: list[tuple[int, int]] = []

        def bits(width: int, asked: list[tuple[int, int]] = asked) -> int:
            value = random.getrandbits(width)  # type: ignore[attr-defined]
            asked.append((width, value))
            return int(value)

        draws = sampler(parameter, size, bits=bits)
        replay = iter(asked)

        def again(width: int, replay: object = replay) -> int:
            wanted, value = next(replay)  # type: ignore[call-overload]
            assert width == wanted
            return int(value)

        assert sampler(parameter, size, bits=again) == draws
        assert len(draws) == size
        assert all(type(k) is int for k in draws)


def test_a_tiny_scale_gives_zero() -> None:
    assert set(discrete_laplace(Fraction(1, 10**9), 50)) == {0}
    assert set(discrete_gaussian(Fraction(1, 10**9), 50)) == {0}


@pytest.mark.parametrize("parameter", [0, -1, Fraction(-1, 2), 1.0, True, "1", None], ids=repr)
def test_parameters_that_are_no_positive_fractions_are_refused(parameter: object) -> None:
    for sampler in (discrete_laplace, discrete_gaussian):
        with pytest.raises(InvalidInput, match="positive Fraction"):
            sampler(parameter, 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="size"):
        discrete_laplace(Fraction(1), -1)


# --- the bits ---------------------------------------------------------------------------------------------


def test_the_bits_are_those_of_the_system_each_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given_out = bytearray()

    def recorded(size: int) -> bytes:
        block = secret(size)
        given_out.extend(block)
        return block

    secret = os.urandom
    monkeypatch.setattr(os, "urandom", recorded)
    bits = discrete._bits_of_the_system()
    widths = [1, 3, 8, 13] * 20  # 500 bits of the 2048 of one block
    value = place = 0
    for width in widths:
        value |= bits(width) << place
        place += width
    assert value == int.from_bytes(given_out, "little") % (1 << place)
    assert bits(10_000).bit_length() > 9_000, "wider than a block"


def test_two_calls_share_no_bits() -> None:
    first, second = (discrete_laplace(Fraction(2) ** 64, 3) for _ in range(2))
    assert not set(first) & set(second)


# --- planted bugs -----------------------------------------------------------------------------------------


def test_two_signs_of_zero_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(t: int, s: int, bits: Bits) -> int:
        k = 0
        while discrete._exp_minus(s, t, bits):
            k += 1
        return -k if bits(1) else k

    monkeypatch.setattr(discrete, "_laplace", twice)
    with pytest.raises(AssertionError):
        test_laplace_summed_over_all_choices_is_the_formula(Fraction(1), monkeypatch)


def test_a_coin_from_a_float_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        discrete, "_exp_minus", lambda n, d, bits: discrete._below(128, bits) < round(128 * math.exp(-n / d))
    )
    with pytest.raises(AssertionError):
        test_a_coin_falls_heads_with_probability_exp_minus(1, 3, monkeypatch)


def test_acceptance_about_the_wrong_centre_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def about_zero(n: int, d: int, t: int, bits: Bits) -> int:
        while True:
            k = discrete._laplace(t, 1, bits)
            if discrete._exp_minus(k * k * d, 2 * n, bits):
                return k

    monkeypatch.setattr(discrete, "_gaussian", about_zero)
    with pytest.raises(AssertionError):
        test_gaussian_summed_over_all_choices_is_the_formula(Fraction(4), monkeypatch)


# --- rounded normal numbers ---------------------------------------------------------------------------------


def rounded_law(sigma: Fraction, k: int) -> mpmath.mpf:
    ends = (
        mpmath.mpf(2 * k + sign) / (2 * mpmath.mpf(sigma.numerator) / sigma.denominator) for sign in (-1, 1)
    )
    low, high = map(mpmath.ncdf, ends)
    return high - low


@pytest.mark.thorough(cases=2)
@pytest.mark.untraced
@pytest.mark.parametrize("sigma", [Fraction(1, 3), Fraction(7, 5), Fraction(40)], ids=str)
def test_rounded_normal_numbers_follow_the_law_and_the_test_sees_five_percent(sigma: Fraction) -> None:
    count = 60_000
    assert chi_square(rounded_gaussian(sigma, count), lambda k: rounded_law(sigma, k)) > LEVEL
    larger = sigma * Fraction(21, 20)
    assert chi_square(rounded_gaussian(larger, count), lambda k: rounded_law(sigma, k)) < LEVEL


def test_a_large_rounded_normal_number_has_the_continuous_law_and_uniform_low_bits() -> None:
    sigma = Fraction(10) ** 30 / 7
    draws = rounded_gaussian(sigma, 4000)
    assert stats.kstest([float(k / sigma) for k in draws], "norm").pvalue > LEVEL
    assert stats.chisquare(np.bincount([k % 16 for k in draws], minlength=16)).pvalue > LEVEL


@given(st.integers(0, 2**32), st.fractions(Fraction(1, 1000), Fraction(10**9)))
@settings(max_examples=50)
def test_a_rounded_normal_number_is_a_function_of_its_bits(seed: int, sigma: Fraction) -> None:
    """With the same bits, a number of twice the spread is twice the number, but for the rounding."""

    def drawn(spread: Fraction) -> int:
        return rounded_gaussian(spread, 1, bits=stream(seed))[0]

    def stream(seed: int) -> Bits:
        source = random.Random(seed)
        spare = random.Random(seed + 1)
        # the sign is drawn last, after as many bits as the rounding needs
        left = 2000
        ones = source.getrandbits(left)

        def bits(width: int) -> int:
            nonlocal left
            left -= width
            return (ones >> left) & ((1 << width) - 1) if left >= 0 else spare.getrandbits(width)

        return bits

    assert drawn(sigma) == drawn(sigma)
    assert abs(2 * abs(drawn(sigma)) - abs(drawn(2 * sigma))) <= 2


def test_a_normal_number_without_the_last_coin_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discrete._Uniform, "exp_minus_half_square", lambda self: True)
    sigma = Fraction(7, 5)
    assert chi_square(rounded_gaussian(sigma, 60_000), lambda k: rounded_law(sigma, k)) < LEVEL
