"""The page on training on a budget: its code runs and prints what the page shows, and its table is right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pages import blocks_of, comments_of, printed, text_of

from tacit.accounting import account
from tacit.events import PrivateSelection, Repeat
from tacit.plan import Plan

PAGE = "training-on-a-budget.md"


def test_the_code_runs_and_prints_what_its_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    programs = blocks_of(PAGE)
    assert len(programs) == 3
    for program in programs:
        assert printed([program], names)[0].splitlines() == comments_of(program)
    assert names["ledger"].verify("images").ok
    names["ledger"].close()


def test_the_prices_in_the_table_are_right() -> None:
    plan = Plan.calibrate(
        epsilon=1.5, delta=1e-5, records=60_000, batch_size=600, epochs=10, clipping=1.0,
        adjacency="add-remove", unit="image",
    )  # fmt: skip
    events = (
        plan.event,
        Repeat(plan.event, 10),
        PrivateSelection(plan.event, distribution="negative-binomial", mean=10, shape=1.0),
        PrivateSelection(plan.event, distribution="poisson", mean=10),
    )
    methods = ("pld", "pld", "rdp", "rdp")
    prices = [
        account(event, adjacency="add-remove", method=method).epsilon(1e-5)
        for event, method in zip(events, methods, strict=True)
    ]
    shown = [float(value) for value in re.findall(r"\| (\d\.\d\d) \|$", text_of(PAGE), flags=re.MULTILINE)]
    assert shown == [round(price, 2) for price in prices]
