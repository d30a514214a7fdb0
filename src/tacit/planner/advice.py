"""The planner: it compares batch sizes under a privacy budget."""

# A step releases the mean of B clipped gradients with noise of standard deviation sigma C / B.  Batch size
# and budget affect training only through the noise per example r = sigma / B (McKenna et al., 2501.18914),
# and a run through the total noise r / sqrt(T) on the mean of all T steps, of which alone epsilon is a
# function, up to a constant, for sigma > 2 (Sander et al., 2210.03403).
#
# Large batches reduce the total noise to that of the full batch, here called the floor.  The elbow is the
# smallest batch size within 5 % of it; there sigma is between 2 and 5, and a larger batch gains nothing more.
#
# Symbols: N records, B batch size, q = B / N sampling rate, T steps, sigma noise multiplier, C clipping norm.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NoReturn

from tacit.accounting import PrivacyCurve, account, calibrate
from tacit.accounting.calibrate import LooseBudget
from tacit.accounting.pld import chance_of_cut, left_for_poisson, smallest_largest_batch
from tacit.accounting.price import last_whole
from tacit.errors import InvalidInput, check_integer, check_real, check_small_delta, warn_if_weak
from tacit.events import Adjacency, Compose, Event, Gaussian, event_to_json
from tacit.rounding import NOISE_DIGITS, pair, shown_epsilon
from tacit.sampling import FullBatch, PoissonSampling

