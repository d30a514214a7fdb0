"""docs/explanation/correlated-noise.md runs, and its table is that of the committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT, blocks_of, printed, text_of

PAGE = "correlated-noise.md"


def test_the_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    assert "".join(printed(blocks_of(PAGE), names)) == "True\n"
    assert names["session"].steps_done == 31
    assert Path("state.pt").exists()


def test_the_table_is_that_of_the_results() -> None:
    found = json.loads((ROOT / "experiments" / "results" / "correlated-noise.json").read_text())
    figures = [f"{100 * row['accuracy_mean']:.1f}" for row in found["rows"]]
    ways = len(figures) // 4
    table = [line for line in text_of(PAGE).splitlines() if re.search(r"\| \d\d\.\d \|", line)]
    assert len(table) == ways
    for number, line in enumerate(table):
        assert re.findall(r"\d\d\.\d", line) == figures[number::ways]
