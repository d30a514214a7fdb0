"""Features of pictures: each depends on its picture alone, and they beat pixels in a private model."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tacit.errors import InvalidInput
from tacit.models import PictureFeatures
from tacit.models.picture_features import NORM, PublicWhitening, dead_leaves, scattering_features


def test_they_are_rooted_scattering_whitened_on_dead_leaves() -> None:
    features = PictureFeatures(8, 12, floor=20)
    pictures = torch.rand(5, 1, 8, 12, generator=torch.Generator().manual_seed(0))

    def rooted(batch: torch.Tensor) -> torch.Tensor:
        maps = scattering_features(batch)
        for row in maps:
            for channel in range(1, 81):  # S0 is no modulus
                row[channel] = row[channel].clamp_min(0).sqrt()
        return maps.flatten(1)

    assert features.width_out == 81 * 2 * 3
    public = F.interpolate(dead_leaves(3 * 486, seed=0).mean(1, keepdim=True), size=(8, 12), mode="area")
    white = PublicWhitening(rooted(public), directions=486, floor=20)
    assert torch.allclose(features(pictures), NORM * white(rooted(pictures)), atol=1e-3)


@pytest.fixture
def few_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.models.picture_features._PUBLIC", 200)


@pytest.mark.usefixtures("few_public")
def test_a_picture_is_mapped_by_itself_and_the_same_each_time() -> None:
    pictures = torch.rand(7, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    one, other = PictureFeatures(8, 8), PictureFeatures(8, 8)
    together = one(pictures)
    assert torch.allclose(together, torch.cat([other(picture[None]) for picture in pictures]), atol=1e-3)
    assert torch.allclose(together, one(pictures.flatten(1)))


@pytest.mark.parametrize(
    ("size", "colours", "wanted"),
    [((28, 28), 1, 81 * 7 * 7), ((96, 64), 3, 243 * 8 * 3), ((9, 200), 1, 81 * 2 * 8)],
)
def test_sizes(size: tuple[int, int], colours: int, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.models.picture_features._PUBLIC", 40)
    features = PictureFeatures(*size, colours=colours, floor=10)
    assert features(torch.rand(2, colours, *size)).shape == (2, wanted)


def test_colour_pictures_are_as_their_mirror_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.models.picture_features._PUBLIC", 40)
    picture = torch.rand(1, 3, 16, 16)
    colour = PictureFeatures(16, 16, colours=3, floor=10)
    apart = PictureFeatures(16, 16, colours=3, floor=10, mirror=False)
    assert float((colour(picture) - colour(picture.flip(-1))).norm()) < 0.2 * NORM
    assert float((apart(picture) - apart(picture.flip(-1))).norm()) > 0.5 * NORM


@pytest.mark.usefixtures("few_public")
def test_other_pictures_are_refused() -> None:
    with pytest.raises(InvalidInput, match="height"):
        PictureFeatures(7, 8)
    with pytest.raises(InvalidInput, match=r"must have shape \(n, 1, 8, 8\)"):
        PictureFeatures(8, 8)(torch.rand(2, 3, 8, 8))
