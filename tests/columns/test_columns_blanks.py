"""A fact that is left to be filled in is found by its line and key, wherever it is in the file."""

from __future__ import annotations

import pytest

from tacit.columns.sections import find_blanks, refuse_blanks
from tacit.errors import InvalidInput

TEXT = """\
# FILL IN what is missing: "FILL IN"
title = "FILL IN"
[privacy]   # epsilon = "FILL IN"
epsilon = 'FILL IN'         # 1 is strong
delta=FILL IN
unit = "row"                # not "FILL IN"
[columns."a = b # [c]"]
lower = 0 # upper = "FILL IN"
  values = ["a # b", "FILL IN"]
missing = { a = 1, b = "FILL IN" }
"""


def test_every_blank_is_found_and_no_comment() -> None:
    assert [str(blank) for blank in find_blanks(TEXT)] == [
        "line 2: title",
        "line 4: [privacy] epsilon",
        "line 5: [privacy] delta",
        'line 9: [columns."a = b # [c]"] values',
        'line 10: [columns."a = b # [c]"] missing',
    ]


def test_a_text_with_blanks_is_refused_and_one_without_is_not() -> None:
    with pytest.raises(InvalidInput, match=r'run.toml: 5 facts are still "FILL IN":\n  line 2: title\n'):
        refuse_blanks(TEXT, "run.toml")
    with pytest.raises(InvalidInput, match='1 fact is still "FILL IN"'):
        refuse_blanks('a = "FILL IN"', "run.toml")
    refuse_blanks('a = 1  # "FILL IN"', "run.toml")
