"""Helpers for tests of accounting: curves, epsilons, and the definitions that brute force goes by."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import mpmath as mp
import numpy as np
from numpy.typing import NDArray

from tacit.accounting import PrivacyCurve, account
from tacit.accounting.grid import Masses
from tacit.events import Event, Gaussian, PoissonSampled, Repeat

Matrix = NDArray[np.float64]


def dp_sgd(q: float, sigma: float, steps: int) -> Event:
    return Repeat(PoissonSampled(q, Gaussian(sigma)), steps)


def curve_of(event: Event, method: str = "pld", adjacency: str = "add-remove") -> PrivacyCurve:
    return account(event, adjacency=adjacency, method=method)


def epsilon(event: Event, delta: float = 1e-5, method: str = "pld", adjacency: str = "add-remove") -> float:
    return curve_of(event, method, adjacency).epsilon(delta)


def hockey_stick_of(masses: Masses, h: float, epsilon: float) -> float:
    """Return E (1 - e^{epsilon - L})_+ of losses on a grid of spacing ``h``."""
    losses = masses.origin + h * (masses.first + np.arange(masses.masses.size))
    return float(masses.masses @ -np.expm1(np.minimum(epsilon - losses, 0.0))) + masses.infinite


def exact_log_moment(q: float, sigma: float, power: float) -> float:
    """Return log E (1 - q + q r)^power, r the ratio of N(1, sigma^2) to N(0, sigma^2), by quadrature."""
    with mp.workdps(40):
        s, rate, width = mp.mpf(power), mp.mpf(q), mp.mpf(sigma)

        def integrand(x: mp.mpf) -> mp.mpf:
            return mp.npdf(x, 0, width) * (1 - rate + rate * mp.exp((2 * x - 1) / (2 * width**2))) ** s

        low, high = min(power, 0.0) - 16 * sigma, max(power, 1.0) + 16 * sigma
        return float(mp.log(mp.quad(integrand, mp.linspace(low, high, 41), method="gauss-legendre")))


# --- correlated noise --------------------------------------------------------------------------------------


def toeplitz(column: tuple[float, ...], steps: int) -> Matrix:
    """Return the lower triangular matrix (T, T) with these numbers on its diagonals."""
    diagonals = [np.diag(np.full(steps - i, c), -i) for i, c in enumerate(column[:steps])]
    return np.asarray(np.sum(diagonals, axis=0), float)


def tree(leaves: int) -> Matrix:
    """Return one row for every complete dyadic interval."""
    sizes = [1 << level for level in range(leaves.bit_length())]
    places = [(start, size) for size in sizes for start in range(0, leaves - size + 1, size)]
    return np.array([[start <= t < start + size for t in range(leaves)] for start, size in places], float)


def patterns(steps: int, times: int, separation: int) -> Iterator[list[int]]:
    """Yield all sets of at most ``times`` steps that are ``separation`` or more apart."""
    for size in range(1, times + 1):
        for chosen in combinations(range(steps), size):
            if all(b - a >= separation for a, b in pairwise(chosen)):
                yield [*chosen]


def worst_pattern(matrix: Matrix, times: int, separation: int) -> float:
    """Return the largest norm of the change, if the record's vectors are +1 or -1: a bound from below."""
    found = 0.0
    for chosen in patterns(matrix.shape[1], times, separation):
        for signs in range(1 << (len(chosen) - 1)):
            vector = np.array([1.0, *(1.0 - 2.0 * (signs >> i & 1) for i in range(len(chosen) - 1))])
            found = max(found, float(np.linalg.norm(matrix[:, chosen] @ vector)))
    return found
