"""Training pictures that a model gives back: known answers, a planted bug, bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.regenerated import regenerated
from tacit.errors import InvalidInput


def test_copied_pictures_are_found_and_others_are_not() -> None:
    generator = np.random.default_rng(0)
    training, others = generator.uniform(size=(2, 80, 6, 6))
    generated = np.concatenate(
        [training[:10] + 0.01 * generator.normal(size=(10, 6, 6)), generator.uniform(size=(200, 6, 6))]
    )
    found = regenerated(generated, np.concatenate([training, others]))
    assert found.extracted[:10].all()
    assert not found.extracted[10:].any()
    assert found.by[:10].tolist() == list(range(10))
    assert found.closeness[:10].min() > found.closeness[10:].max()


def test_copies_do_not_hide_a_picture() -> None:
    """Left in, 60 copies fill the 50 nearest, the mean distance is the distance itself and l = 2."""
    generator = np.random.default_rng(1)
    pictures = generator.uniform(size=(100, 20))
    copied = np.concatenate([np.repeat(pictures[:1], 60, axis=0), pictures[1:]])
    near = pictures[:1] + 0.02
    distance = np.sort(np.linalg.norm(near - copied, axis=1))
    assert distance[0] / (0.5 * distance[:50].mean()) == pytest.approx(2.0), "the planted bug"
    found = regenerated(near, copied)
    assert found.extracted[:60].all()
    assert np.ptp(found.closeness[:60]) == 0.0


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_closeness_is_the_formula(seed: int) -> None:
    generator = np.random.default_rng(seed)
    made, real = generator.normal(size=(7, 4)), generator.normal(size=(9, 4))
    made[0] = real[3]
    found = regenerated(made, real, neighbours=5, alpha=0.4)
    for j in range(9):
        ratios = []
        for g in made:
            distance = sorted(math.dist(g, x) for x in real)
            ratios.append(math.dist(g, real[j]) / (0.4 * sum(distance[:5]) / 5))
        assert -found.closeness[j] == pytest.approx(min(ratios), abs=1e-9)
        assert found.by[j] == int(np.argmin(ratios))


def test_bad_pictures_are_refused() -> None:
    good = np.random.default_rng(0).uniform(size=(60, 4))
    with pytest.raises(InvalidInput, match="finite"):
        regenerated(good, np.full((60, 4), np.nan))
    with pytest.raises(InvalidInput, match="pixels"):
        regenerated(good[:, :3], good)
    with pytest.raises(InvalidInput, match="got 20"):
        regenerated(good, good[:20])
    with pytest.raises(InvalidInput, match="at least one picture"):
        regenerated(good[:0], good)
