"""calibrate, largest_steps, epsilon_schedule: certified, tight, fast enough, and refusing the impossible."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from priced import curve_of, epsilon

from tacit.accounting import account, calibrate, contour, epsilon_schedule, largest_steps
from tacit.accounting.calibrate import LooseBudget
from tacit.accounting.closed_form import gaussian_epsilon
from tacit.accounting.contour import draw
from tacit.accounting.flatten import NoiseOutOfRange
from tacit.errors import BudgetExceeded, InvalidInput, UnsupportedEvent
from tacit.events import (
    BallsInBins,
    Compose,
    DiscreteGaussian,
    Event,
    Gaussian,
    Laplace,
    PoissonSampled,
    Repeat,
)


def dp_sgd(sigma: float, q: float = 0.01, steps: int = 10_000) -> Event:
    return Repeat(PoissonSampled(q, Gaussian(sigma)), steps)


def noise_for(plan: Callable[[float], Event], target: float, **changes: Any) -> float:
    """Calibrate at delta 1e-5, under add-remove."""
    return calibrate(plan, epsilon=target, **{"delta": 1e-5, "adjacency": "add-remove", **changes})


def check_certified(
    plan: Callable[[float], Event], target: float, slack: float = 1e-3, **method: str
) -> float:
    """Check that the noise keeps the promise, and a little less does not."""
    sigma = noise_for(plan, target, **method)
    assert epsilon(plan(sigma), **method) <= target  # type: ignore[arg-type]
    assert epsilon(plan(sigma * (1 - slack)), **method) > target  # type: ignore[arg-type]
    return sigma


# noise whose epsilon is the target, by the inversion integral at 19 digits (oracle_inversion.py)
@pytest.mark.parametrize(
    ("target", "truth"), [(8.0, 0.8825284902764448), (2.0, 2.1273754347141445), (0.5, 7.083521808530993)]
)
def test_calibrate_is_certified_and_tight(target: float, truth: float) -> None:
    assert truth * (1 - 1e-14) <= check_certified(dp_sgd, target, 1e-4) <= truth * (1 + 1e-4)


@pytest.mark.parametrize("method", ["rdp", "moments", "strong", "basic"])
def test_calibrate_with_every_method(method: str) -> None:
    check_certified(lambda s: dp_sgd(s, steps=500), 3.0, method=method)


CERTIFIED: dict[str, tuple[Callable[[float], Event], float]] = {
    "much privacy": (dp_sgd, 0.1),
    "little privacy": (dp_sgd, 20.0),
    "Laplace": (lambda s: Repeat(Laplace(s), 50), 1.0),
    "little noise": (lambda s: dp_sgd(s, 0.001, 1000), 15.0),
    "one pass of bins": (lambda s: BallsInBins(100, Gaussian(s)), 1.0),
    "one pass, little noise": (lambda s: BallsInBins(100, Gaussian(s)), 6.0),
    "ten passes": (lambda s: BallsInBins(10, Gaussian(s), passes=10), 0.1),
}


@pytest.mark.thorough(cases=6)
@pytest.mark.parametrize("name", CERTIFIED)
def test_calibrate_is_certified_for_other_plans(name: str) -> None:
    check_certified(*CERTIFIED[name])


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "zero-out"])
def test_calibrate_full_batch_is_the_closed_form(adjacency: str) -> None:
    sigma = calibrate(lambda s: Repeat(Gaussian(s), 2500), epsilon=2.0, delta=1e-6, adjacency=adjacency)
    sensitivity = 2.0 if adjacency == "replace-one" else 1.0
    assert gaussian_epsilon(1e-6, sensitivity * 50.0 / sigma) == pytest.approx(2.0, rel=2e-4)
    assert gaussian_epsilon(1e-6, sensitivity * 50.0 / sigma) <= 2.0


def test_calibrate_leaves_room_for_a_fixed_part() -> None:
    sigma = check_certified(lambda s: Compose((Gaussian(7.0), dp_sgd(s))), 2.0)
    assert sigma > noise_for(dp_sgd, 2.0)


def test_calibrate_refuses_a_fixed_part_that_is_too_dear() -> None:
    with pytest.raises(BudgetExceeded, match=r"costs epsilon 4\.37.*does not depend on the noise"):
        noise_for(lambda s: Compose((Gaussian(1.0), dp_sgd(s))), 2.0)


def test_calibrate_refuses_what_its_bound_cannot_certify() -> None:
    fixed = gaussian_epsilon(1e-5, 1.0)
    with pytest.raises(BudgetExceeded):
        noise_for(lambda s: Compose((Gaussian(1.0), PoissonSampled(0.5, Gaussian(s)))), fixed)


@pytest.mark.parametrize("method", ["pld", "rdp", "basic"])
@pytest.mark.parametrize("target", [1e5, 1e300])
def test_calibrate_says_so_where_the_least_noise_it_prices_is_enough(method: str, target: float) -> None:
    """No epsilon is claimed that the noise does not have: the message has the noise, and what that costs."""
    cost = epsilon(dp_sgd(0.1, 0.3, 100), method=method)
    with pytest.raises(LooseBudget, match=rf"0\.1, .* only epsilon {cost:.4g} at") as refusal:
        noise_for(lambda s: dp_sgd(s, 0.3, 100), target, method=method)
    assert refusal.value.noise == 0.1
    assert isinstance(refusal.value, InvalidInput)


def test_the_least_noise_may_be_above_that_of_the_range() -> None:
    """Under replace-one a Gaussian composed with a sample has half the noise against its sensitivity."""

    def plan(sigma: float) -> Event:
        return Compose((Gaussian(sigma), Repeat(PoissonSampled(0.5, Laplace(100.0)), 3), Gaussian(50.0)))

    with pytest.raises(LooseBudget, match=r"0\.2, this plan costs") as refusal:
        noise_for(plan, 1e6, adjacency="replace-one")
    assert refusal.value.noise == pytest.approx(0.2, rel=1e-3)
    account(plan(refusal.value.noise), adjacency="replace-one")


def test_a_loose_budget_is_lowered_to_10_only_from_above() -> None:
    for target, says in ((0.1, r"'pld'\)\. Lower epsilon or delta"), (50.0, r"Lower epsilon, to 10 or")):
        with pytest.raises(LooseBudget, match=says):
            noise_for(lambda s: PoissonSampled(1e-9, Gaussian(s)), target)


def test_an_infinite_epsilon_says_how_to_train_without_privacy() -> None:
    with pytest.raises(InvalidInput, match="DataLoader"):
        noise_for(dp_sgd, math.inf)


def test_calibrate_just_above_the_least_noise() -> None:
    target = epsilon(dp_sgd(0.10001, 0.3, 100))
    sigma = noise_for(lambda s: dp_sgd(s, 0.3, 100), target)
    assert 0.1 < sigma == pytest.approx(0.10001, rel=2e-4)
    assert epsilon(dp_sgd(sigma, 0.3, 100)) <= target


# --- trials with more noise than the accountant prices ---------------------------------------------------


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize(("rate", "steps", "scale"), [(0.5, 8, 2e5), (1.0, 4, 1.0), (0.5, 8, 1.0)])
def test_calibrate_though_a_trial_has_more_noise_than_is_priced(
    rate: float, steps: int, scale: float
) -> None:
    """Also next to the largest noise."""

    def plan(sigma: float) -> Event:
        return dp_sgd(scale * sigma, rate, steps)

    sigma = noise_for(plan, 1e-9, delta=1e-6)
    assert 1e5 < scale * sigma < 1e6
    assert epsilon(plan(sigma), 1e-6) <= 1e-9


def test_too_many_outcomes_of_discrete_noise_are_too_much_noise() -> None:
    """So Repeat(DiscreteGaussian(s), 16) is calibrated at epsilon 0.001, s = 9746, in some twenty seconds."""
    with pytest.raises(NoiseOutOfRange, match="outcomes") as refusal:
        curve_of(Repeat(DiscreteGaussian(16_384.0), 16))
    assert not refusal.value.too_small
    with pytest.raises(UnsupportedEvent, match="outcomes") as unit:
        curve_of(Repeat(DiscreteGaussian(1e4, sensitivity=2**21), 16))
    assert not isinstance(unit.value, NoiseOutOfRange)


@pytest.mark.parametrize("digits", [{}, {"digits": 6}])
def test_calibrate_says_that_a_goal_needs_more_noise_than_is_priced(digits: dict[str, int]) -> None:
    with pytest.raises(BudgetExceeded, match=r"more noise than Tacit can account for"):
        noise_for(lambda s: BallsInBins(10, Gaussian(s)), 1e-4, delta=1e-6, **digits)


def test_a_fixed_part_that_nobody_prices_is_refused_and_not_searched_around() -> None:
    with pytest.raises(NoiseOutOfRange, match=r"got 0\.01"):
        noise_for(lambda s: Compose((dp_sgd(0.01), Gaussian(s))), 1.0)


@pytest.mark.parametrize(("target", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (1.0, 0.0), (1.0, 1.0)])
def test_calibrate_checks_its_targets(target: float, delta: float) -> None:
    with pytest.raises(InvalidInput):
        noise_for(dp_sgd, target, delta=delta)


def test_calibrate_is_fast() -> None:
    """Counted in what it asks: five exact answers are what it takes, and nine more estimates."""
    family = mock.Mock(side_effect=dp_sgd)
    module = importlib.import_module("tacit.accounting.calibrate")  # the function has the same name
    with mock.patch.object(module, "account", wraps=account) as exact:
        calibrate(family, epsilon=2.9, delta=1e-5, adjacency="add-remove")
    assert exact.call_count <= 7
    assert family.call_count <= 20


# --- steps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sigma", "q", "target"), [(4.0, 0.01, 1.0), (1.0, 0.001, 2.0), (1.0, 0.1, 2.0)])
def test_largest_steps_is_the_boundary(sigma: float, q: float, target: float) -> None:
    steps = largest_steps(lambda n: dp_sgd(sigma, q, n), epsilon=target, delta=1e-5, adjacency="add-remove")
    assert epsilon(dp_sgd(sigma, q, steps)) <= target < epsilon(dp_sgd(sigma, q, steps + 1))


@pytest.mark.parametrize("method", ["gaussian", "rdp", "pld"])
def test_largest_steps_of_gaussians(method: str) -> None:
    steps = largest_steps(
        lambda n: Repeat(Gaussian(50.0), n), epsilon=2.0, delta=1e-5, adjacency="add-remove", method=method
    )
    assert epsilon(Repeat(Gaussian(50.0), steps), method=method) <= 2.0
    assert epsilon(Repeat(Gaussian(50.0), steps + 1), method=method) > 2.0
    assert (steps == 628) == (method != "rdp")


def test_largest_steps_may_be_none_or_without_end() -> None:
    assert (
        largest_steps(lambda n: Repeat(Gaussian(0.5), n), epsilon=1.0, delta=1e-5, adjacency="add-remove")
        == 0
    )
    assert (
        largest_steps(lambda n: Repeat(Gaussian(5.0), n), epsilon=0.0, delta=1e-5, adjacency="add-remove")
        == 0
    )
    with pytest.raises(InvalidInput, match="stay within the budget"):
        largest_steps(lambda n: Gaussian(5.0), epsilon=1.0, delta=1e-5, adjacency="add-remove")


# --- schedule --------------------------------------------------------------------------------------------


def test_schedule_is_account_at_every_count() -> None:
    counts = [1, 10, 100, 1000, 10_000]
    schedule = epsilon_schedule(lambda n: dp_sgd(1.0, 0.01, n), counts, delta=1e-5, adjacency="add-remove")
    assert schedule == [epsilon(dp_sgd(1.0, 0.01, n)) for n in counts]
    truth = [0.199450, 0.379902, 0.718036, 1.828237, 6.187712]  # accounting.md section 6
    assert schedule == pytest.approx(truth, rel=1e-4)
    assert schedule == sorted(schedule)


def test_schedule_checks_its_counts() -> None:
    assert epsilon_schedule(dp_sgd, [], delta=1e-5, adjacency="add-remove") == []
    with pytest.raises(InvalidInput, match="count"):
        epsilon_schedule(lambda n: dp_sgd(1.0, 0.01, n), [0], delta=1e-5, adjacency="add-remove")


def test_schedule_is_cheap() -> None:
    """Counted in lines of integration, the dear part: five hundred counts share some thirty."""
    with mock.patch.object(contour, "draw", wraps=draw) as drawn:
        epsilon_schedule(
            lambda n: dp_sgd(4.0, 0.01, n), range(20, 10_001, 20), delta=1e-5, adjacency="add-remove"
        )
    assert 0 < drawn.call_count <= 60


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize(("delta", "adjacency"), [(1e-100, "add-remove"), (1e-300, "replace-one")])
def test_calibrate_at_a_delta_next_to_nothing(delta: float, adjacency: str) -> None:
    noise = noise_for(lambda s: dp_sgd(s, steps=100), 1.0, delta=delta, adjacency=adjacency)
    assert epsilon(dp_sgd(noise, steps=100), delta, adjacency=adjacency) <= 1.0
