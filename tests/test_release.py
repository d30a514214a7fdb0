"""``make release`` finds the mistakes that it is for; the container and the recipe fit the package."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pages import module_at

import tacit

ROOT = Path(__file__).parent.parent
FILES = {
    "pyproject.toml": '[project]\nversion = "1.2.3"\n',
    "src/tacit/__init__.py": '__version__ = "1.2.3"\n',
    "CITATION.cff": "version: 1.2.3\ndate-released: 2030-01-02\n",
    "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2030-01-02\n\n- New.\n\n## [1.0.0]\n",
    "release/recipe.yaml": 'context:\n  version: "1.2.3"\n',
    "Dockerfile": 'FROM x\nLABEL org.opencontainers.image.version="1.2.3"\n',
    "README.md": "# Tacit\n\npip install tacit-dp==1.2.3, [more](docs/how-to/install.md#more)\n",
    "docs/how-to/install.md": "tacit_dp-1.2.3-py3-none-any.whl\n",
}
pytestmark = pytest.mark.skipif(not (ROOT / "release").exists(), reason="not a source tree")


@pytest.fixture(scope="module")
def make() -> ModuleType:
    return module_at(ROOT / "release" / "make.py")


def git(folder: Path, *arguments: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *name, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project that may be released."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "All")
    return tmp_path


def changed(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")
        git(folder, "commit", "--quiet", "--all", "--message", "Plant")

    return change


def tagged(folder: Path) -> None:
    git(folder, "tag", "v1.2.3")


def left_behind(folder: Path) -> None:
    (folder / "notes.txt").write_text("x", encoding="utf-8")


PLANTED: dict[str, tuple[Callable[[Path], None], str]] = {
    "module": (changed("src/tacit/__init__.py", "1.2.3", "1.2.2"), "says 1.2.2, pyproject.toml 1.2.3"),
    "citation": (changed("CITATION.cff", "1.2.3", "1.2.4"), "CITATION.cff says 1.2.4"),
    "no version": (changed("CITATION.cff", "version:", "edition:"), "CITATION.cff states no version"),
    "changelog": (changed("CHANGELOG.md", "[1.2.3]", "[1.2.0]"), "CHANGELOG.md says 1.2.0"),
    "no date": (changed("CHANGELOG.md", " - 2030-01-02", ""), "CHANGELOG.md states no version"),
    "other date": (changed("CHANGELOG.md", "2030-01-02", "2030-01-03"), "by CHANGELOG.md on 2030-01-03"),
    "no day": (changed("CITATION.cff", "date-released", "date"), "was released on no day"),
    "unreleased": (changed("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\nNew.\n"), "under [Unreleased]"),
    "no unreleased": (changed("CHANGELOG.md", "## [Unreleased]\n", ""), "has no heading [Unreleased]"),
    "recipe": (changed("release/recipe.yaml", "1.2.3", "1.2.2"), "recipe.yaml says 1.2.2"),
    "container": (changed("Dockerfile", "1.2.3", "1.2.2"), "Dockerfile says 1.2.2"),
    "readme": (changed("README.md", "==1.2.3", "==1.2.2"), "README.md names 1.2.2"),
    "page": (changed("docs/how-to/install.md", "1.2.3", "1.2.2"), "docs/how-to/install.md names 1.2.2"),
    "long": (changed("README.md", "# Tacit\n", "# Tacit\n" * 199), "has 201 lines; 200 are allowed"),
    "link": (
        changed("README.md", "install.md", "instal.md"),
        "links to docs/how-to/instal.md, which is not there",
    ),
    "tag": (tagged, "a tag v1.2.3 already"),
    "not committed": (left_behind, "the checkout is not clean: notes.txt"),
}  # fmt: skip


def test_a_tree_without_mistakes_passes(make: ModuleType, tree: Path) -> None:
    assert make.facts(tree) == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found_and_nothing_else(make: ModuleType, tree: Path, name: str) -> None:
    plant, told = PLANTED[name]
    plant(tree)
    found = make.facts(tree)
    assert len(found) == 1, found
    assert told in found[0]


def test_a_file_that_is_missing_or_too_many_is_found(make: ModuleType, tmp_path: Path) -> None:
    package = {"tacit/py.typed", "tacit/runs/demo.toml", "tacit/native/noise.cpp"}
    kernels = "tacit/native/kernels.so"
    pure, native = tmp_path / "a-1-py3-none-any.whl", tmp_path / "a-1-py3-none-manylinux_2_24_x86_64.whl"
    for wheel, names in ((pure, package), (native, package | {kernels})):
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in {*names, "tacit/", "a-1.dist-info/WHEEL"}:
                archive.writestr(name, "x")
        assert make.missing(package, make.in_wheel(wheel), wheel.name) == []
    for name in package:
        assert make.missing(package, package - {name}, pure.name) == [f"{pure.name} lacks {name}"]
    assert make.missing(package, package, native.name) == [f"{native.name} lacks {kernels}"]
    (told,) = make.missing(package, package | {kernels}, pure.name)
    assert f"holds {kernels}, which is not of the package" in told
    sdist = tmp_path / "a-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as packed:
        for name in {"a-1/PKG-INFO", *(f"a-1/src/{name}" for name in package)}:
            entry = tarfile.TarInfo(name)
            entry.size = 1
            packed.addfile(entry, io.BytesIO(b"x"))
    assert make.in_sdist(sdist) == package


def test_a_program_that_fails_ends_the_release_with_its_output(make: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"release: .*ended with 3:\nsaid why"):
        make.run(sys.executable, "-c", "print('said why'); raise SystemExit(3)")


# --- what the other packages say -------------------------------------------------------------------------


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def test_versions_are_the_same_in_every_file_that_states_one(make: ModuleType) -> None:
    assert list(make._versions(ROOT, project()["version"])) == []
    assert project()["version"] == tacit.__version__


def test_the_recipe_asks_for_what_the_package_asks_for() -> None:
    """Two packages have another name there."""
    text = (ROOT / "release" / "recipe.yaml").read_text(encoding="utf-8")
    listed = set(re.findall(r"^ +- ([a-z][a-z0-9-]*) (>=[\d.]+)$", text, re.MULTILINE))
    extras = project()["optional-dependencies"]
    wanted = {("python", project()["requires-python"]), ("setuptools", ">=77")}
    for line in (
        *project()["dependencies"],
        *(one for e in ("torch", "cli", "plots", "sklearn") for one in extras[e]),
    ):
        if not line.startswith("tacit-dp"):
            name, at, least = line.partition(">=")
            name = {"torch": "pytorch", "matplotlib": "matplotlib-base"}.get(name, name)
            wanted.add((name, at + least))
    assert listed == wanted


def test_the_container_has_a_python_that_the_package_names_and_copies_what_a_build_reads() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    pythons = set(re.findall(r"^FROM python:(\d\.\d+)-", text, re.MULTILINE))
    assert len(pythons) == 1
    assert f"Programming Language :: Python :: {pythons.pop()}" in project()["classifiers"]
    for extra in re.findall(r"\[([a-z,]+)\]", text)[0].split(","):
        assert extra in project()["optional-dependencies"]
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in rules if line.startswith("!")}
    sources = {"src", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "constraints.txt"}
    assert kept >= sources
    assert all((ROOT / name).exists() for name in kept)


def test_the_linters_pass_where_they_are_installed(make: ModuleType) -> None:
    pytest.importorskip("rattler_build", reason="make release installs it")
    if shutil.which(make.beside("hadolint")) is None:
        pytest.skip("make release installs hadolint")
    assert make.linted(ROOT) == []
