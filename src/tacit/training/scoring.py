"""One score of a run on records of its own data set: with noise, once, and part of what the plan costs.

Records that are held out for testing are records of the data set, and its ledger promises them the same as
those that are trained on.  An exact score would be released for nothing: whoever sees the exact scores of
several runs, or knows all test records but one, learns of the one.

Each record has a score v in [0, 1], on a grid of thousandths.  Released are two sums, of v and of 1 - v, each
plus a normal number that is rounded to the grid.  Rounding to integers of an integer plus noise is rounding
of the noise alone, so that what is released is a function of the Gaussian mechanism on both sums
(:class:`tacit.plan.ScoreReport`).  How many test records there are is secret too, hence two sums: score and
interval come from both, as post-processing.

Letters: n test records; R, W the noisy sums, in records; s the standard deviation of their noise.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.ledger.chain import Json
from tacit.noise.gaussian import gaussian
from tacit.noise.generator import Generator, Purpose
from tacit.training.evaluation import Evaluation, measure_of, record_scores
from tacit.training.session import PrivateSession

__all__ = ["score_held_out", "share_of"]

_GRID = 1000  # steps of a record's score between 0 and 1
_LEVEL = 0.95
_ROUNDS = 20  # of narrowing an interval; it hardly moves after three


def score_held_out(session: PrivateSession, inputs: Tensor, targets: Tensor) -> Evaluation:
    """The run's one noisy score, on ``inputs`` (n, ...) and ``targets`` as :func:`tacit.evaluate` takes them.

    The first call releases it, of the model as it is; every later one, also after a resume, says the same.
    Of the test records n is secret: the noise hides it too.

    **Guarantee**

    * What is returned is a function of one Gaussian release of the plan's ``score_report`` on the records
      given, whose price is in the plan's event and in the run's first charge.
    * There is one such release in a run, whatever crashes: the ledger has it before anybody sees it.
    * One record more or less moves the two sums by at most one record, whatever the model makes of it.

    Raises:
        InvalidInput: the plan has no score report, or the session no charges.
        PrivacyRefusal: no step was charged yet, or another process was faster.
    """
    report, charges = session.plan.score_report, session.charges
    if report is None or charges is None:
        raise InvalidInput(
            "a score on held-out records is part of a plan that is charged to a ledger: make the plan with "
            "score_report=ScoreReport(noise), and the session with charges."
        )
    noise = report.noise

    def release() -> Json:
        # Fresh noise: if nobody saw what an earlier life of the run drew, that is no release.
        generator = Generator.from_os() if session.private else charges.generator
        raw_sums = _raw_sums(record_scores(session.current_model, inputs, targets))
        right, wrong = _noisy(raw_sums, noise, generator)
        return {"steps": session.steps_done, "right": right, "wrong": wrong, "grid": _GRID}

    return _evaluation(charges.once("score", release), noise, targets)


def _raw_sums(scores: Tensor) -> Tensor:
    """(2,) int64: the sums of (n,) scores v and of 1 - v, in thousandths; together one record each."""
    thousandths = scores.double().nan_to_num(0.0).clamp(0.0, 1.0).mul(_GRID).round().long()
    return torch.stack([thousandths.sum(), (_GRID - thousandths).sum()])


def _noisy(raw_sums: Tensor, noise: float, generator: Generator) -> list[int]:
    """Both sums, in thousandths, with noise of standard deviation s each."""
    drawn = gaussian(generator, (2,), std=noise * _GRID, step=0, purpose=Purpose.SCORE, dtype=torch.float64)
    return [int(value) for value in (raw_sums.double() + drawn).round().tolist()]


def _evaluation(answer: Json, noise: float, targets: Tensor) -> Evaluation:
    """The stored release, read for people."""
    if not isinstance(answer, dict):
        raise PrivacyRefusal(f"the ledger's score of the run cannot be read: {answer!r}.")
    stored: dict[str, Any] = answer
    value, low, high = share_of(
        stored["right"] / stored["grid"], stored["wrong"] / stored["grid"], noise, grid=stored["grid"]
    )
    measure, scale = measure_of(targets)
    ends = sorted((scale(low), scale(high)))
    return Evaluation(
        scale(value), None, (), measure, interval=(ends[0], ends[1]), noise=noise, steps=stored["steps"]
    )


def share_of(right: float, wrong: float, noise: float, *, grid: int = _GRID) -> tuple[float, float, float]:
    """R / (R + W) in [0, 1], and ends between which it lies without the noise in 95 % of all releases.

    Args:
        right, wrong: R and W.
        noise: s.
        grid: the noise of each is rounded to so many parts of a record.

    At the true share p, nothing but noise is left of (1 - p) R - p W: of standard deviation
    s sqrt((1 - p)^2 + p^2), and rounding.  All p for which it is not larger than 95 % of such noise make the
    interval (Fieller 1954).  Between two ends that hold p that deviation is largest at an end, which gives
    narrower ends, and so on.

    >>> value, low, high = share_of(180.0, 20.0, 5.0)
    >>> value, round(low, 3), round(high, 3)
    (0.9, 0.854, 0.946)
    """
    total = right + wrong
    if not total > 0.0:
        return 0.5, 0.0, 1.0  # the noise has swallowed all records
    value, low, high = right / total, 0.0, 1.0
    z = NormalDist().inv_cdf((1.0 + _LEVEL) / 2.0)
    for _ in range(_ROUNDS):
        reach = z * noise * max(math.hypot(1.0 - p, p) for p in (low, high)) + 0.5 / grid
        low, high = max(low, value - reach / total), min(high, value + reach / total)
    return min(max(value, 0.0), 1.0), min(low, 1.0), max(high, 0.0)
