"""docs/how-to/records.md runs, prints what the page shows, and names all losses."""

from __future__ import annotations

import re

import pytest
from pages import blocks_of, printed, text_of

from tacit import losses

PAGE = "records.md"


@pytest.mark.untraced
def test_the_page_runs_and_prints_what_it_says() -> None:
    programs, told = blocks_of(PAGE), blocks_of(PAGE, "text")
    assert len(programs) == len(told) == 4
    assert printed(programs) == told


def test_the_page_names_the_losses() -> None:
    rows = re.findall(r"^\| `(\w+)\(.*?\)` \|", text_of(PAGE), re.MULTILINE)
    assert {*rows} == set(losses.__all__) - {"logits_of", "per_record"}
