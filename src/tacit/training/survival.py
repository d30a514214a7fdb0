"""Exact scores of a survival model on test records: concordance and the integrated Brier score.

Letters: n records; K bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from torch import Tensor, nn

from tacit.models.survival import mean_time, survival_loss, survival_of
from tacit.training.evaluation import Evaluation, SurvivalFigures, outputs_of

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]


def concordance(times: Floats, events: Bools, risks: NDArray[np.floating]) -> float:
    """Return Harrell's C: the share of comparable pairs in which the earlier event has the higher risk.

    A pair is comparable if its earlier time is an event.  A record censored at the time of an event survived
    it; two events at one time are not comparable.  Equal risks count as half.  The result is NaN without
    comparable pairs.

    >>> concordance(np.array([1.0, 2.0, 3.0]), np.array([True, False, True]), np.array([3.0, 2.0, 1.0]))
    1.0
    """
    # Records are ordered by time, and at one time events come before censored records.  Two records differ in
    # a highest bit of their place in this order, where the later one has a 1.  So for each bit, the pairs
    # with the same higher bits are counted, by searching the sorted risks of the later records.
    place = 2 * np.unique(times, return_inverse=True)[1] + ~events
    ranks = np.unique(risks, return_inverse=True)[1]
    width = int(ranks.max()) + 1
    right, pairs = 0.0, 0
    for bit in range(int(place.max()).bit_length()):
        block = (place >> (bit + 1)) * width
        later = (place >> bit) & 1 == 1
        others, own = np.sort((block + ranks)[later]), ~later & events
        begin = np.searchsorted(others, block[own])
        below = np.searchsorted(others, (block + ranks)[own]) - begin
        not_above = np.searchsorted(others, (block + ranks)[own], side="right") - begin
        right += (below.sum() + not_above.sum()) / 2
        pairs += int((np.searchsorted(others, block[own] + width) - begin).sum())
    return float(right / pairs) if pairs else float("nan")


def kaplan_meier(times: Floats, events: Bools, *, censoring: bool = False) -> tuple[Floats, Floats]:
    """Return the distinct times, (m,), and the estimated probability of surviving beyond each, (m,).

    With ``censoring``, it is the probability of being uncensored beyond each; at ties, events come first.

    >>> kaplan_meier(np.array([1.0, 2.0, 2.0]), np.array([True, True, False]))[1].round(3).tolist()
    [0.667, 0.333]
    """
    distinct, place = np.unique(times, return_inverse=True)
    at_risk = np.bincount(place)[::-1].cumsum()[::-1]
    ended = np.bincount(place, weights=events)
    if censoring:
        at_risk, ended = at_risk - ended, np.bincount(place) - ended
    return distinct, np.cumprod(1 - ended / np.maximum(at_risk, 1))


def _at(curve: tuple[Floats, Floats], times: Floats | float, *, before: bool = False) -> Floats:
    """Return a survival curve at (or just before) some times."""
    distinct, values = curve
    places = np.searchsorted(distinct, times, side="left" if before else "right")
    return np.concatenate([[1.0], values])[places]


def brier_scores(times: Floats, events: Bools, survival: Floats, at: Floats) -> Floats:
    """Return the squared errors (m,) of predicted survival (n, m) ``at`` m times, weighted for censoring.

    Weights are inverse Kaplan-Meier probabilities of censoring (Graf et al. 1999).  Scores are NaN from the
    time at which no record is at risk.
    """
    censoring = kaplan_meier(times, events, censoring=True)
    left = _at(censoring, at)
    with np.errstate(divide="ignore", invalid="ignore"):
        died = np.where(events, 1 / _at(censoring, times, before=True), 0.0)
        scores = np.where(times[:, None] <= at, died[:, None] * survival**2, (1 - survival) ** 2 / left)
    result: Floats = np.where((left > 0) & (at < times.max()), scores.mean(axis=0), np.nan)
    return result


def _integrated(scores: Floats, at: Floats) -> float:
    """Return the mean of scores over time, up to the first that is NaN."""
    known = np.isfinite(scores).cumprod().astype(bool)
    if known.sum() < 2:
        return float(scores[0])
    return float(trapezoid(scores[known], at[known]) / np.ptp(at[known]))


def evaluate_survival(
    model: nn.Module, inputs: Tensor, targets: Tensor, *, time_edges: Sequence[float]
) -> Evaluation:
    """Evaluate a survival model on ``inputs`` and ``targets`` (n, 2), times and events.

    The score is the concordance of the mean times until the event.  The loss is the mean negative
    log-likelihood.  The Brier score is integrated over the inner edges of the bins; its baseline is the
    Kaplan-Meier curve of the same records.  Scores are NaN if no test record has an event.

    >>> import torch
    >>> targets = torch.tensor([[1.0, 1.0], [3.0, 1.0], [3.0, 0.0]])
    >>> model = nn.Linear(1, 2)
    >>> evaluation = evaluate_survival(model, torch.zeros(3, 1), targets, time_edges=(0.0, 2.0, 4.0))
    >>> evaluation.measure, evaluation.score
    ('concordance', 0.5)
    """
    outputs = outputs_of(model, inputs)
    times, events = targets[:, 0].double().numpy(), targets[:, 1].numpy() > 0
    curves, edges = survival_of(outputs), np.array(time_edges)
    # mean times that differ only by the rounding of sums are equal
    risks = -mean_time(curves, time_edges).numpy().round(9)
    observed = kaplan_meier(times, events)
    inner, known = edges[1:-1], _at(observed, edges[1:])
    constant = np.broadcast_to(known[:-1], (len(times), len(inner)))
    finite = outputs.isfinite().all(1)
    return Evaluation(
        score=concordance(times, events, risks),
        loss=float(survival_loss(time_edges)(lambda _: outputs, inputs, targets).mean()),  # type: ignore[arg-type]
        per_class=(),
        measure="concordance",
        baseline=0.5,
        not_finite=int((~finite).sum()),
        survival=SurvivalFigures(
            records=len(times),
            events=int(events.sum()),
            brier=_integrated(brier_scores(times, events, curves[:, :-1].numpy(), inner), inner),
            constant_brier=_integrated(brier_scores(times, events, constant, inner), inner),
            edges=tuple(time_edges),
            predicted=(1.0, *curves.mean(0).tolist()),
            observed=(1.0, *known.tolist()),
        ),
    )
