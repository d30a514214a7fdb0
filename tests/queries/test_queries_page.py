"""The page on queries is true: its programs print, and its commands show, what it says."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tacit.cli.app import run

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "queries.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def shown(code: str) -> list[str]:
    """Return the output that comments state: after a print, or on separate lines."""
    return re.findall(r"^(?: *print\(.*\)  )?# (.*)$", code, flags=re.MULTILINE)


def test_the_programs_print_what_they_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    programs = blocks("python")
    assert [len(shown(code)) for code in programs] == [6, 4, 1]
    for code in programs:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, "queries.md", "exec"), names)
        assert printed.getvalue().splitlines() == shown(code)
    assert sum(epsilon for epsilon, _ in planned(PAGE)) == 1.2


def planned(page: str) -> list[tuple[float, str]]:
    rows = re.findall(r"^\| (How .*\?) \| ([0-9.]+) \|$", page, flags=re.MULTILINE)
    return [(float(epsilon), question) for question, epsilon in rows]


def blurred(text: str) -> str:
    """Without what noise changes: the numbers, how wide a column is, how long a bar is."""
    text = re.sub(r"-?\d[\d,.]*", "#", text)
    return re.sub(r"[ \n]+", " ", re.sub(r"[─░█]+", "=", text)).strip()


def test_the_commands_show_what_the_page_shows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program = blocks("python")[0].partition("\ntable = ")[0]
    names: dict[str, Any] = {}
    exec(compile(program, "queries.md", "exec"), names)
    names["patients"].to_csv("patients.csv", index=False)
    (console,) = blocks("console")
    for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        command, _, told = part.replace("\\\n", " ").partition("\n")
        name, *arguments = shlex.split(command)
        assert name == "tacit"
        code = run(arguments)
        assert code == (2 if told.startswith("error") else 0)
        output = capsys.readouterr()
        assert blurred(output.out + output.err) == blurred(told)
