"""Missing packages are named, and what needs none of them runs without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tacit.columns import Column
from tacit.datasets import load, load_image_folder, load_table
from tacit.errors import MissingExtra


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make a package look as if it were not installed."""
    for name in (package, *(name for name in sys.modules if name.startswith(f"{package}."))):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(
    ("package", "extra", "call"),
    [
        ("sklearn", "sklearn", lambda folder: load("digits")),
        (
            "PIL",
            "images",
            lambda folder: load_image_folder(folder, size=(2, 2), classes=("a",), test_fraction=0.5),
        ),
        ("pyarrow", "tables", lambda folder: read_parquet(folder / "x.parquet")),
    ],
)
def test_a_missing_package_is_named_with_its_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str, call: Any
) -> None:
    monkeypatch.delenv("TACIT_DATA", raising=False)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "picture.png").write_bytes(b"")
    (tmp_path / "x.parquet").write_bytes(b"")
    hide(monkeypatch, package)
    with pytest.raises(MissingExtra, match=rf"pip install -e '\.\[{extra}\]'"):
        call(tmp_path)


DOCUMENTS = """
import pathlib, sys

sys.modules["pyarrow"] = None
from tacit.datasets import Cutting, load_documents

path = pathlib.Path(sys.argv[1])
cutting = Cutting(3, "first", padding=0)
print(len(load_documents(
    path, text="note", encode=lambda text: [*text.encode()], vocabulary=256, cutting=cutting, test_path=path
).train.inputs))
"""


def test_documents_in_json_lines_need_no_pyarrow(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text('{"note": "abc"}\n{"note": "be"}\n')
    command = [sys.executable, "-c", DOCUMENTS, str(path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "2\n"


def read_parquet(path: Path) -> object:
    number = Column(kind="number", lower=0, upper=1)
    schema = {"a": number, "b": number}
    return load_table(path, target="b", schema=schema, test_path=path)
