"""The engine under vmap: it is a loop over records, no record reaches another, and planted bugs are found.

Letters: n records; K views; C the threshold.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import Loss, OwnRule, clipped_sum, definition, norms_found, step
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.utils.checkpoint import checkpoint

from tacit.clipping import FlatClipping, fast
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation.under_vmap import Pass
from tacit.clipping.per_example.registry import RULES
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import UnsupportedModel

Batch = tuple[Tensor, ...]
Checker = Callable[[], None]
C = 0.5


def squares(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out.flatten(1).square().sum(1)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def words(*shape: int, up_to: int = 9) -> Tensor:
    return torch.randint(up_to, shape, generator=torch.Generator().manual_seed(1))


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().double()


def norms_of(model: nn.Module, loss: Loss, batch: Batch, views: int = 1) -> Tensor:
    """(n,) norms by one backward pass for each record."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = []
    for start in range(0, len(batch[0]), views):
        losses = loss(model, *(t[start : start + views] for t in batch))
        gradients = torch.autograd.grad(losses.mean(), parameters, materialize_grads=True, allow_unused=True)
        found.append(torch.cat([g.flatten() for g in gradients]).norm())
    return torch.stack(found)


def engine_of(model: nn.Module, loss: Loss = squares, views: int = 1) -> FastEngine:
    return FastEngine(model, loss, FlatClipping(C), views=views)


def check_a_loop(model: nn.Module, batch: Batch, loss: Loss = squares, views: int = 1) -> FastEngine:
    """The norms and the clipped sum are those of a loop over records."""
    engine = engine_of(model, loss, views)
    sums, found = step(engine, *batch)
    wanted = norms_of(model, loss, batch, views)
    torch.testing.assert_close(found.raw_norms[:, 0], wanted, rtol=1e-10, atol=1e-10)
    total = torch.cat([value.flatten() for value in sums.values()])
    torch.testing.assert_close(total, definition(model, loss, batch, C, views), rtol=1e-10, atol=1e-10)
    return engine


class Part(nn.Module):
    """``forward`` by a function of the module and its input."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self._forward = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))


def tied() -> nn.Module:
    return Part(lambda m, x: F.linear(m.table(x).tanh(), m.table.weight), table=nn.Embedding(9, 4))


def constants_with_records() -> nn.Module:
    """A scale, a bias for each record, and positions that are no record's."""

    def forward(m: Any, x: Tensor) -> Tensor:
        at = m.places(torch.arange(x.shape[1]))
        return (m.out(x) * m.scale.weight.T[0] + at).cumsum(1)  # type: ignore[no-any-return]

    return Part(forward, out=nn.Linear(3, 4), scale=nn.Linear(2, 4), places=nn.Embedding(5, 4))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "perceptron": (perceptron, lambda n: numbers(n, 6)),
    "tied table": (tied, lambda n: words(n, 5)),
    "constants": (constants_with_records, lambda n: numbers(n, 5, 3)),
}
"""``test_clipping_layers.py`` has the layers."""


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_a_loop_over_records(name: str, views: int) -> None:
    make, records = MODELS[name]
    engine = check_a_loop(made(make), (records(6 * views),), views=views)
    assert engine.route == "fast"


@pytest.mark.parametrize("n", [1, 2])
def test_few_records_are_enough(n: int) -> None:
    assert check_a_loop(made(perceptron), (numbers(n, 6),)).route == "fast"


