"""The optimizer of a run: its parameters, the code that may step with it, and its restored state."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.training.released import GuardedOptimizer


def made(kind: Any = torch.optim.SGD) -> tuple[nn.Linear, torch.optim.Optimizer, GuardedOptimizer]:
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    optimizer = kind(net.parameters(), lr=0.5)
    return net, optimizer, GuardedOptimizer(optimizer, dict(net.named_parameters()))


def gradients(value: float = 1.0) -> dict[str, Tensor]:
    return {"weight": torch.full((2, 3), value), "bias": torch.full((2,), value, dtype=torch.float64)}


def test_it_steps_by_the_gradients_and_leaves_none() -> None:
    net, _, guarded = made()
    weight, bias = net.weight.detach().clone(), net.bias.detach().clone()
    guarded.step(gradients())
    assert torch.equal(net.weight, weight - 0.5)
    assert torch.equal(net.bias, bias - 0.5)
    assert net.weight.grad is None
    assert net.bias.grad is None
    guarded.check_no_gradients()


def test_nothing_else_steps_while_it_lives() -> None:
    net, optimizer, guarded = made()
    before = net.weight.detach().clone()
    net.weight.grad = torch.ones(2, 3)
    with pytest.raises(PrivacyRefusal, match="outside the session"):
        optimizer.step()
    with pytest.raises(PrivacyRefusal, match="gradients without noise on weight"):
        guarded.check_no_gradients()
    assert torch.equal(net.weight, before)
    del guarded
    gc.collect()
    optimizer.step()
    assert torch.equal(net.weight, before - 0.5)


def test_a_second_optimizer_over_the_same_parameters_is_refused() -> None:
    net, _, guarded = made()
    before = net.bias.detach().clone()
    second = torch.optim.Adam([net.bias], lr=0.5)
    guarded.step(gradients(0.0))
    net.bias.grad = torch.ones(2)
    with pytest.raises(PrivacyRefusal, match=r"a second optimizer \(Adam\) is about to change bias"):
        second.step()
    assert torch.equal(net.bias, before)
    stranger = nn.Linear(3, 2)
    stranger.weight.grad = torch.ones(2, 3)
    torch.optim.SGD([stranger.weight], lr=0.5).step()  # an optimizer of other parameters is no matter
    del guarded
    gc.collect()
    second.step()
    assert not torch.equal(net.bias, before)


def test_a_second_guard_may_go_on_with_the_parameters() -> None:
    """Two sessions train a model one after the other, each by its own optimizer; both add noise."""
    net, _, first = made()
    second = GuardedOptimizer(torch.optim.Adam(net.parameters()), dict(net.named_parameters()))
    before = net.weight.detach().clone()
    second.step(gradients())
    assert not torch.equal(net.weight, before)
    first.step(gradients())


class Lookahead(torch.optim.Optimizer):
    """An optimizer that steps by another one over the same parameters."""

    def __init__(self, inside: torch.optim.Optimizer) -> None:
        self.inside = inside
        super().__init__(inside.param_groups, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch overloads it
        self.inside.step(closure)


def test_an_optimizer_may_step_by_one_inside_it() -> None:
    net, inside, old = made()
    del old
    gc.collect()
    guarded = GuardedOptimizer(Lookahead(inside), dict(net.named_parameters()))
    before = net.weight.detach().clone()
    guarded.step(gradients())
    assert torch.equal(net.weight, before - 0.5)
    with pytest.raises(PrivacyRefusal, match="a second optimizer"):
        inside.step()


def test_a_step_that_fails_leaves_it_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    net, optimizer, guarded = made()
    refuse = optimizer.register_step_post_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("full disk")))
    with pytest.raises(RuntimeError, match="full disk"):
        guarded.step(gradients())
    refuse.remove()
    assert net.weight.grad is None
    with pytest.raises(PrivacyRefusal, match="outside the session"):
        optimizer.step()


def test_gradients_of_what_is_not_trained_are_found() -> None:
    net = nn.Linear(3, 2)
    trained = nn.Parameter(net.weight.detach())
    net.weight = trained
    net.bias.requires_grad_(False)
    guarded = GuardedOptimizer(torch.optim.SGD(net.parameters(), lr=0.5), {"weight": trained})
    net.bias.grad = torch.ones(2)
    with pytest.raises(PrivacyRefusal, match="that the session does not train"):
        guarded.check_no_gradients()


def test_it_must_hold_what_is_trained_and_no_more() -> None:
    net, other = nn.Linear(3, 2), nn.Parameter(torch.zeros(2))
    trained = dict(net.named_parameters())
    with pytest.raises(InvalidInput, match="lacks the trainable parameters bias"):
        GuardedOptimizer(torch.optim.SGD([net.weight], lr=0.5), trained)
    extra = torch.optim.SGD([*net.parameters(), other], lr=0.5)
    with pytest.raises(PrivacyRefusal, match="parameters outside the model"):
        GuardedOptimizer(extra, trained)
    with pytest.raises(InvalidInput, match="LBFGS"):
        GuardedOptimizer(torch.optim.LBFGS(net.parameters()), trained)
    for parameter in trained.values():
        parameter.grad = torch.zeros_like(parameter)
    extra.step()  # no guard was made of it


def test_its_state_comes_back_bit_for_bit() -> None:
    """Torch would cast the float64 state of a float32 weight."""
    net, optimizer, guarded = made(torch.optim.Adam)
    guarded.step(gradients(0.3))
    fine = torch.full((2, 3), 1.0, dtype=torch.float64) / 3
    optimizer.state[net.weight]["exp_avg"] = fine
    _, again, twin = made(torch.optim.Adam)
    twin.restore(optimizer.state_dict())
    restored = again.state[next(iter(again.state))]
    assert torch.equal(restored["exp_avg"], fine)
    assert restored["step"] == optimizer.state[net.weight]["step"]
