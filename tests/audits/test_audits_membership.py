"""The attack on membership: a world in which the best test is known, formulas by hand, planted errors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_models import Array, Bools, auc, gaussian_world, halves
from scipy import stats

from tacit.audits import Scores
from tacit.audits.attacks import (
    ShadowScores,
    bavaria,
    log_probability,
    logit_margin,
    paired_halves,
    train_shadows,
)
from tacit.errors import InvalidInput

# --- against the best possible test -----------------------------------------------------------------------


def test_with_many_shadows_the_attack_is_as_good_as_the_best_test() -> None:
    world = gaussian_world(128)
    best = auc(world, world.best)
    assert 0.70 < best < 0.85
    assert best - 0.01 < auc(world, bavaria(world.shadows)) < best + 0.005
    assert auc(world, world.shadows.target) < best - 0.1


@pytest.mark.parametrize("k", [4, 8, 16])
def test_a_few_shadows_help(k: int) -> None:
    world = gaussian_world(k)
    assert auc(world, bavaria(world.shadows)) > auc(world, world.shadows.target) + 0.03


def test_two_shadows_are_too_few() -> None:
    """One score in each world has no spread."""
    with pytest.raises(InvalidInput, match="too few shadow models to estimate the variance"):
        bavaria(gaussian_world(2).shadows)


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


def test_pooled_variance_is_within_records() -> None:
    """Not the spread of all scores, which is mostly that of the records' difficulty."""
    world = gaussian_world(16).shadows.world(member=False)
    assert world.pooled_variance() == pytest.approx(1.0, abs=0.05)


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


def test_a_lookup_table_gives_everybody_away_and_an_untrained_model_nobody() -> None:
    rng = np.random.default_rng(1)
    member, mask = rng.random(400) < 0.5, halves(rng, 8, 400)
    noise = rng.normal(0.0, 0.1, (9, 400))
    table = ShadowScores(50.0 * member + noise[8], 50.0 * mask + noise[:8], mask)
    assert Scores.of(bavaria(table), member).auc() == 1.0
    nothing = ShadowScores(noise[8], noise[:8], mask)
    assert abs(Scores.of(bavaria(nothing), member).auc() - 0.5) < 0.1


def test_swapped_worlds_are_seen() -> None:
    world = gaussian_world(16, 1000)
    swapped = ShadowScores(world.shadows.target, world.shadows.shadows, ~world.shadows.trained_on)
    Scores.of(bavaria(world.shadows), world.is_member).check_direction()
    with pytest.raises(InvalidInput, match="Swap the files"):
        Scores.of(bavaria(swapped), world.is_member).check_direction()


def test_the_design_of_other_records_is_seen() -> None:
    world, rng = gaussian_world(16, 1200), np.random.default_rng(9)
    wrong_half = world.shadows.trained_on[:, rng.permutation(1200)]
    lost = ShadowScores(world.shadows.target, world.shadows.shadows, wrong_half)
    assert auc(world, bavaria(world.shadows)) > 0.65 > 0.6 > auc(world, bavaria(lost))


def test_a_turned_sign_is_learned_from_the_shadows() -> None:
    """Losses given as scores."""
    world = gaussian_world(16, 1000, gain=3.0)
    turned = ShadowScores(-world.shadows.target, -world.shadows.shadows, world.shadows.trained_on)
    assert auc(world, bavaria(turned)) == pytest.approx(auc(world, bavaria(world.shadows)))


# --- bad input --------------------------------------------------------------------------------------------


