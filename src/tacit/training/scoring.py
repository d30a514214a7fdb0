"""A noisy score on held-out records, and private selection of the best of several runs.

Letters: n test records; R and W the noisy sums of v and of 1 - v; s the standard deviation of their noise.
"""

# A ledger promises held-out test records the same as the training records, so their exact score would be a
# release without noise.  Each record gets a score v in [0, 1], rounded to thousandths.  The run releases the
# sums of v and of 1 - v, each with Gaussian noise and then rounded to thousandths, which is as rounding
# the noise alone: a function of the Gaussian mechanism on both sums (:class:`tacit.plan.ScoreReport`).  There
# are two sums because the number of test records is secret too.
#
# Releasing the best of several runs costs as much as all of them, unless their number is drawn from a smooth
# distribution and only the best is ever seen: Papernot and Steinke (2110.03620), theorem 2 for a truncated
# negative binomial distribution, theorem 6 for a Poisson distribution.
#
# **Guarantee** (selection)
#
# * The ledger commits one charge, for the event of the whole selection, before the first run starts.
#   Nothing else is charged, and after a crash the charge stays spent.
# * The number of runs has the distribution that is charged, is drawn from the operating system's
#   randomness, and is not released.
# * Every run draws its candidate uniformly and independently, and performs the whole plan that is charged,
#   with a fresh key and on weights that no other run has trained.
# * Only the best run's candidate, model and score are released, and only after the charge is settled.

from __future__ import annotations

import math
import secrets
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from statistics import NormalDist
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.accounting.losses import log_one_over_gamma
from tacit.datasets.dataset import Owners
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import PrivateSelection
from tacit.ledger import Ledger
from tacit.ledger.records import Json
from tacit.noise.gaussian import gaussian
from tacit.noise.generator import Generator, Purpose
from tacit.plan import GroupScoreReport, Plan
from tacit.training.charges import check_promise, delta_to_charge, register
from tacit.training.evaluation import Evaluation, measure_of, record_scores, record_tallies
from tacit.training.ranks import check_one_process
from tacit.training.session import PrivateSession
from tacit.training.users import numbered

_GRID = 1000  # a record's score is a multiple of 1 / _GRID
_LEVEL = 0.95
_ROUNDS = 20  # iterations that narrow the interval; it hardly changes after three


Groups: TypeAlias = Mapping[str, tuple[Sequence[str] | NDArray[Any], NDArray[np.integer[Any]]]]
"""For each column, the names of its groups, which are public, and the group (n,) of each record."""


