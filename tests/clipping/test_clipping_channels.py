"""One record's number on its way to the losses of all, past the operations: it reaches none but its own.

The first batches do not use the way; a later one has one record that does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles import Loss, both, clipped_sum, definition, moved_by
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tacit.clipping import FlatClipping
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.errors import UnsupportedModel

C = 0.1
N = 20
Channel = Callable[[Tensor], Any]


def excess(x: Tensor) -> Tensor:
    """By how much the largest number is above 5: nothing, in the first batches."""
    return (x.detach() - 5).relu().amax()


def by_generator(x: Tensor) -> Tensor:
    return max(excess(row) for row in x)


def written(x: Tensor) -> Tensor:
    table = torch.zeros(2)
    table[0] = excess(x)
    return table[0]


CHANNELS: dict[str, Channel] = {"a generator": by_generator, "a written constant": written}
"""The coupling table (``couplings_of_*.py``) has more."""


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.recurrent = nn.LSTM(4, 6)
        self.on = False


def one_large(*shape: int) -> Tensor:
    x = 1.2 * torch.rand(N, *shape, generator=torch.Generator().manual_seed(1))
    x[0, ..., 0] = 6.3
    return x


def moved(loss: Loss, x: Tensor, kind: type[GradientEngine] = FastEngine) -> float:
    """By how many C the first record moves the sum, after batches with nothing in them; 0 if refused."""
    tame = x.clamp(max=1.2)
    try:
        return moved_by(Two, loss, [(tame,), (tame,), (x,)], 0, C, kind=kind)
    except UnsupportedModel as refusal:
        assert "fails for some records" in str(refusal) or "is lost" in str(refusal)  # noqa: PT017
        return 0.0


@both
@pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)
def test_one_record_reaches_no_other(channel: Channel, kind: type[GradientEngine]) -> None:
    def loss(m: Two, x: Tensor) -> Tensor:
        return torch.as_tensor(m.last(m.first(x)).logsumexp(1) / (1 + 100 * channel(x)))

    assert moved(loss, one_large(4), kind) <= 1 + 1e-4


def test_without_an_engine_it_reaches_all() -> None:
    """Else the test above would show nothing."""
    x = one_large(4)
    assert (1 + 100 * excess(x)) > 10 * (1 + 100 * excess(x[1:]))


def rows_second(m: Two, x: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    scale = 0.02 if x.abs().max() > 5 else 1.0
    return torch.as_tensor(m.last(m.recurrent(x)[0][-1]).logsumexp(1) * scale)


def packed(m: Two, x: Tensor) -> Tensor:
    """Inputs of layers are kept as whole numbers, with one unit for a tensor."""

    def pack(t: Tensor) -> tuple[Tensor, Tensor]:
        unit = t.abs().amax() / 100
        return (t / unit).round(), unit

    with saved_tensors_hooks(pack, lambda kept: kept[0] * kept[1]):
        return torch.as_tensor(m.last(m.first(x).relu()).logsumexp(1))


def turned(m: Two, x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t.flip(0), lambda t: t):
        h = m.first(x)
    return torch.as_tensor(m.last(h).logsumexp(1))


def in_a_hook(m: Two, x: Tensor) -> Tensor:
    """Gradients are scaled by the largest of all."""
    h = m.first(x)
    if h.requires_grad:
        h.register_hook(lambda g: g / (1e-3 + 100 * g.abs().amax()))
    return torch.as_tensor(m.last(h.sin()).logsumexp(1) * (1 + 100 * (x[:, 0] > 5)))


def in_a_node(m: Two, x: Tensor) -> Tensor:
    h = m.first(x)
    if h.grad_fn is not None:
        h.grad_fn.register_prehook(lambda g: (g[0] / (1e-3 + 100 * g[0].abs().amax()),))
    return torch.as_tensor(m.last(h.sin()).logsumexp(1) * (1 + 100 * (x[:, 0] > 5)))


def of_a_module(m: Two, x: Tensor) -> Tensor:
    """The same by a hook on a module, whose inputs require gradients."""
    h = m.first(x)

    def by_largest(_: nn.Module, inner: Any, outer: Any) -> Any:
        return (inner[0] / (1e-3 + 100 * inner[0].abs().amax()),)

    handle = m.last.register_full_backward_hook(by_largest)
    try:
        return torch.as_tensor(m.last(h.sin()).logsumexp(1) * (1 + 100 * (x[:, 0] > 5)))
    finally:
        handle.remove()


def within_vmap(m: Two, x: Tensor) -> Tensor:
    hessians = torch.vmap(torch.func.hessian(lambda r: r.sin().sum()))(x)
    return torch.as_tensor(m.last(m.first(x)).logsumexp(1) + hessians.sum((1, 2)) * m.last.bias.sum())


def by_condition(m: Two, x: Tensor) -> Tensor:
    factor = torch.cond(x.sum() > 0, lambda a: a.sum(1), lambda a: a.sum(1), (x,))
    return torch.as_tensor(m.last(m.first(x)).logsumexp(1) * factor)


def nested(m: Two, x: Tensor) -> Tensor:
    padded = torch.nested.to_padded_tensor(torch.nested.nested_tensor(list(x)), 0.0)
    return torch.as_tensor(m.last(m.first(padded)).logsumexp(1))


LARGE = one_large(4)
RARE: dict[str, tuple[Loss, Tensor, str]] = {
    "time first": (rows_second, one_large(N, 4), "Python reads a value"),
    "saved in common units": (packed, LARGE, "hooks on saved tensors"),
    "saved in another order": (turned, LARGE, "hooks on saved tensors"),
    "a hook of the graph": (in_a_node, LARGE, "Python reads the graph"),
    "a hook of a module": (of_a_module, LARGE, "a torch.autograd.Function"),
    "Hessians": (within_vmap, LARGE, "records go through"),
    "a condition": (by_condition, LARGE, "Python reads a value"),
    "nested": (nested, LARGE, "cannot run this model"),
}


def test_a_hook_on_an_activation_is_right_and_bounded() -> None:
    engine = FastEngine(Two(), in_a_hook, FlatClipping(C))
    found = clipped_sum(engine, LARGE, C=C)
    torch.testing.assert_close(found, definition(engine.model, in_a_hook, (LARGE,), C), rtol=1e-4, atol=1e-5)
    assert moved(in_a_hook, LARGE) <= 1 + 1e-4


@pytest.mark.filterwarnings("ignore:.*(jit.script|nested tensors)")
@pytest.mark.parametrize(("loss", "x", "reason"), RARE.values(), ids=RARE)
def test_rare_ways_are_refused(loss: Loss, x: Tensor, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        clipped_sum(FastEngine(Two(), loss, FlatClipping(C)), x, C=C)


def selected(m: Two, h: Tensor) -> Tensor:
    return [h, (h + h.flip(0)) / 2][int(m.on)]


@pytest.mark.parametrize("middle", [selected])
def test_a_model_that_is_switched_to_mix_records_moves_no_sum_by_more(
    middle: Callable[[Two, Tensor], Tensor],
) -> None:
    """It is trained as if each record were alone."""

    x, found = one_large(4), []
    for part in (x, x[1:]):
        torch.manual_seed(0)
        engine = FastEngine(
            Two(), lambda m, x: m.last(middle(m, m.first(x))).sin().square().sum(1), FlatClipping(C)
        )
        clipped_sum(engine, x.clamp(max=1.2), C=C)
        vars(engine.model)["on"] = True
        found.append(clipped_sum(engine, part, C=C))
    assert float((found[0] - found[1]).norm()) <= C * (1 + 1e-4)
