"""What does a plan for a language model say? The best configuration, its neighbours, the non-private one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tacit.scaling.law import Law, parameters
from tacit.scaling.question import LanguageModelQuestion


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One way to train, with the noise that the promise asks for and the loss that the law expects.

    Attributes:
        model_size: M.
        steps: T.
        batch_size: B, expected records a step.
        sampling_rate: q = B / N.
        noise_multiplier: sigma, proven to keep the promise.
        noise_batch_ratio: sigma / B.
        loss: expected loss in nats a token.
        beyond: what is outside the range of the law, in words; then the loss is a guess.
        accountant: "pld", the tight one, or "rdp".
        flops: 6 M T B S.
        tokens: T B S, that training goes through.
        tokens_per_parameter: tokens / M.
        epochs: T q, how often a record is drawn on average.

    >>> from tacit.scaling import advise_language_model, published_law
    >>> question = LanguageModelQuestion(records=10**7, unit="sequence", epsilon=4, delta=1e-8,
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
    """Least and largest model size, steps and batch size within 1 % of the least expected loss."""

    model_size: tuple[float, float]
    steps: tuple[float, float]
    batch_size: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class NonPrivate:
    """What training without privacy would choose for the same compute.

    Attributes:
        model_size, tokens, batch_size, steps: by the published rule; see ``published.json``.
        loss: what the law expects of it without noise; None outside the range.
        with_privacy: the same configuration under the promise; None outside the range.
    """

    model_size: float
    tokens: float
    batch_size: int
    steps: int
    loss: float | None
    with_privacy: Configuration | None


@dataclass(frozen=True)
class Point:
    """One point of a figure: FLOPs, and the least expected loss with its model size and steps."""

    flops: float
    loss: float
    model_size: float
    steps: float


@dataclass(frozen=True, kw_only=True)
class LanguageModelAdvice:
    """The answer to a :class:`~tacit.scaling.LanguageModelQuestion`.

    Attributes:
        best: the configuration of least expected loss.
        near_best: what is within 1 % of it.
        non_private: what training without privacy would choose.
        saved_by_twice_flops, saved_by_twice_epsilon, saved_by_twice_records: the part of the expected loss
            that twice as much of one budget would remove, the others alike.
        warnings: where the expected loss rests on more than the runs of the law.

    >>> from tacit.scaling import advise_language_model, published_law
    >>> question = LanguageModelQuestion(records=10**7, unit="sequence", epsilon=4, delta=1e-8,
    ...     adjacency="add-remove", flops=1e19, sequence_length=512)
    >>> advice = advise_language_model(question, published_law())
    >>> advice.near_best.batch_size[0] <= advice.best.batch_size <= advice.near_best.batch_size[1]
    True
    """

    question: LanguageModelQuestion
    law: Law
    best: Configuration
    near_best: NearBest
    non_private: NonPrivate
    saved_by_twice_flops: float
    saved_by_twice_epsilon: float
    saved_by_twice_records: float
    warnings: tuple[str, ...]

    def as_data(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return asdict(self) | {"law": self.law.as_data(), "in_words": self.in_words()}

    def in_words(self) -> str:
        """The recommendation for people, in a few sentences."""
        best, near, quality = self.best, self.near_best, self.law.quality
        saved = ", ".join(
            f"twice {name} {part:.1%}"
            for name, part in (
                ("the FLOPs would take away", self.saved_by_twice_flops),
                ("epsilon", self.saved_by_twice_epsilon),
                ("the records", self.saved_by_twice_records),
            )
        )
        return (
            f"Train a model of {parameters(best.model_size)} parameters for {best.steps:,} steps on batches "
            f"of {best.batch_size:,} (each record with probability {best.sampling_rate:.3g}), noise "
            f"multiplier {best.noise_multiplier:.4g}. The law expects a loss of {best.loss:.2f} nats a "
            f"token; it misses its own runs by {quality.typical:.1%} and runs that it was not given by "
            f"{quality.held_out:.1%}. Within 1 % of that loss are {self._models_near()}batches of "
            f"{near.batch_size[0]:,.0f} to {near.batch_size[1]:,.0f} and {near.steps[0]:,.0f} to "
            f"{near.steps[1]:,.0f} steps, each with the others fitting. Of the loss, {saved}. "
            f"{self._without_privacy()}"
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
    """A factor for people.

    >>> _times(1370.2, "larger", "smaller"), _times(0.4, "larger", "smaller")
    ('1,370 times larger', '2.5 times smaller')
    """
    ratio, word = (factor, larger) if factor >= 1.0 else (1.0 / factor, smaller)
    return f"{ratio:,.0f} times {word}" if ratio >= 10.0 else f"{ratio:.2g} times {word}"
