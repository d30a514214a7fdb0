"""The programs of the page on ordinary mistakes run, and print what the page shows."""

from __future__ import annotations

import pytest
from pages import blocks_of, comments_of, printed

PROGRAMS = blocks_of("mistakes.md")


@pytest.mark.parametrize("number", range(2))
def test_programs_print_what_they_say(number: int) -> None:
    expected = comments_of(PROGRAMS[number])
    assert expected
    assert printed([PROGRAMS[number]], {"__name__": "__main__"})[0].splitlines() == expected


def test_there_are_no_other_programs() -> None:
    assert len(PROGRAMS) == 2
