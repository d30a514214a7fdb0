"""Scores and models of survival, against definitions written out and, if installed, other libraries."""

from __future__ import annotations

import itertools
import math
import types

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad, vmap

from tacit.models.survival import LinearHazard, mean_time, survival_loss, survival_of, watched_and_ended
from tacit.training.survival import brier_scores, concordance, evaluate_survival, kaplan_meier

EDGES = (0.0, 2.0, 3.0, 7.0, 10.0)


def some_people(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return times with many ties, events, and risks with ties."""
    draw = np.random.default_rng(seed)
    times = draw.integers(0, 11, count).astype(float)
    return times, draw.random(count) < 0.6, draw.integers(0, 6, count).astype(float)


def concordance_by_pairs(times: np.ndarray, events: np.ndarray, risks: np.ndarray) -> float:
    right = pairs = 0.0
    for i, j in itertools.permutations(range(len(times)), 2):
        if events[i] and (times[i] < times[j] or (times[i] == times[j] and not events[j])):
            pairs += 1
            right += 1.0 if risks[i] > risks[j] else 0.5 if risks[i] == risks[j] else 0.0
    return right / pairs


@pytest.mark.parametrize("seed", range(5))
def test_concordance_is_that_of_all_pairs(seed: int) -> None:
    people = some_people(90, seed)
    assert concordance(*people) == pytest.approx(concordance_by_pairs(*people), abs=1e-12)


def test_concordance_of_reversed_risks_is_the_rest() -> None:
    times, events, _ = some_people(200)
    risks = np.random.default_rng(1).normal(size=200)
    assert concordance(times, events, risks) + concordance(times, events, -risks) == pytest.approx(1.0)
    assert math.isnan(concordance(times, np.zeros(200, dtype=bool), risks))  # everybody is censored


def test_scores_are_those_of_scikit_survival() -> None:
    metrics = pytest.importorskip("sksurv.metrics")
    times, events, risks = some_people(300)
    records = np.array(list(zip(events, times, strict=True)), dtype=[("event", bool), ("time", float)])
    expected = metrics.concordance_index_censored(events, times, risks)[0]
    assert concordance(times, events, risks) == pytest.approx(expected, abs=1e-12)

    # with ties, it divides an event by the share observed after it, and not until it
    records["time"] = times = times + np.random.default_rng(3).random(300)
    at = np.array([2.0, 3.0, 7.0])
    curves = np.sort(np.random.default_rng(2).random((300, 3)))[:, ::-1]
    expected = metrics.brier_score(records, records, curves, at)[1]
    assert brier_scores(times, events, curves, at) == pytest.approx(expected, abs=1e-9)


def observed_by_loop(times: np.ndarray, events: np.ndarray, until: float) -> float:
    """The probability to be observed at ``until``; a person is censored after the events of the same time."""
    value = 1.0
    for time in sorted({*times[times < until]}):
        left = ((times == time) & ~events).sum()
        value *= 1 - left / (left + (times > time).sum())
    return value


def test_brier_scores_with_ties_weigh_by_the_share_that_is_observed() -> None:
    times, events, _ = some_people(60, 4)
    curves = np.random.default_rng(5).random((60, 2))
    at = np.array([3.0, 6.0])
    expected = []
    for place, moment in enumerate(at):
        errors = []
        for time, event, alive in zip(times, events, curves[:, place], strict=True):
            if time > moment:
                errors.append((1 - alive) ** 2 / observed_by_loop(times, events, moment + 1e-9))
            else:
                errors.append(alive**2 / observed_by_loop(times, events, time) if event else 0.0)
        expected.append(np.mean(errors))
    assert brier_scores(times, events, curves, at) == pytest.approx(expected)


def test_brier_scores_without_censoring_are_squared_errors() -> None:
    times, events = np.array([1.0, 2.0, 5.0, 6.0]), np.ones(4, dtype=bool)
    curves = np.array([[0.9, 0.5], [0.4, 0.3], [0.8, 0.2], [1.0, 0.6]])
    alive = times[:, None] > np.array([1.5, 5.0])
    expected = ((curves - alive) ** 2).mean(0)
    assert brier_scores(times, events, curves, np.array([1.5, 5.0])) == pytest.approx(expected)


def test_kaplan_meier_is_the_product_of_its_definition() -> None:
    times, events, _ = some_people(80)
    value = 1.0
    for time, estimate in zip(*kaplan_meier(times, events), strict=True):
        value *= 1 - (events & (times == time)).sum() / (times >= time).sum()
        assert estimate == pytest.approx(value)


def bins_by_loop(time: float, event: bool) -> tuple[list[float], list[float]]:
    """Return in which bins a record is at risk, and in which its event is, by the definition."""
    watched, ended = [], []
    for low, high in itertools.pairwise(EDGES):
        inside = low <= time < high or (time == high == EDGES[-1])
        watched.append(float(low <= time if event else time > (low + high) / 2))
        ended.append(float(event and inside))
    return watched, ended


def test_bins_at_risk_are_those_of_the_definition() -> None:
    people = [(time / 4, event) for time in range(41) for event in (True, False)]
    watched, ended = watched_and_ended(torch.tensor([[t, float(e)] for t, e in people]), EDGES)
    expected = [bins_by_loop(*one) for one in people]
    assert watched.tolist() == [one for one, _ in expected]
    assert ended.tolist() == [one for _, one in expected]


def test_loss_is_the_negative_log_likelihood() -> None:
    logits = torch.tensor([[0.3, -1.0, 0.5, -2.0]], dtype=torch.float64)
    hazards = torch.sigmoid(logits - math.log(7))[0]  # relative to a hazard of 1 / 8
    loss = survival_loss(EDGES)
    died = loss(lambda _: logits, torch.zeros(1, 1), torch.tensor([[4.0, 1.0]]).double())  # type: ignore[arg-type]
    assert died.item() == pytest.approx(-math.log((1 - hazards[0]) * (1 - hazards[1]) * hazards[2]))
    left = loss(lambda _: logits, torch.zeros(1, 1), torch.tensor([[4.0, 0.0]]).double())  # type: ignore[arg-type]
    assert left.item() == pytest.approx(-math.log((1 - hazards[0]) * (1 - hazards[1])))


def test_mean_time_is_the_area_under_the_curve() -> None:
    curve = survival_of(math.log(7) + torch.tensor([[0.0, 0.0, -50.0, 50.0]]))
    assert curve[0].tolist() == pytest.approx([0.5, 0.25, 0.25, 0.0])
    area = 2 * 0.75 + 1 * 0.375 + 4 * 0.25 + 3 * 0.125
    assert mean_time(curve, EDGES).item() == pytest.approx(area)


class _Losses(torch.nn.Module):
    """The losses of a model as its forward pass, for torch.func."""

    def __init__(self, model: LinearHazard) -> None:
        super().__init__()
        self.model = model

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        losses: torch.Tensor = self.model.losses(*arguments)
        return losses


def gradients(model: LinearHazard, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return each record's gradient (n, P), by torch.func and not by the engine."""
    losses = _Losses(model)

    def of_one(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        bins = watched_and_ended(y[None], EDGES)
        found: torch.Tensor = functional_call(losses, weights, (x[None], *bins))[0]
        return found

    weights = {name: value.detach() for name, value in losses.named_parameters()}
    each = vmap(grad(of_one), in_dims=(None, 0, 0))(weights, inputs, targets)
    return torch.cat([one.flatten(1) for one in each.values()], dim=1)


def test_first_steps_release_a_histogram_of_norm_at_most_the_clipping_norm() -> None:
    model, (times, events, _) = LinearHazard(3, 4), some_people(60)
    plan = types.SimpleNamespace(
        steps=100,
        clipping=types.SimpleNamespace(norm=2.5),
        expected_batch_size=1e6,
        gradient_noise_multiplier=1.0,
    )
    model.for_plan(plan)
    model.phase.fill_(0.0)
    targets = torch.tensor(np.stack([times, events], axis=1), dtype=torch.float32)
    each = gradients(model, torch.randn(60, 3), targets)
    assert each.norm(dim=1).max() <= 2.5 + 1e-5
    assert set(each.norm(dim=1).round(decimals=4).tolist()) <= {0.0, 2.5}

    # after the first steps, the baseline is the hazard of the records in each bin
    with torch.no_grad():
        model.about_ends.weight -= each.mean(0)[-8:][None]
    watched, ended = watched_and_ended(targets, EDGES)
    expected = (ended.sum(0) / watched.sum(0)).clamp(1e-3, 0.9)
    assert model.baseline().tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_evaluation_scores_the_right_order_as_one_and_the_wrong_one_as_zero() -> None:
    targets = torch.tensor([[0.5, 1.0], [2.5, 1.0], [5.0, 1.0], [9.0, 0.0]])
    risk = torch.tensor([[3.0], [2.0], [1.0], [0.0]])

    class Model(torch.nn.Module):
        def __init__(self, sign: float) -> None:
            super().__init__()
            self.sign = sign

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.sign * inputs.expand(-1, 4) - 1.0

    assert evaluate_survival(Model(1.0), risk, targets, time_edges=EDGES).score == 1.0
    assert evaluate_survival(Model(-1.0), risk, targets, time_edges=EDGES).score == 0.0
    constant = evaluate_survival(Model(0.0), risk, targets, time_edges=EDGES)
    assert constant.score == 0.5
    assert constant.survival is not None
    assert constant.survival.observed == pytest.approx((1.0, 0.75, 0.5, 0.25, 0.25))
