"""Linear models of tables: bins, a target's spread, rare classes, and the effect of a record on each step."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit.columns import Column, Encoder
from tacit.integrations.sklearn import PrivateClassifier
from tacit.losses import classification
from tacit.models import Logistic
from tacit.models.additive import Binned, Calibrated, StandardLinear, released, standard_loss
from tacit.plan import Plan
from tacit.recipes import BINS, linear_recipe
from tacit.testing import seeded_generator
from tacit.training import PrivateSession

N = 2000


def far_from_its_bounds(n: int = N) -> tuple[Tensor, Tensor]:
    """Return rows of three columns and a target of about -0.8, with a spread of 0.05."""
    random = torch.Generator().manual_seed(1)
    x = torch.rand(n, 3, generator=random) * 2 - 1
    y = -0.8 + 0.08 * x[:, :1] + 0.02 * torch.randn(n, 1, generator=random)
    return x, y.clamp(-1, 1)


def trained(
    x: Tensor, y: Tensor, epsilon: float = 8.0, steps: int | None = None, **changes: Any
) -> tuple[StandardLinear, Plan]:
    """Train by the recipe, with fixed noise."""
    recipe = linear_recipe(len(x), epsilon, classes=1, longest=2.0)
    plan = Plan.calibrate(
        epsilon=epsilon, delta=1e-5, records=len(x), steps=steps or recipe.steps,
        clipping=recipe.clipping_norm, adjacency="add-remove", unit="row",
    )  # fmt: skip
    model = StandardLinear(x.shape[1], y.shape[1])
    model.for_plan(plan)
    optimizer = torch.optim.SGD(model.groups(), lr=recipe.learning_rate, momentum=recipe.momentum)
    session = PrivateSession(
        model, optimizer, (x, y), plan, loss=standard_loss, generator=seeded_generator(3), **changes
    )
    for batch in session.batches():
        model.begin_step(optimizer, session.steps_done, plan.steps)
        session.step(batch)
    return model, plan


@cache
def learned() -> tuple[Tensor, Tensor, StandardLinear, Plan]:
    """Return rows and targets far from their bounds, and what is learned of them, for tests that read it."""
    x, y = far_from_its_bounds()
    model, plan = trained(x, y)
    return x, y, model, plan


def test_a_target_far_inside_its_bounds_is_learnt_as_one_that_fills_them() -> None:
    x, y, model, _ = learned()
    mean, spread = model.mean_and_spread()
    torch.testing.assert_close(mean, y.mean(0), atol=0.02, rtol=0)
    torch.testing.assert_close(spread, y.std(0), atol=0.02, rtol=0)
    with torch.no_grad():
        rest = (model(x) - y).square().mean() / y.var()
    assert rest < 0.3


def test_engines_agree() -> None:
    x, y = far_from_its_bounds(30)
    found = [trained(x, y, steps=33, engine=engine)[0].state_dict() for engine in ("fast", "reference")]
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=1e-4, atol=1e-5)


def a_plan(clipping: float, steps: int = 110) -> Plan:
    return Plan.with_noise(
        noise_multiplier=1.0, delta=1e-5, records=N, steps=steps, clipping=clipping, adjacency="add-remove",
        unit="row",
    )  # fmt: skip


@pytest.mark.parametrize("phase", [0, 1, 2])
@pytest.mark.parametrize("outputs", [1, 3])
def test_the_gradient_of_a_record_is_what_is_promised(phase: int, outputs: int) -> None:
    """While mean and spread are learned, no target in [-1, 1] makes the gradient longer than C."""
    torch.manual_seed(0)
    model = StandardLinear(4, outputs)
    model.for_plan(a_plan(0.7))
    last: Any = model.layer[-1]
    with torch.no_grad():
        model.about_mean.weight.copy_(torch.rand(1, outputs) - 0.5)
        model.about_spread.weight.copy_(torch.rand(1, outputs) * 0.1)
        last.weight.normal_()
    model.phase.fill_(float(phase))
    x, y = torch.rand(1, 4) * 2 - 1, torch.rand(1, outputs) * 2 - 1
    found = torch.autograd.grad(model(x, y).sum(), [*model.parameters()])
    mean, spread = model.mean_and_spread()
    residual = model.layer(x) - (y - mean) / spread
    of_mean, of_spread = -0.7 / outputs**0.5 * y, -0.35 / outputs**0.5 * (y - mean).abs()
    wanted = [residual.T @ x, residual[0], of_mean, of_spread]
    active = {0: (2,), 1: (3,), 2: (0, 1)}[phase]
    for place, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        torch.testing.assert_close(mine, theirs if place in active else torch.zeros_like(theirs))
    for target in (torch.ones(1, outputs), -torch.ones(1, outputs)):
        parts = torch.autograd.grad(model(x, target).sum(), [*model.parameters()])
        if phase < 2:
            assert torch.cat([part.flatten() for part in parts]).norm() <= 0.7 + 1e-6


@pytest.mark.parametrize("phase", [0, 1, 2])
@pytest.mark.parametrize("classes", [2, 5])
def test_the_gradient_of_a_classified_record_is_what_is_promised(phase: int, classes: int) -> None:
    """While shares and constants are learned, no record makes the gradient longer than C."""
    torch.manual_seed(0)
    model = Calibrated(Logistic(4, classes), classes)
    model.for_plan(a_plan(0.7))
    last: Any = model.layer[-1]
    with torch.no_grad():
        model.about_shares.weight.copy_(torch.rand(classes, 1) * 0.7 - 0.35)
        model.about_shares.weight[0] = -0.35  # a rare class
        model.about_constants.weight.normal_()
        last.weight.normal_(std=20)  # probabilities close to 0 and 1
    optimizer = torch.optim.SGD(model.groups(), lr=0.1)
    model.begin_step(optimizer, {0: 0, 1: 50, 2: 99}[phase], 100)
    active = {0: (2,), 1: (0, 1), 2: (3,)}[phase]
    for x in torch.rand(50, 1, 4) * 2 - 1:
        for target in range(classes):
            loss = classification()(model, x, torch.tensor([target])).sum()
            found = torch.autograd.grad(loss, [*model.parameters()])
            still = [part for place, part in enumerate(found) if place not in active]
            assert not any(part.any() for part in still)
            if phase != 1:
                assert found[active[0]].norm() <= 0.7 + 1e-6
    x = torch.rand(6, 4)
    torch.testing.assert_close(released(model)(x), model.eval()(x))


def test_without_a_rare_class_or_with_few_steps_the_last_steps_train_the_layer() -> None:
    """Constants from few noisy steps made three of ten answers of a balanced table wrong."""
    model = Calibrated(Logistic(4, 2), 2)
    model.for_plan(a_plan(0.7))
    assert [model.part_of(step, 100)[0] for step in (0, 50, 99)] == [0, 1, 1]
    with torch.no_grad():
        model.about_shares.weight.copy_(torch.tensor([[-0.3], [0.3]]))
    assert [model.part_of(step, 100)[0] for step in (0, 50, 99)] == [0, 1, 2]
    assert [model.part_of(step, 15)[0] for step in (0, 7, 14)] == [1, 1, 1]


def rare(n: int, rate: float) -> tuple[Any, Any]:
    """Return rows of five numbers in [-1, 1], and whether a rare event happened."""
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (n, 5))
    return x, (random.uniform(size=n) < rate * np.exp(x[:, 0] - 0.7 * x[:, 1]) / 1.27).astype(int)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("epsilon", [8.0, 1.0])
def test_a_rare_event_is_predicted_at_its_rate(epsilon: float) -> None:
    """At epsilon 1 the noise is 6 % of the rate; a false alarm is a 4 sigma event."""
    x, y = rare(15_000, 0.02)
    model = PrivateClassifier(
        epsilon=epsilon, delta=1e-5, unit="row", adjacency="add-remove", records=15_000, classes=[0, 1],
        bounds=(-1, 1),
    ).fit(x, y)  # fmt: skip
    ratio = float(model.predict_proba(x)[:, 1].mean() / y.mean())
    assert ratio == pytest.approx(1.0, abs=0.25 if epsilon == 1.0 else 0.1)  # without the last steps: 0.3


def test_few_steps_all_train_the_layer() -> None:
    model = Calibrated(Logistic(2, 2), 2)
    optimizer = torch.optim.SGD(model.groups(), lr=0.5)
    for step in range(9):
        model.begin_step(optimizer, step, 9)
        assert float(model.phase) == 1


def test_planted_bug_the_mean_by_another_clipping_norm_is_found() -> None:
    """A model with another clipping norm than the run's reads another mean from the weights."""
    _, y, model, plan = learned()
    wrong = StandardLinear(3, 1)
    wrong.for_plan(a_plan(2 * plan.clipping.norm))
    with torch.no_grad():
        wrong.about_mean.weight.copy_(model.about_mean.weight)
    assert abs(wrong.mean_and_spread()[0] - y.mean()) > 0.2


