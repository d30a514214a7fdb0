"""Pages, docstrings, comments and errors use the field's terms, and none of the words below."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "DESIGN.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs",
    "experiments/LOG.md",
    "playground/src/text.ts",
)


@dataclass(frozen=True)
class Struck:
    """Words that only this project used.

    Attributes:
        pattern: a regular expression; a space stands for any white space, also around a comment's ``#``.
        say: what to say instead.
        example: text in which the pattern is found.
        fine: text with the same words in their common sense, in which it is not.
    """

    pattern: str
    say: str
    example: str
    fine: str = ""


STRUCK = (
    Struck(r"\b(?:hang(?:s|ing)?|hung) on\b", "depends on", "it hangs on others", "a process that hangs"),
    Struck(r"\bdoors?\b", "private table, PrivateTable; interface", "the doors of Tacit", "outdoors"),
    Struck(
        r"\b(?!contribution\b)\w+ bounding\b(?! (?:box|a|the|each|every|its|their|what)\b)",
        "contribution bounding",
        "how bounding works",
        "contribution bounding; by bounding the norm; a bounding box",
    ),
    Struck(
        r"\bwhat (?:it|they|a model|the model|a loss|the loss) keeps?\b"
        r"|\b(?:models?|loss) that keeps? something\b|\bkeeps? something of the records\b",
        "state leakage; buffers and attributes that store records",
        "a model that keeps something of the records",
        "a model that keeps its weights",
    ),
    Struck(
        r"\bgo(?:es)? record by record\b|\bgoes one by one\b",
        "per-record fallback; reference engine",
        "the batch goes record by record",
        "clipped record by record",
    ),
    Struck(r"\bown epsilons?\b", "per-mechanism epsilon", "each has its own epsilon"),
    Struck(
        r"\b[Ss]omebody\b|\bwho(?:ever)? asks\b",
        "the user, the analyst, the curator, an attacker, a person",
        "if somebody asks",
    ),
    Struck(
        r"(?<![.\w])[Bb]eside\b(?!\()",  # Plan.beside is a public name
        "next to; in addition to; than, compared with",
        "a figure beside it",
        "besides; plan.beside(other)",
    ),
    Struck(r"\bby (?:itself|themselves)\b", "alone; automatically", "it starts by itself"),
    Struck(
        r"\b(?:of|with|after|in|at|for|to|from|by|than) so many\b(?! [\w ]+ that\b)|\bso many of\b",
        "the number itself; this many",
        "of so many records",
        "in so many steps that noise grows",
    ),
    Struck(r"\bwhose a (?:row|record) is\b", "the person of each row", "the column that says whose a row is"),
    Struck(r"\btak(?:e|es|en|ing) up\b(?! to\b)", "resume", "a run is taken up", "it takes up to a second"),
    Struck(r"(?<![^\s(])\.\d+\b", "a number with its zero: 0.5", "by .4 % of it", "0.4 %; .gitignore"),
)


def files() -> Iterator[Path]:
    for name in PAGES:
        page = ROOT / name
        yield from (
            sorted(p for p in page.rglob("*") if p.suffix in (".md", ".py") and "generated" not in p.parts)
            if page.is_dir()
            else [page]
        )
    yield from sorted((ROOT / "src").rglob("*.py"))


def words_of(path: Path) -> str:
    """The text of a file; of a page without what a program printed, which is checked where it is written."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        return text
    printed = re.compile(r"^```(?:text|console)$.*?^```$", re.MULTILINE | re.DOTALL)
    return printed.sub(lambda block: "\n" * block[0].count("\n"), text)


def hits(text: str, struck: Struck) -> Iterator[tuple[int, str]]:
    """Line and words of each hit."""
    for found in re.finditer(struck.pattern.replace(" ", r"(?:\s+#?\s*)"), text):
        yield text.count("\n", 0, found.start()) + 1, found[0]


@pytest.mark.parametrize("struck", STRUCK, ids=[struck.example for struck in STRUCK])
def test_no_page_or_source_has_a_struck_word(struck: Struck) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words!r}"
        for path in files()
        for line, words in hits(words_of(path), struck)
    ]
    assert not found, f"say {struck.say} instead:\n" + "\n".join(found)


@pytest.mark.parametrize("struck", STRUCK, ids=[struck.example for struck in STRUCK])
def test_each_pattern_finds_its_words_and_leaves_common_english(struck: Struck) -> None:
    assert list(hits(struck.example, struck))
    assert list(hits(struck.example.replace(" ", "\n    # "), struck))
    assert not list(hits(struck.fine, struck))


def test_all_pages_and_folders_are_there() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in files()}
    assert {"README.md", "docs/engine.md", "docs/build.py", "docs/how-to/train.md"} <= names
