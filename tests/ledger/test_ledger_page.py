"""The page about the ledger says what is true: its code runs, its table is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tacit.events import Adjacency, Compose, Event, Gaussian, Laplace, PoissonSampled, Repeat
from tacit.ledger import RenyiBudget

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "ledger.md").read_text(encoding="utf-8")
RUN, COUNTS = Repeat(PoissonSampled(0.01, Gaussian(1.0)), 1000), Repeat(Laplace(10.0), 50)
WORKLOADS: dict[str, Event] = {
    "the run": RUN,
    "50 counts": COUNTS,
    "the run and 50 counts": Compose((RUN, COUNTS)),
    "four runs and 50 counts": Compose((Repeat(RUN, 4), COUNTS)),
}
ORDERS: tuple[tuple[float, ...], ...] = ((6.0,), (7.0, 14.0), ())


def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    exec(compile(code, "<page>", "exec"), {})
    said = re.search(r"print\(.*\)  # (.*)", code)
    assert said is not None
    assert capsys.readouterr().out.strip() == said[1]


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_table_of_budgets_is_right(name: str) -> None:
    (row,) = re.findall(rf"^\| {name} \|(.*)\|$", PAGE, flags=re.MULTILINE)
    for orders, cell in zip(ORDERS, row.split("|"), strict=False):
        enough, short = (RenyiBudget(float(cell) + step, 1e-6, orders=orders) for step in (0.006, -0.006))
        for budget, admitted in ((enough, True), (short, False)):
            assert budget.admits(budget.price(WORKLOADS[name], Adjacency.ADD_REMOVE)) == admitted
