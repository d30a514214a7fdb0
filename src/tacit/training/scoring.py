"""A noisy score of a run on held-out records of its data set, released once and paid for by the plan.

Held-out test records belong to the data set, and its ledger promises them the same as the training records.
An exact score would be a release without noise.  Anyone who sees the exact scores of several runs, or knows
all test records but one, could learn something about a test record.

Each record gets a score v in [0, 1], rounded to thousandths.  The run releases two sums over the records: one
of v and one of 1 - v.  Each sum gets Gaussian noise, and is then rounded to thousandths.  Rounding an integer
plus noise is the same as rounding the noise alone, so the release is a function of the Gaussian mechanism on
both sums (:class:`tacit.plan.ScoreReport`).  There are two sums because the number of test records is secret
too.  Score and interval are post-processing of these sums.

Letters: n test records; R and W the noisy sums of v and of 1 - v; s the standard deviation of their noise.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.datasets.dataset import Owners
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.ledger.records import Json
from tacit.noise.gaussian import gaussian
from tacit.noise.generator import Generator, Purpose
from tacit.training.data.users import numbered
from tacit.training.evaluation import Evaluation, measure_of, record_scores
from tacit.training.session import PrivateSession

_GRID = 1000  # a record's score is a multiple of 1 / _GRID
_LEVEL = 0.95
_ROUNDS = 20  # iterations that narrow the interval; it hardly changes after three


def score_held_out(
    session: PrivateSession, inputs: Tensor, targets: Tensor, *, owners: Owners | None = None
) -> Evaluation:
    """Release the run's only noisy score, on test records that the training did not use.

    ``inputs`` (n, ...) and ``targets`` are those of :func:`tacit.evaluate`.  ``owners`` name the person of
    each row, if a record of the plan is a person with several rows.  The score of a person is then the mean
    over the person's rows.

    The first call releases the score of the model at that time.  Every later call, also after a resume,
    returns the same score.  The number n of test records is secret: the noise hides it too.

    **Guarantee**

    * The result is a function of one Gaussian release of the plan's ``score_report`` on the test records.
      The plan's event and the run's first charge account for it.
    * A run makes only one such release, even if it crashes, because the ledger stores it before anyone sees
      it.
    * One record more or less changes the two sums by at most 1 in total, whatever the model computes from it.

    Raises:
        InvalidInput: the plan has no score report, or the session has no charges.
        PrivacyRefusal: no step was charged yet, another process released a score meanwhile, or records are
            people with several rows and ``owners`` are missing.

    >>> from tacit.ledger import Ledger, Policy, RenyiBudget
    >>> from tacit.plan import Plan, ScoreReport
    >>> from tacit.training.parts.charges import StepCharges
    >>> ledger = Ledger.create("sqlite://")
    >>> budget = RenyiBudget(epsilon=3.0, delta=1e-4)
    >>> ledger.open_dataset("visits", Policy(unit="visit", adjacency="add-remove", budget=budget))
    >>> plan = Plan.with_noise(noise_multiplier=4.0, steps=2, records=64, clipping=1.0, delta=1e-4,
    ...                        adjacency="add-remove", unit="visit", score_report=ScoreReport(noise=10.0))
    >>> x, y = torch.randn(84, 3), torch.arange(84) % 2
    >>> model = torch.nn.Linear(3, 2)
    >>> def loss(model, x, y):
    ...     return torch.nn.functional.cross_entropy(model(x), y, reduction="none")
    >>> session = PrivateSession(model, torch.optim.SGD(model.parameters(), lr=0.1), (x[:64], y[:64]), plan,
    ...                          loss=loss, charges=StepCharges(ledger, "visits", plan))
    >>> for ticket in session.batches():
    ...     _ = session.step(ticket)
    >>> score = score_held_out(session, x[64:], y[64:])
    >>> score_held_out(session, x[64:], y[64:]) == score  # a run releases one score
    True
    """
    report, charges = session.plan.score_report, session.charges
    if report is None or charges is None:
        raise InvalidInput(
            "a held-out score needs charges and a plan with a score report. Its cost is part of the plan "
            "and charged to a ledger. Make the plan with score_report=ScoreReport(noise), and the session "
            "with charges."
        )
    if session.of_people and owners is None:
        raise PrivacyRefusal(
            "the owners of the test rows are missing. The plan's unit is a person with several rows, and a "
            "score of rows would add up all rows of one person. Name the person of each test row: "
            "score_held_out(session, inputs, targets, owners=...)."
        )
    noise = report.noise

    def release() -> Json:
        # Fresh noise: an earlier process may have drawn some, but nothing was released with it.
        generator = Generator.from_os() if session.private else charges.generator
        raw_sums = _raw_sums(_of_people(record_scores(session.current_model, inputs, targets), owners))
        right, wrong = _noisy(raw_sums, noise, generator)
        return {"steps": session.steps_done, "right": right, "wrong": wrong, "grid": _GRID}

    return _evaluation(charges.once("score", release), noise, targets)


def _of_people(scores: Tensor, owners: Owners | None) -> Tensor:
    """Average the scores of rows (M,), in [0, 1], over the rows of each owner, (N,)."""
    if owners is None:
        return scores
    number, _, _ = numbered(owners)
    if len(number) != len(scores):
        raise InvalidInput(
            f"there are {len(scores)} test rows and {len(number)} owners. Give one owner for each row."
        )
    rows = scores.double().cpu().numpy()
    return torch.from_numpy(np.bincount(number, weights=rows) / np.bincount(number))


def _raw_sums(scores: Tensor) -> Tensor:
    """Return (2,) int64: the sums of (n,) scores v and of 1 - v, in thousandths; a record adds 1 in total."""
    thousandths = scores.double().mul(_GRID).round().long()
    return torch.stack([thousandths.sum(), (_GRID - thousandths).sum()])


def _noisy(raw_sums: Tensor, noise: float, generator: Generator) -> list[int]:
    """Add noise of standard deviation s, which is 1000 s thousandths, to each of the two sums."""
    draws = gaussian(generator, (2,), std=noise * _GRID, step=0, purpose=Purpose.SCORE, dtype=torch.float64)
    return [int(value) for value in (raw_sums.double() + draws).round().tolist()]


def _evaluation(answer: Json, noise: float, targets: Tensor) -> Evaluation:
    """Turn the stored release into score and interval."""
    if not isinstance(answer, dict):
        raise PrivacyRefusal(
            f"the ledger's score of the run cannot be read: {answer!r}. Read the ledger with the version of "
            "Tacit that released the score."
        )
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
    """Return R / (R + W) in [0, 1], and an interval that contains the noiseless share in 95 % of releases.

    Args:
        right, wrong: R and W.
        noise: s.
        grid: R and W are rounded to multiples of 1 / grid.

    If the true share is p, (1 - p) R - p W has mean 0 and standard deviation s sqrt((1 - p)^2 + p^2), apart
    from rounding.  The interval contains all p at which this value is within the central 95 % of its
    distribution (Fieller 1954).  Within an interval of p, the standard deviation is largest at one of the
    ends.  This largest value gives a narrower interval, which the function uses for the next iteration.

    >>> value, low, high = share_of(180.0, 20.0, 5.0)
    >>> value, round(low, 3), round(high, 3)
    (0.9, 0.854, 0.946)
    """
    total = right + wrong
    if not total > 0.0:
        return 0.5, 0.0, 1.0  # the noise is larger than all records
    value, low, high = right / total, 0.0, 1.0
    z = NormalDist().inv_cdf((1.0 + _LEVEL) / 2.0)
    for _ in range(_ROUNDS):
        reach = z * noise * max(math.hypot(1.0 - p, p) for p in (low, high)) + 0.5 / grid
        low, high = max(low, value - reach / total), min(high, value + reach / total)
    return min(max(value, 0.0), 1.0), min(low, 1.0), max(high, 0.0)
