"""A privacy loss on a grid: a pair that dominates it, and a pair that it dominates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.pair import Branch, Loss
from tacit.accounting.price import Array

# A dominating pair of a privacy loss on a grid; :mod:`.grid_lower` makes a dominated one.
#
# *Connect the dots* (Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022, 2207.04380).  The ratio
# X = P/Q of each outcome in a cell is spread over the two ends of the cell with the same mean under Q.
# This can only increase E_Q (X - t)_+, for one step and hence for any composition.
#
# Cells that matter little are several spacings wide, and only their ends, the *nodes*, have mass.  The last
# cell may be unbounded.  Its upper node is then infinite loss or, in the dominated pair, the mean of the
# losses in the cell.  At thresholds below this cell it does not matter where in the cell the losses lie.

Index: TypeAlias = NDArray[np.int64]

UNIT = 2.0**-53
MASS_ERROR = 2.0**-44  # allowance for quadrature and rounding, relative, on every mass (6e-14)

_WIDEST_CELL = 300.0  # e^h must not overflow
ROUNDED = 1e-12  # allowance on the mass at infinity, relative
_NO_LOSS = 1 << 10  # atoms within this multiple of the tolerance count as 0; else any fine grid would fit
_HEAVY = 48  # number of heaviest atoms for which a spacing is chosen
_ONE_GROUP = 0.5  # if a group has more of the mass than this, its mean becomes the origin of the grid
_REACH = 8.0  # cells on either side of the origin that may belong to the group
_SETTLED = 4
_MOST_SPACINGS = 1 << 10  # in the widest cell

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
    """The largest ``widths`` of cells at some ``losses``, and the loss ``cap`` where the last cell begins.

    ``losses`` increase.
    """

    losses: Array
    widths: Array
    cap: float


@dataclass(frozen=True)
class Cells:
    """Outcomes, as losses less the origin and P-masses, with the position of each in its cell of the grid.

    ``nodes`` are the ends of the cells, in multiples of h.  ``endless`` says whether the last cell is
    unbounded.  ``exact`` marks outcomes on the lower end of their cell.  ``index`` is the cell of an outcome,
    ``width`` that cell's width, ``rest`` the distance from its lower end, and ``share`` the share of the
    outcome's P-mass that goes to its upper end.
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
    def of(cls, loss: Loss, h: float, floor: float = -math.inf, layout: Layout | None = None) -> Cells:
        origin = _origin(loss, h)
        nodes = _nodes(loss, h, origin, floor, layout)
        # quadrature nodes between the grid lines, then the atoms
        lines, parts = origin + h * nodes.astype(np.float64), []
        for branch in loss.branches:
            low, high = branch.panels[[0, -1]]
            ends = np.maximum(branch.value(np.array([low, high])), floor)
            edges = branch.position(lines[(lines >= ends[0]) & (lines <= ends[1])])
            edges = np.concatenate([branch.panels, edges[(edges > low) & (edges < high)]])
            parts.append(_quadrature(branch, np.unique(edges)))
        losses, masses = (np.concatenate(column) for column in zip(*parts, loss.atoms.T, strict=True))
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
        """Sum ``left`` and ``right`` over each cell, and add the sums to its lower and upper end."""
        size = self.nodes.size + self.endless
        both = np.bincount(self.index, left, size).astype(np.float64)
        both[1:] += np.bincount(self.index, right, size)[:-1]
        return both


def on_grid_points(nodes: Index, before: float, masses: Array) -> Array:
    """Return an array of all grid points, with ``masses`` at the nodes and ``before`` one point below."""
    result = np.zeros(nodes[-1] - nodes[0] + 2)
    result[nodes - nodes[0] + 1], result[0] = masses, before
    return result


def dominating(loss: Loss, h: float, floor: float = -math.inf, layout: Layout | None = None) -> Masses:
    """Return a dominating pmf of the loss on a grid ``origin + h * integers``."""
    # ``layout`` holds the widths of the cells; by default all are h wide.
    #
    # * For every eps and every composition with other losses, delta is at least the exact one, up to a
    #   relative error of ``MASS_ERROR`` on every mass.  The composition allows for this error.
    #
    # Losses below ``floor`` are raised to it, which saves cells.
    cells = Cells.of(loss, h, floor, layout)
    # the loss itself has a rounding error of a few units
    slack = 4.0 * UNIT * (1.0 + np.abs(cells.losses)) / np.minimum(cells.width, 1.0)
    up = np.minimum(cells.share + slack, 1.0)
    dots = cells.spread(cells.masses * (1.0 - up), cells.masses * up) * (1.0 + loss.mass_error)
    beyond, dots = (float(dots[-1]), dots[:-1]) if cells.endless else (0.0, dots)
    infinite = min(1.0, (loss.infinite + beyond) * (1.0 + ROUNDED) + 4.0 * loss.tail)
    return Masses(int(cells.nodes[0]), on_grid_points(cells.nodes, 0.0, dots)[1:], infinite, cells.origin)


