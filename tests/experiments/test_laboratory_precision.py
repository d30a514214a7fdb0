"""The audit of low bits finds noise that was added in floating point, and nothing in exact noise."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from experiments.laboratory.precision import audit_precision, lowest_bits
from tacit import accounting
from tacit.errors import InvalidInput
from tacit.events import DiscreteGaussian
from tacit.queries.plan import OwnSampler, sampler

Release = Callable[[int, int], NDArray[np.float64] | NDArray[np.float32]]  # true answer, number of releases
N = 10_000
CONFIDENCE = 1.0 - 1e-7  # the bits of OpenDP cannot be fixed
GRID = 2**20
RNG = np.random.default_rng(4)  # of what is planted and of the halving; nothing private is drawn from it


# --- what must be found: a float that stands for a real number --------------------------------------------


@pytest.fixture(autouse=True)
def fixed_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict on draws is the same in each run, and in any order."""
    monkeypatch.setattr(os, "urandom", random.Random(4).randbytes)
    RNG.bit_generator.state = np.random.default_rng(4).bit_generator.state
    torch.manual_seed(4)


def numpy_laplace(answer: int, n: int) -> NDArray[np.float64]:
    return answer + RNG.laplace(0.0, 1.0, n)


def numpy_laplace_float32(answer: int, n: int) -> NDArray[np.float32]:
    return np.float32(answer) + RNG.laplace(0.0, 1.0, n).astype(np.float32)


def numpy_normal(answer: int, n: int) -> NDArray[np.float64]:
    return answer + RNG.normal(0.0, 1.0, n)


def torch_normal_float32(answer: int, n: int) -> NDArray[np.float32]:
    drawn: NDArray[np.float32] = (answer + torch.randn(n)).numpy()
    return drawn


def four_draws_halved(answer: int, n: int) -> NDArray[np.float64]:
    """The form of 2107.10138: harder to invert, and rounded all the same when it is added."""
    drawn: NDArray[np.float64] = (answer + torch.randn(4, n, dtype=torch.float64).sum(0) / 2.0).numpy()
    return drawn


# --- what must pass: integers on a grid -------------------------------------------------------------------


def on_a_grid(name: str, law: str, grid: int) -> Release:
    def release(answer: int, n: int) -> NDArray[np.float64]:
        one = sampler(name)
        add = {"laplace": one.laplace, "gaussian": one.gaussian}[law]
        return np.array(add([answer * grid] * n, Fraction(grid)), np.float64) / grid

    return release


def gaussian_epsilon(delta: float) -> float:
    return accounting.account(DiscreteGaussian(1.0), adjacency="add-remove").epsilon(delta)


def claim(law: str) -> dict[str, float]:
    delta = 1e-5
    return (
        {"epsilon": 1.0, "delta": 0.0}
        if law == "laplace"
        else {"epsilon": gaussian_epsilon(delta), "delta": delta}
    )


@pytest.mark.parametrize(
    ("release", "law"),
    [
        (numpy_laplace, "laplace"),
        (numpy_laplace_float32, "laplace"),
        (numpy_normal, "gaussian"),
        (torch_normal_float32, "gaussian"),
        (four_draws_halved, "gaussian"),
    ],
    ids=["laplace", "laplace32", "normal", "torch32", "four-draws"],
)
def test_noise_added_in_floats_is_found(release: Release, law: str) -> None:
    n = 4 * N if release is four_draws_halved else 2 * N
    found = audit_precision(release(0, n), release(1, n), **claim(law), confidence=CONFIDENCE, rng=RNG)
    assert found.claim_rejected
    assert found.eps_lower > claim(law)["epsilon"] + 0.5
    assert "CONTRADICTED" in found.sentence()


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("name", ["own", "opendp"])
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("grid", [1, GRID])
def test_nothing_is_found_in_exact_noise(name: str, law: str, grid: int) -> None:
    release = on_a_grid(name, law, grid)
    found = audit_precision(release(0, N), release(1, N), **claim(law), confidence=CONFIDENCE, rng=RNG)
    assert not found.claim_rejected
    assert 0.2 < found.eps_lower <= claim(law)["epsilon"], "it sees the noise, and no more than the noise"


