"""``tacit plan``: what is shown, what goes into JSON and the figure, and what is refused how."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from run_files import digits_run
from shell import Shell

from tacit.cli.app import run

BUDGET = ("--unit", "image", "--epsilon", "2", "--delta", "1e-5", "--adjacency", "add-remove")
RECORDS = ("--records", "10000")
ASK = ("plan", *RECORDS, *BUDGET)


def test_the_table_and_the_words(shell: Shell) -> None:
    sizes = [word for size in (300, 1000, 4000) for word in ("--batch-size", str(size))]
    out = shell.out(*ASK, "--steps", "200", "--physical-batch", "256", *sizes)
    assert "10,000 records (unit: image), ε = 2.00 at δ = 1e-05 under add-remove, 200 steps" in out
    cells = [line.split() for line in out.splitlines() if re.match(r" *(→|\d+) ", line)]
    assert [row[1] for row in cells] == ["4,000", "1,000", "300"]
    assert [row[0] for row in cells] == ["→", "2", "3"]
    assert [row[4] for row in cells] == ["16", "4", "2"], "physical batches"
    assert [float(row[3]) for row in cells] == [200.0] * 3
    for row in cells:
        size, sigma, noise = float(row[1].replace(",", "")), float(row[5]), float(row[6])
        assert noise == pytest.approx(sigma / size, rel=5e-3)
        assert float(row[7]) == pytest.approx(noise / 200**0.5, rel=1e-2)
        assert all(cell.endswith("%") for cell in row[8:])
    words = " ".join(out.split())
    assert "Take batches of 4,000 (each record with probability 0.4), 200 steps, noise multiplier" in words
    assert "a larger batch gains hardly" in words
    assert max(map(len, out.splitlines())) <= 80


def test_json_and_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path, shell: Shell) -> None:
    figure = tmp_path / "new" / "noise.png"
    arguments = ["--compute", "2e5", "--batch-size", "500", "--batch-size", "2000", "--figure", str(figure)]
    data = shell.data(*ASK, *arguments)
    assert [option["batch_size"] for option in data["options"]] == [2000, 500]
    assert [option["steps"] for option in data["options"]] == [100, 400]
    assert data["question"]["compute"] == 2e5
    assert data["recommended_batch_size"] == 2000
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert run([*ASK, *arguments]) == 0
    assert capsys.readouterr().out.endswith(f"\nFigure: {figure}\n")


def test_numbers_may_be_written_with_an_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["plan", "--records", "1e4", *BUDGET, "--steps", "2e2", "--batch-size", "4e3", "--json"]
    assert run(ask) == 0
    assert json.loads(capsys.readouterr().out)["question"]["records"] == 10_000


def test_what_comes_before_training_is_paid_from_the_same_budget(
    capsys: pytest.CaptureFixture[str], shell: Shell
) -> None:
    ask = [*ASK, "--steps", "9", "--batch-size", "10000", "--json"]
    before = ["--preparation", '{"event": "Gaussian", "noise_multiplier": 4.0}']
    noises = []
    for arguments in (ask, [*ask, *before], [*ask, *before, *before]):
        assert run(arguments) == 0
        noises.append(json.loads(capsys.readouterr().out)["options"][0]["noise_multiplier"])
    one, two, three = (noise**-2 for noise in noises)  # Gaussians: what is left for training, over 9
    assert one - two == pytest.approx(4.0**-2 / 9, rel=5e-3)
    assert two - three == pytest.approx(4.0**-2 / 9, rel=5e-3)
    assert "a part of the cost does not depend on the noise" in shell.err(*ask, *(10 * before), code=1)


BAD = [
    (("plan", "--epsilon", "1"), 2, "a plan needs --records (number of records"),
    (("plan", *RECORDS, "--unit", "a", "--epsilon", "1", "--delta", "1e-6"), 2, "a plan needs --adjacency"),
    (ASK, 2, "exactly one of epochs"),
    ((*ASK, "--epochs", "3", "--steps", "3"), 2, "got epochs and steps"),
    ((*ASK, "--epochs", "0"), 2, "epochs must be a real number in (0, inf)"),
    ((*ASK, "--epochs", "nan"), 2, "epochs must be"),
    ((*ASK, "--compute", "inf"), 2, "compute must be"),
    ((*ASK, "--steps", "2.5"), 2, "--steps must be a whole number; got 2.5"),
    ((*ASK, "--steps", "inf"), 2, "--steps must be a whole number; got inf"),
    ((*ASK, "--steps", "-3"), 2, "steps must be an integer >= 1"),
    ((*ASK, "--steps", "9", "--batch-size", "0"), 2, "batch size must be an integer >= 1"),
    ((*ASK, "--steps", "9", "--batch-size", "20000"), 2, "batch size 20000 is too large"),
    ((*ASK, "--steps", "9", "--physical-batch", "0"), 2, "largest_physical_batch must be"),
    ((*ASK, "--steps", "9", "--preparation", "PCA"), 2, "not an event in JSON"),
    ((*ASK, "--steps", "9", "--preparation", '{"event": "PCA"}'), 1, "unknown event 'PCA'"),
    ((*ASK, "--steps", "9", "--figure", "noise.txt"), 2, "a figure's file name must end in .png"),
    (("plan", "--records", "nan", *BUDGET, "--steps", "9"), 2, "--records must be a whole number"),
    (("plan", "--records", "0", *BUDGET, "--steps", "9"), 2, "records must be an integer >= 1"),
    (("plan", "--records", "100000", *BUDGET, "--steps", "9"), 1, "delta = 1e-05 is not below 1/N"),
    ((*ASK[:-1], "neighbours", "--steps", "9"), 2, "adjacency must be one of add-remove"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), BAD)
def test_bad_input_is_one_paragraph(arguments: tuple[str, ...], code: int, words: str, shell: Shell) -> None:
    err = shell.refused(*arguments, code=code)
    assert words in err
    assert err.count("\n") == 1
    assert err.rstrip().endswith(".")


def test_words_instead_of_numbers_are_bad_usage(shell: Shell) -> None:
    shell.refused("plan", "--records", "many", code=2)


def rows(text: str) -> list[list[float]]:
    """The numbers of a table of options; the arrow is rank 1."""
    found = (line.replace("→", "1").split() for line in text.splitlines() if re.match(r" *(→|\d+) ", line))
    return [[float(cell.replace(",", "").rstrip("%")) for cell in row] for row in found]


def test_the_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "plan-and-account.md").read_text(encoding="utf-8")
    command = re.search(r"^tacit (plan .*)$", text, re.MULTILINE)
    told = re.search(r"```text\n( *batch .*?)```", text, re.DOTALL)
    assert command is not None
    assert told is not None
    assert run(command.group(1).split()) == 0
    shown = rows(capsys.readouterr().out)
    assert len(shown) == 9
    for stated, found in zip(rows(told.group(1)), shown, strict=True):
        assert found[:5] == stated[:5]
        assert found[5:8] == pytest.approx(stated[5:8], rel=2e-3)
        assert found[8:] == pytest.approx(stated[8:], abs=1.0)


RISK = (
    "plan", "--unit", "image", "--delta", "1e-6", "--adjacency", "add-remove", "--steps", "200",
    "--advantage", "0.1",
)  # fmt: skip


@pytest.mark.thorough(instead="test_budgets_that_do_not_go_together")
def test_a_budget_that_is_a_risk(shell: Shell, tmp_path: Path) -> None:
    figure = tmp_path / "noise.png"
    sizes = ["--batch-size", "1000", "--figure", str(figure)]
    out, _ = shell.both(*RISK, *RECORDS, *sizes)
    words = " ".join(out.split())
    assert "advantage of any attack ≤ 0.1 under add-remove, 200 steps" in words
    assert re.search(r"That costs epsilon [\d.]+ at delta = 1e-06\.", words)
    assert figure.stat().st_size > 1000


def test_budgets_that_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    for more, said in (
        (["--epsilon", "2"], "got epsilon and advantage"),
        (["--largest-batch", "2000"], "needs a budget in epsilon"),
        (["--true-positive-rate", "0.1"], "got advantage and true_positive_rate"),
    ):
        assert run([*RISK, *RECORDS, *more]) == 2
        assert said in " ".join(capsys.readouterr().err.split())


def test_it_says_whether_so_many_weights_can_learn(shell: Shell) -> None:
    ask = (*ASK, "--steps", "100", "--batch-size", "500", "--weights")
    out, data = shell.out(*ask, "770"), shell.data(*ask, "770", "--json")
    assert "Can it learn?" in out
    assert "can learn" in out
    signal = data["signal"]
    (option,) = data["options"]
    assert signal["weights"] == 770
    assert signal["noise_of_step"] == pytest.approx(option["noise_per_example"] * 770**0.5)
    assert signal["noise_of_run"] == pytest.approx(option["total_noise"] * 770**0.5)
    assert "signal" not in shell.data(*ask[:-1], "--json")


def test_each_record_once_an_epoch_beside_poisson_samples(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(digits_run("batch_size = 144; epochs = 4", privacy='epsilon = 3.0; sampling = "epochs"'))
    told = " ".join(shell.out("plan", str(path), "--batch-size", "144").split())
    pattern = r"once an epoch, in one of its 10 batches .*: σ ([\d.]+), where Poisson .* need ([\d.]+[0-9])"
    found = re.search(pattern, told)
    assert found is not None
    once, poisson = map(float, found.groups())
    assert 0.85 * poisson < once < 0.95 * poisson
