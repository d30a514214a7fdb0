"""Noise in time: each way keeps the promise in a run, and the text follows the figures."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from experiments import noise_in_time
from experiments.noise_in_time import InTime, Ways, compare_in_time
from tacit.correlation import BLT, Banded, BandedInverse, Tree
from tacit.errors import InvalidInput
from tacit.plan import Plan
from tacit.planner import PlanRequest
from tacit.runs.config import parse_config
from tacit.runs.plan import make_plan
from tacit.training import PrivateSession

QUESTION = PlanRequest(records=2000, unit="image", epsilon=2, delta=1e-5, adjacency="add-remove", steps=60)
RUN = """
[data]
name = "digits"
[model]
name = "logistic"
{privacy}
epsilon = 2.0
delta = 1e-5
unit = "image"
adjacency = "add-remove"
records = 2000
[optimizer]
learning_rate = 0.1
[training]
batch_size = {batch}
steps = 60
"""


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    """Compare the smallest and a large one of each kind; four buffers take as long to fit as all others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise_in_time, "_BANDS", (2, 18))
        patch.setattr(noise_in_time, "_DRAWS", (2, 8))
        patch.setattr(noise_in_time, "_BUFFERS", (2,))
        yield


@pytest.fixture(scope="module")
def ways() -> Ways:
    return compare_in_time(QUESTION, 100)


@pytest.fixture(scope="module")
def plans(ways: Ways) -> dict[InTime, Plan]:
    """The plan of each way as a run file has it, made anew from its lines."""
    found = {}
    for way in (*ways.samples, *ways.parts):
        lines = Ways(100, 60, (way,), (way, *ways.parts)).as_toml(stream=True)
        found[way] = make_plan(parse_config(RUN.format(privacy=lines, batch=100), "run.toml"))
    return found


def simulated(plan: Plan, draws: int = 4000) -> float:
    """The noise of the sums of the first t steps, from draws and the dense matrix; with another generator."""
    T, form = plan.steps, plan.correlation
    z = np.random.default_rng(0).normal(size=(T, draws))
    w: NDArray[np.floating] = z
    if form is None:
        pass
    elif isinstance(form, Tree):
        w = np.zeros_like(z)
        for t in range(T):
            for address, weight in form.terms(t):
                w[t] += weight * np.random.default_rng(address).normal(size=draws)
    else:
        c = np.zeros(T)
        if isinstance(form, BLT):
            c[0] = 1.0
            for decay, scale in zip(form.decays, form.scales, strict=True):
                c[1:] += scale * decay ** np.arange(T - 1)
        else:
            assert isinstance(form, Banded | BandedInverse)
            c[: len(form.coefficients)] = form.coefficients
        matrix = sum(np.diag(np.full(T - i, c[i]), -i) for i in range(T))
        w = matrix @ z if isinstance(form, BandedInverse) else np.linalg.solve(matrix, z)
    sums = np.cumsum(w, axis=0)
    return plan.noise_multiplier * math.sqrt(float(np.mean(sums**2))) / plan.expected_batch_size


def test_the_run_of_each_way_has_its_noise_and_keeps_the_promise(plans: dict[InTime, Plan]) -> None:
    for way, plan in plans.items():
        assert plan.epsilon <= 2.0
        assert math.isclose(plan.noise_multiplier, way.noise_multiplier, rel_tol=1e-6), way
        assert simulated(plan) == pytest.approx(way.noise_of_sums, rel=0.03), way
        kinds: dict[str, type] = {
            "independent": type(None),
            "banded": Banded,
            "inverse": BandedInverse,
            "blt": BLT,
            "tree": Tree,
        }
        assert isinstance(plan.correlation, kinds[way.noise])


def test_a_run_stores_the_stated_amount_of_noise(plans: dict[InTime, Plan]) -> None:
    """All tensors that the session's noise holds after some steps."""
    seen = set()
    for way, plan in plans.items():
        if (way.noise, way.size) in seen or way.size > 32:
            continue
        seen.add((way.noise, way.size))
        model = nn.Linear(50, 1, bias=False)
        data = (torch.randn(2000, 50), torch.randn(2000, 1))
        session = PrivateSession(model, torch.optim.SGD(model.parameters(), lr=0.1), data, plan, loss=mse)
        for batch in itertools.islice(session.batches(), 40):
            session.step(batch)
            session.optimizer.zero_grad()
        assert session._run.correlated is None or held(session._run.correlated) == 50 * way.memory, way
        if way.noise == "blt":  # fewer where one more wins nothing
            assert 2 <= way.memory <= way.size + 1
        else:
            assert way.memory == {"banded": way.size + 8 * (way.size > 17)}.get(way.noise, 0)


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    losses: torch.Tensor = (model(x) - y).square().sum(1)
    return losses


def held(owner: object) -> int:
    """Numbers in the tensors that an object holds, found by Python's garbage collector."""
    found, todo, numbers = set(), [owner], 0
    while todo:
        thing = todo.pop()
        if id(thing) in found or isinstance(thing, type):
            continue
        found.add(id(thing))
        if isinstance(thing, torch.Tensor):
            numbers += thing.numel()
        todo += gc.get_referents(thing)
    return numbers


def test_ways_are_in_order_and_relative_to_independent_noise_on_samples(ways: Ways) -> None:
    for some in (ways.samples, ways.parts):
        assert [way.relative for way in some] == sorted(way.relative for way in some)
    plain = next(way for way in ways.samples if way.noise == "independent")
    assert plain.relative == 1.0
    for way in ways.parts:
        assert way.relative == pytest.approx(way.noise_of_sums / plain.noise_of_sums)


def test_all_records_in_each_step(ways: Ways) -> None:
    full = compare_in_time(replace(QUESTION, steps=12), 2000)
    assert {way.batches for way in full.samples} == {"full"}
    assert "all records" in full.in_words()
    assert "sampling" not in full.as_toml()


def test_the_words_follow_the_figures(ways: Ways) -> None:
    def way(noise: str, batches: str, relative: float) -> InTime:
        return InTime(noise, 4, batches, 5, 1.0, relative, relative, 0)

    plain, parts = way("independent", "poisson", 1.0), way("independent", "parts", 4.0)
    good = Ways(100, 60, (way("banded", "cyclic", 0.5), plain), (way("inverse", "parts", 0.9), parts))
    assert good.in_words().startswith("Take 4 bands on samples of 5 parts that take turns: 0.50 of the noise")
    assert "take 4 draws a step (inverse) on 5 whole parts that take turns: 0.90" in good.in_words()
    none = Ways(100, 60, (way("banded", "cyclic", 0.99), plain), (way("tree", "parts", 2.0), parts))
    assert none.in_words().startswith(
        "Take independent noise on Poisson samples: no other way has much less noise."
    )


def test_a_wrong_batch_size_is_refused() -> None:
    with pytest.raises(InvalidInput, match="batch_size"):
        compare_in_time(QUESTION, 2001)
