"""Cosines of random projections: against the Gaussian kernel that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.random_features import RandomCosines
from tacit.errors import InvalidInput


@pytest.mark.parametrize("scale", [0.5, 1.5])
def test_inner_products_are_a_gaussian_kernel(scale: float) -> None:
    rows = torch.randn(12, 5, generator=torch.Generator().manual_seed(1))
    found = RandomCosines(5, count=60_000, scale=scale)(rows).double().numpy()
    unit = rows.numpy() / np.linalg.norm(rows.numpy(), axis=1, keepdims=True)
    distances = ((unit[:, None] - unit[None]) ** 2).sum(2)
    assert np.allclose(found @ found.T, np.exp(-(scale**2) * distances / 2), atol=0.03)


def test_a_row_depends_on_its_record_alone_and_not_on_its_length() -> None:
    rows, cosines = torch.randn(4, 7), RandomCosines(7, count=64, scale=1.0)
    assert torch.allclose(cosines(rows)[2:3], cosines(3 * rows[2:3]), atol=1e-6)
    assert torch.equal(cosines(rows), RandomCosines(7, count=64, scale=1.0)(rows))
    assert not torch.equal(cosines(rows), RandomCosines(7, count=64, scale=1.0, seed=1)(rows))


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match=r"\(n, 7\)"):
        RandomCosines(7, count=64, scale=1.0)(torch.randn(4, 6))
    with pytest.raises(InvalidInput, match="scale"):
        RandomCosines(7, count=64, scale=0.0)
