"""A membership attack with likelihood ratios from shadow models, and the memorisation of planted secrets.

Letters: K shadow models in G groups, n records, c classes; of secrets: R in a space, t characters, c copies,
n contexts or strings, V tokens.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp
from scipy.stats import t

from tacit.errors import InvalidInput, check_integer, check_real
from tacit.files import write_atomically

Array: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

ATTACK = "BaVarIA-t"
"""The name of the attack with shadow models."""
LOSS_ATTACK = "loss threshold"
"""The name of the attack without them: members have small losses (Yeom et al. 2018, 1709.01604).

It fails at low false-positive rates, because easy non-members have a small loss too."""


# --- scores of a record by one model ----------------------------------------------------------------------


def log_probability(logits: ArrayLike, labels: ArrayLike) -> Array:
    """Compute log p of the true class (the negative loss) in float64, of shape (..., n).

    Args:
        logits: of shape (..., n, c).
        labels: integers in [0, c), of shape (n,).
    """
    z, y = _classified(logits, labels)
    true: Array = np.take_along_axis(z, y, axis=-1)[..., 0]
    return true - logsumexp(z, axis=-1)


def logit_margin(logits: ArrayLike, labels: ArrayLike) -> Array:
    """Compute phi = log p_y - log(1 - p_y), of shape (..., n), directly from the logits.

    No probability is rounded to 1, so phi stays finite without a constant (Carlini et al. 2022, 2112.03570,
    section IV.C). The arguments are those of :func:`log_probability`, with c >= 2.
    """
    z, y = _classified(logits, labels)
    true: Array = np.take_along_axis(z, y, axis=-1)[..., 0]
    rest = z.copy()
    np.put_along_axis(rest, y, -np.inf, axis=-1)
    return true - logsumexp(rest, axis=-1)


def _classified(logits: ArrayLike, labels: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    """Check and return the logits, and the labels as indices along the last axis of the logits."""
    z, y = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    if z.ndim < 2 or z.shape[-1] < 2 or not np.issubdtype(y.dtype, np.integer) or y.shape != z.shape[-2:-1]:
        raise InvalidInput(
            "logits must have shape (..., records, classes) with classes >= 2, and labels one integer per "
            f"record; got {z.shape} and {y.dtype} of shape {y.shape}."
        )
    if y.size and not (y.min() >= 0 and y.max() < z.shape[-1]):
        raise InvalidInput(f"labels must lie in [0, {z.shape[-1] - 1}]; got {y.min()} to {y.max()}.")
    index = np.broadcast_to(y.astype(np.int64)[:, None], (*z.shape[:-1], 1))
    return z, index


# --- the attack -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class World:
    """Each record's scores from the shadow models trained on it (in), or from the others (out).

    ``count``, ``mean`` and ``squares`` (the sum of squares about the mean) are of shape (n,).
    """

    count: NDArray[np.int64]
    mean: Array
    squares: Array

    def pooled_mean(self) -> float:
        """Return the mean of all scores."""
        return float((self.count * self.mean).sum() / self.count.sum())

    def pooled_variance(self) -> float:
        """Return the variance *within* records; variance between them is mostly their difficulty."""
        freedom = int(self.count.sum()) - int((self.count > 0).sum())
        if freedom < 1:
            raise InvalidInput(
                "too few shadow models to estimate the variance of scores: some record must be in the "
                "training sets of two models, and some be left out of two. Train more; 16 are enough."
            )
        return float(self.squares.sum() / freedom)


@final
@dataclass(frozen=True, eq=False)
class ShadowScores:
    """The scores of n records by the target, (n,), and by K ``shadows``, (K, n), higher for members.

    ``trained_on``, of shape (K, n), says whether each shadow model was trained on each record.
    """

    target: Array
    shadows: Array
    trained_on: Bools

    def __init__(self, target: ArrayLike, shadows: ArrayLike, trained_on: ArrayLike) -> None:
        object.__setattr__(self, "target", np.array(target, dtype=np.float64))
        object.__setattr__(self, "shadows", np.array(shadows, dtype=np.float64))
        mask = np.array(trained_on)
        object.__setattr__(self, "trained_on", mask)
        if self.target.ndim != 1 or self.shadows.ndim != 2 or self.shadows.shape[1:] != self.target.shape:
            raise InvalidInput(
                f"shadows must have shape (models, records), and target (records,); got {self.shadows.shape} "
                f"and {self.target.shape}."
            )
        if mask.dtype != np.bool_ or mask.shape != self.shadows.shape:
            raise InvalidInput(
                f"trained_on must be one boolean per shadow score; got {mask.dtype} of shape {mask.shape} "
                f"for shadows of shape {self.shadows.shape}."
            )
        for name, scores in (("target's", self.target), ("shadow models'", self.shadows)):
            if not np.isfinite(scores).all():
                raise InvalidInput(
                    f"{int((~np.isfinite(scores)).sum())} of the {name} scores are not finite. Compute them "
                    "from logits with logit_margin or log_probability, in float64."
                )

    def world(self, *, member: bool) -> World:
        """Return each record's scores from the shadow models trained on it, or from the others."""
        here = self.trained_on if member else ~self.trained_on
        count = here.sum(axis=0)
        if (count == 0).any():
            kind = "trained on it" if member else "not trained on it"
            raise InvalidInput(
                f"{int((count == 0).sum())} of the records have no shadow model {kind}. Put every record "
                "into exactly half of the shadows' training sets."
            )
        mean = np.where(here, self.shadows, 0.0).sum(axis=0) / count
        squares = np.where(here, (self.shadows - mean) ** 2, 0.0).sum(axis=0)
        return World(count, mean, squares)


