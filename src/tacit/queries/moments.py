"""The moments of a table for a linear model: an engine encodes its rows and sums integer products.

Letters: x is a row's features and the constant, y its targets; d and k are their numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tacit.columns import Column, Encoder
from tacit.columns.column import PART_NAMES
from tacit.columns.encoder import bounds_of, is_one_hot
from tacit.columns.tables import MISSING_WORDS, declared_missing
from tacit.errors import InvalidInput
from tacit.ledger.policy import Policy
from tacit.queries.engines import Engine, PostgresEngine, SparkEngine
from tacit.queries.statements import (
    SOURCE,
    Statement,
    alias,
    exp,
    field,
    has_fraction,
    literal,
    not_nan,
    or_else,
    sql,
    typed,
    unit_tests,
)

# A row becomes integers X and Y, about R x and R y for |x|, |y| <= 1, and the engine sums the products
# X_i X_j and X_i Y_c. Floats only propose X and Y. What bounds a row is a test of integers, and a row that
# fails it is left out: |X|^2 <= R^2 / n and |Y|^2 <= R^2 / n, if its unit has n rows. So for every unit
#
#     |sum of X X^T| <= R^2  and  |sum of X Y^T| <= R^2  (Frobenius norms),                             (1)
#
# whatever the engine's floats do. Products fit into 32 bits, and the sums of 2^33 rows into 64.

RADIUS = 1 << 15
"""R, the bound on the norms of a unit's integers."""
_MOST = 1600  # PostgreSQL returns at most 1664 numbers in a row

_PARTS = {
    "weekday": "EXTRACT(ISODOW FROM :x) - 1",
    "month": "EXTRACT(MONTH FROM :x) - 1",
    "hour": "EXTRACT(HOUR FROM :x)",
}
# what Python strips from a text
_SPACES = "".join(letter for letter in map(chr, range(0x3001)) if letter.isspace())


