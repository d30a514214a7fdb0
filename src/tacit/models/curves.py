"""Explanation of a linear model of encoded columns as the sum of a constant and one curve per column.

An :class:`~tacit.columns.Encoder` computes each feature from one column.  A linear model of the features is
therefore a generalised additive model (Hastie and Tibshirani 1986, "Generalized additive models", Statistical
Science 1(3)): its output is a constant plus a sum of functions of one column each.

Letters: f features; k outputs; m points of a curve.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.columns import Column, Encoder
from tacit.columns.column import PART_NAMES
from tacit.columns.encoder import bounds_of, classes_of, feature_names, is_one_hot
from tacit.errors import InvalidInput
from tacit.models.additive import StandardLinear
from tacit.models.least_squares import LeastSquaresHead

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """The contribution of one column to a model's output, at each value of the column.

    Attributes:
        name: the column's name.  For a weekday, month or hour, the date column's name and that of the part.
        kind: "number", "date", "datetime" or "category".
        x: for a category or a boolean, the declared values, (m,).  For a number, the ends of straight
            pieces: the declared bounds, and between them each bin edge twice, for the value just below it
            and the value from it on.
        y: the contribution at each x, (m, k).  Its mean over the declared values, or over the range of a
            number, is 0.
        other: the contribution of a value that is not declared, (k,); None for a number.
        missing: the contribution of a missing cell, (k,); None if no feature marks missing cells.
    """

    name: str
    kind: str
    x: tuple[float, ...] | tuple[str, ...] | tuple[dt.date, ...]
    y: Array
    other: Array | None = None
    missing: Array | None = None

    @property
    def importance(self) -> Array:
        """The range of the curve, (k,): its highest value minus its lowest."""
        ranges: Array = np.ptp(self.y, axis=0)
        return ranges


@dataclass(frozen=True, eq=False)
class AdditiveModel:
    """A constant, ``base`` (k,), plus ``curves`` in the order of the columns."""

    base: Array
    curves: tuple[Curve, ...]


@dataclass(frozen=True, eq=False)
class LinearModel:
    """The weights (k, f) and constants (k,) of a linear model.

    **Guarantee**

    * The methods compute only from these weights and public declarations.  For a private model they are
      post-processing, which costs no privacy.

    >>> encoder = Encoder({"age": Column(kind="integer", lower=0, upper=100, bins=[50]),
    ...                    "sex": Column(kind="category", values=("f", "m"))})
    >>> model = LinearModel(np.array([[1.0, 0.0, 4.0, 3.0, 1.0, 0.0]]), np.array([0.5]))
    >>> sums = model.curves(encoder)
    >>> sums.base.tolist(), [(curve.x, curve.y[:, 0].tolist()) for curve in sums.curves]
    ([4.5], [((0.0, 50.0, 50.0, 100.0), [-3.0, -2.0, 2.0, 3.0]), (('f', 'm'), [1.0, -1.0])])
    """

    weight: Array
    bias: Array

    @classmethod
    def of(cls, model: nn.Module) -> LinearModel | None:
        """Return the weights of a model that is linear in its (flattened) inputs, or None for other models.

        >>> LinearModel.of(nn.Sequential(nn.Flatten(), nn.Linear(3, 2))).weight.shape
        (2, 3)
        """
        match model:
            case nn.Linear(bias=Tensor()):
                return cls(_array(model.weight), _array(model.bias))
            case StandardLinear():
                mean, spread = map(_array, model.mean_and_spread())
                layer = cls.of(model.layer)
                return layer and cls(layer.weight * spread[:, None], mean + spread * layer.bias)
            case LeastSquaresHead(normalise=False):
                return cls(*map(_array, model.affine()))
            case nn.Sequential():
                *before, last = model
                if all(isinstance(layer, nn.Flatten | nn.Identity) for layer in before):
                    return cls.of(last)
        return None

    def log_odds(self) -> LinearModel:
        """Return the model of log odds, for a model of logits.

        For two classes it has one output, the log odds of the second.  For three or more, it has the logit of
        each class minus the mean over the classes, which changes no probability.
        """
        if len(self.weight) == 2:
            return LinearModel(np.diff(self.weight, axis=0), np.diff(self.bias))
        return LinearModel(self.weight - self.weight.mean(0), self.bias - self.bias.mean())

    def in_units(self, bounds: Sequence[tuple[float, float]]) -> LinearModel:
        """Return the model in the targets' own units: it maps [-1, 1] to the declared ``bounds``."""
        low, high = np.array(bounds, dtype=np.float64).T
        half = (high - low) / 2
        return LinearModel(self.weight * half[:, None], low + (self.bias + 1) * half)

    def curves(self, encoder: Encoder) -> AdditiveModel:
        """Return the model's output as the sum of a constant and a curve for each column.

        Args:
            encoder: the encoder that made the model's inputs.  It must encode no text.

        Raises:
            InvalidInput: the number of inputs differs from the number of features, or the encoder has text.
        """
        if self.weight.shape[1] != len(encoder.features) or encoder.text is not None:
            raise InvalidInput(
                f"the model has {self.weight.shape[1]} inputs but the columns have {len(encoder.features)} "
                "features. Give the encoder that the model was trained with; it must encode no text."
            )
        base, curves, at = self.bias, list[Curve](), 0
        for name in encoder.inputs_of:
            column = encoder.columns[name]
            width = sum(1 for _ in feature_names(name, column))
            for curve, mean in _of_column(name, column, self.weight[:, at : at + width].T):
                base = base + mean
                curves.append(curve)
            at += width
        return AdditiveModel(base, tuple(curves))


