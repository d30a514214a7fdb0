"""The results of attacks and audits on a run, as plain data for the JSON and the page of the report.

Letters: f is the trade-off curve of the run, so f(a) is the least false-negative rate of any attack at
false-positive rate a. There are n members and m non-members, R possible secrets and c copies of each planted
one.
"""

# Every figure comes with its interval, its number of records, and the attack or method that gave it.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.accounting import PrivacyCurve
from tacit.audits import AuditResult, Scores, clopper_pearson, found_at, measure, operating_point
from tacit.audits.attacks import Canary, exposure_bound
from tacit.audits.claim import AUDIT_LEVEL
from tacit.errors import InvalidInput
from tacit.report.risk import RiskSheet, two_worlds

Array: TypeAlias = NDArray[np.float64]

ATTACKS = MEMORY = AUDIT_LEVEL / 10
"""The false-alarm probability of all attacks together, and that of the test of planted secrets. The audits
with planted records have the rest of :data:`tacit.audits.claim.AUDIT_LEVEL`."""
ABOUT = (
    "The share that an attack found is an estimate with an interval, and may lie above the limit by chance. "
    "The limit is proven for the true rates. A test with bounds on both rates decides whether an attack is "
    "above it."
)
"""The explanation of the attacks' figures and limits, in the JSON and on the page."""
_RATES = (0.001, 0.01, 0.02, 0.05, 0.1)
_FEWEST = 5  # the fewest expected false positives at a rate that is shown
FEWEST_TESTS = round(_FEWEST / _RATES[-1])
"""The fewest test records for an attack."""
_GRID = np.logspace(-5, 0, 81)
_POINTS = 120  # the most points of a drawn curve


@dataclass(frozen=True)
class AttackedModel:
    """One model, and every attack's scores on the same members and non-members.

    The scores on training and test records are accuracies for classes, R^2 for numbers, mean AUCs for labels.
    ``without`` has, for each attack with shadow models, its scores with each group of these left out.
    """

    name: str
    private: bool
    scores: Mapping[str, Scores]
    train_score: float
    test_score: float
    without: Mapping[str, Sequence[Scores]] = field(default_factory=dict)


@dataclass(frozen=True)
class Planted:
    """The results of one audit with planted records. ``where`` says what was planted, and where."""

    where: str
    results: Sequence[AuditResult]


def default_rates(non_members: int) -> tuple[float, ...]:
    """Return the false-positive rates to report: 10 %, and the smallest with five expected false positives.

    The smallest rate is at least 0.1 %.
    """
    possible = [rate for rate in _RATES if rate * non_members >= _FEWEST]
    if not possible:
        raise InvalidInput(
            f"an attack needs at least {FEWEST_TESTS} test records to measure its false-positive rate; got "
            f"{non_members}. Hold out more test records."
        )
    return tuple(dict.fromkeys((possible[0], possible[-1])))


def risk_found(sheet: RiskSheet) -> dict[str, Any]:
    """Return the risk sheet as plain data, with the curves for the figures."""
    bins = np.linspace(-4.0, 8.0, 49)
    without, with_it = two_worlds(sheet.curve, bins)
    return sheet.to_data() | {
        "limit": {"false_alarms": _GRID.tolist(), "found": _limit(sheet.curve)(_GRID).tolist()},
        "two_worlds": {
            "evidence": bins.tolist(),
            "without": without.tolist(),
            "with": with_it.tolist(),
        },
    }


