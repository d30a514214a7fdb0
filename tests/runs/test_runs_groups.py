"""[evaluation] by: figures by group in a run's folder, exact or from a charged release, and bad run files."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_files import changed, run_file

from tacit.cli.app import run as tacit
from tacit.errors import InvalidInput, TacitError
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.report.verification import read_statement, verify_statement
from tacit.runs import prepare
from tacit.runs.checks import check_run

EXACT = run_file(
    data='table = "people.csv"; test_table = "others.csv"; target = "sick"',
    columns='a = { kind = "number", lower = -1, upper = 1 }; '
    'b = { kind = "number", lower = -1, upper = 1 }; '
    'site = { kind = "category", values = ["east", "west"] }; '
    'sick = { kind = "category", values = ["no", "yes"] }',
    privacy='noise_multiplier = 2.0; unit = "person"; records = 180',
    optimizer="learning_rate = 0.7",
    training="steps = 6",
    evaluation='by = ["site", "a"]; bands.a = [-0.5, 0.5]',
)
LEDGER = '[ledger]\nurl = "budget.db"\ndataset = "people"\nchunk = 6\n'
NOISY = (
    changed(
        EXACT,
        {
            'test_table = "others.csv"': "test_fraction = 0.4",
            "noise_multiplier = 2.0": "noise_multiplier = 2.0\ntest_noise = 4.0",
        },
    )
    + LEDGER
)


def table(count: int, seed: int) -> str:
    """People of three sites, of which the last is not declared; the answers from "west" are random."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-1, 1, (count, 2))
    site = rng.choice(["east", "west", "north"], count, p=[0.6, 0.38, 0.02])
    sick = np.where(site == "west", rng.random(count) < 0.5, rows.sum(1) + 0.3 * rng.normal(size=count) > 0)
    lines = [
        f"{a:.4f},{b:.4f},{where},{'yes' if s else 'no'}"
        for (a, b), where, s in zip(rows, site, sick, strict=True)
    ]
    return "\n".join(["a,b,site,sick", *lines]) + "\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text(table(400, 0))
    (tmp_path / "others.csv").write_text(table(400, 1))
    (tmp_path / "run.toml").write_text(EXACT)
    with closing(Ledger.create("budget.db")) as ledger:
        budget = RenyiBudget(epsilon=20.0, delta=1e-4)
        ledger.open_dataset("people", Policy(unit="person", adjacency="add-remove", budget=budget))
    return tmp_path


def figures(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "out/evaluation.json").read_text())["by_group"]
    return found


