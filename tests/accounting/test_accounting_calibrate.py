"""calibrate, largest_steps, epsilon_schedule: certified, tight, fast enough, and refusing the impossible."""

from __future__ import annotations

import importlib
import math
from unittest import mock

import pytest
from priced import epsilon

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


# noise whose epsilon is the target, by the inversion integral at 19 digits (oracle_inversion.py)
@pytest.mark.parametrize(
    ("target", "truth"),
    [
        (8.0, 0.8825284902764448),
        (2.0, 2.1273754347141445),
        (0.5, 7.083521808530993),
        (0.1, None),
        (20.0, None),
    ],
)
def test_calibrate_is_certified_and_tight(target: float, truth: float | None) -> None:
    sigma = calibrate(dp_sgd, epsilon=target, delta=1e-5, adjacency="add-remove")
    assert epsilon(dp_sgd(sigma)) <= target
    assert epsilon(dp_sgd(sigma * (1 - 1e-4))) > target
    if truth is not None:
        assert truth * (1 - 1e-14) <= sigma <= truth * (1 + 1e-4)


@pytest.mark.parametrize("method", ["rdp", "moments", "strong", "basic"])
def test_calibrate_with_every_method(method: str) -> None:
    sigma = calibrate(
        lambda s: dp_sgd(s, steps=500), epsilon=3.0, delta=1e-5, adjacency="add-remove", method=method
    )
    assert epsilon(dp_sgd(sigma, steps=500), method=method) <= 3.0
    assert epsilon(dp_sgd(sigma * (1 - 1e-3), steps=500), method=method) > 3.0


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "zero-out"])
def test_calibrate_full_batch_is_the_closed_form(adjacency: str) -> None:
    sigma = calibrate(lambda s: Repeat(Gaussian(s), 2500), epsilon=2.0, delta=1e-6, adjacency=adjacency)
    sensitivity = 2.0 if adjacency == "replace-one" else 1.0
    assert gaussian_epsilon(1e-6, sensitivity * 50.0 / sigma) == pytest.approx(2.0, rel=2e-4)
    assert gaussian_epsilon(1e-6, sensitivity * 50.0 / sigma) <= 2.0


def test_calibrate_leaves_room_for_a_fixed_part() -> None:
    def plan(sigma: float) -> Event:
        return Compose((Gaussian(7.0), dp_sgd(sigma)))

    sigma = calibrate(plan, epsilon=2.0, delta=1e-5, adjacency="add-remove")
    assert epsilon(plan(sigma)) <= 2.0 < epsilon(plan(sigma * (1 - 1e-3)))
    assert sigma > calibrate(dp_sgd, epsilon=2.0, delta=1e-5, adjacency="add-remove")


def test_calibrate_a_laplace_plan_and_a_small_noise_plan() -> None:
    sigma = calibrate(lambda s: Repeat(Laplace(s), 50), epsilon=1.0, delta=1e-6, adjacency="add-remove")
    assert epsilon(Repeat(Laplace(sigma), 50), 1e-6) <= 1.0
    small = calibrate(
        lambda s: dp_sgd(s, q=0.001, steps=1000), epsilon=15.0, delta=1e-5, adjacency="add-remove"
    )
    assert small < 0.5
    assert epsilon(dp_sgd(small, q=0.001, steps=1000)) <= 15.0


def test_calibrate_refuses_a_fixed_part_that_is_too_dear() -> None:
    with pytest.raises(BudgetExceeded, match=r"costs epsilon 4\.37.*does not depend on the noise"):
        calibrate(
            lambda s: Compose((Gaussian(1.0), dp_sgd(s))), epsilon=2.0, delta=1e-5, adjacency="add-remove"
        )


