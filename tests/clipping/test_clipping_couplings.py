"""The coupling table: no record moves the sum by more than the bound, and what is isolated stays fast.

The quick record sets alone; ``benchmarks/coupling_table.py`` measures all of them.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest
from coupling import (
    ISOLATED,
    KINDS,
    PER_RECORD,
    QUICK,
    REFUSED,
    TOLERANCE,
    Coupling,
    measure,
    sensitivity,
    unguarded,
)
from couplings import COUPLINGS, ISOLATED_MODELS

ROOT = Path(__file__).parents[2]
ENTRIES = {f"{entry.kind}: {entry.name}": entry for entry in [*COUPLINGS, *ISOLATED_MODELS]}
MARKED = [
    pytest.param(entry, marks=pytest.mark.xfail(reason=entry.hole, strict=True)) if entry.hole else entry
    for entry in COUPLINGS
]


def named(entry: object) -> str:
    return f"{entry.kind}: {entry.name}" if isinstance(entry, Coupling) else str(entry)


@pytest.mark.untraced
@pytest.mark.parametrize("entry", MARKED, ids=named)
def test_no_record_moves_the_sum_by_more_than_the_bound(entry: Coupling) -> None:
    row = measure(entry, QUICK)
    assert row.sensitivity <= 1 + TOLERANCE
    if entry.expected == REFUSED:
        assert REFUSED in row.verdicts, "trained record by record it would be another model"
    if entry.draws:
        assert ISOLATED not in row.verdicts


@pytest.mark.untraced
@pytest.mark.parametrize("entry", ISOLATED_MODELS, ids=named)
def test_what_is_isolated_stays_fast(entry: Coupling) -> None:
    row = measure(entry, QUICK)
    assert row.verdicts == {ISOLATED: len(QUICK)}
    assert row.sensitivity <= 1 + TOLERANCE


def test_entries_are_told_apart() -> None:
    assert len(ENTRIES) == len(COUPLINGS) + len(ISOLATED_MODELS)
    assert {entry.kind for entry in ENTRIES.values()} == set(KINDS)
    assert {entry.expected for entry in COUPLINGS} == {ISOLATED, PER_RECORD, REFUSED}
    assert Counter(entry.kind == "none" for entry in ISOLATED_MODELS) == {True: len(ISOLATED_MODELS)}


@pytest.mark.parametrize(
    "name", ["forward: x - x.mean(0)", "backward: gradients standardised", "state: memory bank"]
)
def test_without_guards_a_record_moves_the_sum_by_more(name: str) -> None:
    """Else the table would show nothing."""
    found = unguarded(ENTRIES[name], QUICK)
    assert found is not None
    assert found > 1.5


def test_without_guards_isolated_models_stay_within_the_bound() -> None:
    """The measure itself adds nothing."""
    found = unguarded(ENTRIES["none: perceptron"], QUICK)
    assert found is not None
    assert 0.5 < found <= 1 + TOLERANCE
    assert sensitivity(ENTRIES["none: perceptron"], QUICK[0]).verdict == ISOLATED


def test_the_page_is_what_the_json_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["build_couplings.py", "--check"])
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(ROOT / "docs" / "build_couplings.py"), run_name="__main__")
    assert done.value.code == 0, "run `make results`"


def test_all_entries_are_measured() -> None:
    data = json.loads((ROOT / "benchmarks" / "results" / "coupling_table.json").read_text(encoding="utf-8"))
    measured = {f"{row['kind']}: {row['name']}": row["hole"] for row in data["rows"]}
    assert measured == {name: entry.hole for name, entry in ENTRIES.items()}, "run `make coupling-table`"