def score_held_out(
    session: PrivateSession,
    inputs: Tensor,
    targets: Tensor,
    *,
    owners: Owners | None = None,
    groups: Groups | None = None,
) -> Evaluation:
    """Release a noisy score of the model, on test records that training did not use.

    A run releases one score: that of the first call.  Later calls, also after a resume, return it again.  The
    noise also hides the number of test records.

    Args:
        session: the session of the run, with ``charges`` and a ``score_report`` in its plan.
        inputs, targets: the n test records, as in :func:`tacit.evaluate`.
        owners: the person of each row, if the plan's unit is a person with several rows.  A person's score is
            then the mean over their rows.
        groups: the groups in each column of the plan's :class:`tacit.plan.GroupScoreReport`, as in
            :func:`by_group`.  Their names are released, so declare them, as
            :meth:`tacit.columns.Encoder.groups` does, and never read them from the records.

    **Guarantee**

    * The result is a function of one Gaussian release of the plan's ``score_report`` on the test records.
      The plan's event and the run's first charge account for it.
    * A run makes only one such release, even if it crashes, because the ledger stores it before it is
      returned.
    * Adding or removing a record changes the two sums, of scores v in [0, 1] and of 1 - v, by at most 1 in
      total, for any output of the model.  It changes the sums of all groups of all columns together by at
      most the report's ``length``.

    Raises:
        InvalidInput: if the plan has no score report, the session has no charges, or ``groups`` has other
            columns than the plan's report.
        PrivacyRefusal: if no step was charged yet, another process has released a score, or ``owners`` are
            missing although people have several rows.

    >>> from tacit.ledger import Ledger, Policy, RenyiBudget
    >>> from tacit.plan import Plan, ScoreReport
    >>> from tacit.training.charges import StepCharges
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
    >>> for step in session.batches():
    ...     _ = session.step(step)
    >>> score = score_held_out(session, x[64:], y[64:])
    >>> score_held_out(session, x[64:], y[64:]) == score  # a run releases one score
    True
    """
    report, charges = session.plan.score_report, session.charges
    if report is None or charges is None:
        raise InvalidInput(
            "a held-out score needs score_report in the plan and charges in the session. Plan with "
            "score_report=ScoreReport(noise), and make the session with charges."
        )
    if session.of_people and owners is None:
        raise PrivacyRefusal(
            "owners of the test rows are missing, but the plan's unit is a person with several rows. Name "
            "the person of each test row: score_held_out(session, inputs, targets, owners=...)."
        )
    noise = report.noise
    by = tuple(report.by) if isinstance(report, GroupScoreReport) else ()
    if by != tuple(groups or ()):
        raise InvalidInput(
            f"groups must name the columns of the plan's score report, {by}; got {tuple(groups or ())}."
        )

    def release() -> Json:
        # Fresh noise: an earlier process may have drawn some, but nothing was released with it.
        generator = Generator.from_os() if session.private else charges.generator
        raw_sums = _raw_sums(_of_people(record_scores(session.current_model, inputs, targets), owners))
        right, wrong = _noisy(raw_sums, noise, generator)
        answer: dict[str, Json] = {"steps": session.steps_done, "right": right, "wrong": wrong, "grid": _GRID}
        if isinstance(report, GroupScoreReport) and groups is not None:
            rows, deviation = record_tallies(session.current_model, inputs, targets), noise * report.length
            answer["groups"] = [*_noisy_groups(rows, groups, owners, deviation, generator)]
        return answer

    return _evaluation(charges.once("score", release), noise, targets)


def _noisy_groups(
    rows: Tensor, groups: Groups, owners: Owners | None, noise: float, generator: Generator
) -> Iterator[Json]:
    """Yield the sums of the rows (n, D) of each group of a column, with noise of this standard deviation."""
    add_noise = partial(gaussian, generator, step=0, purpose=Purpose.SCORE, dtype=torch.float64)
    for index, (by, (names, numbers)) in enumerate(groups.items(), start=1):
        raw_sums = _raw_group_sums(rows, numbers, len(names), owners)
        noisy = (raw_sums + add_noise(raw_sums.shape, std=noise * _GRID, index=index)).round() / _GRID
        yield {"by": by, "names": [*names], "sums": noisy.tolist(), "noise": noise}


def _raw_group_sums(
    rows: Tensor, numbers: NDArray[np.integer[Any]], groups: int, owners: Owners | None = None
) -> Tensor:
    """Return (G, D), the sums of the (n, D) rows of each of G groups, in thousandths.

    A person's part is the mean over the person's rows.  Parts are rounded towards 0, so that they do not
    grow.
    """
    parts = F.one_hot(torch.from_numpy(numbers), groups)[:, :, None] * rows[:, None, :]
    if owners is not None:
        person = torch.from_numpy(numbered(owners)[0])
        counts = torch.bincount(person)[:, None, None]
        parts = parts.new_zeros(len(counts), *parts.shape[1:]).index_add(0, person, parts) / counts
    return parts.mul(_GRID).trunc().sum(0)


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
    if not isinstance(answer, dict):
        raise PrivacyRefusal(
            f"the run's score in the ledger cannot be read: {answer!r}. Use the version of Tacit that "
            "released the score."
        )
    stored: dict[str, Any] = answer
    value, low, high = share_of(
        stored["right"] / stored["grid"], stored["wrong"] / stored["grid"], noise, grid=stored["grid"]
    )
    measure, scale = measure_of(targets)
    ends = sorted((scale(low), scale(high)))
    return Evaluation(
        scale(value),
        None,
        (),
        measure,
        interval=(ends[0], ends[1]),
        noise=noise,
        steps=stored["steps"],
        groups=tuple(stored.get("groups", ())),
    )