def _array(weights: Tensor) -> Array:
    array: Array = weights.detach().cpu().double().numpy()
    return array


def _of_column(name: str, column: Column, weights: Array) -> Iterator[tuple[Curve, Array]]:
    """Yield the centred curves of a column from its weights (features, k), each with the subtracted mean.

    For a missing cell, all features are 0 except the last, which is the indicator.
    """
    missing = None
    if column.missing == "indicator":
        weights, missing = weights[:-1], weights[-1]
    sizes = [len(PART_NAMES[part]) for part in column.parts]
    first, *parts = np.split(weights, np.cumsum([len(weights) - sum(sizes), *sizes])[:-1])
    if is_one_hot(column):
        yield _categorical(name, column.listed, first[:-1], first[-1], missing)
    elif column.kind == "boolean":
        yield _categorical(name, classes_of(column), np.concatenate([-first, first]), None, missing)
    else:
        yield _numeric(name, column, first, missing)
    nothing = None if missing is None else np.zeros_like(missing)
    for part, rows in zip(column.parts, parts, strict=True):
        yield _categorical(f"{name} {part}", PART_NAMES[part], rows, None, nothing)


def _categorical(
    name: str, x: tuple[str, ...], y: Array, other: Array | None, missing: Array | None
) -> tuple[Curve, Array]:
    mean: Array = y.mean(axis=0)
    return Curve(name, "category", x, y - mean, _minus(other, mean), _minus(missing, mean)), mean


def _numeric(name: str, column: Column, weights: Array, missing: Array | None) -> tuple[Curve, Array]:
    """Return the curve with slope weights[0], plus a constant for each bin if there are bins."""
    low, high = bounds_of(column)
    edges = np.array([low, *column.edges, high])
    x = np.repeat(edges, 2)[1:-1]
    bins = np.repeat(weights[1:], 2, axis=0) if column.edges else 0.0
    y = np.outer(2.0 * (x - low) / (high - low) - 1.0, weights[0]) + bins
    mean: Array = np.repeat(np.diff(edges) / (high - low), 2) / 2.0 @ y
    kind = column.kind if column.is_moment else "number"
    ends = (column.lower, column.upper) if column.is_moment else x.tolist()  # a date has no bins
    return Curve(name, kind, tuple(ends), y - mean, None, _minus(missing, mean)), mean


def _minus(value: Array | None, mean: Array) -> Array | None:
    return None if value is None else value - mean
