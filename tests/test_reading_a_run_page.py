"""The page on using a model is one story: its blocks run in their order, and print what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tacit.cli.app import run as tacit

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "reading-a-run.md"
HERE = r"^(?P<words>[^\n]*) <<'END'\n(?P<text>.*?)^END\n"


def execute(code: str) -> None:
    exec(compile(code, "<page>", "exec"), {"__name__": "__main__"})


def in_the_shell(block: str) -> None:
    """The commands of the page; a shell's few here, and Tacit in this process, as torch loads slowly."""
    for found in re.finditer(rf"{HERE}|^[^\n]+\n", block, flags=re.MULTILINE | re.DOTALL):
        command = shlex.split(found["words"] or found[0])
        match command:
            case ["python", "-"]:
                execute(found["text"])
            case ["cat", ">", name]:
                Path(name).write_text(found["text"], encoding="utf-8")
            case ["tacit", *arguments]:
                assert tacit(arguments) == 0, command
            case ["head", "-n", count, name]:
                print(*Path(name).read_text(encoding="utf-8").splitlines()[: int(count)], sep="\n")  # noqa: T201
            case _:
                pytest.fail(f"the page has a new command: {command}")


@pytest.mark.usefixtures("no_pictures")
def test_the_page_runs_from_the_first_line_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```$", PAGE.read_text("utf-8"), flags=re.M | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sh", "python", "sh", "python", "python", "sh", "sh", "python"]
    told: list[str] = []
    for kind, block in blocks:
        if kind == "sh":
            in_the_shell(block)
            continue
        capsys.readouterr()
        execute(block)
        told += (expected := re.findall(r"^print\(.*\)  # (.*)$", block, flags=re.MULTILINE))
        assert capsys.readouterr().out.splitlines() == expected
    assert len(told) == 10
    assert (
        Path("predictions.csv")
        .read_text()
        .startswith("row,prediction,probability_malignant,probability_benign\n1,")
    )
