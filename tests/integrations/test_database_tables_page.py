"""The page on tables in databases is true: its blocks run and print what they say."""

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pages import blocks_of, comments_of, printed

from tacit.cli.app import run


def test_the_programs_print_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of("database-tables.md")
    for code, lines in zip(blocks, printed(blocks, {}), strict=True):
        assert lines.splitlines() == [said for said in comments_of(code) if said]
    assert len(blocks) == 3

    (run_file,) = blocks_of("database-tables.md", "toml")
    Path("cost.toml").write_text(run_file)
    (commands,) = blocks_of("database-tables.md", "sh")
    for command in commands.splitlines():
        assert run(shlex.split(command)[1:]) == 0
    assert sorted(path.name for path in Path("runs/cost").iterdir()) == [
        "README.md",
        "config.toml",
        "model.safetensors",
        "private",
        "statement.json",
        "statement.txt",
    ]
    costs, predictions = pd.read_csv("new.csv").cost, pd.read_csv("predictions.csv").prediction
    assert np.corrcoef(costs, predictions)[0, 1] > 0.9
