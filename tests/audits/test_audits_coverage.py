"""The coverage of the intervals of an audit, over repeats with new records and new shadow models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from experiments.laboratory.advantage import advantage_at_held_out_threshold
from tacit.audits import Scores, clopper_pearson, found_at, measure, operating_point
from tacit.audits.attacks import ShadowScores, bavaria, paired_halves, shadow_groups, without_each_group
from tacit.audits.scores import Interval, auc_interval, shadow_reach, widened
from tacit.errors import InvalidInput

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator], Interval]

SIZES = ((60, 60), (1437, 360), (5000, 5000))
EFFECTS = (0.0, 0.5, 1.0, 2.0)
RARE = 1e-4  # of a test that fails by chance


def gaussian(rng: np.random.Generator, effect: float, sizes: tuple[int, int]) -> Scores:
    return Scores(rng.normal(effect, 1.0, sizes[0]), rng.normal(0.0, 1.0, sizes[1]))


def rate_for(others: int) -> float:
    return next(rate for rate in (0.001, 0.01, 0.02, 0.05, 0.1) if rate * others >= 5)


def figures(effect: float, sizes: tuple[int, int]) -> dict[str, tuple[float, Draw]]:
    """The truth, and how one interval is made, of each figure; members N(effect, 1), others N(0, 1)."""
    rate = rate_for(sizes[1])
    return {
        "found": (
            float(stats.norm.sf(stats.norm.isf(rate) - effect)),
            lambda rng: found_at(gaussian(rng, effect, sizes), rate, confidence=0.95),
        ),
        "auc": (
            float(stats.norm.cdf(effect / np.sqrt(2.0))),
            lambda rng: auc_interval(gaussian(rng, effect, sizes), confidence=0.95),
        ),
        "advantage": (
            float(2.0 * stats.norm.cdf(effect / 2.0) - 1.0),
            lambda rng: advantage_at_held_out_threshold(
                gaussian(rng, effect, sizes), confidence=0.95, rng=rng
            ),
        ),
    }


def covered(truth: float, found: Sequence[Interval]) -> tuple[int, float]:
    """Count the intervals with the truth; return also the mean width, over 2 * 1.96 standard deviations."""
    held = sum(one.low <= truth <= one.high for one in found)
    width = float(np.mean([one.high - one.low for one in found]))
    return held, width / (2.0 * 1.96 * float(np.std([one.value for one in found])))


def fewest(repeats: int, share: float = 0.95) -> int:
    """So many at least hold it, but with probability RARE, where the share is the true one."""
    return int(stats.binom.ppf(RARE, repeats, share))


# --- records ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["found", "auc", "advantage"])
@pytest.mark.parametrize("effect", EFFECTS)
def test_intervals_hold_the_truth_in_95_of_100_repeats(name: str, effect: float) -> None:
    truth, draw = figures(effect, (200, 200))[name]
    rng = np.random.default_rng(1)
    held, width = covered(truth, [draw(rng) for _ in range(200)])
    assert held >= fewest(200)
    assert width < 1.6


@pytest.mark.thorough(instead="test_intervals_hold_the_truth_in_95_of_100_repeats")
@pytest.mark.parametrize("name", ["found", "auc", "advantage"])
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("sizes", SIZES)
def test_intervals_hold_the_truth_in_2000_repeats(sizes: tuple[int, int], effect: float, name: str) -> None:
    truth, draw = figures(effect, sizes)[name]
    rng = np.random.default_rng(2)
    held, width = covered(truth, [draw(rng) for _ in range(2000)])
    assert held >= 0.935 * 2000
    assert width < 1.6


@pytest.mark.parametrize("sizes", [(200, 200), (1437, 360)])
def test_an_interval_that_takes_its_threshold_as_known_is_found_out(sizes: tuple[int, int]) -> None:
    """Planted bug, that of versions before 0.3: what the threshold adds is left out."""
    rate, rng = rate_for(sizes[1]), np.random.default_rng(3)
    truth = float(stats.norm.sf(stats.norm.isf(rate) - 1.0))
    found = [
        operating_point(gaussian(rng, 1.0, sizes), rate, confidence=0.95).true_positive_rate
        for _ in range(200)
    ]
    assert covered(truth, found)[0] < fewest(200)


@pytest.mark.parametrize("decimals", [8, 0])
@pytest.mark.parametrize("sizes", [(60, 60), (1437, 360)])
def test_both_rates_of_a_threshold_are_in_their_intervals(sizes: tuple[int, int], decimals: int) -> None:
    """Also of scores that are whole numbers, whose upper ends alone are what a limit is tested with."""
    rng, rate, missed = np.random.default_rng(7), rate_for(sizes[1]), np.zeros(4, dtype=int)
    for _ in range(500):
        drawn = gaussian(rng, 1.0, sizes)
        scores = Scores(drawn.members.round(decimals), drawn.non_members.round(decimals))
        point = operating_point(scores, rate, confidence=0.9)
        at = np.ceil(point.threshold * 10**decimals) / 10**decimals - 0.5 * 10.0**-decimals
        false, found = stats.norm.sf(at), stats.norm.sf(at - 1.0)
        missed += [
            false > point.false_positive_rate.high, found < point.true_positive_rate.low,
            found > point.true_positive_rate.high, decimals == 8 and false < point.false_positive_rate.low,
        ]  # fmt: skip
    assert missed.max() <= stats.binom.isf(RARE, 500, 0.05)


def test_one_model_gives_one_figure_and_it_depends_on_no_halves() -> None:
    """Audits of one run found 0.75 to 2.07 %, by which half of the records chose the threshold."""
    scores = gaussian(np.random.default_rng(4), 0.0, (1437, 360))
    found = {
        measure(scores, false_positive_rates=(0.02,), confidence=0.95, rng=np.random.default_rng(seed)).points
        for seed in range(5)
    }
    assert len(found) == 1


def test_with_a_known_threshold_the_interval_is_that_of_clopper_and_pearson() -> None:
    """So many non-members that their quantile is exact."""
    members = np.random.default_rng(5).normal(1.0, 1.0, 200)
    others = stats.norm.isf((np.arange(2_000_000) + 0.5) / 2_000_000)
    found = found_at(Scores(members, others), 0.1, confidence=0.95)
    known = clopper_pearson(int((members >= stats.norm.isf(0.1)).sum()), 200, confidence=0.95)
    assert found.value == known.value
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=0.003)


def test_a_tie_of_non_members_is_never_split() -> None:
    """Half of all records have one score: at 10 % false alarms, those of it are not called members."""
    scores = Scores([0.0] * 50 + [1.0] * 50, [0.0] * 50 + [-1.0] * 50)
    found = found_at(scores, 0.1, confidence=0.95)
    assert found.value == 0.5
    assert found.low < 0.5 < found.high
    assert found_at(Scores([0.0] * 50, [0.0] * 49 + [1.0]), 0.1, confidence=0.95).value == 0.0
    assert found_at(Scores([2.0, 0.0], [0.0, 0.0]), 0.1, confidence=0.95).value == 0.5


# --- shadow models ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """K shadow models of scores with a mean for each record, an effect of training on it, and shifts by class
    that all records of a class share: ``shared`` is their deviation, that of a record's own noise is 1.
    """

    shadows: int
    effect: float
    shared: float
    members: int = 400
    others: int = 400
    classes: int = 10

    def scores(
        self, target: Array, rng: np.random.Generator, *, groups: bool = True
    ) -> tuple[Scores, list[Scores]]:
        """BaVarIA's on a model with these shifts of its classes, and those without each group of shadows."""
        records = self.members + self.others
        label, mean = rng.integers(0, self.classes, records), rng.normal(size=records)
        member, moves = np.arange(records) < self.members, self.effect * rng.exponential(size=records)
        trained_on = paired_halves(self.shadows, records, rng)
        own = mean + target[label] + moves * member + rng.normal(size=records)
        shifts = self.shared * rng.normal(size=(self.shadows, self.classes))
        table = mean + shifts[:, label] + moves * trained_on + rng.normal(size=trained_on.shape)
        kept = [np.arange(self.shadows), *(without_each_group(self.shadows) if groups else ())]
        whole, *without = (
            Scores.of(bavaria(ShadowScores(own, table[rows], trained_on[rows])), member) for rows in kept
        )
        return whole, without

    def truth(self, target: Array, rate: float, rng: np.random.Generator) -> tuple[float, float]:
        """The share found at a false-positive rate, and the AUC, of very many records and shadow models."""
        large = replace(self, members=10_000, others=10_000)
        found = [large.scores(target, rng, groups=False)[0] for _ in range(8)]
        shares = [found_at(one, rate, confidence=0.95).value for one in found]
        return float(np.mean(shares)), float(np.mean([one.auc() for one in found]))


