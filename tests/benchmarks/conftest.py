"""Shared fixtures of the tests of the benchmarks."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the benchmarks or of the docs."""
    for folder in ("benchmarks", "docs"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    return importlib.import_module


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., Any]:
    """Run a benchmark in a process of its own, and return the JSON that it leaves."""

    def run(name: str, *words: str) -> Any:
        out = tmp_path / "found.json"
        command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *words, "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(out.read_text())

    return run
