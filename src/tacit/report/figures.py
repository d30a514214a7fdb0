"""Curves, calibration and 95 % intervals (for the population; independent records) of exact test answers.

Points of a curve, bins and cells with fewer than five records are left out, so that they show no record.
Letters: n records, k of them positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, logsumexp, ndtri, softmax, stdtrit

from tacit.audits.scores import Scores, auc_interval, clopper_pearson
from tacit.training.evaluation import Answers, Evaluation, average_precision

Array = NDArray[np.float64]
Range = list[float]
"""The two ends of an interval."""

CONFIDENCE = 0.95
_POINTS = 200  # points of a curve
_FEWEST = 5  # the fewest records in a bin, in a cell or between two points
_BINS = 10  # bins of probabilities
_TOPS = (0.01, 0.05, 0.1)  # shares of the records that a user may flag
_MOST_CURVES = 10  # with more classes, there are no curves of one class against the others
_MOST_CELLS = 20  # along each axis
_DIGITS = 4


def share_interval(hits: int, trials: int) -> Range | None:
    """Compute the exact confidence interval of a share, or return None if there are no trials."""
    if trials == 0:
        return None
    interval = clopper_pearson(hits, trials, confidence=CONFIDENCE)
    return [interval.low, interval.high]


def f1_interval(right: int, wrong: int) -> Range | None:
    """Compute the interval of F1 = 2 r / (2 r + w).

    Here r is the number of true positives, and w is the number of false negatives and false positives. Given
    r + w, r is binomial with some probability J, and F1 = 2 J / (1 + J). So the ends of the interval follow
    from the exact interval of J.
    """
    ends = share_interval(right, right + wrong)
    return None if ends is None else [2 * end / (1 + end) for end in ends]


def mean_of_shares(hits: Sequence[int], trials: Sequence[int]) -> Range:
    """Compute the interval of the mean of independent shares.

    It uses the method of variance estimates recovery (Zou & Donner 2008, Statistics in Medicine 27(10)).
    """
    shares = [clopper_pearson(h, n, confidence=CONFIDENCE) for h, n in zip(hits, trials, strict=True)]
    mean = sum(one.value for one in shares) / len(shares)
    below = math.hypot(*(one.value - one.low for one in shares)) / len(shares)
    above = math.hypot(*(one.high - one.value for one in shares)) / len(shares)
    return [max(0.0, mean - below), min(1.0, mean + above)]


def ratio_interval(above: Array, below: Array) -> Range | None:
    """Compute the interval of the ratio sum(above) / sum(below), or return None if there is none.

    The interval is symmetric around the ratio's logarithm. It uses the standard error of the linearised ratio
    (Cochran, Sampling Techniques, 3rd edition, section 6.3) and Student's t. There is none unless both the
    ratio and its standard error are positive and finite.

    Args:
        above, below: (n,), one number for each record.
    """
    n, total = len(above), float(below.sum())
    if n < 2 or not total > 0.0:
        return None
    ratio = float(above.sum()) / total
    error = math.sqrt(n * float(np.var(above - ratio * below, ddof=1))) / total
    if not (ratio > 0.0 and error > 0.0 and math.isfinite(error)):
        return None
    reach = math.exp(float(stdtrit(n - 1, (1.0 + CONFIDENCE) / 2.0)) * error / ratio)
    return [ratio / reach, ratio * reach]


def precision_interval(value: float, positives: int) -> Range:
    """Compute the interval of an average precision v.

    The variance of its log odds is 1 / (k v (1 - v)) (Boyd, Eng & Page 2013, "Area under the precision-recall
    curve", section 4).
    """
    inside = min(max(value, 0.5 / (positives + 1)), 1.0 - 0.5 / (positives + 1))
    reach = float(ndtri((1.0 + CONFIDENCE) / 2.0)) / math.sqrt(positives * inside * (1.0 - inside))
    low, high = expit(logit(inside) + np.array([-reach, reach])).tolist()
    return [min(low, value), max(high, value)]


def ranked(scores: Array, positive: NDArray[np.bool_]) -> dict[str, Any] | None:
    """Compute AUC and average precision with intervals, and points of the ROC and precision-recall curves.

    ``scores`` (n,) are higher for records that are more likely ``positive`` (n,). The result is None if all
    records are positive or all are negative.
    """
    precision = average_precision(scores, positive)
    if precision is None:
        return None
    both = Scores.of(scores, positive)
    area = None if both.constant else auc_interval(both, confidence=CONFIDENCE)
    return {
        "auc": 0.5 if area is None else area.value,
        "auc_interval": None if area is None else [area.low, area.high],
        "average_precision": precision,
        "average_precision_interval": precision_interval(precision, int(positive.sum())),
        "curve": _curve(both),
    }


def _curve(scores: Scores) -> dict[str, list[float]]:
    """Choose at most 201 points of the ROC, spread evenly along both rates, at least five records apart."""
    roc = scores.roc()
    false, true = roc.false_positive_rates, roc.true_positive_rates
    hits = true * scores.members.size
    calls = hits + false * scores.non_members.size  # records that a threshold calls positive
    points = [0]
    for place in np.unique(np.searchsorted(false + true, np.linspace(0.0, 2.0, _POINTS + 1)[1:-1])):
        if min(_apart(place, points[-1], calls), _apart(-1, place, calls)) >= _FEWEST:
            points.append(int(place))
    points.append(len(false) - 1)
    precision = np.where(calls > 0.0, hits / np.maximum(calls, 1.0), 1.0)  # without calls: as in scikit-learn
    rates = {"false_positive_rate": false, "recall": true, "precision": precision}
    return {name: values[points].round(_DIGITS).tolist() for name, values in rates.items()}


def _apart(later: int, before: int, counts: Array) -> float:
    return float(counts[later] - counts[before]) + 1e-6


def calibration(probabilities: Array, happened: NDArray[np.bool_]) -> dict[str, Any]:
    """Compare predicted probabilities with frequencies, over all records and in ten bins of as many records.

    The expected calibration error is the mean distance between the share and the mean probability of a bin.
    The bins are weighted by their numbers of records (Guo, Pleiss, Sun & Weinberger 2017, 1706.04599,
    equation 3). The error counts all records, even those in bins that the result leaves out.

    Args:
        probabilities: (n,) in [0, 1].
        happened: (n,), whether the predicted event happened.
    """
    edges = np.unique(np.quantile(probabilities, np.linspace(0.0, 1.0, _BINS + 1)[1:-1]))
    place = np.searchsorted(edges, probabilities)
    records = np.bincount(place, minlength=len(edges) + 1)
    sums = np.bincount(place, weights=probabilities, minlength=len(records))
    hits = np.bincount(place, weights=happened, minlength=len(records))
    return {
        "error": round(float(np.abs(sums - hits).sum() / len(place)), _DIGITS),
        "probability": float(f"{probabilities.mean():.4g}"),
        "share": float(f"{happened.mean():.4g}"),
        "interval": share_interval(int(happened.sum()), len(place)),
        "bins": [
            {
                "records": int(records[b]),
                "probability": float(f"{sums[b] / records[b]:.4g}"),
                "share": float(f"{hits[b] / records[b]:.4g}"),
                "interval": share_interval(int(hits[b]), int(records[b])),
            }
            for b in range(len(records))
            if records[b] >= _FEWEST
        ],
        "records_in_bins_left_out": int(records[records < _FEWEST].sum()),
    }


def flagged(scores: Array, positive: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """Count the positive records among the top 1, 5 and 10 % of the (n,) scores.

    Records with the same score as the last one count too. A share of fewer than five records is left out.
    """
    total, rows = int(positive.sum()), []
    for top in _TOPS:
        count = round(top * len(scores))
        if count < _FEWEST or not total:
            continue
        mask = scores >= np.partition(scores, -count)[-count]
        hits, records = int(positive[mask].sum()), int(mask.sum())
        rows.append(
            {
                "top": top,
                "records": records,
                "found": hits,
                "recall": hits / total,
                "recall_interval": share_interval(hits, total),
                "precision": hits / records,
                "precision_interval": share_interval(hits, records),
            }
        )
    return rows


def predicted_and_true(predicted: Array, true: Array) -> dict[str, Any] | None:
    """Count the (n,) records by predicted and true value in square cells, and describe residuals by column.

    The residual is the true value minus the predicted value. The cells span the inner 98 % of all values, and
    the outermost cells also count the values beyond. With fewer records, there are fewer cells. The result is
    None if all values are equal or there are fewer than 20 records.
    """
    n = len(true)
    low, high = np.quantile(np.concatenate([predicted, true]), [0.01, 0.99])
    if n < 4 * _FEWEST or not low < high:
        return None
    cells = min(_MOST_CELLS, math.isqrt(n // 10) or 1)
    edges = np.linspace(low, high, cells + 1)
    columns, rows = (np.searchsorted(edges[1:-1], values, side="right") for values in (predicted, true))
    counts = np.bincount(rows * cells + columns, minlength=cells * cells).reshape(cells, cells)
    visible = np.where(counts >= _FEWEST, counts, 0)
    residual = true - predicted
    return {
        "edges": [float(f"{edge:.4g}") for edge in edges],
        "records": visible.tolist(),
        "records_rows": "true value, from the least",
        "records_columns": "predicted value, from the least",
        "records_in_cells_left_out": int(n - visible.sum()),
        "residuals": [_spread(residual[columns == cell], cell) for cell in range(cells)],
    }


def _spread(residual: Array, cell: int) -> dict[str, Any]:
    """Return the mean residual of a column of cells with its interval, and the standard deviation."""
    n = len(residual)
    if n < _FEWEST:
        return {"column": cell, "records": 0, "mean": None, "interval": None, "std": None}
    mean, std = float(residual.mean()), float(residual.std(ddof=1))
    reach = float(stdtrit(n - 1, (1.0 + CONFIDENCE) / 2.0)) * std / math.sqrt(n)
    ends = [float(f"{end:.4g}") for end in (mean - reach, mean + reach)]
    return {"column": cell, "records": n, "mean": float(f"{mean:.4g}"), "interval": ends,
            "std": float(f"{std:.4g}")}  # fmt: skip


# --- of an evaluation ---------------------------------------------------------------------------------------


def class_figures(evaluation: Evaluation, names: Sequence[str]) -> dict[str, Any]:
    """Return the intervals. If the answers are known and finite, also return the curves and the calibration.

    With two classes, the curves are those of the second class. With three to ten, each class has curves
    against all others. With more, there are no curves.
    """
    rights = [round(recall * n) for recall, n in zip(evaluation.per_class, evaluation.records, strict=True)]
    present = [(right, n) for right, n in zip(rights, evaluation.records, strict=True) if n]
    intervals = {
        "score": share_interval(sum(rights), sum(evaluation.records)),
        "balanced_accuracy": mean_of_shares(*zip(*present, strict=True)),
    }
    data: dict[str, Any] = {"intervals": intervals}
    if evaluation.answers is None or evaluation.not_finite:
        return data
    logits, truth = evaluation.answers.outputs.astype(np.float64), evaluation.answers.truth
    shares = softmax(logits, axis=1)
    count = logits.shape[1]
    if count == 2:
        data["curves"] = _curves(logits[:, 1:] - logits[:, :1], truth[:, None] == 1, names[1:])
        happened, chance = truth == 1, shares[:, 1]
        data["flagged"] = flagged(logits[:, 1] - logits[:, 0], happened)
    else:
        if count <= _MOST_CURVES:
            rest = [log_rest(logits, number) for number in range(count)]
            data["curves"] = _curves(logits - np.stack(rest, 1), truth[:, None] == range(count), names)
        happened, chance = logits.argmax(1) == truth, shares.max(1)
    if count == 2 and data["curves"]:
        intervals |= {name: data["curves"][0][f"{name}_interval"] for name in ("auc", "average_precision")}
    return data | {"calibration": calibration(chance, happened)}


def log_rest(logits: Array, number: int) -> Array:
    """Return log(sum(exp)) of all logits but one; that logit minus it is the log odds of its class."""
    return np.asarray(logsumexp(np.delete(logits, number, axis=1), axis=1))


def _curves(scores: Array, positive: NDArray[np.bool_], names: Sequence[str]) -> list[dict[str, Any]]:
    figures = ((name, ranked(scores[:, k], positive[:, k])) for k, name in enumerate(names))
    return [{"positive": name} | one for name, one in figures if one is not None]


def one_class_figures(right: int, records: int, predicted: int) -> dict[str, Any]:
    """Return the precision and F1 of a class, and the intervals of precision, F1 and recall."""
    return {
        "recall_interval": share_interval(right, records),
        "precision": right / predicted if predicted else None,
        "precision_interval": share_interval(right, predicted),
        "f1": 2 * right / (records + predicted) if records and records + predicted else None,
        "f1_interval": f1_interval(right, records + predicted - 2 * right) if records else None,
    }


def number_figures(answers: Answers) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the interval of R² over all targets, and the error intervals and cells of each target."""
    residual, spread = answers.outputs - answers.truth, answers.truth - answers.truth.mean(0)
    left = ratio_interval(np.square(residual).sum(1), np.square(spread).sum(1))
    errors = []
    for predicted, true in zip(*(part.T for part in answers.in_units()), strict=True):
        ones, squares = np.ones(len(true)), ratio_interval(np.square(predicted - true), np.ones(len(true)))
        errors.append(
            {
                "mean_absolute_interval": ratio_interval(np.abs(predicted - true), ones),
                "root_mean_squared_interval": None
                if squares is None
                else [math.sqrt(end) for end in squares],
                "cells": predicted_and_true(predicted, true),
            }
        )
    return {"score": None if left is None else [1.0 - left[1], 1.0 - left[0]]}, errors


def text_figures(answers: Answers) -> dict[str, Any]:
    """Return the intervals of accuracy and loss per character. Characters of a record may be dependent."""
    lengths = answers.truth.astype(np.float64)
    score, loss = (ratio_interval(answers.outputs[:, k], lengths) for k in range(2))
    return {"score": None if score is None else [score[0], min(1.0, score[1])], "loss": loss}
