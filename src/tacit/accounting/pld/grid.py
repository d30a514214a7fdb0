"""The privacy loss on a grid of spacing h: a pair that dominates, and a pair that is dominated.

Upper: *connect the dots* (Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022, 2207.04380).  The ratio
X = P/Q of each outcome in a cell is spread over the two ends of the cell so that its mean under Q is
kept; E_Q (X - t)_+ can only grow, for one step and hence for any composition.

Lower: the same shares define overlapping groups of outcomes, one around each grid point.  Revealing only
the group is post-processing, so its ratio P(group)/Q(group) gives a pair that is dominated.  A group whose
mean lies below its grid point takes in a share of its right neighbour, one whose mean lies above takes in
a share of the left one, until every mean is a grid point.  Where that fails, P-mass moves to a smaller
loss, which can only lower delta = E_P (1 - e^{eps - L})_+.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.pld.pair import Branch, Loss
from tacit.accounting.price import Array

__all__ = ["MASS_ERROR", "Masses", "aligned", "bracket", "dominating", "lattice", "snapped"]

Index: TypeAlias = NDArray[np.int64]

UNIT = 2.0**-53
MASS_ERROR = 2.0**-44  # allowance for quadrature and rounding, relative, on every mass (6e-14)

_WIDEST_CELL = 300.0  # e^h must not overflow
_ROUNDED = 1e-12  # allowance on the mass at infinity, relative
_HEAVY = 48  # atoms that a spacing is chosen for
_ONE_GROUP = 0.5  # of the mass: from there on, the grid is laid through its mean
_REACH = 8.0  # cells to either side of it that the group may take in
_SETTLED = 4
_NARROW = 1 << 10  # points of a law that is gathered group by group
_WIDTHS = np.geomspace(0.5, 64.0, 15)  # of the group around the origin, either side, in cells
_EDGE = 512  # grid points at either end that are looked at for the groups there

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)


@dataclass(frozen=True)
class Masses:
    """P-masses at the losses ``origin + h * (first + i)``; ``infinite`` is the P-mass at infinite loss."""

    first: int
    masses: Array
    infinite: float
    origin: float = 0.0


def bracket(loss: Loss, h: float) -> tuple[Masses, Masses]:
    """A lower and an upper pmf of the loss on a grid ``origin + h * integers``, the same for both.

    Guarantee
    ---------
    * Upper: for every eps, composed any number of times with anything, delta is at least the exact one.
    * Lower: at most the exact one.
    * Both up to a relative error of ``MASS_ERROR`` on every mass, which the composition allows for.
    * The lower one holds for losses that are ``snapped(loss)`` smaller.
    """
    cells = _Cells.of(loss, h)
    return _dominated(loss, h, cells), _dominating(loss, h, cells)


def dominating(loss: Loss, h: float, floor: float) -> Masses:
    """The upper pmf of :func:`bracket` alone, with losses below ``floor`` raised to it, which saves cells."""
    return _dominating(loss, h, _Cells.of(loss, h, floor))


@dataclass(frozen=True)
class _Cells:
    """Outcomes, losses less the origin and P-masses, and where in its cell of the grid each of them lies.

    ``exact``: on the lower end of the cell.  ``rest``: how far above it.  ``share``: of P to the upper end.
    """

    origin: float
    losses: Array
    masses: Array
    exact: NDArray[np.bool_]
    first: int
    index: Index
    rest: Array
    share: Array

    @classmethod
    def of(cls, loss: Loss, h: float, floor: float = -math.inf) -> _Cells:
        origin = _origin(loss, h)
        losses, masses = _outcomes(loss, h, origin, floor)
        losses = np.maximum(losses, floor) - origin
        exact = _on_grid(losses, h)
        cell = np.where(exact, np.rint(losses / h), np.floor(losses / h))
        rest = np.where(exact, 0.0, np.clip(losses - cell * h, 0.0, h))
        first = int(cell.min())
        # t'(X - t) / (X (t' - t)) with t, t' = the ends of the cell in e^L
        share = np.expm1(-rest) / math.expm1(-h)
        return cls(origin, losses, masses, exact, first, (cell - first).astype(np.int64), rest, share)

    def spread(self, left: Array, right: Array) -> Array:
        """The sums over each cell, put at its ends."""
        size = int(self.index.max()) + 2
        both = np.bincount(self.index, left, size).astype(np.float64)
        both[1:] += np.bincount(self.index, right, size)[:-1]
        return both


def _dominating(loss: Loss, h: float, cells: _Cells) -> Masses:
    slack = 4.0 * UNIT * (1.0 + np.abs(cells.losses)) / h  # the loss itself is off by a few units
    up = np.minimum(cells.share + slack, 1.0)
    dots = cells.spread(cells.masses * (1.0 - up), cells.masses * up) * (1.0 + loss.mass_error)
    infinite = min(1.0, loss.infinite * (1.0 + _ROUNDED) + 4.0 * loss.tail)
    return Masses(cells.first, dots, infinite, cells.origin)


def _dominated(loss: Loss, h: float, cells: _Cells) -> Masses:
    there = np.where(cells.exact, cells.masses, 0.0)  # atoms that need no exchange
    masses, share, losses = cells.masses - there, cells.share, cells.losses
    noise = 4.0 * UNIT * (1.0 + np.abs(losses))
    excess = cells.spread(  # P - t Q of every group, t its grid point
        masses * (1.0 - share) * (-np.expm1(-cells.rest) - noise),
        masses * share * (-np.expm1(h - cells.rest) - noise),
    )
    leveled = _level(cells.spread(masses * (1.0 - share), masses * share), excess, h)
    leveled[1:] += np.bincount(cells.index, there, leveled.size - 1)
    if cells.origin and leveled.size - 1 <= _NARROW:
        leveled = _gathered(losses, cells.masses, h, cells.first - 1, leveled)
    infinite = loss.infinite * (1.0 - _ROUNDED)
    return Masses(cells.first - 1, leveled * (1.0 - loss.mass_error), infinite, cells.origin)


def _origin(loss: Loss, h: float) -> float:
    """Where a grid point has to be, for nearly all of the mass to be gathered in one group around it.

    Under tiny sampling rates most losses are in one cell, and their mean decides all that is lost or gained
    elsewhere.  Where there is no such group, or where atoms need a separate grid, the origin is 0.
    Rounded down to 24 bits, so that a count times the origin is exact.
    """
    if loss.atoms.size:
        return 0.0
    parts = [_quadrature(branch, branch.panels) for branch in loss.branches]
    losses, masses = (np.concatenate(column) for column in zip(*parts, strict=True))
    origin = 0.0
    for _ in range(_SETTLED):
        shares = np.where(np.abs(losses - origin) <= _REACH * h, masses, 0.0)
        group = float(shares.sum())
        if group < _ONE_GROUP:
            return 0.0
        origin -= math.log(float(np.dot(shares, np.exp(origin - losses))) / group)
    return float(np.nextafter(np.float32(origin - 16.0 * UNIT), np.float32(-1.0)))


def snapped(loss: Loss) -> float:
    """How far below its grid point an atom may lie that is taken to lie on it."""
    return _snap(float(np.abs(loss.atoms[:, 0]).max())) if loss.atoms.size else 0.0


def _snap(loss: float) -> float:
    return 16.0 * UNIT * (1.0 + abs(loss))


def _on_grid(losses: Array, h: float) -> NDArray[np.bool_]:
    gap: NDArray[np.bool_] = np.abs(losses - h * np.rint(losses / h)) <= 16.0 * UNIT * (1.0 + np.abs(losses))
    return gap


def lattice(loss: Loss) -> float:
    """The widest spacing of a grid that a loss without densities lies on; 0 if there is none to be found."""
    sizes = np.abs(loss.atoms[:, 0])
    if loss.branches or not (sizes > 0.0).any():
        return 0.0
    least = float(sizes[sizes > 0.0].min())
    least /= math.ceil(least / _WIDEST_CELL)
    return least if _on_grid(loss.atoms[:, 0], least).all() else 0.0


def aligned(h: float, atoms: Array) -> tuple[float, float]:
    """A spacing from about h/2 to h with the heaviest ``atoms`` on the grid, or not far above it.

    ``atoms`` has rows (loss, weight).  Also returns what rounding them down would cost: the sum of weight
    times distance.  A single atom can only be rounded down by a pair that is dominated.
    """
    if atoms.size == 0:
        return h, 0.0
    heavy = atoms[np.argsort(-atoms[:, 1], kind="stable")[:_HEAVY]]
    sizes = np.unique(np.abs(heavy[:, 0]))
    parts = np.ceil(sizes[sizes > h / 2.0] / h)[:, None] * np.linspace(1.0, 2.0, 65)
    spacings = np.unique(np.append((sizes[sizes > h / 2.0][:, None] / np.rint(parts)).ravel(), h))[::-1]
    losses = heavy[:, 0]
    down = losses - spacings[:, None] * np.floor(losses / spacings[:, None])
    down[np.abs(losses - spacings[:, None] * np.rint(losses / spacings[:, None])) <= _snap(0.0)] = 0.0
    costs = down @ heavy[:, 1]
    best = int(np.argmax(costs <= 1.05 * costs.min() + 1e-300))  # the widest of the best
    return float(spacings[best]), float(costs[best])


def _outcomes(loss: Loss, h: float, origin: float, floor: float) -> tuple[Array, Array]:
    """Losses and P-masses of quadrature nodes that respect the cells of the grid, then of the atoms."""
    parts = [_nodes(branch, h, origin, floor) for branch in loss.branches] + [
        (loss.atoms[:, 0], loss.atoms[:, 1])
    ]
    return np.concatenate([losses for losses, _ in parts]), np.concatenate([masses for _, masses in parts])


def _nodes(branch: Branch, h: float, origin: float, floor: float) -> tuple[Array, Array]:
    low, high = branch.panels[[0, -1]]
    ends = (np.maximum(branch.value(np.array([low, high])), floor) - origin) / h
    lines = branch.position(origin + h * np.arange(math.ceil(ends[0]), math.floor(ends[1]) + 1))
    return _quadrature(
        branch, np.unique(np.concatenate([branch.panels, lines[(lines > low) & (lines < high)]]))
    )


def _quadrature(branch: Branch, edges: Array) -> tuple[Array, Array]:
    """Losses and P-masses of Gauss's nodes between the edges."""
    half = np.diff(edges)[:, None] / 2.0
    x = (edges[:-1, None] + half + half * _NODES).ravel()
    return branch.value(x), (half * _WEIGHTS).ravel() * branch.density(x)


