"""The loss of shuffled reports, of any local randomiser or of k-ary randomised response.

n people send one report each, of an e-DP randomiser R, and only the multiset of reports is seen.  One person
has the value 0 or 1.  The values of the others are known.

* Any R (Feldman, McMillan & Talwar 2021, 2012.12803, Theorem 3.1): R(0) = a Q_0 + b Q_1, R(1) = b Q_0 + a Q_1
  with a / b = e^e, a + b = 1, and each of the others sends, with probability e^{-e}, a report from Q_0 or
  Q_1, both equally likely.  (Probability 2 / (e^e + 1), as in 2208.04591, holds for some R only: see its
  errata.)
* k-ary randomised response (Balle, Bell, Gascon & Nissim 2019, 1903.02837): each of the others sends, with
  probability k a, a = 1 / (e^e + k - 1), a uniform one of the k categories, and else the truth, which the
  attacker removes.

There remain m reports that are 0 or 1, n_0 of them 0, and r others.  m and r reveal nothing, and

    P / Q = (e^e n_0 + n_1 + r) / (n_0 + e^e n_1 + r),

as each report is equally likely to be that of the person.  With a probability w, that report is among the m.
Then n_0 is the sum of a coin of probability a / (a + b) and m - 1 fair coins, else the sum of m fair coins.
A smaller w is post-processing (sometimes all coins are replaced by fair ones), and so is a larger m (one more
fair coin).  Hence a block of (m, r) is dominated by its least m with its largest w, and dominates its largest
m with its least w.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from scipy.special import gammaln, xlog1py, xlogy

from tacit.accounting.pld.pair import Loss
from tacit.accounting.price import Array

_DEVIATIONS = 13.0
_RARE = math.exp(-(_DEVIATIONS**2) / 2.0)  # probability of values so far from the mean: 2e-37
_BLOCKS, _OTHERS = 64, (16, 100)  # blocks of m; fewest and most blocks of r for each of them
_OUTCOMES = 1e5  # outcomes of the coins, over all blocks of r
_CELLS = 4096  # of the losses on either side of 0
_UP = 1.0 + 1e-12
_EXACT = 2.0**-48  # relative error of masses, per unit of a log-factorial

_Cell: TypeAlias = tuple[int, list[tuple[float, float]]]  # m, and pairs of w and the mass


@lru_cache(maxsize=16)  # one entry serves any tail
def shuffled_reports(records: int, epsilon: float, categories: int | None) -> Loss:
    """Return the symmetric loss of one person's value.

    **Guarantee**

    * The loss dominates that of the shuffle, whatever the values of the others.
    * ``dominated`` is dominated by the loss of the pair above.
    """
    share = 1.0 / (math.exp(epsilon) + (categories or 2) - 1.0)
    rate = math.exp(-epsilon) if categories is None else 2.0 * share
    neutral = (categories - 2) * share / (1.0 - rate) if categories not in (None, 2) else 0.0
    among = 1.0 if neutral == 0.0 else (math.exp(epsilon) + 1.0) * share
    first, chances = _binomial(records - 1, rate)
    masses = among * np.append(0.0, chances) + (1.0 - among) * np.append(chances, 0.0)
    cells: list[_Cell] = []
    for low, high, mass in _blocks(first, masses, records, _BLOCKS):
        blocks = int(np.clip(_OUTCOMES / (1.0 + _DEVIATIONS * math.sqrt(low)), *_OTHERS))
        # r falls as m grows; it is one larger if the report of the person is certainly among the r
        fewest = _blocks(*_binomial(records - high, neutral), records, blocks)
        most = _blocks(*_binomial(max(records - 1 - low, 0), neutral), records, blocks)
        cells.append((max(low, 1), [(_chance(high, r, epsilon), mass * part) for r, _, part in fewest]))
        cells.append((max(high, 1), [(_chance(low, r + 1, epsilon), mass * part) for _, r, part in most]))
    if neutral == 0.0:
        cells = [(m, [(1.0, sum(part for _, part in parts))]) for m, parts in cells]
    error = _EXACT * (1.0 + float(gammaln(records + 1.0)))
    upper, lower = _spread(cells[::2], epsilon), _merged(cells[1::2], epsilon)
    return replace(upper, mass_error=error, under=lambda: replace(lower, mass_error=error))


def _chance(m: int, r: int, epsilon: float) -> float:
    """Return w, the probability that the person's report is among ``m`` reports rather than ``r`` others."""
    among = m * (math.exp(epsilon) + 1.0) / 2.0
    return among / (among + r) if among > 0.0 else 0.0