# Chosen on MNIST with 2 to 64 shadow models.  A record's mean matters from its first scores on, its variance
# only once it has more scores.
_PRIOR_SCORES, _PRIOR_FREEDOM = 0.01, 4.0


def bavaria(
    scores: ShadowScores, *, prior_scores: float = _PRIOR_SCORES, prior_freedom: float = _PRIOR_FREEDOM
) -> Array:
    """Compute the scores (n,) of BaVarIA-t, the Bayesian variance-free likelihood ratio.

    Each record's mean and variance, in or out, have a normal-inverse-gamma prior that is centred on the mean
    and variance of all records (Brännvall 2026, 2603.11799).  The prior matters more with few shadow models,
    and the record's scores matter more with many.  A record has n scores with mean m and sum of squares SS
    about m.  The prior mean mu0 counts as k0 = ``prior_scores`` scores, and the prior variance v0 as nu0 =
    ``prior_freedom`` degrees of freedom.  With

        k = k0 + n,  mu = (k0 mu0 + n m) / k,  nu = nu0 + n,
        s^2 = (nu0 v0 + SS + k0 n (m - mu0)^2 / k) / nu,

    the next score has a Student t distribution with nu degrees of freedom, centre mu and squared scale
    s^2 (1 + 1/k) (Murphy 2007, "Conjugate Bayesian analysis of the Gaussian distribution", section 3.3).  The
    score is log t_in - log t_out.
    """
    k0, nu0 = prior_scores, prior_freedom
    densities = []
    for member in (True, False):
        world = scores.world(member=member)
        mu0, v0 = world.pooled_mean(), world.pooled_variance()
        if v0 <= 0.0:
            raise InvalidInput(
                "all shadow models give the same scores. Pass different models, each trained with another "
                "seed."
            )
        n = world.count
        k, nu = k0 + n.astype(np.float64), nu0 + n.astype(np.float64)
        mu = (k0 * mu0 + n * world.mean) / k
        s2 = (nu0 * v0 + world.squares + k0 * n * (world.mean - mu0) ** 2 / k) / nu
        densities.append(np.asarray(t.logpdf(scores.target, nu, mu, np.sqrt(s2 * (1.0 + 1.0 / k)))))
    ratio: Array = densities[0] - densities[1]
    return ratio


# --- the shadow models ------------------------------------------------------------------------------------

