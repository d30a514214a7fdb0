"""The page on tables in databases is true: its blocks run and print what they say."""

from pathlib import Path

import pytest
from pages import blocks_of, comments_of, printed


def test_the_programs_print_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of("database-tables.md")
    for code, lines in zip(blocks, printed(blocks, {}), strict=True):
        assert lines.splitlines() == [said for said in comments_of(code) if said]
    assert len(blocks) == 3
