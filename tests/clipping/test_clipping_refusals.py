"""Models and losses in which clipping would bound nothing: refused, with the reason and the fix.

The coupling table (``couplings_of_*.py``) has more; letters: m the model; h what a layer makes of records x.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from couplings_of_values import fixed_noise
from oracles import (
    Change,
    Kind,
    Of,
    both,
    clipped_sum,
    cross_entropy,
    custom,
    each,
    equal,
    equals_a_loop,
    is_refused,
    loop,
    squares,
    step,
    with_rule,
)
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor, is_functorch_wrapped_tensor
from torch.nn.utils.rnn import pack_padded_sequence
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tacit.clipping import FlatClipping
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation.model_checks import check_losses, check_model
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import InvalidInput, UnsupportedModel
from tacit.models.networks import make_private_ready, replacements

RULE = FlatClipping(0.125)
Function = Callable[[Any, Tensor], Any]


def engine_of(function: Function, kind: Kind = FastEngine) -> GradientEngine:
    return kind(Of(function, layer=nn.Linear(4, 4)), squares, RULE)


# --- records that are mixed ---------------------------------------------------------------------------------

WAVES = (torch.arange(64.0)[:, None, None] * torch.tensor([1.0, 0.5, 0.1, 0.01])).sin()
MIXES: dict[str, Change] = {
    "centred on the batch": lambda h: h - h.mean(0),
    "first row": lambda h: h + h[:1],
    "pairs": lambda h: h * h.detach()[(torch.arange(len(h)) ^ 1).clamp(max=len(h) - 1)],
    "mean": lambda h: h / len(h),
    "root": lambda h: h * len(h) ** -0.5,
    "a small part": lambda h: h + 0.1 / len(h),
    "thirds": lambda h: h * (1 + torch.arange(len(h)) % 3)[:, None, None],
    "waves": lambda h: h + WAVES[: len(h)],
}
NOISES: dict[str, Change] = {
    "randn_like": lambda h: h + torch.randn_like(h),
    "numbers": lambda h: h + torch.rand(len(h), 1, 1),
    "integers": lambda h: h * torch.randint(1, 12, (len(h), 1, 1)),
    "a distribution": lambda h: torch.distributions.Normal(h, 0.1).rsample(),
    "in place": lambda h: h * torch.empty_like(h).bernoulli_(0.5),
    "multinomial": lambda h: h + torch.multinomial(h.detach()[:, 0].softmax(1), 1)[..., None],
    "of positions": lambda h: h + torch.randn(3 * len(h), 4).view(len(h), 3, 4),
    "steps": lambda h: h + WAVES[torch.randint(0, 9, (len(h),))],
    "dropout": lambda h: F.dropout(h, 0.5),
    "dropout within": lambda h: F.scaled_dot_product_attention(h, h, h, dropout_p=0.5),
}
"""Drawn for each record; what is judged is the mixing behind it."""
CASES = [(mix, "") for mix in MIXES] + [(mix, noise) for mix in ("mean", "waves") for noise in NOISES]


@pytest.mark.thorough(cases="values")
@both
@pytest.mark.parametrize("n", [3, 64])
@pytest.mark.parametrize(("mix", "noise"), CASES, ids=str)
def test_models_that_mix_records_are_refused(kind: Kind, n: int, mix: str, noise: str) -> None:
    engine = engine_of(lambda m, x: MIXES[mix](NOISES[noise](m.layer(x)) if noise else m.layer(x)), kind)
    is_refused("a record's loss in a batch differs from its loss alone", engine, torch.randn(n, 3, 4))


# --- what vmap cannot run, and user code that would see several records -------------------------------------


def caught(m: Any, x: Tensor) -> Any:
    try:
        return m.layer(x).view(7, 7, 7)
    except RuntimeError:
        return m.layer(x)


def unseen(m: Any, x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        hidden: Tensor = x @ m.layer.weight.T
    return hidden.tanh()


def written_late(m: Any, x: Tensor) -> Any:
    weights = m.layer.weight.repeat(len(x), 1, 1) * 2
    product = (weights * x[:, None]).sum(2)
    weights[:, 0] = x
    return product + weights.exp().sum(2)


def written(m: Any, x: Tensor) -> Any:
    w = m.layer.bias * 1.0
    before = x * w
    w[0] = 5.0
    return before + x * w


def bags(m: Any, x: Tensor) -> Tensor:
    ends = torch.arange(len(x) + 1) * 4
    return F.embedding_bag(
        (x > 0).long().flatten(), m.layer.weight, ends, mode="sum", include_last_offset=True
    )


def by_row(function: Change) -> Function:
    return lambda m, x: torch.stack([function(m.layer(row)) for row in x])


def of_weight(function: Callable[[Tensor], Any]) -> Function:
    return lambda m, x: F.linear(x, function(m.layer.weight), m.layer.bias)


def hooked(add: Callable[[Tensor], object]) -> Function:
    def function(w: Tensor) -> Tensor:
        changed = w * 1.0
        add(changed)
        return changed

    return of_weight(function)


def attention(**options: Any) -> Function:
    layer = nn.MultiheadAttention(4, 2, batch_first=True, **options)
    return lambda m, x: m.layer(x) + layer(x[:, None], x[:, None], x[:, None])[0][:, 0]


def one_or_many() -> Tensor:
    return 1 + 1e5 * torch.randint(2, ())


doubled = custom("Doubled", lambda ctx, x: 2 * x, lambda ctx, g: 2 * g)
quantised = custom(
    "Quantised", lambda w: w.round(), lambda ctx, g: g * one_or_many(), setup_context=lambda *_: None,
    generate_vmap_rule=True,
)  # fmt: skip
halved = custom("Halved", lambda ctx, x: ctx.mark_dirty(x) or x.mul_(0.5), lambda ctx, g: g * 0.5)
mixed_behind = custom("MixedBehind", lambda ctx, x: x.clone(), lambda ctx, g: g + g.sum(0, keepdim=True))
own_mixing = with_rule("OwnMixing", lambda info, dims, x: (mixed_behind(x), dims[0]))


@torch.library.custom_op("tacit_tests::same", mutates_args=())
def same(x: Tensor) -> Tensor:
    return x.clone()


same.register_autograd(lambda ctx, g: g)
same.register_vmap(lambda info, dims, x: (mixed_behind(x), dims[0]))
CODE, CHANGED = (
    "user code in its backward pass",
    "computed from parameters is changed in place after",
)
REFUSED: dict[str, tuple[Function, str]] = {
    "a caught error": (caught, "RuntimeError: shape"),
    "vmap in the model": (lambda m, x: torch.func.vmap(m.layer)(x), "records pass through"),
    "vmap of a weight": (
        lambda m, x: torch.func.vmap(lambda row: F.linear(row, m.layer.weight))(x),
        "a transform of torch.func",
    ),
    "a script": (lambda m, x: torch.jit.script(nn.Tanh())(m.layer(x)), "records pass through"),
    "Hessians": (
        lambda m, x: torch.vmap(torch.func.hessian(lambda r: r.sin().sum()))(x) @ m.layer.bias,
        "records pass through",
    ),
    "nested": (
        lambda m, x: m.layer(torch.nested.to_padded_tensor(torch.nested.nested_tensor(list(x)), 0.0)),
        "cannot run this model",
    ),
    "a parameter that is read unseen": (unseen, "records pass through"),
    "rows written after a product": (
        written_late,
        "__setitem__ writes in place into a view, or into a tensor of",
    ),
    "bags by offsets": (bags, 'F.embedding_bag has offsets.*engine="reference"'),
    "leaky by chance": (lambda m, x: F.rrelu(m.layer(x)), 'not yet support aten::rrelu.*engine="reference"'),
    "added zeros": (attention(add_zero_attn=True), "attention with added or static keys"),
    "added keys": (attention(add_bias_kv=True), "attention with added or static keys"),
    # of records that are alike, for which torch's fallback would give a size
    "nonzero": (by_row(lambda h: h * h.nonzero().shape[0]), "the size of the result of nonzero depends on"),
    "counts": (
        by_row(lambda h: torch.bincount((h > 0).long()).sum() * h),
        "no batching rule for aten::bincount",
    ),
    "repeats": (
        by_row(lambda h: h * torch.repeat_interleave(torch.ones(4), (h > 0).long()).sum()),
        "no batching rule for aten::repeat_interleave",
    ),
    "a mask": (
        by_row(lambda h: h + h[h > 0].sum()),
        "the size of the result of indexing with a boolean mask",
    ),
    "one noise for all": (lambda m, x: m.layer(F.dropout(x, 0.3) + fixed_noise(x)), "sets a seed"),
    "a Function in place": (
        lambda m, x: halved(m.layer(x) * 1),
        "a torch.autograd.Function changes its input",
    ),
    "a rule of its own": (lambda m, x: own_mixing(m.layer(x)), "OwnMixing, a torch.autograd"),
    "an operator": (lambda m, x: same(m.layer(x)), "the operator tacit_tests"),
    # such code ran twice, for the norm and for the sum: one record moved the sum by 1e5 C
    "a Function of parameters": (of_weight(doubled), CODE),
    "a random Function of parameters": (of_weight(quantised), CODE),
    "a hook on a weight": (hooked(lambda w: cast(Any, w).register_hook(lambda g: g * one_or_many())), CODE),
    "a hook before a node": (
        hooked(lambda w: cast(Any, w.grad_fn).register_prehook(lambda g: (g[0] / g[0].abs().max(),))),
        CODE,
    ),
    "a hook after a node": (
        hooked(lambda w: cast(Any, w.grad_fn).register_hook(lambda g, _: (g[0] * one_or_many(), None))),
        CODE,
    ),
    "changed by a rule": (
        lambda m, x: F.linear(F.linear(x, w := m.layer.weight * 1.0), w.mul_(2.0)),
        CHANGED,
    ),
    "changed as it is lent": (lambda m, x: x * (w := m.layer.bias * 1.0) + x * w.mul_(2.0), CHANGED),
    "changed by a view": (
        lambda m, x: x * (w := m.layer.bias * 1.0) + x * w[:2].mul_(2.0).sum() + x * w,
        CHANGED,
    ),
    "changed by an index": (written, CHANGED),
}


@pytest.mark.filterwarnings("ignore:.*(jit.script|nested tensors|torch.jit)")
@each("function, reason", REFUSED)
def test_what_vmap_cannot_run_and_what_sees_several_records_is_refused(
    function: Function, reason: str
) -> None:
    is_refused(reason, engine_of(function), torch.ones(5, 4))


def test_a_gradient_that_passes_straight_through_is_fast() -> None:
    equals_a_loop(engine_of(of_weight(lambda w: w + (w.round() - w).detach())), torch.randn(5, 4), rtol=1e-4)


@both
@pytest.mark.parametrize("leaf", [False, True])
def test_reentrant_checkpoints_are_refused_with_the_fix(kind: Kind, leaf: bool) -> None:
    """Also behind frozen embeddings, whose outputs are made to require gradients: nothing is trained."""

    def recomputed(m: Any, x: Tensor) -> Any:
        first = x.detach().clone().requires_grad_(True) if leaf else m.layer(x)
        return m.layer(checkpoint(m.layer, first, use_reentrant=True))

    is_refused("use_reentrant=False", engine_of(recomputed, kind), torch.randn(6, 4))


def written_over(h: Tensor, old: Tensor) -> Tensor:
    h = h.clone()
    h[0] = old[0]
    return h


def past_torch(h: Tensor, old: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return h * old


STORED = "stored tensor of an earlier batch"
WAYS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "an operation": (lambda h, old: h * old, STORED),
    "a property": (lambda h, old: h * old.real, STORED),
    "a shape": (lambda h, old: h * old.shape[1], STORED),
    "data": (lambda h, old: h * old.data, "accessing `data`"),
    "one record": (lambda h, old: h * old[0], STORED),
    "its parts": (lambda h, old: h * next(iter(old)), STORED),
    "a choice": (lambda h, old: torch.where(h > 0, h, old), STORED),
    "a copy": (lambda h, old: h * copy.copy(old), STORED),
    "a place to write": (lambda h, old: torch.mul(h.detach(), 2, out=old) + h, STORED),
    "a write": (written_over, STORED),
    "unseen": (past_torch, "cannot run this model on each record alone"),
    "a parameter": (lambda h, old: h * nn.Parameter(old), "operations that Python does not see"),
}


@each("way, reason", WAYS)
def test_tensors_of_an_earlier_batch_cannot_be_read(
    way: Callable[[Tensor, Tensor], Tensor], reason: str
) -> None:
    """To vmap itself such a tensor is one of the records of now, if only they are as many."""
    bank: list[Tensor] = []

    def function(m: Any, x: Tensor) -> Tensor:
        h = m.layer(x)
        bank.append(h.detach())
        return way(h, bank[-2]) if len(bank) > 1 and is_batchedtensor(bank[-2]) else h

    engine = engine_of(function)
    with pytest.raises(UnsupportedModel, match=reason):
        [clipped_sum(engine, torch.randn(5, 4)) for _ in range(3)]


def test_labels_that_are_none_fail_as_in_torch() -> None:
    engine = FastEngine(nn.Linear(4, 3), cross_entropy, RULE)
    with pytest.raises(IndexError, match="out of bounds"):
        step(engine, torch.randn(6, 4), torch.arange(6))


# --- modes of torch -----------------------------------------------------------------------------------------

DATA = 7.5
"""The value that all records have."""
seen: list[float] = []
"""The values that a mode saw."""


class Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode below vmap."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in args:
            if isinstance(tensor, Tensor) and not is_functorch_wrapped_tensor(tensor):
                seen.extend(tensor.detach().flatten().tolist())
        return func(*args, **(kwargs or {}))


class Above(TorchFunctionMode):
    """A mode above vmap."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@both