@pytest.mark.parametrize("route", ["fast", "reference"])
def test_a_squeezed_output_is_that_of_a_batch_of_several(route: str) -> None:
    """A weight of one row loses its first dimension all the same."""

    def loss(model: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
        out = model(x).squeeze() if len(x) > 1 or not plain else model(x)[:, 0]
        size = torch.dot(model.weight.squeeze(), model.weight.squeeze())
        return F.binary_cross_entropy_with_logits(out * size, y, reduction="none")

    plain = False
    model, batch = made(lambda: nn.Linear(6, 1)), (numbers(5, 6), numbers(5).sign().clamp(min=0))
    kind = ReferenceEngine if route == "reference" else FastEngine
    engine = kind(model, loss, FlatClipping(C))
    found = clipped_sum(engine, *batch, C=C)
    plain = True  # for the loop, which squeezes a single record to no dimension at all
    torch.testing.assert_close(found, definition(model, loss, batch, C), rtol=1e-10, atol=1e-10)
    assert engine.route.startswith(route)


# ---------------------------------------------------------------------------------------------------------
# A model that mixes records is refused, or runs as if each record were alone.


def unseen(h: Tensor, old: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return h * old


def written_over(h: Tensor, old: Tensor) -> Tensor:
    h = h.clone()
    h[0] = old[0]
    return h


WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "an operation": lambda h, old: h * old,
    "a property": lambda h, old: h * old.real,
    "a shape": lambda h, old: h * old.shape[1],
    "data": lambda h, old: h * old.data,
    "one record": lambda h, old: h * old[0],
    "its parts": lambda h, old: h * next(iter(old)),
    "a choice": lambda h, old: torch.where(h > 0, h, old),
    "a copy": lambda h, old: h * copy.copy(old),
    "a place to write": lambda h, old: torch.mul(h.detach(), 2, out=old) + h,
    "a write": written_over,
    "unseen": unseen,
    "a parameter": lambda h, old: h * nn.Parameter(old),
}


WORDS = {
    "data": "accessing `data`",
    "unseen": "cannot run this model on each record alone",
    "a parameter": "operations that Python does not see",
}
"""What is refused first in some of these ways."""


@pytest.mark.parametrize("way", WAYS)
def test_tensors_of_an_earlier_batch_cannot_be_read(way: str) -> None:
    """To vmap itself such a tensor is one of the records of now, if only they are as many."""
    bank: list[Tensor] = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        h = model(x)
        bank.append(h.detach())
        before = len(bank) > 1 and is_batchedtensor(bank[-2])
        return (WAYS[way](h, bank[-2]) if before else h).square().sum(1)

    engine = engine_of(made(lambda: nn.Linear(6, 3)), loss)
    with pytest.raises(UnsupportedModel, match=WORDS.get(way, "stored tensor of an earlier batch")):
        torch.stack([clipped_sum(engine, numbers(5, 6), C=C) for _ in range(3)])


# ---------------------------------------------------------------------------------------------------------
# Random numbers.


def dropping() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 30), nn.Dropout(0.5), nn.Linear(30, 3)
    )


def drawn(model: nn.Module, x: Tensor, seed: int = 3) -> Tensor:
    """(n,) norms under a seed, of an engine that has judged the model."""
    engine = engine_of(model)
    norms_found(engine, x[:2])
    torch.manual_seed(seed)
    return norms_found(engine, x)


def each_record_draws_its_own() -> None:
    """Copies of one record all have different norms."""
    norms = drawn(made(dropping), numbers(1, 6).expand(8, 6))
    assert len(set(norms.tolist())) == len(norms)


def test_each_record_draws_its_own() -> None:
    each_record_draws_its_own()


def test_one_seed_and_one_batch_are_one_sum() -> None:
    """A step that is done again is the same release to the last bit."""
    model, x = made(dropping), numbers(8, 6)
    assert torch.equal(drawn(model, x), drawn(model, x))
    assert not torch.equal(drawn(model, x), drawn(model, x, seed=4))


def test_physical_batches_change_nothing_but_what_is_drawn() -> None:
    """Without random numbers a sum does not depend on the split; what a record draws goes by its place.

    So a resume state names the physical batch size, and a session with another one refuses it.
    """
    for make, same in ((perceptron, True), (dropping, False)):
        model, x = made(make), numbers(8, 6)
        whole, halves = engine_of(model), engine_of(model)
        norms_found(whole, x), norms_found(halves, x)
        torch.manual_seed(3)
        found = norms_found(whole, x)
        torch.manual_seed(3)
        parts = torch.cat([norms_found(halves, x[:4]), norms_found(halves, x[4:])])
        assert torch.allclose(found, parts, rtol=1e-12) == same


# ---------------------------------------------------------------------------------------------------------
# What vmap cannot run is refused, and the refusal says why.


class Doubled(torch.autograd.Function):
    """Without a rule for vmap."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return 2 * g[0]


class Reversed(torch.autograd.Function):
    """The sign of gradients is reversed, as in domain-adversarial training."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return -ctx.share * g[0], None


class Signs(torch.autograd.Function):
    """Gradients go straight through where numbers are small."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return g[0] * (ctx.saved_tensors[0].abs() < 1)


class Mapped(torch.autograd.Function):
    """A user-defined linear map, and a sum; ``ctx`` has a tensor that is not saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.mean = x.mean()
        return x @ weight.T, x.sum(1)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        x, weight = ctx.saved_tensors
        return g[0] @ weight + g[1][:, None] * ctx.mean, g[0].T @ x


class Halved(torch.autograd.Function):
    """In place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(0.5)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return g[0] * 0.5


def by_functions(m: Any, x: Tensor) -> Tensor:
    hidden = applied(Reversed, applied(Signs, m.out(x)), 0.5)
    found: Any = Mapped.apply(hidden, m.out.weight[:, :3])  # type: ignore[no-untyped-call]
    return found[0] * found[1][:, None]  # type: ignore[no-any-return]


class MixedBehind(torch.autograd.Function):
    """The identity, whose gradient mixes records."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return g[0] + g[0].sum(0, keepdim=True)


