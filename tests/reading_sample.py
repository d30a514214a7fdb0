"""Draw 60 docstrings, 40 errors and 10 pages for a reader who knows PyTorch but not Tacit.

Run ``python tests/reading_sample.py --seed 1 --out sample.md``.  The reader marks each sentence that needs a
second reading.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import random
from pathlib import Path
from typing import Any

from test_docstrings import documented  # type: ignore[import-not-found]

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "src" / "tacit").rglob("*.py"))
PAGES = [
    *(ROOT / name for name in ("README.md", "DESIGN.md", "CONTRIBUTING.md")),
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if {"generated", "results"}.isdisjoint(p.parts)),
]

DOCSTRINGS, ERRORS, WHOLE_PAGES = 60, 40, 10


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


def sample(seed: int) -> str:
    """Write the texts drawn with a seed as Markdown; pages by their paths alone."""
    draw = random.Random(seed).sample
    docstrings = [
        f"**{path.relative_to(ROOT).as_posix()}, {name}**\n\n```text\n{docstring}\n```"
        for path in FILES
        for _, name, docstring in documented(ast.parse(path.read_text(encoding="utf-8")))
    ]
    errors = [f"* {text}" for texts in messages().values() for text in texts]
    pages = [f"* {page.relative_to(ROOT).as_posix()}" for page in PAGES]
    return "\n\n".join(
        (
            f"# Docstrings, seed {seed}",
            *draw(docstrings, DOCSTRINGS),
            "# Errors",
            *draw(errors, ERRORS),
            "# Pages",
            *draw(pages, WHOLE_PAGES),
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.write_text(sample(options.seed), encoding="utf-8")
