"""The noise that a plan predicts: its length by drawing it, its changes, and the warnings."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tacit
from tacit.clipping.rules import AdaptiveClipping, AutomaticClipping, PerLayerClipping
from tacit.correlation import BLT, Banded, BandedInverse, Correlation, Tree
from tacit.errors import InvalidInput, WeakSignalWarning
from tacit.integrations.sklearn import PrivateClassifier
from tacit.losses import classification
from tacit.plan import LossReport, Plan, Signal
from tacit.plan.signal import Verdict, rank_tuning, warn_if_drowned
from tacit.runs.config import Config, parse_config, read_config
from tacit.runs.plan import make_plan, trained_weights
from tacit.sampling import CyclicPoissonSampling
from tacit.training import PrivateSession

COMMON: dict[str, Any] = {"delta": 1e-5, "clipping": 1.0, "adjacency": "add-remove", "unit": "row"}


def noisy(**settings: Any) -> Plan:
    """Return a plan of 10,000 records."""
    facts = {"noise_multiplier": 2.0, "records": 10_000, "batch_size": 500, "steps": 40}
    return Plan.with_noise(**(COMMON | facts | settings))


def drawn(form: Correlation | None, steps: int, weights: int, rng: np.random.Generator) -> np.ndarray:
    """Return the (T, d) noise of the steps by the definition, C w = z; for trees, from a step's draws."""
    if form is None:
        return rng.standard_normal((steps, weights))
    if isinstance(form, Tree):
        nodes: dict[int, np.ndarray] = {}
        rows = [
            sum(f * nodes.setdefault(n, rng.standard_normal(weights)) for n, f in form.terms(t))
            for t in range(steps)
        ]
        return np.array(rows)
    made: Any = form
    inverse = made.inverse(steps)
    matrix = np.array([[inverse[t - s] if s <= t else 0.0 for s in range(steps)] for t in range(steps)])
    return matrix @ rng.standard_normal((steps, weights))


FORMS = [None, Banded((1.0, 0.5)), BandedInverse((1.0, -0.5)), Tree(), BLT((0.5,), (0.25,))]


@pytest.mark.parametrize("form", FORMS)
def test_the_lengths_are_those_of_drawn_noise(form: Correlation | None) -> None:
    steps, weights, rng = 16, 4_000, np.random.default_rng(3)
    plan = noisy(steps=steps)
    if form is not None:
        plan = replace(plan, sampling=CyclicPoissonSampling(1.0, 20), correlation=form)
    noise = 2.0 / 500 * drawn(form, steps, weights, rng)  # of mean gradients, at C = 1
    signal = plan.signal(weights)
    each = np.linalg.norm(noise, axis=1)
    step = math.sqrt((each**2).mean()) if isinstance(form, Tree) else each[-1]
    assert signal.noise_of_step == pytest.approx(step, rel=0.05)
    sums = (np.cumsum(noise, axis=0) ** 2).sum(axis=1)
    assert signal.noise_of_run == pytest.approx(
        math.sqrt(sums.mean()) / math.sqrt((steps + 1) / 2) / math.sqrt(steps), rel=0.05
    )
    if form is None:
        assert signal.noise_of_run == pytest.approx(np.linalg.norm(noise.mean(axis=0)), rel=0.05)


def test_a_step_of_a_session_has_noise_of_that_length() -> None:
    """Train on records with zero gradients, so that a step is noise alone."""
    plan, model = noisy(records=500, batch_size=None, steps=1, delta=1e-4), nn.Linear(300, 10)
    before = [p.detach().clone() for p in model.parameters()]
    session = PrivateSession(
        model, torch.optim.SGD(model.parameters(), lr=1.0), torch.zeros(500, 300), plan,
        loss=lambda model, x: 0.0 * model(x).sum(1),
    )  # fmt: skip
    for ticket in session.batches():
        session.step(ticket)
    pairs = zip(before, model.parameters(), strict=True)
    moved = math.sqrt(sum(float((a - b.detach()).square().sum()) for a, b in pairs))
    assert plan.signal(3_010).noise_of_step == pytest.approx(moved, rel=0.08)


