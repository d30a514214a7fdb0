"""Dead leaves: a separate, repeatable random process with the statistics that make it useful."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tacit.errors import InvalidInput
from tacit.models.picture_features import _power_law, dead_leaves


def slope(pictures: Tensor) -> float:
    """Exponent of the power spectrum over radial frequencies 2 to 12 (photographs: near -2)."""
    grey = pictures.mean(1) - pictures.mean((1, 2, 3))[:, None, None]
    power = torch.fft.fft2(grey).abs().square().mean(0)
    axis = torch.fft.fftfreq(grey.shape[1]) * grey.shape[1]
    radius = torch.hypot(axis[:, None], axis[None, :]).round()
    frequencies = torch.arange(2, 13)
    values = torch.stack([power[radius == f].mean() for f in frequencies]).log()
    x = frequencies.log() - frequencies.log().mean()
    return float((x * values).sum() / (x * x).sum())


def test_shape_range_and_kind() -> None:
    pictures = dead_leaves(300, seed=1, leaves=32)
    assert pictures.shape == (300, 3, 32, 32)
    assert pictures.dtype == torch.float32
    assert 0.0 <= float(pictures.min()) < 0.05
    assert 0.95 < float(pictures.max()) <= 1.0
    assert float(pictures.mean()) == pytest.approx(0.5, abs=0.05)
    assert dead_leaves(2, seed=1, size=20, leaves=4).shape == (2, 3, 20, 20)


def test_a_seed_names_the_pictures() -> None:
    many = dead_leaves(260, seed=5, leaves=8)
    assert torch.equal(dead_leaves(3, seed=5, leaves=8), many[:3])
    assert not torch.equal(dead_leaves(3, seed=6, leaves=8), many[:3])
    assert float((many[:4] - many[256:]).abs().mean()) > 0.05  # chunks do not repeat


def test_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    dead_leaves(1, seed=0, leaves=2)
    assert torch.equal(before, torch.get_rng_state())


def test_spectrum_falls_like_that_of_photographs() -> None:
    assert -3.4 < slope(dead_leaves(256, seed=2)) < -1.6
    assert abs(slope(torch.rand(256, 3, 32, 32))) < 0.2  # the measure can tell: noise is flat


def test_radii_follow_the_power_law() -> None:
    grid = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    radii = _power_law(grid, torch.tensor(1.0, dtype=torch.float64), 16.0)
    assert float(radii.min()) >= 1.0
    assert float(radii.max()) <= 16.0
    # Numbers in [1, 2], [2, 4], [4, 8] and [8, 16] fall by 2^2 from one to the next.
    counts = torch.histogram(radii, torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], dtype=torch.float64)).hist
    assert torch.allclose(counts[:-1] / counts[1:], torch.full((3,), 4.0).double(), rtol=0.01)


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="count must be an integer >= 1"):
        dead_leaves(0, seed=0)
