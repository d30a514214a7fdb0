"""Count the files of tacit that five jobs enter: python tests/walks.py prints them as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import tacit.runs
from tacit import Plan, PrivateSession, accounting
from tacit.cli import main
from tacit.events import Gaussian, PoissonSampled, Repeat
from tacit.report.verification import verify_statement
from tacit.runs import prepare

ROOT = str(Path(tacit.__file__).parent)
POLICY = """
[policy]
unit = "person"
unit_column = "pid"
rows_per_unit = 1
adjacency = "add-remove"
largest_table = 5000
note = "a walk"
[budget]
mode = "renyi"
epsilon = 5.0
delta = 1e-6
[table]
separator = ","
encoding = "utf-8"
decimal = "."
[columns.x]
kind = "integer"
lower = 0
upper = 100
"""


@contextlib.contextmanager
def walk() -> Iterator[set[str]]:
    """Collect the files of the functions that are called meanwhile, in all threads."""
    files: set[str] = set()

    def note(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(ROOT):
            files.add(code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def step() -> set[str]:
    """Take the sixth step of a small network."""
    x, y = torch.randn(512, 10), torch.randint(0, 3, (512,))
    model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    plan = Plan.with_noise(
        noise_multiplier=2.0, delta=1e-5, records=512, batch_size=64, steps=10, clipping=1.0, unit="record",
        adjacency="add-remove",
    )  # fmt: skip
    session = PrivateSession(
        model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), plan,
        loss=lambda m, x, y: F.cross_entropy(m(x), y, reduction="none"),
    )  # fmt: skip
    tickets = session.batches()
    for _ in range(5):
        session.step(next(tickets))
    with walk() as files:
        session.step(next(tickets))
    return files


def train(out: Path) -> set[str]:
    """Run ``tacit train`` on the bundled demo, from the file to the finished folder."""
    with walk() as files:
        prepare(Path(tacit.runs.__file__).with_name("demo.toml"), out=out).start()
    return files


def query(folder: Path) -> set[str]:
    """Answer one SQL query, with the ledger's charge."""
    rows, policy, base = folder / "t.csv", folder / "p.toml", str(folder / "b.db")
    rows.write_text("pid,x\n" + "\n".join(f"{i % 300},{i % 100}" for i in range(1000)))
    policy.write_text(POLICY)
    run("ledger", "init", base)
    run("ledger", "open", base, "--dataset", "t", "--policy", str(policy))
    run("ledger", "register", base, "--dataset", "t", str(rows))
    with walk() as files:
        run("query", str(rows), "SELECT avg(x) FROM t WHERE x > 3", "--ledger", base, "--dataset", "t",
            "--epsilon", "0.1")  # fmt: skip
    return files


def run(*words: str) -> None:
    sys.argv = ["tacit", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{words} ended with {end.code}") from end


def price() -> set[str]:
    """Price an event."""
    event = Repeat(PoissonSampled(0.01, Gaussian(noise_multiplier=4.0)), 10_000)
    with walk() as files:
        accounting.account(event, adjacency="add-remove").epsilon(1e-5)
    return files


def verify(out: Path) -> set[str]:
    """Verify the statement of a finished run."""
    statement = json.loads((out / "statement.json").read_text())
    with walk() as files:
        verify_statement(statement)
    return files


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name)
        walks = {"step": step(), "query": query(folder), "price": price(), "train": train(folder / "run")}
        walks["verify"] = verify(folder / "run")
    shown = {job: sorted(file.removeprefix(ROOT + os.sep) for file in files) for job, files in walks.items()}
    print(json.dumps(shown))  # noqa: T201
