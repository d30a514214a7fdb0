"""Weight norm: norms and sums by its own rule are those of autograd in double precision, record by record."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import Maker, Of, Shape, clipped_sum, cross_entropy, double, equals_a_loop
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tacit.clipping import FAST, LEAN, FlatClipping
from tacit.clipping.fast import FastEngine, Microbatches
from tacit.clipping.per_example import linear, parameter, weight_norm
from tacit.clipping.per_example.linear import Pair, WeightNorm
from tacit.clipping.per_example.use import Kept, Rows, Use
from tacit.clipping.per_example.weight_norm import NormedWeight
from tacit.errors import LossWarning

normed = parametrizations.weight_norm


def old_normed(module: nn.Module, **options: Any) -> nn.Module:
    """By the hook that torch deprecates, and that many models have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(module, **options)


def engine_of(model: nn.Module, C: float = 0.3, **options: Any) -> FastEngine:
    return FastEngine(model, cross_entropy, FlatClipping(C), **options)


def labelled(*shape: int) -> tuple[Tensor, Tensor]:
    x = double(8, *shape)
    x[2:4] *= 1e-3  # two that are not clipped
    return x, torch.arange(8) % 3


def frozen(model: nn.Sequential, original: str) -> nn.Sequential:
    dict(model.named_parameters())[f"0.parametrizations.weight.{original}"].requires_grad_(False)
    return model


def head(numbers: int) -> nn.Module:
    return nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(numbers, 3))


def checkpointed() -> nn.Module:
    return Of(lambda m, x: checkpoint(m.model, x, use_reentrant=False), model=rows(normed))


def rows(norm: Callable[..., nn.Module]) -> nn.Sequential:
    return nn.Sequential(norm(nn.Linear(7, 6)), nn.ReLU(inplace=True), norm(nn.Linear(6, 3, bias=False)))


MODELS: dict[str, tuple[Maker, Shape]] = {
    "rows": (lambda: rows(normed), (7,)),
    "rows by the old hook": (lambda: rows(old_normed), (7,)),
    "frozen directions": (lambda: frozen(rows(normed), "original1"), (7,)),
    "frozen magnitudes": (lambda: frozen(rows(normed), "original0"), (7,)),
    "checkpointed": (checkpointed, (7,)),
    "positions": (lambda: nn.Sequential(normed(nn.Linear(7, 6)), head(30)), (5, 7)),
    "many positions": (lambda: nn.Sequential(normed(nn.Linear(3, 2)), head(80)), (40, 3)),
    "convolution": (lambda: nn.Sequential(normed(nn.Conv2d(3, 4, 3, stride=2)), head(36)), (3, 8, 8)),
    "groups": (lambda: nn.Sequential(normed(nn.Conv2d(4, 6, 3, groups=2)), head(96)), (4, 6, 6)),
    "convolution in 1 dimension": (lambda: nn.Sequential(old_normed(nn.Conv1d(3, 4, 3)), head(24)), (3, 8)),
}


@pytest.mark.parametrize("options", [{}, {"budget": LEAN}, {"views": 2}], ids=["fast", "lean", "views"])
@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_the_definition(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameter, "_pulled", _unwanted)  # the slow way, by autograd
    make, shape = MODELS[name]
    equals_a_loop(engine_of(make().double(), **options), *labelled(*shape))


def _unwanted(*given: object) -> None:
    raise AssertionError("weight norm was pulled back vector by vector")


def twice() -> nn.Module:
    """One weight that is made once and used twice, so that no rule for one use holds."""

    def forward(m: Any, x: Tensor) -> Any:
        weight = m.layer.weight
        return m.out(F.linear(F.linear(x, weight).tanh(), weight))

    return Of(forward, layer=normed(nn.Linear(7, 7, bias=False)), out=nn.Linear(7, 3))


def of_one() -> nn.Module:
    """Directions and magnitudes that are one parameter."""
    v = nn.Parameter(torch.randn(3, 7))
    return Of(lambda m, x: F.linear(x, torch._weight_norm(m.v, m.v[:, :1], 0)), v=v)


