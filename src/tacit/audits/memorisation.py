"""Planted secrets: how much a language model memorises of single records, and the bound on it.

Letters: R secrets in a space, t characters in a secret, c copies, n contexts or strings, V tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import InvalidInput, check_integer, check_real

Array: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
NextToken: TypeAlias = Callable[[Integers], NDArray[np.floating]]
"""A model as an attacker sees it.  It maps n contexts, which are (n, t) token numbers from the start of a
record, to the (n, V) logits or log-probabilities of the next token."""

_CHUNK = 16384  # the most contexts in one call of the model


# --- canaries ---------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class SecretSpace:
    """All R = len(alphabet)^t strings of t characters, in the order of the alphabet (the last changes first).

    Raises:
        InvalidInput: if the alphabet has a character twice, as some secrets would then be listed twice.

    >>> space = SecretSpace("0123456789", 5)
    >>> space.size, space.secret(42)
    (100000, '00042')
    """

    alphabet: str
    length: int

    def __post_init__(self) -> None:
        check_integer("length", self.length, low=1)
        if len(self.alphabet) < 2 or len(set(self.alphabet)) < len(self.alphabet):
            raise InvalidInput(
                f"alphabet must hold at least 2 characters, each once; got {self.alphabet!r}. A repeated "
                "character lists secrets twice."
            )

    @property
    def size(self) -> int:
        """R, the number of secrets."""
        return int(len(self.alphabet) ** self.length)

    def secret(self, position: int) -> str:
        """Return the secret at a position in [0, R)."""
        rest = check_integer("position", position, low=0, high=self.size - 1)
        characters = []
        for _ in range(self.length):
            rest, digit = divmod(rest, len(self.alphabet))
            characters.append(self.alphabet[digit])
        return "".join(reversed(characters))

    def position(self, secret: str) -> int:
        """Return the position of a secret, the inverse of :meth:`secret`.

        Raises:
            InvalidInput: if the secret is not in this space.
        """
        if len(secret) != self.length or not set(secret) <= set(self.alphabet):
            raise InvalidInput(
                f"secret must be {self.length} characters of {self.alphabet!r}; got {secret!r}."
            )
        place = 0
        for character in secret:
            place = place * len(self.alphabet) + self.alphabet.index(character)
        return place

    def digits(self, positions: Integers) -> Integers:
        """Return the characters of the secrets at (n,) positions, as (n, t) indices into the alphabet."""
        powers = len(self.alphabet) ** np.arange(self.length - 1, -1, -1, dtype=np.int64)
        table: Integers = positions[:, None] // powers % len(self.alphabet)
        return table


@dataclass(frozen=True)
class Canary:
    """A canary: ``copies`` records ``prefix + secret``, which are in the training data if ``included``.

    The prefix is public, so the attacker may know it.  Read ``included`` only after the attack.
    """

    prefix: str
    secret: str
    copies: int
    included: bool


def plant_canaries(
    space: SecretSpace, prefixes: Sequence[str], copies: int, generator: np.random.Generator
) -> list[Canary]:
    """Make a canary for each prefix, with an independent uniform secret from ``space`` and a fair coin.

    The coin, which stays hidden until after the attack, decides whether the canary is in the data.  The other
    canaries are the control group.  The secrets are random, so that the model can know them only from the
    training data (Carlini et al. 2019, "The Secret Sharer", 1802.08232, section 4).

    Args:
        copies: the number of records for each canary that is included.
        generator: a generator of fresh random numbers, which an attacker must not know.

    Raises:
        InvalidInput: if a prefix occurs twice, because two secrets after one prefix would compete.
    """
    check_integer("copies", copies, low=1)
    if len(set(prefixes)) < len(prefixes) or not prefixes:
        raise InvalidInput(
            "prefixes must name at least one canary, each once: two secrets after one prefix compete, and "
            "neither is measured alone."
        )
    places = generator.integers(space.size, size=len(prefixes))
    coins = generator.integers(2, size=len(prefixes)) == 1
    return [
        Canary(prefix, space.secret(int(place)), copies, bool(coin))
        for prefix, place, coin in zip(prefixes, places, coins, strict=True)
    ]


def planted_records(canaries: Sequence[Canary]) -> list[str]:
    """Return the records to add to the training data: ``copies`` of each included canary.

    >>> planted_records([Canary("pin a ", "17", 2, True), Canary("pin b ", "99", 2, False)])
    ['pin a 17', 'pin a 17']
    """
    return [
        canary.prefix + canary.secret for canary in canaries if canary.included for _ in range(canary.copies)
    ]


# --- exposure ---------------------------------------------------------------------------------------------


def exact_exposure(scores: ArrayLike, secret: int) -> float:
    """Compute the exposure log2 R - log2 rank, in bits in [0, log2 R], from the scores of all R candidates.

    The rank counts the candidates with a score of *at least* the secret's.  A model that gives all candidates
    the same score therefore exposes no secret (Carlini et al. 2019, 1802.08232).

    Args:
        scores: (R,) log-likelihoods of the candidates.  One of the candidates is the secret.
        secret: the position of the true secret among the candidates.

    >>> exact_exposure([-1.0, -5.0, -4.0, -3.0], 0), exact_exposure([-1.0, -1.0, -1.0, -1.0], 0)
    (2.0, 0.0)
    """
    values = log_likelihood_row("scores", scores)
    place = check_integer("secret", secret, low=0, high=values.size - 1)
    rank = int((values >= values[place]).sum())
    return math.log2(values.size / rank)


def sampled_exposure(secret: float, others: ArrayLike) -> float:
    """Compute the exposure among N other candidates, drawn uniformly, in bits.  It is at most log2(N + 1).

    The rank also counts the secret.  Under a model that never saw the secret, all N + 1 are exchangeable.
    Therefore Pr[exposure >= e] <= 2^-e holds for the sample too.

    Args:
        secret: the log-likelihood of the true secret.
        others: (N,) log-likelihoods of candidates that were drawn independently of the secret.

    >>> sampled_exposure(-1.0, [-2.0, -3.0, -4.0])
    2.0
    """
    values = log_likelihood_row("others", others)
    own = check_real("secret", secret)
    return math.log2((values.size + 1) / (1 + int((values >= own).sum())))


def exposure_bound(
    false_negative_rate: Callable[[Array], Array], exposures: ArrayLike, *, copies: int = 1
) -> Array:
    """Bound, for each of ``exposures``, the probability that a planted secret has at least that exposure.

    A model that never saw the secret gives it any rank with equal probability, so Pr[exposure >= e] <= 2^-e.
    The event exposure >= e is thus a test for membership with false-positive rate at most 2^-e.  So training
    with the trade-off curve f has

        Pr[exposure >= e] <= 1 - f(2^-e)

    for a secret in one record.  For c copies, 1 - f is applied c times (Dong, Roth & Su 2019, 1905.02383,
    Theorem 2.14).

    Args:
        false_negative_rate: f, such as ``curve.false_negative_rate`` of a
            :class:`tacit.accounting.PrivacyCurve`.
        exposures: exposures >= 0, in bits.
        copies: the number of records with the secret.

    **Guarantee**

    * The bound holds for a secret that is drawn uniformly and independently of all else, whatever the
      attacker does with the model.  Its probability is over the draw of the secret and the training.

    >>> from tacit.accounting import account
    >>> from tacit.events import Gaussian
    >>> f = account(Gaussian(1.0), adjacency="add-remove").false_negative_rate
    >>> exposure_bound(f, [5.0, 10.0]).round(3).tolist()
    [0.194, 0.018]
    """
    bits = np.asarray(exposures, dtype=np.float64)
    if not ((bits >= 0.0).all() and np.isfinite(bits).all()):
        raise InvalidInput(f"exposures are numbers of bits >= 0; got {exposures!r}.")
    rate: Array = np.exp2(-bits).ravel()
    for _ in range(check_integer("copies", copies, low=1)):
        rate = np.maximum(rate, 1.0 - false_negative_rate(rate))
    return np.clip(rate, 0.0, 1.0).reshape(bits.shape)


def log_likelihood_row(name: str, values: ArrayLike) -> Array:
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1 or row.size == 0 or not np.isfinite(row).all():
        raise InvalidInput(
            f"{name} must be a row of finite log-likelihoods; got shape {row.shape} with "
            f"{int((~np.isfinite(row)).sum())} that are not finite."
        )
    return row


# --- a language model, asked ------------------------------------------------------------------------------


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
    before, rows = token_numbers("prefix", prefix, 1), token_numbers("strings", strings, 2)
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


def greedy(model: NextToken, prefix: ArrayLike, length: int) -> Integers:
    """Return the greedy continuation, of shape (t,).  If tokens are equally likely, it has the first.

    >>> greedy(lambda contexts: np.eye(3)[(contexts[:, -1] + 1) % 3], [0], 4).tolist()  # a model that counts
    [1, 2, 0, 1]
    """
    start = token_numbers("prefix", prefix, 1)
    context = start[None]
    for _ in range(check_integer("length", length, low=1)):
        token = np.argmax(next_log_probabilities(model, context), axis=1)
        context = np.column_stack([context, token])
    return np.asarray(context[0, start.size :])


def token_numbers(name: str, values: ArrayLike, dimensions: int) -> Integers:
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
