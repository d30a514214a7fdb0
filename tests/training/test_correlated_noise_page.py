"""docs/correlated-noise.md runs, and its table is that of the committed results."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "correlated-noise.md").read_text(encoding="utf-8")


def test_the_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cycles, stream = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        for program in (cycles, stream):  # the second one goes on with what the first imported
            exec(compile(program, "correlated-noise.md", "exec"), names)
    assert said.getvalue() == "True\n"
    assert names["session"].steps_done == 31
    assert Path("state.pt").exists()


def test_the_table_is_that_of_the_results() -> None:
    found = json.loads((ROOT / "experiments" / "results" / "correlated-noise.json").read_text())
    figures = [f"{100 * row['accuracy_mean']:.1f}" for row in found["rows"]]
    ways = len(figures) // 4
    table = [line for line in PAGE.splitlines() if re.search(r"\| \d\d\.\d \|", line)]
    assert len(table) == ways
    for number, line in enumerate(table):
        assert re.findall(r"\d\d\.\d", line) == figures[number::ways]