_LARGEST_EPSILON = 100.0  # a larger one promises nothing, and calibration would return the least noise


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A request to the planner: the records, the privacy budget, and the compute.

    Attributes:
        records: N, the public number of records; under add-remove, an estimate.
        unit: what one record is, as a word: "image", "patient".
        epsilon: the largest epsilon of the whole run, at most 100.
        delta: the delta of the guarantee, below 1/N.
        adjacency: how neighbouring datasets differ.
        advantage: instead of epsilon, the largest TPR - FPR of any membership test, a guess whether a record
            took part.
        true_positive_rate, false_positive_rate: instead of epsilon, the largest TPR that any membership test
            may have at this FPR.
        epochs: the expected number of passes over the records. Give this, ``compute`` or ``steps``.
        compute: the total number of per-record gradients (steps times batch size).
        steps: the number of steps.
        largest_physical_batch: the number of records that fit into memory at once; larger batches are
            accumulated.
        largest_batch: the size to which larger Poisson samples are cut; None for uncut samples. The planner
            then compares only batch sizes for which cutting takes at most a tenth of delta.
        preparation: the events of earlier releases about the same records, such as DP-PCA. The budget covers
            them too.
        allow_large_delta: accept a delta of 1/N or more.

    Raises:
        InvalidInput: if a value is out of range, if not exactly one of epochs, compute and steps is given, or
            if a largest batch is given without epsilon.
        PrivacyRefusal: if delta is 1/N or more.

    >>> question = PlanRequest(
    ...     records=50_000, unit="image", epsilon=8, delta=1e-5, adjacency="add-remove", epochs=30)
    >>> question.steps_of(1024)
    1465
    """

    records: int
    unit: str
    epsilon: float | None = None
    delta: float
    adjacency: Adjacency | str
    advantage: float | None = None
    true_positive_rate: float | None = None
    false_positive_rate: float | None = None
    epochs: float | None = None
    compute: float | None = None
    steps: int | None = None
    largest_physical_batch: int | None = None
    largest_batch: int | None = None
    preparation: tuple[Event, ...] = ()
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        check_integer("records", self.records, low=1)
        if not str(self.unit).strip():
            raise InvalidInput(
                "must name one record, such as 'image' or 'patient'; it is empty", argument="unit"
            )
        self._check_budget()
        check_real("delta", self.delta, low=0.0, high=1.0, open_low=True, open_high=True)
        object.__setattr__(self, "adjacency", Adjacency.parse(self.adjacency))
        object.__setattr__(self, "preparation", tuple(self.preparation))
        self._check_amount()
        if self.largest_physical_batch is not None:
            check_integer("largest_physical_batch", self.largest_physical_batch, low=1)
        if self.largest_batch is not None:
            check_integer("largest_batch", self.largest_batch, low=1, high=self.records)
        if not self.allow_large_delta:
            check_small_delta(self.delta, self.records, self.unit)

    def _check_budget(self) -> None:
        budgets = [
            name for name in ("epsilon", "advantage", "true_positive_rate") if getattr(self, name) is not None
        ]
        if len(budgets) != 1 or (self.true_positive_rate is None) != (self.false_positive_rate is None):
            raise InvalidInput(
                "give exactly one budget: epsilon, or advantage, or true_positive_rate with "
                f"false_positive_rate; got {' and '.join(budgets) or 'none'}."
            )
        if self.epsilon is not None:
            epsilon = check_real("epsilon", self.epsilon, low=0.0, high=_LARGEST_EPSILON, open_low=True)
            object.__setattr__(self, "epsilon", epsilon)
        elif self.largest_batch is not None:
            raise InvalidInput(
                "needs a budget in epsilon",
                argument="largest_batch",
                why="Truncation uses a part of delta, and only a budget in epsilon has a delta.",
                fix="Remove it, or give `epsilon`.",
            )

    def _check_amount(self) -> None:
        amounts = [name for name in ("epochs", "compute", "steps") if getattr(self, name) is not None]
        if len(amounts) != 1:
            raise InvalidInput(
                "give exactly one of epochs (passes over the records), compute (the number of per-record "
                f"gradients) and steps; got {' and '.join(amounts) or 'none'}."
            )
        if self.epochs is not None:
            object.__setattr__(self, "epochs", check_real("epochs", self.epochs, low=0.0, open_low=True))
        if self.compute is not None:
            object.__setattr__(self, "compute", check_real("compute", self.compute, low=1.0))
        if self.steps is not None:
            check_integer("steps", self.steps, low=1)
        if self.epochs is not None and self.epochs * self.records < 1.0:
            raise InvalidInput(
                f"epochs = {self.epochs:g} is less than one gradient on {self.records} records. Give at "
                f"least {1 / self.records:.2g} epochs."
            )

    def budget(self, delta: float | None = None) -> dict[str, float | None]:
        """Return the budget as keyword arguments of :func:`tacit.accounting.calibrate`.

        If you give ``delta``, it replaces that of the request.
        """
        return {
            "epsilon": self.epsilon,
            "delta": None if self.epsilon is None else delta or self.delta,
            "advantage": self.advantage,
            "true_positive_rate": self.true_positive_rate,
            "false_positive_rate": self.false_positive_rate,
        }

    @property
    def budget_in_words(self) -> str:
        """The privacy budget in a few words, for a title."""
        if self.advantage is not None:
            return f"advantage of any attack ≤ {self.advantage:g}"
        if self.true_positive_rate is not None:
            most, at = self.true_positive_rate, self.false_positive_rate
            return f"TPR of any attack ≤ {most:g} at FPR {at:g}"
        return pair({"epsilon": self.epsilon, "delta": self.delta})

    @property
    def gradients(self) -> float:
        """The limit on the run's number of per-record gradients; infinite if only ``steps`` are limited."""
        if self.steps is not None:
            return math.inf
        return self.compute if self.compute is not None else (self.epochs or 0.0) * self.records

    @property
    def _largest_step(self) -> int:
        """The largest batch size for which the compute allows at least one step."""
        return min(self.records, math.floor(min(self.records, self.gradients) * (1.0 + 1e-12)))

    def steps_of(self, batch_size: int) -> int:
        """Return T, the number of steps with batches of size ``batch_size``.

        If the request has epochs, T is rounded up, as in :class:`tacit.plan.Plan`.  If it has compute, which
        is a limit, T is rounded down.
        """
        if self.steps is not None:
            return self.steps
        steps = self.gradients / batch_size
        return math.floor(steps + 1e-9) if self.epochs is None else max(1, math.ceil(steps - 1e-9))

    def _delta_of(self, batch_size: int) -> float | None:
        """Return the part of delta that is left for Poisson samples if ``largest_batch`` cuts them.

        The result is None if cutting takes more than a tenth of delta.
        """
        if self.largest_batch is None or self.largest_batch >= self.records:
            return self.delta
        if batch_size > self.largest_batch:
            return None
        rate, steps = batch_size / self.records, self.steps_of(batch_size)
        return left_for_poisson(rate, self.records, self.largest_batch, steps, self.delta)

    @cached_property
    def largest_size(self) -> int:
        """The largest batch size that can be compared; 0 if samples of every size would be cut too often."""
        return last_whole(lambda size: self._delta_of(size) is not None, 0, self._largest_step + 1)

    def event(self, batch_size: int, steps: int, noise: float) -> Event:
        """Return the event of a run with these settings, without cutting samples at ``largest_batch``.

        Accounting computes the privacy cost from this event.
        """
        sampling = FullBatch() if batch_size == self.records else PoissonSampling(batch_size / self.records)
        training = sampling.event(Gaussian(noise), steps, Adjacency.parse(self.adjacency))
        return Compose((*self.preparation, training)) if self.preparation else training

    def curve(self, batch_size: int, steps: int, noise: float) -> PrivacyCurve:
        """Return the privacy curve of the run that :meth:`event` describes."""
        return account(self.event(batch_size, steps, noise), adjacency=self.adjacency, method="best")


