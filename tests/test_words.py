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
NOT_YET: tuple[str, ...] = ()
"""Folders whose text is still to be rewritten; the last one to be done takes this constant away."""


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
    Struck(
        r"\bwhose rows\b|\brows are whose\b|\bwhose numbers are\b",
        "provenance; isolated",
        "whose rows are whose",
        "a table whose columns are declared",
    ),
    Struck(
        r"\bowners? of (?:a|each|the|every) (?:number|row)|\b(?:has|have) an owner\b|\bhands? owners\b",
        "provenance",
        "each number has an owner",
        "the owner of the file",
    ),
    Struck(r"\b(?:hang(?:s|ing)?|hung) on\b", "depends on", "it hangs on others", "a process that hangs"),
    Struck(
        r"\brecords?(?: of (?:a|the) batch)? meet\b",
        "mixes records",
        "layers in which records of a batch meet",
        "sampler and noise meet in one place",
    ),
    Struck(r"\brecordless\b|\bin which no record is\b", "data-independent tensor", "a recordless tensor"),
    Struck(r"\bislands?\b", "per-record fallback, vmap fallback", "an island by vmap"),
    Struck(r"\btap(?:e|es|ed)\b", "recorder; recorded", "what the tape saw", "tapering"),
    Struck(
        r"\bPython\b[^.:;]{0,25} told\b|\btold Python\b|\btold as of it\b",
        "data-dependent control flow; a value that Python reads",
        "what Python is told of a tensor",
        "glibc is told to keep memory",
    ),
    Struck(r"\bdissent\w*", "records that alone would give another value", "where some dissent"),
    Struck(
        r"\b(?:next|these|those|the|no|later|between|each) looks?\b(?! (?:like|at|of|up))",
        "check",
        "until the next look",
        "it looks at the data; the look of a page",
    ),
    Struck(r"\btried out\b", "checked on a sample of records", "a few records are tried out"),
    Struck(
        r"\b(?:lies?|lay|lying) on (?:one|two|another|different|the same)(?: \w+)? sums?\b",
        "noise reuse",
        "the noise lies on one sum",
        "the file lies on one disk",
    ),
    Struck(
        r"\bread(?:s|ing)?(?: [\w`]+){0,5} ahead\b|\bdecode ahead\b",
        "prefetch",
        "reading records ahead of the step",
        "read the page; go ahead",
    ),
    Struck(
        r"\bonly a turn\b|\b(?:this|that|each|the) turn holds\b",
        "step ticket",
        "a batch is only a turn",
        "take turns",
    ),
    Struck(r"\btwo-?fold\b", "two-step Gaussian", "a twofold step"),
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
        r"\bways? through (?:the|a) model\b|\bgo(?:es)? the other way\b|\bgo the same path\b",
        "execution trace",
        "a way through the model",
        "records go through the model",
    ),
    Struck(
        r"\bgo(?:es)? record by record\b|\bgoes one by one\b",
        "per-record fallback; reference engine",
        "the batch goes record by record",
        "clipped record by record",
    ),
    Struck(r"\bwhat rounding leaves\b", "within floating-point error", "up to what rounding leaves"),
    Struck(r"\bown epsilons?\b", "per-mechanism epsilon", "each has its own epsilon"),
    Struck(
        r"\beach at its best\b|\bat its best, put together\b|\bis priced by more than\b",
        "upper bound; composition",
        "what queries cost, each at its best",
        "each peer at its best settings",
    ),
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
    excluded = [ROOT / folder for folder in NOT_YET]
    for path in sorted((ROOT / "src").rglob("*.py")):
        if not any(path.is_relative_to(folder) for folder in excluded):
            yield path


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
    assert all((ROOT / folder).is_dir() for folder in NOT_YET)
