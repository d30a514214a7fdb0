"""The page's table of planted bugs is that of the tests."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "attacks-and-audits.md"
FILES = [ROOT / "tests" / "audits" / f"test_audits_regression_{part}.py" for part in ("replay", "layers")]
TREES = [ast.parse(path.read_text(encoding="utf-8")) for path in FILES]
PLANTED = ("planted_bug", "mixes_records")


def rows() -> list[tuple[str, list[str]]]:
    """Each test of the table, and the bugs that it plants."""
    table = PAGE.read_text(encoding="utf-8").split("## Bugs that cannot land")[1]
    cells = [line.split("|")[2:4] for line in table.splitlines() if line.startswith("|")][2:]
    return [(test.strip().strip("`"), [bug.strip() for bug in bugs.split(";")]) for bugs, test in cells]


def names_of(tree: ast.Module) -> dict[str, list[str]]:
    """The names in every dictionary and tuple of the module, by its own name."""
    found: dict[str, list[str]] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Dict | ast.Tuple):
            keys = value.keys if isinstance(value, ast.Dict) else value.elts
            found[target.id] = [str(key.value) for key in keys if isinstance(key, ast.Constant)]
    return found


def bugs_of(test: str) -> list[str] | None:
    """The bugs that a test takes from a table of its module; None if it plants its own; fails if unknown."""
    for tree in TREES:
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == test:
                given = [
                    call.args[1].id
                    for call in node.decorator_list
                    if isinstance(call, ast.Call)
                    and len(call.args) > 1
                    and isinstance(call.args[1], ast.Name)
                ]
                known = names_of(tree)
                return sorted(known[given[0]]) if given and known.get(given[0]) else None
    raise AssertionError(f"there is no test {test}")


@pytest.mark.parametrize(("test", "bugs"), rows(), ids=[test for test, _ in rows()])
def test_the_page_names_the_bugs_of_each_test(test: str, bugs: list[str]) -> None:
    planted = bugs_of(test)
    assert planted is None or planted == sorted(bugs)


def test_no_planted_bug_is_missing_from_the_page() -> None:
    listed = {test for test, _ in rows()}
    planted = {
        node.name
        for tree in TREES
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and any(words in node.name for words in PLANTED)
    }
    assert planted <= listed