def test_calibrate_refuses_what_its_bound_cannot_certify() -> None:
    fixed = gaussian_epsilon(1e-5, 1.0)
    with pytest.raises(BudgetExceeded):
        calibrate(
            lambda s: Compose((Gaussian(1.0), PoissonSampled(0.5, Gaussian(s)))),
            epsilon=fixed,
            delta=1e-5,
            adjacency="add-remove",
        )


@pytest.mark.parametrize("method", ["pld", "rdp", "basic"])
@pytest.mark.parametrize("target", [1e5, 1e9, 1e300])
def test_calibrate_says_so_where_the_least_noise_it_prices_is_enough(method: str, target: float) -> None:
    """No epsilon is claimed that the noise does not have: the message has the noise, and what that costs."""
    cost = epsilon(dp_sgd(0.1, q=0.3, steps=100), method=method)
    with pytest.raises(
        LooseBudget, match=rf"multiplier 0\.1, this plan costs only epsilon {cost:.4g} at"
    ) as refusal:
        calibrate(
            lambda s: dp_sgd(s, q=0.3, steps=100),
            epsilon=target,
            delta=1e-5,
            adjacency="add-remove",
            method=method,
        )
    assert refusal.value.noise == 0.1
    assert isinstance(refusal.value, InvalidInput)


def test_the_least_noise_may_be_above_that_of_the_range() -> None:
    """Under replace-one a Gaussian composed with a sample has half the noise against its sensitivity."""

    def plan(sigma: float) -> Event:
        return Compose((Gaussian(sigma), Repeat(PoissonSampled(0.5, Laplace(100.0)), 3), Gaussian(50.0)))

    with pytest.raises(LooseBudget, match=r"multiplier 0\.2, this plan costs") as refusal:
        calibrate(plan, epsilon=1e6, delta=1e-5, adjacency="replace-one")
    assert refusal.value.noise == pytest.approx(0.2, rel=1e-3)
    account(plan(refusal.value.noise), adjacency="replace-one")


def test_a_loose_budget_is_lowered_to_10_only_from_above() -> None:
    def plan(sigma: float) -> Event:
        return PoissonSampled(1e-9, Gaussian(sigma))

    for target, says in (
        (0.1, r"'pld'\)\. Lower epsilon or delta"),
        (50.0, r"nothing\. Lower epsilon, to 10 or"),
    ):
        with pytest.raises(LooseBudget, match=says):
            calibrate(plan, epsilon=target, delta=1e-5, adjacency="add-remove")


def test_an_infinite_epsilon_says_how_to_train_without_privacy() -> None:
    with pytest.raises(InvalidInput, match="without privacy, take batches from a torch DataLoader"):
        calibrate(dp_sgd, epsilon=math.inf, delta=1e-5, adjacency="add-remove")


def test_calibrate_just_above_the_least_noise() -> None:
    target = epsilon(dp_sgd(0.10001, q=0.3, steps=100))
    sigma = calibrate(
        lambda s: dp_sgd(s, q=0.3, steps=100), epsilon=target, delta=1e-5, adjacency="add-remove"
    )
    assert 0.1 < sigma == pytest.approx(0.10001, rel=2e-4)
    assert epsilon(dp_sgd(sigma, q=0.3, steps=100)) <= target


# --- trials with more noise than the accountant prices ---------------------------------------------------


def test_calibrate_though_a_trial_has_more_noise_than_is_priced() -> None:
    def plan(sigma: float) -> Event:
        return Repeat(PoissonSampled(0.5, Gaussian(2e5 * sigma)), 8)

    sigma = calibrate(plan, epsilon=1e-9, delta=1e-6, adjacency="add-remove")
    assert 1e5 < 2e5 * sigma < 1e6
    assert account(plan(sigma), adjacency="add-remove").epsilon(1e-6) <= 1e-9


