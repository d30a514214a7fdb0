"""Error, calibration and the rate found by group, from test records or from their noisy sums.

Letters: n records; G groups; D sums of a group.
"""

# Every figure is a ratio X / N of two linear functions of the sums S of tacit.training.evaluation.tallies,
# X = x . S and N = w . S.  If the ratio of the population is g, then X - g N has mean 0, and its variance is
# the sum of
#
# * noise^2 |x - g w|^2, for noise on each sum, and
# * N v(g), for v(g) the variance of one record: g (1 - g) for a share, a constant for other means.
#
# The interval has all g with (X - g N)^2 <= z^2 variance, for z a normal quantile: a quadratic inequality
# (Fieller 1954).  Without noise it is Wilson's interval of a share (1927).  It is for the population, if
# records are independent.
#
# **Guarantee** (exact figures)
#
# * No figure is of fewer than 20 records, and no total of a column minus its other figures is.

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri

from tacit.errors import InvalidInput
from tacit.rounding import finite
from tacit.training.evaluation import Evaluation, tallies
from tacit.training.scoring import Groups

Array = NDArray[np.float64]

_CONFIDENCE = 0.95
FEWEST = 20
"""The fewest records of a figure."""
_WORSE = 1.1  # times the others' rate of errors, from which on a group is served worse
_HARMS = ("error", "found")  # figures in which a group can be served worse

Bounds = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class _Figure:
    """The coefficients of X and N as functions of the sums.

    ``most`` is (a, b) if a record's variance is at most a + b e, for e the rate of errors, and X / N is in
    [-1, 1]; None if the variance is at most g (1 - g), and X / N is in [0, 1].
    """

    name: str
    above: tuple[float, ...]
    below: tuple[float, ...]
    most: tuple[float, float] | None = None


_FIVE, _THREE = (1, 1, 1, 1, 0), (1, 1, 0)
_ERROR = _Figure("error", (1, 0, 0), _THREE)
_OF_TWO = (
    _Figure("error", (0, 1, 1, 0, 0), _FIVE),
    _Figure("calibration", (0.5, 0.5, -0.5, -0.5, 1), _FIVE, (0.25, 0.75)),
    _Figure("found", (0, 0, 1, 0, 0), (0, 0, 1, 1, 0)),  # computed as the share that is not found
)
_OF_SEVERAL = _ERROR, _Figure("calibration", (0.5, -0.5, 1), _THREE, (1, 0))
_OF_NUMBERS = _ERROR, _Figure("calibration", (0, 0, 1), _THREE, (0, 0.25))


@dataclass(frozen=True)
class Parts:
    """The tallies (n, D) of the records of each group; with ``noise`` on their sums, only the sums (1, D)."""

    rows: Sequence[Array]
    noise: float = 0.0

    def others(self, group: int) -> Parts:
        """Return all other groups as one group."""
        rest = [rows for number, rows in enumerate(self.rows) if number != group]
        return Parts([np.concatenate(rest)], self.noise * math.sqrt(len(rest)))

    def counts(self, figure: _Figure) -> Array:
        """Return N for each group, (G,)."""
        return np.array([(rows @ figure.below).sum() for rows in self.rows])

    def figure(self, figure: _Figure, group: int, level: float, error: float = 1.0) -> list[float]:
        """Return a figure of a group and its interval; NaN and the whole range if noise drowns it.

        ``error`` is the largest rate of errors.
        """
        z = float(ndtri((1.0 + level) / 2.0))
        ends = (0.0 if figure.most is None else -1.0, 1.0)
        lines = np.array([figure.above, figure.below])
        each = self.rows[group] @ figure.above
        sums = self.rows[group].sum(0) @ lines.T

        # The variance of one record; all matrices here are of quadratic forms in (1, -g).
        spread: Any = [[0.0, -0.5], [-0.5, -1.0]]
        if not self.noise and len(each) > 1 and not np.isin(each, (0.0, 1.0)).all():
            spread = [[each.var(ddof=1), 0.0], [0.0, 0.0]]
        elif figure.most is not None:
            spread = [[figure.most[0] + figure.most[1] * error, 0.0], [0.0, 0.0]]

        # a g^2 - 2 b g + c <= 0 for all g of the interval.
        variance = self.noise**2 * lines @ lines.T + sums[1] * np.array(spread)
        (c, b), (_, a) = np.outer(sums, sums) - z**2 * variance
        if sums[1] < FEWEST or a <= 0.0:
            return [math.nan, *ends]
        reach = math.sqrt(max(b**2 - a * c, 0.0))
        return [*map(float, np.clip([sums[0] / sums[1], (b - reach) / a, (b + reach) / a], *ends))]

    def of_better(self, figure: _Figure, group: int, level: float) -> float:
        """Return a figure of all other groups if it is surely and clearly better than the group's, else NaN.

        Surely: the interval of the difference excludes 0 (Zou & Donner 2008, as in mean_of_shares).
        """
        if len(self.rows) < 2 or figure.name not in _HARMS:
            return math.nan
        own, low, _ = self.figure(figure, group, level)
        rest, _, high = self.others(group).figure(figure, 0, level)
        surely = own - rest > math.hypot(own - low, high - rest)
        return rest if surely and own >= _WORSE * rest else math.nan


