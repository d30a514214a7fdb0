"""The coupling table: no record moves the sum by more than the bound, and what is isolated is fast.

``benchmarks/coupling_table.py`` measures the same, and computations without guards.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
from coupling import (
    ISOLATED,
    KINDS,
    OTHERS,
    QUICK,
    REFUSED,
    TOLERANCE,
    Coupling,
    Sum,
    measure,
    unguarded,
)
from couplings import COUPLINGS, ISOLATED_MODELS
from oracles import Loss, clipped_sum, each
from torch import nn

from tacit.clipping import FlatClipping
from tacit.clipping.reference import ReferenceEngine

ROOT = Path(__file__).parents[2]
ALL = [*COUPLINGS, *ISOLATED_MODELS]


def named(entry: Coupling) -> str:
    return f"{entry.kind}: {entry.name}"


ENTRIES = {named(entry): entry for entry in ALL}


WORDS = {
    "backward: saved tensors with one unit for all": "hooks on saved tensors",
    "backward: hook on a node of the graph": "Python reads the autograd graph",
    "backward: backward hook of a module": "a torch.autograd.Function",
    "control flow: numpy()": "UnsupportedModel: numpy() (",
    "control flow: torch.cond": "UnsupportedModel: index() (",
    "control flow: a matrix without a root": " for some records",
    "place: same noise each time": "sets a seed",
    "state: weights set from the first batch": "the first forward pass sets the parameters",
    "state: tensor kept in an attribute": "stores values of records in the model: kept",
    "state: queue kept in an attribute": "stores values of records in the model: queue",
    "state: running mean in a buffer": "changes the buffers ['waves']",
    "state: losses over the previous losses": "stored tensor of an earlier batch",
    "state: tensor computed before the batch": "tensor that was computed from parameters before this batch",
    "state: loss that counts its calls": "counts its calls",
    "state: requires_grad switched in the loss": "attempting to call Tensor.re",
}
"""How some are refused: a reason of each kind."""


@pytest.mark.untraced
@each("entry", ENTRIES)
def test_no_record_moves_the_sum_by_more_than_the_bound(entry: Coupling) -> None:
    """Whatever is trained is trained as if each record were alone."""
    row = measure(entry, QUICK)
    assert row.sensitivity <= 1 + TOLERANCE
    assert row.verdict == entry.expected, row
    assert WORDS.get(named(entry), "") in row.error
    assert entry.kind != "none" or row.verdicts == {ISOLATED: len(QUICK)}


def by_reference(model: nn.Module, loss: Loss, C: float) -> Sum:
    engine = ReferenceEngine(model, loss, FlatClipping(C))
    return lambda batch: clipped_sum(engine, *batch)


@pytest.mark.thorough(cases=15)
@pytest.mark.untraced
@pytest.mark.parametrize("entry", [entry for entry in ALL if entry.kind != "state"], ids=named)
def test_no_record_moves_the_sum_of_the_reference_engine_by_more(entry: Coupling) -> None:
    """It assumes, and its statement says so, that model and loss keep nothing of a record."""
    if entry.name == "tensor computed before the batch":
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            measure(entry, QUICK, by_reference)
        return
    assert measure(entry, QUICK, by_reference).sensitivity <= 1 + TOLERANCE


@pytest.mark.thorough(cases=6)
@pytest.mark.untraced
@each("entry", ENTRIES)
def test_other_record_sets_move_it_no_more(entry: Coupling) -> None:
    row = measure(entry, OTHERS)
    assert row.sensitivity <= 1 + TOLERANCE
    assert entry.kind != "none" or row.verdicts == {ISOLATED: len(OTHERS)}


def test_entries_have_different_names() -> None:
    assert len(ENTRIES) == len(ALL)
    assert {entry.kind for entry in ALL} == set(KINDS)
    assert {entry.expected for entry in COUPLINGS} == {ISOLATED, REFUSED}
    assert {entry.kind for entry in ISOLATED_MODELS} == {"none"}


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


def test_the_page_is_what_the_json_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["build_couplings.py", "--check"])
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(ROOT / "docs" / "build_couplings.py"), run_name="__main__")
    assert done.value.code == 0, "run `make results`"


def test_all_entries_are_measured() -> None:
    data = json.loads((ROOT / "benchmarks" / "results" / "coupling_table.json").read_text(encoding="utf-8"))
    measured = {f"{row['kind']}: {row['name']}" for row in data["rows"]}
    assert measured == ENTRIES.keys(), "run `make coupling-table`"
