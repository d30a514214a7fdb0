"""Output to a terminal, a pipe and a log file, and the effect of Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from safetensors.torch import load_file
from shell import Shell

from tacit import __version__
from tacit.cli import terminal, train
from tacit.cli.app import run
from tacit.runs import Outcome, prepare
from tacit.testing import seeded_generator
from tacit.training.loop import MetricsRow

MAIN = "from tacit.cli import main; main()"
UNDRAWN = "from undrawn import undrawn; from tacit.cli import main\nwith undrawn(): main()"
CONFIG = """
[data]
name = "iris"
[model]
name = "logistic"
[privacy]
noise_multiplier = 3.0
delta = 1e-3
unit = "flower"
adjacency = "add-remove"
records = 120
[optimizer]
learning_rate = 0.5
momentum = 0.9
[training]
batch_size = 40
steps = 30
ema_decay = 0.9
[run]
rows = 5
"""


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "iris.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Interrupter:
    """Presses Ctrl-C at given steps."""

    def __init__(self, *steps: int, number: int = signal.SIGINT) -> None:
        self.steps, self.number, self.seen = steps, number, 0

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:
        self.seen = steps
        for _ in range(self.steps.count(steps)):
            os.kill(os.getpid(), self.number)

    def on_row(self, row: MetricsRow) -> None:
        pass


def start(out: str, watcher: Interrupter, *, resume: bool = False) -> Outcome | None:
    made = prepare("iris.toml", out=out, resume=resume, generator=None if resume else seeded_generator(4))
    with terminal.catching_interrupt() as stop:
        return made.start((watcher,), stop)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_once_stops_after_the_step_and_the_resumed_run_is_exact(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    assert start("whole", Interrupter()) is not None
    watcher = Interrupter(13, number=number)
    assert start("stopped", watcher) is None
    assert watcher.seen == 13, "no further step"
    assert "Stopping after this step; a second Ctrl-C stops immediately." in capsys.readouterr().err
    assert torch.load("stopped/private/resume.pt", weights_only=True)["done"] == 13
    assert signal.getsignal(number) == before
    assert start("stopped", Interrupter(), resume=True) is not None
    one, two = load_file("whole/model.safetensors"), load_file("stopped/model.safetensors")
    assert all(torch.equal(one[name], two[name]) for name in two)
    assert Path("whole/metrics.csv").read_text() == Path("stopped/metrics.csv").read_text()


@pytest.mark.usefixtures("no_pictures")
def test_ctrl_c_twice_stops_at_once_and_the_state_before_is_whole() -> None:
    with pytest.raises(KeyboardInterrupt):
        start("out", Interrupter(13, 13))
    assert torch.load("out/private/resume.pt", weights_only=True)["done"] == 12  # of the last line of metrics
    assert start("out", Interrupter(), resume=True) is not None


@pytest.mark.usefixtures("no_pictures")
def test_ctrl_c_in_the_last_step_finishes_the_run() -> None:
    assert start("out", Interrupter(30)) is not None


def interrupt_command(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """Ctrl-C during a command, pressed by its own progress bar."""
    real, presser = terminal.TrainingBar.on_step, Interrupter(*steps)

    def on_step(self: Any, done: int, epsilon: float, loss: float | None) -> None:
        real(self, done, epsilon, loss)
        presser.on_step(done, epsilon, loss)

    monkeypatch.setattr(terminal.TrainingBar, "on_step", on_step)


@pytest.mark.usefixtures("no_pictures")
def test_the_command_says_how_to_go_on(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupt_command(patch, 9)
        err = shell.err("train", "iris.toml", "--out", "my runs/first", code=130)
    assert "Stopped after step 9 of 30; the state is saved in my runs/first. To resume:" in err
    assert "\n  tacit train iris.toml --out 'my runs/first' --resume\n" in err
    assert "Resuming after step 9 of 30." in shell.out(
        "train", "iris.toml", "--out", "my runs/first", "--resume"
    )


def test_the_command_at_the_second_ctrl_c(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_command(monkeypatch, 9, 9)
    err = shell.err("train", "iris.toml", "--out", "out", code=130)
    assert "interrupted: Stopped immediately." in err
    assert "Traceback" not in err


def test_an_interrupted_command_with_json(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_command(monkeypatch, 9)
    found = shell.data("train", "iris.toml", "--out", "out", code=130)
    assert found == {"folder": "out", "finished": False, "steps_done": 9, "steps": 30}


@pytest.mark.usefixtures("no_pictures")
def test_json_is_all_there_is_on_stdout(shell: Shell) -> None:
    found = shell.data("train", "iris.toml", "--out", "out")
    assert found["finished"] is True
    assert found["statement"] == json.loads(Path("out/statement.json").read_text())
    assert [row["steps"] for row in found["rows"]] == [6, 12, 18, 24, 30]
    assert len(found["per_class"]) == 3
    assert all(Path(name).is_file() for name in found["files"])


@pytest.mark.usefixtures("no_pictures")
def test_without_a_terminal_there_are_lines_and_no_bar(shell: Shell) -> None:
    out, err = shell.both("train", "iris.toml", "--out", "out")
    assert "\x1b" not in out + err
    assert "\r" not in out + err
    assert "━" not in out + err
    lines = err.splitlines()
    assert len(lines) == 6
    assert lines[0] == "Reading iris.toml …"
    assert re.fullmatch(
        r"iris: step 6 of 30, noisy loss -?\d\.\d+ ± \d\.\d+, ε ≤ \d\.\d{2,3}, test [01]\.\d{3}", lines[1]
    )
    ending = out.splitlines()[-7:]
    assert re.fullmatch(r"Test accuracy [01]\.\d{4} \(majority class: [01]\.\d{4}\)", ending[0])
    assert re.fullmatch(r"Private: ε = \d\.\d\d at δ = 0\.001 for one flower \(add-remove\)", ending[1])
    assert ending[2].startswith("Not covered: exact test scores, ")
    assert ending[3] == "In out: statement.txt, evaluation.html; never release private/"
    assert ending[5].startswith("  tacit predict out ")
    assert "PRIVACY STATEMENT" not in out
    assert Path("out/statement.txt").read_text().startswith("PRIVACY STATEMENT")


@pytest.mark.usefixtures("no_pictures")
def test_without_a_loss_report_the_loss_is_said_to_be_hidden(shell: Shell) -> None:
    Path("iris.toml").write_text(CONFIG.replace("[optimizer]", "report_loss = false\n[optimizer]"))
    assert "loss hidden" in shell.err("train", "iris.toml", "--out", "out")


@pytest.mark.usefixtures("no_pictures")
def test_brackets_in_names_are_shown_as_they_are(shell: Shell) -> None:
    Path("iris.toml").write_text(CONFIG.replace('"flower"', '"[red]flower[/red]"'))
    Path("iris.toml").rename("[bold]iris.toml")
    out, err = shell.both(*["train", "[bold]iris.toml", "--out", "[red]out"])
    assert "for one [red]flower[/red]" in " ".join(out.split())
    assert "In [red]out: " in out
    assert "[bold]iris: step 6" in err


@pytest.mark.usefixtures("no_pictures")
def test_a_test_key_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    made = prepare("iris.toml", out="out", generator=seeded_generator(1))
    assert train.run_to_end(made, ["iris.toml", "--resume"], "iris") is not None
    assert "NOT PRIVATE (test key) iris: step 6" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["train", "demo", "plan", "verify"])
def test_help_is_honest(verb: str, shell: Shell) -> None:
    out = shell.out(verb, "--help")
    assert f"Example:  tacit {verb}" in out
    assert "--json" in out
    assert max(map(len, out.splitlines())) <= 80
    example = out.partition(f"Example:  tacit {verb}")[2].splitlines()[0].split()
    for option in (word for word in example if word.startswith("--")):
        assert option in out.partition("Options:")[2]


def test_help_version_and_no_arguments(capsys: pytest.CaptureFixture[str], shell: Shell) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"
    listed = shell.out("--help")
    assert all(verb in listed for verb in ("train", "demo", "Start with:  tacit demo"))
    out, err = shell.both(code=2)
    assert "Usage: tacit [OPTIONS] COMMAND" in out + err
    out, err = shell.both("train", code=2)
    assert "Example:  tacit train" in out + err


def test_a_reader_who_leaves_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_a_missing_extra_and_a_broken_installation_are_told_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tacit.cli import main

    monkeypatch.delitem(sys.modules, "tacit.cli.app")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "typer", None)
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 2
        assert "typer is missing" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tacit.errors", None)
    with pytest.raises(ModuleNotFoundError, match=r"tacit\.errors"):
        main()


def at_a_terminal(arguments: list[str], *, interrupt: bool, **environment: str) -> tuple[int, str]:
    """Run the command in a terminal of 80 columns, with a Ctrl-C once the bar moves; code and output."""
    ours, theirs = pty.openpty()
    Path("started.py").write_text(UNDRAWN)
    process = warm.start(
        "started.py",
        *arguments,
        streams=[os.ttyname(theirs)] * 3,
        env=os.environ | {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"} | environment,
    )
    seen = b""
    while select.select([ours, process.sentinel], [], [])[0] != [process.sentinel]:
        seen += os.read(ours, 65536)
        if interrupt and re.search(rb"test [01]", seen):
            assert process.pid is not None
            os.kill(process.pid, signal.SIGINT)
            interrupt = False
    os.close(theirs)
    os.close(ours)
    process.join()
    assert process.exitcode is not None
    return process.exitcode, seen.decode(errors="replace")


def plain(text: str) -> list[str]:
    """Return the successive texts of the lines of the terminal."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return [line for line in re.split(r"[\r\n]+", text) if line.strip()]


