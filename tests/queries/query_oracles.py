"""Shared parts of the tests of queries: the meaning of predicates, strategies for them, a policy, raw
integers."""

from __future__ import annotations

import math
import operator
import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from tacit.ledger import Column, Policy, PureBudget
from tacit.queries import And, Compare, In, IsNull, Not, Or
from tacit.queries.plan import Compiled, RawTable, collect
from tacit.queries.query import Predicate
from tacit.queries.statements import SOURCE, exp

CONNECTION = duckdb.connect(":memory:", config={"threads": 1})
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip


def fix_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the operating system's: a verdict on draws is the same in each run."""
    monkeypatch.setattr(os, "urandom", random.Random(1).randbytes)


def missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def truth(predicate: Predicate, row: Mapping[str, Any]) -> bool:
    """The meaning, written down anew: missing values compare false, Not has two values."""
    match predicate:
        case And(parts):
            return all(truth(part, row) for part in parts)
        case Or(parts):
            return any(truth(part, row) for part in parts)
        case Not(part):
            return not truth(part, row)
        case IsNull(column):
            return missing(row[column])
        case In(column, wanted):
            return not missing(row[column]) and row[column] in wanted
        case Compare(column, op, value):
            return not missing(row[column]) and bool(COMPARISONS[op](row[column], value))
    raise AssertionError(predicate)


def joined(leaves: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[Predicate]:
    """And, Or and Not of these, with a limited number of leaves."""
    return st.recursive(
        leaves,
        lambda inner: (
            st.builds(Not, inner)
            | st.builds(And, st.lists(inner, min_size=1, max_size=3).map(tuple))
            | st.builds(Or, st.lists(inner, min_size=1, max_size=3).map(tuple))
        ),
        max_leaves=most,
    )


def policy_of(
    declared: Mapping[str, Column], adjacency: str = "add-remove", *, public: int = 100, **fields: Any
) -> Policy:
    """A policy with a large budget, and with a public number of records where neighbours are exchanged."""
    records = {"public_records": public} if adjacency == "replace-one" else {}
    given: dict[str, Any] = (
        {"unit": "patient", "budget": PureBudget(1e6), "columns": declared} | records | fields
    )
    return Policy(adjacency=adjacency, **given)


def texts_of(compiled: Compiled) -> list[str]:
    source = exp.to_table(SOURCE)
    return [each.sql("duckdb", source) for each in compiled.statements]


def integers(compiled: Compiled, rows: Sequence[Any], schema: Any, texts: Sequence[str] = ()) -> RawTable:
    """The statements' own text, run by DuckDB; an engine for each table would take ten times as long."""
    CONNECTION.register(SOURCE, pa.Table.from_pylist(list(rows), schema))
    found = [CONNECTION.execute(text).fetchall() for text in texts or texts_of(compiled)]
    return collect(compiled, found)
