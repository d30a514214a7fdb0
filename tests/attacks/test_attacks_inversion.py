"""Model inversion: a model whose best picture is known, the rules of stopping, planted errors, bad input."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tacit.attacks.inversion import Inversion, Inverted, blur, mi_face, sharpen
from tacit.attacks.likeness import (
    correlation,
    nearest_similarity,
    recognised,
    structural_similarity,
)
from tacit.errors import InvalidInput
from tacit.experiments import model_inversion
from tacit.experiments.base import Request, Setting
from tacit.experiments.registry import reproduce

H, W = 6, 5


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    torch.manual_seed(0)


def linear(templates: Tensor, scale: float = 1.0) -> nn.Module:
    """Logits that are products with the templates, (c, h, w)."""
    layer = nn.Linear(templates[0].numel(), len(templates), bias=False)
    with torch.no_grad():
        layer.weight.copy_(scale * templates.flatten(1))
    return nn.Sequential(nn.Flatten(), layer)


def bars() -> Tensor:
    """Class c lights the row c, (h, h, w)."""
    return torch.stack([torch.eye(H)[c][:, None].expand(H, W) for c in range(H)])


def start(p: int = H) -> Tensor:
    return torch.full((p, H, W), 0.5)


def alone(model: nn.Module, y: int, x: Tensor, s: Inversion) -> tuple[Tensor, int]:
    """Algorithm 1 for one class, as it is printed: loops, and a list of costs."""

    def cost(x: Tensor) -> tuple[Tensor, float]:
        p = model(x[None])[0].softmax(0)[y]
        aux = 0.5 * s.distance * (x - first).square().sum()
        aux = aux + s.total_variation * ((x[1:] - x[:-1]).abs().sum() + (x[:, 1:] - x[:, :-1]).abs().sum())
        return 1 - p + aux, float(p.detach())

    first, costs, seen = x, [], []
    for _ in range(s.steps + 1):
        x = x.clone().requires_grad_()
        c, p = cost(x)
        costs.append(float(c.detach()))
        seen.append(x.detach())
        if p >= s.confidence or (len(costs) > s.patience and costs[-1] >= max(costs[-1 - s.patience : -1])):
            break
        (gradient,) = torch.autograd.grad(c, x)
        x = (x.detach() - s.learning_rate * gradient).clamp(s.low, s.high)
    return seen[int(np.argmin(costs))], len(costs) - 1


@pytest.mark.parametrize(
    "chosen",
    [
        Inversion(steps=60),
        Inversion(steps=60, learning_rate=5.0, patience=3, distance=0.5),
        Inversion(steps=60, total_variation=0.01, distance=0.01, confidence=0.5),
    ],
    ids=["plain", "overshoots", "aux"],
)
def test_walks_side_by_side_are_algorithm_1_alone(chosen: Inversion) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(H * W, 12), nn.Tanh(), nn.Linear(12, 4)).double()
    classes = torch.tensor([3, 0, 0, 2])
    starts = torch.rand(4, H, W, dtype=torch.float64)
    found = mi_face(model, classes, starts, settings=chosen)
    for i, y in enumerate(classes.tolist()):
        picture, steps = alone(model, y, starts[i], chosen)
        torch.testing.assert_close(found.pictures[i], picture)
        assert int(found.steps[i]) == steps


def test_the_picture_of_each_class_is_found() -> None:
    found = mi_face(linear(bars(), 3.0), torch.arange(H), start())
    assert bool((found.confidence >= 0.99).all())
    assert found.pictures.sum(2).argmax(1).tolist() == list(range(H))
    assert bool((found.steps < 5000).all())


def test_swapped_classes_are_seen() -> None:
    """Planted: the attack asks for another class than it is judged by."""
    found = mi_face(linear(bars()), torch.arange(H).roll(1), start())
    assert not bool((found.pictures.sum(2).argmax(1) == torch.arange(H)).any())


def test_it_walks_on_until_the_model_is_sure() -> None:
    """A stop rule turned around (stop while the cost is still *above* the threshold) takes one step."""
    model = linear(bars(), 0.7)
    found = mi_face(model, torch.arange(H), start())
    inverted_rule = mi_face(model, torch.arange(H), start(), settings=Inversion(steps=1))
    assert bool((found.steps > 20).all())
    assert bool((found.confidence > inverted_rule.confidence + 0.5).all())


def test_the_best_of_a_walk_that_overshoots_is_kept() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(H * W, 20), nn.Tanh(), nn.Linear(20, 6))
    wild = Inversion(steps=20, learning_rate=80.0, confidence=1.0, distance=0.05)
    costs = [
        mi_face(model, torch.arange(6), start(6), settings=replace(wild, steps=n)).cost for n in range(1, 21)
    ]
    assert all(bool((b <= a).all()) for a, b in pairwise(costs))
    found = mi_face(model, torch.arange(6), start(6), settings=wild)
    p = model(found.pictures).softmax(1).diagonal()
    expected = 1 - p + 0.05 * (found.pictures - 0.5).square().flatten(1).sum(1) / 2
    torch.testing.assert_close(found.cost, expected.detach())


def test_a_walk_that_gets_nowhere_stops_after_its_patience() -> None:
    flat = linear(torch.zeros(3, H, W))
    found = mi_face(flat, torch.arange(3), start(3), settings=Inversion(patience=7))
    assert found.steps.tolist() == [7, 7, 7]
    assert torch.equal(found.pictures, start(3))


def test_one_walk_does_not_move_another() -> None:
    model, quick = linear(bars(), 3.0), Inversion(learning_rate=1.0)
    together = mi_face(model, torch.arange(H), start(), settings=quick)
    for y in range(H):
        one = mi_face(model, torch.tensor([y]), start(1), settings=quick)
        torch.testing.assert_close(together.pictures[y], one.pictures[0])


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(H * W, 4), nn.Dropout(0.5))
    model[1].eval()
    before = [value.clone() for value in model.state_dict().values()]
    one = mi_face(model, torch.arange(4), start(4), settings=Inversion(steps=5))
    two = mi_face(model, torch.arange(4), start(4), settings=Inversion(steps=5))
    assert torch.equal(one.pictures, two.pictures), "dropout is off meanwhile"
    assert (model.training, model[1].training, model[2].training) == (True, False, True)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))


def test_process_is_applied_and_can_work_in_codes() -> None:
    found = mi_face(linear(bars()), torch.arange(H), start(), process=lambda x: blur(x, 0.8))
    plain = mi_face(linear(bars()), torch.arange(H), start())
    assert float(found.pictures.diff(dim=1).abs().sum()) < float(plain.pictures.diff(dim=1).abs().sum())
    head = nn.Linear(8, 3)
    codes = mi_face(head, torch.arange(3), torch.zeros(3, 8), settings=Inversion(low=-1.0, steps=50))
    assert float(codes.pictures.min()) < 0.0


BAD: dict[str, tuple[nn.Module, Tensor, Tensor, Inversion, str]] = {
    "no class": (linear(bars()), torch.arange(0), start(0), Inversion(), "at least one"),
    "class numbers": (linear(bars()), torch.tensor([0.0]), start(1), Inversion(), "int64"),
    "class too large": (linear(bars()), torch.tensor([H]), start(1), Inversion(), r"\[0, 5\]"),
    "class below": (linear(bars()), torch.tensor([-1]), start(1), Inversion(), r"\[0, 5\]"),
    "one start": (linear(bars()), torch.arange(3), torch.zeros(H, W), Inversion(), "expand"),
    "bytes": (linear(bars()), torch.arange(1), start(1).byte(), Inversion(), "floating"),
    "nan start": (linear(bars()), torch.arange(1), start(1) * math.nan, Inversion(), "finite"),
    "shape": (linear(bars()), torch.arange(1), torch.zeros(1, 3, 3), Inversion(), "does not take"),
    "no logits": (nn.Flatten(0), torch.arange(1), start(1), Inversion(), "must give logits"),
    "nan weights": (linear(bars() * math.nan), torch.arange(1), start(1), Inversion(), "not finite"),
    "variation of codes": (
        nn.Linear(4, 2), torch.arange(1), torch.zeros(1, 4), Inversion(total_variation=1.0), "pictures",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case: str) -> None:
    model, classes, x, chosen, message = BAD[case]
    with pytest.raises(InvalidInput, match=message):
        mi_face(model, classes, x, settings=chosen)


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"patience": 0}, {"learning_rate": 0.0}, {"confidence": 1.5}, {"distance": -1.0},
     {"total_variation": math.nan}, {"low": 1.0}],
    ids=["steps", "patience", "rate", "confidence", "distance", "variation", "range"],
)  # fmt: skip
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        Inversion(**wrong)  # type: ignore[arg-type]


# --- likeness ---------------------------------------------------------------------------------------------


def pictures(seed: int, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.random.default_rng(seed).random(shape)


def test_structural_similarity_is_the_formula_at_every_pixel() -> None:
    a, b = pictures(0, 9, 8), pictures(1, 9, 8)
    r = 5  # 3.5 standard deviations of 1.5 pixels
    places = np.arange(-r, r + 1)
    window = np.exp(-0.5 * (places[:, None] ** 2 + places**2) / 1.5**2)
    window /= window.sum()
    pa, pb = np.pad(a, r, mode="symmetric"), np.pad(b, r, mode="symmetric")
    total = 0.0
    for i in range(9):
        for j in range(8):
            u, v = pa[i : i + 11, j : j + 11], pb[i : i + 11, j : j + 11]
            mu, mv = (window * u).sum(), (window * v).sum()
            vu, vv = (window * (u - mu) ** 2).sum(), (window * (v - mv) ** 2).sum()
            both = (window * (u - mu) * (v - mv)).sum()
            total += (2 * mu * mv + 1e-4) * (2 * both + 9e-4) / ((mu**2 + mv**2 + 1e-4) * (vu + vv + 9e-4))
    assert structural_similarity(a, b).item() == pytest.approx(total / 72, abs=1e-10)


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_likeness_is_symmetric_bounded_and_one_for_the_same(seed: int) -> None:
    a, b = pictures(seed, 3, 8, 7), pictures(seed + 1, 3, 8, 7)
    for measure in (correlation, structural_similarity):
        np.testing.assert_allclose(measure(a, b), measure(b, a))
        np.testing.assert_allclose(measure(a, a), 1.0)
        assert (np.abs(measure(a, b)) <= 1.0).all()
    np.testing.assert_allclose(correlation(a, 3.0 * b + 1.0), correlation(a, b))


def test_correlation_is_that_of_numpy() -> None:
    a, b, mean = pictures(0, 8, 7), pictures(1, 8, 7), pictures(2, 8, 7)
    known = np.corrcoef((a - mean).ravel(), (b - mean).ravel())[0, 1]
    assert correlation(a, b, without=mean).item() == pytest.approx(known)


def test_people_are_recognised_by_what_is_their_own() -> None:
    """Every face has a large part that is everyone's: with that left in, guesses are nearly blind."""
    mean, own, noise = 5.0 * pictures(0, 8, 7), pictures(1, 20, 8, 7), pictures(2, 20, 3, 8, 7)
    albums = mean + own[:, None] + 0.3 * noise
    assert recognised(mean + own, albums, without=mean).all()
    assert not recognised(np.roll(mean + own, 1, axis=0), albums, without=mean).any()
    similar = nearest_similarity(mean + own, albums)
    assert (similar > nearest_similarity(np.roll(mean + own, 1, axis=0), albums)).mean() > 0.9
    np.testing.assert_allclose(nearest_similarity(albums[:, 1], albums), 1.0)