NEAR_FLOOR = 0.05
"""A larger batch gains nothing if the total noise is already at most this share above the floor."""


@dataclass(frozen=True, kw_only=True)
class PlanOption:
    """One batch size, with the noise that the budget requires and the compute that it takes.

    Attributes:
        rank: 1 for the best option; :attr:`PlanAdvice.options` explains the order.
        batch_size: B, the expected number of records per step.
        sampling_rate: the probability with which a step draws a record; 1 for the full batch.
        steps: T, the number of steps.
        compute: T B, the total number of per-record gradients.
        epochs: the expected number of passes over the records.
        passes: the number of physical batches (parts that fit into memory) per expected batch; None without
            ``largest_physical_batch``.
        cut: the probability that a step's sample exceeds ``largest_batch``; None without ``largest_batch``.
        noise_multiplier: sigma, the smallest noise multiplier that meets the guarantee.
        noise_per_example: sigma / B, the noise on the mean gradient of one step, as a multiple of the
            clipping norm.
        total_noise: sigma / (B sqrt(T)), the same for the mean gradient of all steps.
        above_floor: how far the total noise is above that of full batches; 0.05 is 5 %.
        saved_by_twice_records: the share of the total noise that twice as many records save, with the same B
            and T.
        saved_by_twice_epsilon: the share that twice the epsilon saves.
        saved_by_twice_compute: the share that twice the compute saves: batches twice as large or, if the
            records do not suffice, twice as many steps.

    >>> from tacit.planner import PlanRequest, advise
    >>> question = PlanRequest(
    ...     records=10_000, unit="row", epsilon=2, delta=1e-6, adjacency="add-remove", epochs=10)
    >>> best = advise(question, batch_sizes=[500, 2000]).recommended
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
    """The answer to a :class:`PlanRequest`: batch sizes, ranked by total noise.

    The total noise is the noise on the mean gradient of all steps.

    Attributes:
        question: the request.
        options: the batch sizes, the one with the least total noise first. Sizes within 5 % of ``floor``
            count as equal; the smallest of them comes first.
        floor: the total noise with full batches, which does not depend on the number of steps.
        elbow: the smallest batch size with a total noise within 5 % of ``floor``, to two digits; None if the
            compute does not allow it.

    **Guarantee**

    * Every option costs at most (epsilon, delta) under the adjacency: the preparation, then ``steps`` steps
      at ``sampling_rate`` with ``noise_multiplier``.
    * With a ``largest_batch``, the same holds for samples that are cut to this size.

    >>> from tacit.planner import PlanRequest, advise
    >>> question = PlanRequest(
    ...     records=10_000, unit="row", epsilon=2, delta=1e-6, adjacency="add-remove", epochs=10)
    >>> advice = advise(question, batch_sizes=[500, 2000])
    >>> advice.recommended is advice.options[0], advice.options[0].total_noise >= advice.floor
    (True, True)
    """

    question: PlanRequest
    options: tuple[PlanOption, ...]
    floor: float
    elbow: int | None

    @cached_property
    def recommended(self) -> PlanOption:
        """The best option, of rank 1."""
        return self.options[0]

    @cached_property
    def epsilons(self) -> tuple[float, float]:
        """The epsilons of the recommended option at delta: first with cut samples, then with uncut ones.

        Samples are cut at ``largest_batch``.
        """
        best, question = self.recommended, self.question
        curve = question.curve(best.batch_size, best.steps, best.noise_multiplier)
        return curve.epsilon(question._delta_of(best.batch_size) or 0.0), curve.epsilon(question.delta)

    def as_data(self) -> dict[str, Any]:
        """Return the request and the advice as plain data, for JSON."""
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
        return (
            f"Take batches of {best.batch_size:,} ({who}), {best.steps:,} steps, noise multiplier "
            f"{best.noise_multiplier:.4g}: the noise of a step's mean gradient is then "
            f"{best.noise_per_example:.2g} times the clipping "
            f"norm.{passes}{self._about_epsilon()}{self._about_cuts()} {self._about_the_elbow()}"
        )

    def _about_epsilon(self) -> str:
        if self.question.epsilon is not None:
            return ""
        return f" That costs epsilon {shown_epsilon(self.epsilons[1])} at delta = {self.question.delta:g}."

    def _about_cuts(self) -> str:
        best, largest = self.recommended, self.question.largest_batch
        if best.cut is None or largest is None:
            return ""
        cut, whole = map(shown_epsilon, self.epsilons)
        return (
            f" Samples of more than {largest:,} are truncated, with probability {best.cut:.1e} per step, and "
            f"epsilon is {cut} instead of {whole}."
        )

    def _about_the_elbow(self) -> str:
        above = max(0.0, self.recommended.above_floor)
        start = f"Over the run, the noise is {above:.1%} above the floor, which is that of the full batch"
        if self.elbow is None:
            return f"{start}: the compute does not reach the elbow, and larger batches would help."
        if above > NEAR_FLOOR:
            larger = f"batches of about {self.elbow:,}{self._with_room()}"
            return f"{start}; {larger} would come within {NEAR_FLOOR:.0%} of it."
        return f"{start}: from the elbow on, at about {self.elbow:,}, a larger batch gains hardly anything."

    def _with_room(self) -> str:
        """State the largest batch that the elbow needs, if the one in the request is too small for it."""
        question, elbow = self.question, self.elbow
        if elbow is None or elbow <= question.largest_size:
            return ""
        room = smallest_largest_batch(
            elbow / question.records, question.records, question.steps_of(elbow), question.delta
        )
        return f", with a largest batch of {room:,},"


_ELBOW_NOISE = 2.3  # solves sigma sqrt(exp(1/sigma^2) - 1) = 1.05, the elbow by the central limit theorem
_BELOW, _ABOVE = 16, 8  # the table reaches from elbow / 16 to 8 elbow
_BELOW_LIMIT = 3  # replaces _BELOW if the largest batch is below the elbow: smaller ones only add noise
_MANY = 10_000  # steps of full batches for the floor, which does not depend on this number
_PRECISION = 64  # the elbow is exact to 1/64

Progress = Callable[[str, int, int], None]


def advise(
    question: PlanRequest,
    *,
    batch_sizes: Sequence[int] = (),
    taken: int | None = None,
    progress: Progress | None = None,
) -> PlanAdvice:
    """Rank batch sizes by the noise that the budget requires.

    Args:
        question: the records, the privacy budget and the length of training.
        batch_sizes: the batch sizes to compare. Default: the full batch, and powers of two around the elbow
            (the smallest size with little more noise than full batches).
        taken: a batch size that you have already chosen. It is ranked first.
        progress: a function called with (title, done, total), for a progress bar.

    Raises:
        InvalidInput: if a batch size is below 1, or if the compute does not allow a single step with it.
        BudgetExceeded: if the preparation alone costs more than the budget.

    >>> question = PlanRequest(
    ...     records=1_000_000, unit="record", epsilon=1, delta=1e-8, adjacency="add-remove", steps=1000)
    >>> advice = advise(question, batch_sizes=[4096, 16384, 65536])
    >>> [f"{option.batch_size}: {option.noise_per_example:.1e}" for option in advice.options]
    ['65536: 1.6e-04', '16384: 1.7e-04', '4096: 2.6e-04']
    """
    report = progress or (lambda _title, _done, _total: None)
    sizes = _check_batch_sizes(question, batch_sizes)
    warn_if_weak(question.epsilon)
    whole = replace(question, largest_batch=None)
    floor = _noise(whole, question.records, _MANY) / (question.records * math.sqrt(_MANY))
    elbow = _elbow(whole, floor, report)
    compared = sizes or sorted({*_around(question, elbow), *([] if taken is None else [taken])})
    options: list[PlanOption] = []
    for done, batch_size in enumerate(compared):
        report("comparing batch sizes", done, len(compared))
        options.append(_option(question, batch_size, floor))
    report("comparing batch sizes", len(compared), len(compared))
    options.sort(key=lambda one: (one.batch_size != taken, max(one.above_floor, NEAR_FLOOR), one.batch_size))
    ranked = tuple(replace(option, rank=rank) for rank, option in enumerate(options, start=1))
    return PlanAdvice(question, ranked, floor, elbow)


def _check_batch_sizes(question: PlanRequest, batch_sizes: Sequence[int]) -> list[int]:
    largest = question._largest_step
    checked = sorted({check_integer("batch size", size, low=1) for size in batch_sizes})
    if checked and checked[-1] > largest:
        raise InvalidInput(
            f"batch size {checked[-1]} is too large: with {question.records} records and this compute, the "
            f"limit is {largest}. Leave the batch size out, or give more compute."
        )
    if question.largest_size == 0 or any(question._delta_of(size) is None for size in checked):
        _refuse_cuts(question, checked[-1] if checked else 1)
    return checked


def _refuse_cuts(question: PlanRequest, size: int) -> NoReturn:
    steps, rate = question.steps_of(size), size / question.records
    room = smallest_largest_batch(rate, question.records, steps, question.delta)
    smaller = f", or batches of at most {question.largest_size:,}" if question.largest_size else ""
    raise InvalidInput(
        f"largest_batch {question.largest_batch} truncates batches of {size} too often: over {steps:,} "
        f"steps, this would take more than a tenth of delta = {question.delta:g}. Take a largest_batch of at "
        f"least {room}{smaller}."
    )


def noise_multiplier(question: PlanRequest, batch_size: int) -> float:
    """Return sigma, the smallest noise multiplier that meets the request with batches of ``batch_size``.

    >>> round(noise_multiplier(PlanRequest(
    ...     records=60_000, unit="image", epsilon=3, delta=1e-5, adjacency="add-remove", epochs=40), 8192), 2)
    3.4
    """
    (size,) = _check_batch_sizes(question, [batch_size])
    return _noise(question, size, question.steps_of(size))


@lru_cache(maxsize=1024)
def _noise(question: PlanRequest, batch_size: int, steps: int, epsilon: float | None = None) -> float:
    """Return sigma at the budget of ``question``, or at another ``epsilon``."""
    delta = question.delta if question.largest_batch is None else question._delta_of(batch_size)
    if delta is None:
        _refuse_cuts(question, batch_size)
    budget = question.budget(delta) if epsilon is None else {"epsilon": epsilon, "delta": delta}
    return calibrate(
        lambda noise: question.event(batch_size, steps, noise),
        **budget, adjacency=question.adjacency, method="best", digits=NOISE_DIGITS,
    )  # fmt: skip


def _total_noise(question: PlanRequest, batch_size: int) -> float:
    steps = question.steps_of(batch_size)
    return noise_multiplier(question, batch_size) / (batch_size * math.sqrt(steps))


def _elbow(question: PlanRequest, floor: float, progress: Progress) -> int | None:
    """Find the smallest batch size within 5 % of the floor, to two digits.  Total noise decreases with B."""
    calls = 0

    def is_near_floor(batch_size: int) -> bool:
        nonlocal calls
        calls += 1
        progress("looking for the elbow", min(calls, 11), 12)
        return _total_noise(question, batch_size) <= (1.0 + NEAR_FLOOR) * floor

    largest = question._largest_step
    high = min(largest, max(1, round(_elbow_guess(question, floor))))
    while not is_near_floor(high):
        if high == largest:
            return None
        high = min(largest, 2 * high)
    low = high // 2
    while low > 0 and is_near_floor(low):
        low, high = low // 2, low
    while high - low > max(1, high // _PRECISION):
        middle = (low + high) // 2
        low, high = (low, middle) if is_near_floor(middle) else (middle, high)
    progress("looking for the elbow", 12, 12)
    return min(largest, _two_digits_up(high))


def _two_digits_up(number: int) -> int:
    scale: int = 10 ** max(0, len(str(number)) - 2)
    return -(-number // scale) * scale


def _elbow_guess(question: PlanRequest, floor: float) -> float:
    """Return the B at which sigma is 2.3 and sigma / (B sqrt(T)) is 5 % above the floor."""
    ratio = _ELBOW_NOISE / ((1.0 + NEAR_FLOOR) * floor)  # B sqrt(T)
    return ratio**2 / question.gradients if question.steps is None else ratio / math.sqrt(question.steps)


def _around(question: PlanRequest, elbow: int | None) -> list[int]:
    largest = question.largest_size
    center = largest if elbow is None else min(elbow, largest)
    powers = [1 << k for k in range(largest.bit_length())]
    limited = question.largest_batch is not None and center < (elbow or math.inf)
    below = _BELOW_LIMIT if limited else _BELOW
    near = {size for size in powers if center <= size * below and size <= _ABOVE * center}
    full = {largest} if largest == question.records else set()
    return sorted(near | full | {center})


def _option(question: PlanRequest, batch_size: int, floor: float) -> PlanOption:
    records, steps, largest = question.records, question.steps_of(batch_size), question.largest_batch
    sigma = _noise(question, batch_size, steps)
    physical, whole = question.largest_physical_batch, replace(question, largest_batch=None)
    whole_sigma = sigma if largest is None else _noise(whole, batch_size, steps)

    def saved(other: PlanRequest, size: int, count: int, epsilon: float | None = None) -> float:
        """Return the share of the total noise that another N, B, T or epsilon removes, untruncated."""
        try:
            noise = _noise(other, size, count, epsilon)
        except LooseBudget as least:  # this noise is good enough for a comparison, and is never recommended
            noise = least.noise
        return 1.0 - (noise / whole_sigma) * (batch_size / size) * math.sqrt(steps / count)

    epsilon = question.epsilon  # for a limit on attacks: the epsilon of the calibrated noise, at delta
    if epsilon is None:
        epsilon = whole.curve(batch_size, steps, whole_sigma).epsilon(question.delta)
    twice_records = replace(whole, records=2 * records, allow_large_delta=True)
    twice = (2 * batch_size, steps) if 2 * batch_size <= records else (batch_size, 2 * steps)
    total = sigma / (batch_size * math.sqrt(steps))
    return PlanOption(
        rank=0,
        batch_size=batch_size,
        sampling_rate=batch_size / records,
        steps=steps,
        compute=steps * batch_size,
        epochs=steps * batch_size / records,
        passes=None if physical is None else -(-batch_size // physical),
        cut=None if largest is None else chance_of_cut(batch_size / records, records, largest),
        noise_multiplier=sigma,
        noise_per_example=sigma / batch_size,
        total_noise=total,
        above_floor=total / floor - 1.0,
        saved_by_twice_records=saved(twice_records, batch_size, steps),
        saved_by_twice_epsilon=saved(whole, batch_size, steps, 2.0 * epsilon),
        saved_by_twice_compute=saved(whole, *twice),
    )
