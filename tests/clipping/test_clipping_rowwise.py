"""Weights that are made of a parameter row by row: norms by their form are those of autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tacit.clipping import LEAN, FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import derived_weights
from tacit.clipping.per_example import parameter as gradients_module
from tacit.clipping.per_example.derived_weights import RowByRow, form_of
from tacit.clipping.per_example.linear import Pair
from tacit.clipping.per_example.use import Kept, Rows
from tacit.clipping.reference import ReferenceEngine

Made = Callable[[Tensor, Tensor], Tensor]
"""p (O, ...) and a gain (O, 1, ...) to a weight (O, ...)."""


def standardised(p: Tensor, gain: Tensor) -> Tensor:
    """Weight standardisation of De et al. (2204.13650)."""
    del gain
    variance, mean = torch.var_mean(p, dim=(1, 2, 3), keepdim=True, unbiased=False)
    least = torch.tensor(1e-4, dtype=p.dtype)
    return (p - mean) * torch.rsqrt(torch.maximum(variance * p[0].numel(), least))


def with_gain(p: Tensor, gain: Tensor) -> Tensor:
    return standardised(p, gain) * gain


def by_batch_norm(p: Tensor, gain: Tensor) -> Tensor:
    """As timm writes it."""
    flat = p.reshape(1, len(p), -1)
    found: Tensor = F.batch_norm(flat, None, None, weight=gain.view(-1), training=True, eps=1e-6)
    return found.view_as(p)


def normalised(p: Tensor, gain: Tensor) -> Tensor:
    """Weight norm."""
    size: Tensor = torch.linalg.vector_norm(p, dim=(1, 2, 3), keepdim=True)
    return gain * p / size


def scaled(p: Tensor, gain: Tensor) -> Tensor:
    return 0.25 * gain * p


def whole_norm(p: Tensor, gain: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(p)
    return gain * p / size


def squashed(p: Tensor, gain: Tensor) -> Tensor:
    return gain * p.tanh()


def masked(p: Tensor, gain: Tensor) -> Tensor:
    return gain * p * (torch.arange(p.numel()).view_as(p) % 3 > 0)


def divided(p: Tensor, gain: Tensor) -> Tensor:
    del gain
    size: Tensor = torch.linalg.vector_norm(p)
    return p / size


def spectral(p: Tensor, gain: Tensor) -> Tensor:
    """Divided by what a power iteration takes for the largest singular value."""
    del gain
    rows = p.flatten(1)
    generator = torch.Generator().manual_seed(1)
    u, v = (
        torch.randn(length, dtype=torch.float64, generator=generator).to(p.dtype) for length in rows.shape
    )
    return p / torch.dot(u / u.norm(), rows @ (v / v.norm() + rows[0].detach())).abs()


ROW_BY_ROW: dict[str, Made] = {
    f.__name__: f
    for f in (standardised, with_gain, by_batch_norm, normalised, scaled, squashed, masked, divided, spectral)
}


WITHOUT_GAIN = {"standardised", "divided", "spectral"}


def over_rows(p: Tensor, gain: Tensor) -> Tensor:
    return gain * p.softmax(0)


def one_row_apart(p: Tensor, gain: Tensor) -> Tensor:
    """Standardised, but one number of one row is moved by a thousandth."""
    nudge = torch.ones_like(p)
    nudge[1, 0, 0, 0] += 1e-3
    return standardised(p, gain) * nudge


def one_number_apart(p: Tensor, gain: Tensor) -> Tensor:
    """Divided by one number, but for one number of the weight, which is moved by a thousandth."""
    nudge = torch.ones_like(p)
    nudge[1, 0, 0, 0] += 1e-3
    return divided(p, gain) * nudge


OTHERS: dict[str, Made] = {f.__name__: f for f in (whole_norm, over_rows, one_row_apart, one_number_apart)}


def parameters(dtype: torch.dtype, *shape: int) -> tuple[Tensor, Tensor]:
    p = (0.1 * torch.randn(*shape, dtype=dtype)).requires_grad_()
    gain = (1 + 0.3 * torch.randn(shape[0], *[1] * (len(shape) - 1), dtype=dtype)).requires_grad_()
    return p, gain


def puller(weight: Tensor, parameter: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda g: gradients_module._pulled([weight], parameter, [g])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ROW_BY_ROW)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 5), channels=st.integers(2, 5), kernel=st.integers(1, 3), seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.float32, torch.float64]), size=st.sampled_from([1e-6, 1.0, 1e6]),
)  # fmt: skip
def test_norms_by_the_form_are_those_of_autograd(
    name: str, rows: int, channels: int, kernel: int, seed: int, dtype: torch.dtype, size: float
) -> None:
    torch.manual_seed(seed)
    p, gain = parameters(dtype, rows, channels + 2, kernel, kernel)
    weight = ROW_BY_ROW[name](p, gain)
    gradients = size * torch.randn(7, *p.shape, dtype=dtype)
    gradients[1] = gradients[1, :, :1, :1, :1] + 1e-3 * gradients[1]  # most of it is taken out of the mean
    gradients[2] = p.detach() * gradients[2, :, :1, :1, :1] + 1e-3 * gradients[2]  # or along the weights
    for parameter in (p, gain):
        if name in WITHOUT_GAIN and parameter is gain:
            continue
        pull = puller(weight, parameter)
        form = form_of(weight, parameter, pull)
        assert form is not None
        use = RowByRow(Kept(gradients), weight, tuple(parameter.shape), form, 7, 2**20)
        wanted = puller(ROW_BY_ROW[name](*(doubled := _doubled(p, gain))), doubled[parameter is gain])(
            gradients.double()
        )
        norms, found = wanted.flatten(1).norm(dim=1), use.squared_norms().double().sqrt()
        single = dtype == torch.float32
        assert (found >= norms * (1 - (1e-6 if single else 1e-13))).all()
        unsure = form.scale.double().max() * gradients.double().flatten(1).norm(dim=1)
        assert (
            found <= norms * (1 + (1e-4 if single else 1e-10)) + (1e-2 if single else 1e-6) * unsure
        ).all()
        factors = torch.rand(7, dtype=dtype)
        total = torch.zeros_like(parameter)
        use.add_weighted(total, factors)
        expected = torch.einsum("n,n...->...", factors.double(), wanted)
        scale = float((factors.double() * unsure).sum())
        assert (total.double() - expected).norm() <= (1e-5 if single else 1e-13) * scale
        some = torch.arange(7) % 2 == 0
        assert torch.allclose(use.of(some).squared_norms(), use.squared_norms()[some], rtol=1e-3)
        off = (use.gradients(1, 3).double() - wanted[1:3]).flatten(1).norm(dim=1)
        assert (off <= (1e-5 if single else 1e-13) * unsure[1:3]).all()


def _doubled(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().double().requires_grad_() for t in tensors]


@pytest.mark.untraced
@pytest.mark.parametrize("name", ROW_BY_ROW)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 5), channels=st.integers(3, 9), seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.float32, torch.float64]), apart=st.sampled_from([0.0, 1e-5, 1e-3, 1.0]),
)  # fmt: skip
def test_norms_of_products_are_those_of_what_is_formed(
    name: str, rows: int, channels: int, seed: int, dtype: torch.dtype, apart: float
) -> None:
    """Of records whose inputs are apart from the mean, or from a weight, by a part of them."""
    torch.manual_seed(seed)
    p, gain = parameters(dtype, rows, channels, 1, 1)
    weight = ROW_BY_ROW[name](p, gain)
    left, right = torch.randn(8, rows, dtype=dtype), torch.randn(8, channels, dtype=dtype)
    right[:4] = 1 + apart * right[:4]
    right[4:] = p.detach()[0, :, 0, 0] + apart * right[4:]
    for parameter in (p,) if name in WITHOUT_GAIN else (p, gain):
        pull = puller(weight, parameter)
        form = form_of(weight, parameter, pull)
        assert form is not None
        use = RowByRow(Pair(Rows(left), Rows(right), 1.0), weight, tuple(parameter.shape), form, 8, 300)
        doubled = _doubled(p, gain)
        exact = puller(ROW_BY_ROW[name](*doubled), doubled[parameter is gain])
        formed = left.double()[:, :, None] * right.double()[:, None]
        norms = exact(formed.view(8, *p.shape)).flatten(1).norm(dim=1)
        found = use.squared_norms().double().sqrt()
        single = dtype == torch.float32
        unsure = form.scale.double().max() * formed.flatten(1).norm(dim=1)
        assert (found >= norms * (1 - (1e-6 if single else 1e-13))).all()
        assert (found**2 <= (norms + (1e-4 if single else 1e-11) * unsure) ** 2 + 4e-5 * unsure**2).all()


@given(st.integers(0, 99), st.sampled_from([1e-25, 1e-12, 1.0, 1e12]))
def test_norms_of_masked_products_lose_nothing_small(seed: int, size: float) -> None:
    """Squares of 1e-25 are no numbers in single precision, and these times 1e25 are 1."""
    torch.manual_seed(seed)
    factors = (torch.rand(700, 30) > 0.4) * torch.randn(700, 30)
    left, right = size * torch.randn(5, 700), torch.randn(5, 30) / size
    left[1, 1:] *= 1e-6  # one number large, and many small ones
    right[2, 3] *= 1e6
    found = derived_weights.Elementwise(factors).squared_norms_of_products(left, right).double().sqrt()
    formed = left.double()[:, :, None] * right.double()[:, None] * factors.double()
    norms = formed.flatten(1).norm(dim=1)
    assert (found >= norms * (1 - 4e-6)).all()
    assert (found <= norms * (1 + 1e-5)).all()


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_forms_are_not_taken_for_it(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    p, gain = parameters(dtype, 6, 8, 3, 3)
    weight = OTHERS[name](p, gain)
    assert form_of(weight, p, puller(weight, p)) is None


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = standardised(self.weight, self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


def standardised_net() -> nn.Module:
    return nn.Sequential(
        Standardised(3, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), Standardised(6, 4, 3, stride=2),
        nn.Flatten(), parametrizations.weight_norm(nn.Linear(36, 5)), nn.Tanh(), nn.Linear(5, 2),
    )  # fmt: skip


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def clipped(
    engine: type[FastEngine | ReferenceEngine], model: nn.Module, *batch: Tensor, C: float, **options: object
) -> list[Tensor]:
    one = engine(model, losses, FlatClipping(C), **options)  # type: ignore[arg-type]
    buffers = {name: torch.zeros_like(p) for name, p in one.parameters.items()}
    one.add_clipped_sum(buffers, batch, None, torch.full((1,), C, dtype=torch.float64))
    assert one.route == ("fast" if engine is FastEngine else "reference")
    return list(buffers.values())


@pytest.mark.parametrize("options", [{}, {"budget": LEAN}, {"views": 2}], ids=["fast", "lean", "views"])
def test_nets_with_such_weights(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    taken: list[derived_weights.Form | derived_weights.Elementwise | derived_weights.Divided | None] = []

    def noted(
        weight: Tensor, parameter: Tensor, pull: derived_weights.Pull
    ) -> derived_weights.Form | derived_weights.Elementwise | derived_weights.Divided | None:
        taken.append(form_of(weight, parameter, pull))
        return taken[-1]

    monkeypatch.setattr(gradients_module, "form_of", noted)
    model = standardised_net().double()
    batch = torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.arange(6) % 2
    found = clipped(FastEngine, model, *batch, C=0.1, **options)
    assert len(taken) >= 2
    assert None not in taken  # both convolutions; weight norm has a rule of its own
    views = {name: value for name, value in options.items() if name == "views"}
    for one, other in zip(found, clipped(ReferenceEngine, model, *batch, C=0.1, **views), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


class Checkpointed(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.model, x, use_reentrant=False)
        return found


def test_such_weights_in_a_checkpoint() -> None:
    """Gradients are pulled back after the backward pass; the model must not be computed anew for that."""
    torch.manual_seed(0)
    model = standardised_net().double()
    calls: list[int] = []
    next(model.children()).register_forward_hook(lambda *given: calls.append(len(given[1][0])))
    batch = torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.arange(6) % 2
    wanted = clipped(FastEngine, model, *batch, C=0.1)
    without, calls[:] = len(calls), []
    found = clipped(FastEngine, Checkpointed(model), *batch, C=0.1)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)
    assert len(calls) <= 2 * without


@pytest.mark.untraced
@pytest.mark.parametrize(
    "offset",
    [0.0, 1e2, 1e4, 1e6],
)
def test_records_whose_gradients_the_weights_take_out(offset: float) -> None:
    """Nearly constant pictures: the gradient lies along the mean, which standardisation takes out again."""
    torch.manual_seed(0)
    C = 0.01
    model = nn.Sequential(Standardised(3, 6, 3), nn.Flatten(), nn.Tanh(), nn.Linear(6 * 36, 2))
    pictures, labels = offset + torch.randn(5, 3, 8, 8), torch.arange(5) % 2
    for record in range(5):
        found = clipped(FastEngine, model, pictures[record, None], labels[record, None], C=C)
        norm = sum(float(t.double().square().sum()) for t in found) ** 0.5
        assert norm <= C * (1 + 1e-4)
    together, without = (
        clipped(FastEngine, model, pictures[keep], labels[keep], C=C)
        for keep in (torch.arange(5) >= 0, torch.arange(5) > 0)
    )
    moved = sum(float((a - b).double().square().sum()) for a, b in zip(together, without, strict=True)) ** 0.5
    assert moved <= C * (1 + 1e-4)


@pytest.mark.parametrize("planted", [False, True])
def test_lost_digits_of_divided_weights_are_allowed_for(
    planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large number first, then many that each add less than half a unit: a lane of a product loses them."""
    if planted:
        monkeypatch.setattr(derived_weights, "CANCELLED", 0.0)
        monkeypatch.setattr(derived_weights, "ROUNDED", -2000)
    p = torch.full((1, 2000), -3e-3)
    p[0, 0] = 1.0
    p.requires_grad_()
    right = torch.full((3, 2000), 0.15)
    right[:, 0] = torch.tensor([1e4, 2e4, 4e4])
    form = form_of(weight := p / p.norm(), p, puller(weight, p))
    assert isinstance(form, derived_weights.Divided)
    found = form.squared_norms_of_products(torch.ones(3, 1), right).sqrt()
    doubled = p.detach().double().requires_grad_()
    norms = puller(doubled / doubled.norm(), doubled)(right.double()[:, None]).flatten(1).norm(dim=1)
    assert bool((found >= norms * (1 - 1e-6)).all()) is not planted
    if not planted:
        assert (found**2 <= norms**2 + 2e-3 * right.double().square().sum(1)).all()


