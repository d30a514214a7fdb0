"""Answers: values with their intervals, the cost, and the remaining budget."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tacit.errors import InvalidInput
from tacit.notebook import grid
from tacit.queries.estimate import LEVEL, Estimate, Reading, estimate
from tacit.queries.noise import Noisy
from tacit.queries.plan import Compiled, Key, Release
from tacit.queries.query import Mean, StandardDeviation, Variance


@dataclass(frozen=True)
class AnswerRow:
    """A group of an answer: its keys, and one estimate per aggregate (for a histogram, one per bin).

    >>> AnswerRow(("east",), (Estimate(12, 8, 16),)).keys
    ('east',)
    """

    keys: Key
    values: tuple[Estimate | tuple[Estimate, ...], ...]

    def to_data(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {"keys": list(self.keys), "values": list(map(_data, self.values))}


@dataclass(frozen=True)
class Answer:
    """A private answer.

    Attributes:
        by: the columns that make the groups.
        columns: the names of the aggregates.
        rows: one row per group, in the policy's order of keys; sorted by key if a threshold finds the groups.
        mechanism: how the answer was computed from the data, one line per release.
        edges: for each aggregate, the bin edges if it is a histogram, else an empty tuple.
        charge: the key of the charge in the ledger.
        epsilon, delta: the cost of this answer alone.
        remaining: the largest epsilon that one more release may cost now.
        repeated: whether the question was asked before. If so, this answer comes from the ledger and costs
            nothing.
        threshold: the noisy number of units below which groups are left out; None if groups are declared.
        unit: the policy's word for a unit, such as ``patient``.

    >>> row = AnswerRow(("east",), (Estimate(12, 8, 16),))
    >>> answer = Answer(("ward",), ("count",), (row,), (), ((),), "key", 0.5, 0.0, 0.5, repeated=False)
    >>> print(answer.to_text())
    ward  count
    east  12 (8 to 16)
    Each interval contains the answer without noise in 95 % of all answers.
    Cost: epsilon 0.5. Left: epsilon 0.5.
    """

    by: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[AnswerRow, ...]
    mechanism: tuple[str, ...]
    edges: tuple[tuple[float, ...], ...]
    charge: str
    epsilon: float
    delta: float
    remaining: float
    repeated: bool
    threshold: int | None = None
    unit: str = "row"

    def value(self, column: str | None = None, keys: Key = ()) -> Any:
        """Return the value of an aggregate (by default the only one) in one group; for a histogram, a tuple.

        Raises:
            InvalidInput: if there is no such aggregate or group.
        """
        result = self.estimate(column, keys)
        return tuple(item.value for item in result) if isinstance(result, tuple) else result.value

    def estimate(self, column: str | None = None, keys: Key = ()) -> Estimate | tuple[Estimate, ...]:
        """Return the value of an aggregate with its interval; arguments and errors as for :meth:`value`."""
        exists = column in self.columns if column is not None else len(self.columns) == 1
        if not exists:
            raise InvalidInput(f"column must be one of {', '.join(self.columns)}; got {column!r}.")
        place = 0 if column is None else self.columns.index(column)
        for row in self.rows:
            if row.keys == tuple(keys):
                return row.values[place]
        raise InvalidInput(f"the answer has no group {keys!r}.")

    def to_data(self) -> dict[str, Any]:
        """Return the answer as plain data: the content of :meth:`to_json`."""
        data = {
            name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()
        }
        data |= {
            "level": LEVEL,
            "rows": [row.to_data() for row in self.rows],
            "edges": [*map(list, self.edges)],
        }
        data["remaining_epsilon"] = data.pop("remaining")
        del data["unit"]
        return data

    def to_json(self) -> str:
        """Return the answer as JSON."""
        return json.dumps(self.to_data(), allow_nan=False)

    def cells(self) -> Iterator[tuple[str, ...]]:
        """Yield the printed table: the column names, then one row per group, or per group and bin."""
        binned = [edges for edges in self.edges if edges]
        yield (*self.by, *(("bin",) if binned else ()), *self.columns)
        for row in self.rows:
            keys = tuple(map(str, row.keys))
            if not binned:
                yield (*keys, *(_cell(item) for item in row.values if isinstance(item, Estimate)))
                continue
            yield from self._binned(row, keys)

    def _binned(self, row: AnswerRow, keys: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for place, (item, edges) in enumerate(zip(row.values, self.edges, strict=True)):
            for number, part in enumerate(_parts(item)):
                cells = [""] * len(self.columns)
                cells[place] = _cell(part)
                yield (*keys, _bin(edges, number), *cells)

    def notes(self) -> tuple[str, ...]:
        """Return notes on intervals, ranks and hidden groups, then one on cost and remaining budget."""
        parts = [part for row in self.rows for item in row.values for part in _parts(item)]
        level = f"{LEVEL:.0%}".replace("%", " %")
        lines = []
        if any(part.low is not None for part in parts):
            lines.append(f"Each interval contains the answer without noise in {level} of all answers.")
        if any(part.rank_error is not None for part in parts):
            lines.append(
                f"Rank ± n: in {level} of all answers the value is at most n rows from the requested rank. "
                "Each row counts as its nearest candidate."
            )
        if self.threshold is not None:
            below = f"below {self.threshold}"
            lines.append(f"Groups whose noisy number of units ({self.unit}) is {below} are not shown.")
        cost = f"epsilon {self.epsilon:.6g}" + (f", delta {self.delta:.3g}" if self.delta else "")
        paid = (
            f"Asked before: answered from the ledger at no cost (then {cost})."
            if self.repeated
            else f"Cost: {cost}."
        )
        return (*lines, f"{paid} Left: epsilon {self.remaining:.6g}.")

    def to_text(self) -> str:
        """Return the table and its notes as plain text."""
        table = list(self.cells())
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table
        ]
        return "\n".join([*(line.rstrip() for line in lines), *self.notes()])

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        return grid("", head, body, self.notes())

    def __str__(self) -> str:
        return self.to_text()


def _parts(item: Estimate | tuple[Estimate, ...]) -> tuple[Estimate, ...]:
    return item if isinstance(item, tuple) else (item,)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _cell(item: Estimate) -> str:
    if item.low is not None and item.high is not None:
        return f"{_number(item.value)} ({_number(item.low)} to {_number(item.high)})"
    if item.rank_error is not None:
        return f"{_number(item.value)} (rank ± {item.rank_error:,})"
    return _number(item.value)


def _bin(edges: tuple[float, ...], number: int) -> str:
    if not edges:
        return ""
    closing = "]" if number == len(edges) - 2 else ")"
    return f"[{_number(edges[number])}, {_number(edges[number + 1])}{closing}"


# --- to and from the ledger ------------------------------------------------------------------------------


def content_of(compiled: Compiled, noisy: Noisy) -> dict[str, Any]:
    """Return the part of an answer that the ledger stores: all that depends on the data and the noise."""
    query, rows = compiled.query, []
    for place, keys in enumerate(noisy.groups):
        reading = Reading(compiled, {release: values[place] for release, values in noisy.values.items()})
        rows.append(AnswerRow(keys, tuple(estimate(item, reading) for item in query.aggregates)))
    return {
        "by": list(query.by),
        "columns": list(query.output_names),
        "rows": [row.to_data() for row in rows],
        "level": LEVEL,
        "mechanism": list(describe(compiled)),
        "edges": [list(getattr(item, "edges", ())) for item in query.aggregates],
        "threshold": None if compiled.threshold is None else compiled.threshold.value,
    }


def read_content(
    data: Mapping[str, Any],
    compiled: Compiled,
    *,
    charge: str,
    epsilon: float,
    delta: float,
    remaining: float,
    repeated: bool,
) -> Answer:
    """Return the answer with the content that the ledger stores, and the present query's column names."""
    rows = (AnswerRow(tuple(row["keys"]), tuple(map(_estimate, row["values"]))) for row in data["rows"])
    return Answer(
        by=tuple(data["by"]),
        columns=compiled.query.output_names,
        rows=tuple(rows),
        mechanism=tuple(data["mechanism"]),
        edges=tuple(map(tuple, data["edges"])),
        charge=charge,
        epsilon=epsilon,
        delta=delta,
        remaining=remaining,
        repeated=repeated,
        threshold=data["threshold"],
        unit=compiled.policy.unit,
    )


