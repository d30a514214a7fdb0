"""Further measures of memory: extrapolated exposure, extractable answers, and the divergence probe.

An ending z of probability p_z occurs in n answers with probability 1 - (1 - p_z)^n, so

    n = ceil(log(1 - p) / log(1 - p_z))

answers contain it with probability p: the record is (n, p)-extractable (Hayes et al. 2024, 2410.19482).

The divergence probe lets a model repeat a word.  When large models stopped repeating, they recited training
data far more often than in plain answers (Nasr et al. 2023, 2311.17035).  The probe measures the share of the
text after the repetition that lies in verbatim pieces of the training data.  Small models may not diverge
like this.  With them, the probe only demonstrates the method.

Letters: n answers of t tokens each, N reference candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.special import log_ndtr, logsumexp

from tacit.audits.attacks import NextToken, log_likelihood_row, next_log_probabilities, token_numbers
from tacit.errors import InvalidInput, check_integer, check_real

Array: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

_FEWEST_FOR_A_FIT = 100
_FITTED = 5000  # the most candidates to which a skew normal is fitted; more take longer and change nothing
_LEAST_P_VALUE = 0.01


@dataclass(frozen=True)
class Extrapolated:
    """An exposure that is extrapolated from the candidates that were scored.

    ``exposure`` is in bits.  ``p_value`` is that of the Kolmogorov-Smirnov test of the fit.  It is biased
    upwards, as the distribution was fitted to the same scores.  So a small value means a bad fit, but a large
    value does not prove a good one.
    """

    exposure: float
    p_value: float


def extrapolated_exposure(
    secret: float, others: ArrayLike, *, least_p_value: float = _LEAST_P_VALUE
) -> Extrapolated:
    """Compute -log2 F(-secret), with F a skew normal fitted to the log-perplexities of other candidates.

    The result does not come from a rank (section 4.3).  It may exceed log2 R, and is only as accurate as the
    fitted tail.

    Args:
        secret: the log-likelihood of the true secret.
        others: (N,) log-likelihoods of candidates that were drawn independently of the secret, N >= 100.
        least_p_value: the smallest p-value of an accepted fit.

    Raises:
        InvalidInput: if the scores do not follow a skew normal distribution, or do not vary.
    """
    values = -log_likelihood_row("others", others)  # log-perplexities
    own = -check_real("secret", secret)
    check_real("least_p_value", least_p_value, low=0.0, high=1.0, open_high=True)
    if values.size < _FEWEST_FOR_A_FIT or np.ptp(values) == 0.0:
        raise InvalidInput(
            f"others must be at least {_FEWEST_FOR_A_FIT} scores, not all equal; got {values.size} with "
            f"a range of {np.ptp(values):g}. A skew normal distribution is fitted to them."
        )
    thinned = values[:: math.ceil(values.size / _FITTED)]
    mean, std = float(thinned.mean()), float(thinned.std())
    z = (thinned - mean) / std
    shape, place, scale = stats.skewnorm.fit(z, *_moments_start(z))
    p_value = float(stats.kstest(z, stats.skewnorm(shape, place, scale).cdf).pvalue)
    if p_value < least_p_value:
        raise InvalidInput(
            "the scores of others do not follow a skew normal distribution. The Kolmogorov-Smirnov p-value "
            f"is {p_value:.2g}, below {least_p_value:g}: the tail would not show the secret's rank. Score "
            "all candidates (exact_exposure) or more of them (sampled_exposure)."
        )
    log_tail = skew_normal_log_cdf(((own - mean) / std - place) / scale, shape)
    return Extrapolated(max(0.0, -log_tail / math.log(2.0)), p_value)


def skew_normal_log_cdf(z: float, shape: float) -> float:
    """Compute the log of the integral of 2 phi(u) Phi(shape u) over u <= z.

    It has about nine correct digits, even in a far tail.  The closed form with Owen's T subtracts values near
    0 or 1, so it would lose all digits there.

    >>> round(skew_normal_log_cdf(0.0, 0.0), 9) == round(math.log(0.5), 9)
    True
    """
    # The integrand is log-concave.  Nearly all of its mass is within a few widths below min(z, its mode).
    mode = _mode(shape)
    top = min(z, mode + 12.0)
    if top > mode + 8.0:
        return 0.0  # all but 1e-15 of the mass
    end = min(top, mode)
    slope = abs(
        -end + shape * math.exp(-0.5 * (shape * end) ** 2 - 0.918938533204672 - log_ndtr(shape * end))
    )
    width = min(45.0 / max(slope, 1e-9), 12.0)
    u = np.linspace(end - width, top, 40001)
    log_density = math.log(2.0 / math.sqrt(2.0 * math.pi)) - 0.5 * u * u + log_ndtr(shape * u)
    weight = np.ones(u.size)
    weight[1:-1:2], weight[2:-1:2] = 4.0, 2.0  # Simpson
    return min(0.0, float(logsumexp(log_density, b=weight * (u[1] - u[0]) / 3.0)))


def _mode(shape: float) -> float:
    """Find the maximum of 2 phi(u) Phi(shape u), the root of u = shape phi(shape u) / Phi(shape u)."""
    low, high = min(0.0, -1.0), 1.0
    for _ in range(80):
        u = (low + high) / 2.0
        ratio = math.exp(-0.5 * (shape * u) ** 2 - 0.918938533204672 - float(log_ndtr(shape * u)))
        low, high = (low, u) if u > shape * ratio else (u, high)
    return (low + high) / 2.0


def _moments_start(z: Array) -> tuple[float]:
    """Estimate a starting value of the shape from the sample's skewness.

    It is clipped to [-0.95, 0.95], because a skew normal has a skewness below 0.9953.
    """
    skew = float(np.clip(np.mean(z**3), -0.95, 0.95))
    power = abs(skew) ** (2.0 / 3.0)
    delta = math.sqrt(math.pi / 2.0 * power / (power + ((4.0 - math.pi) / 2.0) ** (2.0 / 3.0)))
    delta = min(delta, 0.995)
    return (math.copysign(delta / math.sqrt(1.0 - delta * delta), skew),)


def sampled(
    model: NextToken, prefix: ArrayLike, length: int, *, count: int, generator: np.random.Generator
) -> Integers:
    """Draw ``count`` independent continuations of shape (n, t) from the model's distribution.

    Args:
        generator: the random number generator.
    """
    start = token_numbers("prefix", prefix, 1)
    check_integer("count", count, low=1)
    contexts = np.broadcast_to(start, (count, start.size))
    for _ in range(check_integer("length", length, low=1)):
        log_p = next_log_probabilities(model, contexts)
        token = np.argmax(log_p + generator.gumbel(size=log_p.shape), axis=1)  # the Gumbel-max trick
        contexts = np.column_stack([contexts, token])
    return contexts[:, start.size :]


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
