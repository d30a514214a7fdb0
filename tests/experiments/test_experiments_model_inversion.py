"""Likeness of pictures, and the experiment on model inversion: formulas by loops, bad input."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from experiments import model_inversion
from experiments.base import Request, Setting
from experiments.laboratory.inversion import Inversion
from experiments.likeness import (
    correlation,
    nearest_similarity,
    recognised,
    structural_similarity,
)
from experiments.registry import reproduce
from tacit.errors import InvalidInput


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    torch.manual_seed(0)


def pictures(seed: int, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.random.default_rng(seed).random(shape)


def test_structural_similarity_is_the_formula_at_every_pixel() -> None:
    a, b = pictures(0, 9, 8), pictures(1, 9, 8)
    r = 5  # 3.5 standard deviations of 1.5 pixels
    places = np.arange(-r, r + 1)
    window = np.exp(-0.5 * (places[:, None] ** 2 + places**2) / 1.5**2)
    window /= window.sum()
    pa, pb = np.pad(a, r, mode="symmetric"), np.pad(b, r, mode="symmetric")
    total = 0.0
    for i in range(9):
        for j in range(8):
            u, v = pa[i : i + 11, j : j + 11], pb[i : i + 11, j : j + 11]
            mu, mv = (window * u).sum(), (window * v).sum()
            vu, vv = (window * (u - mu) ** 2).sum(), (window * (v - mv) ** 2).sum()
            both = (window * (u - mu) * (v - mv)).sum()
            total += (2 * mu * mv + 1e-4) * (2 * both + 9e-4) / ((mu**2 + mv**2 + 1e-4) * (vu + vv + 9e-4))
    assert structural_similarity(a, b).item() == pytest.approx(total / 72, abs=1e-10)


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_likeness_is_symmetric_bounded_and_one_for_the_same(seed: int) -> None:
    a, b = pictures(seed, 3, 8, 7), pictures(seed + 1, 3, 8, 7)
    for measure in (correlation, structural_similarity):
        np.testing.assert_allclose(measure(a, b), measure(b, a))
        np.testing.assert_allclose(measure(a, a), 1.0)
        assert (np.abs(measure(a, b)) <= 1.0).all()
    np.testing.assert_allclose(correlation(a, 3.0 * b + 1.0), correlation(a, b))


def test_correlation_is_that_of_numpy() -> None:
    a, b, mean = pictures(0, 8, 7), pictures(1, 8, 7), pictures(2, 8, 7)
    known = np.corrcoef((a - mean).ravel(), (b - mean).ravel())[0, 1]
    assert correlation(a, b, without=mean).item() == pytest.approx(known)


def test_people_are_recognised_by_what_is_their_own() -> None:
    """Every face has a large part that is everyone's: with that left in, guesses are nearly blind."""
    mean, own, noise = 5.0 * pictures(0, 8, 7), pictures(1, 20, 8, 7), pictures(2, 20, 3, 8, 7)
    albums = mean + own[:, None] + 0.3 * noise
    assert recognised(mean + own, albums, without=mean).all()
    assert not recognised(np.roll(mean + own, 1, axis=0), albums, without=mean).any()
    similar = nearest_similarity(mean + own, albums)
    assert (similar > nearest_similarity(np.roll(mean + own, 1, axis=0), albums)).mean() > 0.9
    np.testing.assert_allclose(nearest_similarity(albums[:, 1], albums), 1.0)


def test_bad_pictures_are_refused() -> None:
    good = pictures(0, 4, 8, 7)
    with pytest.raises(InvalidInput, match="constant"):
        correlation(np.ones((8, 7)), good[0])
    with pytest.raises(InvalidInput, match="finite"):
        structural_similarity(good * math.nan, good)
    with pytest.raises(InvalidInput, match="album"):
        recognised(good, good, without=good[0])
    with pytest.raises(InvalidInput, match="album"):
        nearest_similarity(good, pictures(0, 3, 2, 8, 7))


def toy_faces() -> Tensor:
    """40 people of whom each has a pattern, 10 pictures of each."""
    generator = torch.Generator().manual_seed(0)
    own = torch.rand(40, 1, 14, 12, generator=generator)
    return 0.25 + 0.5 * own + 0.25 * torch.rand(40, 10, 14, 12, generator=generator)


def test_experiment_runs_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_inversion, "load_faces", toy_faces)
    monkeypatch.setattr(model_inversion, "_SETTINGS", Inversion(steps=100, learning_rate=1.0))
    monkeypatch.setattr(model_inversion, "_CODE_SETTINGS", Inversion(steps=100))
    monkeypatch.setattr(model_inversion, "_PRIVATE_SETTING", Setting(None, 2, 1.0, 0.0, 1.0))
    for name, small in (("_STEPS", 60), ("_HIDDEN", 20), ("_CODE", 20)):
        monkeypatch.setattr(model_inversion, name, small)
    rows = reproduce("model-inversion", Request(tmp_path, seeds=2))
    assert [row.epsilon for row in rows[:3]] == [math.inf] * 3
    assert 7.9 < rows[3].epsilon <= 8.0
    assert rows[0].details["identified"] >= 0.95
    assert rows[0].details["identified_interval_95"][0] < rows[0].details["identified"]
    assert all(row.seeds == 2 and len(row.details["judged"]) == 2 for row in rows)
    assert (tmp_path / "model-inversion.png").stat().st_size > 5_000
    text = (tmp_path / "model-inversion.json").read_text()
    assert "does it by their looks" in text
    assert "Infinity" not in text