def by_group(
    evaluation: Evaluation, groups: Groups, *, target_bounds: Bounds = (), plain: Evaluation | None = None
) -> dict[str, Any]:
    """Compare groups of test records: error, calibration and share of positives found, with 95 % intervals.

    For a noisy evaluation, the figures are computed from its released noisy sums.

    For an exact evaluation, the figures are not private, so take test records that no budget protects.
    Figures about fewer than 20 records are hidden: a small group is merged with the next larger one, and a
    figure such as the share found of few positives is None.  This figure of the next larger group is then
    None too, because anyone could compute the hidden one from it and the total.

    Args:
        evaluation: the result of :func:`evaluate` for classes or one number, or of :func:`score_held_out`.
        groups: ``{column: (names, numbers)}``: for each column, the names of its groups, and the number of
            each record's group, (n,).  :meth:`tacit.columns.Encoder.groups` and
            ``np.unique(labels, return_inverse=True)`` return such pairs.
        target_bounds: for numbers, the declared (low, high) of the target, as for :func:`evaluate`.
        plain: an exact evaluation of the same model trained without DP, for comparison.

    Returns:
        A dictionary.  ``by_group`` is a list with the figures of each column, as in evaluation.json.
            ``sentences`` describes the groups that the model serves worse.

    Raises:
        InvalidInput: if the evaluation has other targets, a group's name is a float, or the ``numbers`` are
            not one per record.

    >>> from tacit.training import evaluate
    >>> model, site = torch.nn.Linear(1, 2), np.repeat(["a", "b", "c"], [97, 100, 3])
    >>> _ = torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)  # predicts class 0
    >>> found = evaluate(model, torch.zeros(200, 1), torch.arange(200) % 2)  # half are class 1
    >>> figures = by_group(found, {"site": np.unique(site, return_inverse=True)})
    >>> [(one["group"], one["error"]) for one in figures["by_group"][0]["groups"]]
    [('b', 0.5), ('a or c', 0.5)]
    """
    found = [*_columns(evaluation, groups, target_bounds)]
    if plain is not None:
        for one, other in zip(found, _columns(plain, groups, target_bounds), strict=True):
            for row, beside in zip(one["groups"], other["groups"], strict=True):
                row["without_dp"] = {key: beside[key] for key in _HARMS if key in row}
    return {"by_group": found, "sentences": [*_sentences(found)]}


