"""The optimizer of a run: what it must hold, what moves it, and how it comes back."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.training.guarded_optimizer import Mover


def made(kind: Any = torch.optim.SGD) -> tuple[nn.Linear, torch.optim.Optimizer, Mover]:
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    optimizer = kind(net.parameters(), lr=0.5)
    return net, optimizer, Mover(optimizer, dict(net.named_parameters()))


def gradients(value: float = 1.0) -> dict[str, Tensor]:
    return {"weight": torch.full((2, 3), value), "bias": torch.full((2,), value, dtype=torch.float64)}


def test_it_moves_by_the_gradients_and_leaves_none() -> None:
    net, _, mover = made()
    weight, bias = net.weight.detach().clone(), net.bias.detach().clone()
    mover.move(gradients())
    assert torch.equal(net.weight, weight - 0.5)
    assert torch.equal(net.bias, bias - 0.5)
    assert net.weight.grad is None
    assert net.bias.grad is None
    mover.check_no_gradients()


def test_nothing_else_moves_it_while_it_lives() -> None:
    net, optimizer, mover = made()
    before = net.weight.detach().clone()
    net.weight.grad = torch.ones(2, 3)
    with pytest.raises(PrivacyRefusal, match="outside the private session"):
        optimizer.step()
    with pytest.raises(PrivacyRefusal, match="gradients lie on weight"):
        mover.check_no_gradients()
    assert torch.equal(net.weight, before)
    del mover
    gc.collect()
    optimizer.step()
    assert torch.equal(net.weight, before - 0.5)


def test_a_step_that_fails_leaves_it_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    net, optimizer, mover = made()
    refuse = optimizer.register_step_post_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("full disk")))
    with pytest.raises(RuntimeError, match="full disk"):
        mover.move(gradients())
    refuse.remove()
    assert net.weight.grad is None
    with pytest.raises(PrivacyRefusal, match="outside the private session"):
        optimizer.step()


def test_gradients_of_what_is_not_trained_are_found() -> None:
    net = nn.Linear(3, 2)
    trained = nn.Parameter(net.weight.detach())
    net.weight = trained
    net.bias.requires_grad_(False)
    mover = Mover(torch.optim.SGD(net.parameters(), lr=0.5), {"weight": trained})
    net.bias.grad = torch.ones(2)
    with pytest.raises(PrivacyRefusal, match="that the session does not train"):
        mover.check_no_gradients()


def test_it_must_hold_what_is_trained_and_no_more() -> None:
    net, other = nn.Linear(3, 2), nn.Parameter(torch.zeros(2))
    trained = dict(net.named_parameters())
    with pytest.raises(InvalidInput, match="does not hold the trainable parameters bias"):
        Mover(torch.optim.SGD([net.weight], lr=0.5), trained)
    extra = torch.optim.SGD([*net.parameters(), other], lr=0.5)
    with pytest.raises(PrivacyRefusal, match="not the model's"):
        Mover(extra, trained)
    with pytest.raises(InvalidInput, match="LBFGS"):
        Mover(torch.optim.LBFGS(net.parameters()), trained)
    assert not extra._optimizer_step_pre_hooks  # what is refused is not guarded


def test_its_state_comes_back_bit_for_bit() -> None:
    """Torch would cast the float64 state of a float32 weight."""
    net, optimizer, mover = made(torch.optim.Adam)
    mover.move(gradients(0.3))
    fine = torch.full((2, 3), 1.0, dtype=torch.float64) / 3
    optimizer.state[net.weight]["exp_avg"] = fine
    _, again, twin = made(torch.optim.Adam)
    twin.restore(optimizer.state_dict())
    restored = again.state[next(iter(again.state))]
    assert torch.equal(restored["exp_avg"], fine)
    assert restored["step"] == optimizer.state[net.weight]["step"]
