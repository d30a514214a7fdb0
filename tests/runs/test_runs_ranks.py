"""A run file in two processes under torchrun: one run, one charge, one voice."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch.distributed as dist
import warm
from run_files import run_file

from tacit.errors import PrivacyRefusal
from tacit.events import event_from_json
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.runs import prepare
from tacit.runs.checks import check_run

CONFIG = run_file(
    data='table = "people.csv"; target = "ill"; test_table = "others.csv"',
    columns_age='kind = "number"; lower = 0; upper = 100',
    columns_ill='kind = "category"; values = ["no", "yes"]',
    privacy='noise_multiplier = 2.0; unit = "person"; records = 200',
    optimizer="learning_rate = 0.1",
    training="batch_size = 50; steps = STEPS",
    run="checkpoint_every = 1",
    ledger='url = "budget.db"; dataset = "people"',
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    chance = random.Random(1)
    for name, count in (("people.csv", 200), ("others.csv", 50)):
        ages = [chance.uniform(0, 100) for _ in range(count)]
        lines = [f"{age:.1f},{'yes' if age > 60 else 'no'}" for age in ages]
        (tmp_path / name).write_text("\n".join(["age,ill", *lines]) + "\n")
    policy = Policy(unit="person", adjacency="add-remove", budget=RenyiBudget(epsilon=9.0, delta=1e-4))
    with closing(Ledger.create(tmp_path / "budget.db")) as ledger:
        ledger.open_dataset("people", policy)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def torchrun(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*command, "-m", "tacit", "train", "run.toml", "--out", "out", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def charges(here: Path) -> int:
    with closing(Ledger.open(here / "budget.db")) as ledger:
        return sum(entry.kind == "reserve" for entry in ledger.history("people"))


@pytest.mark.thorough(
    instead="training/test_training_ranks.py::test_two_ranks_release_the_sum_of_one_process"
)
def test_two_processes_are_one_run(here: Path) -> None:
    """One statement, a charge for each chunk, the steps of one process; one process does not resume it."""
    (here / "run.toml").write_text(CONFIG.replace("STEPS", "6"))
    run = torchrun("--chunk", "3")
    out, err = run.communicate(timeout=100)
    assert run.returncode == 0, err
    assert out.count("Private: ε = ") == 1
    assert "2 processes" in (here / "out" / "statement.txt").read_text()
    assert err.count("step 6 of 6") == 1
    assert charges(here) == 2
    statement = json.loads((here / "out" / "statement.json").read_text())
    of_one_process = check_run("run.toml", out="other").plan.event_after(6)
    assert event_from_json(json.dumps(statement["event"])) == of_one_process
    with pytest.raises(PrivacyRefusal, match=r"the number of processes \(was 2, is 1\)"):
        prepare("run.toml", out="out", resume=True)


def test_a_wrong_setting_is_said_once(here: Path) -> None:
    """By the first process of two, which are told what torchrun tells them."""
    (here / "run.toml").write_text(CONFIG.replace("STEPS", "6").replace("delta = 1e-4", "delta = 2.0"))
    (here / "started.py").write_text("from tacit.cli import main; main()")
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    told = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
        "MASTER_PORT": f"{store.port}", "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    streams = [(os.devnull, here / f"out{rank}", here / f"err{rank}") for rank in range(2)]
    ranks = [
        warm.start(
            "started.py", "train", "run.toml", "--out", "out",
            streams=streams[rank], env={**os.environ, **told, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"},
        )
        for rank in range(2)
    ]  # fmt: skip
    for rank in ranks:
        rank.join(warm.SECONDS)
    assert [rank.exitcode for rank in ranks] == [2, 2]
    assert [out.read_text() for _, out, _ in streams] == ["", ""]
    assert sum(err.read_text().count("[privacy] delta must be") for *_, err in streams) == 1
