"""Membership inference by an attack classifier (Shokri, Stronati, Song & Shmatikov 2017, 1610.05820).

For each class a classifier learns, from shadow models with known members, to distinguish members from others
by a model's output on a record: its largest three probabilities in order, its loss, and whether it is right.
Then it judges the target's output.  Unlike the likelihood ratios it compares records with each other, not a
record with itself.  It therefore finds overfitting but no outliers.

The paper's classifier is a small network.  This one is a logistic regression on these features and their
products, which has one best fit and no settings.

Letters: K shadows, n records, c classes, f features, m rows to learn from.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import expit, softmax

from tacit.attacks.membership.shadow_scores import log_probability
from tacit.errors import InvalidInput

Array: TypeAlias = NDArray[np.float64]

_TOP = 3
_RIDGE = 1.0  # on standardised weights, against a sum over m rows


def shokri(
    target_logits: ArrayLike, shadow_logits: ArrayLike, trained_on: ArrayLike, labels: ArrayLike
) -> Array:
    """Compute the log odds of each record's membership in the target's training set, of shape (n,).

    0 is an even guess, as the shadows were trained on half of the records.

    Args:
        target_logits: (n, c); ``shadow_logits`` (K, n, c).
        trained_on: (K, n) booleans; ``labels`` (n,) integers.

    Raises:
        InvalidInput: if shapes do not match, or a record's class has no member, or no non-member, in the
            shadows.

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
                f"class {number} has no {'non-member' if member.all() else 'member'} in the shadow models: "
                "nothing can be learnt about it. Merge it with another class, or give more records."
            )
        odds[here] = _fitted_odds(rows, member, target[here])
    return odds


def _features(logits: ArrayLike, labels: NDArray[np.int64]) -> Array:
    """Map (..., n, c) logits to (..., n, f): top probabilities, loss, correctness, and products of two."""
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
    """Minimise sum log(1 + e^(x w)) - y x w + ridge |w|^2 / 2, by Newton's method in trust regions."""

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
