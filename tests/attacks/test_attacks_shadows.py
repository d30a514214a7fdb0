"""Shadow models: they train on their records alone, and a stacked run equals the run of a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.attacks import Scores
from tacit.attacks.membership import (
    Evidence,
    ShadowScores,
    attack_all,
    bavaria,
    by_chance,
    ranked_and_reported,
    shokri,
    vulnerability,
)
from tacit.attacks.shadows import one_by_one, paired_halves, train_shadows
from tacit.attacks.stacked import StackedMLPs, train_plainly, train_privately
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


def mlps(by: list[Generator], activation: str = "tanh") -> StackedMLPs:
    return StackedMLPs((INPUTS, 7, CLASSES), activation, by)


def copy_of(models: StackedMLPs, number: int) -> nn.Sequential:
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
    models: StackedMLPs, x: Tensor, y: Tensor, mask: Bools, by: list[Generator], *, private: bool
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


def test_a_poisoned_record_reaches_those_who_train_on_it_and_nobody_else() -> None:
    x, y = records()
    mask = paired_halves(6, N, np.random.default_rng(1))
    x[7] = torch.nan
    models = mlps(generators(6))
    fit(models, x, y, mask, generators(6), private=False)
    for weights in models.parameters:
        assert (torch.isfinite(weights).flatten(1).all(1).numpy() == ~mask[:, 7]).all()


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


@settings(max_examples=30, deadline=None)
@given(pairs=st.integers(1, 8), n=st.integers(2, 60), seed=st.integers(0, 99))
def test_every_pair_of_the_design_has_each_record_once(pairs: int, n: int, seed: int) -> None:
    halves = paired_halves(2 * pairs, n, np.random.default_rng(seed))
    assert (halves[::2] ^ halves[1::2]).all()
    assert (halves[::2].sum(axis=1) == n // 2).all()


# --- interruptions ----------------------------------------------------------------------------------------


class Counting:
    """Trains a lookup table; counts, and fails when it is told to."""

    def __init__(self, *, fail_at: int | None = None) -> None:
        self.trained, self.fail_at = 0, fail_at

    def __call__(self, indices: NDArray[np.int64]) -> Callable[[], NDArray[np.float64]]:
        if self.trained == self.fail_at:
            raise KeyboardInterrupt
        self.trained += 1
        return lambda: np.isin(np.arange(N), indices).astype(float)


def test_interrupted_training_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    design = paired_halves(8, N, np.random.default_rng(0))
    other = paired_halves(8, N, np.random.default_rng(1))
    store, seen = tmp_path / "shadows.npz", []
    with pytest.raises(KeyboardInterrupt):
        train_shadows(one_by_one(Counting(fail_at=5)), design, at_once=2, store=store, identity="a")
    rest = Counting()
    found = train_shadows(
        one_by_one(rest), other, at_once=2, store=store, identity="a", progress=lambda *at: seen.append(at)
    )
    assert rest.trained == 4
    assert seen == [(4, 8), (6, 8), (8, 8)]
    assert (found.trained_on == design).all(), "the design of the store stands"
    assert (found.outputs == design).all(), "a lookup table says who was in"
    assert oct(store.stat().st_mode & 0o777) == "0o600"
    again = Counting()
    train_shadows(one_by_one(again), other, at_once=2, store=store, identity="a")
    assert again.trained == 0


def test_a_store_of_other_work_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    design, store = paired_halves(2, N, np.random.default_rng(0)), tmp_path / "shadows.npz"
    train_shadows(one_by_one(Counting()), design, at_once=2, store=store, identity="a")
    with pytest.raises(InvalidInput, match="belongs to other data, models or settings"):
        train_shadows(one_by_one(Counting()), design, at_once=2, store=store, identity="b")
    with pytest.raises(InvalidInput, match="belongs to other data, models or settings"):
        train_shadows(one_by_one(Counting()), design[:, :-1], at_once=2, store=store, identity="a")
    for damage in (store.read_bytes()[:200], b"", b"text"):
        store.write_bytes(damage)
        with pytest.raises(InvalidInput, match="not a readable store"):
            train_shadows(one_by_one(Counting()), design, at_once=2, store=store, identity="a")


def test_what_cannot_be_trained_is_refused() -> None:
    x, y = records()
    mask = paired_halves(2, N, np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="even number"):
        paired_halves(3, 10, np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="outputs of model 1 must be finite"):
        train_shadows(lambda group: np.array([[1.0], [np.nan]]), mask, at_once=2)
    with pytest.raises(InvalidInput, match="outputs of 2 models"):
        train_shadows(lambda group: np.ones((1, N)), mask, at_once=2)
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


# --- known answers of the attacks -------------------------------------------------------------------------


def world(k: int = 17, n: int = 1200, *, gain: float = 2.0, seed: int = 0) -> tuple[Any, Bools, Bools]:
    """Logits that rise at the true class by ``gain`` for members; the last model is the target."""
    rng = np.random.default_rng(seed)
    trained_on = np.concatenate([paired_halves(k - 1, n, rng), rng.random((1, n)) < 0.5])
    labels = rng.integers(0, 3, n)
    logits = rng.normal(0.0, 1.0, (k, n, 3))
    gains = gain * (rng.random(n) < 0.5)  # half of the records are not memorised
    logits[:, np.arange(n), labels] += 1.0 + gains * trained_on
    return (logits, labels, gains > 0.0), trained_on[:-1], trained_on[-1]


def test_shokri_finds_members_by_their_confidence() -> None:
    (logits, labels, _), trained_on, member = world()
    odds = shokri(logits[-1], logits[:-1], trained_on, labels)
    found = Scores.of(odds, member)
    assert 0.60 < found.auc() < 0.72
    assert ((odds > 0.0) == member).mean() > 0.56


def test_shokri_finds_nothing_where_there_is_nothing() -> None:
    (logits, labels, _), trained_on, member = world(gain=0.0)
    odds = shokri(logits[-1], logits[:-1], trained_on, labels)
    assert abs(Scores.of(odds, member).auc() - 0.5) < 0.06
    assert np.abs(odds).mean() < 0.3


def test_planted_bugs_of_the_worlds_are_seen() -> None:
    (logits, labels, _), trained_on, member = world()
    rng = np.random.default_rng(9)
    right = Scores.of(shokri(logits[-1], logits[:-1], trained_on, labels), member)
    swapped = Scores.of(shokri(logits[-1], logits[:-1], ~trained_on, labels), member)
    with pytest.raises(InvalidInput, match="swapped"):
        swapped.check_direction()
    wrong_half = trained_on[:, rng.permutation(len(labels))]  # the design of other records
    lost = Scores.of(shokri(logits[-1], logits[:-1], wrong_half, labels), member)
    assert right.auc() > 0.6 > 0.57 > lost.auc()
    margins = np.take_along_axis(logits, labels[None, :, None], 2)[..., 0]
    for mask, worlds_apart in ((trained_on, True), (wrong_half, False)):
        found = Scores.of(bavaria(ShadowScores(margins[-1], margins[:-1], mask)), member).auc()
        assert (found > 0.65) == worlds_apart


def test_members_that_leak_into_all_shadows_leave_nothing_to_compare() -> None:
    """Planted bug: the shadows are trained on everybody, whatever their design says."""
    (logits, labels, exposed), trained_on, _ = world()
    leaky = logits.copy()
    rows = np.arange(len(labels))
    gained = (2.0 * exposed) * ~trained_on
    leaky[:-1, rows, labels] += gained
    assert abs(vulnerability(leaky[:-1, rows, labels], trained_on).mean()) < 0.05
    assert vulnerability(logits[:-1, rows, labels], trained_on).mean() > 0.8


def test_classes_without_members_and_wrong_shapes_are_refused() -> None:
    (logits, labels, _), trained_on, _ = world(n=60)
    trained_on[:, labels == 2] = False
    with pytest.raises(InvalidInput, match="class 2 has no member"):
        shokri(logits[-1], logits[:-1], trained_on, labels)
    with pytest.raises(InvalidInput, match="shokri's arguments"):
        shokri(logits[-1], logits[:-1], trained_on[:, :5], labels)
    (logits, labels, _), trained_on, _ = world(n=60)
    with pytest.raises(InvalidInput, match="go together"):
        attack_all(Evidence(logits[-1], logits[:-1], trained_on, labels, outside_target=logits[-1]))


def test_vulnerability_is_the_records_own_mu() -> None:
    (logits, labels, exposed), trained_on, _ = world(65)
    value = vulnerability(logits[:-1, np.arange(len(labels)), labels], trained_on)
    assert value[exposed].mean() == pytest.approx(2.0, abs=0.1)
    assert value[~exposed].mean() == pytest.approx(0.0, abs=0.1)
    with pytest.raises(InvalidInput, match="no spread"):
        vulnerability(np.ones((8, 5)), paired_halves(8, 5, np.random.default_rng(0)))


def test_the_most_exposed_are_reported_by_shadows_that_did_not_choose_them() -> None:
    rng = np.random.default_rng(0)
    trained_on = paired_halves(16, 2000, rng)
    noise = rng.normal(size=(16, 2000))
    order, value = ranked_and_reported(noise, trained_on)
    assert abs(value[order[:100]].mean()) < 0.3, "the best of many estimates of nothing is nothing"
    whole = vulnerability(noise, trained_on)
    assert np.sort(whole)[-100:].mean() > 0.8, "which ranking and reporting on the same shadows would not say"


@pytest.mark.parametrize("spread", [0.0, 0.6])
def test_chance_does_not_make_the_record_ranked_first_stand_out(spread: float) -> None:
    """Also where some records spread much further than others: chance ranks those first."""
    rng, first = np.random.default_rng(0), []
    for exposed in (0.0, 9.0):
        above = []
        for _ in range(60):
            trained_on = paired_halves(16, 500, rng)
            scores = rng.normal(size=(16, 500)) * np.exp(spread * rng.normal(size=500))
            scores[:, 0] += exposed * trained_on[:, 0]
            order, value = ranked_and_reported(scores, trained_on)
            above.append(value[order[0]] > by_chance(scores, trained_on)[order[0]])
        first.append(np.mean(above))
    assert first[0] <= 0.1
    assert first[1] >= 0.7


def test_all_attacks_find_members() -> None:
    (logits, labels, _), trained_on, member = world(n=2400)
    n = 1200
    outside = np.random.default_rng(1).normal(size=(17, n, 3))
    found = attack_all(
        Evidence(
            logits[-1, :n], logits[:-1, :n], trained_on[:, :n], labels[:n],
            outside[0], outside[1:], labels[n:],
        )
    )  # fmt: skip
    assert set(found) == {
        "loss threshold", "Shokri", "LiRA", "LiRA offline", "RMIA", "RMIA offline", "BaVarIA-t",
    }  # fmt: skip
    for name, values in found.items():
        assert Scores.of(values, member[:n]).auc() > 0.58, name
