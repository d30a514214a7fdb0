"""The coefficients of correlated noise: those that papers and other projects print, and multi-precision."""

from __future__ import annotations

import functools
import itertools
import math
import os
import subprocess
import sys
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.accounting import account
from tacit.accounting.flatten import matrix_sensitivity, tree_sensitivity
from tacit.correlation import BLT, Banded, BandedInverse, Tree, prefix_error
from tacit.correlation.forms import fitted
from tacit.errors import InvalidInput
from tacit.events import MatrixFactorization, Repeat, TreeAggregation
from tacit.plan import Plan
from tacit.sampling import CyclicPoissonSampling

Floats = NDArray[np.float64]

# jax_privacy (commit 8967688), tests/matrix_factorization/buffered_toeplitz_test.py:
# test_optimize_single_participation_golden, n = 100,000, two buffers, least noise of the last sum.
GOLDEN = ((0.9999528892, 0.9857068667), (0.0122853238, 0.1878393665))
# The same file, test_optimize_better_than_baseline, which takes them to n = 500.
BASELINES = {
    1: BLT((0.9877027559462715,), (0.10595704738115597,)),
    2: BLT((0.993433070819512, 0.6342644427247973), (0.07538320617916519, 0.5144060910151949)),
    3: BLT(
        (0.9934331427558322, 0.6342832547407998, 0.6342732636848848),
        (0.07538346317367392, 0.4808525558278832, 0.0335536865929295),
    ),
}
# google-parfait/confidential-federated-compute, confidential_transform_server_test.cc, ProgramWithDpmf.
FEDERATED = BLT(
    (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
    (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
)
# What `buffered_toeplitz.optimize(error="mean")` of jax_privacy (that commit, jax 0.10.2) finds: T, how often
# a record takes part, how far apart, buffers; root of the mean square of prefix errors, times sensitivity.
JAX_PRIVACY = [
    (500, 1, 1, 1, 3.08263), (500, 1, 1, 2, 2.84188), (500, 1, 1, 3, 2.82991), (500, 1, 1, 4, 2.82956),
    (1000, 2, 500, 1, 4.87836), (1000, 2, 500, 2, 4.44187), (1000, 2, 500, 3, 4.44187),
    (1000, 2, 500, 4, 4.42743), (60, 3, 20, 1, 4.05455), (60, 3, 20, 2, 4.05455), (60, 3, 20, 3, 4.05455),
    (60, 3, 20, 4, 4.05185), (2000, 6, 342, 1, 9.78995), (2000, 6, 342, 2, 9.12677),
    (2000, 6, 342, 3, 9.12677), (2000, 6, 342, 4, 9.11517),
]  # fmt: skip


def price(form: Any, steps: int, participations: int = 1, separation: int = 1) -> float:
    event = form.event(1.0, steps, participations=participations, separation=separation)
    assert isinstance(event, MatrixFactorization)
    return matrix_sensitivity(event)


def last(form: Any, steps: int, participations: int = 1, separation: int = 1) -> float:
    """The noise of the last prefix sum, the largest, at a price of 1."""
    sums = np.cumsum(form.inverse(steps))
    return float(np.linalg.norm(sums)) * price(form, steps, participations, separation)


# --- square roots ----------------------------------------------------------------------------------------


def test_square_roots_are_those_that_are_printed() -> None:
    # Fichtenberger, Henzinger & Upadhyay (2202.11205): f(0) = 1, f(k) = (1 - 1 / (2 k)) f(k - 1).
    assert Banded.square_root(5).coefficients == (1.0, 1 / 2, 3 / 8, 5 / 16, 35 / 128)
    # Kalinin et al. (2505.12128), as jax_privacy's tests print them.
    assert BandedInverse.square_root(5).coefficients == (1.0, -1 / 2, -1 / 8, -1 / 16, -5 / 128)


def test_square_roots_are_binomial_coefficients_to_the_last_digits() -> None:
    """binom(2k, k) / 4^k, and with the factor -1 / (2k - 1), as exact fractions."""
    root, inverse = Banded.square_root(1000).coefficients, BandedInverse.square_root(1000).coefficients
    for k in range(1, 1000):
        exact = Fraction(math.comb(2 * k, k), 4**k)
        assert root[k] == pytest.approx(float(exact), rel=1e-13)
        assert inverse[k] == pytest.approx(float(-exact / (2 * k - 1)), rel=1e-13)


def test_the_sensitivity_of_the_square_root_is_a_constant_of_landau() -> None:
    """The sum of the squares of T coefficients is G_{T-1}: 1 + 1/4, 1 + 1/4 + 9/64, ... (Landau, 1913).

    It is between 1 and 1.0663 above log(T) / pi (Brutman, 1982), in the end (gamma + 4 log 2) / pi (Watson).
    """
    for steps, printed in ((2, 1.25), (3, 1.390625), (4, 1.48828125)):
        assert price(Banded.square_root(steps), steps) ** 2 == pytest.approx(printed, rel=1e-11)
    for k in range(1, 14):
        above = price(Banded.square_root(2**k), 2**k) ** 2 - k * math.log(2) / math.pi
        assert 1 <= above < 1.0663
    assert above == pytest.approx((np.euler_gamma + 4 * math.log(2)) / math.pi, abs=1e-4)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 11])
