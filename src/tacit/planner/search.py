"""Which batch size, steps and noise does a budget allow? One long file, with question and answer in words.

A step releases the mean of B clipped gradients with noise of standard deviation sigma C / B.  The noise per
example r = sigma / B is all that batch and budget mean to training (the noise-batch ratio of McKenna et al.,
"Scaling laws for differentially private language models", 2501.18914).  Over a run, what counts is the noise
of the mean of all T steps; its inverse is, up to a constant, the quantity that Sander et al. ("TAN without a
burn", 2210.03403) found epsilon to depend on alone when sigma > 2:

    noise per example   r = sigma / B = sigma / (q N)
    total noise         r / sqrt(T)

Large batches therefore bring the total noise down to that of the full batch, here called the floor, and no
further.  The elbow is the smallest batch size whose total noise is within 5 % of the floor; sigma is then
between 2 and 5.  A larger batch gains nothing more.

Symbols: N records, B batch size, q = B / N sampling rate, T steps, sigma noise multiplier, C clipping norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NoReturn

from tacit.accounting import LooseBudget, PrivacyCurve, account, calibrate
from tacit.accounting.pld.truncated import chance_of_cut, left_for_poisson, smallest_largest_batch
from tacit.errors import InvalidInput, PrivacyRefusal, check_integer, check_real
from tacit.events import Adjacency, Compose, Event, Gaussian, event_to_json
from tacit.rounding import NOISE_DIGITS
from tacit.sampling import FullBatch, PoissonSampling, Sampling
from tacit.strength import warn_if_weak

NEAR_FLOOR = 0.05
"""How far above the floor the total noise may be for a larger batch to count as no gain."""

_ELBOW_NOISE = 2.3  # where sigma sqrt(exp(1/sigma^2) - 1) = 1.05, the central limit's guess at the elbow
_BELOW, _ABOVE = 16, 8  # the table reaches from elbow / 16 to 8 elbow
_BELOW_LIMIT = 3  # where the largest batch is below the elbow: smaller batches only have more noise
_MANY = 10_000  # full batches by which the floor is computed; it does not depend on their number
_LARGEST_EPSILON = 100.0  # beyond, nothing is promised, and the search for the noise ends at its least
_PRECISION = 64  # the elbow is found to one part in this

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Question:
    """A budget: what is protected, how well, and how much may be computed.

    Attributes:
        records: N, the public number of records (under add-remove a public figure for it).
        unit: what one record is: "image", "patient".
        epsilon, delta, adjacency: the promise that the whole run has to keep; epsilon is at most 100.
        advantage: in place of epsilon, the most by which true positives of any test for a record may exceed
            its false positives.
        true_positive_rate, false_positive_rate: in place of epsilon, the most true positives of any test with
            so many false ones.
        epochs, compute, steps: exactly one of them: expected passes over the records; per-record gradients in
            all, T B; or the number of steps, whatever their batch.
        largest_physical_batch: how many records fit into memory at once; larger batches are accumulated.
        largest_batch: L, at which larger Poisson samples are cut; None if no sample is.  Only batch sizes are
            compared whose samples are hardly ever larger: a tenth of delta, at most, goes to cut ones.
        preparation: other releases about the same records, such as DP-PCA, charged to the same budget.
        allow_large_delta: accept a delta of 1/N or more.

    Raises:
        InvalidInput: a value out of range; not exactly one of epochs, compute and steps; a largest batch for
            another budget than epsilon.
        PrivacyRefusal: delta is 1/N or more.

    >>> question = Question(
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
            raise InvalidInput("unit must say what one record is, such as 'image' or 'patient'; it is empty.")
        self._check_budget()
        check_real("delta", self.delta, low=0.0, high=1.0, open_low=True, open_high=True)
        object.__setattr__(self, "adjacency", Adjacency.parse(self.adjacency))
        object.__setattr__(self, "preparation", tuple(self.preparation))
        self._check_amount()
        if self.largest_physical_batch is not None:
            check_integer("largest_physical_batch", self.largest_physical_batch, low=1)
        if self.largest_batch is not None:
            check_integer("largest_batch", self.largest_batch, low=1, high=self.records)
        if self.delta >= 1 / self.records and not self.allow_large_delta:
            raise PrivacyRefusal(
                f"delta = {self.delta:g} is not below 1/N = {1 / self.records:.3g} for N = {self.records} "
                f"records: a mechanism that publishes one {self.unit} in full would satisfy it. Choose a "
                f"smaller delta, such as {self.records**-1.1:.1g}, or say allow_large_delta=True, in a shell "
                "--allow-large-delta."
            )

    def _check_budget(self) -> None:
        given = [
            name for name in ("epsilon", "advantage", "true_positive_rate") if getattr(self, name) is not None
        ]
        if len(given) != 1 or (self.true_positive_rate is None) != (self.false_positive_rate is None):
            raise InvalidInput(
                "give exactly one budget: epsilon, or advantage, or true_positive_rate with "
                f"false_positive_rate; got {' and '.join(given) or 'none'}."
            )
        if self.epsilon is not None:
            epsilon = check_real("epsilon", self.epsilon, low=0.0, high=_LARGEST_EPSILON, open_low=True)
            object.__setattr__(self, "epsilon", epsilon)
        elif self.largest_batch is not None:
            raise InvalidInput(
                "a largest batch is compared by the part of delta that cut samples take, so the budget must "
                "be an epsilon. Leave out the largest batch, or give epsilon instead of a risk."
            )

    def _check_amount(self) -> None:
        given = [name for name in ("epochs", "compute", "steps") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidInput(
                "give exactly one of epochs (passes over the records), compute (per-record gradients in "
                f"all) and steps; got {' and '.join(given) or 'none'}."
            )
        if self.epochs is not None:
            object.__setattr__(self, "epochs", check_real("epochs", self.epochs, low=0.0, open_low=True))
        if self.compute is not None:
            object.__setattr__(self, "compute", check_real("compute", self.compute, low=1.0))
        if self.steps is not None:
            check_integer("steps", self.steps, low=1)
        if self.epochs is not None and self.epochs * self.records < 1.0:
            raise InvalidInput(
                f"{self.epochs:g} epochs of {self.records} records are less than one gradient of one record. "
                f"Give at least {1 / self.records:.2g} epochs."
            )

    def budget(self, delta: float | None = None) -> dict[str, float | None]:
        """What :func:`tacit.accounting.calibrate` is asked for, at another delta if one is given."""
        return {
            "epsilon": self.epsilon,
            "delta": None if self.epsilon is None else delta or self.delta,
            "advantage": self.advantage,
            "true_positive_rate": self.true_positive_rate,
            "false_positive_rate": self.false_positive_rate,
        }

    @property
    def budget_in_words(self) -> str:
        """The budget, for a title."""
        if self.advantage is not None:
            return f"advantage of any attack ≤ {self.advantage:g}"
        if self.true_positive_rate is not None:
            most, at = self.true_positive_rate, self.false_positive_rate
            return f"true positives of any attack ≤ {most:g} at {at:g} false ones"
        return f"ε = {self.epsilon:g} at δ = {self.delta:g}"

    @property
    def gradients(self) -> float:
        """T B, per-record gradients in all; infinite where the number of steps is given instead."""
        if self.steps is not None:
            return math.inf
        return self.compute if self.compute is not None else (self.epochs or 0.0) * self.records

    @property
    def largest_step(self) -> int:
        """The largest batch size that allows one step."""
        return min(self.records, math.floor(min(self.records, self.gradients) * (1.0 + 1e-12)))

    def steps_of(self, batch_size: int) -> int:
        """T: the steps of that batch size within the budget.

        Epochs are rounded up, as in :class:`tacit.plan.Plan`; compute is a limit and rounded down.
        """
        if self.steps is not None:
            return self.steps
        steps = self.gradients / batch_size
        return math.floor(steps + 1e-9) if self.epochs is None else max(1, math.ceil(steps - 1e-9))

    def delta_of(self, batch_size: int) -> float | None:
        """The delta at which whole samples of that size must be as private as cut ones at ``delta``.

        None where more than a tenth of delta would go to cut batches.
        """
        if self.largest_batch is None or self.largest_batch >= self.records:
            return self.delta
        if batch_size > self.largest_batch:
            return None
        rate, steps = batch_size / self.records, self.steps_of(batch_size)
        return left_for_poisson(rate, self.records, self.largest_batch, steps, self.delta)

    @cached_property
    def largest_size(self) -> int:
        """The largest batch size that can be compared; 0 if every size is cut too often."""
        low, high = 0, self.largest_step + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.delta_of(middle) is None else (middle, high)
        return low


@dataclass(frozen=True, kw_only=True)
class Option:
    """One batch size, and its noise and cost under the budget.

    Attributes:
        rank: 1 is best; see :attr:`Advice.options`.
        batch_size: B, expected records per step.
        sampling_rate: q, in (0, 1]; 1 is the full batch, without sampling.
        steps: T.
        compute: T B, per-record gradients in all.
        epochs: T q, expected passes over the records.
        passes: physical batches in an expected batch; None where no largest one was given.
        cut: the probability that a step's sample is larger than the largest batch; None where none was given.
        noise_multiplier: sigma, calibrated: the least that keeps the promise.
        noise_per_example: sigma / B, the noise of one step's mean gradient in units of C.
        total_noise: sigma / (B sqrt(T)), the noise of the mean over all steps, in units of C.
        above_floor: total noise over the floor, less 1.
        saved_by_twice_records, saved_by_twice_epsilon, saved_by_twice_compute: the part of the total noise
            that twice N (same B and T), twice epsilon, or batches twice as large (twice as many steps if
            B = N) would remove.

    >>> question = Question(
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
class Advice:
    """The answer to a question.

    Attributes:
        question: the question.
        options: best first.  Less total noise is better; all within 5 % of the floor count as equal, and then
            the smaller batch is better, for it costs less or leaves more steps.
        floor: the total noise of full batches, whatever their number.
        elbow: the smallest batch size, to two digits, within 5 % of the floor; None if the compute does not
            reach it.

    **Guarantee**

    * Sampling at ``sampling_rate`` with noise ``noise_multiplier``, ``steps`` times, after the preparation,
      costs at most (epsilon, delta) under the adjacency: every option's noise is calibrated for just that.
    * With a ``largest_batch``, the same holds for samples that are cut there.

    >>> question = Question(
    ...     records=10_000, unit="row", epsilon=2, delta=1e-6, adjacency="add-remove", epochs=10)
    >>> advice = advise(question)
    >>> advice.recommended is advice.options[0], advice.options[0].total_noise >= advice.floor
    (True, True)
    """

    question: Question
    options: tuple[Option, ...]
    floor: float
    elbow: int | None

    @cached_property
    def recommended(self) -> Option:
        """The option of rank 1."""
        return self.options[0]

    @cached_property
    def epsilons(self) -> tuple[float, float]:
        """What the recommended option costs: with samples that are cut at the largest batch, and with whole
        ones of the same noise."""
        best, question = self.recommended, self.question
        event = _event(question, best.batch_size, best.steps, best.noise_multiplier)
        curve = _curve(question, event)
        return curve.epsilon(question.delta_of(best.batch_size) or 0.0), curve.epsilon(question.delta)

    def as_data(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
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
        """The recommendation for people, in a few sentences."""
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
            f"{max(0.0, saved):.0%}"
            for saved in (
                best.saved_by_twice_records,
                best.saved_by_twice_epsilon,
                best.saved_by_twice_compute,
            )
        )
        return (
            f"Take batches of {best.batch_size:,} ({who}), {best.steps:,} steps, noise multiplier "
            f"{best.noise_multiplier:.4g}: the mean gradient of a step then has noise "
            f"{best.noise_per_example:.2g} times the clipping norm.{passes}{self._about_epsilon()}"
            f"{self._about_cuts()} "
            f"{self._about_the_elbow()} Twice "
            f"the records would take away {records} of the noise, twice epsilon {epsilon}, twice the compute "
            f"{compute}."
        )

    def _about_epsilon(self) -> str:
        """What a budget that is a risk comes to."""
        if self.question.epsilon is not None:
            return ""
        return f" That costs epsilon {self.epsilons[1]:.4g} at delta = {self.question.delta:g}."

    def _about_cuts(self) -> str:
        """The price of the truncation."""
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
        start = f"Over the run that is {above:.1%} above the floor, the noise of the full batch"
        if self.elbow is None:
            return f"{start}: the compute does not reach the elbow, and larger batches would help."
        if above > NEAR_FLOOR:
            larger = f"batches of about {self.elbow:,}{self._with_room()}"
            return f"{start}; {larger} would come within {NEAR_FLOOR:.0%} of it."
        start = f"{start}: beyond the elbow, at about {self.elbow:,}, a larger batch gains nothing."
        return f"{start}{self._instead()}"

    def _with_room(self) -> str:
        """The largest batch that the elbow needs, where the one asked about is too small for it."""
        question, elbow = self.question, self.elbow
        if elbow is None or elbow <= question.largest_size:
            return ""
        room = smallest_largest_batch(
            elbow / question.records, question.records, question.steps_of(elbow), question.delta
        )
        return f", with a largest batch of {room:,},"

    def _instead(self) -> str:
        """With the compute fixed, a smaller batch means more steps and more noise; the model must decide."""
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


def advise(
    question: Question, *, batch_sizes: Sequence[int] = (), progress: Progress | None = None
) -> Advice:
    """Rank batch sizes by the noise that the budget makes necessary.

    Args:
        batch_sizes: the ones to compare; left out, powers of two around the elbow, and the full batch.
        progress: called with (title, done, total).

    Raises:
        InvalidInput: a batch size that is not in [1, the largest of which there may be one step].
        BudgetExceeded: the preparation alone costs more than the budget.

    >>> question = Question(
    ...     records=1_000_000, unit="record", epsilon=1, delta=1e-8, adjacency="add-remove", steps=1000)
    >>> advice = advise(question, batch_sizes=[4096, 16384, 65536])
    >>> [f"{option.batch_size}: {option.noise_per_example:.1e}" for option in advice.options]
    ['65536: 1.6e-04', '16384: 1.7e-04', '4096: 2.6e-04']
    """
    told = progress or (lambda _title, _done, _total: None)
    chosen = _check_batch_sizes(question, batch_sizes)
    warn_if_weak(question.epsilon)
    whole = replace(question, largest_batch=None)
    floor = _noise(whole, question.records, _MANY) / (question.records * math.sqrt(_MANY))
    elbow = _elbow(whole, floor, told)
    compared = chosen or _around(question, elbow)
    found: list[Option] = []
    for done, batch_size in enumerate(compared):
        told("pricing batch sizes", done, len(compared))
        found.append(_option(question, batch_size, floor))
    told("pricing batch sizes", len(compared), len(compared))
    found.sort(key=lambda option: (max(option.above_floor, NEAR_FLOOR), option.batch_size))
    ranked = tuple(replace(option, rank=rank) for rank, option in enumerate(found, start=1))
    return Advice(question, ranked, floor, elbow)


def _check_batch_sizes(question: Question, batch_sizes: Sequence[int]) -> list[int]:
    largest = question.largest_step
    checked = sorted({check_integer("batch size", size, low=1) for size in batch_sizes})
    if checked and checked[-1] > largest:
        raise InvalidInput(
            f"batch size {checked[-1]} is larger than {largest}, the largest that {question.records} records "
            "and the compute allow for one step. Leave it out, or give more compute."
        )
    if question.largest_size == 0 or any(question.delta_of(size) is None for size in checked):
        _refuse_cuts(question, checked[-1] if checked else 1)
    return checked


def _refuse_cuts(question: Question, size: int) -> NoReturn:
    """Say which largest batch that batch size needs."""
    steps, rate = question.steps_of(size), size / question.records
    room = smallest_largest_batch(rate, question.records, steps, question.delta)
    smaller = f", or batches of at most {question.largest_size:,}" if question.largest_size else ""
    raise InvalidInput(
        f"largest_batch {question.largest_batch} cuts batches of {size} too often: over {steps:,} steps that "
        f"would take more than a tenth of delta = {question.delta:g}. Take a largest_batch of at least "
        f"{room}{smaller}."
    )


def noise_multiplier(question: Question, batch_size: int) -> float:
    """sigma: the least noise with which batches of that size keep the promise.

    >>> round(noise_multiplier(Question(
    ...     records=60_000, unit="image", epsilon=3, delta=1e-5, adjacency="add-remove", epochs=40), 8192), 2)
    3.4
    """
    (size,) = _check_batch_sizes(question, [batch_size])
    return _noise(question, size, question.steps_of(size))


def _noise(question: Question, batch_size: int, steps: int, *, epsilon: float | None = None) -> float:
    """sigma, at the question's budget or at another ``epsilon``."""
    delta = question.delta if question.largest_batch is None else question.delta_of(batch_size)
    if delta is None:
        _refuse_cuts(question, batch_size)
    budget = question.budget(delta) if epsilon is None else {"epsilon": epsilon, "delta": delta}
    return _calibrated(
        question.records, batch_size, steps, tuple(budget.items()), Adjacency.parse(question.adjacency),
        question.preparation,
    )  # fmt: skip


def _epsilon(question: Question, batch_size: int, steps: int) -> float:
    """epsilon of the budget; of a risk, the one at delta that its noise comes to."""
    if question.epsilon is not None:
        return question.epsilon
    event = _event(question, batch_size, steps, _noise(question, batch_size, steps))
    return _curve(question, event).epsilon(question.delta)


def _curve(question: Question, event: Event) -> PrivacyCurve:
    return account(event, adjacency=question.adjacency, method="best")


def _event(question: Question, batch_size: int, steps: int, noise: float) -> Event:
    """The plan of that batch size, with samples that are not cut."""
    adjacency = Adjacency.parse(question.adjacency)
    training = _sampling(question.records, batch_size).event(Gaussian(noise), steps, adjacency)
    return Compose((*question.preparation, training))


def _sampling(records: int, batch_size: int) -> Sampling:
    return FullBatch() if batch_size == records else PoissonSampling(batch_size / records)


@lru_cache(maxsize=1024)
def _calibrated(
    records: int, batch_size: int, steps: int, budget: tuple[tuple[str, float | None], ...],
    adjacency: Adjacency, preparation: tuple[Event, ...],
) -> float:  # fmt: skip
    sampling = _sampling(records, batch_size)

    def family(noise_multiplier: float) -> Event:
        training = sampling.event(Gaussian(noise_multiplier), steps, adjacency)
        return Compose((*preparation, training)) if preparation else training

    return calibrate(family, **dict(budget), adjacency=adjacency, method="best", digits=NOISE_DIGITS)


def _total_noise(question: Question, batch_size: int) -> float:
    steps = question.steps_of(batch_size)
    return noise_multiplier(question, batch_size) / (batch_size * math.sqrt(steps))


def _elbow(question: Question, floor: float, progress: Progress) -> int | None:
    """The smallest batch size within 5 % of the floor, to two digits; total noise falls with B."""
    calls = 0

    def quiet(batch_size: int) -> bool:
        nonlocal calls
        calls += 1
        progress("looking for the elbow", min(calls, 11), 12)
        return _total_noise(question, batch_size) <= (1.0 + NEAR_FLOOR) * floor

    largest = question.largest_step
    high = min(largest, max(1, round(_elbow_guess(question, floor))))
    while not quiet(high):
        if high == largest:
            return None
        high = min(largest, 2 * high)
    low = high // 2
    while low > 0 and quiet(low):
        low, high = low // 2, low
    while high - low > max(1, high // _PRECISION):
        middle = (low + high) // 2
        low, high = (low, middle) if quiet(middle) else (middle, high)
    progress("looking for the elbow", 12, 12)
    return min(largest, _two_digits_up(high))


def _two_digits_up(number: int) -> int:
    """``number`` rounded up to two significant digits.

    >>> _two_digits_up(7094), _two_digits_up(99_001), _two_digits_up(7)
    (7100, 100000, 7)
    """
    scale: int = 10 ** max(0, len(str(number)) - 2)
    return -(-number // scale) * scale


def _elbow_guess(question: Question, floor: float) -> float:
    """B at which sigma is 2.3 and sigma / (B sqrt(T)) is 5 % above the floor."""
    ratio = _ELBOW_NOISE / ((1.0 + NEAR_FLOOR) * floor)  # B sqrt(T)
    return ratio**2 / question.gradients if question.steps is None else ratio / math.sqrt(question.steps)


def _around(question: Question, elbow: int | None) -> list[int]:
    """Powers of two around the elbow, and the full batch if it is affordable."""
    largest = question.largest_size
    center = largest if elbow is None else min(elbow, largest)
    powers = [1 << k for k in range(largest.bit_length())]
    limited = question.largest_batch is not None and center < (elbow or math.inf)
    below = _BELOW_LIMIT if limited else _BELOW
    near = {size for size in powers if center <= size * below and size <= _ABOVE * center}
    full = {largest} if largest == question.records else set()
    return sorted(near | full | {center})


def _option(question: Question, batch_size: int, floor: float) -> Option:
    records, steps = question.records, question.steps_of(batch_size)
    sigma = _noise(question, batch_size, steps)
    physical, whole = question.largest_physical_batch, replace(question, largest_batch=None)
    whole_sigma = sigma if question.largest_batch is None else _noise(whole, batch_size, steps)

    def saved(other: Question, size: int, count: int, epsilon: float | None = None) -> float:
        """The part of sigma / (B sqrt(T)) that another N, B, T or epsilon would remove, of samples that are
        not cut."""
        try:
            noise = _noise(other, size, count, epsilon=epsilon)
        except LooseBudget as least:  # used for comparison here, and not recommended
            noise = least.noise
        return 1.0 - (noise / whole_sigma) * (batch_size / size) * math.sqrt(steps / count)

    twice_records = replace(whole, records=2 * records, allow_large_delta=True)
    twice = (2 * batch_size, steps) if 2 * batch_size <= records else (batch_size, 2 * steps)
    total = sigma / (batch_size * math.sqrt(steps))
    return Option(
        rank=0,
        batch_size=batch_size,
        sampling_rate=batch_size / records,
        steps=steps,
        compute=steps * batch_size,
        epochs=steps * batch_size / records,
        passes=None if physical is None else -(-batch_size // physical),
        cut=_cut(question, batch_size),
        noise_multiplier=sigma,
        noise_per_example=sigma / batch_size,
        total_noise=total,
        above_floor=total / floor - 1.0,
        saved_by_twice_records=saved(twice_records, batch_size, steps),
        saved_by_twice_epsilon=saved(whole, batch_size, steps, 2.0 * _epsilon(whole, batch_size, steps)),
        saved_by_twice_compute=saved(whole, *twice),
    )


def _cut(question: Question, batch_size: int) -> float | None:
    largest, records = question.largest_batch, question.records
    return None if largest is None else chance_of_cut(batch_size / records, records, largest)
