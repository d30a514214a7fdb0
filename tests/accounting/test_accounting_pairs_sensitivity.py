"""Correlated noise: the change of C g against all patterns of participation, one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from priced import curve_of, toeplitz, tree, worst_pattern

from tacit.accounting import account
from tacit.accounting.flatten import column_norm, matrix_sensitivity, tree_sensitivity
from tacit.events import Event, Gaussian, GroupPrivacy, MatrixFactorization, PoissonSampled, TreeAggregation

coefficients = st.lists(st.floats(-1.0, 1.0), min_size=0, max_size=4).map(lambda rest: (1.0, *rest))


@settings(max_examples=60, deadline=None)
@given(coefficients, st.integers(5, 9), st.integers(1, 4), st.integers(1, 4))
def test_never_below_the_worst_pattern(
    column: tuple[float, ...], steps: int, times: int, separation: int
) -> None:
    """Guarantee of ``matrix_sensitivity``, first bullet."""
    bound = matrix_sensitivity(MatrixFactorization(1.0, column, steps, times, separation))
    assert bound >= worst_pattern(toeplitz(column, steps), times, separation)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5),
    st.integers(5, 9),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_exact_for_coefficients_that_fall(
    drops: list[float], steps: int, times: int, separation: int
) -> None:
    """Second bullet: nonnegative, nonincreasing coefficients."""
    column = tuple(float(value) for value in np.cumprod([1.0, *drops])[:steps])
    bound = matrix_sensitivity(MatrixFactorization(1.0, column, steps, times, separation))
    assert bound == pytest.approx(worst_pattern(toeplitz(column, steps), times, separation), rel=1e-9)


@pytest.mark.parametrize("column", [(1.0, -0.5), (0.3, 0.9, -0.2), (1.0, 0.2, 0.8)])
def test_exact_for_one_participation_and_for_few_bands(column: tuple[float, ...]) -> None:
    """Second bullet: any signs, where the columns of two participations do not meet."""
    once = MatrixFactorization(1.0, column, 9)
    assert matrix_sensitivity(once) == pytest.approx(worst_pattern(toeplitz(column, 9), 1, 1), rel=1e-9)
    assert column_norm(once) == pytest.approx(math.hypot(*column), rel=1e-9)
    apart = MatrixFactorization(1.0, column, 9, 3, 3)
    assert matrix_sensitivity(apart) == pytest.approx(worst_pattern(toeplitz(column, 9), 3, 3), rel=1e-9)


@pytest.mark.parametrize("leaves", [1, 2, 5, 8, 11])
@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("separation", [1, 2, 4])
def test_tree(leaves: int, times: int, separation: int) -> None:
    """Guarantee of ``tree_sensitivity``."""
    truth = worst_pattern(tree(leaves), times, separation)
    bound = tree_sensitivity(TreeAggregation(1.0, leaves, times, separation))
    assert bound >= truth
    assert bound <= 1.35 * truth
    if times == 1:
        assert bound == pytest.approx(truth, rel=1e-9)
        assert bound == pytest.approx(math.sqrt(leaves.bit_length()), rel=1e-9)


def test_long_runs_take_no_time() -> None:
    event = MatrixFactorization(1.0, tuple(0.99**i for i in range(500)), 100_000, 50, 2000)
    assert matrix_sensitivity(event) == pytest.approx(math.sqrt(50 / (1 - 0.99**2)), rel=1e-3)
    assert tree_sensitivity(TreeAggregation(1.0, 10**6, 100, 10**4)) > math.sqrt(100 * 14)


@pytest.mark.parametrize(
    ("event", "noise"),
    [
        (TreeAggregation(4.0, leaves=15), 2.0),
        (MatrixFactorization(5.0, (3.0, -4.0), steps=20), 1.0),
        (MatrixFactorization(5.0, (3.0, 4.0), steps=20, participations=4, separation=2), 0.5),
        (GroupPrivacy(TreeAggregation(4.0, leaves=15), 2), 1.0),
    ],
)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "zero-out"])
@pytest.mark.parametrize("method", ["pld", "gaussian", "rdp"])
def test_correlated_noise_is_one_gaussian(event: Event, noise: float, adjacency: str, method: str) -> None:
    ours = account(event, adjacency=adjacency, method=method).epsilon(1e-6)
    assert ours == pytest.approx(
        account(Gaussian(noise), adjacency=adjacency, method=method).epsilon(1e-6), rel=1e-9
    )


def test_one_sample_for_a_whole_tree() -> None:
    """One subset, all sums of the tree on it: a Poisson sample of one Gaussian."""
    ours = curve_of(PoissonSampled(0.1, TreeAggregation(4.0, leaves=15))).epsilon(1e-6)
    whole = curve_of(PoissonSampled(0.1, Gaussian(2.0))).epsilon(1e-6)
    assert ours == pytest.approx(whole, rel=1e-9)
