"""The scattering transform, against an oracle in NumPy and against the properties it is used for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tacit.errors import InvalidInput
from tacit.models.picture_features import CHANNELS, Scattering, mirror_average, scattering_features


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    torch.manual_seed(0)


def oracle(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scattering of one picture by sums over space at full resolution, without any Fourier transform.

    The wavelets are sampled on the infinite grid as the paper writes them; convolution is by shifting.
    """
    x = np.pad(image, 4, mode="reflect")

    def convolve(
        signal: NDArray[np.float64], kernel: NDArray[np.complex128], reach: int
    ) -> NDArray[np.complex128]:
        out = np.zeros(signal.shape, dtype=np.complex128)
        for row in range(-reach, reach + 1):
            for column in range(-reach, reach + 1):
                out += kernel[row + reach, column + reach] * np.roll(signal, (row, column), axis=(0, 1))
        return out

    def wavelet(scale: int, angle: int, reach: int) -> NDArray[np.complex128]:
        y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1].astype(float)
        theta = (3 - angle) * math.pi / 8
        u1, u2 = y * math.cos(theta) + x * math.sin(theta), x * math.cos(theta) - y * math.sin(theta)
        s = 0.8 * 2**scale
        window = np.exp(-(u1**2 + (4 / 8) ** 2 * u2**2) / (2 * s**2))
        wave = np.exp(1j * (3 * math.pi / 4) / 2**scale * u1) * window
        beta = wave.sum() / window.sum()
        kernel: NDArray[np.complex128] = (wave - beta * window) * (0.5 / (2 * math.pi * s**2))
        return kernel

    grid = np.arange(-10, 11) + 1.5  # from pixel 4k to the middle of pixels 4k to 4k + 3
    phi = np.exp(-(grid[:, None] ** 2 + grid[None, :] ** 2) / (2 * 1.6**2)).astype(np.complex128)
    phi /= phi.sum()
    bank = [[wavelet(scale, angle, 6 + 6 * scale) for angle in range(8)] for scale in range(2)]
    first = [[np.abs(convolve(x, psi, 6 + 6 * scale)) for psi in bank[scale]] for scale in range(2)]
    second = [np.abs(convolve(wave, psi, 12)) for wave in first[0] for psi in bank[1]]
    maps = [x, *first[0], *first[1], *second]
    return np.stack([convolve(signal, phi, 10).real[4:-4:4, 4:-4:4] for signal in maps])


def blob(size: int = 28, shift: float = 0.0) -> Tensor:
    """A smooth picture whose content can be moved by a fraction of a pixel."""
    y, x = torch.meshgrid(torch.arange(size) - size / 2, torch.arange(size) - size / 2 - shift, indexing="ij")
    return (torch.exp(-(x**2 + y**2) / 30) * (0.5 + 0.5 * torch.cos(1.2 * x + 0.5 * y)))[None, None]


def test_agrees_with_the_oracle() -> None:
    torch.manual_seed(0)
    image = torch.rand(1, 1, 16, 20)
    ours = Scattering(16, 20)(image)[0].double().numpy()
    wanted = oracle(image[0, 0].double().numpy())
    assert ours.shape == wanted.shape == (81, 4, 5)
    scale = np.abs(wanted).max(axis=(1, 2), keepdims=True)
    assert np.max(np.abs(ours[:9] - wanted[:9]) / scale[:9]) < 1e-3  # full resolution throughout
    # Wavelets of the second scale are kept at every second pixel: a little aliasing, most on white noise.
    assert np.max(np.abs(ours - wanted) / scale) < 0.05


@pytest.mark.parametrize(("size", "colours", "shape"), [(28, 1, (81, 7, 7)), (32, 3, (243, 8, 8))])
def test_channel_count(size: int, colours: int, shape: tuple[int, int, int]) -> None:
    features = Scattering(size, size)(torch.rand(2, colours, size, size))
    assert features.shape == (2, *shape)
    assert features.dtype == torch.float32


def test_wavelets_sum_to_zero_and_the_low_pass_to_one() -> None:
    transform = Scattering(28, 28)
    for bank in (transform.fine, transform.coarse):
        assert float(bank[:, 0, 0].abs().max()) < 1e-6  # the frequency-0 value is the sum
    for step in (1, 2):
        assert torch.allclose(transform.get_buffer(f"low_rows_{step}").sum(1), torch.ones(7))


@pytest.mark.parametrize("size", [28, 32])
def test_filters_pass_no_more_energy_than_comes_in(size: int) -> None:
    """Littlewood-Paley: |phi|^2 + mean of |psi(w)|^2 and |psi(-w)|^2, summed, is at most 1 (1203.1513)."""
    transform = Scattering(size, size)
    power = torch.cat([transform.fine, transform.coarse])[..., ::2].double() ** 2
    mirrored = power.flip(1, 2).roll((1, 1), (1, 2))
    frequency = 2 * math.pi * torch.fft.fftfreq(size + 8, dtype=torch.float64)
    low = torch.exp(-(1.6**2) * frequency**2)
    total = low[:, None] * low[None, :] + (power + mirrored).sum(0) / 2
    assert float(total.max()) <= 1 + 1e-6