def test_too_many_outcomes_of_discrete_noise_are_too_much_noise() -> None:
    """So Repeat(DiscreteGaussian(s), 16) is calibrated at epsilon 0.001, s = 9746, in some twenty seconds."""
    with pytest.raises(NoiseOutOfRange, match="outcomes") as refusal:
        account(Repeat(DiscreteGaussian(16_384.0), 16), adjacency="add-remove")
    assert not refusal.value.too_small
    with pytest.raises(UnsupportedEvent, match="outcomes") as unit:
        account(Repeat(DiscreteGaussian(1e4, sensitivity=2**21), 16), adjacency="add-remove")
    assert not isinstance(unit.value, NoiseOutOfRange)


@pytest.mark.parametrize(("bins", "passes", "target"), [(100, 1, 1.0), (100, 1, 6.0), (10, 10, 0.1)])
def test_calibrate_balls_in_bins(bins: int, passes: int, target: float) -> None:
    def plan(sigma: float) -> Event:
        return BallsInBins(bins, Gaussian(sigma), passes=passes)

    sigma = calibrate(plan, epsilon=target, delta=1e-5, adjacency="add-remove")
    assert epsilon(plan(sigma)) <= target < epsilon(plan(sigma * (1 - 1e-3)))


def test_calibrate_balls_in_bins_in_few_trials() -> None:
    family = mock.Mock(side_effect=lambda sigma: BallsInBins(100, Gaussian(sigma)))
    module = importlib.import_module("tacit.accounting.calibrate")
    with mock.patch.object(module, "account", wraps=account) as exact:
        calibrate(family, epsilon=1.0, delta=1e-5, adjacency="add-remove")
    assert exact.call_count <= 6
    assert family.call_count <= 45


def test_calibrate_says_that_a_goal_needs_more_noise_than_is_priced() -> None:
    with pytest.raises(BudgetExceeded, match=r"needs more noise than can be accounted for.* up to 100"):
        calibrate(lambda s: BallsInBins(10, Gaussian(s)), epsilon=1e-4, delta=1e-6, adjacency="add-remove")
    with pytest.raises(BudgetExceeded, match="needs more noise than can be accounted for"):
        calibrate(
            lambda s: BallsInBins(10, Gaussian(s)),
            epsilon=1e-4,
            delta=1e-6,
            adjacency="add-remove",
            digits=6,
        )


def test_a_fixed_part_that_nobody_prices_is_refused_and_not_searched_around() -> None:
    with pytest.raises(NoiseOutOfRange, match=r"got 0\.01"):
        calibrate(
            lambda s: Compose((dp_sgd(0.01), Gaussian(s))), epsilon=1.0, delta=1e-5, adjacency="add-remove"
        )


@pytest.mark.parametrize(
    ("target", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 1.0)]
)
def test_calibrate_checks_its_targets(target: float, delta: float) -> None:
    with pytest.raises(InvalidInput):
        calibrate(dp_sgd, epsilon=target, delta=delta, adjacency="add-remove")


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
    with pytest.raises(InvalidInput, match="still fit"):
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


@pytest.mark.parametrize(("rate", "steps"), [(1.0, 4), (0.5, 8)])
def test_calibrate_finds_the_noise_next_to_its_largest(rate: float, steps: int) -> None:
    def plan(sigma: float) -> Event:
        return Repeat(PoissonSampled(rate, Gaussian(sigma)), steps)

    noise = calibrate(plan, epsilon=1e-9, delta=1e-6, adjacency="add-remove")
    assert 1e5 < noise < 1e6
    assert account(plan(noise), adjacency="add-remove").epsilon(1e-6) <= 1e-9


def test_calibrate_at_a_delta_next_to_nothing() -> None:
    def plan(sigma: float) -> Event:
        return Repeat(PoissonSampled(0.01, Gaussian(sigma)), 100)

    for delta, adjacency in ((1e-100, "add-remove"), (1e-300, "replace-one")):
        noise = calibrate(plan, epsilon=1.0, delta=delta, adjacency=adjacency)
        assert account(plan(noise), adjacency=adjacency).epsilon(delta) <= 1.0
