"""A charged run shows and writes only one noisy score of its test records."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from run_files import run_file
from safetensors.torch import load_file

from tacit.cli.app import run as tacit
from tacit.datasets import TensorPair
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import ApproximateDP
from tacit.ledger import ApproximateBudget, Budget, Conflict, Ledger, Policy, RenyiBudget
from tacit.report import plots
from tacit.report.evaluation import score_line
from tacit.report.plots import plot_progress
from tacit.report.verification import read_statement, verify_statement
from tacit.runs import Run, metrics, prepare
from tacit.runs import train as runner
from tacit.runs.attack import open_run
from tacit.runs.config import parse_config
from tacit.runs.kinds import prepared_data
from tacit.runs.metrics import figures_of
from tacit.runs.plan import make_plan
from tacit.testing import seeded_generator
from tacit.training import Evaluation, evaluate, train
from tacit.training.loop import MetricsRow

pytestmark = pytest.mark.usefixtures("no_pictures")
CONFIG = run_file(
    data='table = "people.csv"; test_fraction = 0.4; target = "sick"',
    columns='a = { kind = "number", lower = -1, upper = 1 }; '
    'b = { kind = "number", lower = -1, upper = 1 }; '
    'sick = { kind = "category", values = ["no", "yes"] }',
    privacy='noise_multiplier = 2.0; test_noise = 5.0; unit = "person"; records = 180',
    optimizer="learning_rate = 0.7",
    training="steps = 6",
    run="rows = 3",
    ledger='url = "budget.db"; dataset = "people"; chunk = 2',
)
READABLE = (".txt", ".json", ".csv", ".html", ".md")
EXACT = CONFIG.replace("test_noise = 5.0\n", "")
RENYI = RenyiBudget(epsilon=9.0, delta=1e-4)


def table(count: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-1, 1, (count, 2))
    sick = rows.sum(1) + 0.6 * rng.normal(size=count) > 0
    lines = [f"{a:.4f},{b:.4f},{'yes' if s else 'no'}" for (a, b), s in zip(rows, sick, strict=True)]
    return "\n".join(["a,b,sick", *lines]) + "\n"


def open_ledger(budget: Budget = RENYI, **policy: Any) -> None:
    with closing(Ledger.create("budget.db")) as made:
        given: dict[str, Any] = {"unit": "person", "adjacency": "add-remove", "budget": budget, **policy}
        made.open_dataset("people", Policy(**given))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text(table(300, 0))
    (tmp_path / "others.csv").write_text(table(100, 1))
    (tmp_path / "run.toml").write_text(CONFIG)
    open_ledger()
    return tmp_path


def change(folder: Path, *pairs: tuple[str, str], text: str = CONFIG) -> None:
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    (folder / "run.toml").write_text(text)


# --- nothing exact is shown -------------------------------------------------------------------------------


def exact_figures(folder: Path) -> list[str]:
    """The exact score, loss and other figures of the test records, in the forms that are printed."""
    run = open_run(folder)
    found = evaluate(run.model, *run.data.test)
    others = (found.loss, found.baseline, found.balanced, found.auc, found.average_precision)
    assert None not in others
    values = [found.score, *found.per_class, *(value for value in others if value is not None)]
    return [*(f"{value:.4f}" for value in values), *(repr(v) for v in values if len(repr(v)) > 8)]


def said(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """All that a run prints, as text and as JSON, and all that it writes to be released."""
    assert tacit(["train", "run.toml", "--out", "out"]) == 0
    printed = capsys.readouterr()
    assert tacit(["train", "run.toml", "--out", "out", "--resume", "--json"]) == 0
    again = capsys.readouterr()
    released = [path for path in sorted(folder.glob("out/*")) if path.suffix in READABLE]
    assert {path.name for path in released} >= {"metrics.csv", "README.md", "evaluation.html"}
    return "\n".join([printed.out, printed.err, again.out, again.err, *map(Path.read_text, released)])


def leaks(folder: Path, text: str) -> list[str]:
    numbers = set(re.findall(r"\d+(?:\.\d+(?:e-?\d+)?)?", text))
    return [figure for figure in exact_figures(folder / "out") if figure in numbers]


@pytest.fixture
def fixed_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no noisy figure is like an exact one by chance."""
    monkeypatch.setattr(runner, "Generator", SimpleNamespace(from_os=lambda: seeded_generator(5)))


