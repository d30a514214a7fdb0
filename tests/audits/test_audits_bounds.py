"""Every auditor: published values, sums by hand, false alarms no more often than stated, planted bugs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from experiments.laboratory.repeated import audit_repeated_runs
from tacit.accounting import PrivacyCurve, account
from tacit.audits import AuditResult, Claim, Scores, audit_one_run, claim_test
from tacit.audits.claim import (
    ErrorCounts,
    NoiseFamily,
    count_errors,
    gaussian_epsilon,
    gaussian_false_negatives,
    judged_counts,
    plain_false_negatives,
)
from tacit.audits.one_run import (
    SHARES,
    audit_one_run_by_tradeoff,
    chance_of_right_guesses,
    epsilon_from_guesses,
    mu_from_guesses,
    rehearsed_slot_scores,
    right_guesses,
    slot_scores,
    tradeoff_contradicted,
)
from tacit.errors import InvalidInput
from tacit.events import ApproximateDP, BallsInBins, Event, Gaussian, PoissonSampled, Repeat

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
DELTA = 1e-5


def full_batch(sigma: float) -> Event:
    return Repeat(Gaussian(sigma), 30)


def sampled(sigma: float) -> Event:
    return Repeat(PoissonSampled(0.1, Gaussian(sigma)), 20)


def curve_of(event: Event) -> PrivacyCurve:
    return account(event, adjacency="add-remove")


FULL, SAMPLED = Claim(curve_of(full_batch(4.0)), delta=DELTA), Claim(curve_of(sampled(1.0)), delta=DELTA)
ONE_GAUSSIAN = Claim(curve_of(Gaussian(1.0)), delta=DELTA)


# --- published values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("guesses", [10, 100, 1000, 5000])
def test_all_guesses_right(guesses: int) -> None:
    root = 0.05 ** (1 / guesses)
    found = epsilon_from_guesses(guesses, guesses, guesses, delta=0.0, level=0.05)
    assert found == pytest.approx(math.log(root / (1 - root)))


@pytest.mark.parametrize(
    ("guesses", "right", "delta", "epsilon"),
    [
        (1000, 1000, 1e-5, 5.78),
        (1000, 1000, 1e-4, 5.53),
        (1000, 1000, 1e-3, 3.49),
        (100, 98, DELTA, 2.72),  # as randomised response at epsilon 4 does
        (1000, 982, DELTA, 3.60),
    ],
)
def test_guesses_of_one_run_prove_what_is_printed(
    guesses: int, right: int, delta: float, epsilon: float
) -> None:
    found = epsilon_from_guesses(guesses, guesses, right, delta=delta, level=0.05)
    assert found == pytest.approx(epsilon, abs=5e-3)


@given(st.integers(1, 40), st.data(), st.floats(0.0, 4.0), st.floats(0.0, 1e-2))
@settings(max_examples=40)
def test_chance_is_the_sum_of_the_theorem(
    guessed: int, data: st.DataObject, eps: float, delta: float
) -> None:
    right = data.draw(st.integers(1, guessed))
    q = 1 / (1 + math.exp(-eps))
    mass = [math.comb(guessed, k) * q**k * (1 - q) ** (guessed - k) for k in range(guessed + 1)]
    tail = math.fsum(mass[right:])
    worst = max(math.fsum(mass[right - i : right]) / i for i in range(1, right + 1))
    wanted = min(1.0, tail + 2 * 50 * delta * worst)
    assert chance_of_right_guesses(50, guessed, right, epsilon=eps, delta=delta) == pytest.approx(wanted)


@pytest.mark.parametrize(("right", "guessed", "mu"), [(160, 200, 0.4402), (800, 1000, 0.5756)])
def test_mu_of_one_run(right: int, guessed: int, mu: float) -> None:
    assert mu_from_guesses(1000, guessed, right, level=0.05) == pytest.approx(mu, abs=5e-5)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.2681, 1), (0.5016, 2), (0.9249, 4), (1.666, 8)])
def test_gaussian_epsilon(mu: float, epsilon: float) -> None:
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(epsilon, rel=5e-4)


# --- power where the scores are the best there are --------------------------------------------------------

Cell = tuple[int, float, float, float]


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize(
    ("epsilon", "mu", "cell"),
    [
        (2.0, 0.5016, (1000, 0.79, 1.18, 1.11)),
        (4.0, 0.9249, (1000, 1.50, 2.41, 2.90)),
        (8.0, 1.666, (100, 1.77, 3.48, 4.15)),
    ],
)
def test_ideal_power(epsilon: float, mu: float, cell: Cell) -> None:
    """The reference took the best of a grid of shares in hindsight; here they are fixed beforehand."""
    m, plain, tradeoff, claimed = cell
    claim = Claim(curve_of(Gaussian(1 / mu)), delta=DELTA)
    found = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        coins = rng.random(m) < 0.5
        scores = coins * mu + rng.normal(0.0, 1.0, m)
        rehearsal = Scores(rng.normal(mu, 1.0, 5000), rng.normal(0.0, 1.0, 5000))
        split = Scores.of(scores, coins)
        found.append(
            [
                audit_one_run(scores, coins, delta=DELTA, confidence=0.95, rng=rng).eps_lower,
                audit_one_run_by_tradeoff(scores, coins, delta=DELTA, confidence=0.95, rng=rng).eps_lower,
                claim_test(split, claim, confidence=0.95, rng=rng, rehearsals=(rehearsal,)).eps_lower,
            ]
        )
    b, c, a = np.mean(found, axis=0)
    assert 0.5 * plain < b < 1.15 * plain
    assert 0.6 * tradeoff < c < 1.15 * tradeoff
    assert claimed < a < epsilon  # the joint region of two errors proves more than a bound on each


# --- the trade-off table and the joint region -------------------------------------------------------------


def many_rates() -> Array:
    rng = np.random.default_rng(0)
    rates = np.concatenate([rng.uniform(0, 1, 50), np.exp(rng.uniform(-25, -1, 50)), [0.0, 1.0]])
    return np.concatenate([rates, 1.0 - rates])


def test_the_table_never_exceeds_the_truth() -> None:
    rates = many_rates()
    table, truth = FULL.false_negatives(rates), stats.norm.cdf(stats.norm.isf(rates) - math.sqrt(30) / 4)
    assert (table <= truth + 1e-12).all()
    assert (table >= truth - 1e-3).all()


def test_the_table_is_the_curve() -> None:
    rates = many_rates()
    table, curve = SAMPLED.false_negatives(rates), SAMPLED.curve.false_negative_rate(rates)
    assert np.allclose(table, curve, rtol=0, atol=1e-3)
    assert (table <= curve + 1e-5).all()  # either is a bound; the search of both is good to some 1e-6


def test_a_group_curve_is_refused() -> None:
    with pytest.raises(InvalidInput, match="for 3 records together"):
        Claim(FULL.curve.group(3), delta=DELTA)


def brute_contradicts(counts: ErrorCounts, f: Callable[[float], float], level: float) -> bool:
    m, n, w = counts.non_members, counts.members, counts.weight
    seen = w * counts.false_positives / m + counts.false_negatives / n
    few = [(x, y) for x in range(m + 1) for y in range(n + 1) if w * x / m + y / n <= seen + 1e-12]
    for a in np.linspace(0.0, 1.0, 401):
        p, q = stats.binom.pmf(np.arange(m + 1), m, a), stats.binom.pmf(np.arange(n + 1), n, f(a))
        if math.fsum(p[x] * q[y] for x, y in few) > level:
            return False
    return True


@given(
    st.integers(0, 9), st.integers(0, 9), st.sampled_from([0.5, 1.0, 3.0]), st.floats(0.0, 3.0), st.booleans()
)
@settings(max_examples=40, deadline=None)
def test_joint_region_is_what_the_sum_over_all_counts_says(
    x: int, y: int, weight: float, mu: float, loose: bool
) -> None:
    counts = ErrorCounts(0.0, weight, x, 9, y, 9)
    level = 0.2 if loose else 0.02
    found = counts.contradicts(lambda a: gaussian_false_negatives(a, mu), level)
    if found:
        assert brute_contradicts(
            counts, lambda a: float(gaussian_false_negatives([a], mu)[0]), level * (1 + 1e-9)
        )
    else:
        assert not brute_contradicts(
            counts, lambda a: float(gaussian_false_negatives([a], mu)[0]), 0.9 * level
        )


def test_no_signal_is_no_contradiction_of_perfect_privacy_more_often_than_stated() -> None:
    """The size of the region itself, at its boundary: exact, over all pairs of counts."""
    rate, level = 0.3, 0.1
    p = stats.binom.pmf(np.arange(13), 12, rate)
    q = stats.binom.pmf(np.arange(13), 12, 1 - rate)
    wrong = math.fsum(
        p[x] * q[y]
        for x, y in itertools.product(range(13), range(13))
        if ErrorCounts(0.0, 1.0, x, 12, y, 12).contradicts(lambda a: 1.0 - a, level)
    )
    assert level / 20 < wrong <= level


# --- false alarms -----------------------------------------------------------------------------------------

RUNS, LEVEL = 2000, 0.05
Experiment = Callable[[np.random.Generator], tuple[Array, Bools]]


def too_many(alarms: int, runs: int = RUNS, level: float = LEVEL) -> bool:
    """Return whether chance gives this many false alarms with probability below 1e-4 at the stated level."""
    return bool(stats.binom.sf(alarms - 1, runs, level) < 1e-4)


def coins_of(rng: np.random.Generator, m: int) -> Bools:
    return rng.random(m) < 0.5


def randomised_response(rng: np.random.Generator) -> tuple[Array, Bools]:
    coins = coins_of(rng, 200)
    return (coins ^ (rng.random(200) > 1 / (1 + math.exp(-1.0)))).astype(np.float64), coins


def one_gaussian(rng: np.random.Generator) -> tuple[Array, Bools]:
    coins = coins_of(rng, 200)
    return coins + rng.standard_normal(200), coins


def subsampled_gaussian(rng: np.random.Generator) -> tuple[Array, Bools]:
    coins = coins_of(rng, 200)
    x = (coins & (rng.random((20, 200)) < 0.1)) + rng.standard_normal((20, 200))
    return slot_scores(x, sampling_rate=0.1, noise_multiplier=1.0), coins


def balls_in_bins(rng: np.random.Generator) -> tuple[Array, Bools]:
    coins = coins_of(rng, 200)
    bins = rng.integers(10, size=(2, 1, 200))
    x = (coins & (bins == np.arange(10)[:, None])) + rng.standard_normal((2, 10, 200))
    x = x.reshape(20, 200)
    return slot_scores(x, sampling_rate=0.1, noise_multiplier=1.0, once_an_epoch=True), coins


def no_signal(rng: np.random.Generator) -> tuple[Array, Bools]:
    return rng.standard_normal(200), coins_of(rng, 200)


WORLDS: dict[str, tuple[Experiment, Claim]] = {
    "randomised response": (
        randomised_response,
        Claim(curve_of(ApproximateDP(1.0, 0.0)), delta=DELTA),
    ),
    "Gaussian": (one_gaussian, ONE_GAUSSIAN),
    "subsampled Gaussian": (subsampled_gaussian, SAMPLED),
    "balls in bins": (
        balls_in_bins,
        Claim(curve_of(Repeat(BallsInBins(10, Gaussian(1.0)), 2)), delta=DELTA),
    ),
    "no signal": (no_signal, Claim(curve_of(ApproximateDP(1e-3, 0.0)), delta=DELTA)),
}


def rehearsed(experiment: Experiment) -> Scores:
    parts = [Scores.of(*experiment(np.random.default_rng(10**6 + i))) for i in range(10)]
    return Scores(
        np.concatenate([part.members for part in parts]), np.concatenate([part.non_members for part in parts])
    )


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("name", WORLDS)
def test_the_claim_test_rejects_true_claims_no_more_often_than_stated(name: str) -> None:
    """On the very event on which all its bounds hang: whatever they exceed, it contradicts."""
    experiment, claim = WORLDS[name]
    alarms = {"halves": 0, "rehearsed": 0}
    rehearsal = rehearsed(experiment)
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        scores = Scores.of(*experiment(rng))
        for kind, rehearsals in (("halves", ()), ("rehearsed", (rehearsal,))):
            seen = judged_counts(scores, claim, confidence=1 - LEVEL, rng=rng, rehearsals=rehearsals)
            alarms[kind] += any(part.contradicts(claim.false_negatives, level) for part, level in seen)
    assert not any(too_many(count) for count in alarms.values()), alarms


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("name", WORLDS)
def test_one_run_bounds_exceed_the_truth_no_more_often_than_stated(name: str) -> None:
    experiment, claim = WORLDS[name]
    plain = tradeoff = 0
    contradicted: dict[tuple[int, int], bool] = {}
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        scores, coins = experiment(rng)
        plain += (
            audit_one_run(scores, coins, delta=DELTA, confidence=1 - LEVEL, rng=rng).eps_lower > claim.epsilon
        )
        alarm = False
        for share in SHARES:
            key = right_guesses(scores, coins, share, rng)
            if key not in contradicted:
                contradicted[key] = tradeoff_contradicted(
                    200, *key, claim.false_negatives, level=LEVEL / len(SHARES)
                )
            alarm |= contradicted[key]
        tradeoff += alarm
    assert not too_many(plain), plain
    assert not too_many(tradeoff), tradeoff


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("name", WORLDS)
def test_bounds_of_repeated_runs_exceed_the_truth_no_more_often_than_stated(name: str) -> None:
    """``eps_lower`` supposes Gaussian differential privacy, where it says so: what does not may exceed it."""
    experiment, claim = WORLDS[name]
    alarms = 0
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        scores = Scores.of(*experiment(rng))
        found = audit_repeated_runs(scores, delta=DELTA, confidence=1 - LEVEL, rng=rng, claim=claim)
        bound = found.eps_lower if name == "Gaussian" else found.eps_lower_any
        alarms += bound > claim.epsilon or bool(found.claim_rejected)
    assert not too_many(alarms), alarms


def test_the_check_on_false_alarms_sees_an_invalid_auditor() -> None:
    """The best of many thresholds on the very records that are judged, at the level of one."""
    alarms = 0
    claim = WORLDS["no signal"][1]

    def choose(false_positives: Array, false_negatives: Array) -> Array:
        return 1.0 - false_positives - false_negatives

    for seed in range(RUNS // 4):
        scores = Scores.of(*no_signal(np.random.default_rng(seed)))
        best = count_errors(scores, scores, choose, level=LEVEL)
        alarms += best.contradicts(claim.false_negatives, LEVEL)
    assert too_many(alarms, RUNS // 4), alarms


def test_the_check_on_false_alarms_sees_a_slightly_wrong_claim() -> None:
    alarms = 0
    claim = Claim(curve_of(Gaussian(1.6)), delta=DELTA)
    for seed in range(RUNS // 4):
        rng = np.random.default_rng(seed)
        seen = judged_counts(Scores.of(*one_gaussian(rng)), claim, confidence=1 - LEVEL, rng=rng)
        alarms += any(part.contradicts(claim.false_negatives, level) for part, level in seen)
    assert too_many(alarms, RUNS // 4), alarms


# --- what bounds must not do ------------------------------------------------------------------------------


def test_ties_say_nothing_even_if_the_canaries_are_sorted_by_their_coins() -> None:
    coins = np.array([False] * 500 + [True] * 500)
    rng = np.random.default_rng(0)
    constant = np.zeros(1000)
    assert audit_one_run(constant, coins, delta=DELTA, confidence=0.95, rng=rng).eps_lower < 0.2
    assert audit_one_run_by_tradeoff(constant, coins, delta=DELTA, confidence=0.95, rng=rng).eps_lower < 0.5
    found = claim_test(Scores.of(constant, coins), FULL, confidence=0.95, rng=rng)
    assert (found.eps_lower, found.claim_rejected) == (0.0, False)
    assert (
        audit_repeated_runs(Scores.of(constant, coins), delta=0.0, confidence=0.95, rng=rng).eps_lower == 0.0
    )


def test_a_turned_sign_proves_nothing() -> None:
    rng = np.random.default_rng(0)
    coins = coins_of(rng, 1000)
    scores = -(3.0 * coins + rng.standard_normal(1000))
    results = [
        audit_one_run(scores, coins, delta=DELTA, confidence=0.95, rng=rng),
        audit_one_run_by_tradeoff(scores, coins, delta=DELTA, confidence=0.95, rng=rng),
        claim_test(Scores.of(scores, coins), FULL, confidence=0.95, rng=rng),
        audit_repeated_runs(Scores.of(scores, coins), delta=DELTA, confidence=0.95, rng=rng),
    ]
    assert [result.eps_lower for result in results] == [0.0] * 4
    assert not any(result.claim_rejected for result in results)


@pytest.mark.parametrize("audit", [audit_one_run, audit_one_run_by_tradeoff], ids=["plain", "tradeoff"])
def test_what_is_no_experiment_is_refused(audit: Callable[..., AuditResult]) -> None:
    rng = np.random.default_rng(0)

    def run(scores: object, coins: object, **more: object) -> AuditResult:
        return audit(scores, coins, **{"delta": DELTA, "confidence": 0.95, "rng": rng, **more})

    with pytest.raises(InvalidInput, match="there are no scores"):
        run(np.empty(0), np.empty(0, dtype=bool))
    with pytest.raises(InvalidInput, match="random halves are hardly ever so unequal"):
        run(np.arange(40.0), np.ones(40, dtype=bool))
    with pytest.raises(InvalidInput, match="1 of 2 scores are not finite"):
        run([math.nan, 1.0], [True, False])
    with pytest.raises(InvalidInput, match="one boolean per score"):
        run([0.0, 1.0], [1, 0])
    with pytest.raises(InvalidInput, match="confidence"):
        run([0.0, 1.0], [True, False], confidence=0.3)
    with pytest.raises(InvalidInput, match="delta"):
        run([0.0, 1.0], [True, False], delta=1.0)
    with pytest.raises(InvalidInput, match="share"):
        run([0.0, 1.0], [True, False], shares=())


def test_claim_test_refuses_what_makes_no_sense() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidInput, match="at least 2 members and 2 non-members"):
        claim_test(Scores([1.0], [0.0] * 4), FULL, confidence=0.95, rng=rng)


@given(st.integers(1, 300), st.data(), st.floats(0.0, 1e-3))
@settings(max_examples=40, deadline=None)
def test_more_right_guesses_prove_more_and_delta_and_canaries_cost(
    guessed: int, data: st.DataObject, delta: float
) -> None:
    right = data.draw(st.integers(0, guessed - 1))

    def epsilon(canaries: int, right: int, delta: float) -> float:
        return epsilon_from_guesses(canaries, guessed, right, delta=delta, level=0.05)

    here = epsilon(400, right, delta)
    assert epsilon(400, right + 1, delta) >= here
    assert epsilon(400, right, 2 * delta) <= here + 1e-9
    assert epsilon(800, right, delta) <= here + 1e-9
    assert mu_from_guesses(400, guessed, right + 1, level=0.05) >= mu_from_guesses(
        400, guessed, right, level=0.05
    )


# --- slots ------------------------------------------------------------------------------------------------


def test_slot_score_is_the_log_likelihood_ratio() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0.3, 1.0, (5, 7))
    inside = 0.8 * stats.norm.pdf(x, 0.0, 0.7) + 0.2 * stats.norm.pdf(x, 1.0, 0.7)
    wanted = np.log(inside / stats.norm.pdf(x, 0.0, 0.7)).sum(axis=0)
    assert np.allclose(slot_scores(x, sampling_rate=0.2, noise_multiplier=0.7), wanted)
    shifts = np.eye(5)[:, :, None]  # in which of the five steps of an epoch a canary is
    once = stats.norm.pdf(x, shifts, 0.7).prod(axis=1).mean(axis=0)
    wanted = np.log(once / stats.norm.pdf(x, 0.0, 0.7).prod(axis=0))
    twice = np.concatenate([x, x])
    assert np.allclose(
        slot_scores(twice, sampling_rate=0.2, noise_multiplier=0.7, once_an_epoch=True), 2 * wanted
    )
    assert np.isfinite(slot_scores(1e4 * x, sampling_rate=0.2, noise_multiplier=0.1)).all()
    for wrong, message in (
        (x[0], r"shape \(steps, slots\)"),
        (np.full((1, 2), math.nan), "2 of 2"),
    ):
        with pytest.raises(InvalidInput, match=message):
            slot_scores(wrong, sampling_rate=0.2, noise_multiplier=1.0)


FAMILY = NoiseFamily(full_batch, claimed_noise=4.0, name="30 steps of Gaussian noise")
REHEARSED = tuple(
    rehearsed_slot_scores(
        steps=30, sampling_rate=1.0, noise_multiplier=4.0, true_noise=noise, rng=np.random.default_rng(7)
    )
    for noise in (4.0, 3.2)
)


def audit_full_batch(less_noise: float, seed: int) -> AuditResult:
    rng = np.random.default_rng(seed)
    coins = coins_of(rng, 1000)
    x = coins + 4.0 / less_noise * rng.standard_normal((30, 1000))
    scores = Scores.of(slot_scores(x, sampling_rate=1.0, noise_multiplier=4.0), coins)
    return claim_test(scores, FULL, confidence=0.95, rng=rng, rehearsals=REHEARSED[:1], family=FAMILY)


def test_slots_prove_most_of_what_is_claimed() -> None:
    """6.33 is claimed; a prototype with a bound on each rate proved 5.07."""
    found = [audit_full_batch(1.0, seed) for seed in range(6)]
    assert np.mean([result.eps_lower for result in found]) > 5.0
    assert sum(bool(result.claim_rejected) for result in found) <= 2
    assert all(result.noise_at_most is not None for result in found)
    assert "not safety" in found[0].sentence()


def test_slots_find_half_of_the_noise() -> None:
    for seed in range(3):
        result = audit_full_batch(2.0, seed)
        assert result.claim_rejected
        assert result.eps_lower > 9.0
        assert "CONTRADICTED" in result.sentence()
        assert result.noise_at_most is not None
        assert 2.0 < result.noise_at_most < 3.2


def test_too_little_noise_by_a_quarter_is_found_at_one_percent() -> None:
    """m = 2000, T = 200, q = 0.1, sigma = 1: at least 9 of 10, and the correct code in 0 of 20."""
    event = Repeat(PoissonSampled(0.1, Gaussian(1.0)), 200)
    claim = Claim(curve_of(event), delta=DELTA)
    rehearsals = tuple(
        rehearsed_slot_scores(
            steps=200,
            sampling_rate=0.1,
            noise_multiplier=1.0,
            true_noise=noise,
            rng=np.random.default_rng(3),
            slots=5000,
        )
        for noise in (1.0, 0.8)
    )

    def rejected(noise: float, seed: int) -> bool:
        rng = np.random.default_rng(seed)
        coins = coins_of(rng, 2000)
        x = (coins & (rng.random((200, 2000)) < 0.1)) + noise * rng.standard_normal((200, 2000))
        scores = Scores.of(slot_scores(x, sampling_rate=0.1, noise_multiplier=1.0), coins)
        seen = judged_counts(scores, claim, confidence=0.99, rng=rng, rehearsals=rehearsals)
        return any(part.contradicts(claim.false_negatives, level) for part, level in seen)

    assert sum(rejected(0.8, seed) for seed in range(10)) >= 9
    assert sum(rejected(1.0, seed) for seed in range(20)) == 0


def test_family_of_no_evidence_has_no_noise() -> None:
    rng = np.random.default_rng(0)
    scores = Scores(rng.standard_normal(40), rng.standard_normal(40))
    found = claim_test(scores, FULL, confidence=0.95, rng=rng, family=FAMILY)
    assert (found.noise_at_most, found.eps_lower, found.family) == (None, 0.0, None)


def test_plain_tradeoff_is_the_hull_of_three_lines() -> None:
    rates = np.linspace(0, 1, 11)
    curve = curve_of(ApproximateDP(1.0, 0.01)).false_negative_rate(rates)
    assert np.allclose(plain_false_negatives(rates, 1.0, 0.01), curve, atol=1e-6)
