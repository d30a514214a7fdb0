"""Audit slots of a run from a configuration file, and the audit of its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from run_files import digits_run

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.noise.generator import Generator
from tacit.runs import prepare
from tacit.runs.attack import audit_folder
from tacit.testing import seeded_generator

pytestmark = pytest.mark.usefixtures("no_pictures")
DIGITS = digits_run('batch_size = "full"; steps = 20')


def folder_of(tmp_path: Path, text: str) -> Path:
    (tmp_path / "run.toml").write_text(text)
    outcome = prepare(tmp_path / "run.toml", out=tmp_path / "out", generator=seeded_generator(5)).start()
    assert outcome is not None
    for name in outcome.files:
        assert (tmp_path / "out" / name).exists()
    return tmp_path / "out"


def test_a_run_with_slots_is_audited_by_them(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, DIGITS + "[audit]\nslots = 280\n")
    assert (folder / "slots.npy").exists()
    assert (folder / "private" / "coins.npy").exists()
    assert "280 audit slots" in (folder / "statement.txt").read_text()
    found = audit_folder(folder, rng=np.random.default_rng(0))
    assert (found.rehearsal, found.slots, found.audit.claim.canaries) == (False, 280, 280)
    assert found.audit.claim.claimed_eps == pytest.approx(3.0, abs=0.01)
    assert not found.audit.claim.claim_rejected
    assert 0.5 < found.audit.claim.eps_lower < 3.0
    assert found.audit.one_run.eps_lower < found.audit.claim.eps_lower
    (folder / "private" / "coins.npy").unlink()
    with pytest.raises(InvalidInput, match="not finished"):
        audit_folder(folder)


def test_a_run_without_slots_is_audited_by_a_rehearsal_of_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, DIGITS)
    assert not (folder / "slots.npy").exists()
    monkeypatch.setattr(Generator, "from_os", lambda: seeded_generator(6))
    found = audit_folder(folder, slots=1000, rng=np.random.default_rng(0))
    assert found.rehearsal
    assert found.audit.claim.canaries == 1000
    assert found.audit.claim.eps_lower > 1.0
    assert found.audit.claim.claimed_eps == pytest.approx(3.0, abs=0.01)


def test_a_plan_that_slots_cannot_test_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, DIGITS.replace("add-remove", "zero-out"))
    with pytest.raises(PrivacyRefusal, match="fixes the number of records"):
        audit_folder(folder)
    with pytest.raises(InvalidInput, match="no run file"):
        audit_folder(tmp_path / "elsewhere")
