"""The wheel and the sdist hold the whole package, and the installed wheel runs without the checkout."""

from __future__ import annotations

import email.parser
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import tacit

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
STEM = f"tacit_dp-{tacit.__version__}"
COMPILED = "tacit/native/kernels.so"
DATA = {  # files that are no Python: without these the comparison of whole lists could be empty
    "tacit/py.typed",
    "tacit/native/noise.cpp",
    "tacit/native/noise_kernel.h",
    "tacit/runs/demo.toml",
    "tacit/report/certificate.schema.json",
    "tacit/report/templates/run.html",
    "tacit/cli/playground.html",
}
PAGES = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"}
NO_COMPILER = dict.fromkeys(("CC", "CXX", "LDSHARED", "LDCXXSHARED"), "/nonexistent/compiler")
# Run in the fresh environment: finds the installed package, reads its bundled files, trains one step.
ONE_STEP = """
import sys
from importlib import metadata
from pathlib import Path

import torch

import tacit
from tacit import Plan, PrivateSession, native
from tacit.report.document import page
from tacit.report.verification import read_schema
from tacit.runs import read_config

package = Path(tacit.__file__).parent
assert package.is_relative_to(sys.prefix), package
assert metadata.version("tacit-dp") == tacit.__version__
assert read_schema("certificate.schema.json")["$schema"]
assert page("base.html", "")
assert read_config(package / "runs" / "demo.toml").privacy.epsilon > 0
assert (native.library() is not None) == (package / "native" / "kernels.so").exists(), native.why_not()

torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
before = model.weight.detach().clone()
plan = Plan.calibrate(
    epsilon=3, delta=1e-3, unit="row", adjacency="add-remove", records=64, batch_size=16, epochs=1, clipping=1
)
losses = lambda model, x, y: torch.nn.functional.cross_entropy(model(x), y, reduction="none")
records = torch.randn(64, 3), torch.randint(2, (64,))
session = PrivateSession(model, torch.optim.SGD(model.parameters(), lr=0.1), records, plan, loss=losses)
for batch in session.epoch():
    session.step(batch)
    break
assert 0 < session.epsilon <= 3
assert not torch.equal(model.weight, before)
"""

pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="not a source tree")