@pytest.mark.parametrize("times", [1, 4, 11])
def test_all_ones_and_the_identity_have_the_sensitivities_that_are_published(steps: int, times: int) -> None:
    # jax_privacy, toeplitz_test.py: test_sensitivity_squared_tri and _identity.
    ones = MatrixFactorization(1.0, (1.0,) * steps, steps, times, 1)
    assert matrix_sensitivity(ones) == pytest.approx(np.linalg.norm(np.tri(steps)[:, :times].sum(1)))
    assert price(Banded((1.0,)), steps, times) ** 2 == pytest.approx(min(steps, times))


# --- buffers ---------------------------------------------------------------------------------------------


def in_multi_precision(form: BLT, steps: int) -> tuple[list[Any], list[Any]]:
    """The first columns of C and of its inverse, by definition and by division of power series."""
    p, w = [mp.mpf(x) for x in form.decays], [mp.mpf(x) for x in form.scales]
    c = [mp.mpf(1)] + [mp.fsum(w_ * p_**i for p_, w_ in zip(p, w, strict=True)) for i in range(steps - 1)]
    d = [mp.mpf(1)]
    for t in range(1, steps):
        d.append(-mp.fdot(c[1 : t + 1], d[::-1]))
    return c, d


@pytest.mark.parametrize(
    "form", [*BASELINES.values(), FEDERATED, BLT(*GOLDEN), BLT((1.0, -0.4), (0.2, -0.3))]
)
def test_columns_error_and_price_are_those_of_multi_precision(form: BLT) -> None:
    steps = 300
    with mp.workdps(50):
        c, d = in_multi_precision(form, steps)
        sums = [mp.fsum(d[: t + 1]) for t in range(steps)]
        error = mp.sqrt(mp.fsum((steps - t) * s**2 for t, s in enumerate(sums)) / steps)
        norm = mp.sqrt(mp.fsum(x**2 for x in c))
        pairs = zip(form.decays, form.scales, strict=True)
        both = [(mp.mpf(p), mp.mpf(w)) for p, w in pairs]
        closed = 1 + mp.fsum(  # Dvijotham et al. (2404.16706), Lemma 5.3
            v * w * ((1 - (p * q) ** (steps - 1)) / (1 - p * q) if p * q != 1 else steps - 1)
            for p, v in both
            for q, w in both
        )
        assert abs(norm**2 - closed) < 1e-40
        assert np.abs(np.array(form.column(steps)) - np.array([float(x) for x in c])).max() < 1e-15
        assert np.abs(np.array(form.inverse(steps)) - np.array([float(x) for x in d])).max() < 1e-13
        assert prefix_error(form, steps) == pytest.approx(float(error), rel=1e-12)
        assert norm <= price(form, steps) <= norm * (1 + mp.mpf("1e-11"))
        taken = [mp.fsum(c[t - s] for s in (0, 90, 180, 270) if s <= t) for t in range(steps)]
        if min(c) > 0:
            exact = mp.sqrt(mp.fsum(x**2 for x in taken))
            assert exact <= price(form, steps, 4, 90) <= exact * (1 + mp.mpf("1e-11"))


def test_the_fit_finds_the_golden_buffers_of_jax_privacy() -> None:
    """To the four digits that a fit is rounded to, at which its noise is the least all the same."""
    found = fitted(2, np.ones(100_000), 1, 1)
    assert np.allclose((found.decays, found.scales), GOLDEN, rtol=1e-4, atol=0)
    assert last(found, 100_000) <= last(BLT(*GOLDEN), 100_000) * (1 + 1e-8)


