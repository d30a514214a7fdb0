"""Membership inference by an attack classifier (Shokri, Stronati, Song & Shmatikov 2017, 1610.05820).

For each class, a classifier learns to distinguish members from non-members by a model's output on a record.
Its training data come from shadow models with known members.  Its features are the three largest
probabilities in order, the loss, and whether the answer is right.  Then it judges the target's output.
Unlike the likelihood ratios, it compares records with other records, not with the same record under other
models.  It therefore finds overfitting but no outliers.

The paper's classifier is a small network.  This one is a logistic regression on these features and their
products, which has one best fit and no settings.

Letters: K shadow models, n records, c classes, f features, m rows of training data.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import expit, softmax

from tacit.audits.attacks import log_probability
from tacit.errors import InvalidInput

Array: TypeAlias = NDArray[np.float64]

_TOP = 3
_RIDGE = 1.0  # the penalty on weights of standardised features; the loss is a sum over m rows


def shokri(
    target_logits: ArrayLike, shadow_logits: ArrayLike, trained_on: ArrayLike, labels: ArrayLike
) -> Array:
    """Compute the log odds of each record's membership in the target's training set, of shape (n,).

    Log odds of 0 mean that both are equally likely, as each shadow model was trained on half of the records.

    Args:
        target_logits: the target's logits, of shape (n, c).
        shadow_logits: the shadow models' logits, of shape (K, n, c).
        trained_on: booleans of shape (K, n): whether each shadow model was trained on each record.
        labels: integers of shape (n,).

    Raises:
        InvalidInput: if shapes do not match, or the shadow models have no member or no non-member of a class.

    >>> logits = np.array([[[3.0, 0.0], [0.2, 0.0]], [[0.1, 0.0], [4.0, 0.0]]])  # sure of what it was shown
    >>> shokri(logits[0], logits, [[True, False], [False, True]], [0, 0]).round(1).tolist()
    [2.6, -2.6]
    """
    y, mask = np.asarray(labels), np.asarray(trained_on)
    target, shadows = (_features(logits, y) for logits in (target_logits, shadow_logits))
    if target.ndim != 2 or shadows.ndim != 3 or mask.dtype != np.bool_ or mask.shape != shadows.shape[:2]:
        raise InvalidInput(
            "the shapes of shokri's arguments do not match: target_logits must be (n, c), shadow_logits "
            "(K, n, c) and trained_on booleans (K, n); got "
            f"{np.shape(target_logits)}, {np.shape(shadow_logits)} and {mask.dtype} {mask.shape}."
        )
    odds = np.empty(len(y))
    for number in np.unique(y):
        here = y == number
        rows, member = shadows[:, here].reshape(-1, shadows.shape[2]), mask[:, here].ravel()
        if member.all() or not member.any():
            raise InvalidInput(
                f"class {number} has no {'non-member' if member.all() else 'member'} of the shadow models: "
                "the attack needs both kinds in each class. Merge it with another, or give more records."
            )
        odds[here] = _fitted_odds(rows, member, target[here])
    return odds


def _features(logits: ArrayLike, labels: NDArray[np.int64]) -> Array:
    """Map (..., n, c) logits to (..., n, f) features: top probabilities, loss, correctness, and products."""
    z = np.asarray(logits, dtype=np.float64)
    loss = -log_probability(z, labels)[..., None]
    top = np.sort(softmax(z, axis=-1), axis=-1)[..., : -_TOP - 1 : -1]
    right = (z.argmax(axis=-1) == labels)[..., None].astype(np.float64)
    base = np.concatenate([top, loss, right], axis=-1)
    first, second = np.triu_indices(base.shape[-1])
    return np.concatenate([base, base[..., first] * base[..., second]], axis=-1)


def _fitted_odds(rows: Array, member: NDArray[np.bool_], judged: Array) -> Array:
    """Fit a logistic regression of ``member`` (m,) on ``rows`` (m, f), and evaluate it at ``judged``."""
    centre, scale = rows.mean(axis=0), rows.std(axis=0)
    scale[scale < 1e-12] = 1.0

    def design(x: Array) -> Array:
        return np.concatenate([np.ones((len(x), 1)), (x - centre) / scale], axis=1)

    weights = _logistic(design(rows), member.astype(np.float64))
    return np.asarray(design(judged) @ weights, dtype=np.float64)


def _logistic(x: Array, y: Array) -> Array:
    """Minimise sum log(1 + e^(x w)) - y x w + ridge |w|^2 / 2, by a trust-region Newton method."""

    def cost(w: Array) -> tuple[float, Array]:
        z = x @ w
        value = (np.logaddexp(0.0, z) - y * z).sum() + _RIDGE * (w @ w) / 2.0
        return float(value), x.T @ (expit(z) - y) + _RIDGE * w

    def curvature(w: Array) -> Array:
        p = expit(x @ w)
        return (x * (p * (1.0 - p))[:, None]).T @ x + _RIDGE * np.eye(len(w))

    start = np.zeros(x.shape[1])
    weights: Array = minimize(cost, start, jac=True, hess=curvature, method="trust-exact", tol=1e-6).x
    return weights
