"""Model inversion: a model whose best picture is known, the rules of stopping, planted errors, bad input."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from experiments.laboratory.inversion import Inversion, mi_face
from tacit.errors import InvalidInput

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


def test_a_model_of_codes_is_inverted_in_codes() -> None:
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
    "no logits": (nn.Flatten(0), torch.arange(1), start(1), Inversion(), "must return logits"),
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
