"""``tacit train`` with a ledger: killed at random moments, refused, gone on with, and what it says."""

from __future__ import annotations

import getpass
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from run_files import run_file
from safetensors.torch import load_file
from telling import Reporter, Trainer, say

from tacit.cli.app import run as tacit
from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal
from tacit.events import ApproximateDP
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.report.verification import read_statement, verify_statement
from tacit.runs import Run, prepare
from tacit.runs import train as runner
from tacit.runs.attack import open_run
from tacit.testing import seeded_generator
from tacit.training import StepCharges

STEPS, CHUNK, KILLS = 30, 7, 12
pytestmark = pytest.mark.usefixtures("no_pictures")
CONFIG = run_file(
    data='name = "digits"',
    privacy='noise_multiplier = 1.0; unit = "image"; records = 1437',
    optimizer="learning_rate = 0.3; momentum = 0.9",
    training=f"batch_size = 64; steps = {STEPS}",
    run="rows = 3; checkpoint_every = 4",
    ledger=f'url = "budget.db"; dataset = "digits"; chunk = {CHUNK}',
)
BUDGET = RenyiBudget(epsilon=3.0, delta=1e-4)


def set_up(folder: Path, budget: RenyiBudget = BUDGET) -> None:
    (folder / "run.toml").write_text(CONFIG)
    with closing(Ledger.create(folder / "budget.db")) as made:
        made.open_dataset("digits", Policy(unit="image", adjacency="add-remove", budget=budget))


def start_run(folder: Path, *, resume: bool) -> Run:
    os.chdir(folder)
    return prepare("run.toml", out="out", resume=resume, generator=None if resume else seeded_generator(5))


