"""A fit finds the law that made the runs, and a law refuses arguments outside its range."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.scaling import LanguageModelRequest, Law, Run, advise_language_model
from experiments.scaling.published import published_law, read_runs
from tacit.errors import InvalidInput

QUESTION = LanguageModelRequest(
    records=2_000_000, unit="sequence", epsilon=4, delta=1e-8, adjacency="add-remove", flops=3e17,
    sequence_length=256,
)  # fmt: skip


def true_loss(size: float, steps: float, ratio: float) -> float:
    """Compute a law with other coefficients than the published one; the oracle of the fit."""
    noise = 4.0 * (size / 1e6) ** 0.1 / (1.0 + (2e-4 / ratio) ** 0.9) if ratio else 0.0
    return float(1.1 + 0.9 * (size / 1e6) ** -0.35 + 1.3 * (steps / 1000) ** -0.4 + noise)


def runs(*, relative_error: float, loss: object = true_loss) -> list[Run]:
    """A grid of runs with errors of measurement; the ratio 0 is training without noise."""
    errors = np.random.default_rng(7)
    made = []
    for size in (3e5, 1e6, 4e6, 1.5e7, 5e7):
        for steps in (300, 1000, 4000, 16_000):
            for ratio in (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2):
                error = 1.0 + relative_error * errors.standard_normal()
                value = loss(size, steps, ratio) * error  # type: ignore[operator]
                made.append(
                    Run(model_size=size, steps=steps, noise_batch_ratio=ratio, loss=value, source="grid")
                )
    return made


@pytest.fixture(scope="module")
def fitted() -> Law:
    return Law.fit(runs(relative_error=0.01), sequence_length=256, source="a grid of runs")


def test_a_fit_predicts_losses_that_it_did_not_see_within_two_percent(fitted: Law) -> None:
    draws = np.random.default_rng(11)
    for size, steps, ratio in zip(
        np.exp(draws.uniform(np.log(3e5), np.log(5e7), 200)),
        np.exp(draws.uniform(np.log(300), np.log(16_000), 200)),
        np.exp(draws.uniform(np.log(1e-6), np.log(1e-2), 200)),
        strict=True,
    ):
        expected = fitted.loss(model_size=size, steps=steps, noise_batch_ratio=ratio)
        assert expected == pytest.approx(true_loss(size, steps, ratio), rel=0.02)


def test_a_fit_recovers_the_coefficients(fitted: Law) -> None:
    assert fitted.irreducible == pytest.approx(1.1, rel=0.1)
    assert fitted.size_exponent == pytest.approx(0.35, rel=0.1)
    assert fitted.steps_exponent == pytest.approx(0.4, rel=0.1)
    assert fitted.noise_exponent == pytest.approx(0.9, rel=0.1)
    assert fitted.noise_midpoint == pytest.approx(2e-4, rel=0.1)
    assert 0.005 < fitted.quality.typical < 0.015
    assert fitted.quality.typical < 1.5 * fitted.quality.held_out < 0.03


@pytest.mark.thorough(instead="test_no_neighbour_of_the_advised_plan_is_better_by_the_true_law")
def test_a_fit_leads_to_the_best_plan_within_two_percent(fitted: Law) -> None:
    """The oracle searches the optimum of the true law, with the noise of the advised plan's neighbours."""
    best = advise_language_model(QUESTION, fitted).best
    exact = Law.fit(runs(relative_error=0.0), sequence_length=256, source="the law itself")
    truly_best = advise_language_model(QUESTION, exact).best
    reached = true_loss(best.model_size, best.steps, best.noise_batch_ratio)
    possible = true_loss(truly_best.model_size, truly_best.steps, truly_best.noise_batch_ratio)
    assert best.loss == pytest.approx(reached, rel=0.02)
    assert possible <= reached * 1.001
    assert reached == pytest.approx(possible, rel=0.02)


def test_no_neighbour_of_the_advised_plan_is_better_by_the_true_law(fitted: Law) -> None:
    """The oracle shares no search with the planner: neighbours of equal compute, with proven noise."""
    import tacit

    best = advise_language_model(QUESTION, fitted).best
    reached = true_loss(best.model_size, best.steps, best.noise_batch_ratio)
    for size_factor in (0.5, 1.0, 2.0):
        for steps_factor in (0.5, 1.0, 2.0):
            size, steps = best.model_size * size_factor, round(best.steps * steps_factor)
            batch = round(QUESTION.flops / (6 * 256 * size * steps))
            plan = tacit.Plan.calibrate(
                epsilon=4, delta=1e-8, records=2_000_000, batch_size=batch, steps=steps, clipping=1.0,
                adjacency="add-remove", unit="sequence",
            )  # fmt: skip
            assert true_loss(size, steps, plan.noise_multiplier / batch) > 0.98 * reached


