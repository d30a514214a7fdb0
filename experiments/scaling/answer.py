"""The request for a plan of a language model, with its budgets, and the answer, with its configurations."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from experiments.scaling.law import Floats, Law, parameters
from tacit.errors import InvalidInput, check_integer, check_real
from tacit.events import Adjacency
from tacit.planner import PlanRequest

_LEAST_EPSILON = 0.1  # below, the tight accountant takes seconds at the rates of large corpora
_SPARE = 5.0  # standard deviations between the expected batch and the largest one


@dataclass(frozen=True, kw_only=True)
class LanguageModelRequest:
    """A budget of compute, data and privacy for training a language model from scratch.

    Attributes:
        records: N, the public number of records. A record is one unit of privacy; a step takes one sequence
            from each record that it draws.
        unit: the name of one record: "sequence of 512 tokens", "user".
        epsilon, delta, adjacency: the promise of the whole run; epsilon is 0.1 to 100.
        flops: the floating-point operations of the whole training.
        sequence_length: S, the number of tokens per sequence.
        model_size: M, if it is fixed; None to choose it.
        largest_batch: the number of records to which larger Poisson samples are cut; None for no limit.
        extrapolate: also search beyond the range of the scaling law.
        allow_large_delta: accept a delta of 1/N or more.

    Raises:
        InvalidInput: if a value is out of range.
        PrivacyRefusal: if delta is 1/N or more, and ``allow_large_delta`` is False.

    >>> question = LanguageModelRequest(records=10**7, unit="sequence", epsilon=4, delta=1e-8,
    ...     adjacency="add-remove", flops=1e19, sequence_length=512)
    >>> question.largest_expected_batch
    10000000
    """

    records: int
    unit: str
    epsilon: float
    delta: float
    adjacency: Adjacency | str
    flops: float
    sequence_length: int
    model_size: float | None = None
    largest_batch: int | None = None
    extrapolate: bool = False
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        privacy = PlanRequest(
            records=self.records, unit=self.unit, epsilon=self.epsilon, delta=self.delta,
            adjacency=self.adjacency, steps=1, allow_large_delta=self.allow_large_delta,
        )  # fmt: skip
        epsilon = float(privacy.epsilon or 0.0)
        if epsilon < _LEAST_EPSILON:
            raise InvalidInput(
                f"epsilon must be at least {_LEAST_EPSILON:g} for a language model; got {epsilon:g}. Below "
                "that, the search would take minutes. Give a larger epsilon, or choose a model and plan "
                "its batch by tacit plan without --language-model."
            )
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "adjacency", privacy.adjacency)
        object.__setattr__(self, "flops", check_real("flops", self.flops, low=1.0))
        check_integer("sequence_length", self.sequence_length, low=1)
        if self.model_size is not None:
            object.__setattr__(self, "model_size", check_real("model_size", self.model_size, low=1.0))
        if self.largest_batch is not None:
            check_integer("largest_batch", self.largest_batch, low=1, high=self.records)

    @property
    def largest_expected_batch(self) -> int:
        """The largest B: N, or five standard deviations below ``largest_batch``, so that few are cut."""
        if self.largest_batch is None:
            return self.records
        return max(1, math.floor(self.largest_batch - _SPARE * math.sqrt(self.largest_batch)))

    def batch_size(self, model_size: Floats, steps: Floats) -> Floats:
        """Compute the B that the compute allows, but at most :attr:`largest_expected_batch`."""
        allowed = self.flops / (6.0 * self.sequence_length * model_size * steps)
        return np.minimum(allowed, float(self.largest_expected_batch))


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The settings of one training run, with the noise that the promise needs and the expected loss.

    Attributes:
        model_size: M.
        steps: T.
        batch_size: B, the expected number of records per step.
        sampling_rate: q = B / N.
        noise_multiplier: sigma, proven to keep the promise.
        noise_batch_ratio: sigma / B.
        loss: the loss that the scaling law expects, in nats per token.
        beyond: the settings outside the range of the law, in words. If there are any, the loss is a guess.
        accountant: "pld" (tight) or "rdp".
        flops: 6 M T B S.
        tokens: T B S, the number of tokens in training.
        tokens_per_parameter: tokens / M.
        epochs: T q, the mean number of times that a record is drawn.

    >>> from experiments.scaling import advise_language_model
    >>> from experiments.scaling.published import published_law
    >>> question = LanguageModelRequest(records=10**7, unit="sequence", epsilon=4, delta=1e-8,
    ...     adjacency="add-remove", flops=1e19, sequence_length=512)
    >>> best = advise_language_model(question, published_law()).best
    >>> best.sampling_rate == best.batch_size / 10**7, best.flops <= 1.01e19
    (True, True)
    """

    model_size: float
    steps: int
    batch_size: int
    sampling_rate: float
    noise_multiplier: float
    noise_batch_ratio: float
    loss: float
    beyond: tuple[str, ...]
    accountant: str
    flops: float
    tokens: float
    tokens_per_parameter: float
    epochs: float