def test_no_spread_is_told_that_noise_hides() -> None:
    """If all targets are equal, noise would leave any spread, even a negative one."""
    x = torch.rand(300, 3) * 2 - 1
    model, plan = trained(x, torch.full((300, 1), 0.3), epsilon=1.0)
    _, spread = model.mean_and_spread()
    assert float(spread) >= 2 * plan.noise_multiplier / 300 / 5**0.5


def test_each_of_the_three_parts_of_a_run_moves_its_own_weights() -> None:
    model = StandardLinear(2, 1)
    optimizer = torch.optim.SGD(model.groups(), lr=0.5, momentum=0.9)
    for step, phase in ((0, 0), (1, 0), (2, 1), (3, 2), (32, 2)):
        model.begin_step(optimizer, step, 33)
        rates = [(group["lr"], group["momentum"]) for group in optimizer.param_groups]
        still = (0.0, 0.0)
        wanted = {0: [still, (0.5, 0.0), still], 1: [still, still, (1.0, 0.0)], 2: [(0.5, 0.9), still, still]}
        assert rates == wanted[phase]
        assert float(model.phase) == phase


NUMBER = st.floats(-50, 150, allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(NUMBER, st.sampled_from(["a", "b", "zz", ""])), min_size=1, max_size=8), st.booleans()
)
def test_no_row_of_a_table_is_longer_than_is_said(rows: list[tuple[float, str]], bins: bool) -> None:
    columns = {
        "number": Column(kind="number", lower=0, upper=100, missing="indicator"),
        "kind": Column(kind="category", values=("a", "b"), missing="indicator"),
        "day": Column(kind="date", lower="2020-01-01", upper="2021-01-01", parts=("weekday", "month")),
        "yes": Column(kind="boolean"),
    }
    encoder = Encoder({name: column.with_bins(BINS) if bins else column for name, column in columns.items()})
    cells = {
        "number": [f"{number:g}" for number, _ in rows],
        "kind": [word for _, word in rows],
        "day": ["2021-01-01"] * len(rows),
        "yes": ["yes"] * len(rows),
    }
    inputs = encoder.inputs(cells)
    lengths = np.sqrt(1 + np.square(inputs).sum(1))
    assert lengths.max() <= encoder.longest + 1e-6
    reached = encoder.inputs({**cells, "number": ["100"] * len(rows), "kind": ["a"] * len(rows)})
    assert np.sqrt(1 + np.square(reached).sum(1)).max() == pytest.approx(encoder.longest)


def test_bins_of_an_array_are_those_of_a_declared_column() -> None:
    values = np.linspace(0, 100, 41)
    column = Column(kind="number", lower=0, upper=100).with_bins(BINS)
    wanted = Encoder({"x": column}).inputs({"x": values})
    found = Binned(BINS)(torch.from_numpy((2 * values / 100 - 1).astype(np.float32))[:, None])
    inside = np.abs(values / 10 - np.round(values / 10)) > 1e-6  # on an edge, rounding decides
    np.testing.assert_allclose(found.numpy()[inside], wanted[inside], atol=1e-6)
