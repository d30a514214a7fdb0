"""The privacy loss on a grid: a pair that dominates, one that is dominated; long, for they share cells.

Upper: *connect the dots* (Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022, 2207.04380).  The ratio
X = P/Q of each outcome in a cell is spread over the two ends of the cell so that its mean under Q is
kept; E_Q (X - t)_+ can only grow, for one step and hence for any composition.

Lower: the same shares define overlapping groups of outcomes, one around each grid point.  Revealing only
the group is post-processing, so its ratio P(group)/Q(group) gives a pair that is dominated.  A group whose
mean lies below its grid point takes in a share of its right neighbour, one whose mean lies above takes in
a share of the left one, until every mean is a grid point.  Where that fails, P-mass moves to a smaller
loss, which can only lower delta = E_P (1 - e^{eps - L})_+.

Where little depends on it, cells are several spacings wide: their ends, the *nodes*, are all that has a mass.
The last cell may have no end: its other node is infinite loss, and in the lower pair the mean of what goes
there.  Thresholds below it see no difference, whatever the losses are beyond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.pld.pair import Branch, Loss
from tacit.accounting.price import Array

Index: TypeAlias = NDArray[np.int64]

UNIT = 2.0**-53
MASS_ERROR = 2.0**-44  # allowance for quadrature and rounding, relative, on every mass (6e-14)

_WIDEST_CELL = 300.0  # e^h must not overflow
_ROUNDED = 1e-12  # allowance on the mass at infinity, relative
_NO_LOSS = 1 << 10  # times what an atom may lie off a grid point: on finer grids all of them would lie
_HEAVY = 48  # atoms that a spacing is chosen for
_ONE_GROUP = 0.5  # of the mass: from there on, the grid is laid through its mean
_REACH = 8.0  # cells to either side of it that the group may take in
_SETTLED = 4
_NARROW = 1 << 10  # points of a law that is gathered group by group
_WIDTHS = np.geomspace(0.5, 64.0, 15)  # of the group around the origin, either side, in cells
_MOST_SPACINGS = 1 << 10  # in a cell
_EDGE = 512  # grid points at either end that are looked at for the groups there

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)


@dataclass(frozen=True)
class Masses:
    """P-masses at the losses ``origin + h * (first + i)``; ``infinite`` is the P-mass at infinite loss."""

    first: int
    masses: Array
    infinite: float
    origin: float = 0.0


@dataclass(frozen=True)
class Layout:
    """The wanted widths of cells at some ``losses``, increasing, and where the last cell begins."""

    losses: Array
    widths: Array
    cap: float


def bracket(loss: Loss, h: float, layout: Layout | None = None) -> tuple[Masses, Masses]:
    """A lower and an upper pmf of the loss on a grid ``origin + h * integers``, the same for both.

    :param layout: of the cells, which are of width h by default.

    Guarantee
    ---------
    * Upper: for every eps, composed any number of times with anything, delta is at least the exact one.
    * Lower: at most the exact one.
    * Both up to a relative error of ``MASS_ERROR`` on every mass, which the composition allows for.
    * The lower one holds for losses that are ``snapped(loss)`` smaller.
    """
    return dominated(loss, h, layout), dominating(loss, h, layout=layout)


def dominating(loss: Loss, h: float, floor: float = -math.inf, layout: Layout | None = None) -> Masses:
    """The upper pmf of :func:`bracket` alone, with losses below ``floor`` raised to it, which saves cells."""
    return _dominating(loss, _Cells.of(loss, h, floor, layout))


def dominated(loss: Loss, h: float, layout: Layout | None = None) -> Masses:
    """The lower pmf of :func:`bracket` alone."""
    return _dominated(loss, h, _Cells.of(loss, h, layout=layout))


@dataclass(frozen=True)
class _Cells:
    """Outcomes, losses less the origin and P-masses, and where in its cell of the grid each of them lies.

    ``nodes``: the ends of the cells, in multiples of h.  ``endless``: whether there is a cell after the last.
    ``exact``: on the lower end of the cell.  ``rest``: how far above it.  ``width``: of the cell.  ``share``:
    of P to the upper end.
    """

    origin: float
    losses: Array
    masses: Array
    nodes: Index
    endless: bool
    exact: NDArray[np.bool_]
    index: Index
    rest: Array
    width: Array
    share: Array

    @classmethod
    def of(cls, loss: Loss, h: float, floor: float = -math.inf, layout: Layout | None = None) -> _Cells:
        origin = _origin(loss, h)
        nodes = _nodes(loss, h, origin, floor, layout)
        losses, masses = _outcomes(loss, h * nodes.astype(np.float64), origin, floor)
        losses = np.maximum(losses, floor) - origin
        exact = _on_grid(losses, h)
        place = np.where(exact, np.rint(losses / h), np.floor(losses / h)).astype(np.int64)
        index = np.minimum(place - nodes[0], nodes.size - 1)
        if nodes.size < nodes[-1] - nodes[0] + 1:
            index = np.searchsorted(nodes, place, side="right") - 1
        exact &= nodes[index] == place
        first, last = int(index.min()), int(index.max())
        endless, nodes, index = last == nodes.size - 1, nodes[first : last + 2], index - first
        width = np.append(h * np.diff(nodes), math.inf)[index]
        rest = np.where(exact, 0.0, np.clip(losses - h * nodes[index], 0.0, width))
        # t'(X - t) / (X (t' - t)) with t, t' = the ends of the cell in e^L
        share = np.expm1(-rest) / np.expm1(-width)
        return cls(origin, losses, masses, nodes, endless, exact, index, rest, width, share)

    def spread(self, left: Array, right: Array) -> Array:
        """The sums over each cell, put at its ends."""
        size = self.nodes.size + self.endless
        both = np.bincount(self.index, left, size).astype(np.float64)
        both[1:] += np.bincount(self.index, right, size)[:-1]
        return both

    def nodes_below(self, h: float) -> Index:
        """``nodes``, and the point below the mean of an endless cell."""
        if not self.endless:
            return self.nodes
        beyond = self.index == self.nodes.size - 1
        point = _point_below(self.losses[beyond], self.masses[beyond], h)
        return np.append(self.nodes, max(point, self.nodes[-1] + 1))


def _on_grid_points(nodes: Index, before: float, masses: Array) -> Array:
    """``masses`` of the nodes and, ``before`` them, of one point below the first, on all points."""
    found = np.zeros(nodes[-1] - nodes[0] + 2)
    found[nodes - nodes[0] + 1], found[0] = masses, before
    return found


def _dominating(loss: Loss, cells: _Cells) -> Masses:
    # the loss itself is off by a few units
    slack = 4.0 * UNIT * (1.0 + np.abs(cells.losses)) / np.minimum(cells.width, 1.0)
    up = np.minimum(cells.share + slack, 1.0)
    dots = cells.spread(cells.masses * (1.0 - up), cells.masses * up) * (1.0 + loss.mass_error)
    beyond, dots = (float(dots[-1]), dots[:-1]) if cells.endless else (0.0, dots)
    infinite = min(1.0, (loss.infinite + beyond) * (1.0 + _ROUNDED) + 4.0 * loss.tail)
    return Masses(int(cells.nodes[0]), _on_grid_points(cells.nodes, 0.0, dots)[1:], infinite, cells.origin)


def _dominated(loss: Loss, h: float, cells: _Cells) -> Masses:
    there = np.where(cells.exact, cells.masses, 0.0)  # atoms that need no exchange
    masses, losses = cells.masses - there, cells.losses
    share = np.where(cells.width < math.inf, cells.share, 1.0)  # there is one group in an endless cell
    noise = 4.0 * UNIT * (1.0 + np.abs(losses))
    nodes = cells.nodes_below(h)
    points = h * nodes.astype(np.float64)
    upper = points[np.minimum(cells.index + 1, nodes.size - 1)]
    excess = cells.spread(  # P - t Q of every group, t its grid point
        masses * (1.0 - share) * (-np.expm1(-cells.rest) - noise),
        masses * share * (-np.expm1(upper - losses) - noise),
    )
    hats = cells.spread(masses * (1.0 - share), masses * share)
    before, leveled = _level(hats, excess, points, cells.endless)
    leveled += np.bincount(cells.index, there, leveled.size)
    first, whole = int(nodes[0]) - 1, _on_grid_points(nodes, before, leveled)
    if cells.origin and whole.size - 1 <= _NARROW and not cells.endless:
        whole = _gathered(losses, cells.masses, h, first, whole)
    infinite = loss.infinite * (1.0 - _ROUNDED)
    return Masses(first, whole * (1.0 - loss.mass_error), infinite, cells.origin)


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
        near = np.abs(losses - origin) <= _REACH * h
        group = float(masses[near].sum())
        if group < _ONE_GROUP:
            return 0.0
        origin -= math.log(float(np.dot(masses[near], np.exp(origin - losses[near]))) / group)
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
    if loss.branches or sizes.size == 0:
        return 0.0
    there = sizes[sizes > _NO_LOSS * _snap(float(sizes.max()))]  # what is less is 0 but for rounding
    if there.size == 0:
        return 0.0
    least = float(there.min())
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


def _nodes(loss: Loss, h: float, origin: float, floor: float, layout: Layout | None) -> Index:
    """The ends of cells that hold all losses, in multiples of h above ``origin``; the last may be endless."""
    ends = [branch.value(branch.panels[[0, -1]]) for branch in loss.branches] + [loss.atoms[:, 0]]
    losses = (np.maximum(np.concatenate(ends), floor) - origin) / h
    low, high = math.floor(losses.min()) - 1, math.floor(losses.max()) + 2
    if layout is None:
        return np.arange(low, high + 1)
    end = (high // _MOST_SPACINGS + 1) * _MOST_SPACINGS
    top = math.floor(min((layout.cap - origin) / h, end))
    size, found = _MOST_SPACINGS, list[Index]()
    starts: Index = np.arange(low // size, top // size + 1) * size
    while starts.size:  # halved, until they are as narrow as is wanted at either end
        wanted = np.interp(origin + h * np.concatenate([starts, starts + size]), layout.losses, layout.widths)
        small = (
            wanted.reshape(2, -1).min(axis=0) >= h * size if size > 1 else np.ones(starts.size, dtype=bool)
        )
        found.append(starts[small])
        size //= 2
        starts = np.concatenate([starts[~small], starts[~small] + size])
    nodes = np.sort(np.concatenate(found))
    return np.append(nodes[nodes < top], top)


def _outcomes(loss: Loss, lines: Array, origin: float, floor: float) -> tuple[Array, Array]:
    """Losses and P-masses of quadrature nodes between the ``lines`` above origin, then of the atoms."""
    parts = [_between(branch, origin + lines, floor) for branch in loss.branches]
    parts.append((loss.atoms[:, 0], loss.atoms[:, 1]))
    return np.concatenate([losses for losses, _ in parts]), np.concatenate([masses for _, masses in parts])


def _between(branch: Branch, lines: Array, floor: float) -> tuple[Array, Array]:
    low, high = branch.panels[[0, -1]]
    ends = np.maximum(branch.value(np.array([low, high])), floor)
    edges = branch.position(lines[(lines >= ends[0]) & (lines <= ends[1])])
    return _quadrature(
        branch, np.unique(np.concatenate([branch.panels, edges[(edges > low) & (edges < high)]]))
    )


def _quadrature(branch: Branch, edges: Array) -> tuple[Array, Array]:
    """Losses and P-masses of Gauss's nodes between the edges."""
    half = np.diff(edges)[:, None] / 2.0
    x = (edges[:-1, None] + half + half * _NODES).ravel()
    return branch.value(x), (half * _WEIGHTS).ravel() * branch.density(x)


