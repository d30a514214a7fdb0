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
from numpy.typing import ArrayLike, NDArray
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
_HARMS = {"error": "the error", "found": "the share found"}

Bounds = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class _Figure:
    """X and N as functions of the sums; by default N counts the records.

    ``most`` is (a, b) if a record's variance is at most a + b e, for e the rate of errors, and X / N is in
    [-1, 1]; None if the variance is at most g (1 - g), and X / N is in [0, 1].
    """

    name: str
    above: tuple[float, ...]
    most: tuple[float, float] | None = None
    below: tuple[float, ...] = ()

    @property
    def functions(self) -> tuple[Array, Array]:
        """The coefficients x and w, (D,)."""
        return np.array(self.above), np.array(self.below or [1.0] * (len(self.above) - 1) + [0.0])


_OF_TWO = (
    _Figure("error", (0, 1, 1, 0, 0)),
    _Figure("calibration", (0.5, 0.5, -0.5, -0.5, 1), (0.25, 0.75)),
    _Figure("found", (0, 0, 1, 0, 0), below=(0, 0, 1, 1, 0)),  # computed as the share that is not found
)
_OF_SEVERAL = _Figure("error", (1, 0, 0)), _Figure("calibration", (0.5, -0.5, 1), (1, 0))
_OF_NUMBERS = _Figure("error", (1, 0, 0)), _Figure("calibration", (0, 0, 1), (0, 0.25))


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
        return np.array([float((rows @ figure.functions[1]).sum()) for rows in self.rows])

    def hidden(self, figure: _Figure) -> list[int]:
        """Return the groups of which an exact figure would tell something about fewer than 20 records."""
        return [] if self.noise else _too_small(self.counts(figure))

    def figure(self, figure: _Figure, group: int, level: float, error: float = 1.0) -> list[float]:
        """Return a figure of a group and its interval; NaN and the whole range if noise drowns it.

        ``error`` is the largest rate of errors.
        """
        (x, w), z = figure.functions, float(ndtri((1.0 + level) / 2.0))
        each, below = self.rows[group] @ x, self.counts(figure)[group]
        above, v, ends = each.sum(), [-1.0, 1.0, 0.0], (0.0 if figure.most is None else -1.0, 1.0)
        if not self.noise and len(each) > 1 and not np.isin(each, (0.0, 1.0)).all():
            v = [0.0, 0.0, each.var(ddof=1)]
        elif figure.most is not None:
            v = [0.0, 0.0, figure.most[0] + figure.most[1] * error]
        variance = self.noise**2 * np.array([w @ w, -2.0 * x @ w, x @ x]) + below * np.array(v)
        a, b, c = np.array([below**2, -2.0 * above * below, above**2]) - z**2 * variance
        if below < FEWEST or a <= 0.0:
            return [math.nan, *ends]
        reach, middle = math.sqrt(max(b**2 - 4.0 * a * c, 0.0)) / (2.0 * a), -b / (2.0 * a)
        found: list[float] = np.clip([above / below, middle - reach, middle + reach], *ends).tolist()
        return found

    def of_better(self, figure: _Figure, group: int, level: float) -> float:
        """Return a figure of all other groups if it is surely and clearly better than the group's, else NaN.

        Surely: the interval of the difference excludes 0 (Zou & Donner 2008, as in mean_of_shares).
        """
        if len(self.rows) < 2:
            return math.nan
        own, low, _ = self.figure(figure, group, level)
        rest, _, high = self.others(group).figure(figure, 0, level)
        surely = own - rest > math.hypot(own - low, high - rest)
        return rest if surely and own >= _WORSE * rest else math.nan


