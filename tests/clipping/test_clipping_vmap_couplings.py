"""The coupling table under vmap: no record moves a sum by more than the bound, on all record sets."""

from __future__ import annotations

from functools import partial

import pytest
from coupling import FULL, ISOLATED, TOLERANCE, Coupling, measure, open_engine
from couplings import COUPLINGS, ISOLATED_MODELS

from tacit.clipping.vmapped import VmapEngine

DOOR = partial(open_engine, kind=VmapEngine)


def named(entry: Coupling) -> str:
    return f"{entry.kind}: {entry.name}"


@pytest.mark.untraced
@pytest.mark.parametrize("entry", COUPLINGS, ids=named)
def test_no_record_moves_the_sum_by_more_than_the_bound(entry: Coupling) -> None:
    """What is trained is trained as if each record were alone: sums that are drawn cannot be compared."""
    assert measure(entry, FULL, DOOR).sensitivity <= 1 + TOLERANCE


@pytest.mark.untraced
@pytest.mark.parametrize("entry", ISOLATED_MODELS, ids=named)
def test_what_is_isolated_is_fast(entry: Coupling) -> None:
    row = measure(entry, FULL, DOOR)
    assert row.verdicts == {ISOLATED: len(FULL)}
    assert row.sensitivity <= 1 + TOLERANCE


@pytest.mark.parametrize("hole", [entry for entry in COUPLINGS if entry.hole], ids=named)
def test_what_the_fast_engine_lets_through_is_stopped(hole: Coupling) -> None:
    assert measure(hole, FULL, DOOR).sensitivity <= 1 + TOLERANCE
