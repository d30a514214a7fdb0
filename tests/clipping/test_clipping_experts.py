"""Mixtures of experts by ``grouped_mm``: no gradient of all experts is formed for each record."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import Batch, Of, Watched, equal, equals_a_loop, most_moved, step
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._pytree import tree_leaves

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import linear, registry
from tacit.clipping.per_example.linear import Grouped
from tacit.errors import UnsupportedModel

pytestmark = pytest.mark.skipif(linear.OPERATION is None, reason="this version of torch has no grouped_mm")
WIDTH, EXPERTS = 8, 6
"""Rows are of whole 16 bytes, as torch asks for."""


@given(
    records=st.integers(1, 4), rows=st.integers(1, 9), missing=st.integers(0, 3), seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_norms_and_sums_are_those_of_the_formed_gradients(
    records: int, rows: int, missing: int, seed: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, rows, WIDTH, generator=generator).to(dtype)
    g = torch.randn(records, rows, 2 * WIDTH, generator=generator).to(dtype)
    expert = torch.randint(EXPERTS + 1 if missing else EXPERTS, (records, rows), generator=generator)
    g = g.masked_fill((expert == EXPERTS)[..., None], 0.0)
    truth = torch.zeros(records, EXPERTS + 1, WIDTH, 2 * WIDTH, dtype=torch.float64)
    for i in range(records):
        for s in range(rows):
            truth[i, expert[i, s]] += torch.outer(x[i, s].double(), g[i, s].double())
    truth = truth[:, :-1]
    use, factors = Grouped(x, g, expert, EXPERTS), torch.rand(records, generator=generator)
    squares = truth.square().sum((1, 2, 3))
    assert (use.squared_norms().double() >= squares * (1 - 1e-6)).all()
    equal(use.squared_norms().double(), squares, 1e-3, 1e-5)
    equal(use.gradients(0, records).double(), truth, 1e-5, 1e-5)
    total = torch.ones(EXPERTS, WIDTH, 2 * WIDTH)
    use.add_weighted(total, factors)
    wanted = 1 + torch.einsum("n,nedp->edp", factors.double(), truth)
    equal(total.double(), wanted, 1e-5, 1e-5)
    torch.testing.assert_close(use.of(factors < 2).squared_norms(), use.squared_norms())


def mixture(drop: bool = False, transposed: bool = False) -> nn.Module:
    """Each of T tokens goes to two of the experts; ``drop``: the last is elsewhere, as in a cluster."""
    kept = EXPERTS - 1 if drop else EXPERTS

    def forward(m: Any, x: Tensor) -> Any:
        shares, chosen = m.router(x.flatten(0, 1)).softmax(1).topk(2)
        sorted_, order = chosen.flatten().sort()
        counts = (sorted_[:, None] == torch.arange(kept)).sum(0)
        weight = m.experts.transpose(1, 2) if transposed else m.experts
        rows, weight = x.flatten(0, 1)[order // 2], weight[:kept] if drop else weight
        found = torch._grouped_mm(rows, weight, offs=counts.cumsum(0).to(torch.int32))
        found = torch.where((sorted_ < kept)[:, None], found, 0.0)
        found = (found * shares.flatten()[order, None])[order.argsort()]
        return m.head(found.view(len(x), -1, 2 * WIDTH).sum(1).tanh())

    experts = nn.Parameter(torch.randn(EXPERTS, *((2 * WIDTH, WIDTH) if transposed else (WIDTH, 2 * WIDTH))))
    return Of(forward, router=nn.Linear(WIDTH, EXPERTS), head=nn.Linear(2 * WIDTH, 3), experts=experts)


def losses(model: nn.Module, x: Tensor) -> Tensor:
    return torch.as_tensor(model(x)).square().sum(1)


def tokens(n: int) -> Tensor:
    return torch.randn(n, 5, WIDTH, generator=torch.Generator().manual_seed(1))


def sizes(found: Any) -> list[int]:
    """Count the numbers in the memory of what an operation made, but for views."""
    plain = [t for t in tree_leaves(found) if isinstance(t, Tensor) and not is_functorch_wrapped_tensor(t)]
    return [t.untyped_storage().nbytes() // t.element_size() for t in plain]


@pytest.mark.untraced
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("drop", [False, True])
def test_the_engine_equals_the_reference(drop: bool, transposed: bool) -> None:
    model, x = mixture(drop, transposed), tokens(8)
    for views in (1, 2):
        equals_a_loop(FastEngine(model, losses, FlatClipping(0.5), views=views), x, rtol=1e-3, atol=1e-5)
    assert 0.1 < most_moved(FastEngine(model, losses, FlatClipping(0.5)), 20 * x) <= 1 + 1e-5


class Recording:
    """Keeps what a rule gives its recorder."""

    def plain(self, weight: Tensor) -> Tensor:
        return weight

    def function(self, forward: Any, backward: Any, inputs: Batch, sources: object) -> Any:
        del sources
        found, saved = forward(*inputs)
        self.backward: Any = lambda g: backward(g, (True,), *saved)
        return found


def test_rows_of_no_expert_are_zero_and_add_nothing() -> None:
    """Torch leaves there what was in memory."""
    recorder, weight = Recording(), torch.randn(3, WIDTH, 4)
    x, g, ends = torch.randn(2, 5, WIDTH), torch.randn(2, 5, 4), torch.tensor([[1, 1, 3], [0, 2, 4]])
    found = linear.grouped_mm(recorder, x, weight, ends.int())  # type: ignore[arg-type]
    (of_x,), ((source, use),) = recorder.backward(g)
    expert = [[0, 2, 2, None, None], [1, 1, 2, 2, None]]
    truth = torch.zeros(2, 3, WIDTH, 4)
    for i, of_record in enumerate(expert):
        for s, e in enumerate(of_record):
            W = torch.zeros(WIDTH, 4) if e is None else weight[e]
            torch.testing.assert_close(found[i, s], x[i, s] @ W)
            torch.testing.assert_close(of_x[i, s], W @ g[i, s])
            if e is not None:
                truth[i, e] += torch.outer(x[i, s], g[i, s])
    assert source is weight
    torch.testing.assert_close(use.gradients(0, 2), truth)
    equal(use.squared_norms(), truth.square().sum((1, 2, 3)), 1e-4, 0.0)


@pytest.mark.untraced
@pytest.mark.parametrize("transposed", [False, True])
def test_no_gradient_of_all_experts_is_formed_for_each_record(
    transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = mixture(transposed=transposed), tokens(40)

    def numbers() -> int:
        engine = FastEngine(model, losses, FlatClipping(0.5))
        step(engine, x)
        monkeypatch.setattr("tacit.clipping.engine.refuse_modes", lambda: None)  # the records are synthetic
        made: list[int] = []
        with Watched(lambda func, args, found: made.extend(sizes(found))):
            step(engine, x)
        return max(made)

    of_all = len(x) * model.get_parameter("experts").numel()
    assert numbers() < of_all / 4
    monkeypatch.delitem(registry.RULES, linear.OPERATION)
    with pytest.raises(UnsupportedModel, match="no batching rule for aten::_grouped_mm"):
        numbers()
