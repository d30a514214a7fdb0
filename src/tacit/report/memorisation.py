"""The exposure of planted secrets in a language model, compared with its bound, as data for the report.

Letters: there are R possible secrets and c copies of each planted one; f is the trade-off curve of the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.accounting import PrivacyCurve
from tacit.audits import clopper_pearson
from tacit.audits.memorisation import Canary, exposure_bound

Array: TypeAlias = NDArray[np.float64]

_BY_CHANCE = 4.0  # bits of exposure; a secret that was not planted has at least 4 with probability 1/16
_SHOWN = 3  # the most secrets that the report prints for each number of copies
_GRID = 60


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
        bound: (b,) the values of :func:`tacit.audits.memorisation.exposure_bound` at the thresholds.
        confidence: see above.

    >>> bits_above_bound([9.0] * 20, [1.0, 9.0], [0.8, 0.01], confidence=0.95)
    [1.0, 9.0]
    >>> bits_above_bound([9.0] * 20, [1.0, 9.0], [0.95, 0.95], confidence=0.95)
    []
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
        curve: the curve of the accounted run.
        prefix: a description of the beginning of a canary.
        candidates: R, the number of possible secrets.
        confidence: the confidence of ``above_bound``, over all numbers of copies and all thresholds together.
    """
    canaries = [one.canary for one in models[0].secrets]
    kinds = sorted({canary.copies for canary in canaries})
    grid = np.linspace(0.0, math.log2(candidates), _GRID)
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
                    bounds[copies][_GRID:-1],
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
                "most": bound[:_GRID].tolist(),
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
