"""docs/records.md runs, prints what it says, and names the losses that there are."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit import losses

PAGE = Path(__file__).parents[2] / "docs" / "records.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.untraced
def test_the_page_runs_and_prints_what_it_says() -> None:
    defined: dict[str, Any] = {}
    torch.manual_seed(0)
    programs, told = blocks("python"), blocks("text")
    assert len(programs) == len(told) == 4
    for program, printed in zip(programs, told, strict=True):
        with contextlib.redirect_stdout(io.StringIO()) as found:
            exec(compile(program, "records.md", "exec"), defined)
        assert found.getvalue() == printed


def test_the_page_names_the_losses() -> None:
    rows = re.findall(r"^\| `(\w+)\(.*?\)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {*rows} == set(losses.__all__) - {"logits_of", "per_record"}