def test_planted_bug_a_law_without_noise_term_is_seen_by_its_quality() -> None:
    """A law fits runs of another form badly, and its quality shows it."""
    wavy = runs(relative_error=0.0, loss=lambda size, steps, ratio: 3.0 + np.sin(np.log(steps) * 3.0) * 0.5)
    assert Law.fit(wavy, sequence_length=256, source="waves").quality.typical > 0.05


def test_the_same_runs_give_the_same_law(fitted: Law) -> None:
    again = Law.fit(runs(relative_error=0.01), sequence_length=256, source="a grid of runs")
    assert again == fitted
    assert Law.from_data(fitted.as_data()) == fitted


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (runs(relative_error=0.0)[:11], "at least 12 runs"),
        ([replace(run, model_size=1e6) for run in runs(relative_error=0.0)], "different model sizes"),
        ([replace(run, steps=100.0) for run in runs(relative_error=0.0)], "different numbers of steps"),
        (
            [replace(run, noise_batch_ratio=0.0) for run in runs(relative_error=0.0)],
            "different noise-batch ratios above 0",
        ),
        ([(1e6, 100, 1e-4, 3.0)] * 20, "list of Run"),
    ],
)
def test_runs_that_cannot_decide_a_law_are_refused(made: list[Run], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Law.fit(made, sequence_length=256, source="too few")


@pytest.mark.parametrize(
    ("name", "value"),
    [("model_size", 0), ("steps", -1), ("noise_batch_ratio", -1e-9), ("loss", float("nan")), ("source", " ")],
)
def test_a_run_refuses_impossible_values(name: str, value: object) -> None:
    good = {"model_size": 1e6, "steps": 100, "noise_batch_ratio": 1e-4, "loss": 3.0, "source": "here"}
    with pytest.raises(InvalidInput, match=name):
        Run(**(good | {name: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "steps", "ratio", "says"),
    [
        (1e9, 1e4, 1e-5, "1B parameters are outside"),
        (1e6, 1e4, 1e-5, "1M parameters are outside"),
        (1e7, 100, 1e-5, "100 steps are outside"),
        (1e7, 1e4, 0.1, "ratio of 0.1 is outside"),
    ],
)
def test_a_law_refuses_to_answer_beyond_its_range(size: float, steps: float, ratio: float, says: str) -> None:
    law = published_law()
    with pytest.raises(InvalidInput, match=says):
        law.loss(model_size=size, steps=steps, noise_batch_ratio=ratio)
    guess = law.loss(model_size=size, steps=steps, noise_batch_ratio=ratio, extrapolate=True)
    assert 0.4 < guess < 20.0


def test_less_noise_than_measured_counts_as_the_least_measured() -> None:
    law = published_law()
    quiet = law.loss(model_size=1e8, steps=5e4, noise_batch_ratio=law.range.noise_batch_ratio[0])
    assert law.loss(model_size=1e8, steps=5e4, noise_batch_ratio=1e-9) == quiet


def test_runs_are_read_from_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    made = runs(relative_error=0.01)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["name", "loss", "steps", "model_size", "noise_batch_ratio"])
        rows.writerows(["x", run.loss, run.steps, run.model_size, run.noise_batch_ratio] for run in made)
    read = read_runs(path)
    assert [replace(run, source="grid") for run in read] == made
    assert read[0].source.endswith("runs.csv, line 2")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model_size,steps,loss\n1,2,3\n", "line lacks noise_batch_ratio"),
        ("model_size,steps,noise_batch_ratio,loss\n1e6,many,0,3\n", "line 2: .* must be numbers"),
        ("model_size,steps,noise_batch_ratio,loss\n1e6,100,0\n", "line 2: .* must be numbers"),
        ("model_size,steps,noise_batch_ratio,loss\n1e6,100,0,-3\n", "line 2: loss must be"),
        ("", "line lacks model_size"),
        ("\x00\x01", "line lacks model_size"),
    ],
)
def test_a_csv_file_that_holds_no_runs_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=says):
        read_runs(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_runs(tmp_path / "none.csv")