def test_constant_picture_has_no_wavelet_energy() -> None:
    features = Scattering(28, 28)(torch.full((1, 1, 28, 28), 0.7))
    assert torch.allclose(features[0, 0], torch.full((7, 7), 0.7), atol=1e-6)
    assert float(features[0, 1:].abs().max()) < 1e-6


def test_non_expansive() -> None:
    """|S x - S y| <= |x - y|, where x is the padded picture and an output place stands for 16 pixels."""
    torch.manual_seed(1)
    transform = Scattering(28, 28)
    pictures = [
        torch.rand(8, 1, 28, 28),
        blob().expand(8, 1, 28, 28),
        blob(shift=2.0) + 0.1 * torch.rand(8, 1, 28, 28),
    ]
    pictures += [torch.zeros(8, 1, 28, 28), (torch.rand(8, 1, 28, 28) > 0.5).float()]
    for x in pictures:
        for y in pictures:
            padded = torch.nn.functional.pad(x - y, (4, 4, 4, 4), mode="reflect")
            distance = 4 * (transform(x) - transform(y)).flatten(1).norm(dim=1)
            assert bool((distance <= padded.flatten(1).norm(dim=1) * 1.0001).all())


def test_a_picture_is_mapped_alone() -> None:
    torch.manual_seed(2)
    images = torch.rand(5, 3, 32, 32)
    transform = Scattering(32, 32)
    together = transform(images)
    assert torch.allclose(transform(images[3:4])[0], together[3], atol=1e-6)
    colour = transform(images[:, 1:2])
    assert torch.allclose(together[:, 81:162], colour, atol=1e-6)


def test_moves_less_than_the_picture_when_the_content_shifts() -> None:
    still, moved = blob(), blob(shift=1.0)
    transform = Scattering(28, 28)
    pixels = float((still - moved).norm() / still.norm())
    a, b = transform(still)[:, 1:], transform(moved)[:, 1:]
    features = float((a - b).norm() / a.norm())
    assert features < 0.5 * pixels


def test_features_in_chunks_with_progress_and_half_precision() -> None:
    torch.manual_seed(3)
    images = torch.rand(10, 1, 28, 28)
    seen: list[tuple[int, int]] = []
    features = scattering_features(images, chunk=4, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(4, 10), (8, 10), (10, 10)]
    assert torch.allclose(features, Scattering(28, 28)(images), atol=1e-6)
    half = scattering_features(images, dtype=torch.float16)
    assert half.dtype == torch.float16
    assert torch.allclose(half.float(), features, rtol=1e-3, atol=1e-4)


class Transformed(TorchFunctionMode):
    """Counts the numbers that Fourier transforms give out."""

    numbers = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if "fft" in getattr(func, "__name__", ""):
            self.numbers += found.numel()
        return found


def test_transforms_are_done_at_the_resolution_that_is_kept() -> None:
    """A channel transformed back at full resolution would be 36 x 36 numbers: half of them are saved."""
    images = torch.rand(64, 1, 28, 28)
    with Transformed() as done:
        scattering_features(images)
    assert 0 < done.numbers < 0.5 * 64 * CHANNELS * 36 * 36


def test_mirror_average_is_the_mean_of_both_pictures() -> None:
    torch.manual_seed(1)
    pictures = torch.rand(2, 3, 32, 28)
    transform = Scattering(32, 28)
    one, other = transform(pictures), transform(pictures.flip(-1))
    found = mirror_average(one)
    assert found.shape == (2, 243, 8, 4)
    full = torch.arange(243) % 81 < 9  # S0 and the first scale, at full resolution: exact
    assert torch.allclose(found[:, full], ((one + other) / 2)[:, full, :, :4], atol=1e-5)
    assert torch.allclose(found, ((one + other) / 2)[..., :4], atol=0.05 * float(one.max()))
    assert torch.allclose(found[:, full], mirror_average(other)[:, full], atol=1e-5)
    with pytest.raises(InvalidInput, match=r"81 \* channels"):
        mirror_average(torch.zeros(1, 80, 4, 4))


def test_has_no_weights_and_nothing_to_save() -> None:
    transform = Scattering(28, 28)
    assert not list(transform.parameters())
    assert not transform.state_dict()


def test_refuses_other_sizes() -> None:
    with pytest.raises(InvalidInput, match="multiple of 4; got 30"):
        Scattering(30, 28)
    with pytest.raises(InvalidInput, match="width must be an integer >= 8"):
        Scattering(28, 4)
    with pytest.raises(InvalidInput, match=r"\(n, c, 28, 28\)"):
        Scattering(28, 28)(torch.rand(1, 1, 32, 32))
    with pytest.raises(InvalidInput, match="n >= 1"):
        scattering_features(torch.rand(0, 1, 28, 28))