def test_at_a_terminal_of_80_columns() -> None:
    """The bar has loss, epsilon, score and the time left on one line; Ctrl-C leaves a clean screen."""
    long = CONFIG.replace("steps = 30", "steps = 90000").replace("rows = 5", "rows = 3000")
    Path("iris.toml").write_text(long)  # some minutes: it does not end before the Ctrl-C, on any machine
    code, seen = at_a_terminal(["train", "iris.toml", "--out", "out"], interrupt=True)
    assert code == 130
    lines = plain(seen)
    assert max(map(len, lines)) <= 80
    bars = [line for line in lines if "/90000" in line]
    assert re.search(
        r"^iris [━╸╺ ]+ +\d+/90000 (\d+:)?\d\d:\d\d noisy loss -?\d\.\d+ ± \d\.\d+ "
        r"ε ≤ \d\.\d+ test [01]\.\d{3}",
        bars[-1],
    )
    assert "Stopping after this step; a second Ctrl-C stops immediately." in lines
    assert lines[-1] == "  tacit train iris.toml --out out --resume"


def test_a_terminal_that_knows_no_greek() -> None:
    code, seen = at_a_terminal(
        ["train", "iris.toml", "--out", "out"], interrupt=False, PYTHONIOENCODING="ascii"
    )
    assert code == 0
    assert "? = " in seen
    assert "Traceback" not in seen