@dataclass(frozen=True)
class NearBest:
    """The ranges of model size, steps and batch size with an expected loss within 1 % of the least."""

    model_size: tuple[float, float]
    steps: tuple[float, float]
    batch_size: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class NonPrivate:
    """The choice for training without privacy with the same compute.

    Attributes:
        model_size, tokens, batch_size, steps: chosen by the published rule; see ``published.json``.
        loss: the expected loss without noise; None outside the range of the scaling law.
        with_privacy: the same configuration under the promise; None outside the range of the law.
    """

    model_size: float
    tokens: float
    batch_size: int
    steps: int
    loss: float | None
    with_privacy: Configuration | None


@dataclass(frozen=True)
class Point:
    """One point of a plot: a compute budget in FLOPs, and its least loss with that model size and steps."""

    flops: float
    loss: float
    model_size: float
    steps: float


@dataclass(frozen=True, kw_only=True)
class LanguageModelAdvice:
    """The answer to a :class:`~experiments.scaling.LanguageModelRequest`.

    Attributes:
        question: the request.
        law: the scaling law of the loss.
        best: the configuration with the least expected loss.
        near_best: the ranges within 1 % of that loss.
        non_private: the choice for training without privacy.
        saved_by_twice_flops, saved_by_twice_epsilon, saved_by_twice_records: the share of the expected loss
            that twice as much of one budget would remove, with the other budgets unchanged.
        warnings: sentences about assumptions beyond the runs of the law, and about limits of the search.

    >>> from experiments.scaling import advise_language_model
    >>> from experiments.scaling.published import published_law
    >>> question = LanguageModelRequest(records=10**7, unit="sequence", epsilon=4, delta=1e-8,
    ...     adjacency="add-remove", flops=1e19, sequence_length=512)
    >>> advice = advise_language_model(question, published_law())
    >>> advice.near_best.batch_size[0] <= advice.best.batch_size <= advice.near_best.batch_size[1]
    True
    """

    question: LanguageModelRequest
    law: Law
    best: Configuration
    near_best: NearBest
    non_private: NonPrivate
    saved_by_twice_flops: float
    saved_by_twice_epsilon: float
    saved_by_twice_records: float
    warnings: tuple[str, ...]

    def as_data(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        return asdict(self) | {"law": self.law.as_data(), "in_words": self.in_words()}

    def in_words(self) -> str:
        """Return the recommendation in a few sentences."""
        best, near, quality = self.best, self.near_best, self.law.quality
        flops, epsilon, records = (
            f"{part:.1%}"
            for part in (self.saved_by_twice_flops, self.saved_by_twice_epsilon, self.saved_by_twice_records)
        )
        return (
            f"Train a model of {parameters(best.model_size)} parameters for {best.steps:,} steps on "
            f"batches of {best.batch_size:,} (each record with probability {best.sampling_rate:.3g}), "
            f"noise multiplier {best.noise_multiplier:.4g}. The law expects a loss of {best.loss:.2f} nats "
            f"a token; its typical error is {quality.typical:.1%} on the runs that it was fitted to, and "
            f"{quality.held_out:.1%} on held-out runs. Within 1 % of that loss are "
            f"{self._models_near()}batches of {near.batch_size[0]:,.0f} to {near.batch_size[1]:,.0f} and "
            f"{near.steps[0]:,.0f} to {near.steps[1]:,.0f} steps, each with suitable other values. Twice "
            f"the FLOPs would take away {flops} of the loss, twice epsilon {epsilon}, twice the records "
            f"{records}. {self._without_privacy()}"
        )

    def _models_near(self) -> str:
        least, largest = self.near_best.model_size
        if least == largest:
            return ""  # the size was given
        return f"models of {parameters(least)} to {parameters(largest)}, "

    def _without_privacy(self) -> str:
        other, best = self.non_private, self.best
        words = (
            f"Without privacy, the same FLOPs train {parameters(other.model_size)} parameters, "
            f"{_times(other.model_size / best.model_size, 'larger', 'smaller')}, on batches of "
            f"{other.batch_size:,}, {_times(other.batch_size / best.batch_size, 'larger', 'smaller')}"
        )
        if other.loss is not None:
            words += f", to a loss of {other.loss:.2f}"
        if other.with_privacy is not None:
            words += (
                f"; with the noise of this promise, that model would stay at {other.with_privacy.loss:.2f}"
            )
        return f"{words}."


def _times(factor: float, larger: str, smaller: str) -> str:
    """Format a factor in words.

    >>> _times(1370.2, "larger", "smaller"), _times(0.4, "larger", "smaller")
    ('1,370 times larger', '2.5 times smaller')
    """
    ratio, word = (factor, larger) if factor >= 1.0 else (1.0 / factor, smaller)
    return f"{ratio:,.0f} times {word}" if ratio >= 10.0 else f"{ratio:.2g} times {word}"