def _origin(loss: Loss, h: float) -> float:
    """Return an origin of the grid around which most of the mass can form one group."""
    # Under tiny sampling rates most losses are in one cell, and their mean dominates the error of the grid.
    # The origin is 0 if there is no such group, or if there are atoms, which need another grid.  It is
    # rounded down to 24 bits, so that a count times the origin is exact.
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
    """Return how far below a grid point an atom may be and still count as on it."""
    return _snap(float(np.abs(loss.atoms[:, 0]).max())) if loss.atoms.size else 0.0


def _snap(loss: float) -> float:
    return 16.0 * UNIT * (1.0 + abs(loss))


def _on_grid(losses: Array, h: float) -> NDArray[np.bool_]:
    gap: NDArray[np.bool_] = np.abs(losses - h * np.rint(losses / h)) <= 16.0 * UNIT * (1.0 + np.abs(losses))
    return gap


def lattice(loss: Loss) -> float:
    """Find the widest spacing of a grid with all atoms of a loss without densities; 0 if there is none."""
    sizes = np.abs(loss.atoms[:, 0])
    if loss.branches or sizes.size == 0:
        return 0.0
    positive = sizes[sizes > _NO_LOSS * _snap(float(sizes.max()))]  # smaller ones are 0 within rounding
    if positive.size == 0:
        return 0.0
    least = float(positive.min())
    least /= math.ceil(least / _WIDEST_CELL)
    return least if _on_grid(loss.atoms[:, 0], least).all() else 0.0


