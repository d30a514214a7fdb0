"""The training rows that a model's own file contains, such as support vectors and neighbours.

A kernel machine stores some of its training rows.  A person who has the fitted object can read them without
any query, and in the original units if the object includes its scaler.

Other models store no rows, such as a linear model on random Fourier features (Rahimi and Recht, NIPS 2007),
which can be trained with differential privacy (Rubinstein, Bartlett, Huang, Taft, 0911.5708).

Letters: s stored rows, n training rows, d columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import KDTree

from tacit.errors import InvalidInput, MissingExtra, check_real

Array: TypeAlias = NDArray[np.float64]


def stored_rows(model: Any) -> Array:
    """Return the training rows that a fitted scikit-learn model stores, (s, d), in the table's units.

    Supported are support vector machines, nearest neighbours, Gaussian process regression and kernel ridge
    regression, also as the last step of a pipeline whose other steps can be inverted.

    Raises:
        InvalidInput: if the model is not fitted, or is not known to store rows.
        MissingExtra: if scikit-learn is not installed.

    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from sklearn.svm import SVC
    >>> rows = np.array([[150.0, 50.0], [160.0, 55.0], [180.0, 90.0], [190.0, 95.0]])
    >>> model = make_pipeline(StandardScaler(), SVC(kernel="linear")).fit(rows, [0, 0, 1, 1])
    >>> stored_rows(model).round(6).tolist()  # the two persons next to the border
    [[160.0, 55.0], [180.0, 90.0]]
    """
    try:
        from sklearn.exceptions import NotFittedError
        from sklearn.pipeline import Pipeline
        from sklearn.utils.validation import check_is_fitted
    except ImportError:
        raise MissingExtra("scikit-learn", "sklearn", "Reading rows out of a model") from None
    try:
        check_is_fitted(model)
    except (NotFittedError, TypeError) as problem:
        raise InvalidInput(f"stored_rows takes a fitted scikit-learn model: {problem}") from None
    if not isinstance(model, Pipeline):
        return _own_rows(model)
    rows = _own_rows(model[-1])
    for step in reversed(model[:-1]):
        if step is None or step == "passthrough":
            continue
        try:
            rows = _dense(step.inverse_transform(rows))
        except AttributeError:
            raise InvalidInput(
                f"the step {type(step).__name__} of the pipeline cannot be inverted. Take the last step "
                "alone, and its rows come in that step's units."
            ) from None
    return rows


@dataclass(frozen=True)
class StoredShare:
    """The ``share`` of the training rows that the model stores, and the ``largest_error`` of their numbers.

    ``found`` is the number of these training rows, ``stored`` the number of rows in the model, and
    ``unmatched`` the number of rows in the model that match no training row.
    """

    share: float
    largest_error: float
    found: int
    stored: int
    unmatched: int


def stored_share(rows: ArrayLike, training: ArrayLike, *, tolerance: float = 1e-6) -> StoredShare:
    """Return the share of the ``training`` rows (n, d) that are among ``rows`` (s, d).

    Rows match if they agree in every column within ``tolerance``, relative to that column's largest
    magnitude. Equal training rows count as one person each, and all of them are found if one is stored.

    Raises:
        InvalidInput: if there are no training rows, or the numbers of columns differ.

    >>> stored_share([[1.0, 2.0]], [[1.0, 2.0], [3.0, 4.0]]).share
    0.5
    """
    found, table = np.asarray(rows, dtype=np.float64), np.asarray(training, dtype=np.float64)
    check_real("tolerance", tolerance, low=0.0, open_low=True)
    if found.ndim != 2 or table.ndim != 2 or found.shape[1:] != table.shape[1:] or len(table) == 0:
        raise InvalidInput(
            f"rows (s, d) and training rows (n, d) must match; got {found.shape}, {table.shape}."
        )
    if not (np.isfinite(found).all() and np.isfinite(table).all()):
        raise InvalidInput("rows and training rows must be finite numbers.")
    if len(found) == 0:
        return StoredShare(0.0, 0.0, 0, 0, 0)
    largest = np.abs(table).max(axis=0)
    scale = np.where(largest > 0.0, largest, 1.0)
    distance, nearest = map(np.asarray, KDTree(found / scale).query(table / scale, p=np.inf))
    hit = distance <= tolerance
    error = np.abs(found[nearest[hit]] - table[hit]).max(initial=0.0)
    back = np.asarray(KDTree(table / scale).query(found / scale, p=np.inf)[0])
    return StoredShare(
        float(hit.mean()), float(error), int(hit.sum()), len(found), int((back > tolerance).sum())
    )


def _own_rows(model: Any) -> Array:
    """Return the stored rows in the units of the model's input."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.neighbors import (
        KNeighborsClassifier,
        KNeighborsRegressor,
        NearestNeighbors,
        RadiusNeighborsClassifier,
        RadiusNeighborsRegressor,
    )
    from sklearn.svm import SVC, SVR, NuSVC, NuSVR, OneClassSVM

    match model:
        case SVC() | NuSVC() | SVR() | NuSVR() | OneClassSVM():
            if model.kernel == "precomputed":
                raise InvalidInput("a machine on a precomputed kernel stores no rows, only their numbers.")
            return _dense(model.support_vectors_)
        case (
            KNeighborsClassifier()
            | KNeighborsRegressor()
            | NearestNeighbors()
            | RadiusNeighborsClassifier()
            | RadiusNeighborsRegressor()
        ):
            return _dense(model._fit_X)
        case GaussianProcessRegressor():
            return _dense(model.X_train_)
        case KernelRidge():
            return _dense(model.X_fit_)
        case _:
            raise InvalidInput(
                f"it is not known that {type(model).__name__} stores rows. Known are support vector "
                "machines, nearest neighbours, GaussianProcessRegressor and KernelRidge, alone or last in a "
                "pipeline."
            )


def _dense(rows: Any) -> Array:
    from scipy.sparse import issparse

    return np.asarray(rows.toarray() if bool(issparse(rows)) else rows, dtype=np.float64)
