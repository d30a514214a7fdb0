"""The accountant by privacy loss distributions, which is tight, with proven upper and lower bounds.

It prices a composition by a closed form if there is one (``gaussian``, ``single``), by inversion along a
contour if it consists of Gaussians, sampled or not (``inversion``), and otherwise, if it has a dominating
pair, on the grid (``grid_price``).
Truncated samples are priced like whole ones if a sample is rarely cut (``truncated``).
"""

from __future__ import annotations

import math
from functools import lru_cache

from tacit.accounting.closed_form.gaussian import GaussianPrice
from tacit.accounting.closed_form.single import SinglePrice, is_single
from tacit.accounting.flatten import Steps, flatten, in_units_of, merged, total_mu
from tacit.accounting.pld.contour_saddle import Plain, Term
from tacit.accounting.pld.grid_price import PldPrice
from tacit.accounting.pld.inversion import ContourPrice
from tacit.accounting.pld.losses import check_loss
from tacit.accounting.pld.pairs_selection import KnownCurve, selected
from tacit.accounting.pld.saddle import FAINT, saddle_at_delta
from tacit.accounting.pld.transform import Mixture
from tacit.accounting.pld.truncated import TruncatedPrice, uncut
from tacit.accounting.price import Direction, LeastPrice, Price, directions
from tacit.accounting.scales import LEAST_NOISE
from tacit.events import Adjacency, BallsInBins, Gaussian, GaussianMixture, PoissonSampled, PrivateSelection


def _without_bins(steps: Steps) -> Steps:
    """Return ``steps`` as if the bins were known: plain Gaussians, which can only cost more."""
    return merged((base.event if isinstance(base, BallsInBins) else base, count) for base, count in steps)


def _units(steps: Steps, adjacency: Adjacency) -> Steps:
    """Return ``steps`` in units of the adjacency, with selections replaced by their curves."""
    return tuple(
        (_selected(base, adjacency) if isinstance(base, PrivateSelection) else base, count)
        for base, count in in_units_of(adjacency, steps)
    )


@lru_cache(maxsize=64)
def _selected(event: PrivateSelection, adjacency: Adjacency) -> KnownCurve:
    run = price(flatten(event.event), adjacency)
    # many deltas take one composition on the grid, which is faster than one contour each
    return selected(run.grid if isinstance(run, ContourPrice) else run, event)


def price(steps: Steps, adjacency: Adjacency) -> Price:
    """Price any composition of mechanisms that have a dominating pair.

    Gaussians without sampling, and Gaussian or Laplace noise performed once, have closed forms.

    **Guarantee**

    * ``epsilon`` and ``delta`` are upper bounds: connect-the-dots on the grid, with allowances for rounding,
      aliasing, cut tails and quadrature.
    * The lower ends of ``epsilon_bounds`` and ``delta_bounds`` are lower bounds for the dominating pair.
    * Under add-remove and zero-out both directions are composed, and the larger price counts.
    * The best of several runs is priced from the curve of one run: an upper bound, not a dominating pair.
    * Mechanisms without a proven dominating pair are refused by name.
    """
    units = _units(steps, adjacency)
    result = _priced(units, adjacency)
    if any(isinstance(base, BallsInBins) for base, _ in units):
        return LeastPrice({"pld": result, "without bins": price(_without_bins(steps), adjacency)})
    return result


def _priced(units: Steps, adjacency: Adjacency) -> Price:
    """Price ``units`` (steps in units of the adjacency), without the bound for known bins."""
    mu = total_mu(units)
    rest: Steps = tuple((base, count) for base, count in units if not isinstance(base, Gaussian))
    if not rest:
        return GaussianPrice(mu)
    once = mu == 0.0 and sum(count for _, count in rest) == 1  # the slowest case of the contour integral
    if once and is_single(rest[0][0], adjacency):
        return SinglePrice(rest[0][0], adjacency)
    whole: Steps = ((Gaussian(1.0 / mu), 1), *rest) if mu > 0.0 else rest
    grid = PldPrice(whole, directions(adjacency))
    ways = {way: contour_terms(whole, way) for way in directions(adjacency)}
    if not once and all(terms is not None for terms in ways.values()):
        counts = ((mu * mu,) if mu > 0.0 else ()) + tuple(float(count) for _, count in rest)
        return ContourPrice({way: terms for way, terms in ways.items() if terms}, counts, grid)
    for way in ways:
        for base, _ in whole:
            check_loss(base, way, FAINT)
    poisson = uncut(whole)
    return grid if poisson == whole else TruncatedPrice(whole, _priced(poisson, adjacency), grid)


def contour_terms(steps: Steps, way: Direction) -> tuple[Term, ...] | None:
    """Return ``steps`` as terms for the inversion along a contour; None if one of them is not supported."""
    terms: list[Term] = []
    for base, _ in steps:
        match base:
            case Gaussian(sigma) if sigma >= LEAST_NOISE:
                terms.append(Plain())
            case PoissonSampled(rate, Gaussian(sigma)) if sigma >= LEAST_NOISE:
                terms.append(Mixture.poisson(rate, sigma, way))
            case GaussianMixture() if (mixture := Mixture.of(base, way)) is not None:
                terms.append(mixture)
            case _:
                return None
    return tuple(terms)


def estimate(steps: Steps, adjacency: Adjacency, delta: float) -> float:
    """Estimate epsilon by the saddle point alone, within a few percent, in a millisecond.  Not a bound."""
    units = _units(steps, adjacency)

    def one(way: Direction) -> float:
        infinite = PldPrice(units, (way,)).infinite(way)
        return saddle_at_delta(units, way, delta - infinite).epsilon if infinite < delta else math.inf

    return max(0.0, *(one(way) for way in directions(adjacency))) if units else 0.0