class OwnMixing(OwnRule):
    """Mixes records behind."""

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor) -> Any:
        return MixedBehind.apply(x), dims[0]  # type: ignore[no-untyped-call]


@torch.library.custom_op("tacit_tests::same", mutates_args=())
def same(x: Tensor) -> Tensor:
    return x.clone()


same.register_autograd(lambda ctx, g: g)
same.register_vmap(lambda info, dims, x: (MixedBehind.apply(x), dims[0]))  # type: ignore[no-untyped-call]


def applied(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    found: Tensor = function.apply(*args)  # type: ignore[no-untyped-call]
    return found


def catching(m: Any, x: Tensor) -> Tensor:
    try:
        return m.out(x).view(7, 7, 7)  # type: ignore[no-any-return]
    except RuntimeError:
        return m.out(x)  # type: ignore[no-any-return]


def written(m: Any, x: Tensor) -> Tensor:
    hidden = torch.zeros(len(x), 4, dtype=x.dtype)
    hidden[:, :3] = m.out(x)
    return hidden


def unseen_product(m: Any, x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        hidden: Tensor = x @ m.out.weight.T
    return hidden.tanh()


def written_into_weights(m: Any, x: Tensor) -> Tensor:
    weights = m.out.weight.repeat(len(x), 1, 1)
    weights[:, 0] = m.out(x)[:, :1] * x
    weights += x[:, None] * m.out.weight
    return torch.as_tensor((weights * weights).sum(2))


def written_late(m: Any, x: Tensor) -> Tensor:
    weights = m.out.weight.repeat(len(x), 1, 1) * 2
    product = (weights * x[:, None]).sum(2)
    weights[:, 0] = x
    return torch.as_tensor(product + weights.exp().sum(2))


def added(m: Any, x: Tensor) -> Tensor:
    total = torch.zeros(len(x), 3, dtype=x.dtype)
    for rows in (x, x.sin()):
        total += m.out(rows)
    return total


OTHER = nn.Linear(3, 3).double()


ODD: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "generators": lambda m, x: torch.cat([*map(m.out, (row[None] for row in x))]),
    "in place": lambda m, x: m.out(x).add_(1).mul_(2),
    "the batch in place": lambda m, x: m.out(x.mul_(2)),
    "lent by functional_call": lambda m, x: torch.func.functional_call(
        m.out, {"weight": m.out.weight * 2}, (x,)
    ),
    "a weight without gradient": lambda m, x: m.out(x) * m.out.weight.detach().sum(),
    "rows written": written,
    "rows written into parameters": written_into_weights,
    "rows written in a checkpoint": lambda m, x: checkpoint(written, m, x, use_reentrant=False),
    "rows added": added,
    "a Parameter of the pass": lambda m, x: m.out(x) * nn.Parameter(m.out.weight.T).t().norm(),
    "parameters of another module": lambda m, x: m.out(x) @ OTHER.weight.t(),
    "a Function": lambda m, x: applied(Doubled, m.out(x)),
    "Functions": by_functions,
    "Functions in a checkpoint": lambda m, x: checkpoint(by_functions, m, x, use_reentrant=False),
}
REFUSED: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "a caught error": (catching, "RuntimeError: shape"),
    "vmap in the model": (lambda m, x: torch.func.vmap(m.out)(x), "records go through"),
    "a script": (lambda m, x: torch.jit.script(nn.Tanh())(m.out(x)), "records go through"),
    "a parameter that is read unseen": (unseen_product, "records go through"),
    "NumPy": (
        lambda m, x: m.out(torch.from_numpy(2 * x.numpy())),
        r"Python reads a value of a record by numpy\(\)",
    ),
    "rows written after a product": (
        written_late,
        "__setitem__ writes in place into a view, or into a tensor of which",
    ),
    "a Function of parameters": (
        lambda m, x: F.linear(x, applied(Doubled, m.out.weight)),
        "user code in the backward pass of a weight",
    ),
    "a Function in place": (
        lambda m, x: applied(Halved, m.out(x) * 1),
        "a torch.autograd.Function changes its input",
    ),
    "a rule of its own": (lambda m, x: applied(OwnMixing, m.out(x)), "OwnMixing, a torch.autograd"),
    "an operator": (lambda m, x: same(m.out(x)), "the operator tacit_tests"),
}