def aligned(h: float, atoms: Array) -> tuple[float, float]:
    """Choose a spacing of about h/2 to h that puts the heaviest ``atoms`` on or just above grid points."""
    # ``atoms`` has rows (loss, weight).  Also return the cost of rounding the atoms down, the sum of weight
    # times distance.  A dominated pair can only round a single atom down.
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
    """Choose the nodes for all losses, in multiples of h above ``origin``; the last cell may be unbounded."""
    ends = [branch.value(branch.panels[[0, -1]]) for branch in loss.branches] + [loss.atoms[:, 0]]
    losses = (np.maximum(np.concatenate(ends), floor) - origin) / h
    low, high = math.floor(losses.min()) - 1, math.floor(losses.max()) + 2
    if layout is None:
        return np.arange(low, high + 1)
    end = (high // _MOST_SPACINGS + 1) * _MOST_SPACINGS
    top = math.floor(min((layout.cap - origin) / h, end))
    size, starts_of_cells = _MOST_SPACINGS, list[Index]()
    starts: Index = np.arange(low // size, top // size + 1) * size
    while starts.size:  # cells are halved until they are narrow enough at both ends
        limits = np.interp(origin + h * np.concatenate([starts, starts + size]), layout.losses, layout.widths)
        small = (
            limits.reshape(2, -1).min(axis=0) >= h * size if size > 1 else np.ones(starts.size, dtype=bool)
        )
        starts_of_cells.append(starts[small])
        size //= 2
        starts = np.concatenate([starts[~small], starts[~small] + size])
    nodes = np.sort(np.concatenate(starts_of_cells))
    return np.append(nodes[nodes < top], top)


def _quadrature(branch: Branch, edges: Array) -> tuple[Array, Array]:
    """Compute losses and P-masses at Gauss-Legendre nodes between the edges."""
    half = np.diff(edges)[:, None] / 2.0
    x = (edges[:-1, None] + half + half * _NODES).ravel()
    return branch.value(x), (half * _WEIGHTS).ravel() * branch.density(x)


# A dominated pair of a privacy loss on a grid.
#
# :mod:`.grid` spreads the outcomes of a cell over its two ends.  The shares define overlapping groups of
# outcomes, one around each grid point.  Revealing only the group is post-processing, so the ratios
# P(group)/Q(group) give a dominated pair.  A group with a mean below its grid point takes a share of its
# right neighbour, and one with a mean above it takes a share of its left neighbour, until every mean is a
# grid point. If that fails, P-mass moves to a smaller loss, which can only lower delta.

_SPLIT = 8
_NARROW = 1 << 10  # points up to which losses are also gathered group by group
_WIDTHS = np.geomspace(0.5, 64.0, 15)  # of the group around the origin, on either side, in cells
_EDGE = 512  # grid points at either end that are searched for an edge group


def dominated(loss: Loss, h: float, layout: Layout | None = None) -> Masses:
    """Return a dominated pmf of the loss on the grid of :func:`tacit.accounting.grid.dominating`."""
    # * For every eps and every composition with other losses, delta is at most the exact one, up to a
    #   relative error of ``MASS_ERROR`` on every mass, after all losses are lowered by ``snapped(loss)``.
    cells = Cells.of(loss, h, layout=layout)
    atoms = np.where(cells.exact, cells.masses, 0.0)  # atoms that need no exchange
    masses, losses = cells.masses - atoms, cells.losses
    share = np.where(cells.width < math.inf, cells.share, 1.0)  # an unbounded cell has one group
    noise = 4.0 * UNIT * (1.0 + np.abs(losses))
    nodes = cells.nodes
    if cells.endless:
        # the unbounded last cell has one group, at the grid point below its mean
        beyond = cells.index == nodes.size - 1
        point = _point_below(cells.losses[beyond], cells.masses[beyond], h)
        nodes = np.append(nodes, max(point, nodes[-1] + 1))
    points = h * nodes.astype(np.float64)
    upper = points[np.minimum(cells.index + 1, nodes.size - 1)]
    excess = cells.spread(  # P - t Q of every group, t its grid point
        masses * (1.0 - share) * (-np.expm1(-cells.rest) - noise),
        masses * share * (-np.expm1(upper - losses) - noise),
    )
    hats = cells.spread(masses * (1.0 - share), masses * share)
    before, leveled = _level(hats, excess, points, cells.endless)
    leveled += np.bincount(cells.index, atoms, leveled.size)
    first, whole = int(nodes[0]) - 1, on_grid_points(nodes, before, leveled)
    if cells.origin and whole.size - 1 <= _NARROW and not cells.endless:
        # an origin means that there are no atoms; intervals are split, as each becomes one outcome
        parts = []
        for branch in loss.branches:
            count = branch.panels.size - 1
            edges = np.interp(np.arange(_SPLIT * count + 1) / _SPLIT, np.arange(count + 1), branch.panels)
            parts.append(_quadrature(branch, edges))
        finer, fine_masses = (np.concatenate(column) for column in zip(*parts, strict=True))
        whole = _gathered(finer - cells.origin, fine_masses, h, first, whole)
    infinite = loss.infinite * (1.0 - ROUNDED)
    return Masses(first, whole * (1.0 - loss.mass_error), infinite, cells.origin)


def _level(hats: Array, excess: Array, nodes: Array, endless: bool) -> tuple[float, Array]:
    """Exchange shares between neighbouring groups until every group's mean is its grid point."""
    # The result is the mass one grid point below the first of the ``nodes``, and the masses of the ``nodes``.
    #
    # A *hat* is the mass that :mod:`.grid` gives to one group.  Group i keeps the share k_i of its own hat.
    # It takes the share k_i a_i of hat i+1 if its mean is too low, or k_i b_i of hat i-1 if it is too high.
    # The shares of a hat add up to 1: k_i + k_{i-1} a_{i-1} + k_{i+1} b_{i+1} = 1, which is a tridiagonal
    # system.  A group with a solution k < 0 exchanges nothing, and is rounded down.
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
    # a group that is not balanced keeps its grid point if its mean is above, else it moves one point down
    down = ~balanced & (excess < 0.0)
    fallen = np.where(down, masses, 0.0)
    result = masses - fallen + gathered
    result[:-1] += fallen[1:]
    return float(fallen[0]), result


def _gathered(losses: Array, masses: Array, h: float, first: int, other: Array) -> Array:
    """Gather neighbouring outcomes into groups, each with its mean at or just above a grid point."""
    # The first group lies around 0, and the others follow on both sides.  Of several widths of the first
    # group, the one with the largest mean loss is used.
    #
    # The result begins at the grid point ``first``, as does ``other``, which is returned if its mean is
    # larger.  Nodes of a quadrature are no outcomes.  The interval around each four of them is a set of
    # outcomes, which may be merged at their common loss l = n - log1p(s), n the loss of one node.  With d
    # the largest distance of the others, s is off by 12 units of d (expm1 3, product 1, sums 6, quotient 1),
    # log1p by 3 more, and the subtraction by a unit of l.  So l goes down by 16 d + 2 |l| units, and all of
    # the 4 (1 + |l|) units of `_excess` are left, as in `dominated`, for the errors of the nodes' losses.
    nodes, weights = losses.reshape(-1, _NODES.size), masses.reshape(-1, _NODES.size)
    nearest, masses = nodes[:, :1], weights.sum(axis=1)
    nodes, nearest, masses, weights = (part[masses > 0.0] for part in (nodes, nearest, masses, weights))
    losses = nearest[:, 0] - np.log1p((weights * np.expm1(nearest - nodes)).sum(axis=1) / masses)
    losses -= UNIT * (16.0 * np.abs(nearest - nodes).max(axis=1) + 2.0 * np.abs(losses))

    order = np.argsort(losses, kind="stable")
    losses, masses = losses[order], masses[order]
    points = h * (first + np.arange(other.size))
    best, largest = other, float(np.dot(other, points))
    for width in h * _WIDTHS:
        groups = _groups_around(losses, masses, h, first, other.size, width)
        mean = float(np.dot(groups, points))
        best, largest = (groups, mean) if mean > largest else (best, largest)
        if width > max(-losses[0], losses[-1]):
            break
    return best


def _groups_around(losses: Array, masses: Array, h: float, first: int, size: int, width: float) -> Array:
    result, left = np.zeros(size), masses.copy()
    start = int(np.searchsorted(losses, -width))
    # to the right: losses below the grid point come first, and larger ones make up for them
    here, target = start, 0
    while here < losses.size:
        excess = _excess(losses[here:], left[here:], target * h)
        total = np.cumsum(excess)
        enough = np.flatnonzero((total >= 0.0) & (excess > 0.0))
        if enough.size == 0:  # too little is left above the grid point: round down below the mean
            result[_point_below(losses[here:], left[here:], h) - first] += float(left[here:].sum())
            break
        last = int(enough[0])
        share = max(0.0, 1.0 - float(total[last]) / float(excess[last]))
        moved = left[here + last] * share
        result[target - first] += float(left[here : here + last].sum()) + moved
        left[here + last] -= moved
        here += last
        target = max(target + 1, math.floor(losses[here] / h) + 1)
    # to the left: losses above the grid point come first, and make up for smaller ones
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
    """Return the grid point at or below log P/Q of all these outcomes together."""
    total = float(masses.sum())
    if total == 0.0:
        return math.floor(float(losses[0]) / h)
    nearest = float(losses[0])
    mean = nearest - math.log(float(np.dot(masses, np.exp(nearest - losses))) / total)
    return math.floor((mean - 16.0 * UNIT * (1.0 + abs(mean))) / h)


def _excess(losses: Array, masses: Array, point: float) -> Array:
    """Bound P - t Q of each outcome from below, where t = e^point."""
    return masses * (-np.expm1(point - losses) - 4.0 * UNIT * (1.0 + np.abs(losses)))


def _gather_edges(hats: Array, excess: Array, nodes: Array, endless: bool) -> tuple[Array, Array, Array]:
    """Make one group at each end of the range, with its mean at a grid point near that end."""
    # The result is the hats and excesses that remain, and the P-masses of the two groups.
    #
    # An edge has no neighbour to exchange with, and under sampling much mass may lie close to one.  An
    # unbounded cell takes mass from below, which does not matter at thresholds below that mass.
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
    """Find the cheapest edge group: its target, its last hat (0 if there is none) and that hat's share."""
    # A group at target k gathers all hats from the end on until P = t_k Q.  It costs half the variance that
    # it removes.  The partial hat at its border costs its imbalance, or a whole cell if that is negative at
    # the right end, where it has to be rounded down.
    rising, width = nodes[1] > nodes[0], np.abs(np.diff(nodes, append=nodes[-1]))
    leftover = np.append(
        np.maximum(excess, 0.0) if rising else np.where(excess < 0.0, width * hats, 0.0), 0.0
    )

    def unmet(last: int, rest: float) -> float:  # the imbalance that the next hat cannot take
        need = float(leftover[last + 1])
        return rest * float(leftover[last]) + (need if rest * width[last] * hats[last] < need else 0.0)

    best, least = (0, 0, 0.0), unmet(0, 1.0)
    for target in range(1, min(_EDGE // 8, nodes.size)):
        _, last, share = _end_group(hats, excess, nodes, target)
        if last == 0:
            continue
        loss = float(np.dot(hats[: last + 1], np.square(nodes[: last + 1] - nodes[target]))) / 2.0
        cost = loss + unmet(last, 1.0 - share)
        if cost < least:
            best, least = (target, last, share), cost
    return best


def _end_group(hats: Array, excess: Array, nodes: Array, target: int = 0) -> tuple[int, int, float]:
    """Gather all hats from the end on until P = t Q at the ``target``; the result is as in `_edge_group`."""
    scaled = hats - excess
    with np.errstate(over="ignore", invalid="ignore"):  # an infinite excess takes no share of its hat
        beyond = hats - np.where(scaled == 0.0, 0.0, scaled * np.exp(nodes[target] - nodes))
    sums = np.cumsum(beyond)  # P - t Q of all hats from the end on
    crossed = np.flatnonzero(sums * np.sign(sums[0]) <= 0.0)
    if crossed.size == 0 or sums[0] == 0.0:
        return target, 0, 0.0
    last = int(crossed[0])
    return target, last, float(sums[last - 1] / -beyond[last]) if last > 0 else 0.0


def _shares(from_right: Array, from_left: Array) -> Array:
    """Solve for the shares k, and cancel exchanges, in place, until all are in [0, 1]."""
    from scipy.linalg import solve_banded  # slow to import, and seldom needed

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
