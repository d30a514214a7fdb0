"""The comparison of a trained model with a baseline, as data, a page, and text."""

# The data come only from an :class:`tacit.training.Evaluation` and public facts, and the page and the text
# of a run come from the data. If the score is noisy, the data contain the score, its interval and a public
# baseline, but no count of test records. If the score is exact, the data also contain the intervals, curves
# and calibration of :mod:`tacit.report.figures`.

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from tacit.columns import Encoder
from tacit.models.additive import AdditiveModel, Curve, LinearModel
from tacit.report.canvas import cut, to_svg
from tacit.report.document import figure, page
from tacit.report.evaluation_charts import Panels, charts_of, charts_of_columns, legend_of, panels_of
from tacit.report.figures import class_figures, number_figures, one_class_figures, text_figures
from tacit.report.verdict import RARE, against_reference, verdict
from tacit.rounding import finite, pair
from tacit.training.evaluation import Evaluation, PairFigures

Data = Mapping[str, Any]

_WIDTH = 79
_CLASS_FIGURES = {
    "balanced_accuracy": "balanced accuracy",
    "mean_accuracy": "mean accuracy of the labels",
    "auc": 'AUC of "{}"',
    "average_precision": 'average precision of "{}"',
}
"""The names of the metrics of classes. The same metric of the baseline is at the key that ends in
"_of_a_constant". It is 0.5 if there is no such key."""
_LABEL_FIGURES = {
    "share": "share",
    "auc": "AUC",
    "recall": "recall",
    "precision": "precision",
    "accuracy": "accuracy",
    "accuracy_of_a_constant": "majority",
}
"""The metrics of a label, and their names in a terminal."""
_MOST_NATS = 50.0  # beyond that a perplexity says nothing


def evaluation_data(
    evaluation: Evaluation,
    *,
    classes: Sequence[str] = (),
    targets: Sequence[str] = (),
    baseline: str = "",
    known: str = "",
    settings: Mapping[str, str] | None = None,
    private: bool = True,
    reference: float | None = None,
    loss_remark: str = "",
) -> dict[str, Any]:
    """Return how good a run's model is, as data for JSON. NaN and infinite numbers become None.

    Args:
        baseline: the baseline in words; by default the best constant predictor of the test records.
        known: "at least" or "assumed", for a baseline score that is not exact.
        reference: the declared score of the same model without DP on similar public data.
    """
    count = len(evaluation.labels) or len(evaluation.records)
    names = [*classes] or [str(number) for number in range(count)]
    predictor = baseline or _predictor(evaluation, names)
    judgement = verdict(evaluation, names, predictor, settings)
    data: dict[str, Any] = {
        "verdict": judgement.sentence,
        "useless": judgement.useless,
        "advice": list(judgement.advice),
        "measure": evaluation.measure,
        "score": finite(evaluation.score),
        "interval": None if evaluation.interval is None else list(evaluation.interval),
        "noise": evaluation.noise,
        "steps": evaluation.steps,
        "loss": finite(evaluation.loss),
        "baseline": {
            "score": finite(evaluation.baseline),
            "predictor": predictor,
        }
        | ({"known": known} if known else {}),
        "private": private,
    }
    if evaluation.constant_loss is not None:
        data["loss_of_a_constant"] = finite(evaluation.constant_loss)
    if evaluation.records:
        data |= _class_data(evaluation, names)
    elif evaluation.labels:
        data |= _label_data(evaluation, names)
    elif evaluation.pairs is not None:
        data["pairs"] = _pair_data(evaluation.pairs, evaluation.loss)
    elif evaluation.survival is not None:
        data["survival"] = {name: _finite(value) for name, value in vars(evaluation.survival).items()}
    elif evaluation.errors:
        data |= _number_data(evaluation, targets)
    elif evaluation.answers is not None:
        data["intervals"] = text_figures(evaluation.answers)
    if evaluation.not_finite:
        data["records_with_outputs_that_are_not_finite"] = evaluation.not_finite
    if reference is not None:
        ends = evaluation.interval or data.get("intervals", {}).get("score")
        words, data["reference"] = against_reference(evaluation, ends, reference)
        data["verdict"] += f" {words}"
    return data | ({"training_loss": loss_remark} if loss_remark else {})