def by_group(
    truth: ArrayLike,
    predicted: ArrayLike,
    groups: Mapping[str, ArrayLike],
    *,
    target_bounds: tuple[float, float] | None = None,
    plain: ArrayLike | None = None,
) -> dict[str, Any]:
    """Compare the exact figures of groups of test records: error, calibration and the rate found.

    They are not private: take test records that no budget protects.  A group of fewer than 20 records is
    merged with the next larger one, because its figures are total minus the others.  A figure of fewer than
    20 records, such as the rate found among few positives, is None, and so is one more for the same reason.

    Args:
        truth: the class of each record, (n,), as a number 0, ..., k - 1; or a number.
        predicted: probabilities (n, k), as ``predict_proba`` returns them; or numbers (n,).
        groups: for each column, the group of each record, (n,): texts, whole numbers or booleans.
        target_bounds: for numbers, the declared (low, high) of the target.  Others are moved to the nearest.
        plain: the predictions of the same model without DP, to compare both in the smallest group.

    Returns:
        ``by_group``, a list with the figures of each column, as in evaluation.json, and ``sentences``, one
        for each way in which a group is served worse.

    Raises:
        InvalidInput: if lengths differ, a group is missing or a float, or numbers have no bounds.

    >>> truth, found = np.arange(200) % 2, np.tile([[0.8, 0.2], [0.4, 0.6]], (100, 1))
    >>> figures = by_group(truth, found, {"site": np.repeat(["a", "b", "c"], [97, 100, 3])})
    >>> [(one["group"], one["error"]) for one in figures["by_group"][0]["groups"]]
    [('b', 0.0), ('c or a', 0.0)]
    """
    bounds = () if target_bounds is None else (target_bounds,)
    models = [_rows(truth, one, bounds) for one in (predicted, plain) if one is not None]
    columns = {by: _groups(by, np.asarray(column), len(models[0])) for by, column in groups.items()}
    found, *others = (_exact(rows, columns, bounds) for rows in models)
    for one, other in zip(found, *others, strict=True) if others else ():
        for row, beside in zip(one["groups"], other["groups"], strict=True):
            row["without_dp"] = {key: beside[key] for key in _HARMS if key in row}
    return {"by_group": found, "sentences": [*sentences(found)]}


def _groups(by: str, cells: NDArray[Any], count: int) -> tuple[list[str], NDArray[np.int64]]:
    if cells.shape != (count,) or any(isinstance(cell, float | None) for cell in cells.tolist()):
        raise InvalidInput(
            f"groups[{by!r}] must have one text, whole number or boolean for each of {count} records; got "
            f"{cells.dtype} of shape {cells.shape}. Cut other numbers into declared bands."
        )
    names, numbers = np.unique(cells.astype(str), return_inverse=True)
    return names.tolist(), numbers


def _rows(truth: ArrayLike, predicted: ArrayLike, bounds: Bounds) -> Array:
    """Return the tallies (n, D) of predictions."""
    outputs, targets = np.asarray(predicted, dtype=np.float64), np.asarray(truth)
    classes = range(outputs.shape[-1]) if outputs.ndim == 2 else ()
    strange = bool(classes) and not np.isin(targets, classes).all()
    if outputs.shape[:1] != targets.shape or bool(classes) == bool(bounds) or strange:
        raise InvalidInput(
            f"truth {targets.shape} and predicted {outputs.shape} do not fit: give class numbers 0, ..., "
            "k - 1 and probabilities (n, k), or two arrays (n,) of numbers and their target_bounds."
        )
    for low, high in bounds:
        middle, half = (low + high) / 2.0, (high - low) / 2.0
        return _tallied((outputs - middle) / half, (targets - middle) / half)
    return _tallied(np.log(outputs.clip(1e-300)), targets.astype(np.int64))


def _tallied(outputs: NDArray[Any], truth: NDArray[Any]) -> Array:
    found: Array = tallies(torch.from_numpy(outputs), torch.from_numpy(truth)).numpy()
    return found