@dataclass(frozen=True)
class TableMoments:
    """The moments of the rows that an engine reads.

    Attributes:
        engine: the table.
        policy: the declared columns, and the unit column if a unit may have several rows; their mean then
            counts.
        encoder: the inputs and the targets, of these columns.
        normalise: whether each row's x is scaled to norm 1; otherwise x is divided by the largest possible
            norm.
        codes: for classes, the target y of each class, of norm at most 1; None for numeric targets.

    **Guarantee**

    * Every unit contributes to the sums a vector that (1) bounds, in exact integers.
    """

    engine: Engine
    policy: Policy
    encoder: Encoder
    normalise: bool
    codes: Sequence[Sequence[float]] | None = None
    constant: float = 1.0

    def __post_init__(self) -> None:
        for name in self._names:
            column = self.encoder.columns[name]
            if column.is_moment and isinstance(self.engine, SparkEngine):
                raise InvalidInput(
                    f"column {name!r} is a {column.kind}, which Spark converts differently from other "
                    "engines. Create a view with a number instead, such as the days since a public date."
                )
            if column.buckets is not None:
                raise InvalidInput(
                    f"column {name!r} has buckets, which a database cannot compute. Declare its values, or "
                    "create a view with a column of the buckets."
                )

    @property
    def inputs(self) -> int:
        return len(self.encoder.features)

    @property
    def outputs(self) -> int:
        return len(self.encoder.target_names) if self.codes is None else len(self.codes[0])

    @property
    def bound(self) -> int:
        """R^2, the bound on what a unit adds to each matrix of sums."""
        return RADIUS**2

    @property
    def radii(self) -> tuple[float, float]:
        """The lengths to which x and y of norm 1 are scaled, so that no rounding takes them beyond R."""
        return _radius(self.inputs + 1), _radius(self.outputs)

    def describe(self) -> str:
        """Return the database and the number of features, for a privacy statement."""
        return f"a table in {self.engine.product}, as {self.inputs} features by declared columns"

    def check(self) -> None:
        """Refuse a table that the encoder would refuse, or with a column that the bounds clip entirely.

        Raises:
            InvalidInput: with the name of the column, and the number of rows.
            EngineFailure: if the engine fails.
        """
        self.engine.check(self.policy)
        self.engine.load()
        unreadable, _ = self.engine.unreadable()
        for name, places in unreadable.items():
            raise InvalidInput(
                f"{places.count:,} values of column {name!r} cannot be read as declared. Correct the table "
                "or the declaration. Nothing was charged."
            )
        faults = list(self._faults())
        counts = [
            or_else(sql("SUM(CASE WHEN :test THEN 1 ELSE 0 END)", test=test), "0") for test, *_ in faults
        ]
        tree = exp.select(exp.Count(this=exp.Star()), *counts).from_(SOURCE, copy=False)
        ((rows, *found),) = self.engine.rows(Statement((), tree, 0))
        if not rows:
            raise InvalidInput("the table has no rows. Check the table's name.")
        for (_, what, fix, whole), count in zip(faults, map(int, found), strict=True):
            if count and (count == rows or not whole):
                raise InvalidInput(f"{count:,} of {int(rows):,} rows {what}. {fix} Nothing was charged.")

    def _faults(self) -> Iterator[tuple[Any, str, str, bool]]:
        """Yield tests of rows, each with its message, and whether only a fault of all rows is one."""
        if (unit := self.policy.unit_column) is not None:
            named = or_else(exp.and_(*unit_tests(unit)))
            yield exp.Not(this=named), f"have no value in the unit column {unit!r}", "Remove them.", False
        for name in self._names:
            column, is_target = self.encoder.columns[name], name in self.encoder.target_names
            cell = self._cell(name)
            if column.kind == "integer":
                what = f"have a fraction in column {name!r}"
                yield or_else(has_fraction(name)), what, "Declare it a number.", False
            if is_target or column.missing == "refuse":
                fix = "Remove these rows" + ("." if is_target else ", or declare missing for the column.")
                yield sql(":x IS NULL", x=cell), f"lack a value in column {name!r}", fix, False
            if is_target and self.codes is not None:
                strange = exp.and_(sql("NOT :x IS NULL", x=cell), exp.Not(this=_among(cell, column)))
                yield strange, f"have a label in {name!r} that is not declared", "Declare every class.", False
            elif not is_one_hot(column) and column.low is not None:
                low, high = bounds_of(column)
                outside = sql("(:x < :low OR :x > :high)", x=cell, low=low, high=high)
                what = f"lie outside the bounds of column {name!r}, and would all be clipped"
                yield or_else(outside), what, "Declare bounds in the units of the column.", True

    def content(self) -> Iterable[bytes]:
        """Return the content of the table, for its fingerprint."""
        return self.engine.content()

    def sums(self) -> tuple[list[int], list[int]]:
        """Return the sums without noise: of X_i X_j for j <= i, row by row, and of Y_c X_i, target by target.

        Raises:
            EngineFailure: if the engine fails; the reason is not given.
            InvalidInput: if a file has changed meanwhile.
        """
        d, k = self.inputs + 1, self.outputs
        pairs = [(f"x{i}", f"x{j}") for i in range(d) for j in range(i + 1)]
        products = pairs + [(f"y{c}", f"x{i}") for c in range(k) for i in range(d)]
        # All sums come from one statement, which reads one state of the table. PostgreSQL, which returns
        # fewer numbers in a row, reads the same state in several.
        most = _MOST if isinstance(self.engine, PostgresEngine) else len(products)
        numbers: list[int] = []
        for start in range(0, len(products), most):
            totals = [
                or_else(exp.Sum(this=field(a) * field(b)), "0") for a, b in products[start : start + most]
            ]
            tree = exp.select(*totals, copy=False).from_(self._stage(self._integers, "bounded"), copy=False)
            (row,) = self.engine.rows(Statement((), tree.where(self._bounded, copy=False), 0))
            numbers += map(int, row)
        self.engine.check(self.policy)
        return numbers[: len(pairs)], numbers[len(pairs) :]

    def _stage(self, select: Any, name: str) -> Any:
        """Return rows to select from."""
        if isinstance(self.engine, PostgresEngine):  # it would compute all stages again for every sum
            select = select.offset(0)
        return select.subquery(exp.to_identifier(name, quoted=True))

    # --- one row ------------------------------------------------------------------------------------------

    @cached_property
    def _bounded(self) -> Any:
        """The test of integers from which (1) follows."""
        squares = [
            " + ".join(f'CAST("{letter}{at}" AS BIGINT) * "{letter}{at}"' for at in range(count))
            for letter, count in (("x", self.inputs + 1), ("y", self.outputs))
        ]
        most = f'CAST({RADIUS**2} DIV "number" AS BIGINT)'
        return exp.and_(*(sql(f"{square} <= {most}") for square in squares))

    @cached_property
    def _integers(self) -> Any:
        """Rows with the integers X and Y, and the number n of rows of their unit."""
        columns = [field("number")]
        for letter, count in (("x", self.inputs + 1), ("y", self.outputs)):
            nearest = f'CAST(FLOOR(:x * "{letter}_scale" + :half) AS INTEGER)'
            names = [f"{letter}{at}" for at in range(count)]
            columns += [alias(sql(nearest, x=name, half=0.5), name) for name in names]
        return exp.select(*columns).from_(self._stage(self._scaled, "scaled"), copy=False)

    @cached_property
    def _scaled(self) -> Any:
        """Rows with x and y, n, and the factors of x and y."""
        squares = " + ".join(f'"x{at}" * "x{at}"' for at in range(self.inputs + 1))
        longest = _literal(math.sqrt(self.inputs + self.constant**2))
        length = sql(f"SQRT({squares})") if self.normalise else longest
        scales = []
        for letter, radius, norm in (("x", self.radii[0], length), ("y", self.radii[1], _literal(1.0))):
            # the allowance for rounding does not shrink with n
            scale = sql(
                'GREATEST(:whole / SQRT(CAST("number" AS DOUBLE)) - :allowance, :zero) / (:norm)',
                whole=float(RADIUS), allowance=RADIUS - radius, zero=0.0, norm=norm,
            )  # fmt: skip
            scales.append(alias(scale, f"{letter}_scale"))
        return exp.select("*", *scales).from_(self._stage(self._features, "features"), copy=False)

    @cached_property
    def _features(self) -> Any:
        """Rows with x and y, in doubles, and n."""
        names = list(self._names)
        inputs = [
            feature
            for at, name in enumerate(names[: len(self.encoder.inputs_of)])
            for feature in _features_of(self.encoder.columns[name], f"c{at}")
        ]
        inputs.append(_literal(self.constant))
        columns = [alias(tree, f"x{at}") for at, tree in enumerate(inputs)]
        columns += [alias(tree, f"y{at}") for at, tree in enumerate(self._targets(f"c{len(names) - 1}"))]
        rows = self._stage(self._cells, "cells")
        unit = self.policy.unit_column
        if unit is None:
            columns.append(alias(sql("CAST(1 AS BIGINT)"), "number"))
            return exp.select(*columns).from_(rows, copy=False)
        sizes = exp.select(alias(field(unit), "unit"), alias(exp.Count(this=exp.Star()), "number"))
        sizes = sizes.from_(SOURCE, copy=False).where(*unit_tests(unit)).group_by(field(unit), copy=False)
        own = sql('"cells"."unit" = "sizes"."unit"')
        tree = exp.select(*columns, field("number")).from_(rows, copy=False)
        return tree.join(self._stage(sizes, "sizes"), on=own, copy=False)

    def _targets(self, cell: str) -> list[Any]:
        (name,) = self.encoder.target_names
        column = self.encoder.columns[name]
        if self.codes is None:
            return [_scaled(field(cell), *bounds_of(column))]
        tests = [_equals(field(cell), value) for value in _values(column)]
        return [
            _case([(test, _literal(code[at])) for test, code in zip(tests, self.codes, strict=True)])
            for at in range(self.outputs)
        ]

    @cached_property
    def _cells(self) -> Any:
        """Rows with one number or string per column, NULL if missing, and the unit."""
        columns = []
        for at, name in enumerate(self._names):
            column = self.encoder.columns[name]
            cell, moment = self._cell(name), typed(name, self.policy)
            if column.missing not in ("refuse", "indicator") and name not in self.encoder.target_names:
                public = (
                    str(column.missing) if column.kind == "category" else column.number_of(column.missing)
                )
                cell = sql("COALESCE(:x, :public)", x=cell, public=_literal(public))
                if column.is_moment:
                    moment = sql(
                        "COALESCE(:x, :public)", x=moment, public=literal(column.missing, name, self.policy)
                    )
            columns.append(alias(cell, f"c{at}"))
            columns += [alias(sql(_PARTS[part], x=moment), f"c{at}_{part}") for part in column.parts]
        if self.policy.unit_column is not None:
            columns.append(alias(field(self.policy.unit_column), "unit"))
        return exp.select(*columns).from_(SOURCE, copy=False)

    @property
    def _names(self) -> tuple[str, ...]:
        return (*self.encoder.inputs_of, *self.encoder.target_names)

    def _cell(self, name: str) -> Any:
        """Return a cell as a double, or as a string for a category; NULL if it is missing."""
        column, x = self.encoder.columns[name], typed(name, self.policy)
        if column.is_number:
            return _case([(not_nan(name), x)])
        if column.kind == "boolean":
            return _case([(x, sql(":one", one=1.0)), (exp.Not(this=x.copy()), sql(":zero", zero=0.0))])
        if column.is_moment:
            seconds = sql("CAST(EXTRACT(EPOCH FROM :x) AS DOUBLE)", x=x)
            return seconds if column.kind == "datetime" else sql(":s / :day", s=seconds, day=86400.0)
        text = sql("TRIM(:spaces FROM :x)", spaces=exp.Literal.string(_SPACES), x=x)
        words = MISSING_WORDS.union(declared_missing(column, self.encoder.dialect)) - set(column.listed)
        return _case([(exp.Not(this=_in(text, sorted(words))), text.copy())])


