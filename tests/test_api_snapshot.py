"""The public names with their signatures, as tests/api.txt has them: no change of one goes unnoticed.

Write the file anew with ``python tests/test_api_snapshot.py``, and say in CHANGELOG.md what users see of it.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pages import module_at

HERE = Path(__file__).parent
SNAPSHOT = HERE / "api.txt"
MOST = 209
"""Names that a reader of the reference meets."""


def reference() -> Any:
    """docs/reference_pages.py, which decides what is public."""
    return module_at(HERE.parent / "docs/reference_pages.py")


def public() -> dict[str, Any]:
    """Return all that is documented, by its full name, once."""
    return {
        home: getattr(importlib.import_module(module), name)
        for module, names in reference().homes().items()
        for name, home in names.items()
        if home == f"{module}.{name}" and not name.startswith("__")
    }


def lines() -> Iterator[str]:
    """The snapshot; functions stand in it without their place in memory."""
    yield from (re.sub(r" at 0x[0-9a-f]+", "", line) for line in _lines())


def _lines() -> Iterator[str]:
    for home, value in sorted(public().items()):
        if inspect.isclass(value):
            bases = [base.__name__ for base in value.__bases__ if base is not object]
            yield f"class {home}({', '.join(bases)})"
            yield from (f"    {line}" for line in sorted(members(value)))
        elif inspect.isfunction(value):
            yield f"def {home}{signature(value)}"
        else:
            yield f"{home}: {type(value).__name__}"


def signature(function: Any) -> str:
    """Without the places in memory of functions that are defaults."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(function)))


def members(kind: type) -> Iterator[str]:
    """A class's own: how it is made, its methods and properties."""
    if "__init__" in vars(kind) and not issubclass(kind, BaseException):
        yield f"__init__{signature(vars(kind)['__init__'])}"
    for name, value in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(value, classmethod | staticmethod):
            yield f"{name}{signature(value.__func__)}"
        elif inspect.isfunction(value):
            yield f"{name}{signature(value)}"
        elif isinstance(value, property) or type(value).__name__ == "cached_property":
            yield name


def test_what_users_import_is_as_it_was() -> None:
    now, then = list(lines()), SNAPSHOT.read_text(encoding="utf-8").splitlines()
    assert {"gone": sorted({*then} - {*now}), "new": sorted({*now} - {*then})} == {"gone": [], "new": []}


def test_the_documented_surface_can_be_read() -> None:
    assert len(public()) <= MOST


def told(value: Any) -> str:
    """The docstrings of a function, or of a class and its members."""
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return ""
    own = vars(value).values() if inspect.isclass(value) else ()
    return "\n".join(
        inspect.getdoc(each) or ""
        for each in (value, *own)
        if each is value or callable(each) or isinstance(each, property | classmethod | staticmethod)
    )


def test_each_name_has_an_example_that_runs() -> None:
    """On a page, whose code the tests run, or in a docstring of the package."""
    pages = [
        HERE.parent / "README.md",
        *(HERE.parent / "docs").rglob("*.md"),
        *(HERE.parent / "docs").rglob("*.ipynb"),
    ]
    text = [
        path.read_text(encoding="utf-8") for path in pages if "results" not in (path.stem, path.parent.name)
    ]
    for path in (HERE.parent / "src").rglob("*.py"):
        code = path.read_text(encoding="utf-8").splitlines()
        text += [line for line in code if line.lstrip().startswith((">>> ", "... "))]
    seen = set(re.findall(r"\w+", "\n".join(text)))
    without = [home for home, value in public().items() if ">>>" not in told(value)]
    assert [home for home in without if home.rpartition(".")[2] not in seen] == []


def test_a_changed_signature_is_seen() -> None:
    kept = public()["tacit.plan.Plan"]
    assert any(line.startswith("calibrate(") and "rows_per_user" in line for line in members(kept))


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(lines()) + "\n", encoding="utf-8")
