"""A finished run under attack, from its folder to its report; small runs, so that only the road is tried."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_files import run_file
from safetensors.torch import load_file, save_file
from shell import Shell
from undrawn import undrawn

from tacit.accounting import account
from tacit.cli.app import run as tacit
from tacit.errors import InvalidInput
from tacit.events import Gaussian
from tacit.noise.generator import Generator
from tacit.report.risk import risk_sheet
from tacit.runs import attack, prepare
from tacit.runs.attack import attack_findings, open_run
from tacit.testing import seeded_generator

pytestmark = pytest.mark.usefixtures("no_pictures")
CONFIG = run_file(
    data='name = "digits"',
    model='name = "logistic"; normalise = true',
    privacy='epsilon = 3.0; unit = "image"; records = 1437',
    optimizer="learning_rate = 0.3; momentum = 0.9",
    training="batch_size = {batch}; steps = {steps}",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with undrawn():
        return train(tmp_path_factory.mktemp("runs"), '"full"', 4)


def train(folder: Path, batch: str, steps: int) -> Path:
    config = folder / "digits.toml"
    config.write_text(CONFIG.format(batch=batch, steps=steps))
    assert prepare(config, out=folder / "run").start() is not None
    return folder / "run"


@pytest.fixture
def mine(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def table(folder: Path, seed: int) -> Path:
    """A table of 300 random rows at the same path, another for each seed."""
    rng = np.random.default_rng(seed)
    rows = [f"{x:.3f},{y}" for x, y in zip(rng.random(300), rng.integers(0, 2, 300), strict=True)]
    path = folder / "table.csv"
    path.write_text("\n".join(["x,ill", *rows]) + "\n")
    return path


def of_table(folder: Path, *, test: bool) -> Path:
    split = f'test_table = "{folder / "test.csv"}"' if test else "test_fraction = 0.3"
    text = run_file(
        data=f'table = "{folder / "table.csv"}"; target = "ill"; {split}',
        model='name = "logistic"',
        privacy='epsilon = 3.0; unit = "patient"; records = 300; delta = 1e-4',
        optimizer="learning_rate = 0.3",
        training='batch_size = "full"; steps = 3',
        columns='x.kind = "number"; x.lower = 0; x.upper = 1; ill.kind = "boolean"',
    )
    config = folder / "table.toml"
    config.write_text(text)
    assert prepare(config, out=folder / "run").start() is not None
    return folder / "run"


@pytest.mark.parametrize("verb", [["attack", "--shadows", "0"], ["audit", "--quick"]])
def test_another_table_of_the_same_shape_is_refused(verb: list[str], tmp_path: Path, shell: Shell) -> None:
    table(tmp_path, 0)
    run = of_table(tmp_path, test=False)
    table(tmp_path, 1)
    err = shell.err(verb[0], run, *verb[1:], code=1)
    assert "are not this run's training records" in err
    table(tmp_path, 0)
    shell("attack", run, "--shadows", "0")


def test_shadow_models_of_other_test_records_are_not_reused(tmp_path: Path, shell: Shell) -> None:
    table(tmp_path, 1).rename(tmp_path / "test.csv")
    table(tmp_path, 0)
    run = of_table(tmp_path, test=True)
    shell("attack", run, "--shadows", "4")
    first = (tmp_path / "table.csv").read_text()
    table(tmp_path, 2).rename(tmp_path / "test.csv")
    (tmp_path / "table.csv").write_text(first)
    assert "made with other data, models or settings" in shell.err("attack", run, "--shadows", "4", code=2)


def test_attack_from_the_shell(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tacit(["attack", str(mine), "--shadows", "8", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [model["model"] for model in data["membership"]["models"]] == ["with DP", "without DP"]
    attacks = {attack["attack"] for attack in data["membership"]["models"][0]["attacks"]}
    assert attacks == {"loss threshold", "BaVarIA-t"}
    assert "What attacks reach" in (mine / "private" / "attack" / "report.html").read_text()


def test_audit_from_the_shell(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # With keys from the operating system 5 audits of 100 may contradict a true claim.
    monkeypatch.setattr(Generator, "from_os", lambda: seeded_generator(6))
    assert tacit(["audit", str(mine), "--quick", "--out", str(mine / "report")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in ("limit: ε ≤ 3", "attack: At a false-alarm rate of 2 %", "not contradicted", "confidential"):
        assert words in out
    data = json.loads((mine / "report" / "report.json").read_text())
    assert "separate run" in data["audits"][0]["where"]
    assert [result["canaries"] for result in data["audits"][0]["results"]] == [1000] * 3
    assert tacit(["audit", str(mine), "--quick", "--deep"]) == 2


def test_audits_of_one_run_give_one_figure(finished: Path) -> None:
    """They found 0.75 to 2.07 % of one run: whichever half of the records chose the threshold."""
    run = open_run(finished)
    found = [
        attack_findings(run, shadows=0, confidence=0.95, rng=np.random.default_rng(seed))["membership"]
        for seed in range(2)
    ]
    points = [one["models"][0]["attacks"][0]["points"] for one in found]
    assert points[0] == points[1]
    assert points[0][0]["true_positive_rate"]["low"] < 0.02 < points[0][0]["true_positive_rate"]["high"]


def test_the_risk_sheet_of_a_run(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tacit(["risk", str(mine), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] <= 3.0


def test_an_interrupted_attack_goes_on_with_the_shadows_that_it_has(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[int] = []
    real = attack.train_privately

    def stopped(run: Any, rows: Any) -> Any:
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append(len(rows.inputs))
        return real(run, rows)

    monkeypatch.setattr(attack, "train_privately", stopped)
    assert tacit(["attack", str(mine), "--shadows", "4"]) == 130
    assert "continues" in capsys.readouterr().err
    trained[:] = trained[:2]  # one more may be trained: the fourth
    assert tacit(["attack", str(mine), "--shadows", "4"]) == 0
    assert len(trained) == 3


def test_shadows_are_trained_on_balanced_halves(finished: Path) -> None:
    run = open_run(finished)
    assert run.is_member.sum() == len(run.data.train.inputs) == 1437
    assert run.pool.inputs.shape == (1797, 1, 8, 8)


def test_poisson_batches_and_no_shadows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The sheet of a sampled mechanism takes five seconds, and test_risk.py holds it against a published one.
    other = risk_sheet(account(Gaussian(1.0), adjacency="add-remove"), delta=1e-4, unit="image")
    monkeypatch.setattr(attack, "risk_sheet", lambda *_, **__: other)
    run = open_run(train(tmp_path, "200", 40))
    found = attack_findings(run, shadows=0, confidence=0.95, rng=np.random.default_rng(0))
    assert found["membership"]["headline"] == "loss threshold"


def test_a_model_that_knows_its_records_by_heart_is_found_out(mine: Path) -> None:
    """The positive control: a lookup table in the place of the private model is above the limit."""
    run = open_run(mine)
    known = {record.tobytes() for record in run.data.train.inputs.numpy()}

    class Lookup(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.labels = dict(
                zip((x.tobytes() for x in run.pool.inputs.numpy()), run.pool.targets.tolist(), strict=True)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = [row.tobytes() for row in x.detach().numpy()]
            labels = torch.tensor([self.labels.get(row, 0) for row in rows])
            sure = torch.tensor([9.0 if row in known else 0.0 for row in rows])
            return (
                torch.nn.functional.one_hot(labels, 10) * sure[:, None]
                + torch.rand(len(x), 10) / 100
                + 0.0 * x.sum()
            )

    object.__setattr__(run, "model", Lookup())
    found = attack_findings(run, shadows=0, confidence=0.95, rng=np.random.default_rng(0))
    reached = found["membership"]["models"][0]["attacks"][0]
    assert reached["above_the_limit"]
    assert reached["auc"]["value"] > 0.99


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("no model", "is not finished"),
        ("other model", "does not fit its model"),
        ("nan", "NaN or infinite weights"),
        ("damaged", "cannot be read as a model"),
        ("other statement", "they describe different mechanisms"),
    ],
)
def test_what_cannot_be_attacked_is_refused(mine: Path, harm: str, words: str) -> None:
    weights = mine / "model.safetensors"
    match harm:
        case "no model":
            weights.unlink()
        case "other model":
            save_file({"a": torch.zeros(2)}, weights)
        case "nan":
            save_file({name: value * float("nan") for name, value in load_file(weights).items()}, weights)
        case "damaged":
            weights.write_bytes(b"not a model")
        case _:
            statement = mine / "statement.json"
            data = json.loads(statement.read_text())
            data["event"]["count"] += 1
            statement.write_text(json.dumps(data))
    with pytest.raises(InvalidInput, match=words):
        open_run(mine)


def test_bad_questions_are_refused(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tacit(["attack", str(mine / "nowhere")]) == 2
    assert tacit(["attack", str(mine), "--shadows", "5"]) == 2
    assert "even and at least 4" in capsys.readouterr().err
    assert tacit(["attack", str(mine), "--shadows", "8", "--rate", "0.001"]) == 2
    assert "5000 non-members" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "options",
    [
        ["attack", "--shadows", "5"],
        ["attack", "--shadows", "2"],
        ["attack", "--shadows=-2"],
        ["attack", "--rate", "0"],
        ["attack", "--rate", "1.5"],
        ["attack", "--confidence", "0.3"],
        ["audit", "--confidence", "1"],
    ],
)
def test_numbers_are_refused_before_the_run_is_read(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run does not exist, and the error is about the number."""
    assert tacit([options[0], str(tmp_path / "nowhere"), *options[1:]]) == 2
    assert options[1].partition("=")[0] in capsys.readouterr().err