def _level(hats: Array, excess: Array, h: float) -> Array:
    """Exchange shares between neighbouring groups until every group's mean is its grid point.

    Group i keeps the share k_i of its own hat and takes the share k_i a_i of hat i+1 (if its mean is too
    low) or k_i b_i of hat i-1 (if too high); conservation, k_i + k_{i-1} a_{i-1} + k_{i+1} b_{i+1} = 1,
    is a tridiagonal system.  A group is left alone, and rounded down, where the system would want k < 0.
    The result begins one grid point below the hats.
    """
    hats, excess, gathered = _gather_edges(hats, excess, h)
    scaled = hats - excess  # t_i Q_i
    too_low, too_high = np.maximum(-excess, 0.0), np.maximum(excess, 0.0)
    from_right, from_left = np.zeros_like(hats), np.zeros_like(hats)
    gain = excess[1:] - math.expm1(-h) * scaled[1:]  # P_{i+1} - t_i Q_{i+1}
    loss = math.expm1(h) * scaled[:-1] - excess[:-1]  # t_i Q_{i-1} - P_{i-1}
    np.divide(too_low[:-1], gain, out=from_right[:-1], where=gain > too_low[:-1])
    np.divide(too_high[1:], loss, out=from_left[1:], where=loss > too_high[1:])
    keep = _shares(from_right, from_left)
    balanced = (excess == 0.0) | (from_right > 0.0) | (from_left > 0.0)
    masses = keep * hats
    masses[:-1] += (keep * from_right)[:-1] * hats[1:]
    masses[1:] += (keep * from_left)[1:] * hats[:-1]
    # a group that is not balanced keeps its loss if its mean is above, else moves one point down
    down = ~balanced & (excess < 0.0)
    result = np.zeros(hats.size + 1)
    result[1:] = np.where(down, 0.0, masses) + gathered
    result[:-1] += np.where(down, masses, 0.0)
    return result


