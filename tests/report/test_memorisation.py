"""Exposures in the report: known laws stay below their bound, what remembers too much does not."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from tacit.accounting import account
from tacit.audits.attacks import Canary
from tacit.events import Gaussian
from tacit.report.canvas import to_svg
from tacit.report.findings import (
    MemorisingModel,
    SecretFound,
    bits_above_bound,
    memorisation_found,
    risk_found,
    whole_bits,
)
from tacit.report.risk import risk_sheet
from tacit.report.run_page import charts_of, page, summary

CURVE = account(Gaussian(1.0), adjacency="add-remove")  # of a test at rate a: 1 - f(a) = Phi(1 + Phi^-1(a))


def secrets(exposures: Sequence[float], copies: int = 1, *, included: bool = True) -> list[SecretFound]:
    return [
        SecretFound(Canary(f"pin <{i}> ", "12345", copies, included), value, "12345")
        for i, value in enumerate(exposures)
    ]


def found(exposures: Sequence[float], *, private_only: bool = False) -> dict[str, Any]:
    mine = secrets(exposures) + secrets([16.6, 16.6], 16) + secrets([0.5, 1.0, 4.5], included=False)
    models = [MemorisingModel("with DP", True, mine)]
    if not private_only:
        models.append(MemorisingModel("without DP", False, mine))
    return of_models(models)


def of_models(models: Sequence[MemorisingModel], candidates: int = 100_000) -> dict[str, Any]:
    return memorisation_found(models, CURVE, prefix="pin … ", candidates=candidates, confidence=0.95)


def private(mine: Sequence[SecretFound]) -> list[MemorisingModel]:
    return [MemorisingModel("with DP", True, mine)]


def whole(remembered: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": {"name": "r", "unit": "name", "data": "names", "model": "window", "private": True},
        "risk": risk_found(risk_sheet(CURVE, delta=1e-5, unit="name")),
        "remembered": remembered,
    }


def gaussian_exposures(mu: float, count: int) -> np.ndarray:
    """Quantiles of the law of the best attack: Pr[exposure >= e] = Phi(mu + Phi^-1(2^-e))."""
    share = (np.arange(count) + 0.5) / count
    return -np.log2(norm.cdf(norm.ppf(share) - mu))


def test_the_best_attack_is_on_the_bound_and_a_better_one_above_it() -> None:
    bits = whole_bits(100_000)
    bound = norm.cdf(1.0 + norm.ppf(2.0**-bits))
    drawn = found([1.0])["bounds"][0]
    assert np.interp(bits, drawn["bits"], drawn["most"]) == pytest.approx(bound, abs=0.01)
    assert drawn["most_by_chance_bits"] == pytest.approx(norm.cdf(1.0 + norm.ppf(1 / 16)), rel=1e-3)
    assert bits_above_bound(gaussian_exposures(1.0, 200), bits, bound, confidence=0.95) == []
    assert bits_above_bound(gaussian_exposures(2.0, 200), bits, bound, confidence=0.95)
    assert bits_above_bound([], bits, bound, confidence=0.95) == []


def test_false_alarms_are_rarer_than_the_level() -> None:
    rng, bits = np.random.default_rng(0), whole_bits(100_000)
    bound = norm.cdf(1.0 + norm.ppf(2.0**-bits))
    alarms = 0
    for _ in range(300):
        exposures = -np.log2(norm.cdf(norm.ppf(rng.uniform(size=40)) - 1.0))
        alarms += bool(bits_above_bound(exposures, bits, bound, confidence=0.95))
    assert alarms <= 300 * 0.05


@pytest.mark.usefixtures("no_pictures")
def test_what_remembers_too_much_is_called_so() -> None:
    good, bad = (whole(found(list(gaussian_exposures(mu, 60)))) for mu in (0.2, 6.0))
    assert [kind for kind, _ in summary(good)] == ["limit", "memory"]
    kind, words = summary(bad)[-1]
    assert kind == "memory!"
    assert "ABOVE THEIR LIMIT" in words
    assert "above the limit" in page(bad)
    assert "above the limit" not in page(good)


def test_the_page_says_what_was_typed_and_what_came_and_escapes_it() -> None:
    data = whole(found([1.0, 2.0, 3.0]))
    text = page(data)
    for words in ("pin &lt;0&gt; ", "<b>12345</b>", "1/16", "16 copies", "not planted", "never"):
        assert words in text
    assert "pin <0>" not in text
    assert set(charts_of(data)) == {"two-worlds", "exposure-with-dp", "exposure-without-dp"}
    for chart in charts_of(data).values():
        ET.fromstring(to_svg(chart, alone=True))


@pytest.mark.usefixtures("no_pictures")
def test_the_secret_of_the_largest_exposure_comes_first_with_dp_and_without() -> None:
    def model(name: str, exposures: Sequence[float]) -> MemorisingModel:
        mine = [*secrets(exposures), *secrets([16.0], included=False)]
        return MemorisingModel(name, name == "with DP", mine)

    models = [model("with DP", [9.0, 1.5, 2.0]), model("without DP", [3.0, 14.0, 2.0])]
    data = of_models(models)
    most = data["most_exposed"]
    assert most["prefix"] == "pin <1> ", "without DP, and one that was planted"
    assert [(one["model"], one["exposure"]) for one in most["models"]] == [
        ("with DP", 1.5),
        ("without DP", 14.0),
    ]
    evidence = page(whole(data)).split("The strongest evidence")[1].split("<h2>")[0]
    for words in ("“pin &lt;1&gt; ”", "planted once", "(exposure 1.5 bits)", "(exposure 14.0 bits)"):
        assert words in evidence


@pytest.mark.usefixtures("no_pictures")
def test_of_one_model_the_largest_exposure_is_its_own() -> None:
    assert found([1.0, 3.0], private_only=True)["most_exposed"]["copies"] == 16
    only = of_models(private(secrets([9.0], included=False)), 100)
    assert only["most_exposed"] is None
    assert "The strongest evidence" not in page(whole(only))


def test_groups_count_what_is_in_and_what_is_not() -> None:
    data = found([1.0, 5.0, 3.0])
    once, often = data["models"][0]["planted"]
    assert (once["copies"], once["count"], once["median"], once["largest"]) == (1, 3, 3.0, 5.0)
    assert once["at_least_by_chance_bits"] == 1
    assert (often["copies"], often["count"]) == (16, 2)
    assert data["models"][0]["not_planted"]["exposures"] == [0.5, 1.0, 4.5]
    assert "above_bound" not in data["models"][1]["planted"][0]
    assert [one["copies"] for one in data["examples"]] == [16, 16, 1, 1, 1, 0, 0, 0]
    json.dumps(data)


@pytest.mark.usefixtures("no_pictures")
def test_without_secrets_it_says_how_to_plant_them() -> None:
    data = whole(of_models(private([])))
    assert [kind for kind, _ in summary(data)] == ["limit"]
    assert "[canaries] count" in page(data)
    assert set(charts_of(data)) == {"two-worlds"}


@pytest.mark.usefixtures("no_pictures")
def test_coins_may_leave_a_kind_empty() -> None:
    mine = secrets([1.0], 1) + secrets([2.0], 4, included=False)
    data = whole(of_models(private(mine), 100))
    assert "one copy" in page(data)
    none = found([])
    none["models"][0]["planted"] = [group | {"count": 0} for group in none["models"][0]["planted"]]
    assert [kind for kind, _ in summary(whole(none))] == ["limit"]
