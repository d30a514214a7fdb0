"""The exposure of planted secrets in a language model, compared with its bound, as data for the report.

Letters: there are R possible secrets and c copies of each planted one; f is the trade-off curve of the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.accounting import PrivacyCurve
from tacit.attacks import clopper_pearson
from tacit.attacks.memorisation import Canary, exposure_bound

Array: TypeAlias = NDArray[np.float64]

_BY_CHANCE = 4.0  # bits of exposure; a secret that was not planted has at least 4 with probability 1/16
_SHOWN = 3  # the most secrets that the report prints for each number of copies
_GRID = 60


@dataclass(frozen=True)
class Remembered:
    """The results of the tests on one canary.

    Attributes:
        canary: the canary.
        exposure: the exposure in bits, from the rank of the secret.
        extrapolated: the exposure in bits from a distribution that is fitted to the scores; None if no
            distribution fits.
        completion: the model's text after the prefix.
        queries: the number of random answers that contain the secret at least once with probability 0.9;
            infinite if no answer can contain it.
    """

    canary: Canary
    exposure: float
    extrapolated: float | None
    completion: str
    queries: float

    @property
    def completed(self) -> bool:
        """Whether the model's text after the prefix is the secret."""
        return self.completion == self.canary.secret


@dataclass(frozen=True)
class RepeatProbe:
    """The result of a test that prompts a model with one letter, repeated ``repeats`` times or given once.

    ``after_repeating`` and ``asked_plainly`` are the shares of the model's text that lie in pieces of at
    least ``piece`` characters copied from training records. Only text after the model stops repeating the
    letter counts. The shares that end in ``_unseen`` count copies from an equal number of records that the
    model was not trained on, so they come from similarity alone. A share is NaN if there is no such text.
    ``answers`` counts the answers to the repeated letter, and ``diverged`` counts those that stop repeating
    it.
    """

    repeats: int
    piece: int
    after_repeating: float
    after_repeating_unseen: float
    asked_plainly: float
    asked_plainly_unseen: float
    answers: int
    diverged: int


@dataclass(frozen=True)
class RememberingModel:
    """One model, and the results of all tests on it.

    ``members`` and ``unseen`` (records that it was not trained on) are pairs: the number of records that the
    model completed from their first half, and the number of first halves that it was given.
    """

    name: str
    private: bool
    secrets: Sequence[Remembered]
    members: tuple[int, int]
    unseen: tuple[int, int]
    probe: RepeatProbe


def whole_bits(candidates: int) -> Array:
    """Return the exposures at which the bounds are checked: 1, 2, ... below log2 R."""
    return np.arange(1.0, math.log2(candidates))


def bits_above_bound(
    exposures: ArrayLike, bits: ArrayLike, bound: ArrayLike, *, confidence: float
) -> list[float]:
    """Return the thresholds that significantly more exposures reach than the bound allows.

    The test assumes that the canaries are independent, although one model is trained on all of them.

    Args:
        exposures: (n,) exposures of planted secrets. The number of copies must be that of the bound.
        bits: (b,) thresholds in bits, chosen before the exposures were seen.
        bound: (b,) the values of :func:`tacit.attacks.memorisation.exposure_bound` at the thresholds.
        confidence: the least probability that the result is empty if the bound holds at all thresholds.

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


def remembered_found(
    models: Sequence[RememberingModel],
    curve: PrivacyCurve,
    *,
    prefix: str,
    candidates: int,
    confidence: float,
) -> dict[str, Any]:
    """Return the exposures by number of copies with their bounds, the completed records, and the probes.

    Args:
        models: at least one model. All have the same canaries in the same order, or no canaries if none were
            planted.
        prefix: a description of the beginning of a canary.
        candidates: R, the number of possible secrets.
        confidence: the confidence of ``above_bound``, over all numbers of copies and all thresholds together.
    """
    canaries = [one.canary for one in models[0].secrets]
    kinds = sorted({canary.copies for canary in canaries})
    grid, whole = np.linspace(0.0, math.log2(candidates), _GRID), whole_bits(candidates)
    bits = np.concatenate([grid, whole, [_BY_CHANCE]])
    bounds = {c: exposure_bound(curve.false_negative_rate, bits, copies=c) for c in kinds}
    data: dict[str, Any] = {
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
        "models": [],
    }
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
        data["models"].append(
            {
                "model": model.name,
                "private": model.private,
                "planted": groups,
                "not_planted": _group([s for s in model.secrets if not s.canary.included]),
                "records": {
                    name: {"completed": right, "tried": tried}
                    for name, (right, tried) in (("members", model.members), ("others", model.unseen))
                },
                "probe": asdict(model.probe),
            }
        )
    return data


def _group(secrets: Sequence[Remembered]) -> dict[str, Any]:
    exposures = np.sort([one.exposure for one in secrets])
    extrapolated = [one.extrapolated for one in secrets if one.extrapolated is not None]
    figures: dict[str, Any] = {
        "count": len(secrets),
        "exposures": exposures.tolist(),
        "completed": sum(one.completed for one in secrets),
        "at_least_by_chance_bits": int((exposures >= _BY_CHANCE).sum()),
        "extrapolated": {"count": len(extrapolated)},
    }
    if secrets:
        figures |= {
            "median": float(np.median(exposures)),
            "least": float(exposures[0]),
            "largest": float(exposures[-1]),
            "median_queries": float(np.median([one.queries for one in secrets])),
        }
    if extrapolated:
        figures["extrapolated"] |= {"median": float(np.median(extrapolated)), "largest": max(extrapolated)}
    return figures


def _most_exposed(models: Sequence[RememberingModel]) -> dict[str, Any] | None:
    """Return the planted secret with the largest exposure, or None if none was planted.

    Only models without DP count, if there are any.
    """
    plain = [model for model in models if not model.private] or list(models)
    exposures = {
        place: max(model.secrets[place].exposure for model in plain)
        for place, own in enumerate(models[0].secrets)
        if own.canary.included
    }
    return _example(models, max(exposures, key=exposures.__getitem__)) if exposures else None


def _examples(models: Sequence[RememberingModel]) -> list[dict[str, Any]]:
    """Return the first three canaries for each number of copies, with each model's text after the prefix."""
    canaries = [one.canary for one in models[0].secrets]
    planted = [c.copies if c.included else 0 for c in canaries]
    places = [
        place
        for copies in sorted(set(planted), reverse=True)
        for place in [place for place, own in enumerate(planted) if own == copies][:_SHOWN]
    ]
    return [_example(models, place) for place in places]


def _example(models: Sequence[RememberingModel], place: int) -> dict[str, Any]:
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
                "queries": model.secrets[place].queries,
            }
            for model in models
        ],
    }