def _gathered(losses: Array, masses: Array, h: float, first: int, other: Array) -> Array:
    """Groups of neighbours, each with its mean at or just above a grid point: one around 0, of the width that
    keeps the mean of the losses largest, and one after another to either side of it.

    The result begins at the grid point ``first``, as ``other`` does, which is returned where it keeps more.
    """
    order = np.argsort(losses, kind="stable")
    losses, masses = losses[order], masses[order]
    points = h * (first + np.arange(other.size))
    best, largest = other, float(np.dot(other, points))
    for width in h * _WIDTHS:
        found = _groups_around(losses, masses, h, first, other.size, width)
        mean = float(np.dot(found, points))
        best, largest = (found, mean) if mean > largest else (best, largest)
        if width > max(-losses[0], losses[-1]):
            break
    return best


def _groups_around(losses: Array, masses: Array, h: float, first: int, size: int, width: float) -> Array:
    result, left = np.zeros(size), masses.copy()
    start = int(np.searchsorted(losses, -width))
    # to the right: what is below the grid point comes first, and is made up for
    here, target = start, 0
    while here < losses.size:
        excess = _excess(losses[here:], left[here:], target * h)
        total = np.cumsum(excess)
        enough = np.flatnonzero((total >= 0.0) & (excess > 0.0))
        if enough.size == 0:  # too little is left to make up for it: down to the point below the mean
            result[_point_below(losses[here:], left[here:], h) - first] += float(left[here:].sum())
            break
        last = int(enough[0])
        share = max(0.0, 1.0 - float(total[last]) / float(excess[last]))
        taken = left[here + last] * share
        result[target - first] += float(left[here : here + last].sum()) + taken
        left[here + last] -= taken
        here += last
        target = max(target + 1, math.floor(losses[here] / h) + 1)
    # to the left: what is above the grid point comes first, and may be spent
    here = start
    while here > 0:
        target = math.ceil(losses[here - 1] / h) - 1
        excess = _excess(losses[:here][::-1], left[:here][::-1], target * h)
        spent = np.flatnonzero(np.cumsum(excess) < 0.0)
        last = int(spent[0]) if spent.size else here
        result[target - first] += float(left[here - last : here].sum())
        here -= max(last, 1)
    return result


