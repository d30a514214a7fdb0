"""The optional kernels: built where they can be, refused when they do not belong, done without otherwise."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import warm

from tacit import native
from tacit.native import loading
from tacit.native.sources import digest

ROOT = Path(native.__file__).parents[3]
FOLDER = Path(native.__file__).parent
BUILT = FOLDER / "kernels.so"
needs_build = pytest.mark.skipif(not BUILT.exists(), reason="the kernels are not built")


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no compiler")
def test_where_there_is_a_compiler_there_are_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TACIT_NATIVE", raising=False)
    assert native.library() is not None, f"{native.why_not()}; run: python setup.py build_ext --inplace"
    assert native.why_not() is None


def test_they_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_NATIVE", "0")
    assert native.library() is None
    assert "TACIT_NATIVE=0" in str(native.why_not())


def copied(folder: Path) -> Path:
    for path in FOLDER.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    return folder


def test_a_missing_or_broken_library_is_done_without(tmp_path: Path) -> None:
    assert "not built" in str(loading._open(tmp_path)[1])
    (tmp_path / "kernels.so").write_text("no library")
    library, reason = loading._open(tmp_path)
    assert library is None
    assert "cannot be used" in str(reason)


@needs_build
def test_a_build_of_other_sources_is_not_used(tmp_path: Path) -> None:
    assert loading._open(copied(tmp_path))[1] is None
    with (tmp_path / "library.cpp").open("a") as source:
        source.write("// changed\n")
    library, reason = loading._open(tmp_path)
    assert library is None
    assert "different sources" in str(reason)


def test_digest_sees_names_and_contents(tmp_path: Path) -> None:
    seen = {digest(tmp_path)}
    for name, text in (("a.cpp", "x"), ("a.cpp", "y"), ("b.h", ""), ("c.h", "")):
        (tmp_path / name).write_text(text)
        seen.add(digest(tmp_path))
    assert len(seen) == 5
    (tmp_path / "notes.txt").write_text("of no account")
    assert digest(tmp_path) in seen


@pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="not a source tree")
def test_without_a_compiler_the_build_passes_and_leaves_no_library(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    shutil.copytree(FOLDER, tmp_path / "src/tacit/native", ignore=shutil.ignore_patterns("*.so"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    nothing = dict.fromkeys(("CC", "CXX", "LDSHARED", "LDCXXSHARED"), "/nonexistent/compiler")
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=tmp_path,
        env={**os.environ, **nothing},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("*.so"))


@needs_build
@pytest.mark.skipif(sys.platform != "linux", reason="reads the maps of the process")
def test_torch_and_the_kernels_share_one_openmp_runtime() -> None:
    code = """
from tacit import native
assert native.library() is not None, native.why_not()
from pathlib import Path
maps = Path("/proc/self/maps").read_text().split()
print(len({part for part in maps if "libgomp" in part}))
"""
    environment = {key: value for key, value in os.environ.items() if key != "TACIT_NATIVE"}
    done = warm.run(code, env=environment)
    assert done.stdout.strip() == "1", done.stderr


@needs_build
@pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file")
def test_the_kernels_ask_for_no_openmp_runtime_by_name() -> None:
    """Builds of torch name theirs as they like: by name a second one would be loaded, or none found."""
    content = BUILT.read_bytes()
    assert b"GOMP_parallel" in content or b"__kmpc_fork_call" in content
    assert b"libgomp" not in content, "an old build; run: python setup.py build_ext --inplace"
