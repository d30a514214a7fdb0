"""The search for the best language model and its training within a budget of compute and privacy.

Training a model of M parameters for T steps on batches of B records of S tokens costs 6 M T B S
floating-point operations (Kaplan et al., 2001.08361; clipping and noise add little, McKenna et al.,
2501.18914, appendix B.3). The promise and the number of records determine sigma for each B and T. The search
finds the (M, T, B) within the budget that have the least loss by the scaling law.

Symbols: N records, S tokens per record; M, T, B, sigma, r as in :mod:`experiments.scaling.law`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from experiments.scaling.answer import (
    Configuration,
    LanguageModelAdvice,
    LanguageModelRequest,
    NearBest,
    NonPrivate,
    Point,
)
from experiments.scaling.law import Floats, Law, Range, parameters
from experiments.scaling.noise_price import NoiseTable, accountant, noise_multiplier
from experiments.scaling.published import published_facts
from tacit.accounting.calibrate import LooseBudget
from tacit.errors import InvalidInput, warn_if_weak
from tacit.events import Adjacency

NEAR_BEST = 0.01
"""A configuration is near the best if its loss is at most this share above the least loss."""

_SIZES, _COUNTS = 73, 97  # model sizes and numbers of steps that are searched
_BEYOND = 10.0  # the factor by which the search exceeds the range of the law, if the user allows that

Progress = Callable[[str, int, int], None]


def advise_language_model(
    question: LanguageModelRequest, law: Law, *, progress: Progress | None = None
) -> LanguageModelAdvice:
    """Find the model size, batch size, steps and noise with the least expected loss within the budget.

    **Guarantee**

    * Poisson sampling at ``batch_size / records`` (cut at ``largest_batch``, if given) with noise
      ``noise_multiplier``, ``steps`` times, costs at most (epsilon, delta) under the adjacency.

    Raises:
        InvalidInput: if no configuration within the budget is in the range of the law. The message says why.

    >>> from experiments.scaling.published import published_law
    >>> question = LanguageModelRequest(records=10**7, unit="sequence", epsilon=4, delta=1e-8,
    ...     adjacency="add-remove", flops=1e19, sequence_length=512)
    >>> advice = advise_language_model(question, published_law())
    >>> 1e7 < advice.best.model_size < 5e7, round(advice.best.loss)
    (True, 3)
    """
    report = partial(progress or (lambda _title, _done, _total: None), "searching")
    warn_if_weak(question.epsilon)
    report(0, 6)
    table = _table(question, law)
    grid = _search(question, law, table)
    report(1, 6)
    best = _configuration(question, law, *_rounded(question, law, grid))
    report(2, 6)
    gains = []
    for done, other in enumerate(_twice(question), start=3):
        same_table = other.epsilon == question.epsilon and other.records == question.records
        loss = _search(other, law, table if same_table else _table(other, law)).least
        gains.append(max(0.0, 1.0 - loss / grid.least))
        report(done, 6)
    non_private = _with_this_promise(question, law, without_privacy(question, law))
    report(6, 6)
    return LanguageModelAdvice(
        question=question, law=law, best=best, near_best=grid.near(), non_private=non_private,
        saved_by_twice_flops=gains[0], saved_by_twice_epsilon=gains[1], saved_by_twice_records=gains[2],
        warnings=_warnings(question, law, best),
    )  # fmt: skip


def loss_over_compute(
    question: LanguageModelRequest, law: Law, *, epsilon: float, flops: Floats
) -> list[Point]:
    """Compute the least expected loss for each compute budget in ``flops`` under that epsilon, for a plot.

    The noise is the estimate of the search, within a tenth of the proven noise. A compute budget without a
    configuration in the range of the law is left out.

    >>> from experiments.scaling.published import published_law
    >>> question = LanguageModelRequest(records=10**7, unit="sequence", epsilon=4, delta=1e-8,
    ...     adjacency="add-remove", flops=1e19, sequence_length=512)
    >>> points = loss_over_compute(question, published_law(), epsilon=4, flops=np.array([1e18, 1e19]))
    >>> points[1].loss < points[0].loss
    True
    """
    request = replace(question, epsilon=epsilon, flops=float(np.min(flops)))
    table = _table(request, law)
    points = []
    for budget in np.sort(flops):
        try:
            grid = _search(replace(request, flops=float(budget)), law, table)
        except InvalidInput:
            continue  # too little compute for the range of the law
        size, steps = grid.best
        points.append(Point(float(budget), grid.least, size, steps))
    return points


@dataclass(frozen=True)
class _Grid:
    """Losses over model sizes (rows) and steps (columns). They are infinite outside the range of the law."""

    sizes: Floats
    steps: Floats
    batches: Floats
    losses: Floats

    @property
    def least(self) -> float:
        return float(self.losses.min())

    @property
    def best(self) -> tuple[float, float]:
        row, column = np.unravel_index(int(self.losses.argmin()), self.losses.shape)
        return float(self.sizes[row, 0]), float(self.steps[0, column])

    def near(self) -> NearBest:
        close = self.losses <= (1.0 + NEAR_BEST) * self.least
        rows, columns = np.nonzero(close)
        sizes, steps, batches = self.sizes[rows, 0], self.steps[0, columns], self.batches[close]
        return NearBest(
            (float(sizes.min()), float(sizes.max())),
            (float(steps.min()), float(steps.max())),
            (float(batches.min()), float(batches.max())),
        )


def _search_range(question: LanguageModelRequest, law: Law) -> Range:
    """Return the range of the search. It is wider than that of the law if the user allows it."""
    wider = _BEYOND if question.extrapolate else 1.0
    size, steps = law.range.model_size, law.range.steps
    if question.model_size is not None:
        inside = size[0] / wider <= question.model_size <= size[1] * wider
        if not inside:
            raise InvalidInput(
                f"{parameters(question.model_size)} parameters are outside the scaling law. It was "
                f"measured for {law.range.in_words()}. Choose a size in that range, or set extrapolate=True "
                f"(in a shell --extrapolate) to search up to {_BEYOND:.0f} times beyond it. That is a guess."
            )
        size = (question.model_size, question.model_size)
    else:
        size = (size[0] / wider, size[1] * wider)
    return Range(size, (steps[0] / wider, steps[1] * wider), law.range.noise_batch_ratio)


def _table(question: LanguageModelRequest, law: Law) -> NoiseTable:
    searched = _search_range(question, law)
    least = question.batch_size(np.asarray(searched.model_size[1]), np.asarray(searched.steps[1]))
    return NoiseTable(
        question.records, question.epsilon, question.delta, Adjacency.parse(question.adjacency),
        searched.steps, float(least),
    )  # fmt: skip


def _search(question: LanguageModelRequest, law: Law, table: NoiseTable) -> _Grid:
    searched = _search_range(question, law)
    sizes = np.geomspace(*searched.model_size, 1 if question.model_size else _SIZES)[:, None]
    steps = np.geomspace(*searched.steps, _COUNTS)[None, :]
    batches = question.batch_size(sizes, steps)
    possible = batches >= 1.0
    if not possible.any():
        least = 6.0 * question.sequence_length * sizes.min() * steps.min()
        raise InvalidInput(
            f"{question.flops:.3g} FLOPs are too few for one sequence a step. The smallest run that the "
            f"scaling law covers has {parameters(float(sizes.min()))} parameters and {steps.min():,.0f} "
            f"steps, and takes {least:.2g} FLOPs. Give more --flops, or shorter sequences."
        )
    ratios = table(np.maximum(batches, 1.0), steps) / batches
    inside = possible & (ratios <= law.range.noise_batch_ratio[1])
    if not inside.any():
        quietest = float(ratios[possible].min())
        raise InvalidInput(
            f"the noise-batch ratio of this budget is at least {quietest:.2g}. The law was measured up to "
            f"{law.range.noise_batch_ratio[1]:.2g}, at which a model hardly learns. Give more FLOPs, more "
            "records, or a larger epsilon."
        )
    losses = np.where(inside, law.losses(sizes, steps, ratios), np.inf)
    return _Grid(sizes, steps, batches, losses)


def _rounded(question: LanguageModelRequest, law: Law, grid: _Grid) -> tuple[float, int, int]:
    """Round the best model size and steps to a few digits within the range, and compute the batch size."""
    size, steps = grid.best
    searched = _search_range(question, law)
    if question.model_size is None:
        size = min(max(_digits(size, 3), searched.model_size[0]), searched.model_size[1])
    count = round(min(max(_digits(steps, 2), searched.steps[0]), searched.steps[1]))
    batch = question.batch_size(np.asarray(size), np.asarray(float(count)))
    return size, count, max(1, math.floor(_digits_down(float(batch), 3)))


def _digits(value: float, digits: int) -> float:
    """Round ``value`` to ``digits`` significant digits.

    >>> _digits(17_345.0, 2)
    17000.0
    """
    return float(f"{value:.{digits}g}")


def _digits_down(value: float, digits: int) -> float:
    """Round ``value`` down to ``digits`` significant digits.

    >>> _digits_down(42_084.7, 3), _digits_down(7.5, 3)
    (42000.0, 7.5)
    """
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    return math.floor(value / unit) * unit


def _configuration(
    question: LanguageModelRequest, law: Law, size: float, steps: int, batch: int
) -> Configuration:
    """Compute the proven noise of a configuration, and the loss that the scaling law expects with it."""
    rate = batch / question.records
    tight = question.largest_batch is not None or batch == question.records
    method = "pld" if tight else accountant(rate, steps, question.epsilon, question.delta)
    try:
        noise = noise_multiplier(
            question.records, batch, steps, question.epsilon, question.delta,
            Adjacency.parse(question.adjacency), largest_batch=question.largest_batch, method=method,
        )  # fmt: skip
    except LooseBudget as least:
        raise InvalidInput(
            f"epsilon = {question.epsilon:g} needs hardly any noise: a noise multiplier of "
            f"{least.noise:.2g}, the least for which Tacit computes epsilon, is enough. Ask for a smaller "
            "epsilon."
        ) from None
    tokens = float(steps) * batch * question.sequence_length
    beyond = law.beyond(size, steps, noise / batch)
    return Configuration(
        model_size=size,
        steps=steps,
        batch_size=batch,
        sampling_rate=rate,
        noise_multiplier=noise,
        noise_batch_ratio=noise / batch,
        loss=float(law.losses(size, steps, noise / batch)),
        beyond=beyond,
        accountant=method,
        flops=6.0 * size * tokens,
        tokens=tokens,
        tokens_per_parameter=tokens / size,
        epochs=steps * rate,
    )


def _twice(question: LanguageModelRequest) -> tuple[LanguageModelRequest, ...]:
    """Return the question with twice the compute, with twice epsilon and with twice the records."""
    longer = None if question.largest_batch is None else 2 * question.largest_batch
    return (
        replace(question, flops=2 * question.flops, largest_batch=longer and min(longer, question.records)),
        replace(question, epsilon=min(2 * question.epsilon, 100.0)),
        replace(question, records=2 * question.records, allow_large_delta=True),
    )


def without_privacy(question: LanguageModelRequest, law: Law) -> NonPrivate:
    """Return the published choice for training without privacy with that compute.

    >>> from experiments.scaling.published import published_law
    >>> question = LanguageModelRequest(records=10**7, unit="sequence", epsilon=4, delta=1e-8,
    ...     adjacency="add-remove", flops=1e19, sequence_length=512)
    >>> plain = without_privacy(question, published_law())
    >>> round(plain.tokens / plain.model_size)
    20
    """
    rule = published_facts()["non_private"]
    ratio = rule["tokens_per_parameter"]["value"]
    size = math.sqrt(question.flops / (6.0 * ratio))
    batch = max(1, round(rule["tokens_per_batch"]["value"] / question.sequence_length))
    steps = max(1, round(ratio * size / (batch * question.sequence_length)))
    inside = not law.beyond(size, steps, 0.0)
    return NonPrivate(
        model_size=size,
        tokens=ratio * size,
        batch_size=batch,
        steps=steps,
        loss=float(law.losses(size, steps, 0.0)) if inside else None,
        with_privacy=None,
    )


def _with_this_promise(question: LanguageModelRequest, law: Law, other: NonPrivate) -> NonPrivate:
    """Add what this configuration reaches with the noise of the promise, if it is in the range of the law."""
    if other.loss is None or other.batch_size > question.largest_expected_batch:
        return other
    alike = _configuration(question, law, other.model_size, other.steps, other.batch_size)
    return other if alike.beyond else replace(other, with_privacy=alike)


def _warnings(question: LanguageModelRequest, law: Law, best: Configuration) -> tuple[str, ...]:
    """Return warnings of assumptions beyond the runs of the law, and of limits of the search."""
    words = []
    if best.beyond:
        words.append(
            f"{' and '.join(best.beyond)} the range of the law: {law.range.in_words()}. The loss is a guess."
        )
    if not question.extrapolate and question.model_size is None:
        if best.model_size >= 0.97 * law.range.model_size[1]:
            words.append("This is the largest model of the law; a larger one may do better.")
        if best.model_size <= 1.03 * law.range.model_size[0]:
            words.append("This is the smallest model of the law; a smaller one may do better.")
    if not question.extrapolate and best.steps >= 0.97 * law.range.steps[1]:
        words.append("These are the most steps of the law; more may do better.")
    if best.epochs > 1.0:
        words.append(
            f"Each record is drawn about {best.epochs:,.0f} times. The law comes from runs that drew no "
            "text twice, so expect a higher loss unless a record has new text for each draw."
        )
    if question.sequence_length != law.sequence_length:
        words.append(
            f"The law was measured on sequences of {law.sequence_length} tokens, not "
            f"{question.sequence_length}."
        )
    if best.accountant == "rdp":
        words.append(
            "The noise is computed by Renyi divergences, because the tight accountant would take minutes. "
            "Less noise may keep the promise as well."
        )
    if best.flops < 0.9 * question.flops:
        words.append(
            f"Only {best.flops:.2g} FLOPs can be used: more would need batches larger than the data or "
            "--largest-batch, or a model or steps beyond the law."
        )
    return tuple(words)