OTHERS: dict[str, Maker] = {
    "twice": twice,
    "of one": of_one,
    "over columns": lambda: nn.Sequential(normed(nn.Linear(7, 3), dim=1)),
    "over all": lambda: nn.Sequential(normed(nn.Linear(7, 3), dim=cast(int, None))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_weights_that_the_rule_does_not_fit_are_right_as_well(name: str) -> None:
    equals_a_loop(engine_of(OTHERS[name]().double()), *labelled(7))


def _of_the_first_use(source: Tensor, uses: list[Use], n: int, most: int) -> NormedWeight | None:
    made_of = linear.weight_norm_of(source)
    return None if made_of is None else NormedWeight(uses[0], made_of, n, most)


@pytest.mark.parametrize(
    ("where", "name", "planted", "model"),
    [
        (WeightNorm, "scale", property(lambda self: self.magnitudes.detach().flatten()), "rows"),
        (WeightNorm, "unit", property(lambda self: self.directions.detach().flatten(1)), "positions"),
        (weight_norm._Directions, "_across", lambda self, G: G, "rows"),
        (weight_norm, "_ordered", lambda rows, shape, order: rows.flip(0), "convolution"),
        (parameter, "normed_weight", _of_the_first_use, "twice"),
    ],
    ids=["scale", "unit", "no projection", "order", "uses"],
)  # fmt: skip
def test_planted_bug_in_weight_norm(
    where: Any, name: str, planted: Any, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each makes another sum than the definition has."""
    monkeypatch.setattr(where, name, planted)
    make, shape = MODELS[model] if model in MODELS else (OTHERS[model], (7,))
    with pytest.raises(AssertionError):
        equals_a_loop(engine_of(make().double()), *labelled(*shape))


def exact_norms(formed: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """|dv| and |dg| (n,) from gradients G (n, O, N) of the weight, by autograd in double precision."""
    v, g = v.double().requires_grad_(), g.double().requires_grad_()
    weight = g * v / v.norm(dim=1, keepdim=True)
    found = [torch.autograd.grad(weight, (v, g), one, retain_graph=True) for one in formed]
    of_v, of_g = (torch.stack([part.norm() for part in parts]) for parts in zip(*found, strict=True))
    return of_v, of_g


def checked(use: Use, left: Tensor, right: Tensor, v: Tensor, g: Tensor) -> None:
    """Norms by ``use``, of left (n, T, O) and right (n, T, N), are no smaller than the exact ones.

    They are larger by no more units of rounding, of the sum of the norms of the positions, than numbers in a
    row and positions allow.
    """
    weight = NormedWeight(use, WeightNorm(v, g), len(left), 2**12)
    of_v, of_g = exact_norms(left.double().transpose(1, 2) @ right.double(), v, g)
    found_v = weight_norm._Directions(weight).squared_norms().double()
    found_g = weight_norm._Magnitudes(weight).squared_norms().double().sqrt()
    whole = (left.double().norm(dim=2) * right.double().norm(dim=2)).sum(1)
    eps, N = torch.finfo(v.dtype).eps, v.shape[1]
    scale = float(weight.scale.abs().max())
    assert (found_v.sqrt() >= of_v * (1 - 10 * eps)).all()
    assert (found_v <= of_v**2 * (1 + 1e-4) + (2 * N + 200) * eps * (scale * whole) ** 2 + 1e-30).all()
    off = (N + 10) * eps * whole  # as the dot products may be off: what is formed is so as well
    assert (found_g >= of_g - off).all()
    assert (found_g <= of_g + off + 2e3 * eps * whole + 1e-15).all()


@given(
    rows_=st.integers(1, 6), numbers=st.integers(2, 300), seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.float32, torch.float64]), size=st.sampled_from([1e-9, 1.0, 1e9]),
    apart=st.sampled_from([0.0, 1e-6, 1e-4, 1e-2, 0.3, 1.0]), kind=st.sampled_from(["pair", "kept"]),
)  # fmt: skip
def test_norms_are_no_smaller_than_exact_ones(
    rows_: int, numbers: int, seed: int, dtype: torch.dtype, size: float, apart: float, kind: str
) -> None:
    """The records are almost parallel to a row of the weights, so nearly all of the norm cancels."""
    torch.manual_seed(seed)
    v, g = torch.randn(rows_, numbers, dtype=dtype), torch.randn(rows_, 1, dtype=dtype)
    v[1:] = v[:1] + apart * v[1:]
    left = size * torch.randn(6, rows_, dtype=dtype)
    right = v[0] * (1 + torch.rand(6, 1, dtype=dtype)) + apart * torch.randn(6, numbers, dtype=dtype)
    pair = Pair(Rows(left), Rows(right / size), 1.0)
    checked(
        pair if kind == "pair" else Kept(pair.gradients(0, 6)), left[:, None], right[:, None] / size, v, g
    )


@pytest.mark.parametrize("planted", [False, True])
def test_lost_digits_of_products_are_allowed_for(planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large number first, then many that each add less than half a unit: a lane loses all of them.

    They are of the other sign, so that the dot product comes out too large, and what is left of G too small.
    """
    if planted:
        monkeypatch.setattr(weight_norm, "CANCELLED", 0.0)
        monkeypatch.setattr(weight_norm, "UNITS", -1e4)
    v = torch.full((1, 2000), -3e-3)
    v[0, 0] = 1.0
    right = torch.full((3, 2000), 0.15)
    right[:, 0] = torch.tensor([1e4, 2e4, 4e4])
    left, g = torch.ones(3, 1), torch.ones(1, 1)
    pair = Pair(Rows(left), Rows(right), 1.0)
    for use in (pair, Kept(pair.gradients(0, 3))):
        with pytest.raises(AssertionError) if planted else nullcontext():
            checked(use, left[:, None], right[:, None], v, g)


def test_one_record_more_does_not_change_the_norms_of_others() -> None:
    """All but one part in 10,000 cancels, and products of other sizes round differently."""
    v, g = torch.randn(1, 784).repeat(5, 1), torch.ones(5, 1)
    left, right = torch.randn(200, 5), 1e6 * (v[0] + 1e-2 * torch.randn(200, 784))
    right[100:] = 1e6 * (v[0] + 1e-5 * torch.randn(100, 784))
    whole = NormedWeight(Pair(Rows(left), Rows(right), 1.0), WeightNorm(v, g), 200, 2**30)
    norms = whole.measured.of_directions.double().sqrt()
    for n in (1, 3, 17, 130, 199):
        few = NormedWeight(Pair(Rows(left[:n]), Rows(right[:n]), 1.0), WeightNorm(v, g), n, 2**30)
        assert torch.allclose(few.measured.of_directions.double().sqrt(), norms[:n], rtol=1e-5, atol=0)


def test_a_row_of_zeros_has_no_direction() -> None:
    """As in plain training, its numbers are NaN: no record has a finite gradient, and nothing is added."""
    model = rows(normed)
    with torch.no_grad():
        dict(model.named_parameters())["0.parametrizations.weight.original1"][0] = 0.0
    with pytest.warns(LossWarning, match="NaN or infinite"):
        found = clipped_sum(engine_of(model), torch.randn(4, 7), torch.arange(4) % 3)
    assert not found.any()


def test_the_weight_does_not_count_as_activations() -> None:
    """It is as large for two records as for all; taken for theirs, it had the batch cut in parts."""
    model = normed(nn.Linear(784, 512))
    measured: dict[str, int] = {}
    passes = Microbatches(FAST.pass_bytes, 4 * 512 * 785, 1, measured)
    batch = (torch.zeros(512, 784),)
    assert len(passes.cut(batch, lambda rows: model(*rows), "")) == 1
    assert list(measured.values()) == [4 * 512]