@pytest.mark.parametrize("mode", [Dispatch, Above])
def test_a_step_within_a_mode_is_refused(mode: type[AbstractContextManager[Any]], kind: Kind) -> None:
    engine = engine_of(lambda m, x: m.layer(x), kind)
    with mode():
        is_refused(f"under the mode {mode.__name__}", engine, torch.ones(5, 4))


@pytest.mark.parametrize("leaves", [True, False])
def test_a_loss_that_enters_a_dispatch_mode_is_refused(leaves: bool) -> None:
    """The first to refuse it is the check on synthetic records, before data are read."""

    def function(m: Any, x: Tensor) -> Any:
        mode: Any = Dispatch()  # type: ignore[no-untyped-call]
        mode.__enter__()
        result = m.layer(x)
        if leaves:
            mode.__exit__(None, None, None)
        return result

    seen.clear()
    depth = torch._C._len_torch_dispatch_stack()
    try:
        is_refused("under the mode Dispatch", engine_of(function), torch.full((5, 4), DATA))
    finally:
        while torch._C._len_torch_dispatch_stack() > depth:
            torch._C._pop_torch_dispatch_stack(None)
    assert DATA not in seen


class Wrapper(torch.Tensor):
    """A tensor below vmap: PyTorch gives its operations the tensors of all records."""

    under: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.under = inner
        return made

    def __init__(self, inner: Tensor) -> None:
        pass

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        plain = [arg.under if isinstance(arg, Wrapper) else arg for arg in args]
        for tensor in plain:
            if isinstance(tensor, Tensor):
                seen.extend(tensor.detach().flatten().tolist())
        return func(*plain, **(kwargs or {}))


