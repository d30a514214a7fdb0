"""A dominating pair of a privacy loss on a grid; :mod:`.grid_lower` makes a dominated one.

*Connect the dots* (Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022, 2207.04380).  The ratio
X = P/Q of each outcome in a cell is spread over the two ends of the cell with the same mean under Q.
This can only increase E_Q (X - t)_+, for one step and hence for any composition.

Cells that matter little are several spacings wide, and only their ends, the *nodes*, have mass.  The last
cell may be unbounded.  Its upper node is then infinite loss or, in the dominated pair, the mean of the losses
in the cell.  At thresholds below this cell it does not matter where in the cell the losses lie.
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
    """Return a dominating pmf of the loss on a grid ``origin + h * integers``.

    Losses below ``floor`` are raised to it, which saves cells.

    Args:
        layout: the widths of the cells; by default all are h wide.

    **Guarantee**

    * For every eps and every composition with other losses, delta is at least the exact one, up to a relative
      error of ``MASS_ERROR`` on every mass.  The composition allows for this error.
    """
    cells = Cells.of(loss, h, floor, layout)
    # the loss itself has a rounding error of a few units
    slack = 4.0 * UNIT * (1.0 + np.abs(cells.losses)) / np.minimum(cells.width, 1.0)
    up = np.minimum(cells.share + slack, 1.0)
    dots = cells.spread(cells.masses * (1.0 - up), cells.masses * up) * (1.0 + loss.mass_error)
    beyond, dots = (float(dots[-1]), dots[:-1]) if cells.endless else (0.0, dots)
    infinite = min(1.0, (loss.infinite + beyond) * (1.0 + ROUNDED) + 4.0 * loss.tail)
    return Masses(int(cells.nodes[0]), on_grid_points(cells.nodes, 0.0, dots)[1:], infinite, cells.origin)


def _origin(loss: Loss, h: float) -> float:
    """Return an origin of the grid around which most of the mass can form one group.

    Under tiny sampling rates most losses are in one cell, and their mean dominates the error of the grid.
    The origin is 0 if there is no such group, or if there are atoms, which need another grid.  It is rounded
    down to 24 bits, so that a count times the origin is exact.
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
    """Return how far below a grid point an atom may be and still count as on it."""
    return _snap(float(np.abs(loss.atoms[:, 0]).max())) if loss.atoms.size else 0.0


def _snap(loss: float) -> float:
    return 16.0 * UNIT * (1.0 + abs(loss))


def _on_grid(losses: Array, h: float) -> NDArray[np.bool_]:
    gap: NDArray[np.bool_] = np.abs(losses - h * np.rint(losses / h)) <= 16.0 * UNIT * (1.0 + np.abs(losses))
    return gap


def lattice(loss: Loss) -> float:
    """Find the widest spacing of a grid that holds all atoms of a loss without densities; 0 if none does."""
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
    """Choose a spacing between about h/2 and h that puts the heaviest ``atoms`` on or just above grid points.

    ``atoms`` has rows (loss, weight).  Also return the cost of rounding the atoms down, the sum of weight
    times distance.  A dominated pair can only round a single atom down.
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


def _outcomes(loss: Loss, lines: Array, origin: float, floor: float) -> tuple[Array, Array]:
    """Compute losses and P-masses of quadrature nodes between the grid ``lines``, then those of the atoms."""
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
    """Compute losses and P-masses at Gauss-Legendre nodes between the edges."""
    half = np.diff(edges)[:, None] / 2.0
    x = (edges[:-1, None] + half + half * _NODES).ravel()
    return branch.value(x), (half * _WEIGHTS).ravel() * branch.density(x)
