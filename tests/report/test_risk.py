"""The risk sheet: figures from the curve of the mechanism, against closed forms and a published table."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from shell import Shell

from tacit.accounting import PrivacyCurve, account
from tacit.cli.app import run
from tacit.errors import InvalidInput
from tacit.events import ApproximateDP, Gaussian, PoissonSampled, Repeat, event_to_json
from tacit.report.plots import draw_risk
from tacit.report.risk import RiskSheet, risk_sheet, two_worlds

# sigma; of 100 coins guessed, and found at 1 % and 0.1 % false alarms, in per cent; a secret with prior 1e-6
TABLE = [
    (1.85, 55, 2.0, 0.24, 3.7e-6, 73, 2.7),
    (1.15, 59, 3.3, 0.47, 1.1e-5, 88, 7.4),
    (0.82, 65, 6.8, 1.3, 6.4e-5, 98, 55.0),
]


def dp_sgd(sigma: float) -> PrivacyCurve:
    return account(Repeat(PoissonSampled(0.01, Gaussian(sigma)), 2000), adjacency="add-remove")


def gaussian_sheet(sigma: float = 1.0) -> RiskSheet:
    return risk_sheet(account(Gaussian(sigma), adjacency="add-remove"), delta=1e-5, unit="person")


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"sigma-{row[0]}")
def test_figures_of_dp_sgd(row: tuple[float, ...]) -> None:
    sigma, guess, at_percent, at_thousandth, secret, guess_told, at_percent_told = row
    sheet = risk_sheet(dp_sgd(sigma), delta=1e-5, unit="person")
    assert 100 * sheet.guess.at_most == pytest.approx(guess, abs=0.6)
    assert 100 * sheet.detections[0].at_most == pytest.approx(at_percent, rel=0.03)
    assert 100 * sheet.detections[1].at_most == pytest.approx(at_thousandth, rel=0.03)
    assert sheet.secrets[1].at_most == pytest.approx(secret, rel=0.03)
    assert 100 * sheet.guess.pair_alone == pytest.approx(guess_told, abs=0.6)
    assert 100 * sheet.detections[0].pair_alone == pytest.approx(at_percent_told, rel=0.03)


def test_gaussian_has_closed_forms() -> None:
    sheet = gaussian_sheet(0.5)  # mu = 2
    for chance in (*sheet.detections, *sheet.secrets):
        exact = float(ndtr(2.0 + ndtri(chance.before)))
        assert exact <= chance.at_most <= exact * (1 + 1e-5)
    for size, chance in zip((2, 5), sheet.groups, strict=True):  # mu grows with the group
        exact = float(ndtr(size))
        assert exact <= chance.at_most <= exact + 2e-3


def test_one_number_for_the_curve() -> None:
    assert "noise is 0.5 times the share of one person (mu-GDP with mu = 2.001, regret 0.00" in (
        gaussian_sheet(0.5).in_one_number()
    )
    sampled = account(PoissonSampled(0.1, Gaussian(0.5)), adjacency="add-remove")
    assert "clearly less" in risk_sheet(sampled, delta=1e-5, unit="person").in_one_number()
    weak = risk_sheet(account(Gaussian(0.05), adjacency="add-remove"), delta=1e-5, unit="person")
    assert "No single Gaussian" in weak.in_one_number()
    assert weak.to_data()["gaussian_dp"]["mu"] is None


def test_pair_alone_is_the_region_of_epsilon_and_delta() -> None:
    told = risk_sheet(
        account(ApproximateDP(1.0, 1e-3), adjacency="add-remove"), delta=1e-3, unit="x", epsilon=1.0
    )
    e = math.e
    assert told.detections[0].pair_alone == pytest.approx(1e-3 + 0.01 * e)
    corner = (1 - 1e-3) / (1 + e)  # where the two lines meet
    assert told.guess.pair_alone == pytest.approx(0.5 + (1 - 2 * corner) / 2, abs=1e-3)
    assert all(chance.at_most <= chance.pair_alone for chance in (*told.detections, *told.secrets))


def test_without_a_finite_epsilon_the_pair_promises_nothing() -> None:
    curve = account(Gaussian(1e-3), adjacency="add-remove")
    sheet = risk_sheet(curve, delta=1e-5, unit="person", epsilon=math.inf)
    assert sheet.detections[0].pair_alone == 1.0
    assert sheet.to_data()["epsilon"] is None


def test_two_worlds_hold_all_the_probability() -> None:
    without, with_it = two_worlds(dp_sgd(0.82), np.linspace(-9.0, 20.0, 59))
    assert without.sum() == pytest.approx(1.0)
    assert with_it.sum() == pytest.approx(1.0)
    assert (with_it >= -1e-9).all()
    overlap = np.minimum(without, with_it).sum()  # the coarser the bins, the more overlap
    assert 1.0 - overlap / 2.0 <= dp_sgd(0.82).success(0.5) + 1e-9


def test_sentences_round_against_us() -> None:
    text = " ".join(gaussian_sheet().sentences())
    assert "at most 70 times in 100" in text  # 69.15
    assert "1 in 100 of those who did not take part finds at most 10 in 100" in text  # 9.24
    assert "private" not in text


@pytest.mark.parametrize(("unit", "rates"), [(" ", (0.01,)), ("person", (0.0,)), ("person", (float("nan"),))])
def test_bad_input(unit: str, rates: tuple[float, ...]) -> None:
    with pytest.raises(InvalidInput):
        risk_sheet(account(Gaussian(1.0), adjacency="add-remove"), delta=1e-5, unit=unit, rates=rates)


def test_shell(tmp_path: Path, shell: Shell) -> None:
    event = tmp_path / "event.json"
    event.write_text(event_to_json(Gaussian(1.0)))
    stated = ["--delta", "1e-5", "--adjacency", "add-remove", "--unit", "patient"]
    picture = tmp_path / "risk.svg"
    data = shell.data("risk", "--event", str(event), *stated, "--figure", str(picture))
    assert data["chances"][0]["at_most"] == pytest.approx(float(ndtr(0.5)))
    assert picture.stat().st_size > 10_000
    assert "one patient takes part" in shell.out("risk", "--event", str(event), *stated)
    assert run(["risk", "--epsilon", "1", *stated]) == 0
    assert "give exactly one of RUN" in shell.err(
        "risk", "--epsilon", "1", "--event", str(event), *stated, code=2
    )
    assert run(["risk", "--epsilon", "1"]) == 2
    assert run(["risk", str(tmp_path)]) == 2
    assert run(["risk", str(tmp_path), "--delta", "1e-5"]) == 2


def test_drawing_is_the_same_every_time(tmp_path: Path) -> None:
    sheet = gaussian_sheet()
    for name in ("a.png", "b.png"):
        draw_risk(sheet, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
