"""How is a quantile released? The exponential mechanism chooses a public candidate by the error of its rank.

A value counts as the candidate that is nearest to it.  Were it counted between two of them, no candidate
would be at the median of a column of equal values, and all would have the same loss.
For a candidate c let L, E and R be the numbers of values below it, equal to it and above it, n = L + E + R.
With q = a / d its loss is d times the distance of the rank q n from the ranks L to L + E,

    max(0,  (d - a) L - a (R + E),  a R - (d - a) (L + E)),                                              (1)

which one value changes by at most max(d - a, a) when it is added or removed, and by d when it is replaced:
each of the terms does.  Values that equal a candidate are on neither side: however many they are, a candidate
in the middle of them has the loss 0.

The largest value belongs to one person, so the maximum aims at rank t from the top, as near as the noise
permits: t is the distance that it misses by at most in 95 of 100 cases.  Its loss is the distance of t from
the ranks R to R + E, counted from the top; likewise for the minimum.

A candidate is drawn with probability proportional to exp(-epsilon loss / (2 Delta)) (McSherry & Talwar 2007),
exactly: a uniform candidate is kept with that probability, by coins that are comparisons of integers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tacit.errors import InvalidInput
from tacit.events import Adjacency
from tacit.ledger.policy import Policy
from tacit.queries.measures import Bins, Grid, Regular, in_units
from tacit.queries.query import Quantile

_MOST_CANDIDATES = 1024
_MISSED = 0.05


@dataclass(frozen=True)
class Choice:
    """A quantile's candidates and losses.

    Attributes:
        values: the candidates, rising.
        below, above: what a value below, and above, adds to the signed loss, d - a and a, from which
            ``shift`` is subtracted.
        sensitivity: Delta, of the losses of all groups together, to one unit under the policy's adjacency.
        epsilon: of the choice in all groups together.
    """

    values: tuple[float, ...]
    below: int
    above: int
    shift: int
    sensitivity: int
    epsilon: Fraction

    def losses(self, counts: Sequence[int]) -> list[int]:
        """The loss of each candidate, from the numbers of values that count as it."""
        if len(counts) != len(self.values):
            raise InvalidInput(f"{len(self.values)} candidates are counted; got {len(counts)}.")
        whole, below, losses = sum(counts), 0, []
        for equal in counts:
            above = whole - below - equal
            least = self.below * below - self.above * (above + equal) - self.shift
            most = self.below * (below + equal) - self.above * above - self.shift
            losses.append(max(0, least, -most))
            below += equal
        return losses

    @property
    def rate(self) -> Fraction:
        """A candidate's weight is exp(-rate loss)."""
        return self.epsilon / (2 * self.sensitivity)

    @property
    def rank_error(self) -> int:
        """The largest error of the answer's rank, in rows, in 95 % of all answers.

        P[loss >= least + x] <= m exp(-epsilon x / (2 Delta)) for m candidates.  The loss is d times the error
        of the rank, and that of the best candidate is 0.  For an extreme the error is R; of more than t
        values, R - t is at most the loss, and that of the best is 0; of fewer, R < t.
        """
        kept = _reach(self.sensitivity, self.epsilon, len(self.values)) - 1
        return math.ceil(kept / (self.below + self.above)) + abs(self.shift)


def _reach(sensitivity: int, epsilon: Fraction, candidates: int) -> int:
    """The smallest x with m exp(-epsilon x / (2 Delta)) <= 0.05."""
    return math.ceil(2 * sensitivity / float(epsilon) * math.log(candidates / _MISSED))


def bins_of(item: Quantile, policy: Policy) -> Bins | Regular:
    """The candidate that a value counts as: one of those given, or of a regular grid within the bounds."""
    if item.candidates is not None:
        if len(item.candidates) > _MOST_CANDIDATES + 1:
            raise InvalidInput(
                f"a quantile chooses among at most {_MOST_CANDIDATES + 1} candidates; got "
                f"{len(item.candidates)}."
            )
        candidates = map(float, item.candidates)
        edges = tuple(low / 2 + high / 2 for low, high in itertools.pairwise(candidates))
        return Bins(item.column, edges, (False,) * len(edges))
    grid = Grid.of(item.column, policy.columns[item.column])
    return Regular(item.column, grid, -(-(grid.high - grid.low) // _MOST_CANDIDATES))


def choice_of(item: Quantile, policy: Policy, epsilon: Fraction, *, groups: bool) -> Choice:
    """The choice for a quantile under a policy; ``groups`` says that the query has ``by`` columns."""
    values = _candidates(item, bins_of(item, policy))
    q = Fraction(repr(item.q))
    extreme = q in (0, 1)
    below, above = (int(1 - q), int(q)) if extreme else (q.denominator - q.numerator, q.numerator)
    one = policy.rows_per_unit * max(below, above)
    exchanged = 2 * one if groups else policy.rows_per_unit * (below + above)
    sensitivity = exchanged if policy.relation is Adjacency.REPLACE_ONE else one
    shift = _reach(sensitivity, epsilon, len(values)) if extreme else 0
    return Choice(values, below, above, -shift if q == 1 else shift, sensitivity, epsilon)


def _candidates(item: Quantile, measure: Bins | Regular) -> tuple[float, ...]:
    if isinstance(measure, Bins):
        return tuple(map(float, item.candidates or ()))
    grid = measure.grid
    cells = range(grid.low, grid.high + 1, measure.stride)
    return tuple(min(max(float(in_units(grid, cell)), grid.lower), grid.upper) for cell in cells)
