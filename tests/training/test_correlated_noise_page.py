"""docs/correlated-noise.md runs, and its table is that of the committed results."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "correlated-noise.md").read_text(encoding="utf-8")


def test_the_program_runs() -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(program, "correlated-noise.md", "exec"), {})
    assert said.getvalue() == "True\n"


def test_the_table_is_that_of_the_results() -> None:
    found = json.loads((ROOT / "experiments" / "results" / "correlated-noise.json").read_text())
    figures = [f"{100 * row['accuracy_mean']:.1f}" for row in found["rows"]]
    ways = len(figures) // 4
    table = [line for line in PAGE.splitlines() if re.search(r"\| \d\d\.\d \|", line)]
    assert len(table) == ways
    for number, line in enumerate(table):
        assert re.findall(r"\d\d\.\d", line) == figures[number::ways]
