"""Files of Tacit 0.2.0 in ``tests/artefacts``: models predict the same, runs end with that version."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from tacit.cli.app import run as tacit

LEFT = Path(__file__).parent.parent / "artefacts" / "0.2.0" / "runs"
RECORDS = {"table": "patients.csv", "pictures": "photos"}


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, in the folder of which the run files name their data."""
    shutil.copytree(LEFT, tmp_path / "left")
    monkeypatch.chdir(tmp_path / "left")
    return tmp_path / "left"


@pytest.mark.parametrize("kind", RECORDS)
def test_a_model_predicts_what_it_did(left: Path, kind: str) -> None:
    assert tacit(["predict", kind, RECORDS[kind]]) == 0
    places = (left / "predictions.csv", LEFT / f"predictions/{kind}.csv")
    now, before = ([*csv.reader(path.read_text().splitlines())] for path in places)
    assert [row[:2] for row in now] == [row[:2] for row in before]
    for one, other in zip(now[1:], before[1:], strict=True):
        assert [float(x) for x in one[2:]] == pytest.approx([float(x) for x in other[2:]], abs=1e-6)


@pytest.mark.parametrize("kind", RECORDS)
def test_an_interrupted_run_is_refused_and_the_version_named_that_can(
    left: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tacit(["train", f"{kind}.toml", "--out", f"{kind}-stopped", "--resume"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "finish the run with the version of Tacit that wrote it" in said
    kept = Path(f"{kind}-stopped/private/resume.pt").read_bytes()
    assert kept == (LEFT / f"{kind}-stopped/private/resume.pt").read_bytes()


@pytest.mark.parametrize("kind", RECORDS)
def test_a_statement_is_shown_and_verified(left: Path, kind: str) -> None:
    assert tacit(["risk", kind]) == 0