def test_a_run_shows_exact_figures_and_hides_a_few_people(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tacit(["train", "run.toml", "--out", "out"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert 'The group site "west or other" is served worse: error ' in said
    assert "calibration" not in said
    site, a = figures(folder)
    assert [one["group"] for one in site["groups"]] == ["east", "west or other"]
    assert [one["group"] for one in a["groups"]] == ["under -0.5", "-0.5 to under 0.5", "0.5 and over"]
    rows = [line.split(",") for line in (folder / "others.csv").read_text().splitlines()[1:]]
    counts = [sum(band(float(row[0])) == number for row in rows) for number in range(3)]
    assert [one["records"] for one in a["groups"]] == counts
    page = (folder / "out/evaluation.html").read_text()
    assert page.count("Error by group") >= 2
    assert "one with the next larger group" in page
    assert "worse than" in page


def band(value: float) -> int:
    return (value >= -0.5) + (value >= 0.5)


@pytest.mark.usefixtures("no_pictures")
def test_a_charged_run_releases_the_groups_once_with_noise(folder: Path) -> None:
    (folder / "run.toml").write_text(NOISY)
    outcome = prepare("run.toml", out="out").start()
    assert outcome is not None
    site, a = figures(folder)
    assert site["noise"] == pytest.approx(4.0 * (1.25 * 2) ** 0.5)
    assert all(one["error_interval"] is not None for column in (site, a) for one in column["groups"])
    again = prepare("run.toml", out="out", resume=True).start()
    assert again is not None
    assert again.evaluation.groups == outcome.evaluation.groups, "no second release"
    page = (folder / "out/evaluation.html").read_text()
    assert "figures by group" in page
    assert "It includes the noise" in page
    statement = read_statement(folder / "out/statement.json")
    assert "figures of the test records by site, a" in (folder / "out/statement.txt").read_text()
    assert verify_statement(statement).agrees


def test_the_groups_cost_as_much_as_the_score(folder: Path) -> None:
    plans = []
    for text in (EXACT, NOISY.replace('by = ["site", "a"]\nbands.a = [-0.5, 0.5]', ""), NOISY):
        (folder / "run.toml").write_text(text)
        plans.append(check_run("run.toml", out="new").plan)
    plain, scored, grouped = (plan.epsilon for plan in plans)
    assert plain < scored < grouped
    assert repr(plans[2].beside) == "(Repeat(event=Gaussian(noise_multiplier=4.0), count=2),)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({'["site", "a"]': '["sit", "a"]'}, r"\[evaluation\] by must be a declared input column.*got 'sit'"),
        ({'["site", "a"]': '["sick", "a"]'}, r"\[evaluation\] by must be .* neither the target.*got 'sick'"),
        ({"bands.a = [-0.5, 0.5]": ""}, r"\[evaluation\] bands of 'a' must be inc.* -1 and 1 .*got \[\]"),
        ({"[-0.5, 0.5]": "[0.5, -0.5]"}, r"bands of 'a' must be increasing edges"),
        ({"[-0.5, 0.5]": "[0.5, nan]"}, r"bands of 'a' must be increasing edges"),
        ({"[-0.5, 0.5]": "[0.5, 1.0]"}, r"bands of 'a' must be increasing edges"),
        ({"bands.a": "bands.b"}, r"\[evaluation\] bands must be for columns"),
        ({'target = "sick"': 'target = ["sick"]',
          'kind = "category", values = ["no", "yes"]': 'kind = "boolean"'},
         r"\[evaluation\] by needs a single target"),
    ],
)  # fmt: skip
def test_a_wrong_group_is_refused_before_training(change: dict[str, str], message: str, folder: Path) -> None:
    (folder / "run.toml").write_text(changed(EXACT, change))
    with pytest.raises(InvalidInput, match=message):
        check_run("run.toml", out="out")
    assert not (folder / "out").exists()


def test_groups_need_a_table(folder: Path) -> None:
    (folder / "run.toml").write_text(
        run_file(
            data='name = "digits"',
            privacy='epsilon = 3.0; unit = "image"; records = 1437',
            optimizer="learning_rate = 0.28",
            training="steps = 2",
            evaluation='by = ["site"]',
        )
    )
    with pytest.raises(InvalidInput, match=r"\[evaluation\] by needs a table"):
        check_run("run.toml", out="out")


@pytest.mark.usefixtures("no_pictures")
def test_groups_may_be_added_to_a_finished_run_but_not_to_its_charged_score(folder: Path) -> None:
    without = {'by = ["site", "a"]\nbands.a = [-0.5, 0.5]': ""}
    (folder / "run.toml").write_text(changed(EXACT, without))
    assert prepare("run.toml", out="out").start() is not None
    (folder / "run.toml").write_text(EXACT)
    assert prepare("run.toml", out="out", resume=True).start() is not None
    assert [one["by"] for one in figures(folder)] == ["site", "a"]
    (folder / "run.toml").write_text(changed(NOISY, without))
    assert prepare("run.toml", out="charged").start() is not None
    (folder / "run.toml").write_text(NOISY)
    with pytest.raises(TacitError):
        prepare("run.toml", out="charged", resume=True)


def test_a_missing_column_of_the_table_is_named(folder: Path) -> None:
    (folder / "others.csv").write_text((folder / "others.csv").read_text().replace("site", "place", 1))
    with pytest.raises(InvalidInput, match="site"):
        prepare("run.toml", out="out")
