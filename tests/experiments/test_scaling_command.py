"""``python -m experiments.scaling``: what is shown, that the promise is kept, and what is refused how."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pages import blocks_of

import tacit
from experiments.scaling.__main__ import main

PROMISE = ("--unit", "sequence", "--adjacency", "add-remove", "--epsilon", "4", "--delta", "1e-8")
ASK = ("--records", "1e7", "--flops", "1e20", *PROMISE)
PAGE = "language-models.md"


class Shell:
    """Runs the command in this process, checks its exit code, and returns its output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def both(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        out, err = self._capsys.readouterr()
        assert (ended.value.code or 0) == code, out + err
        return out, err

    def data(self, *arguments: str) -> Any:
        return json.loads(self.both(*arguments, "--json")[0])


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_the_table_the_words_and_the_figure(shell: Shell, tmp_path: Path) -> None:
    figure = tmp_path / "new" / "loss.png"
    out, err = shell.both(*ASK, "--figure", str(figure), "--compare-epsilon", "8")
    assert err.startswith("drawing: 0 of 2")
    words = " ".join(out.split())
    assert "10,000,000 records (unit: sequence) of 512 tokens, 1e+20 FLOPs, ε = 4 at δ = 1e-08" in words
    assert re.search(r"^advised +\d\d\.?\d?M ", out, flags=re.MULTILINE)
    assert re.search(r"^without privacy +913M ", out, flags=re.MULTILINE)
    assert "Twice the FLOPs would take away" in words
    assert "2501.18914" in words
    assert "Its range: models of 4.6M to 330M parameters" in words
    assert "Note: Each record is drawn about" in words
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert out.endswith(f"\nFigure: {figure}\n")


@pytest.mark.parametrize("largest", [None, 130_000])
def test_the_advised_plan_keeps_the_promise(shell: Shell, largest: int | None) -> None:
    """The event that training performs, made by Plan, and its price; and less noise would not keep it."""
    cut = () if largest is None else ("--largest-batch", str(largest))
    data = shell.data(*ASK, *cut)
    best = data["best"]

    def epsilon(noise: float) -> float:
        return tacit.Plan.with_noise(
            noise_multiplier=noise, delta=1e-8, records=10**7, batch_size=best["batch_size"],
            steps=best["steps"], clipping=1.0, adjacency="add-remove", unit="sequence", largest_batch=largest,
        ).epsilon  # fmt: skip

    assert epsilon(best["noise_multiplier"]) <= 4.0 < epsilon(0.99 * best["noise_multiplier"])
    assert largest is None or best["batch_size"] < largest
    spent = 6 * best["model_size"] * best["steps"] * best["batch_size"] * 512
    assert 0.98e20 < spent <= 1.001e20
    assert data["law"]["source"]
    assert data["in_words"].startswith("Train a model of ")


def test_a_law_is_fitted_to_runs_of_ones_own(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    lines = ["model_size,steps,noise_batch_ratio,loss"]
    for size in (1e6, 1e7, 1e8):
        for steps in (1e3, 1e4, 1e5):
            for ratio in (1e-6, 1e-5, 1e-4):
                loss = 2 + (size / 1e6) ** -0.3 + (steps / 1e3) ** -0.3 + 3 / (1 + 1e-4 / ratio)
                lines.append(f"{size:g},{steps:g},{ratio:g},{loss:.6g}")
    path.write_text("\n".join(lines))
    data = shell.data(*ASK, "--runs", str(path), "--sequence-length", "128")
    assert data["law"]["source"] == str(path)
    assert data["law"]["quality"]["typical"] < 0.005
    assert 2.0 < data["best"]["loss"] < 4.0
    assert "--runs needs --sequence-length" in shell.both(*ASK, "--runs", str(path), code=2)[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--extrapolate", "needs --flops .* --unit .* exactly one of --records and --tokens"),
        ("--records 1e7 --tokens 5e9 --flops 1e19 PROMISE", "exactly one of --records"),
        ("--records 1e7 --flops nan PROMISE", "flops must be a real number"),
        ("--records 1e7 --flops -1 PROMISE", "flops must be a real number"),
        ("--tokens 100 --flops 1e19 PROMISE", "at least one sequence of 512 tokens"),
        ("--tokens inf --flops 1e19 PROMISE", "at least one sequence of 512 tokens"),
        ("--records 1e7 --flops 1e12 PROMISE", "too few for one sequence a step"),
        ("--records 100 --flops 1e19 PROMISE", "ratio of this budget is at least"),
        ("--records 1e7 --flops 1e19 --parameters 1e9 PROMISE", "outside the scaling law"),
        (
            "--records 1e7 --flops 1e19 --sequence-length 0 PROMISE",
            "must be an integer >= 1",
        ),
        ("--records 1e7 --flops 1e19 --compare-epsilon 3 PROMISE", "--figure FILE.png"),
        (
            "--records 1e7 --flops 1e19 --figure x.txt PROMISE",
            "figure's file name must end in",
        ),
        ("--records 1e7 --flops 1e19 --largest-batch 0 PROMISE", "--largest-batch must be"),
        (
            "--records 1e7 --flops 1e19 PROMISE --epsilon 0.01",
            "must be at least 0.1",
        ),
        ("--records 1e9 --flops 1e19 PROMISE", "delta = 1e-08 is not below 1/N"),
    ],
)
def test_wrong_questions_are_refused(capsys: pytest.CaptureFixture[str], arguments: str, says: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(arguments.replace("PROMISE", " ".join(PROMISE))))
    assert ended.value.code in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(says, " ".join(err.split())), err


@pytest.mark.thorough(instead="test_the_table_the_words_and_the_figure")
def test_the_command_of_the_page_runs(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = [block for block in blocks_of(PAGE, "sh") if "experiments.scaling" in block]
    python, flag, module, *arguments = shlex.split(command.replace("\\\n", " "))
    assert (python, flag, module) == ("python", "-m", "experiments.scaling")
    (table,) = blocks_of(PAGE, "text")
    assert table in shell.both(*arguments)[0]
    assert Path("language-model.svg").exists()
