"""The planner's advice: batch sizes, best first, and a recommendation in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from tacit.accounting.pld import smallest_largest_batch
from tacit.events import event_to_json
from tacit.planner.request import PlanRequest

NEAR_FLOOR = 0.05
"""A larger batch gains nothing if the total noise is already at most this share above the floor."""


@dataclass(frozen=True, kw_only=True)
class PlanOption:
    """One batch size, with the noise and the compute that it needs under the budget.

    Attributes:
        rank: 1 is the best; see :attr:`PlanAdvice.options`.
        batch_size: B, the expected number of records per step.
        sampling_rate: q, in (0, 1]; 1 is the full batch, without sampling.
        steps: T.
        compute: T B, the total number of per-record gradients.
        epochs: T q, the expected number of passes over the records.
        passes: physical batches per expected batch; None if ``largest_physical_batch`` is None.
        cut: the probability that a step's sample exceeds ``largest_batch``; None if that is None.
        noise_multiplier: sigma, the least that keeps the guarantee.
        noise_per_example: sigma / B, the noise of one step's mean gradient in units of C.
        total_noise: sigma / (B sqrt(T)), the noise of the mean over all steps, in units of C.
        above_floor: the total noise divided by the floor, minus 1.
        saved_by_twice_records, saved_by_twice_epsilon, saved_by_twice_compute: the share of the total noise
            that would be removed by twice N (with the same B and T), by twice epsilon, or by twice the
            compute: batches twice as large or, if these exceed N, twice as many steps.

    >>> from tacit.planner import PlanRequest, advise
    >>> question = PlanRequest(
    ...     records=10_000, unit="row", epsilon=2, delta=1e-6, adjacency="add-remove", epochs=10)
    >>> best = advise(question).recommended
    >>> best.rank, best.sampling_rate == best.batch_size / 10_000
    (1, True)
    """

    rank: int
    batch_size: int
    sampling_rate: float
    steps: int
    compute: int
    epochs: float
    passes: int | None
    cut: float | None
    noise_multiplier: float
    noise_per_example: float
    total_noise: float
    above_floor: float
    saved_by_twice_records: float
    saved_by_twice_epsilon: float
    saved_by_twice_compute: float


@dataclass(frozen=True)
class PlanAdvice:
    """The answer to a :class:`PlanRequest`.

    Attributes:
        question: the request.
        options: the batch sizes, best first.  Less total noise is better.  Options within 5 % of the floor
            count as equal.  Among them the smaller batch is better, as it takes less compute or leaves more
            steps.
        floor: the total noise of full batches, which does not depend on the number of steps.
        elbow: the smallest batch size within 5 % of the floor, to two digits; None if the compute does not
            reach it.

    **Guarantee**

    * For every option: ``steps`` steps at ``sampling_rate`` with noise ``noise_multiplier``, after the
      preparation, cost at most (epsilon, delta) under the adjacency.
    * With a ``largest_batch``, the same holds for samples that are cut there.

    >>> from tacit.planner import PlanRequest, advise
    >>> question = PlanRequest(
    ...     records=10_000, unit="row", epsilon=2, delta=1e-6, adjacency="add-remove", epochs=10)
    >>> advice = advise(question)
    >>> advice.recommended is advice.options[0], advice.options[0].total_noise >= advice.floor
    (True, True)
    """

    question: PlanRequest
    options: tuple[PlanOption, ...]
    floor: float
    elbow: int | None

    @cached_property
    def recommended(self) -> PlanOption:
        """The option of rank 1."""
        return self.options[0]

    @cached_property
    def epsilons(self) -> tuple[float, float]:
        """The recommended option's epsilon at delta, if samples are cut at the largest batch and if not."""
        best, question = self.recommended, self.question
        curve = question.curve(best.batch_size, best.steps, best.noise_multiplier)
        return curve.epsilon(question.delta_of(best.batch_size) or 0.0), curve.epsilon(question.delta)

    def as_data(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        question = asdict(self.question) | {
            "preparation": [event_to_json(event) for event in self.question.preparation]
        }
        return {
            "question": question,
            "floor": self.floor,
            "elbow": self.elbow,
            "options": [asdict(option) for option in self.options],
            "recommended_batch_size": self.recommended.batch_size,
            "epsilon_cut": None if self.question.largest_batch is None else self.epsilons[0],
            "epsilon_not_cut": None if self.question.largest_batch is None else self.epsilons[1],
            "in_words": self.in_words(),
        }

    def in_words(self) -> str:
        """Return the recommendation in a few sentences."""
        best = self.recommended
        full = best.sampling_rate == 1.0
        who = (
            "every record in every step" if full else f"each record with probability {best.sampling_rate:.3g}"
        )
        passes = (
            ""
            if best.passes is None or best.passes == 1
            else f" Each batch is accumulated over about {best.passes:,} physical ones."
        )
        records, epsilon, compute = (
            f"{max(0.0, share):.0%}"
            for share in (
                best.saved_by_twice_records,
                best.saved_by_twice_epsilon,
                best.saved_by_twice_compute,
            )
        )
        return (
            f"Take batches of {best.batch_size:,} ({who}), {best.steps:,} steps, noise multiplier "
            f"{best.noise_multiplier:.4g}: the noise of a step's mean gradient is then "
            f"{best.noise_per_example:.2g} times the clipping "
            f"norm.{passes}{self._about_epsilon()}{self._about_cuts()} {self._about_the_elbow()} Twice the "
            f"records would take away {records} of the noise, twice epsilon {epsilon}, twice the compute "
            f"{compute}."
        )

    def _about_epsilon(self) -> str:
        """State the epsilon, if the budget limits an attack instead."""
        if self.question.epsilon is not None:
            return ""
        return f" That costs epsilon {self.epsilons[1]:.4g} at delta = {self.question.delta:g}."

    def _about_cuts(self) -> str:
        """State how often samples are cut, and what that costs in epsilon."""
        best, largest = self.recommended, self.question.largest_batch
        if best.cut is None or largest is None:
            return ""
        cut, whole = (f"{epsilon:.6g}" for epsilon in self.epsilons)
        price = (
            f"which costs epsilon {cut} instead of {whole}"
            if cut != whole
            else f"which leaves epsilon {cut} as it is, to six digits"
        )
        return (
            f" Samples of more than {largest:,} are cut: that happens to a step with probability "
            f"{best.cut:.1e}, {price}."
        )

    def _about_the_elbow(self) -> str:
        above = max(0.0, self.recommended.above_floor)
        start = f"Over the run, the noise is {above:.1%} above the floor, which is that of the full batch"
        if self.elbow is None:
            return f"{start}: the compute does not reach the elbow, and larger batches would help."
        if above > NEAR_FLOOR:
            larger = f"batches of about {self.elbow:,}{self._with_room()}"
            return f"{start}; {larger} would come within {NEAR_FLOOR:.0%} of it."
        start = f"{start}: beyond the elbow, at about {self.elbow:,}, a larger batch gains nothing."
        return f"{start}{self._instead()}"

    def _with_room(self) -> str:
        """State the largest batch that the elbow needs, if the one in the request is too small for it."""
        question, elbow = self.question, self.elbow
        if elbow is None or elbow <= question.largest_size:
            return ""
        room = smallest_largest_batch(
            elbow / question.records, question.records, question.steps_of(elbow), question.delta
        )
        return f", with a largest batch of {room:,},"

    def _instead(self) -> str:
        """Suggest a smaller batch with more steps and more noise, for models that need more steps."""
        best = self.recommended
        smaller = [option for option in self.options if option.batch_size < 0.6 * best.batch_size]
        if not smaller or self.question.steps is not None:
            return ""
        other = smaller[0]
        noise = other.total_noise / best.total_noise - 1.0
        return (
            f" If {best.steps:,} steps are too few for the model, batches of {other.batch_size:,} give "
            f"{other.steps:,} for {max(0.0, noise):.1%} more noise."
        )
