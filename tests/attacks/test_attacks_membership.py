"""Attacks on membership: a world in which the best test is known, formulas by hand, planted errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from tacit.attacks import Scores
from tacit.attacks.membership import (
    ShadowScores,
    bavaria,
    lira_offline,
    lira_online,
    log_probability,
    logit_margin,
    loss_threshold,
    rmia_offline,
    rmia_online,
)
from tacit.errors import InvalidInput

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class World:
    """n records, each with its own difficulty and its own gain from being trained on; K shadows."""

    shadows: ShadowScores
    is_member: Bools
    best: Array  # the log-likelihood ratio of who knows all parameters


def halves(rng: np.random.Generator, k: int, n: int) -> Bools:
    """Each record in exactly half of the k shadows."""
    return np.argsort(rng.random((k, n)), axis=0) < k // 2


def gaussian_world(k: int, n: int = 4000, *, seed: int = 0, gain: float = 1.5) -> World:
    rng = np.random.default_rng(seed)
    hard = rng.normal(0.0, 3.0, n)
    gains = gain * rng.gamma(1.0, 1.0, n)  # most records gain little, some much
    trained_on = halves(rng, k, n)
    shadows = hard + gains * trained_on + rng.normal(0.0, 1.0, (k, n))
    is_member = rng.random(n) < 0.5
    target = hard + gains * is_member + rng.normal(0.0, 1.0, n)
    best = ((target - hard) ** 2 - (target - hard - gains) ** 2) / 2.0
    return World(ShadowScores(target, shadows, trained_on), is_member, best)


def auc(world: World, values: Array) -> float:
    return Scores.of(values, world.is_member).auc()


# --- against the best possible test -----------------------------------------------------------------------


def test_with_many_shadows_the_ratio_attacks_are_as_good_as_the_best_test() -> None:
    world = gaussian_world(128)
    best = auc(world, world.best)
    assert 0.70 < best < 0.85
    for attack in (lira_online, bavaria):
        assert auc(world, attack(world.shadows)) > best - 0.01
        assert auc(world, attack(world.shadows)) < best + 0.005
    assert best - 0.1 < auc(world, lira_offline(world.shadows)) < best
    assert auc(world, loss_threshold(-world.shadows.target)) < best - 0.1


@pytest.mark.parametrize("k", [4, 8, 16])
def test_with_few_shadows_the_prior_helps(k: int) -> None:
    world = gaussian_world(k)
    own = auc(world, bavaria(world.shadows))
    assert own > auc(world, loss_threshold(-world.shadows.target)) + 0.03
    assert own > auc(world, lira_online(world.shadows, pooled=False)) + 0.005
    assert own > auc(world, lira_online(world.shadows)) - 0.01


def test_two_shadows_are_enough_to_go_on() -> None:
    """One score in each world: only BaVarIA's prior has no spread to take, as LiRA has none."""
    world = gaussian_world(2)
    with pytest.raises(InvalidInput, match="spread of scores cannot be estimated"):
        lira_online(world.shadows)
    with pytest.raises(InvalidInput, match="spread of scores cannot be estimated"):
        bavaria(world.shadows)


# --- formulas ---------------------------------------------------------------------------------------------


def test_predictive_is_the_integral_over_the_posterior() -> None:
    """BaVarIA's density is the average of Gaussian densities over the posterior of mean and variance."""
    ins, outs, target = [1.0, 2.5, 3.0], [-1.0, 0.5, 0.0], 2.0
    shadows = ShadowScores([target], np.array([ins + outs]).T, np.array([[True] * 3 + [False] * 3]).T)
    k0, nu0 = 0.5, 3.0
    logs = []
    for scores in (ins, outs):
        mu0, v0 = float(np.mean(scores)), float(np.var(scores, ddof=1))
        variance = np.exp(np.linspace(-7.0, 8.0, 601))[:, None]
        mean = np.linspace(-20.0, 20.0, 2001)[None, :]
        prior = stats.invgamma.logpdf(variance, nu0 / 2, scale=nu0 * v0 / 2)
        log = prior + stats.norm.logpdf(mean, mu0, np.sqrt(variance / k0)) + np.log(variance)
        for score in scores:
            log = log + stats.norm.logpdf(score, mean, np.sqrt(variance))
        weight = np.exp(log - log.max())
        density = np.exp(stats.norm.logpdf(target, mean, np.sqrt(variance)))
        logs.append(math.log((weight * density).sum() / weight.sum()))
    found = bavaria(shadows, prior_scores=k0, prior_freedom=nu0)[0]
    assert found == pytest.approx(logs[0] - logs[1], abs=1e-3)


