"""The page on people and sites runs, and its figures are those of the accountant."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pages import blocks_of, comments_of, printed, text_of

from tacit.accounting import account
from tacit.events import Gaussian, Repeat
from tacit.plan import Plan
from tacit.report.verification import verify_statement
from tacit.runs.sections import DataSection

PAGE = "people-and-sites.md"
ROOT = Path(__file__).parents[2]


def test_the_programs_about_people_print_what_they_say() -> None:
    first, *more = blocks_of(PAGE)[:3]
    out, *others = printed([first, *more], {})
    assert out == first.rpartition("# ")[2]
    assert [line.strip() for line in others] == [said for code in more for said in comments_of(code)]


def test_the_run_files_have_only_keys_that_there_are() -> None:
    one, several = (tomllib.loads(block)["data"] for block in blocks_of(PAGE, "toml"))
    assert DataSection(**one).rows_per_user == 8
    assert DataSection(**several).user == ["sender", "receiver"]


def test_the_command_runs() -> None:
    (line,) = blocks_of(PAGE, "sh")
    run = subprocess.run(
        [sys.executable, *line.split()[1:]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "people, 8 rows of each" in run.stdout


def test_the_server_learns_and_its_statement_is_verified() -> None:
    namespace: dict[str, object] = {}
    (out,) = printed([blocks_of(PAGE)[3]], namespace)
    match = re.fullmatch(r"epsilon (.+), error (.+)\n?", out)
    assert match is not None
    assert match[1] == "3.00"
    assert float(match[2]) < 0.1
    assert verify_statement(namespace["statement"].data).agrees  # type: ignore[attr-defined]


def test_the_noise_that_hides_a_client_is_as_the_page_says() -> None:
    table = text_of(PAGE).split("| clients |")[1].split("\n\n")[0].splitlines()[2:]
    rows = [[float(cell.replace(",", "")) for cell in row.strip("| ").split("|")] for row in table]
    assert len(rows) == 4
    for clients, expected, rounds, delta, multiplier, noise in rows:
        plan = Plan.calibrate(
            epsilon=3,
            delta=delta,
            records=int(clients),
            batch_size=int(expected),
            steps=int(rounds),
            clipping=1.0,
            adjacency="add-remove",
            unit="client",
        )
        assert plan.noise_multiplier == pytest.approx(multiplier, rel=4e-3)
        assert plan.noise_multiplier / plan.expected_batch_size == pytest.approx(noise, rel=4e-3)


def test_the_classic_formula_costs_what_the_page_says() -> None:
    costs = re.findall(r"costs ([0-9.]+) after 10 rounds and ([0-9.]+) after 100\.", text_of(PAGE))
    sigma = math.sqrt(2 * math.log(1.25 / 1e-5))
    for rounds, cost in zip((10, 100), map(float, costs[0]), strict=True):
        spent = account(Repeat(Gaussian(sigma), rounds), adjacency="add-remove").epsilon(1e-5)
        assert spent <= cost < 1.006 * spent
