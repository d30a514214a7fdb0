"""Attacks by likelihood ratios: a world in which the best test is known, formulas by hand, planted errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from known_models import Array, Bools, auc, gaussian_world, halves
from scipy import stats

from experiments.laboratory.exposed_records import by_chance, ranked_and_reported, vulnerability
from experiments.laboratory.likelihood_ratios import (
    lira_offline,
    lira_online,
    loss_threshold,
    rmia_offline,
    rmia_online,
)
from experiments.laboratory.shokri import shokri
from experiments.laboratory.suite import Evidence, attack_all
from tacit.audits import Scores
from tacit.audits.attacks import ShadowScores, bavaria, paired_halves
from tacit.errors import InvalidInput

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


# --- known answers and planted errors ---------------------------------------------------------------------

Attack = Callable[[ShadowScores], Array]
ATTACKS: dict[str, Attack] = {
    "lira online": lira_online,
    "lira offline": lira_offline,
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


@pytest.mark.parametrize("name", ["lira online"])
def test_swapped_worlds_are_seen(name: str) -> None:
    world = gaussian_world(16, 1000)
    swapped = ShadowScores(world.shadows.target, world.shadows.shadows, ~world.shadows.trained_on)
    Scores.of(ATTACKS[name](world.shadows), world.is_member).check_direction()
    with pytest.raises(InvalidInput, match="Swap the files"):
        Scores.of(ATTACKS[name](swapped), world.is_member).check_direction()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_turned_sign_is_seen(name: str) -> None:
    """Losses given as scores, to the attacks whose answer depends on it."""
    world = gaussian_world(16, 1000, gain=3.0)
    turned = ShadowScores(-world.shadows.target, -world.shadows.shadows, world.shadows.trained_on)
    values = Scores.of(ATTACKS[name](turned), world.is_member)
    if name == "lira online":  # it learns the sign from the shadows
        assert values.auc() == pytest.approx(auc(world, ATTACKS[name](world.shadows)))
    else:
        with pytest.raises(InvalidInput, match="Swap the files"):
            values.check_direction()


def test_lira_needs_a_spread() -> None:
    with pytest.raises(InvalidInput, match="too few shadow models to estimate the variance"):
        lira_online(gaussian_world(2).shadows)
    with pytest.raises(InvalidInput, match="variance is 0"):
        lira_online(ShadowScores([0.0], [[1.0]] * 8, [[True]] * 4 + [[False]] * 4))


def test_one_sided_offline_attack_is_not_fooled_by_bad_fits() -> None:
    """A record that the target fits far *worse* than any shadow is no member."""
    mask = np.array([[True], [False], [False], [False]])
    scores = [[3.0], [0.0], [1.0], [-1.0]]
    low, middle, high = (lira_offline(ShadowScores([x], scores, mask))[0] for x in (-9.0, 0.0, 9.0))
    assert low < middle < high


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


def logits_of(k: int = 17, n: int = 1200, *, gain: float = 2.0, seed: int = 0) -> tuple[Any, Bools, Bools]:
    """Logits that rise at the true class by ``gain`` for members; the last model is the target."""
    rng = np.random.default_rng(seed)
    trained_on = np.concatenate([paired_halves(k - 1, n, rng), rng.random((1, n)) < 0.5])
    labels = rng.integers(0, 3, n)
    logits = rng.normal(0.0, 1.0, (k, n, 3))
    gains = gain * (rng.random(n) < 0.5)  # half of the records are not memorised
    logits[:, np.arange(n), labels] += 1.0 + gains * trained_on
    return (logits, labels, gains > 0.0), trained_on[:-1], trained_on[-1]


def test_shokri_finds_nothing_where_there_is_nothing() -> None:
    (logits, labels, _), trained_on, member = logits_of(gain=0.0)
    odds = shokri(logits[-1], logits[:-1], trained_on, labels)
    assert abs(Scores.of(odds, member).auc() - 0.5) < 0.06
    assert np.abs(odds).mean() < 0.3


def test_planted_bugs_of_the_worlds_are_seen() -> None:
    (logits, labels, _), trained_on, member = logits_of()
    rng = np.random.default_rng(9)
    right = Scores.of(shokri(logits[-1], logits[:-1], trained_on, labels), member)
    swapped = Scores.of(shokri(logits[-1], logits[:-1], ~trained_on, labels), member)
    with pytest.raises(InvalidInput, match="Swap the files"):
        swapped.check_direction()
    wrong_half = trained_on[:, rng.permutation(len(labels))]  # the design of other records
    lost = Scores.of(shokri(logits[-1], logits[:-1], wrong_half, labels), member)
    assert right.auc() > 0.6 > 0.57 > lost.auc()
    margins = np.take_along_axis(logits, labels[None, :, None], 2)[..., 0]
    for mask, worlds_apart in ((trained_on, True), (wrong_half, False)):
        found = Scores.of(bavaria(ShadowScores(margins[-1], margins[:-1], mask)), member).auc()
        assert (found > 0.65) == worlds_apart


def test_members_that_leak_into_all_shadows_leave_nothing_to_compare() -> None:
    """Planted bug: the shadows are trained on everybody, whatever their design says."""
    (logits, labels, exposed), trained_on, _ = logits_of()
    leaky = logits.copy()
    rows = np.arange(len(labels))
    gained = (2.0 * exposed) * ~trained_on
    leaky[:-1, rows, labels] += gained
    assert abs(vulnerability(leaky[:-1, rows, labels], trained_on).mean()) < 0.05
    assert vulnerability(logits[:-1, rows, labels], trained_on).mean() > 0.8


def test_classes_without_members_and_wrong_shapes_are_refused() -> None:
    (logits, labels, _), trained_on, _ = logits_of(n=60)
    trained_on[:, labels == 2] = False
    with pytest.raises(InvalidInput, match="class 2 has no member"):
        shokri(logits[-1], logits[:-1], trained_on, labels)
    with pytest.raises(InvalidInput, match="shokri's arguments"):
        shokri(logits[-1], logits[:-1], trained_on[:, :5], labels)
    (logits, labels, _), trained_on, _ = logits_of(n=60)
    with pytest.raises(InvalidInput, match="go together"):
        attack_all(Evidence(logits[-1], logits[:-1], trained_on, labels, outside_target=logits[-1]))


def test_vulnerability_is_the_records_own_mu() -> None:
    (logits, labels, exposed), trained_on, _ = logits_of(65)
    value = vulnerability(logits[:-1, np.arange(len(labels)), labels], trained_on)
    assert value[exposed].mean() == pytest.approx(2.0, abs=0.1)
    assert value[~exposed].mean() == pytest.approx(0.0, abs=0.1)
    with pytest.raises(InvalidInput, match="no spread"):
        vulnerability(np.ones((8, 5)), paired_halves(8, 5, np.random.default_rng(0)))


def test_the_most_exposed_are_reported_by_shadows_that_did_not_choose_them() -> None:
    rng = np.random.default_rng(0)
    trained_on = paired_halves(16, 2000, rng)
    noise = rng.normal(size=(16, 2000))
    order, value = ranked_and_reported(noise, trained_on)
    assert abs(value[order[:100]].mean()) < 0.3, "the best of many estimates of nothing is nothing"
    whole = vulnerability(noise, trained_on)
    assert np.sort(whole)[-100:].mean() > 0.8, "which ranking and reporting on the same shadows would not say"


@pytest.mark.parametrize("spread", [0.0, 0.6])
def test_chance_does_not_make_the_record_ranked_first_stand_out(spread: float) -> None:
    """Also where some records spread much further than others: chance ranks those first."""
    rng, first = np.random.default_rng(0), []
    for exposed in (0.0, 9.0):
        above = []
        for _ in range(60):
            trained_on = paired_halves(16, 500, rng)
            scores = rng.normal(size=(16, 500)) * np.exp(spread * rng.normal(size=500))
            scores[:, 0] += exposed * trained_on[:, 0]
            order, value = ranked_and_reported(scores, trained_on)
            above.append(value[order[0]] > by_chance(scores, trained_on)[order[0]])
        first.append(np.mean(above))
    assert first[0] <= 0.1
    assert first[1] >= 0.7


def test_all_attacks_find_members() -> None:
    (logits, labels, _), trained_on, member = logits_of(n=2400)
    n = 1200
    outside = np.random.default_rng(1).normal(size=(17, n, 3))
    found = attack_all(
        Evidence(
            logits[-1, :n], logits[:-1, :n], trained_on[:, :n], labels[:n],
            outside[0], outside[1:], labels[n:],
        )
    )  # fmt: skip
    assert set(found) == {
        "loss threshold", "Shokri", "LiRA", "LiRA offline", "RMIA", "RMIA offline", "BaVarIA-t",
    }  # fmt: skip
    for name, values in found.items():
        assert Scores.of(values, member[:n]).auc() > 0.58, name
