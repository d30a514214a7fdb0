"""All membership attacks in one call, on the logits of a target and of shadow models.

Letters: K shadow models, n records, z outside records (on which no model was trained), c classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from experiments.laboratory.likelihood_ratios import (
    PER_RECORD_VARIANCE,
    lira_offline,
    lira_online,
    loss_threshold,
    rmia_offline,
    rmia_online,
)
from experiments.laboratory.shokri import shokri
from tacit.audits.attacks import (
    ATTACK,
    LOSS_ATTACK,
    ShadowScores,
    bavaria,
    log_probability,
    logit_margin,
    without_each_group,
)
from tacit.errors import InvalidInput

Array: TypeAlias = NDArray[np.float64]

_SLOPE = 0.4  # for RMIA offline; the middle of the range that its authors found on pairs of models


@final
@dataclass(frozen=True, eq=False)
class Evidence:
    """Logits of a target and of K shadow models on n records, of which any may be members.

    ``target`` is (n, c), ``shadows`` (K, n, c) and ``labels`` (n,).  ``trained_on`` (K, n) says which records
    each shadow model was trained on.  RMIA also needs records that *no* model was trained on.  Their logits
    and labels are ``outside_target`` (z, c), ``outside_shadows`` (K, z, c) and ``outside_labels`` (z,).
    """

    target: NDArray[np.float32] | Array
    shadows: NDArray[np.float32] | Array
    trained_on: NDArray[np.bool_]
    labels: NDArray[np.int64]
    outside_target: ArrayLike | None = None
    outside_shadows: ArrayLike | None = None
    outside_labels: ArrayLike | None = None


def attack_all(evidence: Evidence, *, pooled: bool | None = None) -> dict[str, Array]:
    """Compute every attack's (n,) scores, by the name of the attack.  Members should have higher scores.

    The result has RMIA only if there are outside records.

    Args:
        pooled: for LiRA, whether all records share one variance (in) and one (out).  By default they do if
            there are fewer than 64 shadow models.

    Raises:
        InvalidInput: if an attack refuses the data, or if only some of the inputs of RMIA are given.

    >>> rng = np.random.default_rng(0)
    >>> trained_on = np.argsort(rng.random((8, 50)), axis=0) < 4
    >>> logits = rng.normal(size=(9, 50, 3))
    >>> list(attack_all(Evidence(logits[0], logits[1:], trained_on, rng.integers(0, 3, 50))))
    ['loss threshold', 'Shokri', 'LiRA', 'LiRA offline', 'BaVarIA-t']
    """
    y, mask = evidence.labels, evidence.trained_on
    losses = -log_probability(evidence.target, y)
    margins = ShadowScores(logit_margin(evidence.target, y), logit_margin(evidence.shadows, y), mask)
    scores = {
        LOSS_ATTACK: loss_threshold(losses),
        "Shokri": shokri(evidence.target, evidence.shadows, mask, y),
        "LiRA": lira_online(margins, pooled=pooled),
        "LiRA offline": lira_offline(margins, pooled=pooled),
    }
    outside = (evidence.outside_target, evidence.outside_shadows, evidence.outside_labels)
    if all(part is not None for part in outside):
        target, shadows, labels = (np.asarray(part) for part in outside)
        likelihoods = ShadowScores(-losses, log_probability(evidence.shadows, y), mask)
        outside_scores = log_probability(target, labels), log_probability(shadows, labels)
        scores["RMIA"] = rmia_online(likelihoods, *outside_scores)
        scores["RMIA offline"] = rmia_offline(likelihoods, *outside_scores, slope=_SLOPE)
    elif any(part is not None for part in outside):
        raise InvalidInput(
            "outside_target, outside_shadows and outside_labels go together: give all three, for RMIA, or "
            "none."
        )
    return scores | {ATTACK: bavaria(margins)}


def attacks_without(evidence: Evidence) -> dict[str, list[Array]]:
    """Compute the scores of every attack that uses shadow models, once without each group of these models.

    Pass the scores to :func:`tacit.audits.measure` as ``without``.

    Raises:
        InvalidInput: if :func:`attack_all` refuses the data.

    >>> rng = np.random.default_rng(0)
    >>> trained_on = np.argsort(rng.random((8, 50)), axis=0) < 4
    >>> logits = rng.normal(size=(9, 50, 3))
    >>> scores = attacks_without(Evidence(logits[0], logits[1:], trained_on, rng.integers(0, 3, 50)))
    >>> sorted(scores), len(scores["LiRA"])
    (['BaVarIA-t', 'LiRA', 'LiRA offline', 'Shokri'], 4)
    """
    scores: dict[str, list[Array]] = {}
    pooled = len(evidence.shadows) < PER_RECORD_VARIANCE
    for models in without_each_group(len(evidence.shadows)):
        outside = None if evidence.outside_shadows is None else np.asarray(evidence.outside_shadows)[models]
        fewer = replace(
            evidence,
            shadows=evidence.shadows[models],
            trained_on=evidence.trained_on[models],
            outside_shadows=outside,
        )
        for name, values in attack_all(fewer, pooled=pooled).items():
            if name != LOSS_ATTACK:
                scores.setdefault(name, []).append(values)
    return scores
