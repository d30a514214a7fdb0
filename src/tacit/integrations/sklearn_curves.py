"""The curves of a fitted linear estimator, one for each column of X."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import check_is_fitted
from torch import nn

from tacit.columns import Column, Encoder
from tacit.errors import InvalidInput
from tacit.integrations.sklearn_declared import bounds_of
from tacit.integrations.sklearn_features import takes_given
from tacit.models.additive import AdditiveModel, Binned, LinearModel

Estimator = Any  # PrivateClassifier or PrivateRegressor, whose base imports this file


class NoCurves(InvalidInput, AttributeError):
    """Raised for a model that is not a sum over columns; an AttributeError, so that hasattr returns False."""


def curves_of(estimator: Estimator) -> AdditiveModel:
    """Return the fitted model as a constant and one curve for each column of X.

    The curves of a classifier are log odds, as in :meth:`tacit.models.additive.LinearModel.log_odds`.  Those
    of a regressor are in the units of ``target_bounds``.

    **Guarantee**

    * The curves are computed from ``model_`` and the estimator's arguments alone, at no cost.
    """
    check_is_fitted(estimator, "model_")
    model, bins = estimator.model_, None
    if isinstance(model, nn.Sequential) and isinstance(model[0], Binned):
        bins, model = model[0].bins, model[1:]
    linear = None if takes_given(estimator) else LinearModel.of(model)
    if linear is None:
        raise NoCurves(
            f"curves_ and intercept_ need a model that is a sum over columns; got {_why_not(estimator)}. Fit "
            "a linear model of columns with declared facts or bounds."
        )
    encoder = _by_bounds(estimator, bins) if estimator.encoder_ is None else estimator.encoder_
    if hasattr(estimator, "classes_"):
        return linear.log_odds().curves(encoder)
    return linear.in_units([estimator.target_bounds]).curves(encoder)


def _by_bounds(estimator: Estimator, bins: int | None) -> Encoder:
    """Return an encoder for columns with ``bounds``; columns without names are x0, x1, ..."""
    count = estimator.n_features_in_
    frame_names = getattr(estimator, "feature_names_in_", None)
    names = [f"x{place}" for place in range(count)] if frame_names is None else frame_names.tolist()
    ends = bounds_of("bounds", estimator.bounds, count, names)
    columns = zip(names, *(bound.tolist() for bound in ends), strict=True)
    return Encoder(
        {name: Column(kind="number", lower=low, upper=high, bins=bins) for name, low, high in columns}
    )


def _why_not(estimator: Estimator) -> str:
    if estimator.features is not None:
        return "features, which may mix columns"
    if tuple(estimator.hidden):
        return f"hidden={estimator.hidden!r}"
    if estimator.normalise:
        return "normalise=True, which divides by the spread of a row"
    return f"head={estimator.head!r} of a classifier, which divides by the length of a row"
