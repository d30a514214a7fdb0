"""Twenty who ask and one who trains, on one ledger: all killed, all started again, and nothing is lost."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import tempfile
from contextlib import closing, suppress
from pathlib import Path

import pytest
import torch
import warm
from run_files import run_file
from telling import Reporter, say

from tacit.errors import PrivacyRefusal
from tacit.ledger import Column, Ledger, Policy, RenyiBudget
from tacit.queries import Compare, Count, PrivateTable, Query, register_table
from tacit.report import make_certificate
from tacit.report.certificate import check_certificate
from tacit.report.verification import read_statement, verify_statement
from tacit.runs import prepare
from tacit.runs import train as runner

CLIENTS, QUESTIONS, KILLINGS = 20, 4, 3
STEPS, CHUNK = 24, 3
CONFIG = run_file(
    data='table = "people.csv"; test_table = "others.csv"; target = "ill"',
    columns='age = { kind = "number", lower = 0, upper = 100 }; '
    'weight = { kind = "number", lower = 30, upper = 150 }; '
    'ill = { kind = "category", values = ["yes", "no"] }',
    privacy='noise_multiplier = 20.0; unit = "person"; records = 400',
    optimizer="learning_rate = 0.5",
    training=f"steps = {STEPS}",
    run="rows = 2; checkpoint_every = 4",
    ledger=f'url = "budget.db"; dataset = "people"; chunk = {CHUNK}',
)


def set_up(folder: Path) -> None:
    chance = random.Random(1)
    for name, count in (("people.csv", 400), ("others.csv", 50)):
        rows = [f"{chance.uniform(0, 100):.1f},{chance.uniform(30, 150):.1f}" for _ in range(count)]
        lines = [f"{row},{'yes' if float(row.split(',')[0]) > 60 else 'no'}" for row in rows]
        (folder / name).write_text("\n".join(["age,weight,ill", *lines]) + "\n")
    (folder / "run.toml").write_text(CONFIG)
    columns = {"age": Column(kind="number", lower=0, upper=100)}
    policy = Policy(
        unit="person",
        adjacency="add-remove",
        budget=RenyiBudget(epsilon=6.0, delta=1e-4),
        columns=columns,
    )
    with closing(Ledger.create(folder / "budget.db")) as made:
        made.open_dataset("people", policy)
        register_table(folder / "people.csv", ledger=made, dataset="people")


def question(client: int, number: int) -> Query:
    return Query((Count(),), where=Compare("age", ">", client + number / 10))


def ask(client: int) -> None:
    """Ask all questions; what a dead process had reserved is lost, and is asked and paid for again."""
    with (
        closing(Ledger.open("budget.db")) as ledger,
        PrivateTable(Path("people.csv"), ledger=ledger, dataset="people") as table,
    ):
        for number in range(QUESTIONS):
            for attempt in range(1, 2 + KILLINGS):
                with suppress(PrivacyRefusal):
                    answer = table.ask(question(client, number), epsilon=0.05, attempt=attempt)
                    say(f"answer {client} {number} {attempt} {answer.value()}")
                    break


def learn() -> None:
    prepare("run.toml", out="out", resume=Path("out/private/resume.pt").exists()).start((Reporter(),))


def serve() -> None:
    """A process that has imported everything forks all the others, for each line "stay folder"."""
    torch.set_num_threads(1)
    vars(runner)["draw_run"] = lambda *_: ()
    with tempfile.TemporaryDirectory() as first:  # what is loaded late is loaded once
        os.chdir(first)
        set_up(Path(first))
        prepare("run.toml", out="out").start(should_stop=lambda: True)
    for line in sys.stdin:
        stay, folder = line.rstrip("\n").split(" ", 1)
        os.chdir(folder)
        children = []
        for number in range(CLIENTS + 1):
            if (pid := os.fork()) == 0:
                learn() if number == CLIENTS else ask(number)
                say("done")
                while stay == "yes":  # to be killed like the others, however late that comes
                    signal.pause()
                os._exit(0)
            children.append(pid)
        say(f"pids {' '.join(map(str, children))}")
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        say(f"over {' '.join(map(str, ended))}")


class Crowd:
    """The parent's side of :func:`serve`, with everything that was ever shown to anybody."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shown: dict[tuple[int, int, int], set[float]] = {}
        self.steps = 0
        self.server = warm.Server(__file__)

    def live(self, *, lines: int | None) -> list[int]:
        """Start all; kill all when so many lines have come, or let them end.  The exit codes."""
        stay = "no" if lines is None else "yes"
        self.server.tell(f"{stay} {self.folder}")
        pids: list[int] = []
        early = 0
        while True:
            kind, *values = self.server.stdout.readline().split()
            match kind:
                case "over":
                    return [int(value) for value in values]
                case "pids":
                    pids = [int(value) for value in values]
                case "answer":
                    client, number, attempt = map(int, values[:3])
                    self.shown.setdefault((client, number, attempt), set()).add(float(values[3]))
                case "step":
                    self.steps = max(self.steps, int(values[0]))
            early += 1
            if pids and lines is not None and early >= lines:
                lines = None
                for pid in pids:
                    with suppress(ProcessLookupError):  # it failed, as its exit code will say
                        os.kill(pid, signal.SIGKILL)