def test_lira_is_the_ratio_of_two_normal_densities() -> None:
    world = gaussian_world(64, 20)
    found = lira_online(world.shadows, pooled=False)
    one_sided = lira_offline(world.shadows, pooled=False)
    for j in range(20):
        mask = world.shadows.trained_on[:, j]
        a, b = world.shadows.shadows[mask, j], world.shadows.shadows[~mask, j]
        x = world.shadows.target[j]
        wanted = stats.norm.logpdf(x, a.mean(), a.std(ddof=1)) - stats.norm.logpdf(x, b.mean(), b.std(ddof=1))
        assert found[j] == pytest.approx(wanted)
        assert one_sided[j] == pytest.approx(stats.norm.logcdf(x, b.mean(), b.std(ddof=1)))
    assert np.array_equal(found, lira_online(world.shadows))  # 64 shadows: their own variance
    pooled = lira_online(world.shadows, pooled=True)
    assert not np.allclose(found, pooled)


def test_pooled_variance_is_within_records() -> None:
    """Not the spread of all scores, which is mostly that of the records' difficulty."""
    world = gaussian_world(16).shadows.world(member=False)
    assert world.pooled_variance() == pytest.approx(1.0, abs=0.05)


def test_rmia_is_what_its_definition_says() -> None:
    rng = np.random.default_rng(0)
    k, n, outside = 6, 5, 11
    shadows, target = np.log(rng.uniform(0.01, 1.0, (k, n))), np.log(rng.uniform(0.01, 1.0, n))
    z_shadows, z_target = np.log(rng.uniform(0.01, 1, (k, outside))), np.log(rng.uniform(0.01, 1, outside))
    mask = halves(rng, k, n)
    scores = ShadowScores(target, shadows, mask)
    online = rmia_online(scores, z_target, z_shadows, gamma=1.5)
    offline = rmia_offline(scores, z_target, z_shadows, slope=0.3, gamma=1.5)
    for j in range(n):
        inside, out = np.exp(shadows[mask[:, j], j]).mean(), np.exp(shadows[~mask[:, j], j]).mean()
        z = np.exp(z_shadows).mean(axis=0)
        ratio = np.exp(target[j]) / ((inside + out) / 2)
        assert online[j] == pytest.approx(np.mean(ratio / (np.exp(z_target) / z) >= 1.5), abs=2e-9)
        ratio = np.exp(target[j]) / ((1.3 * out + 0.7) / 2)
        wanted = np.mean(ratio / (np.exp(z_target) / ((1.3 * z + 0.7) / 2)) >= 1.5)
        assert offline[j] == pytest.approx(wanted, abs=2e-9)
    assert ((online >= 0.0) & (online <= 1.0)).all()
    assert np.unique(online).size == n  # ties are ordered


def test_rmia_finds_members() -> None:
    rng = np.random.default_rng(2)
    k, n = 16, 3000
    hard = rng.normal(0.0, 2.0, n)
    mask, member = halves(rng, k, n), rng.random(n) < 0.5

    def log_p(margin: Array) -> Array:
        return -np.logaddexp(0.0, -margin)

    scores = ShadowScores(
        log_p(hard + 2.0 * member + rng.normal(0, 0.7, n)),
        log_p(hard + 2.0 * mask + rng.normal(0, 0.7, (k, n))),
        mask,
    )
    z = rng.normal(0.0, 2.0, 1000)
    z_target, z_shadows = log_p(z + rng.normal(0, 0.7, 1000)), log_p(z + rng.normal(0, 0.7, (k, 1000)))
    loss = Scores.of(scores.target, member).auc()
    for values in (
        rmia_online(scores, z_target, z_shadows),
        rmia_offline(scores, z_target, z_shadows, slope=0.3),
    ):
        assert Scores.of(values, member).auc() > loss + 0.1


def test_scores_from_logits() -> None:
    logits = np.random.default_rng(0).normal(0.0, 3.0, (2, 7, 4))
    labels = np.arange(7) % 4
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    true = p[:, np.arange(7), labels]
    assert np.allclose(log_probability(logits, labels), np.log(true))
    assert np.allclose(logit_margin(logits, labels), np.log(true / (1.0 - true)))
    assert logit_margin([[800.0, 0.0]], [0]).item() == 800.0
    assert logit_margin([[800.0, 0.0]], [1]).item() == -800.0


# --- known answers and planted errors ---------------------------------------------------------------------

