"""The programs of the page on ordinary mistakes run, and print what they say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

PAGE = (Path(__file__).parents[2] / "docs" / "mistakes.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(2))
def test_programs_print_what_they_say(number: int) -> None:
    code = PROGRAMS[number]
    expected = re.findall(r"print\(.*\)  # (.*)$", code, flags=re.MULTILINE)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exec(compile(code, "mistakes.md", "exec"), {"__name__": "__main__"})
    assert expected
    assert output.getvalue().split("\n")[:-1] == expected


def test_there_are_no_other_programs() -> None:
    assert len(PROGRAMS) == 2