def _radius(count: int) -> float:
    return RADIUS - math.sqrt(count) / 2 - 1


# --- the features of a column ----------------------------------------------------------------------------


def _features_of(column: Column, cell: str) -> Iterator[Any]:
    """Yield the features of a cell, as :class:`~tacit.columns.Encoder` makes them."""
    x = field(cell)
    lacks = sql(":x IS NULL", x=x)
    for feature in _codes_of(column, x) if is_one_hot(column) else _numbers_of(column, x):
        yield _case([(lacks, _literal(0.0))], feature) if column.missing == "indicator" else feature
    if column.missing == "indicator":
        yield _case([(lacks, _literal(1.0))], _literal(0.0))


def _codes_of(column: Column, x: Any) -> Iterator[Any]:
    for value in _values(column):
        yield _case([(_equals(x, value), _literal(1.0))], _literal(0.0))
    yield _case([(_among(x, column), _literal(0.0))], _literal(1.0))


def _numbers_of(column: Column, x: Any) -> Iterator[Any]:
    low, high = (0.0, 1.0) if column.kind == "boolean" else bounds_of(column)
    yield _scaled(x, low, high)
    if column.edges:
        for start, end in itertools.pairwise((-math.inf, *column.edges, math.inf)):
            tests = [sql(":x >= :start", x=x, start=start)] if math.isfinite(start) else []
            tests += [sql(":x < :end", x=x, end=end)] if math.isfinite(end) else []
            yield _case([(exp.and_(*tests), _literal(1.0))], _literal(0.0))
    for part in column.parts:
        for number in range(len(PART_NAMES[part])):
            test = sql(":part = :number", part=f"{x.name}_{part}", number=number)
            yield _case([(test, _literal(1.0))], _literal(0.0))


