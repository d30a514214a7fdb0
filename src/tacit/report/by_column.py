"""The effect of each column in a linear model of a table, as plain data for JSON, pages and pictures."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from tacit.columns import Encoder
from tacit.models.additive import AdditiveModel, Curve, LinearModel

_DIGITS = ".6g"


def by_column(model: nn.Module, encoder: Encoder) -> dict[str, Any] | None:
    """Return one curve for each declared column of a linear model.

    Args:
        model: a model with outputs that are the logits of the encoder's classes or labels, or target values
            scaled to [-1, 1].
        encoder: the encoder of the table, with the target.

    Returns:
        A dictionary. Its ``of`` names the quantity that the curves show: "log odds", "logits" minus their
        mean, or "numbers" in the units of the target. ``outputs`` has the names of the outputs, ``constant``
        the constant of each output, and ``columns`` the curves. The result is None if the model is not linear
        in the features, if it also reads a text column, or if it has diverged.

    **Guarantee**

    * The result depends only on the model and on public declarations.
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
    elif not encoder.labels:
        linear, scale = linear.in_units(encoder.target_bounds), "numbers"
    curves: AdditiveModel = linear.curves(encoder)
    columns = [_column(curve) for curve in curves.curves]
    return {"of": scale, "outputs": [*outputs], "constant": _short(curves.base), "columns": columns}


def _column(curve: Curve) -> dict[str, Any]:
    data = {
        "column": curve.name,
        "kind": curve.kind,
        "x": [x.isoformat() if isinstance(x, dt.date) else x for x in curve.x],
        "y": [_short(output) for output in curve.y.T],
        "importance": _short(curve.importance),
    }
    edges = {"other": curve.other, "missing": curve.missing}
    return data | {name: _short(value) for name, value in edges.items() if value is not None}


def _short(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:{_DIGITS}}") for value in values]