def test_bad_pictures_are_refused() -> None:
    good = pictures(0, 4, 8, 7)
    with pytest.raises(InvalidInput, match="constant"):
        correlation(np.ones((8, 7)), good[0])
    with pytest.raises(InvalidInput, match="finite"):
        structural_similarity(good * math.nan, good)
    with pytest.raises(InvalidInput, match="album"):
        recognised(good, good, without=good[0])
    with pytest.raises(InvalidInput, match="album"):
        nearest_similarity(good, pictures(0, 3, 2, 8, 7))


def test_blur_keeps_the_mean_and_sharpening_undoes_some_of_it() -> None:
    x = torch.from_numpy(pictures(0, 2, 1, 12, 12))
    soft = blur(x, 1.0)
    assert soft.shape == x.shape
    torch.testing.assert_close(blur(torch.ones(5, 5), 2.0), torch.ones(5, 5))
    assert float(soft.std()) < float(sharpen(soft, 1.0).std()) < float(x.std())


# --- the experiment ---------------------------------------------------------------------------------------


def toy_faces() -> Tensor:
    """40 people of whom each has a pattern, 10 pictures of each."""
    generator = torch.Generator().manual_seed(0)
    own = torch.rand(40, 1, 14, 12, generator=generator)
    return 0.25 + 0.5 * own + 0.25 * torch.rand(40, 10, 14, 12, generator=generator)


