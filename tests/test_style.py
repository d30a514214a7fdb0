"""The style of what people read: nouns for variables, short clauses in errors, whole sentences on pages."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tacit"
FILES = sorted(SOURCE.rglob("*.py"))
PAGES = [
    *(ROOT / name for name in ("README.md", "DESIGN.md", "CONTRIBUTING.md")),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "generated" not in page.parts),
]
NO_NOUNS = frozenset(
    re.findall(
        r"\w+",
        "asked called chosen counted drawn few found given held kept known listed lost made many meant "
        "missed named others said saved seen shown stated taken there told wanted what whose written",
    )
)
"""Participles and pronouns that name no thing; a variable says what it holds."""
FRAGMENT = re.compile(r"(?:[-*>]|\d+\.)?\s*\**(Of|Whose|What|Where)\b")
LONGEST = 16
"""Words of an error's first clause."""


def variables(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each variable that is assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


@pytest.mark.parametrize("path", FILES, ids=[path.relative_to(SOURCE).as_posix() for path in FILES])
def test_variables_are_nouns(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    wrong = [f"{path.name}:{line} {name}" for line, name in variables(tree) if name in NO_NOUNS]
    assert not wrong, "\n".join(wrong)


def messages() -> dict[str, list[str]]:
    """The text of each error that src can raise, by package; ``…`` stands for what differs."""
    spec = importlib.util.spec_from_file_location("reference_pages", ROOT / "docs" / "reference_pages.py")
    assert spec is not None
    assert spec.loader is not None
    pages: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    by_package: dict[str, list[str]] = {}
    for parts in pages._messages().values():
        for package, texts in parts.items():
            by_package.setdefault(package, []).extend(texts)
    return by_package


def first_clause(message: str) -> str:
    """The words up to the first full stop, colon or semicolon that follows at least four words."""
    clause = ""
    for piece in re.split(r"(?<=\S)[.:;](?:\s|$)| — ", message):
        clause = f"{clause} {piece}".strip()
        if len(clause.split()) >= 4:
            break
    return clause


def test_first_clauses_of_errors_are_short() -> None:
    lengths = []
    long = []
    for package, texts in messages().items():
        for text in texts:
            clause = first_clause(text)
            lengths.append(len(clause.split()))
            if lengths[-1] > LONGEST:
                long.append(f"{package}: {clause}")
    assert not long, f"more than {LONGEST} words:\n" + "\n".join(long)
    assert mean(lengths) <= 10.0


def fragments(text: str) -> Iterator[str]:
    """Sentences of a page that begin with a word of a clause, and ask nothing."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for paragraph in prose.split("\n\n"):
        if paragraph.lstrip().startswith(("#", "|")):
            continue
        for sentence in re.split(r"(?<=[.?!:])\s+", " ".join(paragraph.split())):
            if FRAGMENT.match(sentence) and not sentence.endswith(("?", "?**")):
                yield sentence


@pytest.mark.parametrize("path", PAGES, ids=[path.relative_to(ROOT).as_posix() for path in PAGES])
def test_sentences_of_pages_begin_with_their_subject(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.name == "CONTRIBUTING.md":  # its rules show what not to write
        text = re.sub(r"## How to write.*?(?=\n## )", "", text, flags=re.DOTALL)
    wrong = list(fragments(text))
    assert not wrong, "\n".join(wrong)


def test_planted_breaks_of_style_are_found() -> None:
    assert "found" in NO_NOUNS
    assert list(variables(ast.parse("found = 1"))) == [(1, "found")]
    assert first_clause("… epsilon must be > 0; got …. Raise it.") == "… epsilon must be > 0"
    assert list(fragments("It costs. Of it half is spent."))
    assert not list(fragments("What does it cost? Half of it is spent."))
