"""The page on people runs; in ``make test-all`` also on the real text, on which drawing people is better."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pages import blocks_of, printed

from tacit.runs.sections import DataSection

PAGE = "people.md"
ROOT = Path(__file__).parents[2]


def losses(program: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"(\d+\.\d+) nats", printed([program])[0])]


def test_the_program_runs_on_little_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    with gzip.open(tmp_path / "tinyshakespeare.txt.gz", "wt") as file:
        file.write(
            "\n\n".join(f"SPEAKER {i % 40}:\n" + f"speech number {i} of many " * 4 for i in range(400))
        )
    program = blocks_of(PAGE)[0]
    assert "steps=60" in program
    assert len(losses(program.replace("steps=60", "steps=2"))) == 2


@pytest.mark.thorough(instead="test_the_program_runs_on_little_text")
def test_people_are_ahead_on_the_real_text(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Path(os.environ.get("TACIT_DATA", "nowhere")).absolute()
    if not (data / "tinyshakespeare.txt.gz").exists():
        pytest.skip("TACIT_DATA names no folder with tinyshakespeare.txt.gz")
    people, rows = losses(blocks_of(PAGE)[0])
    assert people < 2.60
    assert people < rows < 2.75


def test_the_configuration_has_only_keys_that_there_are() -> None:
    one, several = (tomllib.loads(block)["data"] for block in blocks_of(PAGE, "toml"))
    assert DataSection(**one).rows_per_user == 8
    assert DataSection(**several).user == ["sender", "receiver"]


def test_records_of_several_people_train() -> None:
    run: dict[str, Any] = {}
    _, program = blocks_of(PAGE)
    printed([program], run)
    assert run["session"].steps_done == 30
    assert 0 < run["data"].dropped < 600 - 50


def test_the_command_runs() -> None:
    (line,) = blocks_of(PAGE, "sh")
    run = subprocess.run(
        [sys.executable, *line.split()[1:]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "people, 8 rows of each" in run.stdout