TrainGroup: TypeAlias = Callable[[Bools], NDArray[Any]]
"""A function that trains g models.  Its argument is a (g, n) table of their training records, and its result
the models' outputs, of shape (g, ...)."""


@dataclass(frozen=True, eq=False)
class Shadows:
    """The training records of each shadow model, ``trained_on`` (K, n), and its ``outputs`` (K, ...).

    The first 2, 4, 6, ... models are balanced too, such as ``trained_on[:8]``.
    """

    trained_on: Bools
    outputs: NDArray[Any]


def paired_halves(models: int, records: int, rng: np.random.Generator) -> Bools:
    """Draw a (K, n) table of random halves of the records, complementary for models 0 and 1, 2 and 3, ...

    Every record is in the training data of exactly one model of each pair. So any set of pairs is balanced,
    for example after an interruption.
    """
    if check_integer("models", models, low=2) % 2:
        raise InvalidInput(
            f"models must be even, because each record is in the training sets of half of them; got {models}."
        )
    check_integer("records", records, low=2)
    order = np.argsort(rng.random((models // 2, records)), axis=1)
    first = np.zeros((models // 2, records), dtype=np.bool_)
    np.put_along_axis(first, order[:, : records // 2], True, axis=1)
    return np.stack([first, ~first], axis=1).reshape(models, records)


def shadow_groups(shadows: int) -> list[NDArray[np.int64]]:
    """Divide K >= 4 shadow models into at most 8 groups of whole pairs, which the jackknife leaves out.

    Without one group, every record is still in the training data of half of the other models.  If there are
    fewer than three pairs, the groups are single models.
    """
    check_integer("shadows", shadows, low=4)
    if shadows < 6:
        return [np.array([model]) for model in range(shadows)]
    pairs = np.arange(shadows // 2)
    return [
        np.stack([2 * part, 2 * part + 1], axis=1).ravel()
        for part in np.array_split(pairs, min(8, len(pairs)))
    ]


def without_each_group(shadows: int) -> Iterator[NDArray[np.int64]]:
    """Yield, for each group of :func:`shadow_groups`, the numbers of the other shadow models."""
    return (np.setdiff1d(np.arange(shadows), group) for group in shadow_groups(shadows))


def train_shadows(
    train: TrainGroup,
    trained_on: Bools,
    *,
    at_once: int = 1,
    store: Path | None = None,
    identity: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> Shadows:
    """Train K models in groups of ``at_once``, and return their outputs on every record.

    An interruption loses at most one group's work. If the file ``store`` exists, its table and models are
    used, and only the missing models are trained. It contains outputs and memberships of the records, so it
    is as confidential as the records. ``identity`` identifies all inputs: data, model and settings; a store
    with another identity is refused.
    """
    check_integer("at_once", at_once, low=1)
    done: list[NDArray[Any]] = []
    if store is not None and store.exists():
        trained_on, done = _load(store, identity, trained_on.shape)
    count = len(trained_on)
    while True:
        if progress is not None:
            progress(len(done), count)
        if len(done) >= count:
            return Shadows(trained_on, np.stack(done))

        group = trained_on[len(done) : len(done) + at_once]
        outputs = train(group)
        if len(outputs) != len(group):
            raise InvalidInput(f"train must return outputs of {len(group)} models; got {len(outputs)}.")
        for number, values in enumerate(outputs, len(done)):
            if not np.isfinite(values).all():
                raise InvalidInput(
                    f"outputs of model {number} must be finite; {int((~np.isfinite(values)).sum())} of "
                    f"{values.size} are not. Its training may have diverged: lower the learning rate."
                )
        done += list(outputs)
        if store is not None:
            buffer = io.BytesIO()
            named = np.array(json.dumps(identity))
            np.savez(buffer, identity=named, trained_on=trained_on, outputs=np.stack(done))
            content = buffer.getvalue()
            write_atomically(store, lambda file, content=content: file.write(content), mode=0o600)  # type: ignore[misc]


def _load(store: Path, identity: str, shape: tuple[int, ...]) -> tuple[Bools, list[NDArray[Any]]]:
    try:
        with np.load(io.BytesIO(store.read_bytes()), allow_pickle=False) as data:
            saved_identity, trained_on, outputs = (data[key] for key in ("identity", "trained_on", "outputs"))
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile):
        raise InvalidInput(
            f"{store} is not a readable store of shadow models: it is damaged, or another program wrote it. "
            "Remove it to train them again."
        ) from None
    if json.loads(str(saved_identity)) != identity or trained_on.shape != shape:
        raise InvalidInput(
            f"{store} was made with other data, models or settings. Use those, or remove the file to train "
            "again."
        )
    return trained_on, list(outputs)


Integers: TypeAlias = NDArray[np.int64]
NextToken: TypeAlias = Callable[[Integers], NDArray[np.floating]]
"""A model as an attacker sees it.  It maps n contexts, which are (n, t) token numbers from the start of a
record, to the (n, V) logits or log-probabilities of the next token."""

_CHUNK = 16384  # the most contexts in one call of the model


# --- canaries ---------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class SecretSpace:
    """All R = len(alphabet)^t strings of t characters, in the alphabet's order (the last changes first)."""

    alphabet: str
    length: int

    def __post_init__(self) -> None:
        check_integer("length", self.length, low=1)
        if len(self.alphabet) < 2 or len(set(self.alphabet)) < len(self.alphabet):
            raise InvalidInput(f"alphabet must be at least 2 distinct characters; got {self.alphabet!r}.")

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
        """Return the position of a secret, the inverse of :meth:`secret`."""
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

    The coin decides whether the canary is in the data, and stays hidden until after the attack. The other
    canaries are the control group. The secrets are random, so the model can only know them from the training
    data (Carlini et al. 2019, "The Secret Sharer", 1802.08232, section 4).

    Args:
        generator: a random number generator with a seed that the attacker does not know.
    """
    check_integer("copies", copies, low=1)
    if len(set(prefixes)) < len(prefixes) or not prefixes:
        raise InvalidInput(
            "`prefixes` must have at least one entry, and no entry twice: each secret is measured alone."
        )
    places = generator.integers(space.size, size=len(prefixes))
    coins = generator.integers(2, size=len(prefixes)) == 1
    return [
        Canary(prefix, space.secret(int(place)), copies, bool(coin))
        for prefix, place, coin in zip(prefixes, places, coins, strict=True)
    ]


def planted_records(canaries: Sequence[Canary]) -> list[str]:
    """Return the records to add to the training data: ``copies`` of each included canary."""
    return [
        canary.prefix + canary.secret for canary in canaries if canary.included for _ in range(canary.copies)
    ]


# --- exposure ---------------------------------------------------------------------------------------------


def exact_exposure(scores: ArrayLike, secret: int) -> float:
    """Compute the exposure log2 R - log2 rank, in bits in [0, log2 R], from the scores of all R candidates.

    The rank is the number of candidates with a score of *at least* the secret's. So a model that gives all
    candidates the same score exposes no secret (Carlini et al. 2019, 1802.08232).

    Args:
        scores: (R,) log-likelihoods of the candidates.  One of the candidates is the secret.
        secret: the position of the true secret among the candidates.
    """
    values = log_likelihood_row("scores", scores)
    place = check_integer("secret", secret, low=0, high=values.size - 1)
    rank = int((values >= values[place]).sum())
    return math.log2(values.size / rank)


def sampled_exposure(secret: float, others: ArrayLike) -> float:
    """Compute the exposure among N uniformly drawn candidates, in bits, at most log2(N + 1).

    The rank also counts the secret. For a model that never saw the secret, all N + 1 are exchangeable, so
    Pr[exposure >= e] <= 2^-e holds for the sample too.

    Args:
        secret: the log-likelihood of the true secret.
        others: (N,) log-likelihoods of candidates that were drawn independently of the secret.
    """
    values = log_likelihood_row("others", others)
    own = check_real("secret", secret)
    return math.log2((values.size + 1) / (1 + int((values >= own).sum())))


def exposure_bound(
    false_negative_rate: Callable[[Array], Array], exposures: ArrayLike, *, copies: int = 1
) -> Array:
    """Bound the probability that a planted secret has at least each of ``exposures``.

    A model that never saw the secret gives it any rank with equal probability, so Pr[exposure >= e] <= 2^-e.
    The event exposure >= e is therefore a membership test with false-positive rate at most 2^-e, and training
    with the trade-off curve f has

        Pr[exposure >= e] <= 1 - f(2^-e)

    for a secret in one record.  For c copies, 1 - f is applied c times (Dong, Roth & Su 2019, 1905.02383,
    Theorem 2.14).

    Args:
        exposures: exposures >= 0, in bits.
        copies: the number of records with the secret.

    **Guarantee**

    * The bound holds for a secret that is drawn uniformly and independently of all else, whatever the
      attacker does with the model.  Its probability is over the draw of the secret and the training.
    """
    bits = np.asarray(exposures, dtype=np.float64)
    if not ((bits >= 0.0).all() and np.isfinite(bits).all()):
        raise InvalidInput(f"exposures are measured in bits and must be >= 0; got {exposures!r}.")
    rate: Array = np.exp2(-bits).ravel()
    for _ in range(check_integer("copies", copies, low=1)):
        rate = np.maximum(rate, 1.0 - false_negative_rate(rate))
    return np.clip(rate, 0.0, 1.0).reshape(bits.shape)


def log_likelihood_row(name: str, values: ArrayLike) -> Array:
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1 or row.size == 0 or not np.isfinite(row).all():
        raise InvalidInput(
            f"{name} must be a vector of finite log-likelihoods; got shape {row.shape}, and "
            f"{int((~np.isfinite(row)).sum())} are not finite."
        )
    return row


# --- a language model, asked ------------------------------------------------------------------------------


def next_log_probabilities(model: NextToken, contexts: Integers) -> Array:
    """Compute log p of each next token, of shape (n, V), normalised in float64.

    Args:
        contexts: (n, t) token numbers.
    """
    parts = [contexts[start : start + _CHUNK] for start in range(0, len(contexts), _CHUNK)]
    logits = np.concatenate([_answer(model, part) for part in parts])
    top = logits.max(axis=1, keepdims=True)
    if not np.isfinite(top).all():
        raise InvalidInput(
            f"the model's logits for {int((~np.isfinite(top)).sum())} contexts are not finite. Training may "
            "have diverged: train again with a lower learning rate."
        )
    shifted = logits - top
    normalised: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised


def log_likelihoods(model: NextToken, prefix: ArrayLike, strings: ArrayLike) -> Array:
    """Compute the log-likelihoods log p(string | prefix) of n strings, of shape (n,).

    A *higher* value is more likely; these are negative log-perplexities. Shared contexts are computed once:
    all numbers of five digits take 11,111 contexts instead of half a million.

    Args:
        strings: (n, t) token numbers, t >= 1.
    """
    before, rows = token_numbers("prefix", prefix, 1), token_numbers("strings", strings, 2)
    if rows.shape[1] == 0 or len(rows) == 0:
        raise InvalidInput(f"strings must have at least one token each; got shape {rows.shape}.")
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
    """Return the greedy continuation, of shape (t,); the first of equally likely tokens wins."""
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
            f"{name} must be an integer array of {dimensions} dimensions with tokens >= 0; got "
            f"{tokens.dtype} of shape {tokens.shape}."
        )
    return tokens.astype(np.int64)


def _answer(model: NextToken, contexts: Integers) -> Array:
    logits = np.asarray(model(contexts), dtype=np.float64)
    if logits.ndim != 2 or len(logits) != len(contexts) or logits.shape[1] < 2 or np.isnan(logits).any():
        raise InvalidInput(
            f"the model must return one row of logits per context, without NaN; got shape {logits.shape} "
            f"for {len(contexts)} contexts."
        )
    return logits
