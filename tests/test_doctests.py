"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import module_at

import tacit

ROOT = Path(tacit.__file__).parent
EXPERIMENTS = Path(__file__).parent.parent / "experiments"
PAGES = Path(__file__).parent.parent / "docs" / "reference_pages.py"
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def with_examples() -> list[str]:
    names = []
    for path in sorted([*ROOT.rglob("*.py"), *EXPERIMENTS.rglob("*.py")]):
        if ">>> " in path.read_text(encoding="utf-8"):
            home = EXPERIMENTS.parent if EXPERIMENTS in path.parents else ROOT.parent
            name = ".".join(path.relative_to(home).with_suffix("").parts)
            names.append(name.removesuffix(".__init__"))
    return names


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # Lightning's own use of torch
@pytest.mark.parametrize("name", with_examples())
def test_examples_of(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    module = importlib.import_module(name)
    if name.startswith("tacit.runs."):
        request.getfixturevalue("no_pictures")
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        failed, tried = doctest.testmod(module, optionflags=FLAGS)
    assert tried > 0, f"no docstring of {name} is found, though it has examples"
    assert failed == 0
    assert list(tmp_path.iterdir()) == [], "an example leaves files behind"


def test_every_package_has_examples() -> None:
    packages = {name.split(".")[1] for name in with_examples() if "." in name}
    assert {"accounting", "clipping", "events", "integrations", "plan", "sampling", "training"} <= packages


def examples_of(value: Any) -> bool:
    """Whether a class, or one of its own methods, or a function shows how it is called."""
    parts = [value]
    if inspect.isclass(value):
        parts += [part for name, part in vars(value).items() if not name.startswith("_")]
    return any(">>> " in (getattr(part, "__doc__", None) or "") for part in parts)


def public_names() -> dict[str, Any]:
    """Classes and functions of the reference, by where they are described.

    Without exceptions and warnings, which their messages explain; a type or a constant has its value there.
    """
    found = {}
    for module, names in module_at(PAGES).homes().items():
        for name, home in names.items():
            value = getattr(importlib.import_module(module), name)
            raised = inspect.isclass(value) and issubclass(value, BaseException)
            if (inspect.isclass(value) or inspect.isfunction(value)) and not raised:
                found[home] = value
    return found


@pytest.mark.skipif(not PAGES.exists(), reason="not a source tree")
def test_every_public_name_has_an_example() -> None:
    names = public_names()
    assert {"tacit.training.PrivateSession", "tacit.accounting.account", "tacit.ledger.Ledger"} <= set(names)
    without = [name for name, value in names.items() if not examples_of(value)]
    assert without == [], "add an example to the docstring"


def test_a_name_without_an_example_is_seen() -> None:
    class Bare:
        """Says what it is."""

        def _inner(self) -> None:
            """
            >>> 1
            1
            """

    class Shown(Bare):
        """Says what it is."""

        def use(self) -> None:
            """
            >>> 1
            1
            """

    assert not examples_of(Bare)
    assert examples_of(Shown)
    assert not examples_of(importlib.import_module)


def test_a_wrong_example_fails() -> None:
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(verbose=False, optionflags=FLAGS)

    def wrong() -> None:
        """
        >>> 1 + 1
        3
        """

    found = finder.find(wrong, "wrong", globs={})
    assert sum(runner.run(test, out=lambda _: None).failed for test in found) == 1
