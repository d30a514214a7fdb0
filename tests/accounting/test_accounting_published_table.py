"""The table of published settings in the docs: every cell is computed anew."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from priced import curve_of

from tacit.events import Gaussian, PoissonSampled, Repeat

PAGE = Path(__file__).parents[2] / "docs/how-to/plan-and-account.md"
TABLE = (
    PAGE.read_text(encoding="utf-8").partition("## Published settings, recomputed\n")[2].partition("\n## ")[0]
)
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("| ") and not line.startswith("| source")
]


def test_all_rows_are_read() -> None:
    assert len(ROWS) == 5
    sources = [row[0] for row in ROWS if not row[0].startswith("the same")]
    assert all("arxiv.org" in source for source in sources)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[2]}-{row[3]}")
def test_a_row_is_what_the_accountants_say(row: list[str]) -> None:
    _, rate, sigma, steps, delta, published, method, same, pld = row
    event = Repeat(PoissonSampled(float(Fraction(rate)), Gaussian(float(sigma))), int(steps))
    for name, cell in ((method, same), ("pld", pld)):
        found = curve_of(event, name).epsilon(float(delta))
        assert f"{found:.4g}" == cell
    assert float(pld) <= float(same) <= 1.015 * float(published)  # read off a curve, to two digits