def _data(item: Estimate | tuple[Estimate, ...]) -> Any:
    return [part.to_data() for part in item] if isinstance(item, tuple) else item.to_data()


def _estimate(data: Any) -> Estimate | tuple[Estimate, ...]:
    return tuple(Estimate(**part) for part in data) if isinstance(data, list) else Estimate(**data)


def foreseen(compiled: Compiled) -> tuple[str, ...]:
    """Return one line per aggregate with the width of its noise; skip widths that depend on the data."""
    widths = {item: 1 if item.choice is not None else item.measure.bins for item in compiled.releases}
    reading = Reading(compiled, {release: (0,) * width for release, width in widths.items()})
    lines = []
    for name, item in zip(compiled.query.output_names, compiled.query.aggregates, strict=True):
        if isinstance(item, Mean | Variance | StandardDeviation):
            continue  # its interval shrinks with the number of rows
        forecast = estimate(item, reading)
        bins = " in each bin" if isinstance(forecast, tuple) else ""
        first = forecast[0] if isinstance(forecast, tuple) else forecast
        if first.rank_error is not None:
            lines.append(f"{name}: rank ± {first.rank_error:,}")
        elif first.high is not None:
            lines.append(f"{name}: ± {_number(first.high - first.value)}{bins}")
    return tuple(lines)


# --- the mechanism, in words -----------------------------------------------------------------------------


def describe(compiled: Compiled) -> tuple[str, ...]:
    """Return one line per release: the measure, the distribution of its noise, and its sensitivity."""
    lines = [
        f"{release.measure.words.format(release.measure)}: {_law(release)}" for release in compiled.releases
    ]
    if compiled.threshold is not None:
        lines.append(
            f"groups are shown if the noisy {compiled.threshold.gate.words} is at least "
            f"{compiled.threshold.value} (delta {compiled.threshold.delta:g})"
        )
    return tuple(lines)


def _law(release: Release) -> str:
    factor = f", added to {release.bound.factor} times the number" if release.bound.factor > 1 else ""
    match release.law:
        case "laplace":
            sensitivity = f"sensitivity {release.bound.whole}"
            return f"discrete Laplace noise of scale {float(release.scale):.6g}, {sensitivity}{factor}"
        case "gaussian":
            sensitivity = f"squared sensitivity {release.bound.squared}"
            return f"discrete Gaussian noise of sigma {float(release.scale):.6g}, {sensitivity}{factor}"
        case "choice" if release.choice is not None:
            candidates = f"{len(release.choice.values)} candidates"
            return f"exponential mechanism of epsilon {float(release.scale):.6g} over {candidates}"
        case _:
            return "public"