@pytest.mark.parametrize("forward", ODD.values(), ids=ODD)
def test_odd_models_are_a_loop_over_records(forward: Callable[[Any, Tensor], Tensor]) -> None:
    model = made(lambda: Part(forward, out=nn.Linear(6, 3)))
    x = numbers(5, 6)
    found = clipped_sum(engine_of(model), x.clone(), C=C)
    expected = definition(model, lambda m, x: squares(m, x.clone()), (x,), C)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(("forward", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_vmap_cannot_run_is_refused(forward: Callable[[Any, Tensor], Tensor], reason: str) -> None:
    engine = engine_of(made(lambda: Part(forward, out=nn.Linear(6, 3))))
    with pytest.raises(UnsupportedModel, match=reason):
        clipped_sum(engine, numbers(5, 6), C=C)


def test_a_tensor_of_parameters_that_was_made_before_is_refused() -> None:
    model = made(lambda: nn.Linear(6, 3))
    twice = 2 * next(model.parameters())
    engine = engine_of(model, lambda m, x: (m(x) + x @ twice.T).square().sum(1))
    with pytest.raises(UnsupportedModel, match="tensor from before this batch"):
        clipped_sum(engine, numbers(5, 6), C=C)


def test_a_step_that_fails_for_some_records_is_refused() -> None:
    """No batch is clipped in another way because of a record."""

    def factor(model: nn.Module, x: Tensor) -> Tensor:
        covariance = torch.eye(6, dtype=x.dtype) * x[:, :1, None].sub(4).neg()
        return model(torch.linalg.cholesky(covariance).sum(2)).square().sum(1)  # type: ignore[no-any-return]

    engine, x = engine_of(made(lambda: nn.Linear(6, 3)), factor), numbers(6, 6).clamp(-2, 2)
    clipped_sum(engine, x, C=C)
    x[2, 0] = 5.0
    with pytest.raises(UnsupportedModel, match="fails for some records"):
        clipped_sum(engine, x, C=C)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    engine = engine_of(made(lambda: nn.Linear(6, 3)), loss)
    with pytest.raises(RuntimeError, match="out of bounds"):
        clipped_sum(engine, x, torch.tensor([0, 1, 2, 3, 0, 1]), C=C)


# ---------------------------------------------------------------------------------------------------------
# Planted bugs: a checker passes on the engine as it is, and fails on the engine with the bug in it.


def sums_are_those_of_a_loop() -> None:
    for name in ("perceptron", "tied table", "constants"):
        make, records = MODELS[name]
        check_a_loop(made(make), (records(6),))


def padding_adds_nothing() -> None:
    model, x = made(perceptron), numbers(6, 6)
    engine, mask = engine_of(model), torch.tensor([True] * 4 + [False] * 2)
    sums, _ = step(engine, x, mask=mask)
    found = torch.cat([value.flatten() for value in sums.values()])
    torch.testing.assert_close(found, definition(model, squares, (x[:4],), C), rtol=1e-10, atol=1e-10)


def drop_a_gradient(patch: pytest.MonkeyPatch) -> None:
    rule = RULES[F.linear]
    patch.setitem(RULES, F.linear, lambda of, x, *rest: rule(of, x.detach(), *rest))


def share_random_numbers(patch: pytest.MonkeyPatch) -> None:
    right = torch.func.vmap
    patch.setattr(fast, "vmap", lambda function, randomness: right(function, randomness="same"))


def add_twice(patch: pytest.MonkeyPatch) -> None:
    right = FastEngine._add_pass

    def wrong(self: FastEngine, *args: Any) -> Any:
        right(self, *args)
        return right(self, *args)

    patch.setattr(FastEngine, "_add_pass", wrong)


def count_padding(patch: pytest.MonkeyPatch) -> None:
    right = FastEngine.add_clipped_sum

    def wrong(self: FastEngine, sums: Any, batch: Batch, mask: Tensor, C: Tensor) -> object:
        return right(self, sums, batch, torch.ones_like(mask), C)

    patch.setattr(FastEngine, "add_clipped_sum", wrong)


def read_past_the_interception(patch: pytest.MonkeyPatch) -> None:
    """No rule and no copies: the gradients of all records reach the parameters at once."""
    patch.setattr(Pass, "lent", lambda self, value: value)


def lose_what_is_lent(patch: pytest.MonkeyPatch) -> None:
    right = Pass._run_backward

    def wrong(self: Pass, *args: Any) -> None:
        self._lent.clear()
        right(self, *args)

    patch.setattr(Pass, "_run_backward", wrong)


PLANTED = [
    (drop_a_gradient, sums_are_those_of_a_loop),
    (share_random_numbers, each_record_draws_its_own),
    (add_twice, sums_are_those_of_a_loop),
    (count_padding, padding_adds_nothing),
    (read_past_the_interception, sums_are_those_of_a_loop),
    (lose_what_is_lent, sums_are_those_of_a_loop),
]


@pytest.mark.parametrize("checker", [sums_are_those_of_a_loop, padding_adds_nothing])
def test_the_engine_passes_its_checkers(checker: Checker) -> None:
    checker()


@pytest.mark.parametrize(("plant", "checker"), PLANTED)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, UnsupportedModel, pytest.fail.Exception)):
        checker()
