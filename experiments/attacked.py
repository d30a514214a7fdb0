"""Shared code of the experiments with membership attacks: metrics of an attack, and ROC curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from experiments.laboratory.advantage import advantage_at_held_out_threshold
from tacit.audits import Scores, found_at, measure

Array: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

CONFIDENCE = 0.95
FALSE_ALARMS = 0.01


@dataclass(frozen=True)
class Attacked:
    """The metrics of one attack on the pooled targets, as fractions of 1 with 95 % intervals.

    ``found`` is the share of members found at 1 % false alarms; its interval includes the error of the
    threshold.  ``right`` is the share of right answers on members and non-members, at the threshold that is
    best on the other half.  ``auc_per_target`` shows how much results differ between training runs.
    """

    attack: str
    auc: float
    auc_low: float
    auc_high: float
    auc_per_target: list[float]
    found: float
    found_low: float
    found_high: float
    right: float

    def to_json(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields and those in ``more``."""
        return asdict(self) | dict(more)


def pooled(scores: Sequence[Array], member: Bools) -> Scores:
    """Pool the scores (n,) of each target, with the mask of members, (targets, n)."""
    return Scores.of(np.concatenate(scores), member.ravel())


def attacked(name: str, scores: Sequence[Array], member: Bools, rng: np.random.Generator) -> Attacked:
    """Return the metrics of an attack on the pooled targets.

    Args:
        scores: one (n,) array per target.
        member: (targets, n), whether the target was trained on the record.
    """
    every = pooled(scores, member)
    found = measure(every, false_positive_rates=(FALSE_ALARMS,), confidence=CONFIDENCE, rng=rng)
    advantage = advantage_at_held_out_threshold(every, confidence=CONFIDENCE, rng=rng)
    point = found.points[0]
    return Attacked(
        name,
        found.auc.value,
        found.auc.low,
        found.auc.high,
        [Scores.of(own, here).auc() for own, here in zip(scores, member, strict=True)],
        point.true_positive_rate.value,
        point.true_positive_rate.low,
        point.true_positive_rate.high,
        0.5 + advantage.value / 2.0,
    )


def roc_with_band(scores: Scores, rates: Array) -> tuple[Array, Array, Array]:
    """Return true-positive rates at false-positive ``rates``, (m,), and their pointwise 95 % band."""
    found, low, high = np.empty((3, len(rates)))
    for place, rate in enumerate(rates):
        interval = found_at(scores, float(rate), confidence=CONFIDENCE)
        found[place], low[place], high[place] = interval.value, interval.low, interval.high
    return found, low, high
