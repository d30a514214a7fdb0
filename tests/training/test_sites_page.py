"""docs/how-to/sites.md: its program runs, and its figures are those of the accountant."""

from __future__ import annotations

import math
import re

import pytest
from pages import blocks_of, printed, text_of

from tacit.accounting import account
from tacit.events import Gaussian, Repeat
from tacit.plan import Plan
from tacit.report.verification import verify_statement

PAGE = "sites.md"


def test_the_program_learns_and_its_statement_is_verified() -> None:
    namespace: dict[str, object] = {}
    (out,) = printed([blocks_of(PAGE)[0]], namespace)
    match = re.fullmatch(r"epsilon (.+), error (.+)\n?", out)
    assert match is not None
    assert match[1] == "3.00"
    assert float(match[2]) < 0.1
    assert verify_statement(namespace["statement"].data).agrees  # type: ignore[attr-defined]


def rows_of(head: str) -> list[list[float]]:
    """The numbers of the table whose first line begins so."""
    table = text_of(PAGE).split(head)[1].split("\n\n")[0].splitlines()[2:]
    return [[float(cell.replace(",", "")) for cell in row.strip("| ").split("|")] for row in table]


def test_the_noise_that_hides_a_client_is_as_the_page_says() -> None:
    rows = rows_of("| clients |")
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
    rows = rows_of("| stated ε |")
    assert len(rows) == 3
    for stated, *costs in rows:
        sigma = math.sqrt(2 * math.log(1.25 / 1e-5)) / stated
        for rounds, cost in zip((1, 10, 100), costs, strict=True):
            spent = account(Repeat(Gaussian(sigma), rounds), adjacency="add-remove").epsilon(1e-5)
            assert spent <= cost < 1.006 * spent