def test_experiment_runs_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_inversion, "load_faces", toy_faces)
    monkeypatch.setattr(model_inversion, "_SETTINGS", Inversion(steps=100, learning_rate=1.0))
    monkeypatch.setattr(model_inversion, "_CODE_SETTINGS", Inversion(steps=100))
    monkeypatch.setattr(model_inversion, "_PRIVATE_SETTING", Setting(None, 2, 1.0, 0.0, 1.0))
    for name, small in (("_STEPS", 60), ("_HIDDEN", 20), ("_CODE", 20)):
        monkeypatch.setattr(model_inversion, name, small)
    rows = reproduce("model-inversion", Request(tmp_path, seeds=2))
    assert [row.epsilon for row in rows[:3]] == [math.inf] * 3
    assert 7.9 < rows[3].epsilon <= 8.0
    assert rows[0].details["identified"] >= 0.95
    assert rows[0].details["identified_interval_95"][0] < rows[0].details["identified"]
    assert all(row.seeds == 2 and len(row.details["judged"]) == 2 for row in rows)
    assert (tmp_path / "model-inversion.png").stat().st_size > 5_000
    text = (tmp_path / "model-inversion.json").read_text()
    assert "does it by their looks" in text
    assert "Infinity" not in text


def test_a_result_is_of_the_people_asked_for() -> None:
    found = mi_face(linear(bars()), torch.tensor([4, 1]), start(2))
    assert isinstance(found, Inverted)
    assert found.pictures.sum(2).argmax(1).tolist() == [4, 1]
