"""What in a file of public facts is still to be filled in? Line number and key of every ``FILL IN``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tacit.errors import InvalidInput

BLANK = "FILL IN"
"""What stands in place of a public fact that nobody has stated yet."""

_SECTION = re.compile(r"""\s*\[\s*((?:[^\[\]"']|"[^"]*"|'[^']*')+?)\s*\]\s*(?:#.*)?""")
# A key, "=", and FILL IN: bare, in quotes, or somewhere in a list or an inline table; not behind a "#".
_SETTING = re.compile(rf"""\s*([^=#]+?)\s*=(?:[^#"']|"[^"]*"|'[^']*')*?(?P<quote>["']?){BLANK}(?P=quote)""")


@dataclass(frozen=True)
class Blank:
    """A fact that is missing: in which line, which section and which key."""

    line: int
    section: str
    key: str

    def __str__(self) -> str:
        return f"line {self.line}: {f'[{self.section}] ' if self.section else ''}{self.key}"


def find_blanks(text: str) -> list[Blank]:
    """Every setting of a TOML text whose value is, or holds, ``FILL IN``.

    >>> [str(blank) for blank in find_blanks('[privacy]\\nepsilon = "FILL IN"  # 1 is strong\\ndelta = 1e-6')]
    ['line 2: [privacy] epsilon']
    """
    found, section = [], ""
    for number, line in enumerate(text.splitlines(), start=1):
        if heading := _SECTION.fullmatch(line):
            section = heading[1]
        elif setting := _SETTING.match(line):
            found.append(Blank(number, section, setting[1]))
    return found


def refuse_blanks(text: str, source: str) -> None:
    """Refuse a text with a fact left to fill in.

    Raises:
        InvalidInput: naming the line and the key of each.
    """
    blanks = find_blanks(text)
    if blanks:
        lines = "".join(f"\n  {blank}" for blank in blanks)
        raise InvalidInput(
            f'{source}: {len(blanks)} fact{"s are" * (len(blanks) > 1) or " is"} still "{BLANK}":{lines}\n'
            "State each from what is known without the data, never from the data; delete a line only where "
            "the comment beside it says so."
        )
