"""Ensembles of models: each trains on its records alone, and equals the run of a session of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.laboratory.ensembles import MLPEnsemble, train_plainly, train_privately
from tacit.audits.attacks import paired_halves
from tacit.clipping.rules import AdaptiveClipping
from tacit.correlation import Tree
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.noise.generator import Generator
from tacit.plan import LossReport, Plan
from tacit.sampling import FullBatch
from tacit.testing import seeded_generator
from tacit.training import PrivateSession

Bools = NDArray[np.bool_]
N, INPUTS, CLASSES = 40, 5, 3


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    torch.manual_seed(0)


def generators(count: int, *, seed: int = 0) -> list[Generator]:
    return [seeded_generator(100 * seed + number) for number in range(count)]


def records(n: int = N, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    by = torch.Generator().manual_seed(seed)
    return torch.randn(n, INPUTS, generator=by), torch.randint(0, CLASSES, (n,), generator=by)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(INPUTS, 7), nn.Tanh(), nn.Linear(7, CLASSES))


def mlps(by: list[Generator], activation: str = "tanh") -> MLPEnsemble:
    return MLPEnsemble((INPUTS, 7, CLASSES), activation, by)


def copy_of(models: MLPEnsemble, number: int) -> nn.Sequential:
    module = network()
    with torch.no_grad():
        for parameter, stacked in zip(module.parameters(), models.parameters, strict=True):
            parameter.copy_(stacked[number])
    return module


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def small_plan(**changes: Any) -> Plan:
    settings: dict[str, Any] = {"clipping": 0.5, "batch_size": 6, "steps": 8} | changes
    return Plan.with_noise(
        noise_multiplier=0.7, delta=1e-3, records=20, adjacency="add-remove", unit="row", **settings
    )


def fit(
    models: MLPEnsemble, x: Tensor, y: Tensor, mask: Bools, by: list[Generator], *, private: bool
) -> None:
    if private:
        train_privately(models, x, y, mask, small_plan(), learning_rate=0.3, momentum=0.5, generators=by)
    else:
        train_plainly(
            models, x, y, mask, learning_rate=0.3, momentum=0.5, batch_size=5, epochs=2, generators=by
        )


# --- gradients and runs against oracles -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tanh", "relu"])
def test_gradients_are_those_of_autograd_record_by_record(kind: str) -> None:
    by = generators(3)
    models = mlps(by, kind)
    x, y = torch.randn(3, 6, INPUTS), torch.randint(0, CLASSES, (3, 6))
    mask = torch.rand(3, 6) < 0.7
    x[~mask] = torch.nan  # padding may hold anything
    norm = 0.4
    sums = models.clipped_sums(x, y, mask, lambda norms: (norm / norms).clamp(max=1.0).nan_to_num(nan=0.0))
    means = models.mean_gradients(x.nan_to_num(), y)
    for number in range(3):
        module = copy_of(models, number)
        if kind == "relu":
            module[1] = nn.ReLU()
        parameters = list(module.parameters())
        want = [torch.zeros_like(p) for p in parameters]
        for row in np.flatnonzero(mask[number].numpy()):
            gradient = torch.autograd.grad(
                loss(module, x[number, row : row + 1], y[number, row : row + 1]), parameters
            )
            scale = min(1.0, norm / float(torch.cat([g.flatten() for g in gradient]).norm()))
            want = [w + scale * g for w, g in zip(want, gradient, strict=True)]
        mean = torch.autograd.grad(loss(module, x[number].nan_to_num(), y[number]).mean(), parameters)
        for position in range(4):
            torch.testing.assert_close(sums[position][number], want[position], rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(means[position][number], mean[position], rtol=1e-4, atol=1e-6)


def test_a_private_shadow_is_what_a_session_would_have_trained() -> None:
    """Same key, same records: the same samples, clipped gradients, noise and steps."""
    x, y = records()
    mask = paired_halves(4, N, np.random.default_rng(0))
    models = mlps(generators(4))
    wanted = [copy_of(models, number) for number in range(4)]
    fit(models, x, y, mask, generators(4), private=True)
    for number, module in enumerate(wanted):
        own = torch.from_numpy(mask[number])
        session = PrivateSession(
            module,
            torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.5),
            (x[own], y[own]),
            small_plan(),
            loss=loss,
            generator=generators(4)[number],
        )
        for batch in session.batches():
            session.step(batch)
        for got, want in zip(copy_of(models, number).parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(exponent=st.integers(-30, 30), seed=st.integers(0, 1000))
def test_no_record_adds_more_than_the_norm(exponent: int, seed: int) -> None:
    """Whatever its scale, in the arithmetic that is really done; alone in its step, it is the whole sum."""
    torch.manual_seed(seed)
    models = mlps(generators(1, seed=seed))
    x, y = torch.randn(1, 1, INPUTS) * 10.0**exponent, torch.randint(0, CLASSES, (1, 1))
    before = [p.clone() for p in models.parameters]
    plan = Plan.with_noise(
        noise_multiplier=1e-7, delta=1e-3, records=1, steps=1, clipping=0.25, adjacency="add-remove",
        unit="row", allow_large_delta=True,
    )  # fmt: skip
    train_privately(
        models,
        x[0],
        y[0],
        np.array([[True]]),
        plan,
        learning_rate=1.0,
        momentum=0.0,
        generators=generators(1),
    )
    moved = torch.cat([(b.double() - p).flatten() for b, p in zip(before, models.parameters, strict=True)])
    assert float(moved.norm()) <= 0.25 + 1e-5  # rounding of the weights that the step is read from
    assert torch.isfinite(moved).all()


# --- no other record is in them ---------------------------------------------------------------------------


def test_under_a_plan_a_record_without_a_gradient_adds_nothing() -> None:
    """The first record stands in the padding of everybody, member or not."""
    x, y = records()
    mask = paired_halves(6, N, np.random.default_rng(2))
    found = []
    for label in (0, 1):
        poisoned, other = x.clone(), y.clone()
        poisoned[0], other[0] = torch.nan, label
        models = mlps(generators(6))
        fit(models, poisoned, other, mask, generators(6), private=True)
        found.append([p.clone() for p in models.parameters])
    for first, second in zip(*found, strict=True):
        assert torch.isfinite(first).all()
        assert torch.equal(first, second)


def test_another_record_changes_the_models_that_train_on_it_alone() -> None:
    x, y = records()
    mask = paired_halves(6, N, np.random.default_rng(3))
    other = x.clone()
    other[7] += 3.0
    for private in (False, True):
        pair = []
        for inputs in (x, other):
            models = mlps(generators(6))
            fit(models, inputs, y, mask, generators(6), private=private)
            pair.append(models.parameters[0])
        same = (pair[0] == pair[1]).flatten(1).all(1).numpy()
        assert same[~mask[:, 7]].all()
        if not private:  # under Poisson sampling a member may have been in no step
            assert not same[mask[:, 7]].any()


def test_what_cannot_be_trained_is_refused() -> None:
    x, y = records()
    mask = paired_halves(2, N, np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="a table of booleans"):
        fit(mlps(generators(2)), x, y, mask[:1], generators(2), private=True)
    with pytest.raises(InvalidInput, match="without a single training record"):
        fit(mlps(generators(2)), x, y, np.zeros_like(mask), generators(2), private=True)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("AdaptiveClipping", {"clipping": AdaptiveClipping(1.0, count_noise=2.0)}),
        ("views", {"views": 2}),
        ("loss", {"loss_report": LossReport()}),
        ("correlated noise", {"correlation": Tree(), "sampling": FullBatch(), "batch_size": None}),
    ],
)
def test_plans_that_the_loop_does_not_perform_are_refused(name: str, changes: dict[str, Any]) -> None:
    x, y = records()
    mask = paired_halves(2, N, np.random.default_rng(0))
    with pytest.raises(PrivacyRefusal, match=name):
        train_privately(
            mlps(generators(2)), x, y, mask, small_plan(**changes), learning_rate=0.1, momentum=0.0,
            generators=generators(2),
        )  # fmt: skip
