"""Draw 60 sentences of the main pages, 40 public docstrings and 30 errors for a fresh reader.

Run ``python tests/reading_sample.py --seed 1 --out sample.md``.  The reader, who knows PyTorch but not Tacit,
marks what had to be read twice.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import random
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    *(
        ROOT / "docs" / "how-to" / f"{name}.md"
        for name in ("install", "train", "which-settings", "troubleshooting")
    ),
    ROOT / "docs" / "explanation" / "what-epsilon-means.md",
]
SENTENCES, DOCSTRINGS, ERRORS = 60, 40, 30
KINDS = (property, cached_property, classmethod, staticmethod)


def generator() -> Any:
    """Return the module that writes the reference."""
    spec = importlib.util.spec_from_file_location("reference_pages", ROOT / "docs" / "reference_pages.py")
    assert spec is not None
    assert spec.loader is not None
    pages: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    return pages


def sentences() -> Iterator[str]:
    """The sentences of the main pages, without code, tables and headings."""
    left_out = re.compile(r"^```.*?^```$|^---$.*?^---$|^[|#][^\n]*$", re.MULTILINE | re.DOTALL)
    for page in PAGES:
        text = left_out.sub("", page.read_text(encoding="utf-8"))
        for paragraph in text.split("\n\n"):
            line = " ".join(paragraph.split())
            parts = re.split(r"(?<=[.!?:])\s+(?=[A-Z*`])", line)
            yield from (f"* {one} ({page.stem})" for one in parts if len(one) > 30)


def docstrings(pages: Any) -> Iterator[str]:
    """The docstrings of public names and of their public members, as the reference has them."""
    for module_name, names in pages.homes().items():
        for name, home in names.items():
            value = getattr(importlib.import_module(module_name), name)
            if home != f"{module_name}.{name}" or not (inspect.isclass(value) or inspect.isfunction(value)):
                continue
            members = {f".{key}": one for key, one in vars(value).items() if key[0] != "_"}
            for key, one in {"": value, **(members if inspect.isclass(value) else {})}.items():
                said = one.__doc__ if callable(one) or isinstance(one, KINDS) else None
                if said:
                    yield f"**{home}{key}**\n\n```text\n{inspect.cleandoc(said)}\n```"


def sample(seed: int) -> str:
    """Write the texts drawn with a seed as Markdown."""
    draw = random.Random(seed).sample
    pages = generator()
    errors = [
        f"* {text}" for parts in pages._messages().values() for texts in parts.values() for text in texts
    ]
    return "\n\n".join(
        (
            f"# Sentences, seed {seed}",
            *draw([*sentences()], SENTENCES),
            "# Docstrings",
            *draw([*docstrings(pages)], DOCSTRINGS),
            "# Errors",
            *draw(errors, ERRORS),
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.write_text(sample(options.seed), encoding="utf-8")
