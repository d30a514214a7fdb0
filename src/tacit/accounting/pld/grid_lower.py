"""A dominated pair of a privacy loss on a grid.

:mod:`.grid` spreads the outcomes of a cell over its two ends.  The shares define overlapping groups of
outcomes, one around each grid point.  Revealing only the group is post-processing, so the ratios
P(group)/Q(group) give a dominated pair.  A group with a mean below its grid point takes a share of its right
neighbour, and one with a mean above it takes a share of its left neighbour, until every mean is a grid point.
If that fails, P-mass moves to a smaller loss, which can only lower delta.
"""

from __future__ import annotations

import math

import numpy as np

from tacit.accounting.pld.grid import ROUNDED, UNIT, Cells, Index, Layout, Masses, on_grid_points
from tacit.accounting.pld.pair import Loss
from tacit.accounting.price import Array

_NARROW = 1 << 10  # points up to which losses are also gathered group by group
_WIDTHS = np.geomspace(0.5, 64.0, 15)  # of the group around the origin, on either side, in cells
_EDGE = 512  # grid points at either end that are searched for an edge group


def dominated(loss: Loss, h: float, layout: Layout | None = None) -> Masses:
    """Return a dominated pmf of the loss on the grid of :func:`tacit.accounting.pld.grid.dominating`.

    **Guarantee**

    * For every eps and every composition with other losses, delta is at most the exact one, up to a relative
      error of ``MASS_ERROR`` on every mass, after all losses are lowered by ``snapped(loss)``.
    """
    cells = Cells.of(loss, h, layout=layout)
    atoms = np.where(cells.exact, cells.masses, 0.0)  # atoms that need no exchange
    masses, losses = cells.masses - atoms, cells.losses
    share = np.where(cells.width < math.inf, cells.share, 1.0)  # an unbounded cell has one group
    noise = 4.0 * UNIT * (1.0 + np.abs(losses))
    nodes = _nodes_below(cells, h)
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
        whole = _gathered(losses, cells.masses, h, first, whole)
    infinite = loss.infinite * (1.0 - ROUNDED)
    return Masses(first, whole * (1.0 - loss.mass_error), infinite, cells.origin)


def _nodes_below(cells: Cells, h: float) -> Index:
    """Return the nodes, and for an unbounded last cell also the grid point below its mean."""
    if not cells.endless:
        return cells.nodes
    beyond = cells.index == cells.nodes.size - 1
    point = _point_below(cells.losses[beyond], cells.masses[beyond], h)
    return np.append(cells.nodes, max(point, cells.nodes[-1] + 1))


def _level(hats: Array, excess: Array, nodes: Array, endless: bool) -> tuple[float, Array]:
    """Exchange shares between neighbouring groups until every group's mean is its grid point.

    A *hat* is the mass that :mod:`.grid` gives to one group.  Group i keeps the share k_i of its own hat.  It
    takes the share k_i a_i of hat i+1 if its mean is too low, or k_i b_i of hat i-1 if it is too high.  The
    shares of a hat add up to 1: k_i + k_{i-1} a_{i-1} + k_{i+1} b_{i+1} = 1, which is a tridiagonal system.
    A group with a solution k < 0 exchanges nothing, and is rounded down.

    Returns:
        The mass one grid point below the first of the ``nodes``, and the masses of the ``nodes``.
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
    # a group that is not balanced keeps its grid point if its mean is above, else it moves one point down
    down = ~balanced & (excess < 0.0)
    fallen = np.where(down, masses, 0.0)
    result = masses - fallen + gathered
    result[:-1] += fallen[1:]
    return float(fallen[0]), result


def _gathered(losses: Array, masses: Array, h: float, first: int, other: Array) -> Array:
    """Gather neighbouring outcomes into groups, each with its mean at or just above a grid point.

    The first group lies around 0, and the others follow on both sides.  Of several widths of the first group,
    the one with the largest mean loss is used.

    The result begins at the grid point ``first``, as does ``other``, which is returned if its mean is larger.
    """
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
    """Make one group at each end of the range, with its mean at a grid point near that end.

    An edge has no neighbour to exchange with, and under sampling much mass may lie close to one.  An
    unbounded cell takes mass from below, which does not matter at thresholds below that mass.

    Returns:
        The hats and excesses that remain, and the P-masses of the two groups.
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
    """Find the cheapest edge group: its target, its last hat (0 if there is no group) and that hat's share.

    A group at target k gathers all hats from the end on until P = t_k Q.  It costs half the variance that it
    removes.  The partial hat at its border costs its imbalance, or a whole cell if that is negative at the
    right end, where it has to be rounded down.
    """
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
