"""The documentation site: its pages run, its reference has every name, and it needs no network."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import torch
import warm
from pages import blocks_of, module_at
from sklearn.datasets import load_breast_cancer

from tacit.ledger import Ledger

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TUTORIALS = sorted(path.stem for path in (DOCS / "tutorials").glob("*.md") if path.stem != "index")
# The pages whose blocks go on from each other; other pages have tests of their own.
PAGES = [
    DOCS / "index.md",
    DOCS / "explanation" / "what-epsilon-means.md",
    DOCS / "reference" / "support.md",
    *(
        DOCS / "how-to" / f"{name}.md"
        for name in (
            "coming-from",
            "plan-and-account",
            "prepare-data",
            "share-and-prove",
            "train",
            "troubleshooting",
            "which-settings",
        )
    ),
]
PEERS = ("opacus", "tensorflow_privacy", "jax_privacy")
CELL = re.compile(r"^```\{code-cell\}\n(?:(?::[^\n]*\n)*)(.*?)^```$", re.MULTILINE | re.DOTALL)
LARGEST = 30_000_000  # bytes of the whole site


# --- the code of the pages -------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=[path.stem for path in PAGES])
def test_code_of_a_page_runs_and_prints_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of a page go on from each other; those of other libraries run where these are installed."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for code in blocks_of(page):
            peers = [name for name in PEERS if f"from {name} import" in code]
            if any(importlib.util.find_spec(name) is None for name in peers):
                continue
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(code, page.name, "exec"), names)
            told = re.findall(r"^(?: *print\(.*\)  )?# (.*)$", code, re.MULTILINE)
            assert printed.getvalue().splitlines() == told, code


def test_there_are_pages_with_code_and_each_peer_has_a_program() -> None:
    assert sum(len(blocks_of(page)) for page in PAGES) > 20
    text = "".join(blocks_of(DOCS / "how-to" / "coming-from.md"))
    assert all(f"from {name} import" in text for name in PEERS)


def test_the_tests_that_hold_what_is_supported_exist() -> None:
    text = (DOCS / "reference" / "support.md").read_text(encoding="utf-8")
    cells = " ".join(re.findall(r"^\| .* \| ([^|]*) \|$", text, re.MULTILINE))
    names = re.findall(r"`([\w/]+/[\w.]*|[\w/]+\.py)`", cells)
    assert len(names) > 20
    assert [name for name in names if not (ROOT / "tests" / name).exists()] == []


def script(page: Path) -> str:
    """The cells of a notebook as one program; ``%%bash`` hands a cell to the shell.

    But for a cell that is one command of ``tacit``, which runs in the same process, without another second
    for each import.
    """
    lines = ["import subprocess", "import tacit.cli.app"]
    for cell in CELL.findall(page.read_text(encoding="utf-8")):
        magic, _, rest = cell.partition("\n")
        if magic != "%%bash":
            lines.append(cell)
        elif found := re.fullmatch(r"tacit ((?:[^\n|;&<>]|\\\n)+?)( 2>/dev/null)?\n", rest):
            words = shlex.split(found[1].replace("\\\n", " "))
            lines.append(f"assert tacit.cli.app.run({words!r}) == 0")
        else:
            lines.append(f"subprocess.run({['bash', '-euo', 'pipefail', '-c', rest]!r}, check=True)")
    return "\n".join(lines)


def follow(name: str, folder: Path) -> str:
    """Run a tutorial as a reader would, and return what it prints; its hidden cells check the figures."""
    done = warm.run(
        script(DOCS / "tutorials" / f"{name}.md"),
        cwd=folder,
        env={
            **os.environ,
            "MPLBACKEND": "agg",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_tutorial_runs(tmp_path: Path) -> None:
    assert "PRIVACY STATEMENT" in follow("first-private-model", tmp_path)


def test_a_table_leads_to_predictions_and_leaves_what_is_listed(tmp_path: Path) -> None:
    follow("your-own-table", tmp_path)
    assert "PRIVACY STATEMENT" in (tmp_path / "runs" / "first" / "statement.txt").read_text("utf-8")
    text = (DOCS / "tutorials" / "your-own-table.md").read_text(encoding="utf-8")
    rows = text.partition("## What a run leaves\n")[2].partition("\n## ")[0]
    first_cells = re.findall(r"^\| (`[^|]*) \|", rows, re.MULTILINE)
    listed = {name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)}
    left = {path.name + "/" * path.is_dir() for path in (tmp_path / "runs" / "first").iterdir()}
    assert left == listed
    predictions = pd.read_csv(tmp_path / "predictions.csv")
    truth = load_breast_cancer(as_frame=True).frame.sample(frac=1, random_state=0)["target"][469:]
    right = (predictions["prediction"] == truth.map({0: "malignant", 1: "benign"}).to_numpy()).mean()
    assert right > 0.8 > truth.mean() + 0.1


@pytest.mark.thorough(instead="test_a_table_leads_to_predictions_and_leaves_what_is_listed")
def test_one_budget_from_the_first_line_to_the_last(tmp_path: Path) -> None:
    """A run, three queries and a refusal on one ledger."""
    printed = follow("team-budget", tmp_path)
    assert printed.count("It cost ε = ") == 3
    assert "exit code 1" in printed
    assert "PRIVACY CERTIFICATE" in printed
    assert "NOT below 1" not in printed
    ledger = Ledger.open(tmp_path / "budget.db")
    assert ledger.verify("patients").ok
    assert 2.0 < ledger.status("patients").spent_epsilon <= 4.0


@pytest.mark.thorough(instead="test_a_table_leads_to_predictions_and_leaves_what_is_listed")
def test_a_survival_study_leads_to_a_certificate(tmp_path: Path) -> None:
    printed = follow("survival-study", tmp_path)
    assert "Log-rank test of the two groups" in printed
    assert (tmp_path / "curves.png").exists()
    assert "PRIVACY CERTIFICATE" in printed
    ledger = Ledger.open(tmp_path / "budget.db")
    assert ledger.verify("study").ok
    assert 2.5 < ledger.status("study").spent_epsilon <= 4.0


@pytest.mark.thorough(instead="test_the_first_tutorial_runs")
@pytest.mark.parametrize("name", ["hospital", "private-assistant", "attack-and-audit"])
def test_long_tutorials_run(name: str, tmp_path: Path) -> None:
    assert follow(name, tmp_path)


def test_every_tutorial_checks_its_figures_and_has_a_test() -> None:
    tested = {
        "first-private-model",
        "your-own-table",
        "survival-study",
        "team-budget",
        "private-assistant",
        "attack-and-audit",
        "hospital",
    }
    of_packages = {"public-text", "public-images"}  # whose figures test_public_model_pages.py checks
    assert set(TUTORIALS) == tested | of_packages
    for name in tested:
        text = (DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
        hidden = re.findall(r"^```\{code-cell\}\n:tags: \[remove-cell\]\n(.*?)^```$", text, re.M | re.DOTALL)
        assert any("assert " in cell for cell in hidden), name


def test_every_page_has_a_place_in_the_site() -> None:
    """Sphinx finds pages by tables of contents; what it makes from the code is named in one too."""
    pages = {path for path in DOCS.rglob("*.md") if "generated" not in path.parts}
    placed = {DOCS / "index.md"}
    for page in pages:
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", page.read_text("utf-8"), re.M | re.DOTALL):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            placed |= {(page.parent / f"{entry}.md").resolve() for entry in entries}
    assert pages <= placed, pages - placed


# --- the reference ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return module_at(DOCS / "reference_pages.py")


@pytest.fixture(scope="module")
def written(generator: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    generator.write_pages(folder)
    return folder


def test_every_public_name_has_an_entry(generator: ModuleType, written: Path) -> None:
    for module_name, names in generator.homes().items():
        module = importlib.import_module(module_name)
        assert set(names) == set(module.__all__)
        for name, home in names.items():
            value = getattr(module, name)
            described = inspect.isclass(value) or inspect.isfunction(value)
            place = home if described else home.rpartition(".")[0]
            page = (written / f"{place}.rst").read_text(encoding="utf-8")
            known = inspect.ismodule(value) or name.startswith("__")
            assert known or re.search(rf":: {re.escape(home)}$", page, re.MULTILINE), home


def test_every_verb_key_and_error_has_an_entry(written: Path) -> None:
    from tacit.cli.app import _VERBS
    from tacit.runs.config import Config

    told = (written / "cli.md").read_text(encoding="utf-8")
    assert all(f"## `tacit {verb}`\n" in told for verb in _VERBS)
    assert "| `--largest-batch` |" in told
    assert "### `tacit ledger raise-cap`" in told
    keys = (written / "run-file.md").read_text(encoding="utf-8")
    for name, field in Config.model_fields.items():
        assert f"`[{name}]`" in keys or f"`{name}`" in keys or f"`[{name}." in keys, name
        for key in getattr(field.annotation, "model_fields", {}):
            assert f"| `{key}` |" in keys, key
    assert "| `delta` | number | required |" in keys
    errors = (written / "errors.md").read_text(encoding="utf-8")
    assert "### PrivacyRefusal\n" in errors
    assert "batch\\_size is …, but `sampling` draws …" in errors


# --- the site --------------------------------------------------------------------------------------------


@pytest.mark.thorough(instead="test_every_page_has_a_place_in_the_site")
def test_the_site_is_built_without_warnings_and_without_network(tmp_path: Path) -> None:
    """As ``make docs`` does, but for the code of the tutorials, which has tests above."""
    for package in ("sphinx", "myst_nb", "pydata_sphinx_theme", "sphinx_design"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the site needs {package}; make docs installs it")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-D", "nb_execution_mode=off",
         "-d", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "site")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < LARGEST
    assert (site / "searchindex.js").exists()
    for page in site.rglob("*.html"):
        for tag in re.findall(
            r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text(encoding="utf-8")
        ):
            assert not re.search(r"(?:src|href)=\"(?:https?:)?//", tag), (page.name, tag)
    for sheet in site.rglob("*.css"):
        assert not re.search(
            r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")
        ), sheet