@pytest.mark.usefixtures("fixed_key")
def test_no_exact_figure_of_held_out_records_is_printed_or_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(folder, capsys)
    assert leaks(folder, text) == []
    assert re.search(r"Test accuracy \d\.\d{3} \(\d\.\d{3} to \d\.\d{3}\)", text)


@pytest.mark.usefixtures("fixed_key")
@pytest.mark.parametrize("where", ["at the end", "on the way", "as the constant answer"])
def test_an_exact_figure_that_is_let_through_is_found(
    where: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the last score, or those of the lines of metrics, without noise; a counted baseline."""
    if where == "at the end":
        monkeypatch.setattr(Run, "_score", Run._evaluate)
    elif where == "as the constant answer":

        def counted(_: Any, data: Any) -> tuple[float, str, str]:
            share = float(torch.bincount(data.test.targets).max()) / len(data.test.targets)
            return share, "the commonest", ""

        monkeypatch.setattr(metrics, "_public_baseline", counted)
    else:
        data = prepared_data(parse_config(CONFIG, "run.toml"))

        def told(*arguments: Any, **given: Any) -> Any:
            return train(*arguments, **{**given, "evaluate": lambda model: evaluate(model, *data.test)})

        monkeypatch.setattr(runner, "train", told)
    assert leaks(folder, said(folder, capsys)) != []


def test_lines_of_metrics_have_one_score_at_the_end_and_no_loss(folder: Path) -> None:
    outcome = prepare("run.toml", out="out").start()
    assert outcome is not None
    assert [row.test_score for row in outcome.rows[:-1]] == [None, None]
    assert outcome.rows[-1].test_score == outcome.evaluation.score
    assert all(row.test_loss is None for row in outcome.rows)
    assert outcome.evaluation.loss is None
    assert outcome.evaluation.per_class == ()
    lines = (folder / "out" / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[3:5] for line in lines[1:-1]] == [["", ""]] * 2
    assert lines[-1].split(",")[3:5] == [repr(outcome.evaluation.score), ""]


def test_the_picture_of_one_score_shows_the_noisy_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    kept = plots._line
    monkeypatch.setattr(plots, "_line", lambda axes, points, name, *_: drawn.append(name))
    one = [MetricsRow(2, 0.5, 0.9, None, None), MetricsRow(4, 0.7, 0.8, 0.75, None)]
    plot_progress(one, tmp_path / "a.png")
    plot_progress([MetricsRow(2, 0.5, 0.9, 0.6, 0.5), one[1]], tmp_path / "b.png")
    assert drawn == ["noisy training loss", "ε spent", "test accuracy", "ε spent"]
    monkeypatch.setattr(plots, "_line", kept)
    plot_progress(one, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 0


def test_the_constant_answer_of_a_noisy_score_is_a_public_number(folder: Path) -> None:
    """Four of five test records are of one class; one over the classes is said, or what is declared."""
    change(folder, ("test_fraction = 0.4", 'test_table = "others.csv"'))
    rows = (folder / "others.csv").read_text().splitlines()
    (folder / "others.csv").write_text("\n".join([rows[0], *(r.replace(",yes", ",no") for r in rows[1:])]))
    outcome = prepare("run.toml", out="out").start()
    assert outcome is not None
    assert outcome.evaluation.baseline is None
    assert outcome.figures["baseline"] == {
        "score": 0.5,
        "predictor": "the majority class, if all 2 classes are equally common",
        "known": "at least",  # of the true share, four of five, nothing may be said
    }
    assert "(baseline: at least 0.500)" in score_line(outcome.figures)
    assert "<td>at least 0.5000</td>" in (folder / "out" / "evaluation.html").read_text()
    assert "(baseline: at least 0.500)" in (folder / "out" / "README.md").read_text()
    assert json.loads((folder / "out" / "evaluation.json").read_text()) == outcome.figures
    declared = (
        (folder / "run.toml").read_text().replace("test_noise = 5.0", "test_noise = 5.0\ntest_baseline = 0.9")
    )
    (folder / "run.toml").write_text(declared)
    again = prepare("run.toml", out="out", resume=True).start()
    assert again is not None
    assert again.evaluation == outcome.evaluation, "no second release"
    assert again.figures["baseline"]["score"] == 0.9
    assert "(baseline: 0.900)" in score_line(again.figures)
    assert "test_baseline" in again.figures["baseline"]["predictor"]
    assert "assumption" not in again.figures["verdict"]


def test_what_is_said_of_a_noisy_score_is_the_same_for_all_test_records(folder: Path) -> None:
    run = prepare("run.toml", out="out")
    found = Evaluation(0.7, None, (), interval=(0.6, 0.8), noise=5.0, steps=6)
    pair = run.data.test
    said = [
        figures_of(found, run.config, run.plan, replace(run.data, test=test), run.session.model, private=True)
        for test in (pair, TensorPair(pair.inputs[:3], torch.zeros_like(pair.targets[:3])))
    ]
    assert said[0] == said[1]
    assert said[0]["verdict"].endswith("test_baseline; otherwise a useless model looks useful.")


def test_a_declared_baseline_without_a_noisy_score_is_refused(folder: Path) -> None:
    change(
        folder,
        ("test_noise = 5.0", "test_baseline = 0.9"),
        ("test_fraction = 0.4", 'test_table = "others.csv"'),
    )
    with pytest.raises(InvalidInput, match=r"\[privacy\] test_baseline = 0.9 .* Remove test_baseline"):
        prepare("run.toml", out="out")


def test_the_score_is_near_the_exact_one(folder: Path) -> None:
    change(folder, ("test_noise = 5.0", "test_noise = 0.5"), ("chunk = 2", "chunk = 6"))
    with closing(Ledger.open("budget.db")) as ledger:
        ledger.raise_cap(
            "people", RenyiBudget(epsilon=90.0, delta=1e-4, orders=RENYI.orders), reason="x", by="y"
        )
    outcome = prepare("run.toml", out="out").start()
    assert outcome is not None
    run = open_run(folder / "out")
    assert outcome.evaluation.score == pytest.approx(evaluate(run.model, *run.data.test).score, abs=0.05)
    assert run.plan.score_report is not None


# --- what is refused --------------------------------------------------------------------------------------


def test_exact_scores_are_refused_with_what_to_write_and_that_works(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "run.toml").write_text(EXACT)
    assert tacit(["train", "run.toml", "--out", "out"]) == 1
    message = " ".join(capsys.readouterr().err.split())
    found = re.search(r"test_noise = (\d+(\.\d+)?)", message)
    assert found is not None
    assert "from a separate file" in message
    assert not (folder / "out").exists()
    with closing(Ledger.open("budget.db")) as ledger:
        assert [entry.kind for entry in ledger.history("people")] == ["open"]
    change(folder, ("test_noise = 5.0", f"test_noise = {found[1]}"))
    plain, scored = (prepare_plan(folder, text) for text in (EXACT, (folder / "run.toml").read_text()))
    assert 1.0 < scored / plain < 1.03


def prepare_plan(folder: Path, text: str) -> float:
    """The epsilon of a configuration's plan."""
    return make_plan(parse_config(text, str(folder))).epsilon


def test_it_is_refused_under_other_adjacencies_with_noise_and_without(folder: Path) -> None:
    (folder / "budget.db").unlink()
    open_ledger(adjacency="replace-one", public_records=180)
    replaced = ('adjacency = "add-remove"', 'adjacency = "replace-one"')
    change(folder, replaced, text=EXACT)
    with pytest.raises(PrivacyRefusal, match="test_fraction tests on records"):
        prepare("run.toml", out="out")
    change(folder, replaced)
    with pytest.raises(PrivacyRefusal, match="no guarantee under replace-one"):
        prepare("run.toml", out="out")


def test_noise_without_a_ledger_is_refused(folder: Path) -> None:
    (folder / "run.toml").write_text(CONFIG[: CONFIG.index("[ledger]")])
    with pytest.raises(InvalidInput, match=r"Set \[ledger\]"):
        prepare("run.toml", out="out")


def copied(folder: Path) -> None:
    (folder / "others.csv").write_text((folder / "people.csv").read_text())


def held_out_by_an_earlier_run(folder: Path) -> None:
    """Somebody writes the held-out part into a file of its own."""
    assert prepare("run.toml", out="earlier").start() is not None
    head, *rows = (folder / "people.csv").read_text().splitlines()
    data = prepared_data(prepare("run.toml", out="unused").config)
    values = {tuple(row) for row in data.test.inputs.tolist()}
    kept = [row for row in rows if tuple(np.float32(v) for v in row.split(",")[:2]) in
            {tuple(np.float32(x) for x in value) for value in values}]  # fmt: skip
    assert len(kept) == len(data.test.inputs)
    (folder / "others.csv").write_text("\n".join([head, *kept]) + "\n")


@pytest.mark.parametrize("prepared", [copied, held_out_by_an_earlier_run], ids=["copied", "held-out"])
def test_a_test_file_with_records_that_the_ledger_knows_is_refused(
    prepared: Callable[[Path], None], folder: Path
) -> None:
    prepared(folder)
    change(folder, ("test_fraction = 0.4", 'test_table = "others.csv"'), text=EXACT)
    with pytest.raises(PrivacyRefusal, match="ledger's data set 'people'"):
        prepare("run.toml", out="out")
    change(folder, ("test_fraction = 0.4", 'test_table = "others.csv"'))
    assert prepare("run.toml", out="out").start() is not None  # with noise it may be scored


def test_held_out_records_of_another_data_set_with_a_budget_of_its_own_are_refused(folder: Path) -> None:
    assert prepare("run.toml", out="out").start() is not None
    with closing(Ledger.open("budget.db")) as ledger:
        ledger.open_dataset("same", ledger.policy("people"))
    change(folder, ('dataset = "people"', 'dataset = "same"'))
    with pytest.raises(Conflict, match="already open as 'people'"):
        prepare("run.toml", out="again")


def test_a_unit_with_several_rows_needs_the_word_for_both_parts(folder: Path) -> None:
    (folder / "budget.db").unlink()
    open_ledger(unit_column="name", largest_table=1000, rows_per_unit=3)
    with pytest.raises(PrivacyRefusal, match="nor two of the test records"):
        prepare("run.toml", out="out")


# --- what is as before ------------------------------------------------------------------------------------


@pytest.mark.parametrize("charged", [True, False], ids=["test-file", "no-ledger"])
def test_other_records_and_runs_without_a_ledger_are_scored_exactly(charged: bool, folder: Path) -> None:
    if charged:
        change(folder, ("test_fraction = 0.4", 'test_table = "others.csv"'), text=EXACT)
    else:
        (folder / "run.toml").write_text(EXACT[: EXACT.index("[ledger]")])
    outcome = prepare("run.toml", out="out").start()
    assert outcome is not None
    run = open_run(folder / "out")
    assert outcome.evaluation == evaluate(run.model, *run.data.test)
    assert all(row.test_score is not None and row.test_loss is not None for row in outcome.rows)
    assert any("exact" in line for line in outcome.statement.data["not_covered"])
    assumed = [line for line in outcome.statement.data["not_covered"] if "assumed not to belong" in line]
    assert bool(assumed) == charged


# --- its life ---------------------------------------------------------------------------------------------


def spend() -> None:
    """Spend what is left of the budget."""
    with closing(Ledger.open("budget.db")) as ledger:
        left = ledger.status("people").remaining_epsilon
        ledger.reserve("people", ApproximateDP(0.999 * left), key="q", request={})


def test_a_run_that_the_ledger_ends_has_its_score_then_and_no_second_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Greedy:
        def on_step(self, taken: int, epsilon: float, loss: float | None) -> None:
            if taken == 1:
                spend()

        def on_row(self, row: MetricsRow) -> None:
            pass

    outcome = prepare("run.toml", out="out").start((Greedy(),))
    assert outcome is not None
    assert outcome.stopped is not None
    assert outcome.evaluation.steps == 2
    statement = read_statement(folder / "out" / "statement.json")
    assert verify_statement(statement).agrees
    assert open_run(folder / "out").plan.steps == 2
    with closing(Ledger.open("budget.db")) as ledger:
        ledger.raise_cap(
            "people", RenyiBudget(epsilon=40.0, delta=1e-4, orders=RENYI.orders), reason="x", by="y"
        )
    capsys.readouterr()
    assert tacit(["train", "run.toml", "--out", "out", "--resume"]) == 0
    text = " ".join("".join(capsys.readouterr()).split())
    assert f"Test accuracy {outcome.evaluation.score:.3f}" in text
    assert "one noisy score is that after 2 steps" in text
    scores = [line.split(",")[3] for line in (folder / "out" / "metrics.csv").read_text().splitlines()[1:]]
    assert scores == [repr(outcome.evaluation.score), "", ""]


def test_a_finished_run_says_the_same_again_also_as_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tacit(["train", "run.toml", "--out", "out", "--json"]) == 0
    first = json.load(io.StringIO(capsys.readouterr().out))
    assert tacit(["train", "run.toml", "--out", "out", "--resume", "--json"]) == 0
    second = json.load(io.StringIO(capsys.readouterr().out))
    for name in ("test_score", "test_interval", "test_noise", "test_steps", "test_loss", "per_class", "rows"):
        assert first[name] == second[name]
    assert (first["test_noise"], first["test_steps"]) == (5.0, 6)
    low, high = first["test_interval"]
    assert low <= first["test_score"] <= high
    with closing(Ledger.open("budget.db")) as ledger:
        keys = [entry.body["key"] for entry in ledger.history("people") if entry.kind == "reserve"]
    assert sum(key.endswith("/score") for key in keys) == 1


def test_it_is_one_charge_where_the_budget_counts_epsilon_and_delta(folder: Path) -> None:
    (folder / "budget.db").unlink()
    open_ledger(ApproximateBudget(epsilon=9.0, delta=1e-3))
    change(folder, ("chunk = 2\n", ""))
    run = prepare("run.toml", out="out")
    assert run.start() is not None
    with closing(Ledger.open("budget.db")) as ledger:
        status = ledger.status("people")
    assert status.spent_epsilon == pytest.approx(run.plan.epsilon, rel=1e-6)
    assert status.spent_delta == pytest.approx(run.plan.delta)


TEXT = """
[data]
text = "lines.txt"
alphabet = "abcdefgh"
longest = 6
test_fraction = 0.4
[model]
name = "window"
hidden = [4]
"""


def test_text_is_scored_record_by_record(folder: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["".join(rng.choice(list("abcdefgh"), size=5)) for _ in range(100)]
    (folder / "lines.txt").write_text("\n".join(lines) + "\n")
    (folder / "run.toml").write_text(
        TEXT + CONFIG[CONFIG.index("[privacy]") :].replace("records = 180", "records = 60")
    )
    outcome = prepare("run.toml", out="out").start()
    assert outcome is not None
    assert outcome.evaluation.measure == "accuracy per character, all records weighted equally"
    assert outcome.evaluation.interval is not None


def test_numbers_are_scored_by_their_error(folder: Path) -> None:
    change(
        folder,
        ('target = "sick"', 'target = "b"'),
        ("test_noise = 5.0", "test_noise = 1.0"),
    )
    outcome = prepare("run.toml", out="out").start()
    assert outcome is not None
    found = outcome.evaluation
    assert found.measure.startswith("mean squared error")
    assert found.interval is not None
    assert 0.0 <= found.interval[0] <= found.score <= found.interval[1] <= 4.0
    run = open_run(folder / "out")
    with torch.no_grad():
        errors = run.model(run.data.test.inputs).clamp(-1, 1) - run.data.test.targets
    assert found.score == pytest.approx(float(errors.square().mean()), abs=0.2)
    assert set(load_file(folder / "out" / "model.safetensors"))