def share_of(right: float, wrong: float, noise: float, *, grid: int = _GRID) -> tuple[float, float, float]:
    """Return R / (R + W) in [0, 1], and an interval that contains the noiseless share in 95 % of releases.

    If the true share is p, (1 - p) R - p W has mean 0 and standard deviation s sqrt((1 - p)^2 + p^2), apart
    from rounding to 1 / ``grid``.  The interval has all p at which it is in the central 95 % (Fieller 1954).
    Within an interval the deviation is largest at an end, so each iteration narrows it.

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


Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class SelectedCandidate(Generic[Candidate]):
    """The best run: its ``candidate``, ``model`` and ``score``, and the ``event`` that was charged."""

    candidate: Candidate
    model: nn.Module
    score: float
    event: PrivateSelection


def select_candidate(
    candidates: Sequence[Candidate],
    make: Callable[[Candidate], PrivateSession],
    score: Callable[[nn.Module], float],
    *,
    plan: Plan,
    ledger: Ledger,
    dataset: str,
    mean: float,
    distribution: str = "negative-binomial",
    shape: float | None = None,
    block: str | None = None,
    one_record_per_unit: bool = False,
) -> SelectedCandidate[Candidate] | None:
    """Train a random number of times, each time with a random candidate, and return the best run.

    One charge to the ledger covers all runs.

    Args:
        candidates: the values to choose from, such as learning rates, chosen without the data.
        make: a function that takes a candidate and returns a new session of ``plan``, with a new model and
            without charges.  It must not show results of its run, because the charge covers only the best
            run.
        score: a function that rates a trained model; higher is better.  It may read public or test records,
            which the charge does not cover, but never the training records.
        plan: the plan of each run.
        ledger, dataset: the ledger to charge, and the name of the dataset there.
        mean: the expected number of runs.
        distribution, shape: the distribution of the number of runs; see
            :class:`~tacit.events.PrivateSelection`.  Default: geometric, a negative binomial of shape 1.
        block, one_record_per_unit: see :class:`~tacit.training.StepCharges`.

    Returns:
        The best run; None if no run was made, which only a Poisson distribution allows.

    Raises:
        BudgetExceeded: if the charge exceeds the remaining budget.  No run was made.
        PrivacyRefusal: if the plan contradicts the dataset's policy, or a session from ``make`` has another
            plan.  Also if the ledger knows the records as another dataset, with a separate budget.

    >>> import torch
    >>> from tacit.ledger import Policy, RenyiBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> budget = RenyiBudget(epsilon=8.0, delta=1e-4)
    >>> ledger.open_dataset("visits", Policy(unit="visit", adjacency="add-remove", budget=budget))
    >>> plan = Plan.with_noise(noise_multiplier=8.0, steps=2, records=64, clipping=1.0, delta=1e-4,
    ...                        adjacency="add-remove", unit="visit")
    >>> data = torch.randn(64, 3), torch.arange(64) % 2
    >>> def loss(model, x, y):
    ...     return nn.functional.cross_entropy(model(x), y, reduction="none")
    >>> def make(rate):
    ...     model = nn.Linear(3, 2)
    ...     return PrivateSession(model, torch.optim.SGD(model.parameters(), lr=rate), data, plan, loss=loss)
    >>> public = torch.randn(20, 3), torch.arange(20) % 2
    >>> best = select_candidate(
    ...     [0.1, 1.0], make, lambda model: -loss(model, *public).mean().item(), plan=plan, ledger=ledger,
    ...     dataset="visits", mean=2.0)
    >>> best.candidate in (0.1, 1.0), len(ledger.history("visits")) > 1
    (True, True)
    """
    check_one_process()
    if not candidates:
        raise InvalidInput("candidates is empty. Give at least one.")
    if shape is None and distribution == "negative-binomial":
        shape = 1.0
    event = PrivateSelection(plan.event, distribution=distribution, mean=mean, shape=shape)
    policy = ledger.policy(dataset)
    check_promise(dataset, policy, plan, one_record_per_unit)
    run = secrets.token_hex(8)
    request: dict[str, Json] = {
        "kind": "selection",
        "run": run,
        "candidates": [repr(each) for each in candidates],
    }
    delta = delta_to_charge(ledger, policy, plan)
    charge = ledger.reserve(
        dataset, event, key=f"selection/{run}", request=request, block=block, delta=delta, lease_s=_LEASE_S
    )
    trials = (secrets.choice(candidates) for _ in range(draw_trials(event)))
    best: SelectedCandidate[Candidate] | None = None
    trained: dict[int, weakref.ref[nn.Parameter]] = {}
    for trial, candidate in enumerate(trials):
        session = make(candidate)
        if trial == 0:
            register(ledger, dataset, session.content(), block=block)
        model = _trained(session, plan, trained)
        value = float(score(model))
        if math.isnan(value):
            value = -math.inf  # an error for a failed run would stop the others
        if best is None or value > best.score:
            best = SelectedCandidate(candidate, model, value, event)
    answer: dict[str, Json] | None = (
        None if best is None else {"candidate": repr(best.candidate), "score": repr(best.score)}
    )
    ledger.settle(charge, answer)
    return best


_PROMISE = attrgetter("event", "unit", "adjacency")
_LEASE_S = 24 * 3600.0  # long, because the charge of an interrupted selection stays spent anyway


def _trained(session: PrivateSession, plan: Plan, trained: dict[int, weakref.ref[nn.Parameter]]) -> nn.Module:
    """Perform a run and return its model; ``trained`` maps ids to the parameters of earlier runs."""
    same = _PROMISE(session.plan) == _PROMISE(plan)
    if not same or session.steps_done or session.charges is not None or not session.private:
        raise PrivacyRefusal(
            "make must return a new session of the plan given to select_candidate, with no charges and no "
            "generator. The charge stays spent, because runs may have been made."
        )
    for parameter in (p for p in session.model.parameters() if p.requires_grad):
        before = trained.get(id(parameter))
        if before is not None and before() is parameter:
            raise PrivacyRefusal(
                "make returned a model that an earlier run has trained, but the charge covers only "
                "independent runs. Let make build a new model and optimizer in each call. The charge stays "
                "spent, because runs have been made."
            )
        trained[id(parameter)] = weakref.ref(parameter)
    for step in session.batches():
        session.step(step)
    return session.current_model


def draw_trials(event: PrivateSelection) -> int:
    """Draw the number of runs from the event's distribution, with the operating system's randomness."""
    least, law = law_of_trials(event)
    uniform = secrets.randbits(53) / 2.0**53
    below, count = 0.0, least
    for probability in law:
        below += probability
        if uniform < below:
            break
        count += 1
    return count


def law_of_trials(event: PrivateSelection) -> tuple[int, Iterator[float]]:
    """Return the smallest number k of runs, and the probabilities of k, k + 1, k + 2, ... runs.

    For a negative binomial with shape eta, conditioned on K >= 1 (2110.03620, definition 1)::

        P[K = 1] = (1 - gamma) eta / (gamma^-eta - 1)
        P[K = k + 1] = P[K = k] (1 - gamma) (k + eta) / (k + 1)

    The code computes with c = log(1/gamma), and ends before the first probability that underflows.
    """
    if event.shape is None:
        none = math.exp(-event.mean)
        if none == 0.0:
            raise InvalidInput(f"the mean of a Poisson distribution must be at most 700; got {event.mean:g}.")
        return 0, _by_ratios(none, lambda k: event.mean / (k + 1), start=0)
    eta, c = event.shape, log_one_over_gamma(event.mean, event.shape)
    stay = -math.expm1(-c)  # 1 - gamma
    first = stay / c if eta == 0.0 else stay * eta / math.expm1(eta * c)
    return 1, _by_ratios(first, lambda k: stay * (k + eta) / (k + 1), start=1)


def _by_ratios(first: float, ratio: Callable[[int], float], *, start: int) -> Iterator[float]:
    probability, k = first, start
    while probability > 0.0:
        yield probability
        probability *= ratio(k)
        k += 1
