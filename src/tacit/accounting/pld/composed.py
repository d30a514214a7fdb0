"""Compositions on a grid, laid out for the neighbourhood of a saddle point.

This file chooses the width of the grid's cells, the losses in the window and their tilt.  The bounds of
:mod:`tacit.accounting.pld.convolve` hold for any choice, and are tight for a good one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np

from tacit.accounting.flatten import Base, Steps
from tacit.accounting.pld.convolve import Composition, Window, compose, directly
from tacit.accounting.pld.grid import Layout, Masses, aligned, dominating, lattice
from tacit.accounting.pld.grid_lower import dominated
from tacit.accounting.pld.losses import loss_of
from tacit.accounting.pld.pair import Loss
from tacit.accounting.pld.saddle import FAINT, Saddle, cumulant_of, find, narrowest, samples, tail_of
from tacit.accounting.price import Array, Direction

_TIGHTNESS = 2e-7  # target of the relative error in epsilon that the grid adds
_WIDEST = 3.1e-5  # spacing, if affordable: a third of the usual 1e-4
_CHEAP = 1 << 14  # so few points are cheap, and are always used
_LARGEST_SUM, _LARGEST_STEP = 1 << 19, 1 << 20  # points; beyond, the grid gets coarser and the bounds looser
_ROUNDED_DOWN = 3e-4  # target of the relative error in epsilon from rounding atoms down
_DIRECT = 1 << 12  # points of a lattice that are convolved directly
_FEW, _FEW_POINTS = 32, 1 << 14  # steps and points that are also convolved directly, if no tilt helps
_SAMPLES = 2001  # of a loss, for the widths of its cells
_HIGHER = 1.15  # a composition is accurate up to this multiple of epsilon
_BEYOND = 1e-10  # of delta: the share that may depend on losses beyond the last cell
_STEEPEST = 0.1  # the most by which the width of cells grows per distance from a narrow one

_SHARE = 1.0 / 16.0  # the error that wider cells may add, relative to the error of cells of width h
_ALONE = 1e-4  # spacing for a mechanism that is performed once, relative to epsilon
_AT_ZERO = 1e-3  # the same at epsilon 0, relative to the standard deviation of a loss with atoms only
_ERROR = 1e-7  # target of the error that the grid adds to the trade-off curve
_FLOOR = 1e-9  # share of the mass that is raised to a larger loss, to save points
_MANY = 1 << 19  # points of the window, or of one step, if a composition serves many epsilons
_COARSE = 2.0  # cells wider than this multiple of the target are too wide
_ROUNDING = 1e-9  # of delta: the rounding error that the tilt of such a composition may cause


@lru_cache(maxsize=24)
def _grid(
    base: Base,
    direction: Direction,
    h: float,
    tail: float,
    end: Literal[0, 1],
    tilt: float = 0.0,
    cap: float = math.inf,
) -> Masses:
    loss = loss_of(base, direction, tail)
    if end == 0 and (lower := loss.dominated) is not None:
        return dominated(lower, h)
    layout = _layout(loss, h, tilt, cap) if tilt > 0.0 else None
    return dominated(loss, h, layout) if end == 0 else dominating(loss, h, layout=layout)


def _alone(
    base: Base, direction: Direction, h: float, tail: float, end: Literal[0, 1], epsilon: float, cap: float
) -> Masses:
    """Make the grid of a mechanism that is performed once, with narrow cells only near epsilon."""
    loss = loss_of(base, direction, tail)
    if loss.atoms.size or loss.under or epsilon < 0.0 or cap == math.inf:
        return _grid(base, direction, h, tail, end)
    least = min(float(branch.value(branch.panels[:1])[0]) for branch in loss.branches)
    low = epsilon / _HIGHER
    places = np.array([min(least, low) - 1.0, low, cap])
    layout = Layout(places, h + _STEEPEST * np.maximum(low - places, 0.0), cap)
    return dominated(loss, h, layout) if end == 0 else dominating(loss, h, layout=layout)


def _layout(loss: Loss, h: float, tilt: float, cap: float) -> Layout | None:
    """Make the cells of rare losses wider, for about the same total error as cells of width h.

    The error of cells of widths w is the integral of f w^2, with f the tilted density.  Their number is the
    integral of 1/w.  For a given number, the error is least if w is proportional to f^{-1/3}.
    """
    if loss.atoms.size or loss.under:
        return None
    parts = []
    for branch in loss.branches:
        x = np.linspace(branch.panels[0], branch.panels[-1], _SAMPLES)
        ends, masses = branch.value(x), branch.density((x[1:] + x[:-1]) / 2.0) * (x[1] - x[0])
        parts.append((ends, masses, np.diff(ends)))
    between = np.unique(np.concatenate([ends for ends, _, _ in parts]))
    if between[-1] - between[0] < _CHEAP * h and between[-1] <= cap:
        return None
    middle, density = (between[1:] + between[:-1]) / 2.0, np.zeros(between.size - 1)
    for ends, masses, width in parts:
        place = np.clip(np.searchsorted(ends, middle, side="right") - 1, 0, masses.size - 1)
        inside = (ends[0] <= middle) & (middle <= ends[-1]) & (width[place] > 0.0)
        density[inside] += masses[place[inside]] / width[place[inside]]
    logs, tilted = np.log(np.maximum(density, FAINT)), np.zeros_like(density)
    for power in (0.0, tilt / 2.0, tilt):
        weights = np.exp(logs + power * middle - (logs + power * middle).max())
        tilted += weights / np.dot(weights, np.diff(between))
    share = np.cbrt(tilted)
    scale = _SHARE / math.sqrt(np.dot(share, np.diff(between)))
    widths = h * np.maximum(scale / np.maximum(share, 1e-30), 1.0)
    # neighbouring cells get similar widths, as only such cells can be balanced
    left, slope = between[:-1], _STEEPEST * between[:-1]
    widths = np.minimum.accumulate(widths - slope) + slope
    return Layout(left, np.minimum.accumulate((widths + slope)[::-1])[::-1] - slope, cap)


@lru_cache(maxsize=24)
def _upper_grid(base: Base, direction: Direction, h: float, tail: float, floor: float) -> Masses:
    return dominating(loss_of(base, direction, tail), h, floor)


def _spacing(
    epsilon: float, variance: float, steps: int, window: Window, reach: float, atoms: Array, finer: float
) -> float:
    """Choose h so that the error is small relative to epsilon, rounded so that grids can be reused.

    The grid adds about h^2 / 6 to the variance of each loss.  Epsilon changes by half that relative
    change.  For the lower bound, atoms that are not on the grid are rounded down, each by up to h.
    """
    epsilon = max(epsilon, 1e-6)
    spacing = min(_WIDEST, math.sqrt(_TIGHTNESS * min(epsilon, 12.0 * variance) / steps))
    width = window.high - window.low
    least = max(width / _LARGEST_SUM, reach / _LARGEST_STEP) / finer
    h, cost = aligned(_rounded(max(min(spacing, width / _CHEAP) / finer, least)), atoms)
    if cost > _ROUNDED_DOWN * epsilon:
        h, _ = aligned(_rounded(max(h * _ROUNDED_DOWN * epsilon / cost, least)), atoms)
    return h


def _rounded(h: float) -> float:
    return float(2.0 ** (math.floor(2.0 * math.log2(h)) / 2.0))


def _atoms(steps: Steps, way: Direction, tail: float) -> Array:
    """Collect all atoms, of shape (n, 2): rows (loss, mass times count)."""
    parts = [loss_of(base, way, tail).atoms * (1.0, count) for base, count in steps]
    return np.concatenate(parts)


def _reach(steps: Steps, way: Direction, tail: float) -> float:
    """Return the widest range of the loss of a single step."""
    return max(float(np.ptp(samples(base, way, tail)[0])) for base, _ in steps)


def composition(
    steps: Steps, way: Direction, saddle: Saddle, end: Literal[0, 1], finer: float = 1.0
) -> Composition:
    """Make a composition near ``saddle``: a lower bound if ``end`` is 0, an upper one if it is 1."""
    tail = tail_of(steps, saddle.log_delta)
    total = sum(count for _, count in steps)
    reach = _reach(steps, way, tail)
    atoms = _atoms(steps, way, tail)
    if total == 1:
        ((base, _),) = steps
        spacing = _ALONE * saddle.epsilon
        if saddle.epsilon <= 0.0 and not loss_of(base, way, tail).branches:  # 0 is on the grid, and is exact
            spacing = _AT_ZERO * math.sqrt(cumulant_of(steps, way, tail)(0.0)[2])
        h, _ = aligned(_rounded(max(spacing, reach / _LARGEST_STEP) / finer), atoms)
        cap = _HIGHER * saddle.epsilon
        if saddle.epsilon <= 0.0:  # a coarse grid may show that the answer is elsewhere
            cap = _CHEAP * h if finer >= 1.0 else math.inf
        return directly(_alone(base, way, h, tail, end, saddle.epsilon, cap), 1, h)
    exact = lattice(loss_of(steps[0][0], way, tail)) if len(steps) == 1 else 0.0
    if 0.0 < exact * _DIRECT > total * reach:
        return directly(_grid(steps[0][0], way, exact, tail, end), total, exact)
    if len(steps) == 1 and total <= _FEW and saddle.tilt**2 * saddle.variance < 0.25:
        # all losses are near their supremum, where no tilt helps
        h, _ = aligned(_rounded(total * reach / _FEW_POINTS), atoms)
        return directly(_grid(steps[0][0], way, h, tail, end), total, h)
    cap = math.inf if exact or atoms.size else _HIGHER * saddle.epsilon - _least(steps, way, tail, saddle)
    cumulant = cumulant_of(steps, way, tail, cap)
    if cap < math.inf:
        at_epsilon = find(cumulant, lambda point: point.epsilon - saddle.epsilon)
        saddle = replace(at_epsilon, epsilon=saddle.epsilon, log_delta=saddle.log_delta)
    window = narrowest(cumulant, saddle, total)
    reach = min(reach, cap - window.low)
    h = exact or _spacing(saddle.epsilon, cumulant(window.tilt)[2], total, window, reach, atoms, finer)
    tilt = 0.0 if exact else window.tilt
    return compose([(_grid(base, way, h, tail, end, tilt, cap), count) for base, count in steps], h, window)


def _least(steps: Steps, way: Direction, tail: float, saddle: Saddle) -> float:
    """Return a value that the sum of all losses but one almost always exceeds, under Q.

    If the last loss is above epsilon less this value, it does not matter by how much."""
    cumulant = cumulant_of(steps, way, tail)
    rest = saddle.log_delta - max(saddle.epsilon, 0.0) + math.log(_BEYOND)
    tilts: list[float] = (2.0 ** np.arange(-3.0, 8.0) / math.sqrt(max(cumulant(-1.0)[2], 1e-300))).tolist()
    return max((rest - cumulant(-1.0 - tilt)[0]) / tilt for tilt in tilts)


def dominating_composition(
    steps: Steps, way: Direction, saddle: Saddle, steepest: float, tail: float
) -> tuple[Composition, bool]:
    """Make the upper composition for all epsilons around ``saddle``.

    Also return whether its cells are narrow enough.  ``steepest`` bounds how fast log delta falls there, per
    nat.  ``tail`` is the P-mass that is cut off each loss.

    The grid adds T h^2 / 12 times the density of the sum to delta (:func:`_spacing`).  The density is at most
    about 1 / (standard deviation of the sum), and at most ``steepest`` times the mass beyond.
    """
    total = sum(count for _, count in steps)
    atoms = _atoms(steps, way, tail)
    floors = [_floor(base, way, tail, _FLOOR / total) for base, _ in steps]
    tops = [float(samples(base, way, tail)[0].max()) for base, _ in steps]
    reach = max(top - floor for top, floor in zip(tops, floors, strict=True))
    cumulant = cumulant_of(steps, way, tail)
    spacing = math.sqrt(12.0 * _ERROR / total * min(cumulant(0.0)[2], 1.0 / steepest))
    if total == 1:
        h, _ = aligned(_rounded(max(spacing, reach / _MANY)), atoms)
        return directly(_upper_grid(steps[0][0], way, h, tail, floors[0]), 1, h), True
    exact = lattice(loss_of(steps[0][0], way, tail)) if len(steps) == 1 else 0.0
    if 0.0 < exact * _DIRECT > total * reach:
        return directly(_upper_grid(steps[0][0], way, exact, tail, -math.inf), total, exact), True
    window = narrowest(cumulant, saddle, total, _ROUNDING)
    width = window.high - window.low
    spacing = max(min(spacing, width / _CHEAP), reach / _MANY)
    h = exact or aligned(_rounded(max(spacing, width / _MANY)), atoms)[0]
    grids = [_upper_grid(base, way, h, tail, floor) for (base, _), floor in zip(steps, floors, strict=True)]
    parts = [(grid, count) for grid, (_, count) in zip(grids, steps, strict=True)]
    return compose(parts, h, window), exact > 0.0 or width / _MANY <= _COARSE * spacing


def _floor(base: Base, way: Direction, tail: float, share: float) -> float:
    """Return a loss with about ``share`` of the P-mass below.  Raising that mass to it adds that to delta."""
    losses, logs = samples(base, way, tail)
    order = np.argsort(losses)
    below = np.cumsum(np.exp(logs[order]))
    return float(losses[order][max(int(np.searchsorted(below, share)) - 1, 0)])
