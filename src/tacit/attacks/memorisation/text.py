"""Likelihoods and completions of a language model, and the divergence probe.

All functions see a model as a function from contexts to the logits of the next token.  ``greedy`` returns the
ending of the likeliest tokens, and ``sampled`` draws endings at random.  ``queries_needed`` computes the
number of answers that an attacker needs, without drawing any.  An ending z of probability p_z occurs in n
answers with probability 1 - (1 - p_z)^n, so

    n = ceil(log(1 - p) / log(1 - p_z))

answers contain it with probability p: the record is (n, p)-extractable (Hayes et al. 2024, 2410.19482).

The divergence probe lets a model repeat a word.  When large models stopped repeating, they recited training
data far more often than in plain answers (Nasr et al. 2023, 2311.17035).  The probe measures the share of the
text after the repetition that lies in verbatim pieces of the training data.  Small models may not diverge
like this.  With them, the probe only demonstrates the method.

Letters: n contexts, strings or answers of t tokens each, V tokens in the vocabulary, w tokens in the shortest
piece that counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import InvalidInput, check_integer, check_real

Array: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
NextToken: TypeAlias = Callable[[Integers], NDArray[np.floating]]
"""A model as an attacker sees it.  It maps n contexts, which are (n, t) token numbers from the start of a
record, to the (n, V) logits or log-probabilities of the next token."""

_CHUNK = 16384  # the most contexts in one call of the model


def next_log_probabilities(model: NextToken, contexts: Integers) -> Array:
    """Compute log p of each next token, of shape (n, V), normalised in float64 whatever the model returns.

    Args:
        contexts: (n, t) token numbers.

    Raises:
        InvalidInput: if the model's answer has another shape, NaN, or a row without finite values.

    >>> next_log_probabilities(lambda contexts: np.zeros((len(contexts), 4)), np.zeros((1, 2), int)).round(4)
    array([[-1.3863, -1.3863, -1.3863, -1.3863]])
    """
    parts = [contexts[start : start + _CHUNK] for start in range(0, len(contexts), _CHUNK)]
    logits = np.concatenate([_answer(model, part) for part in parts])
    top = logits.max(axis=1, keepdims=True)
    if not np.isfinite(top).all():
        raise InvalidInput(
            f"the model's logits of {int((~np.isfinite(top)).sum())} contexts are not finite. The memory of "
            "a model that diverged in training cannot be measured."
        )
    shifted = logits - top
    normalised: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised


def log_likelihoods(model: NextToken, prefix: ArrayLike, strings: ArrayLike) -> Array:
    """Compute the log-likelihoods log p(string | prefix) of n strings, of shape (n,).

    A *higher* value is more likely, as these are the negative log-perplexities.  A context that several
    strings share is computed once.  All numbers of five digits thus take 11,111 contexts instead of half a
    million.

    Args:
        prefix: (p,) token numbers, p >= 0, from the start of a record.
        strings: (n, t) token numbers, t >= 1.

    >>> coin = lambda contexts: np.log(np.tile([0.75, 0.25], (len(contexts), 1)))
    >>> np.exp(log_likelihoods(coin, [0], [[0, 0], [0, 1]])).round(6).tolist()
    [0.5625, 0.1875]
    """
    before, rows = _tokens("prefix", prefix, 1), _tokens("strings", strings, 2)
    if rows.shape[1] == 0 or len(rows) == 0:
        raise InvalidInput(f"strings must hold at least one token each; got shape {rows.shape}.")
    total = np.zeros(len(rows))
    group = np.zeros(len(rows), dtype=np.int64)  # strings of one group agree in all tokens so far
    first = np.zeros(1, dtype=np.int64)  # the index of one string of each group
    for position in range(rows.shape[1]):
        head = np.broadcast_to(before, (first.size, before.size))
        table = next_log_probabilities(model, np.concatenate([head, rows[first, :position]], axis=1))
        token = rows[:, position]
        if token.max() >= table.shape[1]:
            raise InvalidInput(f"token {token.max()} is not among the model's {table.shape[1]} tokens.")
        total += table[group, token]
        _, first, group = np.unique(group * table.shape[1] + token, return_index=True, return_inverse=True)
    return total


def _tokens(name: str, values: ArrayLike, dimensions: int) -> Integers:
    tokens = np.asarray(values)
    if tokens.size == 0:
        tokens = tokens.astype(np.int64)
    if tokens.ndim != dimensions or not np.issubdtype(tokens.dtype, np.integer) or (tokens < 0).any():
        raise InvalidInput(
            f"{name} must be token numbers >= 0 with {dimensions} axes; got {tokens.dtype} of shape "
            f"{tokens.shape}."
        )
    return tokens.astype(np.int64)


def _answer(model: NextToken, contexts: Integers) -> Array:
    logits = np.asarray(model(contexts), dtype=np.float64)
    if logits.ndim != 2 or len(logits) != len(contexts) or logits.shape[1] < 2 or np.isnan(logits).any():
        raise InvalidInput(
            f"the model must return a row of logits per context, without NaN; got shape {logits.shape} for "
            f"{len(contexts)} of them."
        )
    return logits


def greedy(model: NextToken, prefix: ArrayLike, length: int) -> Integers:
    """Return the greedy continuation, of shape (t,).  If tokens are equally likely, it has the first.

    Args:
        prefix: (p,) token numbers.

    >>> greedy(lambda contexts: np.eye(3)[(contexts[:, -1] + 1) % 3], [0], 4).tolist()  # a model that counts
    [1, 2, 0, 1]
    """
    (best,) = _continued(model, prefix, length, 1, lambda log_p: log_p)
    return np.asarray(best)


def sampled(
    model: NextToken, prefix: ArrayLike, length: int, *, count: int, generator: np.random.Generator
) -> Integers:
    """Draw ``count`` independent continuations of shape (n, t) from the model's distribution.

    Args:
        generator: the random number generator.
    """
    check_integer("count", count, low=1)
    return _continued(
        model,
        prefix,
        length,
        count,
        lambda log_p: log_p + generator.gumbel(size=log_p.shape),  # the Gumbel-max trick
    )


def queries_needed(log_probability: float, confidence: float) -> float:
    """Compute n = ceil(log(1 - p) / log(1 - p_z)) as a float.  It is inf for p_z = 0, and 1 for p_z = 1.

    Args:
        log_probability: log p_z <= 0, or -inf, from :func:`log_likelihoods`.
        confidence: p in (0, 1).

    >>> queries_needed(math.log(0.01), 0.9), queries_needed(-math.inf, 0.75)
    (230.0, inf)
    """
    p = check_real("confidence", confidence, low=0.0, high=1.0, open_low=True, open_high=True)
    if math.isnan(log_probability) or log_probability > 1e-9:
        raise InvalidInput(f"log_probability must be <= 0; got {log_probability!r}.")
    if log_probability >= 0.0:
        return 1.0
    never = math.log1p(-math.exp(log_probability))
    if never == 0.0:  # p_z is below the smallest float
        return math.inf
    return float(max(1.0, math.ceil(math.log1p(-p) / never - 1e-9)))


class TrainingText:
    """All pieces of ``window`` tokens in the training records, to find those that answers recite.

    >>> text = TrainingText([[1, 2, 3, 4]], window=3)
    >>> text.recited([9, 1, 2, 3, 4, 9]).tolist()
    [False, True, True, True, True, False]
    """

    def __init__(self, records: Iterable[Sequence[int]], *, window: int) -> None:
        self.window = check_integer("window", window, low=1)
        self._pieces = {
            tuple(record[start : start + window])
            for record in ([int(token) for token in record] for record in records)
            for start in range(len(record) - window + 1)
        }

    def recited(self, answer: ArrayLike) -> NDArray[np.bool_]:
        """Mark the (t,) tokens of an answer that lie in pieces of at least ``window`` training tokens."""
        tokens = [int(token) for token in np.asarray(answer)]
        inside = np.zeros(len(tokens), dtype=np.bool_)
        for start in range(len(tokens) - self.window + 1):
            if tuple(tokens[start : start + self.window]) in self._pieces:
                inside[start : start + self.window] = True
        return inside


@dataclass(frozen=True)
class Divergence:
    """The result of the divergence probe.

    ``diverged`` is the number of the ``answers`` that stopped repeating.  ``recited`` is the number of the
    ``tokens`` after the repetition that lie in pieces of the training data.
    """

    answers: int
    diverged: int
    tokens: int
    recited: int

    @property
    def share(self) -> float:
        """The share of the tokens after the repetition that are recited, or 0 if there are no tokens."""
        return self.recited / self.tokens if self.tokens else 0.0


def after_repetition(answers: Integers, token: int, text: TrainingText) -> Divergence:
    """Count the recited tokens after the repetition of ``token`` in (n, t) answers.

    >>> text = TrainingText([[1, 2, 3]], window=3)
    >>> after_repetition(np.array([[9, 9, 1, 2, 3], [9, 9, 9, 9, 9]]), 9, text)
    Divergence(answers=2, diverged=1, tokens=3, recited=3)
    """
    tails = [answer[int(np.argmax(answer != token)) :] for answer in answers if (answer != token).any()]
    return Divergence(
        answers=len(answers),
        diverged=len(tails),
        tokens=sum(len(tail) for tail in tails),
        recited=sum(int(text.recited(tail).sum()) for tail in tails),
    )


def _continued(
    model: NextToken, prefix: ArrayLike, length: int, count: int, ranked: Callable[[Array], Array]
) -> Integers:
    """Make (n, t) continuations, n = ``count``, of the tokens with the largest ``ranked`` log-probability."""
    start = _tokens("prefix", prefix, 1)
    check_integer("length", length, low=1)
    contexts = np.broadcast_to(start, (count, start.size))
    for _ in range(length):
        token = np.argmax(ranked(next_log_probabilities(model, contexts)), axis=1)
        contexts = np.column_stack([contexts, token])
    return contexts[:, start.size :]