def test_what_cannot_be_compared_is_refused() -> None:
    mask = np.array([[True, True], [False, True]])
    with pytest.raises(InvalidInput, match="1 of the records have no shadow model not trained on it"):
        bavaria(ShadowScores([0.0, 1.0], [[1.0, 2.0], [3.0, 4.0]], mask))
    with pytest.raises(InvalidInput, match=r"shape \(models, records\)"):
        ShadowScores([0.0], [[1.0, 2.0]], [[True, False]])
    with pytest.raises(InvalidInput, match="one boolean per shadow score"):
        ShadowScores([0.0], [[1.0]], [[1]])
    with pytest.raises(InvalidInput, match="1 of the target's scores are not finite"):
        ShadowScores([math.nan], [[1.0]], [[True]])
    same = ShadowScores([0.0], [[1.0]] * 8, [[True]] * 4 + [[False]] * 4)
    with pytest.raises(InvalidInput, match="give the same scores"):
        bavaria(same)
    with pytest.raises(InvalidInput, match="labels must lie in"):
        logit_margin([[0.0, 1.0]], [2])
    with pytest.raises(InvalidInput, match="logits must have"):
        log_probability([0.0, 1.0], [0])


# --- shadow models ----------------------------------------------------------------------------------------


N = 40


@settings(max_examples=30, deadline=None)
@given(pairs=st.integers(1, 8), n=st.integers(2, 60), seed=st.integers(0, 99))
def test_every_pair_of_the_design_has_each_record_once(pairs: int, n: int, seed: int) -> None:
    halves = paired_halves(2 * pairs, n, np.random.default_rng(seed))
    assert (halves[::2] ^ halves[1::2]).all()
    assert (halves[::2].sum(axis=1) == n // 2).all()


class Counting:
    """Trains lookup tables; counts, and fails when it is told to."""

    def __init__(self, *, fail_at: int | None = None) -> None:
        self.trained, self.fail_at = 0, fail_at

    def __call__(self, group: Bools) -> Array:
        for _ in group:
            if self.trained == self.fail_at:
                raise KeyboardInterrupt
            self.trained += 1
        return group.astype(float)


def test_interrupted_training_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    design = paired_halves(8, N, np.random.default_rng(0))
    other = paired_halves(8, N, np.random.default_rng(1))
    store, seen = tmp_path / "shadows.npz", []
    with pytest.raises(KeyboardInterrupt):
        train_shadows(Counting(fail_at=5), design, at_once=2, store=store, identity="a")
    rest = Counting()
    found = train_shadows(
        rest, other, at_once=2, store=store, identity="a", progress=lambda *at: seen.append(at)
    )
    assert rest.trained == 4
    assert seen == [(4, 8), (6, 8), (8, 8)]
    assert (found.trained_on == design).all(), "the design of the store stands"
    assert (found.outputs == design).all(), "a lookup table says who was in"
    assert oct(store.stat().st_mode & 0o777) == "0o600"
    again = Counting()
    train_shadows(again, other, at_once=2, store=store, identity="a")
    assert again.trained == 0


def test_a_store_of_other_work_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    design, store = paired_halves(2, N, np.random.default_rng(0)), tmp_path / "shadows.npz"
    train_shadows(Counting(), design, at_once=2, store=store, identity="a")
    with pytest.raises(InvalidInput, match="made with other data, models or settings"):
        train_shadows(Counting(), design, at_once=2, store=store, identity="b")
    with pytest.raises(InvalidInput, match="made with other data, models or settings"):
        train_shadows(Counting(), design[:, :-1], at_once=2, store=store, identity="a")
    for damage in (store.read_bytes()[:200], b"", b"text"):
        store.write_bytes(damage)
        with pytest.raises(InvalidInput, match="not a readable store"):
            train_shadows(Counting(), design, at_once=2, store=store, identity="a")


def test_outputs_that_cannot_be_used_are_refused() -> None:
    mask = paired_halves(2, N, np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="models must be even"):
        paired_halves(3, 10, np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="outputs of model 1 must be finite"):
        train_shadows(lambda group: np.array([[1.0], [np.nan]]), mask, at_once=2)
    with pytest.raises(InvalidInput, match="outputs of 2 models"):
        train_shadows(lambda group: np.ones((1, N)), mask, at_once=2)