def _point_below(losses: Array, masses: Array, h: float) -> int:
    """The grid point at or below log P/Q of all of these."""
    total = float(masses.sum())
    if total == 0.0:
        return math.floor(float(losses[0]) / h)
    nearest = float(losses[0])
    mean = nearest - math.log(float(np.dot(masses, np.exp(nearest - losses))) / total)
    return math.floor((mean - 16.0 * UNIT * (1.0 + abs(mean))) / h)


def _excess(losses: Array, masses: Array, point: float) -> Array:
    """P - t Q of each, t = e^point, from below."""
    return masses * (-np.expm1(point - losses) - 4.0 * UNIT * (1.0 + np.abs(losses)))


def _gather_edges(hats: Array, excess: Array, h: float) -> tuple[Array, Array, Array]:
    """Make one group at either end of the range, with its mean at a grid point near that end.

    Nothing lies beyond the ends to balance with, and under sampling much mass may lie close to one.
    Returns what is left of the hats and of their excesses, and the P-masses of the two groups.
    """
    hats, excess, gathered = hats.copy(), excess.copy(), np.zeros_like(hats)
    from_left = np.arange(min(_EDGE, hats.size // 2))
    if from_left.size < 2:
        return hats, excess, gathered
    for order in (from_left, hats.size - 1 - from_left):
        target, last, share = _edge_group(hats[order], excess[order], order, h)
        if target > 0:
            inside, final = order[:last], order[last]
            gathered[order[target]] += float(hats[inside].sum()) + share * hats[final]
            hats[inside], excess[inside] = 0.0, 0.0
            hats[final], excess[final] = (1.0 - share) * hats[final], (1.0 - share) * excess[final]
    return hats, excess, gathered


def _edge_group(hats: Array, excess: Array, order: Index, h: float) -> tuple[int, int, float]:
    """The cheapest group: its target, the last hat in it and that hat's share; target 0 means no group.

    A group at target k gathers all hats from the end on until P = t_k Q.  It costs half the variance it
    removes, and the hat that is left over at its border costs its own imbalance (a whole cell if that is
    negative at the right end, where it has to be rounded down).
    """
    rising = order[1] > order[0]
    leftover = np.append(np.maximum(excess, 0.0) if rising else np.where(excess < 0.0, h * hats, 0.0), 0.0)

    def unmet(last: int, kept: float) -> float:  # and what the next hat cannot take from it
        wanted = float(leftover[last + 1])
        return kept * float(leftover[last]) + (wanted if kept * h * hats[last] < wanted else 0.0)

    best, least = (0, 0, 0.0), unmet(0, 1.0)
    for target in range(1, min(_EDGE // 8, order.size)):
        beyond = hats - (hats - excess) * np.exp((order[target] - order) * h)
        sums = np.cumsum(beyond)  # P - t Q of all hats from the end on
        crossed = np.flatnonzero(sums * np.sign(sums[0]) <= 0.0)
        if crossed.size == 0 or sums[0] == 0.0:
            continue
        last = int(crossed[0])
        share = 1.0 - float(sums[last] / beyond[last])
        lost = float(np.dot(hats[: last + 1], (np.arange(last + 1) - target) ** 2)) * h * h / 2.0
        cost = lost + unmet(last, 1.0 - share)
        if cost < least:
            best, least = (target, last, share), cost
    return best


def _shares(from_right: Array, from_left: Array) -> Array:
    """Solve for the shares k; cancels exchanges, in place, until all are in [0, 1]."""
    from scipy.linalg import solve_banded  # takes long to import, and few events need it

    while True:
        bands = np.ones((3, from_right.size))
        bands[0, 1:] = from_left[1:]
        bands[2, :-1] = from_right[:-1]
        keep = np.asarray(solve_banded((1, 1), bands, np.ones(from_right.size)), dtype=np.float64)
        wrong = np.flatnonzero(~((keep >= 0.0) & (keep <= 1.0 + 1e-12)))
        if wrong.size == 0:
            return np.minimum(keep, 1.0)
        from_right[np.maximum(wrong - 1, 0)] = 0.0
        from_left[np.minimum(wrong + 1, from_left.size - 1)] = 0.0
        from_right[wrong] = 0.0
        from_left[wrong] = 0.0
