"""What does a language model remember? Its likelihoods, its completions, and the divergence probe.

All of it is computed from one function, a context to the next token.  ``greedy`` gives the likeliest ending
that it finds, ``sampled`` draws endings at random, and ``extraction`` computes, without drawing any, how
many answers it takes: an ending z that the model gives with probability p_z is given at least once in n
answers with probability 1 - (1 - p_z)^n, so

    n = ceil(log(1 - p) / log(1 - p_z))

answers hold it with probability p: the record is (n, p)-extractable (Hayes et al. 2024, 2410.19482).

The divergence probe: Nasr et al. (2023, 2311.17035) let a large model repeat a word; when it stopped
repeating it recited training data far more often than in plain answers.  The figure is the share of the
text after the repetition inside a verbatim piece of the training data.  Small models show the method and no
more.

Letters: n contexts, strings or answers, t tokens of one, V tokens of the vocabulary, w tokens of the shortest
piece that counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import InvalidInput, check_integer, check_real

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


class TrainingText:
    """All pieces of ``window`` tokens of the training records, to look answers up in.

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
        """Which tokens of an answer, (t,), lie inside a piece of at least ``window`` training tokens."""
        tokens = [int(token) for token in np.asarray(answer)]
        inside = np.zeros(len(tokens), dtype=np.bool_)
        for start in range(len(tokens) - self.window + 1):
            if tuple(tokens[start : start + self.window]) in self._pieces:
                inside[start : start + self.window] = True
        return inside


@dataclass(frozen=True)
class Divergence:
    """``answers``: how many were drawn; ``diverged``: how many of them stopped repeating.

    ``recited`` of the ``tokens`` after the repetition lie inside pieces of the training data.
    """

    answers: int
    diverged: int
    tokens: int
    recited: int

    @property
    def share(self) -> float:
        """The part of the tokens after the repetition that is recited; 0 where there are none."""
        return self.recited / self.tokens if self.tokens else 0.0


def repeat_probe(
    model: NextToken,
    token: int,
    text: TrainingText,
    *,
    repeats: int,
    length: int,
    count: int,
    generator: np.random.Generator,
    sampler: Sampler = _PLAIN,
) -> Divergence:
    """Prompt with ``repeats`` times ``token``, draw ``count`` answers, look up what follows the repetition.

    Give the same probe other tokens, or ``repeats=1``, for the rate to compare with.

    :param token: the number of the token that is repeated.
    :param length: tokens of an answer.
    """
    check_integer("token", token, low=0)
    prompt = [token] * check_integer("repeats", repeats, low=1)
    answers = sampled(model, prompt, length, count=count, generator=generator, sampler=sampler)
    return after_repetition(answers, token, text)


def after_repetition(answers: Integers, token: int, text: TrainingText) -> Divergence:
    """What of the answers, (n, t), that follows the repetition of ``token`` is recited.

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
