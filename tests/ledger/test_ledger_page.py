"""The page about the ledger says what is true: its code runs, its table is right."""

from __future__ import annotations

import re

import pytest
from pages import blocks_of, comments_of, printed, text_of

from tacit.events import Adjacency, Compose, Event, Gaussian, Laplace, PoissonSampled, Repeat
from tacit.ledger import RenyiBudget

RUN, COUNTS = Repeat(PoissonSampled(0.01, Gaussian(1.0)), 1000), Repeat(Laplace(10.0), 50)
WORKLOADS: dict[str, Event] = {
    "the run": RUN,
    "50 counts": COUNTS,
    "the run and 50 counts": Compose((RUN, COUNTS)),
    "four runs and 50 counts": Compose((Repeat(RUN, 4), COUNTS)),
}
ORDERS: tuple[tuple[float, ...], ...] = ((6.0,), (7.0, 14.0), ())


def test_the_programs_print_what_they_say() -> None:
    programs = blocks_of("ledger.md")
    assert len(programs) == 3
    for code, lines in zip(programs, printed(programs, {}), strict=True):
        assert lines.splitlines() == comments_of(code)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_table_of_budgets_is_right(name: str) -> None:
    (row,) = re.findall(rf"^\| {name} \|(.*)\|$", text_of("ledger.md"), flags=re.MULTILINE)
    for orders, cell in zip(ORDERS, row.split("|"), strict=False):
        enough, short = (RenyiBudget(float(cell) + step, 1e-6, orders=orders) for step in (0.006, -0.006))
        for budget, admitted in ((enough, True), (short, False)):
            assert budget.admits(budget.price(WORKLOADS[name], Adjacency.ADD_REMOVE)) == admitted
