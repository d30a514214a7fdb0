"""The private choice of hyper-parameters: the law of the number of runs, its charge, and what is released."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made import a_ledger, a_plan, losses, one_step
from scipy import optimize, stats
from torch import nn

from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal
from tacit.events import Gaussian, PrivateSelection
from tacit.ledger import Conflict, Ledger, RenyiBudget
from tacit.testing import seeded_generator
from tacit.training import PrivateSession, StepCharges, scoring, select_candidate

N = 40
ORDERS = (3.0, 5.0)
PLAN = a_plan(noise_multiplier=8.0, records=N, batch_size=None, steps=3, unit="patient")


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    torch.manual_seed(0)


def event(mean: float, shape: float | None) -> PrivateSelection:
    kind = "poisson" if shape is None else "negative-binomial"
    return PrivateSelection(Gaussian(8.0), distribution=kind, mean=mean, shape=shape)


def oracle(mean: float, shape: float | None) -> Any:
    """Return the distribution by scipy: k -> probability."""
    if shape is None:
        return lambda k: stats.poisson.pmf(k, mean)
    if shape == 0.0:
        p = optimize.brentq(lambda p: -p / ((1 - p) * math.log1p(-p)) - mean, 1e-9, 1 - 1e-9)
        return lambda k: stats.logser.pmf(k, p)

    def excess(gamma: float) -> float:
        return float(shape * (1 - gamma) / gamma / (1 - gamma**shape)) - mean

    gamma = optimize.brentq(excess, 1e-9, 1 - 1e-9)
    return lambda k: stats.nbinom.pmf(k, shape, gamma) / (1 - gamma**shape)


LAWS = [(10.0, 1.0), (4.0, 0.5), (3.0, 2.0), (5.0, 0.0), (6.0, None), (0.3, None)]


@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_the_law_is_the_one_that_the_event_names(mean: float, shape: float | None) -> None:
    least, law = scoring.law_of_trials(event(mean, shape))
    probabilities = list(itertools.islice(law, 4000))
    counts = np.arange(least, least + len(probabilities))
    assert least == (0 if shape is None else 1)
    assert math.fsum(probabilities) == pytest.approx(1.0, abs=1e-9)
    assert float(np.dot(counts, probabilities)) == pytest.approx(mean, rel=1e-8)
    assert probabilities[:30] == pytest.approx(list(oracle(mean, shape)(counts[:30])), rel=1e-7)


def test_a_negative_shape_has_the_mean_that_the_event_names() -> None:
    _, law = scoring.law_of_trials(event(4.0, -0.5))
    probabilities = np.array(list(itertools.islice(law, 4000)))
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-9)
    assert np.dot(np.arange(1, 1 + len(probabilities)), probabilities) == pytest.approx(4.0, rel=1e-8)


def chi_square(draws: list[int], mean: float, shape: float | None) -> float:
    """Return the p-value of ``draws`` under the distribution by scipy."""
    top = 8
    least = 0 if shape is None else 1
    expected = np.array([oracle(mean, shape)(k) for k in range(least, top)])
    expected = np.append(expected, 1 - expected.sum()) * len(draws)
    seen = np.bincount(np.minimum(draws, top), minlength=top + 1)[least:]
    return float(stats.chisquare(seen, expected).pvalue)


@pytest.mark.parametrize(("mean", "shape"), [(4.0, 1.0), (3.0, None)])
def test_the_number_of_runs_is_drawn_from_the_law(mean: float, shape: float | None) -> None:
    draws = [scoring.draw_trials(event(mean, shape)) for _ in range(3000)]
    assert chi_square(draws, mean, shape) > 1e-6
    assert chi_square([k + 1 for k in draws], mean, shape) < 1e-6  # one run too many is found
    assert chi_square(draws, mean * 1.3, shape) < 1e-6  # and so is another mean


def test_a_law_that_floats_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at most 700"):
        scoring.draw_trials(event(1000.0, None))


# --- the whole ------------------------------------------------------------------------------------------


def make(rate: float, **changes: Any) -> PrivateSession:
    net = nn.Linear(2, 2)
    given: dict[str, Any] = {"loss": losses, **changes}
    data = (torch.zeros(N, 2), torch.zeros(N, dtype=torch.long))
    return PrivateSession(net, torch.optim.SGD(net.parameters(), lr=rate), data, PLAN, **given)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    budget = RenyiBudget(epsilon=6.0, delta=1e-3, orders=ORDERS)
    with closing(a_ledger(tmp_path / "budget.db", "visits", unit="patient", budget=budget)) as made:
        yield made


def counts(ledger: Ledger) -> tuple[int, int]:
    """Return the number of reserved and of settled charges."""
    found = ledger.status("visits").charges
    return found["RESERVED"], found["SETTLED"]


def choose(ledger: Ledger, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "candidates": [0.1, 0.2, 0.3],
        "make": make,
        "score": lambda model: 0.0,
        "plan": PLAN,
        "ledger": ledger,
        "dataset": "visits",
        "mean": 3.0,
    }
    return select_candidate(**{**given, **changes})


def test_the_best_of_the_runs_alone_is_released_for_one_charge(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "draw_trials", lambda event: 4)
    made: list[float] = []
    scores = iter([0.3, math.nan, 0.9, 0.5])

    def watched(rate: float) -> PrivateSession:
        assert counts(ledger) == (1, 0)
        made.append(rate)
        return make(rate)

    chosen = choose(ledger, make=watched, score=lambda model: next(scores))
    assert len(made) == 4
    assert (chosen.candidate, chosen.score) == (made[2], 0.9)
    assert counts(ledger) == (0, 1)
    assert ledger.verify("visits").ok


def test_the_charge_is_the_theorems(ledger: Ledger) -> None:
    """Theorem 2 for the geometric law, with the best beta by plain search; a Gaussian costs rho a."""
    choose(ledger, mean=3.0)
    rho = 3 / (2 * 8.0**2)
    betas = 1 + np.logspace(-4, 4, 20_001)
    least = min(math.log(3.0), float(((1 - 1 / betas) * rho * betas + math.log(3.0) / betas).min()))
    for order, found in zip(ORDERS, ledger.status("visits").spent, strict=False):
        wanted = rho * order + 2 * least + math.log(3.0) / (order - 1)
        assert found / 1e12 == pytest.approx(wanted, rel=1e-4)
        assert found / 1e12 >= wanted * (1 - 1e-4)


def test_no_run_is_made_where_the_choice_does_not_fit(ledger: Ledger) -> None:
    def never(rate: float) -> PrivateSession:
        raise AssertionError("a run was made")

    with pytest.raises(BudgetExceeded):
        choose(ledger, make=never, mean=1e12)
    assert counts(ledger) == (0, 0)


def test_the_same_records_have_no_second_budget(ledger: Ledger) -> None:
    ledger.open_dataset("again", ledger.policy("visits"))
    choose(ledger)
    assert [entry.kind for entry in ledger.history("visits")] == ["open", "reserve", "content", "settle"]
    with pytest.raises(Conflict, match="already open as 'visits'"):
        choose(ledger, dataset="again")


def test_a_crash_leaves_the_charge_spent(ledger: Ledger) -> None:
    def broken(rate: float) -> PrivateSession:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        choose(ledger, make=broken)
    assert counts(ledger) == (1, 0)
    assert ledger.status("visits").spent[0] > 0


def test_a_poisson_law_may_say_that_there_be_no_run(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "draw_trials", lambda event: 0)
    assert choose(ledger, distribution="poisson", mean=2.0) is None
    assert counts(ledger) == (0, 1)


def test_runs_that_are_not_what_was_charged_are_refused(ledger: Ledger) -> None:
    def fixed_key(rate: float) -> PrivateSession:
        return make(rate, generator=seeded_generator(1))

    def paid_twice(rate: float) -> PrivateSession:
        return make(rate, charges=StepCharges(ledger, "visits", PLAN))

    def begun(rate: float) -> PrivateSession:
        run = make(rate)
        one_step(run)
        return run

    for wrong in (fixed_key, paid_twice, begun):
        with pytest.raises(PrivacyRefusal, match="make must return a new session"):
            choose(ledger, make=wrong)
    with pytest.raises(InvalidInput, match="candidates is empty"):
        choose(ledger, candidates=[])