def command(*arguments: str | Path, cwd: Path, more: Mapping[str, str] | None = None) -> str:
    """Run a program that neither a variable of this process nor an index of packages can reach."""
    ours = ("PYTHON", "PIP_", "COV_", "VIRTUAL_ENV", "TACIT_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        list(map(str, arguments)),
        cwd=cwd,
        env=environment | dict(more or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copied(folder: Path) -> Path:
    """A copy of what a build reads, so that none leaves anything in the checkout or finds an earlier one."""
    left_out = shutil.ignore_patterns("*.so", "*.pyc", "__pycache__", "*.egg-info")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", *PAGES):
        shutil.copy(ROOT / name, folder)
    return folder


def build(kind: str, source: Path, out: Path, more: Mapping[str, str] | None = None) -> Path:
    """Build an "sdist" or a "wheel" as an installer would: by the backend, in a process of its own."""
    out.mkdir()
    code = f"import setuptools.build_meta as backend; backend.build_{kind}({str(out)!r})"
    command(sys.executable, "-c", code, cwd=source, more=more)
    (built,) = out.iterdir()
    return built


def sources() -> set[str]:
    """Every file of the package, relative to src/."""
    files = (path for path in (ROOT / "src" / "tacit").rglob("*") if path.is_file())
    return {path.relative_to(ROOT / "src").as_posix() for path in files if path.suffix not in {".so", ".pyc"}}


def in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.startswith(f"{STEM}.dist-info/")}


def in_sdist(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {member.name.removeprefix(f"{STEM}/") for member in archive.getmembers() if member.isfile()}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", copied(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("sdist") / "out")


def test_the_sdist_holds_every_file_of_the_package_and_no_part_of_the_tests(sdist: Path) -> None:
    assert sources() >= DATA
    files = in_sdist(sdist)
    assert {name.removeprefix("src/") for name in files if name.startswith("src/tacit/")} == sources()
    assert files >= PAGES | {"pyproject.toml", "setup.py"}
    assert not [name for name in files if name.startswith("tests/")]


@pytest.mark.parametrize("more", [NO_COMPILER, {"TACIT_NATIVE": "0"}], ids=["no compiler", "not wanted"])
def test_a_wheel_without_kernels_is_one_for_every_platform(tmp_path: Path, more: dict[str, str]) -> None:
    wheel = build("wheel", copied(tmp_path / "checkout"), tmp_path / "out", more)
    assert in_wheel(wheel) == sources()
    assert wheel.name == f"{STEM}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert "Root-Is-Purelib: true" in archive.read(f"{STEM}.dist-info/WHEEL").decode()


@pytest.mark.thorough(instead="test_the_sdist_holds_every_file_of_the_package_and_no_part_of_the_tests")
def test_a_wheel_of_the_sdist_holds_the_same_and_runs_where_it_is_installed(
    sdist: Path, tmp_path: Path
) -> None:
    pip, out = (sys.executable, "-m", "pip"), tmp_path / "wheel"
    command(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, sdist, cwd=tmp_path)
    (wheel,) = out.iterdir()
    compiler = shutil.which(os.environ.get("CXX", "g++")) is not None
    assert in_wheel(wheel) == sources() | ({COMPILED} if compiler else set())
    assert wheel.name.startswith(f"{STEM}-py3-none-")
    assert wheel.name.endswith("-any.whl") != compiler

    venv.create(tmp_path / "fresh", symlinks=True)
    python, tacit_command = (tmp_path / "fresh" / "bin" / name for name in ("python", "tacit"))
    install = ("--python", python, "install", "--no-deps", "--no-compile", wheel)
    command(*pip, *install, cwd=tmp_path)
    with_dependencies(python)
    assert command(tacit_command, "--version", cwd=tmp_path).strip() == tacit.__version__
    assert "train" in command(tacit_command, "--help", cwd=tmp_path)
    command(python, "-I", "-c", ONE_STEP, cwd=tmp_path)


def with_dependencies(python: Path) -> None:
    """Let an environment find the packages of this one; an editable Tacit is not among them.

    The folders are entered in a .pth file, and Python reads no .pth files of folders that it finds in one.
    """
    where = command(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=python.parent)
    folders = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    (Path(where.strip()) / "dependencies.pth").write_text("\n".join(folders), encoding="utf-8")


def test_the_metadata_say_where_the_project_lives_and_what_it_runs_on(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        member = archive.extractfile(f"{STEM}/PKG-INFO")
        assert member is not None
        found = email.parser.Parser().parsestr(member.read().decode())
    assert found["Version"] == tacit.__version__
    assert found["License-Expression"] == "Apache-2.0"
    links = dict(link.split(", ") for link in found.get_all("Project-URL", []))
    assert set(links) == {"Homepage", "Documentation", "Repository", "Issues", "Changelog"}
    assert all(link.startswith(links["Repository"]) for link in links.values())
    classifiers = set(found.get_all("Classifier", []))
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert {"Typing :: Typed", f"Programming Language :: Python :: {oldest}"} <= classifiers


def test_links_of_the_readme_work_where_there_are_no_files(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        member = archive.extractfile(f"{STEM}/PKG-INFO")
        assert member is not None
        text = member.read().decode()
    links = re.findall(r"\]\(([^)\s]+)", text)
    home = PROJECT["urls"]["Repository"]
    assert [link for link in links if not link.startswith("https://")] == []
    assert f"{home}/blob/v{tacit.__version__}/docs/how-to/install.md" in links
    assert f"{home}/raw/v{tacit.__version__}/docs/pictures/playground-page.png" in links
    paths = [link.partition("#")[0].split("/", 7)[7] for link in links if f"/v{tacit.__version__}/" in link]
    assert all((ROOT / path).exists() for path in paths)


def test_every_address_of_the_project_is_one_that_the_metadata_name() -> None:
    home = PROJECT["urls"]["Repository"]
    files = [*(ROOT / ".github").rglob("*.*"), ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"]
    texts = [path.read_text(encoding="utf-8") for path in files if path.is_file()]
    found = [link for text in texts for link in re.findall(r"https://github\.com/\S*tacit[^\s)]*", text)]
    assert found
    assert all(link.startswith(home) for link in found), found


# --- without extras --------------------------------------------------------------------------------------

# Hides every package but NumPy, SciPy and Python's own, as where `pip install tacit-dp` has put nothing else.
ALONE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        known = {*sys.stdlib_module_names, "numpy", "scipy", "tacit"}
        if path is None and top not in known and not top.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""
PRICE = """
from tacit.accounting import account
from tacit.events import Gaussian, PoissonSampled, Repeat
import tacit, tacit.planner

event = Repeat(PoissonSampled(0.01, Gaussian(4.0)), 10_000)
print(round(account(event, adjacency="add-remove").epsilon(1e-5), 4))
plan = tacit.Plan.calibrate(
    epsilon=2.0, delta=1e-5, records=10_000, batch_size=100, epochs=1, clipping=1.0, adjacency="add-remove",
    unit="row",
)
print(plan.epsilon <= 2.0)
"""


def alone(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", ALONE + code], capture_output=True, text=True, check=False)


def test_without_extras_there_is_accounting_with_numpy_and_scipy_alone() -> None:
    needed = {re.split(r"[<>=~!\\[; ]", line)[0] for line in PROJECT["dependencies"]}
    assert needed == {"numpy", "scipy"}
    done = alone(PRICE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0.9469", "True"]


def test_without_extras_the_command_says_which_one_to_install() -> None:
    done = alone("sys.argv = ['tacit', 'demo']\nfrom tacit.cli import main\nmain()")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "is missing). Install them in your checkout of Tacit with: pip install -e '.[cli]'" in done.stderr
    assert "typer" in " ".join(PROJECT["optional-dependencies"]["cli"])


def test_what_is_hidden_is_hidden() -> None:
    done = alone("import torch")
    assert done.returncode == 1
    assert "No module named 'torch'" in done.stderr