class Plain(torch.Tensor):
    """A subclass without code below vmap."""


def test_a_tensor_with_code_below_vmap_is_refused() -> None:
    """Before a record's value reaches that code: 7.5 C otherwise, as it may read a record for all others."""
    scale = torch.ones(4)
    wrapper: Any = Wrapper
    seen.clear()
    is_refused(
        "has the class Wrapper with its own __torch_dispatch__",
        engine_of(lambda m, x: m.layer(x * wrapper(scale))),
        torch.full((5, 4), DATA),
    )
    assert DATA not in seen
    step(engine_of(lambda m, x: m.layer(x * scale.as_subclass(Plain))), torch.ones(5, 4))


def test_a_default_device_is_no_such_mode() -> None:
    with torch.device("cpu"):
        step(engine_of(lambda m, x: m.layer(x)), torch.ones(5, 4))


# --- sequences, types, losses and parameters ----------------------------------------------------------------


def packed(least: int = 1) -> nn.Module:
    """A recurrent layer on packed sequences; a record of zeros is of length ``least``."""

    def forward(m: Any, x: Tensor) -> Any:
        lengths = (x != 0).sum(1).clamp(min=least)
        rows = pack_padded_sequence(m.words(x), lengths, batch_first=True, enforce_sorted=False)
        return m.out(m.layer(rows)[1][0])

    return Of(forward, words=nn.Embedding(9, 4), layer=nn.GRU(4, 3, batch_first=True), out=nn.Linear(3, 2))


