"""What is asked of a plan for a language model: budgets of compute, data and privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tacit.errors import InvalidInput, check_integer, check_real
from tacit.events import Adjacency
from tacit.planner import Question
from tacit.scaling.law import Floats

_LEAST_EPSILON = 0.1  # below, the tight accountant takes seconds at the rates of large corpora
_SPARE = 5.0  # standard deviations between the expected batch and the largest one


@dataclass(frozen=True, kw_only=True)
class LanguageModelQuestion:
    """A budget of compute, data and privacy for training a language model from scratch.

    Attributes:
        records: N, the public number of records; a record is one unit of privacy, of which a step takes one
            sequence.
        unit: what one record is: "sequence of 512 tokens", "user".
        epsilon, delta, adjacency: the promise that the whole run has to keep; epsilon is 0.1 to 100.
        flops: floating-point operations for training, in all.
        sequence_length: S, tokens of one sequence.
        model_size: M, where it is fixed; None to choose it.
        largest_batch: cuts larger Poisson samples to so many records; None for no limit.
        extrapolate: also search beyond the range of the law.
        allow_large_delta: accept a delta of 1/N or more.

    Raises:
        InvalidInput: a value out of range.
        PrivacyRefusal: delta is 1/N or more.

    >>> question = LanguageModelQuestion(records=10**7, unit="sequence", epsilon=4, delta=1e-8,
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
        privacy = Question(
            records=self.records, unit=self.unit, epsilon=self.epsilon, delta=self.delta,
            adjacency=self.adjacency, steps=1, allow_large_delta=self.allow_large_delta,
        )  # fmt: skip
        epsilon = float(privacy.epsilon or 0.0)
        if epsilon < _LEAST_EPSILON:
            raise InvalidInput(
                f"epsilon must be at least {_LEAST_EPSILON:g} for a plan of a language model: below, the "
                f"search would take minutes; got {epsilon:g}. Give a larger epsilon, or choose a "
                "model and plan its batch by tacit plan without --language-model."
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
        """The largest B: N, or so far below ``largest_batch`` that hardly any sample is cut."""
        if self.largest_batch is None:
            return self.records
        return max(1, math.floor(self.largest_batch - _SPARE * math.sqrt(self.largest_batch)))

    def batch_size(self, model_size: Floats, steps: Floats) -> Floats:
        """B: what the compute allows, at most the largest."""
        allowed = self.flops / (6.0 * self.sequence_length * model_size * steps)
        return np.minimum(allowed, float(self.largest_expected_batch))