def serve() -> None:
    """A process that has imported everything forks one that trains, for each line "resume folder"."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as warm:
        set_up(Path(warm))
        start_run(Path(warm), resume=False).start(should_stop=lambda: True)
    for line in sys.stdin:
        resume, folder = line.rstrip("\n").split(" ", 1)
        if (pid := os.fork()) == 0:
            start_run(Path(folder), resume=resume == "yes").start((Reporter(),))
            os._exit(0)
        say(f"pid {pid}")
        say(f"exit {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    set_up(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    made = Trainer(__file__)
    yield made
    made.server.close()


def reserved(folder: Path) -> list[list[int]]:
    """The steps of each charge, in the order of the ledger."""
    with closing(Ledger.open(folder / "budget.db")) as ledger:
        keys = [entry.body["key"] for entry in ledger.history("digits") if entry.kind == "reserve"]
    found = [re.fullmatch(r"training/.*/(\d+)-(\d+)", key) for key in keys]
    return [[int(match[1]), int(match[2])] for match in found if match is not None]


def spend(folder: Path) -> None:
    """Somebody else asks, for less and less, until nothing is left."""
    with closing(Ledger.open(folder / "budget.db")) as ledger:
        for number, epsilon in enumerate(0.5 / (1 + step // 20) ** 2 for step in range(200)):
            with suppress(BudgetExceeded):
                ledger.reserve("digits", ApproximateDP(epsilon), key=f"q{number}", request={})


def verified(folder: Path) -> None:
    with closing(Ledger.open(folder / "budget.db")) as ledger:
        assert ledger.verify("digits").ok


@pytest.mark.thorough(
    instead="training/test_training_ledger_charges.py::test_a_run_that_dies_anywhere_is_charged_once_and_ends_the_same"
)
def test_a_run_that_is_killed_at_random_is_charged_once(trainer: Trainer, folder: Path) -> None:
    """Whatever was reserved when it died, and however old the state was that it went on from."""
    chance = random.Random(20261121)
    state = folder / "out" / "private" / "resume.pt"
    for _ in range(KILLS):
        process = trainer.start(folder, resume=state.exists())
        if not trainer.steps(chance.randint(0, 3)):
            break
        time.sleep(chance.uniform(0, 0.03))
        with suppress(ProcessLookupError):  # it may just have come to its end
            os.kill(process, signal.SIGKILL)
        if trainer.next("exit") == "0":
            break
        taken = torch.load(state, weights_only=True)["done"] if state.exists() else 0
        paid = reserved(folder)
        assert paid == spans(len(paid))
        assert taken <= (paid[-1][1] if paid else 0)
        verified(folder)
    outcome = start_run(folder, resume=state.exists()).start()
    assert outcome is not None
    assert reserved(folder) == spans(5)
    verified(folder)
    assert verify_statement(outcome.statement.data).agrees
    alone = folder / "alone"
    alone.mkdir()
    set_up(alone)
    assert start_run(alone, resume=False).start() is not None
    one, two = (load_file(path / "out" / "model.safetensors") for path in (folder, alone))
    assert all(torch.equal(one[name], two[name]) for name in one)


def spans(count: int) -> list[list[int]]:
    return [[first, min(first + CHUNK, STEPS)] for first in range(0, STEPS, CHUNK)][:count]


def test_a_run_that_the_ledger_ends_leaves_a_model_and_a_true_statement(folder: Path) -> None:
    run = prepare("run.toml", out="out")
    steps: list[int] = []

    class Greedy(Reporter):
        def on_step(self, taken: int, epsilon: float, loss: float | None) -> None:
            steps.append(taken)
            if taken == 9:
                spend(folder)

    outcome = run.start((Greedy(),))
    assert outcome is not None
    assert outcome.stopped is not None
    assert steps[-1] == 14
    statement = read_statement(folder / "out" / "statement.json")
    assert statement["mechanism"]["steps"] == 14
    assert statement["ledger"]["steps"] == 14
    assert statement["ledger"]["stopped"] == outcome.stopped
    assert statement["guarantee"]["epsilon"] == pytest.approx(run.plan.epsilon_after([14])[0], rel=1e-6)
    assert verify_statement(statement).agrees
    assert (folder / "out" / "model.safetensors").exists()
    assert [row.steps for row in outcome.rows] == [10, 14]
    assert open_run(folder / "out").plan.steps == 14  # what an attack or an audit is of
    again = prepare("run.toml", out="out", resume=True).start()  # still nothing left
    assert again is not None
    assert again.stopped is not None
    with closing(Ledger.open("budget.db")) as ledger:
        ledger.raise_cap(
            "digits",
            RenyiBudget(epsilon=9.0, delta=1e-4, orders=BUDGET.orders),
            reason="approved",
            by="the board",
        )
    whole = prepare("run.toml", out="out", resume=True).start()
    assert whole is not None
    assert whole.stopped is None
    assert reserved(folder)[-1] == [28, 30]
    verified(folder)


def test_a_plan_that_does_not_fit_is_refused_before_it_starts(tmp_path: Path, monkeypatch: Any) -> None:
    set_up(tmp_path, RenyiBudget(epsilon=0.5, delta=1e-4))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BudgetExceeded, match="of its steps would fit"):
        prepare("run.toml", out="out")
    assert not (tmp_path / "out").exists()
    assert reserved(tmp_path) == []


def test_a_plan_that_does_not_fit_has_its_numbers_in_json(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(tmp_path, RenyiBudget(epsilon=0.5, delta=1e-4))
    monkeypatch.chdir(tmp_path)
    assert tacit(["train", "run.toml", "--out", "out", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["refused"]
    assert found["requested_epsilon"] > found["remaining_epsilon"] == pytest.approx(0.5, rel=1e-3)
    missing = found["requested_epsilon"] - found["remaining_epsilon"]
    assert found["missing_epsilon"] == pytest.approx(missing)
    assert "of its steps would fit" in found["message"]


@pytest.mark.parametrize("prepared", [False, True], ids=["before", "after-the-preparation"])
def test_a_ctrl_c_before_the_first_step_says_what_it_leaves_behind(
    prepared: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, charges: StepCharges, **__: Any) -> Any:
        if prepared:
            charges.start()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runner, "make_session", interrupted)
        assert tacit(["train", "run.toml", "--out", "out"]) == 130
    said = " ".join(capsys.readouterr().err.split())
    assert "nothing to resume" in said
    assert ("are charged to 'digits'" in said) == prepared
    assert ("nothing charged" in said) != prepared
    assert reserved(folder) == ([[0, CHUNK]] if prepared else [])
    assert tacit(["train", "run.toml", "--out", "out", "--resume"]) == 2


def test_a_ctrl_c_before_the_next_step_leaves_the_run_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    run = prepare("run.toml", out="out")
    assert run.start(should_stop=lambda: run.session.steps_done == 2) is None
    with monkeypatch.context() as patch:
        patch.setattr(runner, "make_session", interrupted)
        assert tacit(["train", "run.toml", "--out", "out", "--resume"]) == 130
    assert "is unchanged; resume it with --resume" in " ".join(capsys.readouterr().err.split())


def test_the_command_line_names_the_ledger_and_shows_the_balance(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    bare = CONFIG[: CONFIG.index("[ledger]")]
    (folder / "run.toml").write_text(bare)
    arguments = ["train", "run.toml", "--out", "out", "--ledger", "budget.db", "--dataset", "digits"]
    assert tacit([*arguments, "--chunk", "10"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "Before the run, data set digits: ε = 0 spent, of ε = 3.00 at δ = 0.0001." in words
    assert "After the run, data set digits: ε = " in words
    assert reserved(folder) == [[0, 10], [10, 20], [20, 30]]
    with closing(Ledger.open("budget.db")) as ledger:
        body = next(entry.body for entry in ledger.history("digits") if entry.kind == "reserve")
    assert body["by"] == "ada"
    assert re.fullmatch(r"training run [0-9a-f]{16}: steps 0 to 9 of 30", body["label"])
    assert (
        tacit([*arguments, "--chunk", "10", "--resume", "--json"]) == 0
    )  # a finished run costs nothing more
    found = json.loads(capsys.readouterr().out)
    assert len(reserved(folder)) == 3
    with closing(Ledger.open("budget.db")) as ledger:
        assert found["balance"]["epsilon_spent"] == pytest.approx(ledger.status("digits").spent_epsilon)
    assert found["statement"]["ledger"]["steps"] == STEPS


def test_exit_code_1_where_the_ledger_refuses(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spend(folder)
    assert tacit(["train", "run.toml", "--out", "out"]) == 1
    assert "would fit" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('dataset = "digits"\n', "", "dataset is missing"),
        ('url = "budget.db"\n', "", "dataset, chunk needs url"),
        ('url = "budget.db"', 'url = "other.db"', "other.db"),
        ('dataset = "digits"', 'dataset = "faces"', "faces"),
        (f"chunk = {CHUNK}", "chunk = 0", "chunk"),
        ('unit = "image"', 'unit = "person"', "cannot share a budget"),
    ],
    ids=["no-dataset", "no-url", "no-ledger", "unknown-dataset", "chunk", "unit"],
)
def test_what_makes_no_sense_is_refused_before_anything_is_read(
    old: str, new: str, words: str, folder: Path
) -> None:
    (folder / "run.toml").write_text(CONFIG.replace(old, new))
    with pytest.raises((InvalidInput, PrivacyRefusal), match=words):
        prepare("run.toml", out="out")
    assert reserved(folder) == []


def test_a_run_goes_on_with_its_ledger_or_not_at_all(folder: Path) -> None:
    prepare("run.toml", out="out").start(should_stop=lambda: True)
    (folder / "run.toml").write_text(CONFIG[: CONFIG.index("[ledger]")])
    with pytest.raises(PrivacyRefusal, match=r"to no ledger\. Continue with the charges"):
        prepare("run.toml", out="out", resume=True)


if __name__ == "__main__":
    serve()
