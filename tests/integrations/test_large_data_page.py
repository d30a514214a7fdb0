"""The page on datasets, losses and large data runs, prints what it shows, and names all losses."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pages import blocks_of, comments_of, printed, text_of

from tacit import losses
from tacit.cli.app import run

PAGE = "large-data.md"


@pytest.mark.untraced
def test_the_program_on_records_prints_what_it_says() -> None:
    programs, told = blocks_of(PAGE)[:4], blocks_of(PAGE, "text")
    assert len(told) == 4
    assert printed(programs) == told


def test_the_page_names_the_losses() -> None:
    rows = re.findall(r"^\| `(\w+)\(.*?\)` \|", text_of(PAGE), re.MULTILINE)
    assert {*rows} == set(losses.__all__) - {"logits_of", "per_record"}


def test_the_programs_on_databases_print_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(PAGE)[4:]
    assert len(blocks) == 2
    for code, lines in zip(blocks, printed(blocks, {}), strict=True):
        assert lines.splitlines() == comments_of(code)

    (run_file,) = blocks_of(PAGE, "toml")
    Path("cost.toml").write_text(run_file)
    (commands,) = blocks_of(PAGE, "sh")
    for command in commands.splitlines():
        assert run(shlex.split(command)[1:]) == 0
    assert {"model.safetensors", "statement.txt"} <= {path.name for path in Path("runs/cost").iterdir()}
    costs, predictions = pd.read_csv("new.csv").cost, pd.read_csv("predictions.csv").prediction
    assert np.corrcoef(costs, predictions)[0, 1] > 0.9