def reserved_steps(ledger: Ledger) -> list[int]:
    keys = [entry.body["key"] for entry in ledger.history("people") if entry.kind == "reserve"]
    found = [re.fullmatch(r"training/.*/(\d+)-(\d+)", key) for key in keys]
    return [step for match in found if match for step in range(int(match[1]), int(match[2]))]


def check(crowd: Crowd) -> None:
    """Whatever was shown was charged and stored before, and all totals are one total."""
    with closing(Ledger.open(crowd.folder / "budget.db")) as ledger:
        replayed = ledger.verify("people")
        assert replayed.ok, replayed.problems
        history = [entry.body for entry in ledger.history("people") if entry.kind == "reserve"]
        total = tuple(map(sum, zip(*(body["cost"] for body in history), strict=True)))
        certificate = make_certificate(ledger, "people")
        assert total == ledger.status("people").spent
        assert list(total) == certificate.data["guarantee"]["spent"]["units"]
        assert check_certificate(certificate.data, ledger=ledger).verdict == "agrees"
        assert reserved_steps(ledger) == list(range(len(reserved_steps(ledger))))
        assert crowd.steps <= len(reserved_steps(ledger))
        with PrivateTable(crowd.folder / "people.csv", ledger=ledger, dataset="people") as table:
            for (client, number, attempt), values in crowd.shown.items():
                again = table.ask(question(client, number), epsilon=0.05, attempt=attempt)
                assert again.repeated, "an answer was shown that the ledger does not have"
                assert values == {again.value()}
        assert ledger.status("people").spent == total


@pytest.mark.thorough(instead="ledger/test_torture_processes.py::test_sudden_death_breaks_no_promise")
def test_everybody_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    set_up(tmp_path)
    crowd = Crowd(tmp_path)
    chance = random.Random(20261121)
    try:
        for _ in range(KILLINGS):
            ended = crowd.live(lines=chance.randint(4, 30))
            assert set(ended) == {-signal.SIGKILL}
            check(crowd)
        assert crowd.live(lines=None) == [0] * (CLIENTS + 1)
    finally:
        crowd.server.close()
    check(crowd)
    assert {(client, number) for client, number, _ in crowd.shown} == {
        (client, number) for client in range(CLIENTS) for number in range(QUESTIONS)
    }
    with closing(Ledger.open(tmp_path / "budget.db")) as ledger:
        assert reserved_steps(ledger) == list(range(STEPS))
        assert ledger.status("people").spent_epsilon < 6.0
    statement = read_statement(tmp_path / "out" / "statement.json")
    assert statement["mechanism"]["steps"] == statement["ledger"]["steps"] == STEPS
    assert verify_statement(statement).agrees


def test_planted_bug_an_answer_that_was_shown_before_it_was_stored(tmp_path: Path) -> None:
    """The check above finds it."""
    set_up(tmp_path)
    crowd = Crowd.__new__(Crowd)
    crowd.folder, crowd.steps, crowd.shown = tmp_path, 0, {}
    with (
        closing(Ledger.open(tmp_path / "budget.db")) as ledger,
        PrivateTable(tmp_path / "people.csv", ledger=ledger, dataset="people") as table,
    ):
        crowd.shown[(0, 0, 1)] = {table.ask(question(0, 0), epsilon=0.05).value()}
    check(crowd)
    crowd.shown[(1, 2, 1)] = {7.0}
    with pytest.raises(AssertionError, match="the ledger does not have"):
        check(crowd)


if __name__ == "__main__":
    serve()
