"""The search for batch sizes worth comparing, and for the noise that each needs.

A step releases the mean of B clipped gradients with noise of standard deviation sigma C / B.  Batch size and
budget affect training only through the noise per example r = sigma / B (the noise-batch ratio of McKenna et
al., "Scaling laws for differentially private language models", 2501.18914).  Over a run, only the total
noise matters, the noise on the mean of all T steps:

    noise per example   r = sigma / B = sigma / (q N)
    total noise         r / sqrt(T)

Sander et al. ("TAN without a burn", 2210.03403) found that for sigma > 2, epsilon depends on the total noise
alone, up to a constant.

Large batches therefore reduce the total noise to that of the full batch, here called the floor, and no
further.  The elbow is the smallest batch size with a total noise within 5 % of the floor.  There sigma is
between 2 and 5.  A larger batch gains nothing more.

Symbols: N records, B batch size, q = B / N sampling rate, T steps, sigma noise multiplier, C clipping norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NoReturn

from tacit.accounting import calibrate
from tacit.accounting.calibrate import LooseBudget
from tacit.accounting.pld import chance_of_cut, smallest_largest_batch
from tacit.errors import InvalidInput, check_integer, warn_if_weak
from tacit.planner.answer import NEAR_FLOOR, PlanAdvice, PlanOption
from tacit.planner.request import PlanRequest
from tacit.rounding import NOISE_DIGITS

_ELBOW_NOISE = 2.3  # solves sigma sqrt(exp(1/sigma^2) - 1) = 1.05, the elbow by the central limit theorem
_BELOW, _ABOVE = 16, 8  # the table reaches from elbow / 16 to 8 elbow
_BELOW_LIMIT = 3  # replaces _BELOW if the largest batch is below the elbow: smaller ones only add noise
_MANY = 10_000  # steps of full batches for the floor, which does not depend on this number
_PRECISION = 64  # the elbow is exact to 1/64

Progress = Callable[[str, int, int], None]


def advise(
    question: PlanRequest, *, batch_sizes: Sequence[int] = (), progress: Progress | None = None
) -> PlanAdvice:
    """Rank batch sizes by the noise that the budget requires.

    Args:
        question: the budget.
        batch_sizes: the sizes to compare; by default powers of two around the elbow, and the full batch.
        progress: called with (title, done, total).

    Raises:
        InvalidInput: if a batch size is below 1, or the budget does not allow one step of it.
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
    compared = sizes or _around(question, elbow)
    options: list[PlanOption] = []
    for done, batch_size in enumerate(compared):
        report("pricing batch sizes", done, len(compared))
        options.append(_option(question, batch_size, floor))
    report("pricing batch sizes", len(compared), len(compared))
    options.sort(key=lambda option: (max(option.above_floor, NEAR_FLOOR), option.batch_size))
    ranked = tuple(replace(option, rank=rank) for rank, option in enumerate(options, start=1))
    return PlanAdvice(question, ranked, floor, elbow)


def _check_batch_sizes(question: PlanRequest, batch_sizes: Sequence[int]) -> list[int]:
    largest = question.largest_step
    checked = sorted({check_integer("batch size", size, low=1) for size in batch_sizes})
    if checked and checked[-1] > largest:
        raise InvalidInput(
            f"batch size {checked[-1]} is too large: at most {largest} fit {question.records} records "
            "and the compute. Leave it out, or give more compute."
        )
    if question.largest_size == 0 or any(question.delta_of(size) is None for size in checked):
        _refuse_cuts(question, checked[-1] if checked else 1)
    return checked


def _refuse_cuts(question: PlanRequest, size: int) -> NoReturn:
    """Raise an error that states the largest batch that this batch size needs."""
    steps, rate = question.steps_of(size), size / question.records
    room = smallest_largest_batch(rate, question.records, steps, question.delta)
    smaller = f", or batches of at most {question.largest_size:,}" if question.largest_size else ""
    raise InvalidInput(
        f"largest_batch {question.largest_batch} cuts batches of {size} too often: over {steps:,} steps, "
        f"cuts would take more than a tenth of delta = {question.delta:g}. Take a largest_batch of at least "
        f"{room}{smaller}."
    )


def noise_multiplier(question: PlanRequest, batch_size: int) -> float:
    """Return sigma, the least noise multiplier with which batches of that size keep the guarantee.

    >>> round(noise_multiplier(PlanRequest(
    ...     records=60_000, unit="image", epsilon=3, delta=1e-5, adjacency="add-remove", epochs=40), 8192), 2)
    3.4
    """
    (size,) = _check_batch_sizes(question, [batch_size])
    return _noise(question, size, question.steps_of(size))


@lru_cache(maxsize=1024)
def _noise(question: PlanRequest, batch_size: int, steps: int, epsilon: float | None = None) -> float:
    """Return sigma at the budget of ``question``, or at another ``epsilon``."""
    delta = question.delta if question.largest_batch is None else question.delta_of(batch_size)
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

    largest = question.largest_step
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
    """Round ``number`` up to two significant digits.

    >>> _two_digits_up(7094), _two_digits_up(99_001), _two_digits_up(7)
    (7100, 100000, 7)
    """
    scale: int = 10 ** max(0, len(str(number)) - 2)
    return -(-number // scale) * scale


def _elbow_guess(question: PlanRequest, floor: float) -> float:
    """Return the B at which sigma is 2.3 and sigma / (B sqrt(T)) is 5 % above the floor."""
    ratio = _ELBOW_NOISE / ((1.0 + NEAR_FLOOR) * floor)  # B sqrt(T)
    return ratio**2 / question.gradients if question.steps is None else ratio / math.sqrt(question.steps)


def _around(question: PlanRequest, elbow: int | None) -> list[int]:
    """Return powers of two around the elbow, and the full batch if it is affordable."""
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
        """Return the share of the total noise that another N, B, T or epsilon removes, for uncut samples."""
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
