"""Pages of the documentation: their blocks of code, and the output of these."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

ROOT = Path(__file__).parents[2]


def text_of(page: str) -> str:
    (path,) = (found for found in (ROOT / "docs").rglob(page) if found.parent.name != "results")
    return path.read_text(encoding="utf-8")


def blocks_of(page: str | Path, kind: str = "python") -> list[str]:
    """Return the blocks of a kind, a pattern, of a page of the documentation, or of one by its path."""
    text = text_of(page) if isinstance(page, str) else page.read_text(encoding="utf-8")
    return re.findall(rf"^```(?:{kind})\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def module_at(path: Path) -> ModuleType:
    """Import a script."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def comments_of(program: str) -> list[str]:
    """Return the output that comments after calls of print state."""
    return re.findall(r"^ *print\(.*\)  # (.*)$", program, re.MULTILINE)


def printed(programs: Sequence[str], names: dict[str, Any] | None = None) -> list[str]:
    """Return the output of each program, run one after the other; ``names`` gets their variables."""
    names, found = {} if names is None else names, []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for program in programs:
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(program, "<page>", "exec"), names)
            found.append(output.getvalue())
    return found