def _too_small(counts: Array) -> list[int]:
    """Return the groups of fewer than 20 records, and the next larger ones until they have 20 together."""
    order = np.argsort(counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    few: list[int] = order[(counts[order] < FEWEST) | ((before > 0.0) & (before < FEWEST))].tolist()
    return few


def _exact(rows: Array, groups: Groups, bounds: Bounds) -> list[dict[str, Any]]:
    """Return the figures of each column, in which small groups are one group."""
    found = []
    for by, (names, numbers) in groups.items():
        few = _too_small(np.bincount(numbers, minlength=len(names)))
        sets = [[group] for group in range(len(names)) if group not in few] + [few] * bool(few)
        merged = [" or ".join(names[group] for group in one) for one in sets]
        found.append(of_column(by, merged, Parts([rows[np.isin(numbers, one)] for one in sets]), bounds))
    return found


def evaluated_groups(evaluation: Evaluation, groups: Groups, bounds: Bounds) -> list[dict[str, Any]]:
    """Return the figures of each column: noisy ones of a noisy evaluation, else exact ones.

    **Guarantee**

    * The figures of a noisy evaluation are computed from its sums alone, without the records.
    """
    if evaluation.answers is not None:
        return _exact(_tallied(evaluation.answers.outputs, evaluation.answers.truth), groups, bounds)
    return [
        of_column(one["by"], one["names"], Parts(np.array(one["sums"])[:, None], one["noise"]), bounds)
        for one in evaluation.groups
    ]


def of_column(by: str, names: Sequence[str], parts: Parts, bounds: Bounds) -> dict[str, Any]:
    """Return the figures of the groups of a column, and where a group is served worse than all others."""
    several = parts.rows[0].shape[1] < len(_OF_TWO[0].above)
    figures = _OF_NUMBERS if bounds else _OF_SEVERAL if several else _OF_TWO
    strict = 1.0 - 2.0 * (1.0 - _CONFIDENCE) / (len(names) * sum(one.name in _HARMS for one in figures))
    groups: list[dict[str, Any]] = [{"group": name, "records": None, "worse_than": {}} for name in names]
    errors = [1.0] * len(names)
    for figure in figures:
        hidden = parts.hidden(figure)
        for group, row in enumerate(groups):
            row[figure.name] = row[f"{figure.name}_interval"] = None
            if group in hidden:
                continue
            value, *ends = parts.figure(figure, group, _CONFIDENCE, errors[group])
            row[figure.name] = finite(_in_units(figure, value, bounds))
            row[f"{figure.name}_interval"] = sorted(_in_units(figure, end, bounds) for end in ends)
            if figure.name == "error":
                errors[group], row["records"] = ends[1], round(max(0.0, parts.counts(figure)[group]))
            others = parts.of_better(figure, group, strict) if figure.name in _HARMS else math.nan
            if not math.isnan(others):
                row["worse_than"][figure.name] = _in_units(figure, others, bounds)
    return {"by": by, "noise": parts.noise or None, "groups": groups}


def _in_units(figure: _Figure, value: float, bounds: Bounds) -> float:
    """Convert a figure of numbers to the target's units: the root of the mean squared error, or the bias."""
    if not bounds:
        return 1.0 - value if figure.name == "found" else value
    width = bounds[0][1] - bounds[0][0]
    return width * (math.sqrt(value) if figure.name == "error" else 2.0 * value)


def sentences(columns: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield sentences on groups that are served worse, and on the privacy cost for the smallest group."""
    rows = [(f'{one["by"]} "{row["group"]}"', row) for one in columns for row in one["groups"]]
    for key, words in _HARMS.items():
        worse = [(name, row[key], row["worse_than"][key]) for name, row in rows if key in row["worse_than"]]
        if worse:
            named = ", ".join(f"{name} ({own:.3g}, against {others:.3g})" for name, own, others in worse)
            yield f"Served worse than all others, by {words}: {named}."
    pairs = [(row["records"], name, row) for name, row in rows if row.get("without_dp", {}).get("error")]
    if pairs:
        _, name, row = min(pairs, key=lambda one: one[:2])
        own, plain = row["error"], row["without_dp"]["error"]
        yield f"In the smallest group, {name}, the error is {own:.3g}, and without DP {plain:.3g}."
