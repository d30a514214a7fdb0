"""Disks under a ledger: they may lose unsynced writes at a power loss, or be full."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tacit.ledger import Ledger, Policy, PureBudget


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


disk, power = load("torture_disk"), load("torture_power")


@pytest.fixture
def recording(tmp_path: Path) -> Any:
    reason = power.missing()
    if reason:
        pytest.skip(reason)

    def record(synchronous: str, *, charges: int, lives: int) -> Any:
        folder = tmp_path / "client"
        folder.mkdir()
        return power.record(folder, charges=charges, lives=lives, synchronous=synchronous)

    return record


@pytest.mark.untraced
def test_a_power_loss_keeps_what_was_shown(recording: Any, tmp_path: Path) -> None:
    found = power.power_loss(recording("FULL", charges=3, lives=2), tmp_path / "left", chances=2, every=False)
    assert found["first"] is None
    assert found["shown"] == 12
    assert found["states"] >= 60


def test_a_log_that_is_not_synced_at_each_commit_is_caught(recording: Any, tmp_path: Path) -> None:
    """The control: with ``synchronous=NORMAL`` a power loss may take back a charge whose answer is out."""
    found = power.power_loss(
        recording("NORMAL", charges=2, lives=1), tmp_path / "left", chances=0, every=False
    )
    assert found["broken"] >= 5
    assert "shown, and no data set is open" in found["first"]


@pytest.mark.untraced
def test_a_disk_that_is_full_at_any_moment_is_a_clean_refusal(tmp_path: Path) -> None:
    failures = disk.full_disk(tmp_path, disk.limited, grain=4096)
    assert min(failures.values()) >= 3
    assert failures["reserve"] >= 6


def test_a_full_file_system_is_a_clean_refusal(tmp_path: Path) -> None:
    reason = disk.missing()
    if reason:
        pytest.skip(reason)
    failures = disk.on_a_small_disk(tmp_path, steps=["reserve", "settle"])
    assert min(failures.values()) >= 6


def test_what_is_on_a_full_disk_can_be_read(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db")
    ledger.open_dataset("visits", Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0)))
    with disk.limited(tmp_path, 0):
        assert ledger.status("visits").remaining_epsilon == 1.0
        assert ledger.verify("visits").ok
    ledger.close()
