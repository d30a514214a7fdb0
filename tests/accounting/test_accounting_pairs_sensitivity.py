"""Correlated noise: the change of C g against all patterns of participation, one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tacit.accounting import account
from tacit.accounting.flatten import column_norm, matrix_sensitivity, tree_sensitivity
from tacit.events import Event, Gaussian, GroupPrivacy, MatrixFactorization, PoissonSampled, TreeAggregation

Matrix = NDArray[np.float64]


def patterns(steps: int, times: int, separation: int) -> Iterator[tuple[int, ...]]:
    """All sets of at most ``times`` steps that are ``separation`` or more apart."""
    for size in range(1, times + 1):
        for chosen in combinations(range(steps), size):
            if all(b - a >= separation for a, b in pairwise(chosen)):
                yield chosen


def toeplitz(coefficients: tuple[float, ...], steps: int) -> Matrix:
    matrix = np.zeros((steps, steps))
    for i in range(steps):
        for lag, value in enumerate(coefficients):
            if i + lag < steps:
                matrix[i + lag, i] = value
    return matrix


def tree(leaves: int) -> Matrix:
    """One row for every complete dyadic interval."""
    rows = []
    size = 1
    while size <= leaves:
        for start in range(0, leaves - size + 1, size):
            row = np.zeros(leaves)
            row[start : start + size] = 1.0
            rows.append(row)
        size *= 2
    return np.array(rows)


def worst(matrix: Matrix, times: int, separation: int) -> float:
    """The largest norm of the change, when the record's vectors are +1 or -1: a lower bound on the truth."""
    found = 0.0
    for chosen in patterns(matrix.shape[1], times, separation):
        columns = matrix[:, chosen]
        for signs in range(1 << (len(chosen) - 1)):
            vector = np.array([1.0, *(1.0 - 2.0 * (signs >> i & 1) for i in range(len(chosen) - 1))])
            found = max(found, float(np.linalg.norm(columns @ vector)))
    return found


coefficients = st.lists(st.floats(-1.0, 1.0), min_size=0, max_size=4).map(lambda rest: (1.0, *rest))


@settings(max_examples=60, deadline=None)
@given(coefficients, st.integers(5, 9), st.integers(1, 4), st.integers(1, 4))
def test_never_below_the_worst_pattern(
    column: tuple[float, ...], steps: int, times: int, separation: int
) -> None:
    """Guarantee of ``matrix_sensitivity``, first bullet."""
    bound = matrix_sensitivity(MatrixFactorization(1.0, column, steps, times, separation))
    assert bound >= worst(toeplitz(column, steps), times, separation)


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
    assert bound == pytest.approx(worst(toeplitz(column, steps), times, separation), rel=1e-9)


@pytest.mark.parametrize("column", [(1.0, -0.5), (0.3, 0.9, -0.2), (1.0, 0.2, 0.8)])
def test_exact_for_one_participation_and_for_few_bands(column: tuple[float, ...]) -> None:
    """Second bullet: any signs, where the columns of two participations do not meet."""
    once = MatrixFactorization(1.0, column, 9)
    assert matrix_sensitivity(once) == pytest.approx(worst(toeplitz(column, 9), 1, 1), rel=1e-9)
    assert column_norm(once) == pytest.approx(math.hypot(*column), rel=1e-9)
    apart = MatrixFactorization(1.0, column, 9, 3, 3)
    assert matrix_sensitivity(apart) == pytest.approx(worst(toeplitz(column, 9), 3, 3), rel=1e-9)


@pytest.mark.parametrize("leaves", [1, 2, 5, 8, 11])
@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("separation", [1, 2, 4])
def test_tree(leaves: int, times: int, separation: int) -> None:
    """Guarantee of ``tree_sensitivity``."""
    truth = worst(tree(leaves), times, separation)
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
    ours = account(PoissonSampled(0.1, TreeAggregation(4.0, leaves=15)), adjacency="add-remove").epsilon(1e-6)
    whole = account(PoissonSampled(0.1, Gaussian(2.0)), adjacency="add-remove").epsilon(1e-6)
    assert ours == pytest.approx(whole, rel=1e-9)