ELSEWHERE = [
    {"OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": ""},
    {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512_SKX"},
]
"""As on older processors, of which sums are rounded otherwise."""
FITS = [
    "BLT.optimised(3, 200, participations=4, separation=50)",  # a third buffer, which wins nothing, differed
    "BLT.optimised(12, 200)",
    "BLT.optimised(2, 1000, participations=10, separation=100)",
    "Banded.optimised(4, 100)",
    "BandedInverse.optimised(3, 100)",
]


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("fit", FITS)
def test_the_same_words_are_the_same_plan_on_another_processor(fit: str) -> None:

    def printed(settings: dict[str, str]) -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("OPENBLAS_", "NPY_"))}
        program = f"from tacit.correlation import BLT, Banded, BandedInverse; print({fit})"
        command = [sys.executable, "-W", "ignore", "-c", program]
        return subprocess.run(
            command, env=environment | settings, capture_output=True, text=True, check=True
        ).stdout

    assert len({printed({}), *map(printed, ELSEWHERE)}) == 1


def test_a_buffer_that_wins_nothing_is_not_there() -> None:
    assert len(fit_and_its_cost(3)[0].decays) == 2


@pytest.mark.thorough(cases=4)
@pytest.mark.parametrize(("steps", "participations", "separation", "buffers", "theirs"), JAX_PRIVACY)
def test_the_fit_is_never_worse_than_that_of_jax_privacy(
    steps: int, participations: int, separation: int, buffers: int, theirs: float
) -> None:
    form = BLT.optimised(buffers, steps, participations=participations, separation=separation)
    ours = prefix_error(form, steps) * price(form, steps, participations, separation)
    assert ours <= theirs * (1 + 1e-5)
    if buffers == 1 or participations == 1:  # where both find the least
        assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("buffers", [1, 2, 3])
@pytest.mark.parametrize(("participations", "separation"), [(2, 5), (12, 5), (7, 40), (5, 100)])
def test_the_fit_is_better_than_the_published_baselines(
    buffers: int, participations: int, separation: int
) -> None:
    found = fitted(buffers, np.ones(500), participations, separation)
    theirs = last(BASELINES[buffers], 500, participations, separation)
    assert last(found, 500, participations, separation) < theirs


@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize(
    ("steps", "buffers", "factor"),
    [(10, 1, 1.04), (100, 2, 1.03), (1000, 2, 1.04), (1000, 3, 1.03), (10_000, 1, 1.45), (10_000, 3, 1.03)],
)
def test_the_noise_of_the_last_sum_is_near_the_best_of_any_matrix(
    steps: int, buffers: int, factor: float
) -> None:
    # jax_privacy: test_optimize_single_participation_near_optimal, over the bound of 2404.16706, (2.8).
    bound = 1 + math.log(steps) / math.pi
    assert last(fitted(buffers, np.ones(steps), 1, 1), steps) <= factor * bound


def cost_of(form: BLT) -> float:
    return prefix_error(form, 200) * price(form, 200, 4, 50)


@functools.cache
def fit_and_its_cost(buffers: int) -> tuple[BLT, float]:
    form = BLT.optimised(buffers, 200, participations=4, separation=50)
    assert form.column(200) == tuple(sorted(form.column(200), reverse=True))
    assert min(form.column(200)) > 0 > max(form.inverse(200)[1:])
    return form, cost_of(form)


def test_the_fit_is_least_among_its_neighbours_and_falls_with_the_number_of_buffers() -> None:
    costs = []
    for buffers in (1, 2, 3):
        form, least = fit_and_its_cost(buffers)
        costs.append(least)
        for field in ("decays", "scales"):
            for j in range(len(form.decays)):
                for by in (0.999, 1.001):
                    moved = {"decays": list(form.decays), "scales": list(form.scales)}
                    moved[field][j] *= by
                    other = BLT(tuple(moved["decays"]), tuple(moved["scales"]))
                    assert cost_of(other) > least * (1 - 1e-9)
    assert all(later <= earlier * (1 + 1e-8) for earlier, later in itertools.pairwise(costs))


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("buffers", [4, 12])
def test_more_buffers_than_are_needed_do_no_harm(buffers: int) -> None:
    assert fit_and_its_cost(buffers)[1] <= fit_and_its_cost(3)[1] * (1 + 1e-8)


@pytest.mark.thorough(instead="test_the_fit_is_never_worse_than_that_of_jax_privacy")
def test_three_buffers_are_as_good_as_any_coefficients() -> None:
    few, best = BLT.optimised(3, 200), Banded.optimised(200, 200)
    assert prefix_error(few, 200) * price(few, 200) < 1.0005 * prefix_error(best, 200) * price(best, 200)


def test_three_buffers_do_more_than_64_bands() -> None:
    few, many = BLT.optimised(3, 500), Banded.optimised(64, 500)
    assert prefix_error(few, 500) * price(few, 500) < 0.9 * prefix_error(many, 500) * price(many, 500)


