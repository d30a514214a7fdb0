"""docs/reference/mechanisms.md: every cell is what the code gives today, a number or a refusal."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tacit.accounting import METHODS
from tacit.events import Adjacency, GroupPrivacy, event_to_json
from tacit.events.base import EVENTS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_mechanisms", ROOT / "docs" / "build_mechanisms.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(builder: ModuleType) -> list[str]:
    text: str = builder.PAGE.read_text(encoding="utf-8")
    return text.split("\n")


def table(page: list[str], title: str) -> list[list[str]]:
    start = page.index(f"## {title}") + 4
    end = page.index("", start)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page[start:end]]


@pytest.mark.thorough(cases=1)
@pytest.mark.untraced
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_every_cell_is_what_the_code_gives(
    builder: ModuleType, page: list[str], adjacency: Adjacency
) -> None:
    rows = table(page, adjacency.value)
    assert [row[0] for row in rows] == list(builder.MECHANISMS)
    for name, words, *cells in rows:
        expected_words, event = builder.MECHANISMS[name]
        assert words == expected_words
        found = [builder.cell(event, method, adjacency.value) for method in METHODS]
        assert cells == found, name


def test_every_event_is_on_the_page(builder: ModuleType) -> None:
    shown = " ".join(event_to_json(event) for _, event in builder.MECHANISMS.values())
    for name in EVENTS:
        assert f'"event": "{name}"' in shown or name == "Compose"
    assert GroupPrivacy.__name__ in shown


def test_every_claim_is_answered(builder: ModuleType, page: list[str]) -> None:
    cells = {
        (row[0], method, adjacency.value): cell
        for adjacency in Adjacency
        for row in table(page, adjacency.value)
        for method, cell in zip(METHODS, row[2:], strict=True)
    }
    written = list(builder._coverage(cells))
    start = page.index("## What other libraries price")
    assert "\n".join(written).split("\n") == page[start:]
    for claim in builder.CLAIMS:
        assert claim.left or all(
            (claim.mechanism, method, adjacency) in cells
            for adjacency in claim.adjacencies
            for method in claim.methods
        )


def test_rounding_is_up(builder: ModuleType) -> None:
    assert builder.rounded_up(0.12341) == "0.1235"
    assert builder.rounded_up(0.1234000000001) == "0.1234"
    assert builder.rounded_up(12345.6) == "1.235e+04"
    assert builder.rounded_up(float("inf")) == "∞"
    assert builder.rounded_up(0.0) == "0"
    with pytest.raises(LookupError, match="unheard of"):
        builder._reason("unheard of")