def _class_data(evaluation: Evaluation, names: Sequence[str]) -> dict[str, Any]:
    present = sum(count > 0 for count in evaluation.records)
    classes = zip(names, evaluation.records, evaluation.predicted, evaluation.per_class, strict=True)
    data: dict[str, Any] = {
        "balanced_accuracy": finite(evaluation.balanced),
        "balanced_accuracy_of_a_constant": 1.0 / present,
        "classes": [
            {
                "class": name,
                "records": records,
                "predicted": predicted,
                "recall": recall if records else None,
            }
            | one_class_figures(round(recall * records), records, predicted)
            for name, records, predicted, recall in classes
        ],
        "confusion_matrix": [list(row) for row in evaluation.confusion] or None,
        "confusion_matrix_rows": "true class",
        "confusion_matrix_columns": "predicted class",
    }
    if len(evaluation.records) == 2:
        data |= {
            "positive_class": names[1],
            "auc": finite(evaluation.auc),
            "average_precision": finite(evaluation.average_precision),
            "average_precision_of_a_constant": evaluation.records[1] / sum(evaluation.records),
        }
    return data | class_figures(evaluation, names)


def _pair_data(pairs: PairFigures, loss: float | None) -> list[dict[str, Any]]:
    rows = (
        ("chosen answer more probable", pairs.by_probability, pairs.reference_by_probability),
        ("mean margin of rewards", pairs.margin, 0.0),
        ("test loss per pair", loss, math.log(2)),
    )
    return [
        {"figure": words, "model": finite(own), "public_model": finite(other)} for words, own, other in rows
    ]


def _finite(value: Any) -> Any:
    return finite(value) if isinstance(value, float) else [*value] if isinstance(value, tuple) else value


def _label_data(evaluation: Evaluation, names: Sequence[str]) -> dict[str, Any]:
    """Return the metrics of each label, and the mean of the labels' accuracies."""
    labels = evaluation.labels
    return {
        "mean_accuracy": sum(one.accuracy for one in labels) / len(labels),
        "mean_accuracy_of_a_constant": sum(one.constant_accuracy for one in labels) / len(labels),
        "labels": [
            {
                "label": name,
                "records": one.positives + one.negatives,
                "positives": one.positives,
                "share": one.share,
                "auc": finite(one.auc),
                "recall": one.recall,
                "precision": one.precision,
                "accuracy": one.accuracy,
                "accuracy_of_a_constant": one.constant_accuracy,
            }
            for name, one in zip(names, labels, strict=True)
        ],
    }


def _number_data(evaluation: Evaluation, targets: Sequence[str]) -> dict[str, Any]:
    names = [*targets] or [f"target {number}" for number in range(1, len(evaluation.errors) + 1)]
    errors = [
        {"target": name} | {key: finite(value) for key, value in vars(error).items()}
        for name, error in zip(names, evaluation.errors, strict=True)
    ]
    if evaluation.answers is None or evaluation.not_finite:
        return {"errors": errors}
    intervals, figures = number_figures(evaluation.answers)
    return {"errors": [one | more for one, more in zip(errors, figures, strict=True)], "intervals": intervals}


def _predictor(evaluation: Evaluation, names: Sequence[str]) -> str:
    """Describe the constant predictor of the test records in words."""
    if evaluation.errors:
        return "the mean of the test records"
    if evaluation.pairs is not None:
        return "the public model, in comparison with itself"
    if evaluation.survival is not None:
        return "one Kaplan-Meier curve for all test records"
    if evaluation.constant is None:
        return "the baseline"
    if evaluation.records:
        return f'the majority class "{names[evaluation.constant]}"'
    return f"the most frequent {evaluation.measure.removeprefix('accuracy per ')}"


def evaluation_page(data: Data, *, title: str, guarantee: Data | None = None) -> str:
    """Write the data of :func:`evaluation_data` as one self-contained HTML page.

    ``guarantee`` is that of the run's statement.
    """
    constant, axes = constant_score(data["baseline"]), charts_of(data)
    charts = {name: to_svg(chart) for name, chart in axes.items()}
    facts: dict[str, Any] = {"run": title, "constant": constant, "charts": charts, "promise": None}
    facts["short_constant"] = constant_score(data["baseline"], 3)
    if guarantee is not None:
        epsilon, delta = pair(guarantee).split(" at ")
        facts["promise"] = epsilon, f"at {delta} for one {guarantee['unit']} ({guarantee['adjacency']})"
    if "public_model" in data:
        facts["perplexity"] = _perplexity
    if "by_column" in data:
        facts["panels"] = [_panels(one) for one in panels_of(data["by_column"])]
    return page("evaluation.html", f"How good {title} is", **data, **facts)


