"""The range of noise that the accountants support.

All accountants refuse the same noise on a sample, before they compute anything.  Very small noise protects
nothing, and its cost takes very long to compute.  Very large noise has losses too small for floats.  Noise
without sampling has closed forms, so it has a cost at every scale, though possibly an infinite one.
"""

from __future__ import annotations

from tacit.accounting.flatten import Base, Steps, flatten
from tacit.errors import UnsupportedEvent
from tacit.events import (
    BallsInBins,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    GaussianMixture,
    GroupPrivacy,
    Laplace,
    Partitioned,
    PoissonSampled,
    PrivateSelection,
    Shuffled,
    TruncatedPoissonSampled,
    WithoutReplacement,
    WithReplacement,
)

LEAST_NOISE, MOST_NOISE = 0.1, 1e6
"""The range of noise multipliers on a sample.  Below it, epsilon is in the hundreds and floats overflow."""

_LEAST_OF_MIXTURE = 0.01  # relative to the largest sensitivity of a mixture
_MOST_BIN_NOISE = 100.0  # beyond it, the accountant has no grid for balls in bins


class NoiseOutOfRange(UnsupportedEvent):
    """Raised for noise that no accountant prices: it is ``too_small``, or else too large."""

    def __init__(self, message: str, *, too_small: bool) -> None:
        super().__init__(message)
        self.too_small = too_small


def check_noise(steps: Steps, method: str) -> None:
    """Refuse noise that is too small or too large to be accounted for.

    Raises:
        NoiseOutOfRange: if the noise is out of range.  The message states both.

    >>> check_noise(((PoissonSampled(0.1, Gaussian(1.0)), 10), (Gaussian(1e-3), 1)), "rdp")
    """
    for base, _ in steps:
        check_scale(base, method)


def check_scale(base: Base, method: str) -> None:
    """Apply :func:`check_noise` to one mechanism."""
    match base:
        case GaussianMixture(noise, sensitivities):
            _check(base, noise, LEAST_NOISE, MOST_NOISE, method, "noise multipliers on a sample")
            largest = max(sensitivities)
            if largest > 0.0:
                name = "noise per largest sensitivity of a mixture"
                _check(base, noise / largest, _LEAST_OF_MIXTURE, float("inf"), method, name)
        case (
            PoissonSampled()
            | TruncatedPoissonSampled()
            | WithoutReplacement()
            | WithReplacement()
            | BallsInBins()
        ):
            most = _MOST_BIN_NOISE if isinstance(base, BallsInBins) else MOST_NOISE
            match base.event:
                case Gaussian(noise) | Laplace(noise):
                    _check(base, noise, LEAST_NOISE, most, method, "noise multipliers on a sample")
                case DiscreteGaussian(scale, sensitivity) | DiscreteLaplace(scale, sensitivity):
                    name = "noise per sensitivity on a sample"
                    _check(base, scale / sensitivity, LEAST_NOISE, most, method, name)
        case Partitioned(_, inner) | Shuffled(_, inner) | GroupPrivacy(inner):
            check_scale(inner, method)
        case PrivateSelection(inner):
            steps = flatten(inner)
            check_noise(steps, method)
            for single, _ in steps:
                if isinstance(single, Gaussian | Laplace):
                    name = "noise multipliers of what is selected"
                    _check(base, single.noise_multiplier, 0.0, MOST_NOISE, method, name)


def _check(base: Base, noise: float, least: float, most: float, method: str, name: str) -> None:
    if noise < least:
        raise NoiseOutOfRange(
            f"method {method!r} prices {name} from {least:g} upwards; got {noise:g} in {base!r}, which "
            "protects nothing. Use more noise.",
            too_small=True,
        )
    if noise > most:
        raise NoiseOutOfRange(
            f"method {method!r} prices {name} up to {most:g}, beyond which privacy losses are too small for "
            f"floating-point numbers; got {noise:g} in {base!r}. Use at most {most:g}.",
            too_small=False,
        )
