"""The figures of statements and certificates of 0.2.0 are still compared, alone and with their ledger.

Their words are those of another version, so the verdict is "not verified" and the exit code 1.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tacit.cli.app import run

RELEASED = Path(__file__).parents[1] / "artefacts" / "0.2.0"
FILES = sorted(RELEASED.glob("*.json"), key=lambda path: path.name)
CHARGED = [path for path in FILES if path.name.startswith(("charged", "certificate"))]


def test_there_is_one_of_each() -> None:
    """So that the tests below are not of an empty folder."""
    kinds = [path.name.partition("-")[0] for path in FILES]
    assert [kinds.count(kind) for kind in ("certificate", "charged", "statement")] == [4, 3, 12]
    assert {json.loads(path.read_text())["format"] for path in FILES} == {1}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_figures_of_0_2_0_agree(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(path)]) == 1
    assert capsys.readouterr().out.startswith("NOT VERIFIED\n")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: to open a ledger writes beside it."""
    return Path(shutil.copy(RELEASED / "ledger.db", tmp_path_factory.mktemp("ledger")))


@pytest.mark.parametrize("path", CHARGED, ids=lambda path: path.stem)
def test_figures_of_0_2_0_agree_with_their_ledger(
    path: Path, ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", str(path), "--ledger", f"sqlite:///{ledger}"]) == 1
    assert capsys.readouterr().out.startswith("NOT VERIFIED\n")


@pytest.mark.parametrize("path", CHARGED, ids=lambda path: path.stem)
def test_planted_bug_less_noise_than_0_2_0_paid_for_is_found(
    path: Path, ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Old files are checked, and not passed over."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if "mechanisms" in data:
        data["mechanisms"][0]["cost"][0] -= 10**9
    else:
        data["guarantee"]["epsilon"] *= 0.9
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(data), encoding="utf-8")
    assert run(["verify", str(changed), "--ledger", f"sqlite:///{ledger}"]) == 1
    assert not capsys.readouterr().out.startswith("NOT VERIFIED\n")