def _level(hats: Array, excess: Array, nodes: Array, endless: bool) -> tuple[float, Array]:
    """Exchange shares between neighbouring groups until every group's mean is its grid point.

    Group i keeps the share k_i of its own hat and takes the share k_i a_i of hat i+1 (if its mean is too
    low) or k_i b_i of hat i-1 (if too high); conservation, k_i + k_{i-1} a_{i-1} + k_{i+1} b_{i+1} = 1,
    is a tridiagonal system.  A group is left alone, and rounded down, where the system would want k < 0.
    Returns the mass of one grid point below the ``nodes``, and theirs.
    """
    hats, excess, gathered = _gather_edges(hats, excess, nodes, endless)
    width = np.diff(nodes)
    scaled = hats - excess  # t_i Q_i
    too_low, too_high = np.maximum(-excess, 0.0), np.maximum(excess, 0.0)
    from_right, from_left = np.zeros_like(hats), np.zeros_like(hats)
    gain = excess[1:] - np.expm1(-width) * scaled[1:]  # P_{i+1} - t_i Q_{i+1}
    loss = np.expm1(width) * scaled[:-1] - excess[:-1]  # t_i Q_{i-1} - P_{i-1}
    np.divide(too_low[:-1], gain, out=from_right[:-1], where=gain > too_low[:-1])
    np.divide(too_high[1:], loss, out=from_left[1:], where=loss > too_high[1:])
    keep = _shares(from_right, from_left)
    balanced = (excess == 0.0) | (from_right > 0.0) | (from_left > 0.0)
    masses = keep * hats
    masses[:-1] += (keep * from_right)[:-1] * hats[1:]
    masses[1:] += (keep * from_left)[1:] * hats[:-1]
    # a group that is not balanced keeps its loss if its mean is above, else moves one point down
    down = ~balanced & (excess < 0.0)
    fallen = np.where(down, masses, 0.0)
    result = masses - fallen + gathered
    result[:-1] += fallen[1:]
    return float(fallen[0]), result


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


