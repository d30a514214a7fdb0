"""The example of the page on language models runs, and its adapter learns the letters."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from pages import blocks_of, comments_of, printed

from tacit.cli.app import run as tacit

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "language-models.md"
OF_PEFT = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
FEWER = (
    ("range(200)", "range(2)"),
    ("range(2200)", "range(220)"),
    ("--records 2000", "--records 200"),
    ("\nrecords = 2000 ", "\nrecords = 200 "),
    ("\nbatch_size = 500\nsteps = 60\n", '\nbatch_size = "full"\nsteps = 2\n'),  # priced in closed form
    ("--count 100", "--count 3"),
)


def follow(page: Path) -> list[str]:
    """Run the blocks in the current folder as a reader would, and return what the last program prints."""
    *programs, last = blocks_of(page)
    names: dict[str, object] = {}
    printed(programs, names)
    commands = blocks_of(page, "sh")[0].splitlines()
    assert [shlex.split(command)[:2] for command in commands] == [
        ["tacit", "init"],
        ["tacit", "train"],
        ["tacit", "generate"],
    ]
    for command in commands:
        assert tacit(shlex.split(command)[1:]) == 0
        if command == commands[0]:
            assert Path("letters.toml").exists()
            Path("letters.toml").write_text(blocks_of(page, "toml")[0], encoding="utf-8")
    each = int(commands[-1].rpartition("--count ")[2])
    assert len(Path("texts/texts.jsonl").read_text().splitlines()) == 2 * each, "of two prompts"
    (shown,) = printed([last], names)
    assert comments_of(last) == ["True"]
    return shown.splitlines()


@OF_PEFT
@pytest.mark.usefixtures("no_pictures")
def test_the_page_runs_with_few_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    for there, here in FEWER:
        assert there in text
        text = text.replace(there, here)
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    follow(tmp_path / "page.md")
    assert Path("runs/letters/adapter_model.safetensors").exists()


@OF_PEFT
@pytest.mark.thorough(instead="test_the_page_runs_with_few_steps")
def test_the_adapter_learns_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert follow(PAGE) == ["True"]
    (told,) = re.findall(r"accuracy per token is about ([\d.]+)", PAGE.read_text(encoding="utf-8"))
    score = json.loads(Path("runs/letters/evaluation.json").read_text())["score"]
    assert score == pytest.approx(float(told), abs=0.05)


def test_the_fields_of_examples_are_those_of_a_run_file() -> None:
    from tacit.runs.config import Config

    annotation = Config.model_fields["data"].annotation
    keys = set(getattr(annotation, "model_fields", {}))
    (table,) = re.findall(r"^\| `\[data\]` \| a line .*?\n\n", PAGE.read_text("utf-8"), re.M | re.DOTALL)
    first = [line.split(" | ")[0] for line in table.splitlines()[2:]]
    assert {name for cell in first for name in re.findall(r"`(\w+)`", cell)} <= keys
