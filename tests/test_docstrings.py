"""The form of every docstring: a statement as the first line, in one form of sections."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "experiments", "benchmarks", "docs")
FRAGMENTS = ("Whose", "Where", "What", "Which", "Of", "How", "Why", "Who", "Whom", "That")
"""First words of a question, or of a clause that is no sentence."""
OLD_FORMS = re.compile(
    r"^\s*(:(param|returns?|raises|rtype|type)\b|Errors:|Parameters\n|\*Guarantee\*)", re.MULTILINE
)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def documented(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, name and docstring of a module and of all that it defines."""
    if found := ast.get_docstring(tree):
        yield 1, "the module", found
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS) and (found := ast.get_docstring(node)):
            yield node.lineno, node.name, found


def complaints(docstring: str) -> Iterator[str]:
    """Name the faults in the form of a docstring."""
    summary = docstring.partition("\n\n")[0].strip()
    first = re.split(r"[^A-Za-z]", summary, maxsplit=1)[0]
    if "?" in summary.splitlines()[0]:
        yield "its first line asks; say what it is"
    if first in FRAGMENTS:
        yield f"it begins with {first!r}; begin with a verb or a noun"
    if not summary.endswith((".", ":", "::")) and not summary.startswith(">>>"):
        yield "its summary does not end with a full stop"
    if OLD_FORMS.search(docstring):
        yield "it has sections in another form than Args:, Returns:, Raises:"


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_have_one_form(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}: {complaint}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name, docstring in documented(ast.parse(path.read_text(encoding="utf-8")))
        for complaint in complaints(docstring)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "planted",
    [
        "Whose row it is.",
        "Which rows are read?",
        "The rows",
        "Return the rows.\n\n:param x: a row.",
        "Return the rows.\n\nErrors: none.",
    ],
)
def test_planted_forms_are_found(planted: str) -> None:
    assert list(complaints(planted))
    assert not list(complaints("Return the rows.\n\nArgs:\n    x: a row."))
