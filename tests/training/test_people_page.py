"""docs/people.md runs; on the real text in ``make test-all``, where people are ahead as the page says."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.cli.app import run as tacit
from tacit.runs.sections import DataSection

PAGE = (Path(__file__).parents[2] / "docs" / "people.md").read_text(encoding="utf-8")


def block(kind: str, number: int = 0) -> str:
    found = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(found) == {"python": 2, "toml": 2, "sh": 1}[kind]
    return str(found[number])


def losses(program: str) -> list[float]:
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()) as found:
        exec(compile(program, "people.md", "exec"), {})
    return [float(loss) for loss in re.findall(r"(\d+\.\d+) nats", found.getvalue())]


def test_the_program_runs_on_little_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    with gzip.open(tmp_path / "tinyshakespeare.txt.gz", "wt") as file:
        file.write(
            "\n\n".join(f"SPEAKER {i % 40}:\n" + f"speech number {i} of many " * 4 for i in range(400))
        )
    program = block("python")
    assert "steps=60" in program
    assert len(losses(program.replace("steps=60", "steps=2"))) == 2


@pytest.mark.thorough(instead="test_the_program_runs_on_little_text")
def test_people_are_ahead_on_the_real_text(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Path(os.environ.get("TACIT_DATA", "nowhere")).absolute()
    if not (data / "tinyshakespeare.txt.gz").exists():
        pytest.skip("TACIT_DATA names no folder with tinyshakespeare.txt.gz")
    people, rows = losses(block("python"))
    assert people < 2.60
    assert people < rows < 2.75


def test_the_configuration_has_only_keys_that_there_are() -> None:
    sections = tomllib.loads(block("toml"))
    assert DataSection(**sections["data"]).rows_per_user == 8
    sections = tomllib.loads(block("toml", 1))
    assert DataSection(**sections["data"]).user == ["sender", "receiver"]


def test_records_of_several_people_train() -> None:
    torch.manual_seed(0)
    run: dict[str, Any] = {}
    exec(compile(block("python", 1), "people.md", "exec"), run)
    assert run["session"].steps_done == 30
    assert 0 < run["data"].dropped < 600 - 50


def test_the_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert tacit(block("sh").split()[1:]) == 0
    assert "people, 8 rows of each" in capsys.readouterr().out