def test_demo(shell: Shell, request: pytest.FixtureRequest) -> None:
    """All of it, in the next free folder."""
    Path("runs/demo-1").mkdir(parents=True)
    out = shell.out("demo")
    assert len(out.splitlines()) <= 10
    assert "In runs/demo-2: statement.txt" in out
    assert max(map(len, out.splitlines())) <= 80
    assert float(re.search(r"Test accuracy (\d\.\d+) ", out)[1]) > 0.88  # type: ignore[index]
    assert "Private: ε = 3.00 at δ = 0.0001 for one image (add-remove)" in out
    for name in ("model.safetensors", "statement.json", "progress.png", "privacy.png"):
        assert (Path("runs/demo-2") / name).stat().st_size > 500
    request.getfixturevalue("no_pictures")
    assert shell.data("demo", "--out", "mine")["finished"] is True
    assert run(["demo", "--out", "mine"]) == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [("tacit led", "ledger"), ("tacit train --bat", "--batches"), ("tacit ledger reg", "register")],
)
def test_the_shell_completes_verbs_and_options(words: str, expected: str) -> None:
    """As the script asks that ``tacit --install-completion`` writes for bash."""
    count = str(len(words.split()) - 1)
    asked = {"COMP_WORDS": words, "COMP_CWORD": count, "_TACIT_COMPLETE": "complete_bash"}
    command = [sys.executable, "-m", "tacit"]
    found = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=True)
    assert expected in found.stdout.split()
