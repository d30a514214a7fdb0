"""A policy as a TOML file: what is read is what is written, and what is wrong is named with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tacit.errors import InvalidInput
from tacit.events import Adjacency
from tacit.ledger import ApproximateBudget, Column, Policy, PureBudget, RenyiBudget, ZeroConcentratedBudget
from tacit.ledger.policy import NO_COLUMN, parse_policy, policy_template, read_policy

WHOLE = """
[policy]
unit = "patient"
unit_column = "patient_id"
rows_per_unit = 4
groups_per_unit = 2
adjacency = "add-remove"
largest_table = 1000
blocks = ["2024", "2025"]
parent = "all"
parent_block = "north"
note = "the board, until 2027"

[budget]
mode = "renyi"
epsilon = 3
delta = 1e-6
orders = [8, 16]
threshold_delta = 1e-7

[columns.age]
kind = "integer"
lower = 0
upper = 120

[columns."the ward"]
kind = "category"
values = ["A", "B"]
"""


def test_everything_that_a_policy_has_can_be_said() -> None:
    assert parse_policy(WHOLE) == Policy(
        unit="patient",
        unit_column="patient_id",
        rows_per_unit=4,
        groups_per_unit=2,
        adjacency=Adjacency.ADD_REMOVE,
        largest_table=1000,
        blocks=("2024", "2025"),
        parent="all",
        parent_block="north",
        note="the board, until 2027",
        budget=RenyiBudget(3.0, 1e-6, orders=(8.0, 16.0), threshold_delta=1e-7),
        columns={
            "age": Column(kind="integer", lower=0, upper=120),
            "the ward": Column(kind="category", values=("A", "B")),
        },
    )


BUDGETS = {
    'mode = "pure"\nepsilon = 1': PureBudget(1.0),
    'mode = "approximate"\nepsilon = 1.5\ndelta = 1e-6': ApproximateBudget(1.5, 1e-6),
    'mode = "zcdp"\nepsilon = 1\ndelta = 1e-6\nthreshold_delta = 1e-8': ZeroConcentratedBudget(
        1.0, 1e-6, 1e-8
    ),
    'mode = "renyi"\nepsilon = 1\ndelta = 1e-6': RenyiBudget(1.0, 1e-6),
}


@pytest.mark.parametrize("number", range(len(BUDGETS)))
def test_every_mode_of_a_budget(number: int) -> None:
    text, budget = list(BUDGETS.items())[number]
    policy = parse_policy(f'[policy]\nunit = "row"\nadjacency = "add-remove"\n[budget]\n{text}\n')
    assert policy.budget == budget


def test_a_template_shows_how_to_set_a_part_of_delta_aside() -> None:
    text = policy_template(
        unit="visit", unit_column=NO_COLUMN, largest_table=1000, adjacency="add-remove", epsilon=1.0,
        delta=1e-6, note="the board",
    )  # fmt: skip
    assert parse_policy(text).budget == RenyiBudget(1.0, 1e-6)
    there = text.replace("# threshold_delta", "threshold_delta")
    assert parse_policy(there).budget == RenyiBudget(1.0, 1e-6, threshold_delta=1e-7)


@pytest.mark.parametrize("kind", [ApproximateBudget, ZeroConcentratedBudget, RenyiBudget])
def test_a_budget_with_a_delta_has_a_number_there(kind: Any) -> None:
    for nothing in (None, "1e-6", 0.0, 1.0, float("nan")):
        with pytest.raises(InvalidInput, match="delta of a budget"):
            kind(1.0, nothing)


WRONG = {
    "no TOML": (WHOLE + "\n[columns", r"is not TOML: .*document"),
    "misspelt": (WHOLE.replace("rows_per_unit", "row_per_unit"), r"setting 'row_per_unit'.*'rows_per_unit'"),
    "a misspelt bound": (WHOLE.replace("upper", "uper"), r"columns.age.*'uper'.*did you mean 'upper'"),
    "no unit": (WHOLE.replace('unit = "patient"\n', ""), r"\[policy\] lacks 'unit'"),
    "no neighbours": (WHOLE.replace('adjacency = "add-remove"\n', ""), r"\[policy\] lacks 'adjacency'"),
    "no budget": (WHOLE.replace("[budget]", "[columns.budget]"), r"lacks 'budget'"),
    "no delta": (WHOLE.replace("delta = 1e-6\n", "", 1), r"\[budget\] of mode 'renyi' lacks 'delta'"),
    "no mode": (WHOLE.replace('mode = "renyi"\n', ""), r"\[budget\] lacks 'mode'"),
    "an unknown mode": (WHOLE.replace('"renyi"', '"RDP"'), r"mode must be one of pure, approximate"),
    "a delta of a pure budget": (WHOLE.replace('"renyi"', '"pure"'), r"of mode 'pure'.*setting 'delta'"),
    "a blank": (WHOLE.replace('"patient"', '"FILL IN"'), r"line 3: \[policy\] unit"),
    "a blank bound": (WHOLE.replace("120", '"FILL IN"'), r"\[columns.age\] upper"),
    "bounds the wrong way": (WHOLE.replace("120", "-1"), r"\[columns.age\]: lower must be below upper"),
    "a text for a number": (WHOLE.replace("= 4", '= "4"'), r"\[policy\]: rows_per_unit must be an integer"),
    "a negative epsilon": (WHOLE.replace("epsilon = 3", "epsilon = -3"), r"\[budget\]: epsilon of a budget"),
    "NaN": (WHOLE.replace("epsilon = 3", "epsilon = nan"), r"\[budget\]: epsilon of a budget"),
    "a column that is none": (WHOLE + '\n[columns]\nage2 = 3\n', r"not TOML|must be a section"),
    "a part that is none": ("policy = 3\nbudget = 3", r"\[policy\] must be a section"),
    "another part": (WHOLE + "\n[budgets]\n", r"setting 'budgets'.*did you mean 'budget'"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named_with_its_place(what: str) -> None:
    text, words = WRONG[what]
    with pytest.raises(InvalidInput, match=words):
        parse_policy(text)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="tacit init TABLE --policy"):
        read_policy(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_policy(tmp_path / "latin.toml")
    (tmp_path / "whole.toml").write_text(WHOLE, encoding="utf-8")
    assert read_policy(tmp_path / "whole.toml") == parse_policy(WHOLE)
