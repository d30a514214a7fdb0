"""Two ``tacit train`` on one data set, as from two hosts with one PostgreSQL ledger: together one budget."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from run_files import run_file

from tacit.errors import BudgetExceeded
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.report.verification import verify_statement
from tacit.runs.config import read_config
from tacit.runs.plan import make_plan

_spec = importlib.util.spec_from_file_location("places", Path(__file__).parents[1] / "ledger" / "places.py")
assert _spec is not None
assert _spec.loader is not None
places: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(places)

STEPS, CHUNK = 40, 2
CHUNKS = STEPS // CHUNK  # of one job
CONFIG = run_file(
    data='table = "people.csv"; test_table = "others.csv"; target = "ill"',
    columns='age = { kind = "number", lower = 0, upper = 100 }; '
    'weight = { kind = "number", lower = 30, upper = 150 }; '
    'ill = { kind = "category", values = ["yes", "no"] }',
    privacy='noise_multiplier = 20.0; unit = "person"; records = 400',
    optimizer="learning_rate = 0.5",
    training=f"batch_size = 50; steps = {STEPS}",
    run="checkpoint_every = 6",
)
POLICY = Policy(
    unit="person",
    adjacency="add-remove",
    budget=RenyiBudget(epsilon=0.157, delta=1e-4, orders=(64.0,)),
)
FIT = 36  # chunks that the budget holds: all of one job's, and 16 of the other's
PATIENCE_S = 120.0


@pytest.fixture
def server() -> Iterator[Any]:
    with places.server() as started:
        yield started


class Job:
    """``tacit train`` in a folder of its own, which stands for a host: the two share the ledger alone."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self._url = folder, url
        folder.mkdir()
        dice = random.Random(1)  # the same people on every host
        for name, count in (("people.csv", 400), ("others.csv", 50)):
            ages = [dice.uniform(0, 100) for _ in range(count)]
            rows = [f"{age:.1f},{dice.uniform(30, 150):.1f},{'yes' if age > 60 else 'no'}" for age in ages]
            (folder / name).write_text("\n".join(["age,weight,ill", *rows]) + "\n")
        (folder / "run.toml").write_text(CONFIG)

    def start(self, *options: str) -> subprocess.Popen[str]:
        charged = ("--ledger", self._url, "--dataset", "people", "--chunk", str(CHUNK))
        command = [sys.executable, "-m", "tacit", "train", "run.toml", "--out", "out", "--json"]
        return subprocess.Popen(
            [*command, *charged, *options],
            cwd=self.folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def end(job: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    """Its exit code and what it printed, as JSON."""
    out, errors = job.communicate(timeout=PATIENCE_S)
    assert out, errors
    found = json.loads(out)
    assert isinstance(found, dict)
    return job.returncode, found


def steps_of(found: dict[str, Any]) -> int:
    """The steps that the statement of a run states."""
    return int(found["statement"]["ledger"]["steps"])


def until(happened: Callable[[], bool]) -> None:
    last = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < last
        time.sleep(0.005)


def charges(ledger: Ledger) -> Counter[str]:
    """Reserved chunks of each run."""
    keys = [entry.body["key"] for entry in ledger.history("people") if entry.kind == "reserve"]
    assert len(set(keys)) == len(keys), "a chunk was charged twice"
    return Counter(key.split("/")[1] for key in keys if key.count("/") == 2)


def admitted_alone(folder: Path) -> int:
    """Return the number of chunks that a ledger in memory grants to each client, one after the other."""
    plan = make_plan(read_config(folder / "run.toml"))
    with closing(Ledger.create("sqlite://")) as ledger:
        ledger.open_dataset("people", POLICY)
        for number in range(2 * CHUNKS):
            try:
                ledger.reserve("people", plan.event_between(0, CHUNK), key=str(number), request={})
            except BudgetExceeded:
                return number
    return 2 * CHUNKS


@pytest.mark.thorough(instead="ledger/test_ledger_postgres.py::test_many_at_once_get_exactly_what_there_is")
def test_two_jobs_on_one_ledger_are_one_budget(server: Any, tmp_path: Path) -> None:
    """One comes to its end; the other is killed, goes on where it was, and stops where the budget ends."""
    import psycopg

    url = places.emptied(server)
    ledger = Ledger.create(url)
    ledger.open_dataset("people", POLICY)
    jobs = [Job(tmp_path / name, url) for name in ("first", "second")]
    assert admitted_alone(jobs[0].folder) == FIT
    started: list[subprocess.Popen[str]] = []
    database = f"host={server.folder} user=postgres dbname=postgres"
    try:
        with psycopg.connect(database) as gate, psycopg.connect(database, autocommit=True) as watch:

            def both_wait() -> bool:
                assert all(job.poll() is None for job in started), started[0].stderr
                found = watch.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
                return found.fetchone() == (2,)

            gate.execute("SELECT * FROM dataset FOR UPDATE")
            started += [job.start() for job in jobs]
            until(both_wait)  # both plans fit as they are; now both ask for their first charge at once
            gate.rollback()
            until(lambda: len(charges(ledger)) == 2)
            gate.execute("SELECT * FROM dataset FOR UPDATE")
            until(both_wait)
            killed = started[1]
            killed.send_signal(signal.SIGKILL)
            killed.communicate()
            gate.rollback()

        code, whole = end(started[0])
        assert (code, whole.get("finished"), steps_of(whole)) == (0, True, STEPS), whole
        before = charges(ledger)
        assert sorted(before.values())[-1] == CHUNKS
        (lost,) = (run for run, count in before.items() if count < CHUNKS)
        assert 1 <= before[lost] < FIT - CHUNKS, "what the killed job was charged for stays charged"

        code, stopped = end(jobs[1].start("--resume"))
    finally:
        for job in started:
            job.kill()
            job.communicate()

    assert (code, stopped.get("finished"), steps_of(stopped)) == (1, False, (FIT - CHUNKS) * CHUNK), stopped
    assert re.search(
        r"the budget of 'people' is too small for this release: .* would be spent", stopped["stopped"]
    )
    assert charges(ledger) == {lost: FIT - CHUNKS} | {run: CHUNKS for run in before if run != lost}
    status, history = ledger.status("people"), ledger.history("people")
    costs = [entry.body["cost"] for entry in history if entry.kind == "reserve"]
    assert status.spent == tuple(map(sum, zip(*costs, strict=True)))
    assert all(spent <= cap for spent, cap in zip(status.spent, status.cap, strict=True))
    assert ledger.verify("people").ok
    assert all(verify_statement(found["statement"]).agrees for found in (whole, stopped))
    ledger.close()