def membership_found(
    models: Sequence[AttackedModel],
    curve: PrivacyCurve,
    *,
    headline: str,
    shadows: int,
    rates: Sequence[float],
    confidence: float,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Measure each attack on each model, and compare it with the limit of ``curve`` if the model is private.

    Args:
        headline: the name of the attack that the summary reports, chosen before any score was seen.
        rates: false-positive rates, each at least 5 / (number of non-members).
        rng: the generator that splits records into halves. It must be independent of the scores.

    **Guarantee**

    * If the run keeps its promise, and members and non-members were chosen at random, the probability that
      ``above_the_limit`` is True for at least one attack is at most :data:`ATTACKS`.
    """
    limit = _limit(curve)
    comparisons = sum(len(model.scores) for model in models if model.private) * len(rates)
    results = []
    for model in models:
        attacks = []
        for name, scores in model.scores.items():
            one = _one_attack(name, scores, rates, confidence, rng, model.without.get(name, ()))
            if model.private:
                level = ATTACKS / comparisons
                one["above_the_limit"] = any(_above(scores, rate, limit, level) for rate in rates)
            attacks.append(one)
        results.append(
            {
                "model": model.name,
                "private": model.private,
                "train_score": model.train_score,
                "test_score": model.test_score,
                "attacks": attacks,
            }
        )
    return {
        "headline": headline,
        "shadows": shadows,
        "confidence": confidence,
        "about": ABOUT,
        "rates": [{"rate": rate, "limit": float(limit(np.array([rate]))[0])} for rate in rates],
        "models": results,
    }


def audits_found(planted: Sequence[Planted]) -> list[dict[str, Any]]:
    """Return, for each audit with planted records, what was planted, and every bound with its sentence."""
    return [
        {
            "where": one.where,
            "results": [
                asdict(result) | {"sentence": result.sentence(), "judgement": result.judgement()}
                for result in one.results
            ],
        }
        for one in planted
    ]


def _one_attack(
    name: str,
    scores: Scores,
    rates: Sequence[float],
    confidence: float,
    rng: np.random.Generator,
    without: Sequence[Scores],
) -> dict[str, Any]:
    measured = measure(
        scores, false_positive_rates=tuple(rates), confidence=confidence, rng=rng, without=without
    )
    return {
        "attack": name,
        "members": measured.members,
        "non_members": measured.non_members,
        "auc": asdict(measured.auc),
        "points": [asdict(point) for point in measured.points],
        "roc": _drawn(scores, confidence),
    }


def _drawn(scores: Scores, confidence: float) -> dict[str, list[float]]:
    """Return points of the ROC, evenly spaced in log false-positive rate, each with a confidence interval."""
    roc = scores.roc()
    false_rates, true_rates = roc.false_positive_rates, roc.true_positive_rates
    m = scores.non_members.size
    targets = np.unique(np.round(np.logspace(0.0, np.log10(m), _POINTS)) / m)
    at = np.unique(np.searchsorted(false_rates, targets + 1e-12, side="right") - 1)
    at = at[false_rates[at] > 0.0]
    bands = [found_at(scores, float(false_rates[i]), confidence=confidence) for i in at]
    return {
        "false_alarms": false_rates[at].tolist(),
        "found": true_rates[at].tolist(),
        "low": [band.low for band in bands],
        "high": [band.high for band in bands],
    }


def _above(scores: Scores, rate: float, limit: Callable[[Array], Array], level: float) -> bool:
    """Return whether the attack exceeds the limit at significance ``level``, by bounds on both rates."""
    point = operating_point(scores, rate, confidence=1.0 - level)
    most = float(limit(np.array([point.false_positive_rate.high]))[0])
    return point.true_positive_rate.low > most


def _limit(curve: PrivacyCurve) -> Callable[[Array], Array]:
    """Return the function a -> 1 - f(a), the largest share of members that any attack finds."""
    return lambda rates: np.minimum(1.0, 1.0 - np.asarray(curve.false_negative_rate(rates)))


_BY_CHANCE = 4.0  # bits of exposure; a secret that was not planted has at least 4 with probability 1/16
_SHOWN = 3  # the most secrets that the report prints for each number of copies
_CURVE_POINTS = 60


@dataclass(frozen=True)
class SecretFound:
    """The exposure in bits of one canary's secret, and the model's text after the canary's prefix."""

    canary: Canary
    exposure: float
    completion: str

    @property
    def completed(self) -> bool:
        """Whether the model's text after the prefix is the secret."""
        return self.completion == self.canary.secret


@dataclass(frozen=True)
class MemorisingModel:
    """One model, ``private`` if the accounted plan trained it, and what it memorised of each secret."""

    name: str
    private: bool
    secrets: Sequence[SecretFound]


def whole_bits(candidates: int) -> Array:
    """Return the exposures at which the bounds are checked: 1, 2, ... below log2 R."""
    return np.arange(1.0, math.log2(candidates))


def bits_above_bound(
    exposures: ArrayLike, bits: ArrayLike, bound: ArrayLike, *, confidence: float
) -> list[float]:
    """Return the thresholds that significantly more exposures reach than the bound allows.

    The result is empty with probability at least ``confidence`` if the bound holds at all thresholds.  The
    test assumes that the canaries are independent, although one model is trained on all of them.

    Args:
        exposures: (n,) exposures of planted secrets.  The number of copies must be that of the bound.
        bits: (b,) thresholds in bits, chosen before the exposures were seen.
        bound: (b,) the values of :func:`tacit.audits.attacks.exposure_bound` at the thresholds.
    """
    values, thresholds = np.asarray(exposures, dtype=np.float64), np.asarray(bits, dtype=np.float64)
    if values.size == 0 or thresholds.size == 0:
        return []
    each = 1.0 - 2.0 * (1.0 - confidence) / thresholds.size  # one-sided, with a test for each threshold
    least = [
        clopper_pearson(int((values >= bit).sum()), values.size, confidence=each).low for bit in thresholds
    ]
    above: list[float] = thresholds[np.array(least) > np.asarray(bound)].tolist()
    return above


def memorisation_found(
    models: Sequence[MemorisingModel],
    curve: PrivacyCurve,
    *,
    prefix: str,
    candidates: int,
    confidence: float,
) -> dict[str, Any]:
    """Return the exposures by number of copies with their bounds, and examples.

    Args:
        models: at least one model.  All have the same canaries in the same order, or no canaries if none were
            planted.
        candidates: R, the number of possible secrets.
        confidence: that of ``above_bound``, over all numbers of copies and all thresholds together.
    """
    canaries = [one.canary for one in models[0].secrets]
    kinds = sorted({canary.copies for canary in canaries})
    grid = np.linspace(0.0, math.log2(candidates), _CURVE_POINTS)
    whole = whole_bits(candidates)
    bits = np.concatenate([grid, whole, [_BY_CHANCE]])
    bounds = {c: exposure_bound(curve.false_negative_rate, bits, copies=c) for c in kinds}

    results = []
    for model in models:
        groups = []
        for copies in kinds:
            group = _group([s for s in model.secrets if s.canary.included and s.canary.copies == copies])
            if model.private:
                group["above_bound"] = bits_above_bound(
                    group["exposures"],
                    whole,
                    bounds[copies][_CURVE_POINTS:-1],
                    confidence=1.0 - (1.0 - confidence) / len(kinds),
                )
            groups.append({"copies": copies} | group)
        others = _group([s for s in model.secrets if not s.canary.included])
        results.append(
            {"model": model.name, "private": model.private, "planted": groups, "not_planted": others}
        )
    return {
        "prefix": prefix,
        "candidates": candidates,
        "most_bits": math.log2(candidates),
        "confidence": confidence,
        "canaries": len(canaries),
        "by_chance": {"bits": _BY_CHANCE, "share": 2.0**-_BY_CHANCE},
        "bounds": [
            {
                "copies": copies,
                "bits": grid.tolist(),
                "most": bound[:_CURVE_POINTS].tolist(),
                "most_by_chance_bits": float(bound[-1]),
            }
            for copies, bound in bounds.items()
        ],
        "examples": _examples(models),
        "most_exposed": _most_exposed(models),
        "models": results,
    }


def _group(secrets: Sequence[SecretFound]) -> dict[str, Any]:
    exposures = np.sort([one.exposure for one in secrets])
    figures: dict[str, Any] = {
        "count": len(secrets),
        "exposures": exposures.tolist(),
        "completed": sum(one.completed for one in secrets),
        "at_least_by_chance_bits": int((exposures >= _BY_CHANCE).sum()),
    }
    if secrets:
        figures |= {
            "median": float(np.median(exposures)),
            "least": float(exposures[0]),
            "largest": float(exposures[-1]),
        }
    return figures


def _most_exposed(models: Sequence[MemorisingModel]) -> dict[str, Any] | None:
    """Return the planted secret with the largest exposure without DP, or None if none was planted.

    If there is no model without DP, the others count.
    """
    plain = [model for model in models if not model.private] or models
    places = [place for place, own in enumerate(models[0].secrets) if own.canary.included]
    if not places:
        return None
    return _example(models, max(places, key=lambda place: max(m.secrets[place].exposure for m in plain)))


def _examples(models: Sequence[MemorisingModel]) -> list[dict[str, Any]]:
    """Return the first three canaries for each number of copies, with each model's text after the prefix."""
    planted = [one.canary.copies if one.canary.included else 0 for one in models[0].secrets]
    examples = []
    for copies in sorted(set(planted), reverse=True):
        places = [place for place, own in enumerate(planted) if own == copies]
        examples += [_example(models, place) for place in places[:_SHOWN]]
    return examples


def _example(models: Sequence[MemorisingModel], place: int) -> dict[str, Any]:
    """Return one canary with each model's text after its prefix."""
    canary = models[0].secrets[place].canary
    return {
        "prefix": canary.prefix,
        "secret": canary.secret,
        "copies": canary.copies if canary.included else 0,
        "models": [
            {
                "model": model.name,
                "private": model.private,
                "completion": model.secrets[place].completion,
                "completed": model.secrets[place].completed,
                "exposure": model.secrets[place].exposure,
            }
            for model in models
        ],
    }