def shadow_coverage(world: World, targets: int, repeats: int) -> list[tuple[int, float]]:
    """Count the intervals of share found and AUC that contain the truth, and measure their width."""
    rng, rate = np.random.default_rng(world.shadows), rate_for(world.others)
    held, spread, widths = np.zeros(2, dtype=int), [], []
    for _ in range(targets):
        target = world.shared * rng.normal(size=world.classes)
        truths = world.truth(target, rate, rng)
        for _ in range(repeats):
            scores, without = world.scores(target, rng)
            found = measure(scores, false_positive_rates=(rate,), confidence=0.95, rng=rng, without=without)
            pair = (found.points[0].true_positive_rate, found.auc)
            held += [one.low <= truth <= one.high for one, truth in zip(pair, truths, strict=True)]
            spread.append([one.value - truth for one, truth in zip(pair, truths, strict=True)])
            widths.append([one.high - one.low for one in pair])
    wide = np.mean(widths, axis=0) / (2.0 * 1.96 * np.std(spread, axis=0))
    return list(zip(held.tolist(), wide.tolist(), strict=True))


def test_intervals_hold_the_truth_over_shadow_models() -> None:
    for held, width in shadow_coverage(World(8, 1.0, 0.5), 1, 60):
        assert held >= fewest(60)
        assert width < 2.0


