"""The fit of a scaling law to runs: least squares on the logarithm of the loss, from several starts.

Positive coefficients are fitted as logarithms. Sizes, steps and ratios are divided by their geometric means
over the runs, so that the nine coefficients affect the loss differently there. The starts are fixed, so the
same runs give the same law.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Floats = NDArray[np.float64]


_OUTLIER = 0.05  # a run with a larger relative error, beyond 5 %, counts less
_PARTS = 10  # the runs are split into ten parts, each of which is held out in turn

# log E, log A, a, log D, b, log K, k, g, log r0; r0 in units of the geometric mean of the ratios above 0
_NAMES = (
    "irreducible", "size_loss", "size_exponent", "steps_loss", "steps_exponent", "noise_loss",
    "noise_size_exponent", "noise_exponent", "noise_midpoint",
)  # fmt: skip
_LOGARITHMS = np.array([True, True, False, True, False, True, False, False, True])
_RATIOS = np.arange(9) == 8
_LOW = np.array([-8.0, -8.0, 0.02, -8.0, 0.02, -8.0, -0.5, 0.1, -12.0])
_HIGH = np.array([2.5, 2.5, 2.0, 2.5, 2.0, 4.0, 1.0, 4.0, 12.0])
_STARTS = tuple(
    np.array([irreducible, -0.5, exponent, -0.5, exponent, 1.5, 0.1, growth, middle])
    for irreducible, exponent, growth, middle in itertools.product(
        (-0.5, 0.5), (0.25, 0.5), (0.6, 1.2), (-1.0, 2.0)
    )
)


def fit_coefficients(
    sizes: Floats, steps: Floats, ratios: Floats, losses: Floats
) -> tuple[dict[str, float], dict[str, float]]:
    """Fit the coefficients of :meth:`experiments.scaling.Law.fit`; each array has one entry per run.

    Returns:
        The coefficients of a :class:`~experiments.scaling.Law` and the errors of a ``Quality``, by name.
    """
    middle_size, middle_steps = _middle(sizes), _middle(steps)
    middle_ratio = _middle(ratios[ratios > 0.0])
    quiet = np.maximum(ratios, 1e-300)
    arguments = np.log(np.stack([sizes / middle_size, steps / middle_steps, quiet / middle_ratio]))
    point = _search(arguments, losses, _STARTS)
    errors = np.exp(_formula(point, arguments)) / losses - 1.0
    values = np.where(_LOGARITHMS, np.exp(point), point) * np.where(_RATIOS, middle_ratio, 1.0)
    coefficients = dict(zip(_NAMES, values.tolist(), strict=True))
    quality = {
        "typical": _root_mean_square(errors),
        "largest": float(np.max(np.abs(errors))),
        "held_out": _held_out(point, arguments, losses),
    }
    return coefficients | {"model_size": middle_size, "steps": middle_steps}, quality


def _formula(point: Floats, arguments: Floats) -> Floats:
    """Compute log L at (log M, log T, log r), each relative to its geometric mean."""
    log_e, log_a, a, log_d, b, log_k, k, g, log_r = point
    size, steps, ratio = arguments
    loss = (
        math.exp(log_e)
        + np.exp(log_a - a * size)
        + np.exp(log_d - b * steps)
        + np.exp(log_k + k * size - np.logaddexp(0.0, -g * (ratio - log_r)))
    )
    logarithm: Floats = np.log(loss)
    return logarithm


def _search(arguments: Floats, losses: Floats, starts: Sequence[Floats]) -> Floats:
    measured = np.log(losses)
    best: Floats = np.asarray(starts[0])
    least = math.inf

    def errors(point: Floats) -> Floats:
        residuals: Floats = _formula(point, arguments) - measured
        return residuals

    for start in starts:
        answer = least_squares(
            errors, start, bounds=(_LOW, _HIGH), loss="soft_l1", f_scale=_OUTLIER, max_nfev=400
        )
        if answer.cost < least:
            best, least = answer.x, answer.cost
    return best


def _held_out(point: Floats, arguments: Floats, losses: Floats) -> float:
    """Compute the error on held-out runs; each tenth of the runs is held out in turn."""
    part = np.arange(len(losses)) % _PARTS
    errors = np.empty(len(losses))
    inside = np.clip(point, _LOW + 1e-9, _HIGH - 1e-9)
    for number in range(_PARTS):
        out = part == number
        fitted = _search(arguments[:, ~out], losses[~out], (inside, _STARTS[0]))
        errors[out] = np.exp(_formula(fitted, arguments[:, out])) / losses[out] - 1.0
    return _root_mean_square(errors)


def _middle(values: Floats) -> float:
    return float(np.exp(np.mean(np.log(values))))


def _root_mean_square(errors: Floats) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))