def _binomial(count: int, rate: float) -> tuple[int, Array]:
    """Return the first outcome and the probabilities from there on; each side loses less than ``_RARE``.

    The lower cut is by Okamoto's bound for rates up to 1/2, else by Hoeffding's; the upper one by
    Bernstein's.
    """
    mean, deviation = count * rate, math.sqrt(count * rate * max(1.0 - rate, 0.5))
    low = max(0, math.floor(mean - _DEVIATIONS * deviation))
    high = min(count, math.ceil(mean + _DEVIATIONS * (deviation + _DEVIATIONS)))
    k = np.arange(low, high + 1.0)
    logs = gammaln(count + 1.0) - gammaln(k + 1.0) - gammaln(count - k + 1.0)
    return low, np.exp(logs + xlogy(k, rate) + xlog1py(count - k, -rate))


def _blocks(first: int, masses: Array, most: int, number: int) -> list[tuple[int, int, float]]:
    """Return (least, largest, mass) of about ``number`` blocks, and of the outcomes below and above."""
    x = np.linspace(-1.0, 1.0, number + 1)
    edges = np.unique(
        np.rint((1.0 + x * np.abs(x)) / 2.0 * masses.size).astype(np.int64)
    )  # narrow in the middle
    inside = [
        (first + int(start), first + int(end) - 1, float(mass))
        for start, end, mass in zip(edges, edges[1:], np.add.reduceat(masses, edges[:-1]), strict=False)
    ]
    last = first + masses.size - 1
    below = [(0, first - 1, _RARE)] if first > 0 else []
    return below + inside + ([(last + 1, most, _RARE)] if last < most else [])


def _laws(cells: list[_Cell], epsilon: float) -> tuple[list[tuple[Array, Array]], float]:
    """Return ratios P/Q and P-masses of the coins, for each m, and the width of a cell of the lattice."""
    grown, laws = math.exp(epsilon), []
    for m, parts in cells:
        first, even = _binomial(m, 0.5)
        w, mass = np.array(parts).T[:, :, None]
        share, zeros = w * 2.0 / (grown + 1.0), (first + np.arange(even.size)) / m
        p = (1.0 - w + share) + (share * (grown - 1.0)) * zeros
        q = (1.0 - w + share) + (share * (grown - 1.0)) * (1.0 - zeros)
        laws.append(((p / q).ravel(), (mass * even * p).ravel()))
    ends = [float(end) for ratios, _ in laws for end in (ratios.min(), ratios.max())]
    return laws, max(abs(math.log(end)) for end in ends) / _CELLS


def _spread(cells: list[_Cell], epsilon: float) -> Loss:
    """Move each loss to the ends of its cell, with P and Q kept, and rare ones to that of an open report."""
    (laws, h), masses = _laws(cells, epsilon), np.zeros(2 * _CELLS + 1)
    losses: Array = h * np.arange(-_CELLS, _CELLS + 1.0)
    nodes = np.exp(losses)
    for ratios, each in laws:
        place = np.clip(np.floor(np.log(ratios) / h).astype(np.int64) + _CELLS, 0, 2 * _CELLS - 1)
        share = np.clip((1.0 - nodes[place] / ratios) / -math.expm1(-h), 0.0, 1.0)
        masses[:-1] += np.bincount(place, each * (1.0 - share), 2 * _CELLS)
        masses[1:] += np.bincount(place, each * share, 2 * _CELLS)
    atoms = np.stack([losses, masses], axis=1)[masses > 0.0]
    rare = (2.0 + 2.0 * len(cells)) * _RARE
    return Loss((), np.append(atoms, [[epsilon, rare]], axis=0), 0.0, 0.0, epsilon * _UP)


def _merged(cells: list[_Cell], epsilon: float) -> Loss:
    """Merge the losses of each cell of the lattice, which is post-processing."""
    (laws, h), p, q = _laws(cells, epsilon), np.zeros(2 * _CELLS + 3), np.zeros(2 * _CELLS + 3)
    for ratios, each in laws:
        place = np.floor(np.log(ratios) / h).astype(np.int64) + _CELLS + 1
        p += np.bincount(place, each, p.size)
        q += np.bincount(place, each / ratios, q.size)
    possible = (p > 0.0) & (q > 0.0)
    return Loss(
        (), np.stack([np.log(p[possible] / q[possible]), p[possible]], axis=1), 0.0, 0.0, epsilon * _UP
    )