def _panels(panels: Panels) -> dict[str, Any]:
    """Return the charts of the columns as SVG, with their names, constants and legend."""
    legend = legend_of(panels)
    return {
        "names": panels.names,
        "constants": [panels.data["constant"][place] for place in panels.outputs],
        "legend": None if legend is None else to_svg(legend),
        "charts": {name: to_svg(axes) for name, axes in charts_of_columns(panels).items()},
        "rest": panels.rest,
    }


# --- text ---------------------------------------------------------------------------------------------------


def warn_if_public_is_better(data: dict[str, Any]) -> None:
    """Put it first in the verdict if the public model has a lower loss than the model trained from it."""
    own, public = data["loss"], data.get("public_model", {}).get("loss")
    if public is not None and (own is None or own > public):
        data["useless"] = True
        data["advice"] = ["a smaller learning rate", *data["advice"]]
        data["verdict"] = (
            f"USELESS: the public model has a test loss of {figure(public)}, and after training it is "
            f"{figure(own)}. Try a smaller learning rate, or more records. {data['verdict']}"
        )


def score_line(data: Data) -> str:
    """Write the score, its interval if it is noisy, and the baseline's score."""
    digits = 4
    score = figure(data["score"])
    if data["interval"] is not None:
        digits = 3
        low, high = data["interval"]
        score = f"{figure(data['score'], '.3f')} ({low:.3f} to {high:.3f})"
    constant = constant_score(data["baseline"], digits)
    others = f"{_baseline_of(data)}: {constant}"
    if "public_model" in data:
        others = f"public model: {figure(data['public_model']['score'])}; {others}"
    return f"test {data['measure']} {score} ({others})"


def _baseline_of(data: Data) -> str:
    """Name the baseline in a word or two, for the head of a column."""
    if "pairs" in data:
        return "public model"
    return "majority class" if "classes" in data else "baseline"


def constant_score(baseline: Data, digits: int = 4) -> str:
    """Write the score of the baseline, with a qualifier such as "at least" if it is not exact.

    >>> constant_score({"score": 0.5, "known": "at least"}, 3)
    'at least 0.500'
    """
    return f"{baseline.get('known', '')} {figure(baseline['score'], f'.{digits}f')}".strip()


_MISSED = 0.5  # a class is mostly missed if a smaller share of its test records is found


def missed_classes(data: Data, run: str = "RUN") -> str:
    """Warn of classes that the model mostly misses, with the remedy that costs no privacy; or return "".

    >>> classes = [{"class": "no", "recall": 0.99}, {"class": "yes", "recall": 0.25}]
    >>> missed_classes({"classes": classes})
    '"yes" is mostly missed (recall 0.25). At no privacy cost: tacit predict RUN DATA --threshold 0.1'
    """
    classes = data.get("classes", ())
    missed = [one for one in classes if one["recall"] is not None and one["recall"] < _MISSED]
    if not missed:
        return ""
    words = ", ".join(f'"{one["class"]}" is mostly missed (recall {one["recall"]:.2f})' for one in missed[:2])
    if len(classes) != 2 or len(missed) == 2:
        return f"{words}. See evaluation.html."
    lower = 0.1 if missed[0] is classes[1] else 0.9  # of the second class
    return f"{words}. At no privacy cost: tacit predict {run} DATA --threshold {lower}"


def is_ranked(data: Data) -> bool:
    """Return whether the model is judged by its ranking of the records, as one of its two classes is rare.

    >>> [is_ranked({"auc": 0.9, "baseline": {"score": share}}) for share in (0.97, 0.6)]
    [True, False]
    """
    return data.get("auc") is not None and (data["baseline"]["score"] or 0.0) > RARE / 2


def evaluation_text(data: Data) -> str:
    """Write the exact metrics in lines of at most 79 characters. The text is empty if the score is noisy."""
    parts = [_figures(data)] if data["interval"] is None else []
    if "classes" in data:
        parts.append(_matrix(data))
    if "labels" in data:
        rows = [(cut(one["label"]), *(figure(one[key]) for key in _LABEL_FIGURES)) for one in data["labels"]]
        parts.append(_table(("label", *_LABEL_FIGURES.values()), rows))
    if "errors" in data:
        keys = ["mean_absolute", "constant_mean_absolute", "root_mean_squared", "constant_root_mean_squared"]
        rows = [(cut(one["target"]), *(figure(one[key], ".4g") for key in keys)) for one in data["errors"]]
        parts.append(_table(("error of", "mean absolute", "baseline", "root mean squared", "baseline"), rows))
    return "\n\n".join("\n".join(part) for part in parts if part)