@pytest.mark.parametrize("norm", [parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_spectral_norm_whose_vectors_stay(
    norm: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the form, not by pulling back the gradients of all records."""
    torch.manual_seed(0)
    monkeypatch.setattr(gradients_module, "Gradient", _only_alone(gradients_module.Gradient))
    model = nn.Sequential(
        norm(nn.Conv2d(3, 5, 3)), nn.Flatten(), nn.Tanh(), norm(nn.Linear(80, 7)), nn.Linear(7, 2)
    )
    model = model.double()
    for module in (model[0], model[3]):
        module.train(False)
    batch = torch.randn(6, 3, 6, 6, dtype=torch.float64), torch.arange(6) % 2
    found = clipped(FastEngine, model, *batch, C=0.1)
    for one, other in zip(found, clipped(ReferenceEngine, model, *batch, C=0.1), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-11)


def _only_alone(made: type[gradients_module.Gradient]) -> Callable[..., gradients_module.Gradient]:
    def gradient(*given: object, **options: object) -> gradients_module.Gradient:
        one = made(*given, **options)  # type: ignore[arg-type]
        assert one._alone is not None
        return one

    return gradient


def test_what_does_not_hold_is_found_by_the_vectors_that_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them, standardisation with a number moved would be taken for the form."""
    torch.manual_seed(0)
    monkeypatch.setattr(derived_weights, "TOLERANCE", 1e15)
    p, gain = parameters(torch.float64, 6, 8, 3, 3)
    weight = one_row_apart(p, gain)
    assert form_of(weight, p, puller(weight, p)) is not None


def test_a_backward_pass_that_is_not_linear_moves_no_sum_by_more() -> None:
    """A hook that makes large gradients a thousand times larger, and leaves those that are tried alone."""
    torch.manual_seed(0)

    class Enlarging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 40))

        def forward(self, x: Tensor) -> Tensor:
            weight = 1.0 * self.weight
            weight.register_hook(  # type: ignore[no-untyped-call]
                lambda g: g * torch.where(g.abs().amax() > 50.0, 1e3, 1.0)
            )
            return F.linear(x, weight)

    C, x, y = 1e4, 1e6 * torch.randn(4, 40), torch.arange(4) % 2
    for kept in (range(4), range(1), range(3)):
        found = clipped(FastEngine, Enlarging(), x[list(kept)], y[list(kept)], C=C)
        assert sum(float(t.double().square().sum()) for t in found) ** 0.5 <= len(kept) * C * (1 + 1e-4)
