"""Directions of public rows: against NumPy's singular values, and what shrinking does to a covariance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.errors import InvalidInput
from tacit.models.picture_features import PublicDirections, PublicWhitening, shrinking


def rows(n: int, d: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(n, d, generator=generator) @ torch.randn(d, d, generator=generator)
    return 3 + mixed * torch.linspace(0.1, 2, d)


def standard_by_numpy(public: torch.Tensor, other: torch.Tensor) -> np.ndarray:
    deviation = public.double().numpy().std(0, ddof=1)
    centred = (other.double().numpy() - public.double().numpy().mean(0)) / (
        deviation + 0.1 * deviation.mean()
    )
    return np.asarray(centred / np.linalg.norm(centred, axis=1, keepdims=True))


@pytest.mark.parametrize(("n", "d", "k"), [(60, 12, 12), (40, 70, 30)])
def test_directions_are_the_right_singular_vectors_of_standardised_rows(n: int, d: int, k: int) -> None:
    public, other = rows(n, d), rows(9, d, seed=1)
    _, singular, right = np.linalg.svd(standard_by_numpy(public, public), full_matrices=False)
    found = PublicDirections(public, directions=k)
    assert np.allclose(found.values.numpy(), singular[:k] ** 2 / n, rtol=1e-3, atol=1e-6)
    wanted = standard_by_numpy(public, other) @ right[:k].T
    assert np.allclose(np.abs(found(other).numpy()), np.abs(wanted), atol=2e-3)


def test_whitening_shrinks_strong_directions_and_keeps_the_rest() -> None:
    public, other = rows(40, 70), rows(9, 70, seed=1)
    _, singular, right = np.linalg.svd(standard_by_numpy(public, public), full_matrices=False)
    values, strong = singular**2 / 40, right[:20]
    factors = np.sqrt(values[5] / (values[:20] + values[5]))
    standard = standard_by_numpy(public, other)
    wanted = standard + ((standard @ strong.T) * (factors - 1)) @ strong
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    found = PublicWhitening(public, directions=20, floor=5)(other).numpy()
    assert np.allclose(found, wanted, atol=1e-3)


def test_full_shrinking_evens_out_directions_above_the_floor_and_none_keeps_them() -> None:
    values = torch.tensor([100.0, 10.0, 1e-3, 1e-6])
    evened = values * shrinking(values, floor=2) ** 2
    assert torch.allclose(evened[:2], torch.full((2,), 1e-3), rtol=1e-3)
    assert torch.equal(shrinking(values, floor=2, power=0.0), torch.ones(4))


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match=r"public rows must have shape \(n, d\)"):
        PublicDirections(torch.ones(3), directions=1)
    with pytest.raises(InvalidInput, match="directions"):
        PublicDirections(rows(10, 4), directions=5)
    with pytest.raises(InvalidInput, match="floor"):
        shrinking(torch.ones(3), floor=3)
