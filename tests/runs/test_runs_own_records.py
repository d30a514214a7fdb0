"""A run file whose processes have a table each: one run, one charge, and what is refused."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch.distributed as dist
import warm
from run_files import run_file

from tacit.errors import InvalidInput
from tacit.events import event_from_json
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.runs import prepare
from tacit.runs.checks import check_run
from tacit.runs.config import read_config

CONFIG = run_file(
    data='table = "people-{process}.csv"; own_records = true; target = "ill"; test_table = "others.csv"',
    columns_age='kind = "number"; lower = 0; upper = 100',
    columns_ill='kind = "category"; values = ["no", "yes"]',
    privacy='noise_multiplier = 2.0; unit = "person"; records = 250; one_record_per_unit = true',
    optimizer="learning_rate = 0.1",
    training="batch_size = 50; steps = 5",
    run="rows = 1; checkpoint_every = 1",
    ledger='url = "budget.db"; dataset = "people"; chunk = 5',
)

QUIET = """
from undrawn import undrawn

from tacit.cli import main
from tacit.training import session

session.warn_if_drowned = lambda signal: None
with undrawn():
    main()
"""


def write(path: Path, count: int, seed: int, header: str = "name,age,ill") -> None:
    chance = random.Random(seed)
    ages = [chance.uniform(0, 100) for _ in range(count)]
    lines = [f"p{seed}-{i},{age:.1f},{'yes' if age > 60 else 'no'}" for i, age in enumerate(ages)]
    path.write_text("\n".join([header, *lines]) + "\n")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, count, seed in (("people-0", 120, 0), ("people-1", 90, 1), ("others", 50, 2)):
        write(tmp_path / f"{name}.csv", count, seed)
    policy = Policy(unit="person", adjacency="add-remove", budget=RenyiBudget(epsilon=9.0, delta=1e-4))
    with closing(Ledger.create(tmp_path / "budget.db")) as ledger:
        ledger.open_dataset("people", policy)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(CONFIG)
    (tmp_path / "started.py").write_text(QUIET)
    return tmp_path


def trained(here: Path, *words: str) -> tuple[list[int | None], list[str], list[str]]:
    """Train in two processes, which are told what torchrun tells them; return codes, outputs and errors."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    told = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
        "MASTER_PORT": f"{store.port}", "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    streams = [(os.devnull, here / f"out{rank}", here / f"err{rank}") for rank in range(2)]
    ranks = [
        warm.start(
            "started.py", "train", "run.toml", "--out", "out", *words,
            streams=streams[rank], env={**os.environ, **told, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"},
        )
        for rank in range(2)
    ]  # fmt: skip
    for rank in ranks:
        rank.join(warm.SECONDS)
    outs, errs = ([path.read_text() for path in paths] for paths in list(zip(*streams, strict=True))[1:])
    return [rank.exitcode for rank in ranks], outs, errs


def entries(kind: str) -> int:
    with closing(Ledger.open("budget.db")) as ledger:
        return sum(entry.kind == kind for entry in ledger.history("people"))


def test_two_processes_with_a_table_each_are_one_run(here: Path) -> None:
    codes, outs, errs = trained(here)
    assert codes == [0, 0], errs
    statement = json.loads((here / "out" / "statement.json").read_text())
    of_one_process = check_run("run.toml", out="other").plan.event_after(5)
    assert event_from_json(json.dumps(statement["event"])) == of_one_process
    line = "2 processes that trust each other, each with records of its own that no other process reads,"
    assert any(line in note for note in statement["notes"])
    assert "people-0.csv" in statement["data"]
    assert (entries("reserve"), entries("content")) == (1, 2)
    assert "No command tests it" in outs[0]
    assert outs[1] == ""

    codes, _, errs = trained(here, "--resume")  # a finished run is written again
    assert codes == [0, 0], errs
    write(here / "people-1.csv", 90, 3)
    codes, _, errs = trained(here, "--resume")
    assert codes == [1, 1]
    assert sum(err.count("those of process 1") for err in errs) == 1


def rewrite(here: Path, old: str, new: str) -> None:
    (here / "run.toml").write_text(CONFIG.replace(old, new))


def with_people(here: Path) -> None:
    rewrite(here, "own_records", 'user = "name"\nown_records')
    write(here / "people-1.csv", 90, 0)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a column is missing": (
        lambda here: write(here / "people-1.csv", 90, 1, "name,years,ill"), "people-1.csv has no column 'age'"
    ),
    "too many records": (
        lambda here: write(here / "people-1.csv", 200, 1), "more records than the plan's public number, 250."
    ),
    "one table for both": (
        lambda here: rewrite(here, "people-{process}.csv", "people-0.csv"),
        "processes 0 and 1 have the same records",
    ),
    "one person in both": (
        with_people,
        "the same person has rows at two processes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_said_once_and_nothing_is_charged(here: Path, fault: str) -> None:
    make, words = FAULTS[fault]
    make(here)
    codes, _, errs = trained(here)
    assert set(codes) <= {1, 2}, errs
    assert sum(" ".join(err.split()).count(words) for err in errs) == 1, errs
    assert not any("320" in err or "210" in err for err in errs)
    assert (entries("reserve"), entries("content")) == (0, 0)


def test_one_process_does_not_read_a_part(here: Path) -> None:
    assert read_config("run.toml").data.table == "people-0.csv"
    with pytest.raises(InvalidInput, match="own_records = true needs several processes"):
        prepare("run.toml", out="out")


@pytest.mark.parametrize("other", ['name = "digits"', 'table = "people-0.csv"\ntarget = "ill"\ndate = "day"'])
def test_own_records_are_those_of_a_table(here: Path, other: str) -> None:
    data = CONFIG[CONFIG.index("[data]") : CONFIG.index("[columns")]
    (here / "run.toml").write_text(CONFIG.replace(data, f"[data]\nown_records = true\n{other}\n"))
    with pytest.raises(InvalidInput, match=r"own_records = true needs \[data\] table, one per process"):
        read_config("run.toml")