def test_in_several_passes_bands_of_a_pass_are_better_than_buffers() -> None:
    """As the page says."""
    common = {"participations": 10, "separation": 50}
    bands, buffers = Banded.optimised(50, 500, **common), BLT.optimised(3, 500, **common)
    for form, said in ((bands, 10.88), (buffers, 11.50)):
        found = prefix_error(form, 500) * price(form, 500, 10, 50)
        assert found == pytest.approx(said, abs=0.005)


def test_where_records_are_in_each_step_nothing_is_correlated() -> None:
    form = BLT.optimised(2, 12, participations=12)
    assert form.inverse(12)[1:] == pytest.approx([0.0] * 11, abs=1e-6)


@pytest.mark.parametrize(("buffers", "steps"), [(0, 10), (16, 10), (2, 0), (True, 10)])
def test_wrong_sizes_of_a_fit_are_refused(buffers: Any, steps: Any) -> None:
    with pytest.raises(InvalidInput, match=r"buffers|steps"):
        BLT.optimised(buffers, steps)


# --- trees that begin anew -------------------------------------------------------------------------------


def intervals(t: int, each: int) -> list[tuple[int, int]]:
    """The intervals that make up the first t steps: whole trees, then the last one, the largest first."""
    found, at = [], 0
    for tree in [each] * (t // each) + [t % each]:
        left, size = tree, 1 << 40
        while left:
            while size > left:
                size //= 2
            found.append((at, at + size))
            at, left = at + size, left - size
        size = 1 << 40
    return found


@pytest.mark.parametrize("each", [None, 1, 3, 8, 13, 64])
def test_the_sum_of_t_steps_has_the_noise_of_the_intervals_that_make_it_up(each: int | None) -> None:
    steps, form = 64, Tree(each)
    weights: dict[int, float] = {}
    interval_of: dict[int, tuple[int, int]] = {}
    squares = 0.0
    for step in range(steps):
        for address, weight in form.terms(step):
            weights[address] = weights.get(address, 0.0) + weight
        held = {address for address, weight in weights.items() if weight}
        assert all(weights[address] == 1.0 for address in held)
        wanted = intervals(step + 1, each or steps)
        new = held - interval_of.keys()
        known = {interval_of[address] for address in held - new}
        assert known <= set(wanted)
        assert len(new) == len(set(wanted) - known) <= 1, "each address is one interval, for good"
        interval_of |= dict(zip(new, set(wanted) - known, strict=True))
        squares += len(wanted)
    assert len(set(interval_of.values())) == len(interval_of)
    assert form.prefix_error(steps) == pytest.approx(math.sqrt(squares / steps), rel=1e-12)


@pytest.mark.parametrize("each", [None, 2, 3, 5])
@pytest.mark.parametrize(("participations", "separation"), [(1, 1), (2, 1), (2, 3), (3, 2), (2, 5)])
def test_no_pattern_moves_the_nodes_of_the_trees_by_more_than_their_price(
    each: int | None, participations: int, separation: int
) -> None:
    steps, largest = 10, 0.0
    size = each or steps
    event = Tree(each).event(1.0, steps, participations=participations, separation=separation)
    trees, alone = (event.count, event.event) if isinstance(event, Repeat) else (1, event)
    assert isinstance(alone, TreeAggregation)
    nodes = {
        (first + start, first + start + width)
        for first in range(0, steps, size)
        for width in (1, 2, 4, 8)
        for start in range(0, size - width + 1, width)
    }
    for count in range(1, participations + 1):
        for places in itertools.combinations(range(steps), count):
            if all(b - a >= separation for a, b in itertools.pairwise(places)):
                sums = [sum(a <= place < b for place in places) for a, b in nodes]
                largest = max(largest, math.sqrt(sum(number**2 for number in sums)))
    bound = math.sqrt(trees) * tree_sensitivity(alone)
    assert largest <= bound
    if participations == 1:
        assert largest == pytest.approx(bound, rel=1e-9)


def test_a_tree_a_pass_costs_less_than_one_tree_of_all_passes() -> None:
    settings: dict[str, Any] = {
        "noise_multiplier": 4.0, "delta": 1e-5, "records": 1000, "steps": 40, "batch_size": 100,
        "clipping": 1.0, "adjacency": "add-remove", "unit": "row", "sampling": CyclicPoissonSampling(1.0, 10),
    }  # fmt: skip
    one, anew = (Plan.with_noise(correlation=form, **settings) for form in (Tree(), Tree(10)))
    assert anew.epsilon < one.epsilon
    by_hand = account(Repeat(TreeAggregation(4.0, 10), 4), adjacency="add-remove").epsilon(1e-5)
    assert anew.epsilon == pytest.approx(by_hand, rel=1e-9)


def test_a_wrong_restart_is_refused() -> None:
    with pytest.raises(InvalidInput, match="restart_every"):
        Tree(0)