@pytest.mark.parametrize("answers", [(0, 1), (1, 0)], ids=str)
def test_either_data_set_may_be_the_one_with_the_marks(answers: tuple[int, int]) -> None:
    here, there = (numpy_laplace(answer, N) for answer in answers)
    assert audit_precision(here, there, **claim("laplace"), confidence=CONFIDENCE, rng=RNG).claim_rejected


def test_too_little_noise_is_found_too() -> None:
    """Exact noise at a third of the scale that was stated."""
    here, there = (np.array(OwnSampler().laplace([a] * N, Fraction(1, 3)), float) for a in (0, 1))
    found = audit_precision(here, there, **claim("laplace"), confidence=CONFIDENCE, rng=RNG)
    assert found.claim_rejected
    assert 1.5 < found.eps_lower <= 3.0


def test_a_true_claim_is_rejected_no_more_often_than_stated() -> None:
    """At confidence 0.5, four bounds at an eighth each: 300 audits of randomised response at its epsilon."""
    truth = math.log(3.0)
    rejected = 0
    for _ in range(300):
        here, there = (
            np.where(RNG.random(400) < 0.75, answer, 1 - answer).astype(np.float64) for answer in (0, 1)
        )
        found = audit_precision(here, there, epsilon=truth, delta=0.0, confidence=0.5, rng=RNG)
        rejected += bool(found.claim_rejected)
    assert rejected < 150
    assert rejected > 0, "bounds that are never exceeded would be too wide to judge by"


@given(st.integers(-(2**53), 2**53), st.integers(-1000, 900))
def test_the_lowest_bit_is_where_an_integer_has_it(odd: int, exponent: int) -> None:
    odd |= 1
    assert abs(odd) <= 2**53 + 1
    value = math.ldexp(float(odd if abs(odd) < 2**53 else 1), exponent)
    assert lowest_bits([value]).tolist() == [exponent]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_value_is_an_odd_multiple_of_its_lowest_bit(value: float) -> None:
    (lowest,) = lowest_bits([value]).tolist()
    if value == 0.0:
        assert lowest == 1100
    else:
        assert (Fraction(value) / Fraction(2) ** lowest) % 2 == 1


def test_a_float32_keeps_its_own_bits() -> None:
    assert lowest_bits(np.array([0.1], np.float32)).tolist() == [-27]


def test_too_few_or_broken_releases_are_refused() -> None:
    good = RNG.normal(size=200)
    for bad in (good[:99], np.append(good, np.nan), np.append(good, np.inf), good.reshape(2, 100)):
        for here, there in ((bad, good), (good, bad)):
            with pytest.raises(InvalidInput, match="at least 100 finite numbers"):
                audit_precision(here, there, epsilon=1.0, delta=0.0, confidence=0.9, rng=RNG)
    with pytest.raises(InvalidInput, match="epsilon"):
        audit_precision(good, good, epsilon=-1.0, delta=0.0, confidence=0.9, rng=RNG)
    with pytest.raises(InvalidInput, match="delta"):
        audit_precision(good, good, epsilon=1.0, delta=1.0, confidence=0.9, rng=RNG)


def test_delta_is_allowed_for() -> None:
    """A mechanism that gives itself away with probability 0.2 and is silent else: (0, 0.2)-DP."""
    here = np.where(RNG.random(N) < 0.2, 1.0, 0.0)
    there = np.zeros(N)
    for epsilon, delta, rejected in ((0.0, 0.2, False), (3.0, 0.1, True)):
        found = audit_precision(here, there, epsilon=epsilon, delta=delta, confidence=CONFIDENCE, rng=RNG)
        assert found.claim_rejected == rejected


def test_the_simplest_event_by_itself() -> None:
    """|y| < 1/4 and no multiple of 2^-54: a seventh of the releases of 0, and none of 1."""
    for answer, low, high in ((0, 0.12, 0.17), (1, 0.0, 0.0)):
        y = numpy_laplace(answer, N)
        event = (np.abs(y) < 0.25) & (lowest_bits(y) < -54)
        assert low <= event.mean() <= high