@pytest.mark.thorough(instead="test_intervals_hold_the_truth_over_shadow_models")
@pytest.mark.parametrize("shadows", [4, 8, 16, 64])
@pytest.mark.parametrize("effect", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("shared", [0.0, 1.0])
def test_intervals_hold_the_truth_over_many_shadow_models(shared: float, effect: float, shadows: int) -> None:
    for held, width in shadow_coverage(World(shadows, effect, shared), 4, 100):
        assert held >= fewest(400)
        assert width < 2.0


def test_what_all_records_share_of_the_shadows_error_is_found_and_what_each_has_alone_is_not() -> None:
    rng = np.random.default_rng(6)
    members, others = rng.normal(0.5, 1.0, 2000), rng.normal(0.0, 1.0, 2000)
    alone = [
        Scores(members + 0.2 * rng.normal(size=2000), others + 0.2 * rng.normal(size=2000)) for _ in range(8)
    ]
    shared = [Scores(members + shift, others) for shift in 0.05 * rng.normal(size=8)]
    reach = [shadow_reach(one, Scores.auc, confidence=0.95, rng=rng) for one in (alone, shared)]
    assert reach[0] < 0.015
    jackknife = np.std([one.auc() for one in shared]) * np.sqrt(7.0)
    assert reach[1] == pytest.approx(stats.t.ppf(0.975, 7) * jackknife, rel=0.2)


def test_an_interval_is_widened_to_both_sides_within_its_range() -> None:
    wide = widened(Interval(0.02, 0.01, 0.05, 0.95), 0.04)
    assert (wide.low, wide.high) == (0.0, 0.02 + 0.05)
    assert widened(Interval(0.5, 0.4, 0.6, 0.95), 0.0) == Interval(0.5, 0.4, 0.6, 0.95)


def test_groups_of_shadows_are_whole_pairs_and_each_is_in_one() -> None:
    for shadows in (4, 6, 8, 16, 18, 64):
        groups = shadow_groups(shadows)
        assert sorted(np.concatenate(groups).tolist()) == list(range(shadows))
        assert len(groups) == (4 if shadows == 4 else min(8, shadows // 2))
        if shadows > 4:
            assert all((group[::2] % 2 == 0).all() and (np.diff(group)[::2] == 1).all() for group in groups)
    with pytest.raises(InvalidInput, match="shadows"):
        shadow_groups(2)


def test_shadows_that_score_other_records_are_refused() -> None:
    one, other = Scores([1.0, 2.0], [0.0, 1.0]), Scores([1.0], [0.0])
    for without in ([one], [one, other]):
        with pytest.raises(InvalidInput, match="Scores of the same records"):
            shadow_reach(without, Scores.auc, confidence=0.95, rng=np.random.default_rng(0))
