"""How good is the model of a run? One HTML page that needs no network, of :mod:`tacit.report.evaluated`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tacit.report.evaluated import constant_score
from tacit.report.pages.document import document

Data = Mapping[str, Any]

_STYLE = """
.matrix td { text-align: right; } .matrix td i { font-style: normal; }
.matrix .cell { background: color-mix(in srgb, var(--one) calc(var(--share) * 55%), var(--paper)); }
"""
_EXACT = (
    "These are exact figures of the test records, which the guarantee of the run does not cover. Show them "
    "to others only if the test records may be known."
)
_NOISY = (
    "This is the one score of the run, with noise of {noise:g} test records; its cost is in the epsilon of "
    "the run. Nothing else is released of the test records: no recall, no confusion matrix, no AUC."
)
_MATRIX = (
    "Rows are the true classes, columns the predicted ones: a number off the diagonal counts records that "
    "the model takes for another class. The stronger the colour, the larger the share of the row."
)


def evaluation_page(data: Data, *, title: str) -> str:
    """The whole page, as HTML.

    Args:
        data: of :func:`tacit.report.evaluated.evaluation_data`.
        title: the name of the run.
    """
    style = "verdict bad" if data["useless"] else "verdict"
    mark = "" if data["private"] else '<p class="secret">NOT PRIVATE: fixed test key.</p>'
    noisy = data["interval"] is not None
    body = (
        f"<h1>How good the model of “{escape(title)}” is</h1>{mark}"
        f'<p class="{style}">{escape(data["verdict"])}</p>'
        f"{_scores(data)}{_errors(data)}{_classes(data)}{_matrix(data)}"
        f'<p class="soft">{escape(_NOISY.format(noise=data["noise"]) if noisy else _EXACT)}</p>'
    )
    return document(f"How good {title} is", body, style=_STYLE)


def _scores(data: Data) -> str:
    baseline = data["baseline"]
    score = _four(data["score"])
    if data["interval"] is not None:
        low, high = data["interval"]
        score = f"{data['score']:.3f} ({low:.3f} to {high:.3f})"
    rows = [(f"test {data['measure']}", score, constant_score(baseline))]
    if "balanced_accuracy" in data:
        rows.append(
            (
                "balanced accuracy: the mean recall of the classes",
                _four(data["balanced_accuracy"]),
                _four(data["balanced_accuracy_of_a_constant"]),
            )
        )
    if "auc" in data:
        name = data["positive_class"]
        rows += [
            (
                f"AUC: how often a record of “{name}” is ranked above one of “{data['classes'][0]['class']}”",
                _four(data["auc"]),
                _four(0.5),
            ),
            (
                f"average precision for “{name}”, over all thresholds",
                _four(data["average_precision"]),
                _four(data["average_precision_of_a_constant"]),
            ),
        ]
    if "loss_of_a_constant" in data:
        per = data["measure"].removeprefix("accuracy ")
        rows.append((f"test loss {per}, nats", _four(data["loss"]), _four(data["loss_of_a_constant"])))
    return _table(("of the test records", "model", "constant answer"), rows) + (
        f'<p class="soft">The constant answer: {escape(baseline["predictor"])}.</p>'
    )


def _errors(data: Data) -> str:
    if "errors" not in data:
        return ""
    keys = (
        "mean_absolute",
        "constant_mean_absolute",
        "root_mean_squared",
        "constant_root_mean_squared",
    )
    rows = [
        (error["target"], *("–" if error[key] is None else f"{error[key]:.4g}" for key in keys))
        for error in data["errors"]
    ]
    head = ("error of", "mean absolute", "constant answer", "root mean squared", "constant answer")
    return f"<h2>Errors</h2>{_table(head, rows)}"


def _classes(data: Data) -> str:
    if "classes" not in data:
        return ""
    rows = [
        (one["class"], f"{one['records']:,}", f"{one['predicted']:,}", _four(one["recall"]))
        for one in data["classes"]
    ]
    return "<h2>Class by class</h2>" + _table(
        ("class", "test records", "predicted", "recall: share of its records that are found"), rows
    )


def _matrix(data: Data) -> str:
    matrix = data.get("confusion_matrix")
    if not matrix:
        return ""
    names = [escape(one["class"]) for one in data["classes"]]
    rows = []
    for name, counts in zip(names, matrix, strict=True):
        whole = max(1, sum(counts))
        cells = "".join(
            f'<td class="cell" style="--share: {count / whole:.3f}"><i>{count:,}</i></td>' for count in counts
        )
        rows.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return (
        '<h2>Confusion matrix</h2><div class="wide" tabindex="0"><table class="matrix">'
        f"<tr><td>true ↓ predicted →</td>{head}</tr>"
        f'{"".join(rows)}</table></div><p class="soft">{_MATRIX}</p>'
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(words)}</th>' for words in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide" tabindex="0"><table><tr>{top}</tr>{body}</table></div>'


def _four(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