def _figures(data: Data) -> list[str]:
    rows = [(f"test {data['measure']}", data["score"], data["baseline"]["score"])]
    for key, words in _CLASS_FIGURES.items():
        if key in data:
            name = words.format(cut(data.get("positive_class", "")))
            rows.append((name, data[key], data.get(f"{key}_of_a_constant", 0.5)))
    rows += [(one["figure"], one["model"], one["public_model"]) for one in data.get("pairs", [])]
    if survival := data.get("survival"):
        rows.append(("integrated Brier score (0 is best)", survival["brier"], survival["constant_brier"]))
    if "loss_of_a_constant" in data:
        losses, per = (data["loss"], data["loss_of_a_constant"]), data["measure"].removeprefix("accuracy ")
        rows.append((f"test loss {per}, nats", *losses))
        rows.append((f"perplexity {per}", _perplexity(losses[0]), _perplexity(losses[1])))
    if "public_model" in data:
        public = data["public_model"]
        others = (public["score"], public["loss"], _perplexity(public["loss"]))
        cells = [
            (name, figure(one), figure(other), figure(two))
            for (name, one, two), other in zip(rows, others, strict=True)
        ]
        return _table(("", "model", "public model", "baseline"), cells)
    return _table(
        ("", "model", _baseline_of(data)), [(name, figure(one), figure(two)) for name, one, two in rows]
    )


def _matrix(data: Data) -> list[str]:
    """Write the confusion matrix, or nothing if it is wider than a terminal."""
    matrix, classes = data["confusion_matrix"], data["classes"]
    if matrix is None:
        return []
    names = [cut(one["class"]) for one in classes]
    rows = [
        (name, *(str(count) for count in row), figure(one["recall"]))
        for name, row, one in zip(names, matrix, classes, strict=True)
    ]
    lines = _table(("true \\ predicted", *names, "recall"), rows)
    return lines if len(lines[0]) <= _WIDTH else []


def _perplexity(loss: float | None) -> float | None:
    return None if loss is None or loss > _MOST_NATS else math.exp(loss)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, with the first column aligned to the left and the others to the right."""
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]

    def line(cells: Sequence[str]) -> Iterator[str]:
        yield cells[0].ljust(widths[0])
        yield from (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))

    return ["  ".join(line(row)).rstrip() for row in (head, *rows)]


_DIGITS = ".6g"


def by_column(model: nn.Module, encoder: Encoder) -> dict[str, Any] | None:
    """Return one curve for each declared column of a linear model, from it and public declarations alone.

    ``of`` names what the curves show: "log odds", "logits" minus their mean, or "numbers" in units of the
    target. The result is None if the model is not linear in the features, reads a text column, or has
    diverged.
    """
    linear = LinearModel.of(model)
    if linear is None or encoder.text is not None:
        return None
    if not (np.isfinite(linear.weight).all() and np.isfinite(linear.bias).all()):
        return None
    outputs, scale = encoder.classes or encoder.labels or encoder.target_names, "log odds"
    if encoder.classes:
        linear = linear.log_odds()
        outputs, scale = (outputs[1:], scale) if len(outputs) == 2 else (outputs, "logits")
    elif encoder.time_edges:
        outputs = outputs[1:]  # the event
    elif not encoder.labels:
        linear, scale = linear.in_units(encoder.target_bounds), "numbers"
    curves: AdditiveModel = linear.curves(encoder)
    columns = [_column(curve) for curve in curves.curves]
    return {"of": scale, "outputs": [*outputs], "constant": _rounded(curves.base), "columns": columns}


def _column(curve: Curve) -> dict[str, Any]:
    data = {
        "column": curve.name,
        "kind": curve.kind,
        "x": [x.isoformat() if isinstance(x, dt.date) else x for x in curve.x],
        "y": [_rounded(output) for output in curve.y.T],
        "importance": _rounded(curve.importance),
    }
    edges = {"other": curve.other, "missing": curve.missing}
    return data | {name: _rounded(value) for name, value in edges.items() if value is not None}


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:{_DIGITS}}") for value in values]