Attack = Callable[[ShadowScores], Array]
ATTACKS: dict[str, Attack] = {
    "lira online": lira_online,
    "lira offline": lira_offline,
    "bavaria": bavaria,
    "loss": lambda scores: loss_threshold(-scores.target),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_lookup_table_gives_everybody_away_and_an_untrained_model_nobody(name: str) -> None:
    rng = np.random.default_rng(1)
    member, mask = rng.random(400) < 0.5, halves(rng, 8, 400)
    noise = rng.normal(0.0, 0.1, (9, 400))
    table = ShadowScores(50.0 * member + noise[8], 50.0 * mask + noise[:8], mask)
    assert Scores.of(ATTACKS[name](table), member).auc() == 1.0
    nothing = ShadowScores(noise[8], noise[:8], mask)
    assert abs(Scores.of(ATTACKS[name](nothing), member).auc() - 0.5) < 0.1


def test_rmia_known_answers() -> None:
    rng = np.random.default_rng(1)
    member, mask = rng.random(400) < 0.5, halves(rng, 8, 400)
    table = ShadowScores(np.where(member, -0.01, -5.0), np.where(mask, -0.01, -5.0), mask)
    values = rmia_online(table, np.full(50, -5.0), np.full((8, 50), -5.0))
    assert Scores.of(values, member).auc() == 1.0
    constant = ShadowScores(np.full(400, -1.0), np.full((8, 400), -1.0), mask)
    values = rmia_online(constant, np.full(50, -1.0), np.full((8, 50), -1.0))
    assert Scores.of(values, member).auc() == 0.5
    with pytest.raises(InvalidInput, match="all 400 scores"):
        Scores.of(values, member).check_not_constant()


@pytest.mark.parametrize("name", ["lira online", "bavaria"])
def test_swapped_worlds_are_seen(name: str) -> None:
    world = gaussian_world(16, 1000)
    swapped = ShadowScores(world.shadows.target, world.shadows.shadows, ~world.shadows.trained_on)
    Scores.of(ATTACKS[name](world.shadows), world.is_member).check_direction()
    with pytest.raises(InvalidInput, match="swapped"):
        Scores.of(ATTACKS[name](swapped), world.is_member).check_direction()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_turned_sign_is_seen(name: str) -> None:
    """Losses given as scores, to the attacks whose answer depends on it."""
    world = gaussian_world(16, 1000, gain=3.0)
    turned = ShadowScores(-world.shadows.target, -world.shadows.shadows, world.shadows.trained_on)
    values = Scores.of(ATTACKS[name](turned), world.is_member)
    if name in ("lira online", "bavaria"):  # they learn the sign from the shadows
        assert values.auc() == pytest.approx(auc(world, ATTACKS[name](world.shadows)))
    else:
        with pytest.raises(InvalidInput, match="swapped"):
            values.check_direction()


def test_one_sided_offline_attack_is_not_fooled_by_bad_fits() -> None:
    """A record that the target fits far *worse* than any shadow is no member."""
    mask = np.array([[True], [False], [False], [False]])
    scores = [[3.0], [0.0], [1.0], [-1.0]]
    low, middle, high = (lira_offline(ShadowScores([x], scores, mask))[0] for x in (-9.0, 0.0, 9.0))
    assert low < middle < high


# --- bad input --------------------------------------------------------------------------------------------


def test_what_cannot_be_compared_is_refused() -> None:
    mask = np.array([[True, True], [False, True]])
    with pytest.raises(InvalidInput, match="1 of the records lack a shadow model not trained on it"):
        lira_offline(ShadowScores([0.0, 1.0], [[1.0, 2.0], [3.0, 4.0]], mask))
    with pytest.raises(InvalidInput, match="a table of models by records"):
        ShadowScores([0.0], [[1.0, 2.0]], [[True, False]])
    with pytest.raises(InvalidInput, match="one boolean per shadow score"):
        ShadowScores([0.0], [[1.0]], [[1]])
    with pytest.raises(InvalidInput, match="1 of the target's scores are not finite"):
        ShadowScores([math.nan], [[1.0]], [[True]])
    same = ShadowScores([0.0], [[1.0]] * 8, [[True]] * 4 + [[False]] * 4)
    with pytest.raises(InvalidInput, match="variance is 0"):
        lira_online(same)
    with pytest.raises(InvalidInput, match="never vary"):
        bavaria(same)
    with pytest.raises(InvalidInput, match="labels must lie in"):
        logit_margin([[0.0, 1.0]], [2])
    with pytest.raises(InvalidInput, match="logits must be"):
        log_probability([0.0, 1.0], [0])


def test_rmia_refuses_what_is_no_log_probability() -> None:
    scores = ShadowScores([-1.0], [[-1.0], [-2.0]], [[True], [False]])
    with pytest.raises(InvalidInput, match="above 0"):
        rmia_online(scores, [0.5], [[-1.0], [-1.0]])
    with pytest.raises(InvalidInput, match="is empty"):
        rmia_online(scores, [], np.empty((2, 0)))
    with pytest.raises(InvalidInput, match="a table of models by outside records"):
        rmia_offline(scores, [-1.0], [[-1.0]], slope=0.3)
    with pytest.raises(InvalidInput, match="slope"):
        rmia_offline(scores, [-1.0], [[-1.0], [-1.0]], slope=1.5)
    with pytest.raises(InvalidInput, match="gamma"):
        rmia_online(scores, [-1.0], [[-1.0], [-1.0]], gamma=0.0)