def sequences(n: int) -> Tensor:
    return torch.randint(1, 9, (n, 7)) * (torch.arange(7) < torch.randint(1, 8, (n, 1)))


def test_packed_sequences_need_the_reference_engine() -> None:
    model, x = packed().double(), sequences(24)
    equals_a_loop(ReferenceEngine(model, squares, RULE), x)
    is_refused("_pack_padded_sequence", FastEngine(model, squares, RULE), x)


@both
def test_models_that_fail_on_zeros_are_refused(kind: Kind) -> None:
    is_refused("records of zeros.*Length of all samples.*clamp", kind(packed(0), squares, RULE), sequences(8))


@both
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.complex64])
def test_made_up_records_have_the_types_of_the_batch(kind: Kind, dtype: torch.dtype) -> None:
    def masked(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        assert mask.dtype == dtype
        out: Tensor = model(x) * (mask.abs().float() if mask.is_complex() else mask)
        return out.square().sum(1)

    clipped_sum(kind(nn.Linear(4, 4), masked, RULE), torch.randn(12, 4), torch.ones(12, 4).to(dtype))


@both
def test_scalar_and_misshapen_losses_are_refused(kind: Kind) -> None:
    """And losses without a gradient, of which each step would be noise alone."""
    for wrong, message in (
        (lambda m, x: m(x).square().mean(), 'reduction="none"'),
        (lambda m, x: m(x).square(), 'reduction="none"'),
        (lambda m, x: m(x).square().sum(1, keepdim=True), 'reduction="none"'),
        (lambda m, x: m(x).argmax(1), 'reduction="none"'),
        (lambda m, x: m(x).detach().sum(1), "depend on no trainable parameter"),
    ):
        with pytest.raises(InvalidInput, match=message):
            clipped_sum(kind(nn.Linear(4, 4), wrong, RULE), torch.randn(6, 4))
    with pytest.raises(InvalidInput, match="must return a tensor"):
        check_losses(1.0, 3)


def hook_on(name: str, register: str) -> nn.Module:
    model = nn.Linear(2, 2)
    getattr(model.get_parameter(name), register)(lambda g: None)
    return model


MODELS: dict[str, tuple[nn.Module, str]] = {
    "no trainable parameters": (nn.Linear(2, 2).requires_grad_(False), "no trainable parameters"),
    "batch norm": (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "'1' .BatchNorm1d.*make_private_ready"),
    "lone batch norm": (nn.BatchNorm2d(2), "the model .BatchNorm2d"),
    "no statistics": (nn.BatchNorm2d(2, track_running_stats=False).eval(), "BatchNorm2d"),
    "instance norm": (nn.InstanceNorm2d(2, affine=True, track_running_stats=True), "running statistics"),
    "table with max_norm": (nn.Embedding(3, 2, max_norm=1.0), "max_norm"),
    "table by frequency": (nn.Embedding(3, 2, scale_grad_by_freq=True), "scale_grad_by_freq"),
    "data parallel": (nn.DataParallel(nn.Linear(2, 2)), "model.module"),
    "complex": (nn.Linear(4, 4, dtype=torch.complex64), "complex.*view_as_real"),
    "hook": (hook_on("weight", "register_hook"), "'weight' has a gradient hook.*Remove the hook"),
    "later hook": (hook_on("bias", "register_post_accumulate_grad_hook"), "'bias' has a gradient hook"),
}


@both
@each("model, message", MODELS)
def test_models_refused_before_any_data(model: nn.Module, message: str, kind: Kind) -> None:
    for check in (check_model, lambda model: kind(model, squares, RULE)):
        with pytest.raises(UnsupportedModel, match=message):
            check(model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_models_are_right_and_traced_ones_refused() -> None:
    """The engine cannot see the operations of torch.jit."""
    model, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), torch.randn(3, 4)
    twin = cast(nn.Module, torch.compile(model, backend="eager"))
    equals_a_loop(FastEngine(twin, squares, RULE), x, rtol=1e-4, atol=1e-5)
    traced: nn.Module = torch.jit.trace(model, x)  # type: ignore[no-untyped-call]
    is_refused("records pass through operations", FastEngine(traced, squares, RULE), x)


@both
def test_parameters_of_the_loss_get_no_gradient(kind: Kind) -> None:
    temperature = nn.Parameter(torch.ones(()))
    assert clipped_sum(
        kind(nn.Linear(4, 4), lambda m, x: m(x).sum(1) * temperature, RULE), torch.randn(3, 4)
    ).any()
    assert temperature.grad is None


@both
def test_a_squeezed_output_is_that_of_a_batch_of_several(kind: Kind) -> None:
    """A weight of one row loses its first dimension all the same."""

    def loss(model: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
        out = model(x)[:, 0] if plain else model(x).squeeze()
        size = torch.dot(model.weight.squeeze(), model.weight.squeeze())
        return F.binary_cross_entropy_with_logits(out * size, y, reduction="none")

    plain = False
    model, batch = nn.Linear(6, 1).double(), (torch.randn(5, 6).double(), torch.arange(5.0).double() % 2)
    found, _ = step(kind(model, loss, RULE), *batch)
    plain = True  # for the loop, which squeezes a single record to no dimension at all
    equal(found, loop(model, loss, batch, RULE)[0])


# --- what make_private_ready replaces -----------------------------------------------------------------------


def network() -> nn.Sequential:
    shared = nn.BatchNorm2d(8)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3), shared, nn.ReLU()),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        shared,
        nn.Flatten(),
        nn.LazyLinear(5),
        nn.SyncBatchNorm(5),
        nn.BatchNorm1d(5, affine=False),
    )