def _gather_edges(hats: Array, excess: Array, nodes: Array, endless: bool) -> tuple[Array, Array, Array]:
    """Make one group at either end of the range, with its mean at a grid point near that end.

    Nothing lies beyond the ends to balance with, and under sampling much mass may lie close to one.  An
    endless cell takes from what is below it, which no threshold below that sees.
    Returns what is left of the hats and of their excesses, and the P-masses of the two groups.
    """
    hats, excess, gathered = hats.copy(), excess.copy(), np.zeros_like(hats)
    from_left = np.arange(min(_EDGE, hats.size // 2))
    if from_left.size < 2:
        return hats, excess, gathered
    for order, at_end in ((from_left, False), (hats.size - 1 - from_left, endless)):
        find = _end_group if at_end else _edge_group
        target, last, share = find(hats[order], excess[order], nodes[order])
        if last > 0:
            inside, final = order[:last], order[last]
            gathered[order[target]] += float(hats[inside].sum()) + share * hats[final]
            hats[inside], excess[inside] = 0.0, 0.0
            hats[final], excess[final] = (1.0 - share) * hats[final], (1.0 - share) * excess[final]
    return hats, excess, gathered


def _edge_group(hats: Array, excess: Array, nodes: Array) -> tuple[int, int, float]:
    """The cheapest group: its target, the last hat in it and that hat's share; no last hat means no group.

    A group at target k gathers all hats from the end on until P = t_k Q.  It costs half the variance it
    removes, and the hat that is left over at its border costs its own imbalance (a whole cell if that is
    negative at the right end, where it has to be rounded down).
    """
    rising, width = nodes[1] > nodes[0], np.abs(np.diff(nodes, append=nodes[-1]))
    leftover = np.append(
        np.maximum(excess, 0.0) if rising else np.where(excess < 0.0, width * hats, 0.0), 0.0
    )

    def unmet(last: int, kept: float) -> float:  # and what the next hat cannot take from it
        wanted = float(leftover[last + 1])
        return kept * float(leftover[last]) + (wanted if kept * width[last] * hats[last] < wanted else 0.0)

    best, least = (0, 0, 0.0), unmet(0, 1.0)
    for target in range(1, min(_EDGE // 8, nodes.size)):
        _, last, share = _end_group(hats, excess, nodes, target)
        if last == 0:
            continue
        lost = float(np.dot(hats[: last + 1], np.square(nodes[: last + 1] - nodes[target]))) / 2.0
        cost = lost + unmet(last, 1.0 - share)
        if cost < least:
            best, least = (target, last, share), cost
    return best


def _end_group(hats: Array, excess: Array, nodes: Array, target: int = 0) -> tuple[int, int, float]:
    """The group of all hats from the end on until P = t Q at the ``target``."""
    scaled = hats - excess
    with np.errstate(over="ignore", invalid="ignore"):  # of what is infinitely too much, nothing is taken
        beyond = hats - np.where(scaled == 0.0, 0.0, scaled * np.exp(nodes[target] - nodes))
    sums = np.cumsum(beyond)  # P - t Q of all hats from the end on
    crossed = np.flatnonzero(sums * np.sign(sums[0]) <= 0.0)
    if crossed.size == 0 or sums[0] == 0.0:
        return target, 0, 0.0
    last = int(crossed[0])
    return target, last, float(sums[last - 1] / -beyond[last]) if last > 0 else 0.0


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
