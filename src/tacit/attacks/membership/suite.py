"""What do all membership attacks find? One table of target and shadow models, one call.

Letters: K shadows, n records, z records outside, c classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.attacks.membership.bavaria import bavaria
from tacit.attacks.membership.lira import lira_offline, lira_online
from tacit.attacks.membership.loss import loss_threshold
from tacit.attacks.membership.rmia import rmia_offline, rmia_online
from tacit.attacks.membership.shadows import ShadowScores, log_probability, logit_margin
from tacit.attacks.membership.shokri import shokri
from tacit.errors import InvalidInput

__all__ = ["DEFAULT_ATTACK", "Evidence", "attack_all"]

Array: TypeAlias = NDArray[np.float64]

DEFAULT_ATTACK = "BaVarIA-t"

_SLOPE = 0.4  # of RMIA offline: the middle of what its authors found on pairs of models


@final
@dataclass(frozen=True, eq=False)
class Evidence:
    """Logits of a target and of K shadow models on n records, any of which may be members.

    ``target`` (n, c); ``shadows`` (K, n, c); ``trained_on`` (K, n), whom a shadow was trained on; ``labels``
    (n,).  With records that *no* model was trained on, ``outside_target`` (z, c), ``outside_shadows``
    (K, z, c) and ``outside_labels`` (z,), RMIA is possible.
    """

    target: NDArray[np.float32] | Array
    shadows: NDArray[np.float32] | Array
    trained_on: NDArray[np.bool_]
    labels: NDArray[np.int64]
    outside_target: ArrayLike | None = None
    outside_shadows: ArrayLike | None = None
    outside_labels: ArrayLike | None = None


def attack_all(evidence: Evidence) -> dict[str, Array]:
    """Every attack's (n,) scores by its name, higher for members; RMIA only with records outside.

    :raises InvalidInput: what any of the attacks refuses; or some, but not all, of what RMIA needs.

    >>> rng = np.random.default_rng(0)
    >>> trained_on = np.argsort(rng.random((8, 50)), axis=0) < 4
    >>> logits = rng.normal(size=(9, 50, 3))
    >>> list(attack_all(Evidence(logits[0], logits[1:], trained_on, rng.integers(0, 3, 50))))
    ['loss threshold', 'Shokri', 'LiRA', 'LiRA offline', 'BaVarIA-t']
    """
    y, mask = evidence.labels, evidence.trained_on
    losses = -log_probability(evidence.target, y)
    margins = ShadowScores(logit_margin(evidence.target, y), logit_margin(evidence.shadows, y), mask)
    found = {
        "loss threshold": loss_threshold(losses),
        "Shokri": shokri(evidence.target, evidence.shadows, mask, y),
        "LiRA": lira_online(margins),
        "LiRA offline": lira_offline(margins),
    }
    outside = (evidence.outside_target, evidence.outside_shadows, evidence.outside_labels)
    if all(part is not None for part in outside):
        target, shadows, labels = (np.asarray(part) for part in outside)
        likelihoods = ShadowScores(-losses, log_probability(evidence.shadows, y), mask)
        beside = log_probability(target, labels), log_probability(shadows, labels)
        found["RMIA"] = rmia_online(likelihoods, *beside)
        found["RMIA offline"] = rmia_offline(likelihoods, *beside, slope=_SLOPE)
    elif any(part is not None for part in outside):
        raise InvalidInput(
            "RMIA needs the target's logits, the shadows' logits and the labels of records outside; give all "
            "three or none."
        )
    return found | {DEFAULT_ATTACK: bavaria(margins)}
