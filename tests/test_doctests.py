"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
import torch

import tacit

ROOT = Path(tacit.__file__).parent
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def with_examples() -> list[str]:
    names = []
    for path in sorted(ROOT.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
            names.append(name.removesuffix(".__init__"))
    return names


@pytest.mark.parametrize("name", with_examples())
def test_examples_of(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = importlib.import_module(name)
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


def test_a_wrong_example_fails() -> None:
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(verbose=False, optionflags=FLAGS)

    def wrong() -> None:
        """
        >>> 1 + 1
        3
        """

    found = finder.find(wrong, "wrong", globs={})
    assert sum(runner.run(test, out=lambda _: None).failed for test in found) == 1