def test_batch_norm_becomes_group_norm_and_the_original_stays() -> None:
    model = network()
    model[4] = nn.Linear(8 * 16, 5)
    nn.init.normal_(model.get_parameter("2.weight"))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    layers = list(model.modules())
    with pytest.raises(UnsupportedModel, match=r"0\.1.*BatchNorm2d.*make_private_ready"):
        check_model(model)
    ready = make_private_ready(model)
    check_model(ready)
    assert ready is not model
    assert list(model.modules()) == layers
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert isinstance(ready, nn.Sequential)
    assert isinstance(ready[2], nn.GroupNorm)
    assert ready[2].num_groups == 2
    assert ready[2] is ready.get_submodule("0.1")  # a shared layer stays shared
    assert torch.equal(ready[2].weight, model.get_parameter("2.weight"))
    assert not any(p is q for p in model.parameters() for q in ready.parameters())
    assert not list(ready.buffers())
    assert ready(torch.randn(2, 3, 6, 6)).shape == (2, 5)


def test_a_lone_layer_and_flags() -> None:
    model = nn.BatchNorm2d(6).eval().requires_grad_(False)
    ready = make_private_ready(model)
    assert isinstance(ready, nn.GroupNorm)
    assert not ready.training
    assert not any(p.requires_grad for p in ready.parameters())


def test_a_model_without_such_layers_is_copied() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.InstanceNorm1d(3))
    model.register_module("none", None)
    ready = make_private_ready(model)
    assert repr(ready) == repr(copy.deepcopy(model))
    assert ready is not model
    assert list(replacements(model)) == []


def test_replacements_are_named() -> None:
    assert list(replacements(network()))[:2] == [("0.1", "GroupNorm"), ("1", "InstanceNorm2d")]
