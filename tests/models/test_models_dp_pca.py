"""DP-PCA: sensitivity, the law of the noise, and that the components are found."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit.errors import InvalidInput
from tacit.events import Gaussian
from tacit.models import DPPCA, fit_dp_pca
from tacit.models.dp_pca import GaussianNoise, raw_gram_matrix, symmetric_gaussian


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    torch.manual_seed(0)


def normal(seed: int) -> GaussianNoise:
    generator = torch.Generator().manual_seed(seed)
    return lambda shape, std: std * torch.randn(shape, generator=generator, dtype=torch.float64)


def silent(shape: tuple[int, ...], std: float) -> Tensor:
    return torch.zeros(shape)


@given(
    rows=st.lists(
        st.lists(st.floats(allow_nan=True, allow_infinity=True, width=64), min_size=3, max_size=3),
        min_size=1,
        max_size=5,
    )
)
@settings(max_examples=200, deadline=None)
def test_a_row_changes_the_matrix_by_at_most_1(rows: list[list[float]]) -> None:
    values = torch.tensor(rows, dtype=torch.float64)
    without, whole = raw_gram_matrix(values[1:]), raw_gram_matrix(values)
    assert bool(torch.isfinite(whole).all())
    assert float((whole - without).norm()) <= 1 + 1e-12
    # What the noise is scaled to: the upper triangle, off-diagonal entries counted twice, is the same norm.
    change = whole - without
    upper = float((change.diagonal() ** 2).sum() + 2 * (change.triu(1) ** 2).sum())
    assert math.sqrt(upper) == pytest.approx(float(change.norm()), rel=1e-6, abs=1e-9)


def test_the_bounds_on_the_sensitivity_are_reached() -> None:
    x, y = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 1e-3]])
    assert float(raw_gram_matrix(x).norm()) == pytest.approx(1.0)
    assert float((raw_gram_matrix(x) - raw_gram_matrix(y)).norm()) == pytest.approx(math.sqrt(2))


def test_rows_that_are_zero_or_not_finite_count_for_nothing() -> None:
    good = torch.randn(5, 3)
    bad = torch.tensor([[0.0, 0.0, 0.0], [math.nan, 1.0, 1.0], [math.inf, 0.0, 0.0]])
    assert torch.equal(raw_gram_matrix(torch.cat([good, bad])), raw_gram_matrix(good))


def law_fits(noise: Tensor, std: float) -> bool:
    """Whether the variances of (m, d, d) samples are std^2 on and std^2 / 2 off the diagonal, within 5 sd."""
    diagonal = noise.diagonal(dim1=1, dim2=2).flatten()
    rows, columns = torch.triu_indices(noise.shape[1], noise.shape[1], 1)
    off = noise[:, rows, columns].flatten()
    return all(
        abs(float(part.square().mean()) / variance - 1) < 5 * math.sqrt(2 / len(part))
        for part, variance in ((diagonal, std**2), (off, std**2 / 2))
    )


def test_the_noise_has_the_law_of_a_symmetrised_full_matrix() -> None:
    gaussian = normal(1)
    ours = torch.stack([symmetric_gaussian(6, 3.0, gaussian) for _ in range(2000)])
    assert torch.equal(ours, ours.transpose(1, 2))
    assert law_fits(ours, 3.0)
    assert not law_fits(ours, 2.0)
    assert not law_fits(ours, 4.5)
    full = gaussian((2000, 6, 6), 3.0)
    assert law_fits((full + full.transpose(1, 2)) / 2, 3.0)
    assert not law_fits(full, 3.0)  # without symmetrising the off-diagonal is too large


def test_the_release_is_the_matrix_plus_this_noise() -> None:
    """Reads the released matrix off the eigenvectors: the same draws by hand give the same projection."""
    rows = torch.randn(200, 5)
    pca = fit_dp_pca(rows, components=5, noise_multiplier=4.0, gaussian=normal(7))
    released = raw_gram_matrix(rows) + symmetric_gaussian(5, 4.0, normal(7))
    turned = pca.projection.double().T @ released @ pca.projection.double()
    assert float((turned - turned.diagonal().diag()).abs().max()) < 1e-4 * float(turned.abs().max())
    values = turned.diagonal()
    assert bool((values[:-1] >= values[1:]).all())


def test_finds_the_directions_that_the_rows_lie_in() -> None:
    torch.manual_seed(2)
    basis, _ = torch.linalg.qr(torch.randn(20, 3))
    rows = torch.randn(5000, 3) @ basis.T
    pca = fit_dp_pca(rows, components=3, noise_multiplier=4.0, gaussian=normal(3))
    assert isinstance(pca, DPPCA)
    assert pca.event == Gaussian(4.0)
    assert torch.allclose(pca.projection.T @ pca.projection, torch.eye(3), atol=1e-5)
    assert float((pca.projection.T @ basis).norm()) > 0.99 * math.sqrt(3)
    assert pca.transform(rows).shape == (5000, 3)
    # With noise that swamps the rows, the directions are lost.
    lost = fit_dp_pca(rows, components=3, noise_multiplier=1e5, gaussian=normal(3))
    assert float((lost.projection.T @ basis).norm()) < 0.9 * math.sqrt(3)


def test_images_are_taken_as_rows() -> None:
    images = torch.rand(50, 1, 4, 4)
    pca = fit_dp_pca(images, components=2, noise_multiplier=1.0, gaussian=silent)
    assert pca.projection.shape == (16, 2)
    assert torch.allclose(pca.transform(images), images.flatten(1) @ pca.projection)
    with pytest.raises(InvalidInput, match="16 values each"):
        pca.transform(torch.rand(2, 5))


def test_refusals() -> None:
    rows = torch.rand(10, 4)
    with pytest.raises(InvalidInput, match=r"components must be an integer in \[1, 4\]; got 5"):
        fit_dp_pca(rows, components=5, noise_multiplier=1.0, gaussian=silent)
    with pytest.raises(InvalidInput, match="noise_multiplier"):
        fit_dp_pca(rows, components=1, noise_multiplier=0.0, gaussian=silent)
    with pytest.raises(InvalidInput, match="a record per row"):
        fit_dp_pca(rows[0], components=1, noise_multiplier=1.0, gaussian=silent)
    with pytest.raises(InvalidInput, match=r"requested shape \(10,\)"):
        fit_dp_pca(rows, components=1, noise_multiplier=1.0, gaussian=lambda shape, std: torch.zeros(3))


def test_whitening_evens_out_what_stands_clear_of_the_noise_and_no_more() -> None:
    strong, weak = 10_000, 2500
    rows = torch.cat([torch.eye(8)[:1].repeat(strong, 1), torch.eye(8)[1:2].repeat(weak, 1)])
    pca = fit_dp_pca(rows, components=3, noise_multiplier=2.0, gaussian=normal(1))
    ridge = math.sqrt(2 * 8) * 2.0
    assert pca.eigenvalues[:2].tolist() == pytest.approx([strong, weak], rel=0.01)
    assert abs(float(pca.eigenvalues[2])) <= 1.5 * ridge  # noise alone
    plain, white = pca.transform(torch.eye(8)[:2]), pca.whiten(torch.eye(8)[:2])
    gain = float(white[1, 1] / plain[1, 1])
    assert gain == pytest.approx(math.sqrt((strong + ridge) / (weak + ridge)), rel=0.01)
    assert float(white[0, 0]) == pytest.approx(float(plain[0, 0]))
    assert float((white[:, 2] / plain[:, 2]).abs().max()) <= math.sqrt((strong + ridge) / ridge) * 1.01
