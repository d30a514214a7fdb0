"""How likely are many strings to a language model? Computed from one function: a context to the next token.

Letters: n contexts or strings, t tokens of one, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import InvalidInput

Array: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
NextToken: TypeAlias = Callable[[Integers], NDArray[np.floating]]
"""The model as an attacker sees it: n contexts, (n, t) token numbers from the start of a record, to the
(n, V) logits or log-probabilities of the token that follows."""

_CHUNK = 16384  # contexts in one call of the model


def next_log_probabilities(model: NextToken, contexts: Integers) -> Array:
    """log p of each next token, (n, V), normalised here in float64 whatever the model gives.

    :param contexts: (n, t) token numbers.
    :raises InvalidInput: if the model's answer has another shape, or a row with NaN or without a finite one.

    >>> next_log_probabilities(lambda contexts: np.zeros((len(contexts), 4)), np.zeros((1, 2), int)).round(4)
    array([[-1.3863, -1.3863, -1.3863, -1.3863]])
    """
    parts = [contexts[start : start + _CHUNK] for start in range(0, len(contexts), _CHUNK)]
    logits = np.concatenate([_answer(model, part) for part in parts])
    top = logits.max(axis=1, keepdims=True)
    if not np.isfinite(top).all():
        raise InvalidInput(
            f"the model's logits of {int((~np.isfinite(top)).sum())} contexts hold NaN, +inf or nothing "
            "finite; a model that diverged in training remembers nothing that could be measured."
        )
    shifted = logits - top
    normalised: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised


def log_likelihoods(model: NextToken, prefix: ArrayLike, strings: ArrayLike) -> Array:
    """log p(string | prefix) of n strings, (n,): *higher* is more likely; minus their log-perplexity.

    A context that several strings share is computed once: all numbers of five digits take 11,111 contexts
    instead of half a million.

    :param prefix: (p,) token numbers, p >= 0, from the start of a record.
    :param strings: (n, t) token numbers, t >= 1.

    >>> coin = lambda contexts: np.log(np.tile([0.75, 0.25], (len(contexts), 1)))
    >>> np.exp(log_likelihoods(coin, [0], [[0, 0], [0, 1]])).round(6).tolist()
    [0.5625, 0.1875]
    """
    before, rows = _tokens("prefix", prefix, 1), _tokens("strings", strings, 2)
    if rows.shape[1] == 0 or len(rows) == 0:
        raise InvalidInput(f"strings must hold at least one of at least one token; got shape {rows.shape}.")
    total = np.zeros(len(rows))
    group = np.zeros(len(rows), dtype=np.int64)  # strings of one group agree in all tokens so far
    first = np.zeros(1, dtype=np.int64)  # a string of each group
    for position in range(rows.shape[1]):
        head = np.broadcast_to(before, (first.size, before.size))
        table = next_log_probabilities(model, np.concatenate([head, rows[first, :position]], axis=1))
        token = rows[:, position]
        if token.max() >= table.shape[1]:
            raise InvalidInput(f"token {token.max()} is not among the model's {table.shape[1]}.")
        total += table[group, token]
        _, first, group = np.unique(group * table.shape[1] + token, return_index=True, return_inverse=True)
    return total


def _tokens(name: str, values: ArrayLike, dimensions: int) -> Integers:
    found = np.asarray(values)
    if found.size == 0:
        found = found.astype(np.int64)
    if found.ndim != dimensions or not np.issubdtype(found.dtype, np.integer) or (found < 0).any():
        raise InvalidInput(
            f"{name} must be token numbers >= 0 with {dimensions} axes; got {found.dtype} of shape "
            f"{found.shape}."
        )
    return found.astype(np.int64)


def _answer(model: NextToken, contexts: Integers) -> Array:
    found = np.asarray(model(contexts), dtype=np.float64)
    if found.ndim != 2 or len(found) != len(contexts) or found.shape[1] < 2 or np.isnan(found).any():
        raise InvalidInput(
            f"the model must give one row of logits without NaN for each of the {len(contexts)} contexts; "
            f"got shape {found.shape}."
        )
    return found