def _scaled(x: Any, low: float, high: float) -> Any:
    return sql(
        "CASE WHEN :x <= :low THEN :least WHEN :x >= :high THEN :one "
        "ELSE :two * (:x - :low) / :width - :one END",
        x=x, low=low, high=high, least=-1.0, one=1.0, two=2.0, width=high - low,
    )  # fmt: skip


def _values(column: Column) -> tuple[str | float, ...]:
    if column.kind == "boolean":
        return (0.0, 1.0)
    return column.listed if column.kind == "category" else tuple(map(float, column.values or ()))


def _equals(x: Any, value: str | float) -> Any:
    return sql(":x = :value", x=x, value=_literal(value))


def _among(x: Any, column: Column) -> Any:
    return _in(x, _values(column))


def _in(x: Any, values: Sequence[str | float]) -> Any:
    return exp.In(this=x.copy(), expressions=[_literal(value) for value in values])


def _literal(value: str | float) -> Any:
    return exp.Literal.string(value) if isinstance(value, str) else sql(":value", value=float(value))


def _case(branches: Sequence[tuple[Any, Any]], otherwise: Any = None) -> Any:
    ifs = [exp.If(this=test.copy(), true=value.copy()) for test, value in branches]
    return exp.Case(ifs=ifs, default=exp.Null() if otherwise is None else otherwise.copy())