@pytest.mark.parametrize("rule", [PerLayerClipping(1.0), AutomaticClipping(1.0), AdaptiveClipping(1.0)])
def test_the_rule_does_not_change_the_ratio_but_by_what_its_releases_cost(rule: Any) -> None:
    plain, other = noisy().signal(1000), noisy(clipping=rule).signal(1000)
    cost = other.plan.gradient_noise_multiplier / 2.0
    assert other.noise_of_step == pytest.approx(plain.noise_of_step * cost)
    assert (cost > 1.0) is isinstance(rule, AdaptiveClipping)


def test_what_is_released_beside_the_gradients_counts() -> None:
    loud = noisy(loss_report=LossReport(relative_noise=0.6))
    assert loud.signal(10).noise_of_run > 1.5 * noisy().signal(10).noise_of_run


def test_views_and_rows_per_user_change_nothing_but_the_noise_that_was_calibrated() -> None:
    plain = noisy().signal(10)
    assert noisy(views=4).signal(10).noise_of_run == plain.noise_of_run
    assert noisy(rows_per_user=3).signal(10).noise_of_run == plain.noise_of_run


@given(
    weights=st.integers(1, 10**8), factor=st.integers(2, 50), epsilon=st.floats(0.2, 4.0),
    records=st.integers(500, 20_000),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_fewer_weights_more_records_and_epsilon_lose_less(
    weights: int, factor: int, epsilon: float, records: int
) -> None:
    def lost(weights: int, epsilon: float, records: int) -> float:
        plan = Plan.calibrate(**COMMON, epsilon=epsilon, records=records, steps=20)
        return plan.signal(weights).lost

    here = lost(weights, epsilon, records)
    assert 0.0 < here < 1.0
    assert lost(factor * weights, epsilon, records) > here
    assert lost(weights, 2.0 * epsilon, records) < here
    assert lost(weights, epsilon, 3 * records) < here


def hopeless() -> Signal:
    """Return a signal of few records, a small epsilon and many weights."""
    return Plan.calibrate(**COMMON, epsilon=0.1, records=400, batch_size=100, steps=20).signal(400_000)


def test_each_change_is_the_signal_of_the_changed_plan() -> None:
    found = {change.quantity: change for change in hopeless().changes}
    assert set(found) == {"weights", "batch_size", "steps", "epsilon", "records"}
    same: dict[str, Any] = {"epsilon": 0.1, "records": 400, "batch_size": 100, "steps": 20}
    for what in ("batch_size", "steps", "epsilon"):
        plan = Plan.calibrate(**COMMON, **(same | {what: found[what].value}))
        assert found[what].noise_of_run == pytest.approx(plan.signal(400_000).noise_of_run, rel=1e-3)
    more = Plan.calibrate(**COMMON, **(same | {"records": 1600, "batch_size": 400}))
    assert found["records"].noise_of_run == pytest.approx(more.signal(400_000).noise_of_run, rel=1e-3)
    plan = Plan.calibrate(**COMMON, **same)
    assert found["weights"].share_lost == plan.signal(int(found["weights"].value)).lost


def test_what_helps_most_comes_first_and_is_named_with_its_figure() -> None:
    signal = hopeless()
    assert signal.verdict is Verdict.NOTHING
    assert signal.change is signal.changes[0]
    assert signal.change.share_lost == min(change.share_lost for change in signal.changes)
    assert f"{signal.change.value:,.0f}" in str(signal) or f"{signal.change.value:.3g}" in str(signal)
    assert str(signal.change) in signal._repr_html_().replace("&gt;", ">")


def test_a_run_that_learns_needs_no_change() -> None:
    signal = noisy().signal(10)
    assert signal.verdict is Verdict.LEARNS
    assert signal.change is None
    assert signal.as_data()["changes"] == []
    assert "can learn" in str(signal)


def test_weights_must_be_a_number_of_them() -> None:
    with pytest.raises(InvalidInput, match="weights must be an integer >= 1; got 0"):
        noisy().signal(0)


@pytest.fixture
def told() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", WeakSignalWarning)
        yield found


def session_of(plan: Plan, width: int) -> PrivateSession:
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))
    records = (torch.zeros(plan.records, 4), torch.zeros(plan.records, dtype=torch.int64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return PrivateSession(model, optimizer, records, plan, loss=classification())


def test_a_session_warns_once_at_the_users_line(told: list[warnings.WarningMessage]) -> None:
    session = session_of(hopeless().plan, 60_000)  # type: ignore[arg-type]
    (warning,) = told
    assert warning.filename == __file__
    assert "The change that helps most" in str(warning.message)
    session.step(next(session.batches()))
    assert len(told) == 1


def test_the_warning_passes_over_tacits_own_lines(told: list[warnings.WarningMessage]) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.random((200, 50)), np.arange(200) % 2
    PrivateClassifier(
        epsilon=0.01, delta=1e-3, unit="row", adjacency="add-remove", records=200, classes=[0, 1],
        bounds=(0, 1),
    ).fit(X, y)  # fmt: skip
    assert told
    assert {warning.filename for warning in told} == {__file__}


def test_a_session_that_can_learn_is_silent(told: list[warnings.WarningMessage]) -> None:
    session_of(noisy(noise_multiplier=1.0), 4)
    assert not told


def test_frozen_weights_do_not_count(told: list[warnings.WarningMessage]) -> None:
    plan = hopeless().plan
    few = Plan.with_noise(**COMMON, noise_multiplier=1.0, records=plan.records, batch_size=100, steps=20)
    model = nn.Sequential(nn.Linear(4, 400_000).requires_grad_(False), nn.Linear(400_000, 1))
    last: Any = model[1]
    last.weight.requires_grad_(False)
    records = torch.zeros(400, 4)
    PrivateSession(
        model, torch.optim.SGD([last.bias], lr=0.1), records, few, loss=lambda m, x: m(x).squeeze(1)
    )
    assert not told


def test_tuning_is_ranked_by_what_is_lost() -> None:
    plans = {"head": noisy(steps=80), "lora": noisy(), "full": noisy(noise_multiplier=4.0)}
    ranked = rank_tuning({"full": 22_000_000, "head": 770, "lora": 74_498}, plans.__getitem__)
    assert [one.name for one in ranked] == ["head", "lora", "full"]
    assert ranked[0].signal == plans["head"].signal(770)
    lost = [one.signal.lost for one in ranked]
    assert lost == sorted(lost)


ROOT = Path(__file__).parent.parent
RUN_FILES = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.S))
    if all(f"\n[{section}]" in f"\n{block}" for section in ("data", "model", "privacy", "training"))
]


@pytest.mark.parametrize("block", RUN_FILES)
def test_no_run_file_of_the_docs_is_warned_of(block: str) -> None:
    config = parse_config(re.sub(r"= *FILL IN.*", "= 1", block), "a page")
    weights = trained_weights_of(config)
    assert make_plan(config).signal(weights).verdict is not Verdict.NOTHING


def trained_weights_of(config: Config) -> int:
    """As the run file tells; else a million, or of a whole language model a hundred."""
    if config.model.huggingface is not None:
        return 10**8
    return trained_weights(config) or 10**6


def test_the_demo_can_learn() -> None:
    demo = read_config(Path(tacit.__file__).parent / "runs" / "demo.toml")
    assert make_plan(demo).signal(4_000).verdict is Verdict.LEARNS


def test_warn_if_drowned_is_of_its_own_class() -> None:
    with pytest.warns(WeakSignalWarning, match="too noisy for this model"):
        warn_if_drowned(hopeless())
