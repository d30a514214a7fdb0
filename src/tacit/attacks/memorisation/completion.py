"""Does the model complete a record from its start?

``greedy`` and ``beam`` give the likeliest ending that they find, ``sampled`` draws endings at random, and
``extraction`` computes, without drawing any, how many answers it takes: an ending z that the model gives with
probability p_z is given at least once in n answers with probability 1 - (1 - p_z)^n, so

    n = ceil(log(1 - p) / log(1 - p_z))

answers hold it with probability p: the record is (n, p)-extractable (Hayes et al. 2024, 2410.19482).

Letters: n continuations, b beams, t tokens of one, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.attacks.memorisation.language import NextToken, next_log_probabilities
from tacit.errors import InvalidInput, check_integer, check_real

Array: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Sampler:
    """How tokens are drawn: logits over ``temperature`` > 0, then only the ``top_k`` likeliest (None: all).

    Tokens that tie with the k-th are all kept.
    """

    temperature: float = 1.0
    top_k: int | None = None

    def __post_init__(self) -> None:
        check_real("temperature", self.temperature, low=0.0, open_low=True)
        if self.top_k is not None:
            check_integer("top_k", self.top_k, low=1)

    def log_probabilities(self, model: NextToken, contexts: Integers) -> Array:
        """log of the probability that each token is drawn, (n, V); -inf for those that never are."""
        logits = next_log_probabilities(model, contexts) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[1]:
            least = np.partition(logits, -self.top_k, axis=1)[:, -self.top_k, None]
            logits = np.where(logits >= least, logits, -np.inf)
        return next_log_probabilities(lambda _: logits, contexts[:, :0])


_PLAIN = Sampler()


def greedy(model: NextToken, prefix: ArrayLike, length: int) -> Integers:
    """The continuation that takes the likeliest token each time, (t,).

    >>> greedy(lambda contexts: np.eye(3)[(contexts[:, -1] + 1) % 3], [0], 4).tolist()  # a model that counts
    [1, 2, 0, 1]
    """
    best: Integers = beam(model, prefix, length, width=1)[0]
    return best


def beam(model: NextToken, prefix: ArrayLike, length: int, *, width: int) -> Integers:
    """The ``width`` likeliest continuations that a beam search finds, best first, (b, t).

    :param prefix: (p,) token numbers.
    :param length: t, tokens of a continuation.
    :param width: b, beams; fewer come back where there are not so many continuations of finite likelihood.
    """
    start = _prefix(prefix)
    check_integer("length", length, low=1)
    check_integer("width", width, low=1)
    found, total = np.zeros((1, 0), dtype=np.int64), np.zeros(1)
    for _ in range(length):
        table = total[:, None] + next_log_probabilities(model, _contexts(start, found))
        best = np.argsort(-table, axis=None, kind="stable")[:width]
        best = best[np.isfinite(table.ravel()[best])]
        row, token = np.unravel_index(best, table.shape)
        found, total = np.column_stack([found[row], token]), table.ravel()[best]
    return found


def sampled(
    model: NextToken,
    prefix: ArrayLike,
    length: int,
    *,
    count: int,
    generator: np.random.Generator,
    sampler: Sampler = _PLAIN,
) -> Integers:
    """``count`` independent random continuations, (n, t).

    :param generator: where the draws come from.
    """
    start = _prefix(prefix)
    check_integer("length", length, low=1)
    found = np.zeros((check_integer("count", count, low=1), 0), dtype=np.int64)
    for _ in range(length):
        log_p = sampler.log_probabilities(model, _contexts(start, found))
        token = np.argmax(log_p + generator.gumbel(size=log_p.shape), axis=1)  # the Gumbel-max trick
        found = np.column_stack([found, token])
    return found


@dataclass(frozen=True)
class Extraction:
    """The probability of an ending in one answer: log p_z, and how the answer is drawn.

    >>> Extraction(math.log(0.01)).queries(0.9)
    230.0
    """

    log_probability: float
    sampler: Sampler = field(default=_PLAIN)

    def queries(self, confidence: float) -> float:
        """n: answers that hold the ending with probability ``confidence``; infinite if it never occurs."""
        return queries_needed(self.log_probability, confidence)


def extraction(
    model: NextToken, prefix: ArrayLike, ending: ArrayLike, *, sampler: Sampler = _PLAIN
) -> Extraction:
    """How likely the model, asked once with ``prefix``, answers with exactly this ``ending``.

    :param prefix: (p,) token numbers.
    :param ending: (t,) token numbers, t >= 1.
    """
    start, rest = _prefix(prefix), _prefix(ending)
    if rest.size == 0:
        raise InvalidInput("ending must hold at least one token; got none.")
    total = 0.0
    for position, token in enumerate(rest):
        log_p = sampler.log_probabilities(model, _contexts(start, rest[None, :position]))[0]
        if token >= log_p.size:
            raise InvalidInput(f"token {token} is not among the model's {log_p.size}.")
        total += float(log_p[token])
    return Extraction(total, sampler)


def queries_needed(log_probability: float, confidence: float) -> float:
    """n = ceil(log(1 - p) / log(1 - p_z)), an integer as a float; infinite for p_z = 0, 1 for p_z = 1.

    :param log_probability: log p_z <= 0, or -inf.
    :param confidence: p in (0, 1).

    >>> queries_needed(math.log(0.5), 0.75), queries_needed(-math.inf, 0.75)
    (2.0, inf)
    """
    p = check_real("confidence", confidence, low=0.0, high=1.0, open_low=True, open_high=True)
    if math.isnan(log_probability) or log_probability > 1e-9:
        raise InvalidInput(f"log_probability must be <= 0; got {log_probability!r}.")
    if log_probability >= 0.0:
        return 1.0
    never = math.log1p(-math.exp(log_probability))
    if never == 0.0:  # p_z below the smallest float: it never occurs in practice
        return math.inf
    return float(max(1.0, math.ceil(math.log1p(-p) / never - 1e-9)))


def _contexts(prefix: Integers, found: Integers) -> Integers:
    return np.concatenate([np.broadcast_to(prefix, (len(found), prefix.size)), found], axis=1)


def _prefix(values: ArrayLike) -> Integers:
    found = np.asarray(values)
    found = found.astype(np.int64) if found.size == 0 else found
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer) or (found < 0).any():
        raise InvalidInput("a prefix or ending is a row of token numbers >= 0. Encode text first.")
    return found.astype(np.int64)