def _columns(evaluation: Evaluation, groups: Groups, bounds: Bounds) -> Iterator[dict[str, Any]]:
    for one in evaluation.groups:
        parts = Parts([*np.array(one["sums"])[:, None]], one["noise"])
        yield of_column(one["by"], one["names"], parts, bounds)
    answers = evaluation.answers
    if evaluation.groups:
        return
    if answers is None or evaluation.measure not in ("accuracy", "R²"):
        raise InvalidInput("groups are only for models that predict classes or one number. Leave groups out.")
    rows = tallies(torch.from_numpy(answers.outputs), torch.from_numpy(answers.truth)).numpy()
    for by, (names, numbers) in groups.items():
        if len(numbers) != len(rows) or any(isinstance(name, float) for name in names):
            raise InvalidInput(
                f"groups[{by!r}] must give each of {len(rows)} records one named group; got {len(numbers)}, "
                "or floats as names. Cut floats into declared bands first."
            )
        few = _too_small(np.bincount(numbers, minlength=len(names)))
        sets = [[group] for group in range(len(names)) if group not in few] + [few] * bool(few)
        merged = [" or ".join(str(names[group]) for group in sorted(one)) for one in sets]
        yield of_column(by, merged, Parts([rows[np.isin(numbers, one)] for one in sets]), bounds)


def _too_small(counts: NDArray[Any]) -> list[int]:
    """Return the groups of fewer than 20 records, and the next larger ones until they have 20 together."""
    order = np.argsort(counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    few: list[int] = order[(counts[order] < FEWEST) | ((before > 0.0) & (before < FEWEST))].tolist()
    return few


def of_column(by: str, names: Sequence[str], parts: Parts, bounds: Bounds) -> dict[str, Any]:
    """Return the figures of the groups of a column, and where a group is served worse than all others."""
    figures = _OF_NUMBERS if bounds else _OF_TWO if parts.rows[0].shape[1] == len(_FIVE) else _OF_SEVERAL
    strict = 1.0 - 2.0 * (1.0 - _CONFIDENCE) / (len(names) * sum(one.name in _HARMS for one in figures))
    groups: list[dict[str, Any]] = [{"group": name, "records": None, "worse_than": {}} for name in names]
    errors = [1.0] * len(names)
    for figure in figures:
        counts = parts.counts(figure)
        hidden = [] if parts.noise else _too_small(counts)
        for group, row in enumerate(groups):
            row[figure.name] = row[f"{figure.name}_interval"] = None
            if group in hidden:
                continue
            found = parts.figure(figure, group, _CONFIDENCE, errors[group])
            if figure.name == "error":
                errors[group] = found[2]
                row["records"] = round(max(0.0, counts[group]))
            value, *ends = (_in_units(figure, one, bounds) for one in found)
            row[figure.name] = finite(value)
            row[f"{figure.name}_interval"] = sorted(ends)
            others = parts.of_better(figure, group, strict)
            if not math.isnan(others):
                row["worse_than"][figure.name] = _in_units(figure, others, bounds)
    return {"by": by, "noise": parts.noise or None, "groups": groups}


def _in_units(figure: _Figure, value: float, bounds: Bounds) -> float:
    """Convert a figure of numbers to the target's units: the root of the mean squared error, or the bias."""
    if not bounds:
        return 1.0 - value if figure.name == "found" else value
    width = bounds[0][1] - bounds[0][0]
    return width * (math.sqrt(value) if figure.name == "error" else 2.0 * value)


def _sentences(columns: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield sentences on groups that are served worse, and on the privacy cost for the smallest group."""
    rows = [(f'{one["by"]} "{row["group"]}"', row) for one in columns for row in one["groups"]]
    for name, row in rows:
        for key, others in row["worse_than"].items():
            yield f"The group {name} is served worse: {key} {row[key]:.3g}, against {others:.3g} elsewhere."
    pairs = [(row["records"], name, row) for name, row in rows if row.get("without_dp", {}).get("error")]
    for _, name, row in sorted(pairs, key=lambda one: one[:2])[:1]:
        own, plain = row["error"], row["without_dp"]["error"]
        yield f"In the smallest group, {name}, the error is {own:.3g}, and without DP {plain:.3g}."
