"""The report on attacks and audits: figures of known laws, and a page that needs no other file."""

from __future__ import annotations

import copy
import functools
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from tacit.accounting import account
from tacit.audits import AuditResult, Scores
from tacit.errors import InvalidInput
from tacit.events import Gaussian
from tacit.report.canvas import BLUE, new_chart, to_svg
from tacit.report.findings import (
    AttackedModel,
    Planted,
    audits_found,
    default_rates,
    membership_found,
    risk_found,
)
from tacit.report.risk import risk_sheet
from tacit.report.run_page import charts_of, figures, page, strongest, summary, verdict, write_report

CURVE = account(
    Gaussian(1.0), adjacency="add-remove"
)  # mu = 1: no test does better than N(0, 1) against N(1, 1)


def gaussian_scores(mu: float, seed: int, size: int = 2000) -> Scores:
    rng = np.random.default_rng(seed)
    return Scores(rng.normal(mu, 1.0, size), rng.normal(0.0, 1.0, size))


@functools.cache  # half a second of resampling, and most tests look at the same attacks
def measured(mu: float, seed: int) -> dict[str, Any]:
    models = (
        AttackedModel("with DP", True, {"the best test": gaussian_scores(mu, seed)}, 0.9, 0.8),
        AttackedModel("without DP", False, {"the best test": gaussian_scores(3.0, seed)}, 1.0, 0.8),
    )
    return membership_found(
        models,
        CURVE,
        headline="the best test",
        shadows=16,
        rates=(0.01, 0.1),
        confidence=0.95,
        rng=np.random.default_rng(seed),
    )


def attacked(mu: float, seed: int = 0) -> dict[str, Any]:
    return copy.deepcopy(measured(mu, seed))


@functools.cache
def priced() -> dict[str, Any]:
    return risk_found(risk_sheet(CURVE, delta=1e-5, unit="image"))


def whole(mu: float = 1.0, name: str = "first", *, rejected: bool = False) -> dict[str, Any]:
    result = AuditResult(
        "claim test", 1000, 0.95, 1e-5, 3.2, 2.0, "Gaussian noise", claimed_eps=4.38, claim_rejected=rejected
    )
    return {
        "run": {"name": name, "unit": "image", "data": "digits", "model": "linear", "private": True},
        "risk": copy.deepcopy(priced()),
        "membership": attacked(mu),
        "audits": audits_found([Planted("Canaries in this run.", (result,))]),
    }


def test_the_rates_are_those_that_the_test_records_resolve() -> None:
    assert default_rates(5000) == (0.001, 0.1)
    assert default_rates(4999) == (0.01, 0.1)
    assert default_rates(50) == (0.1,)
    with pytest.raises(InvalidInput, match=r"at least 50 test records .* got 49"):
        default_rates(49)


def test_figures_of_a_known_law() -> None:
    found = attacked(1.0)
    for model, mu in zip(found["models"], (1.0, 3.0), strict=True):
        attack = model["attacks"][0]
        assert attack["auc"]["low"] < norm.cdf(mu / np.sqrt(2)) < attack["auc"]["high"]
        drawn = attack["roc"]
        law = norm.sf(norm.isf(np.array(drawn["false_alarms"])) - mu)
        inside = (np.array(drawn["low"]) - 0.03 <= law) & (law <= np.array(drawn["high"]) + 0.03)
        assert inside.mean() > 0.8  # bands point by point, and false alarms have an error too
    assert found["rates"][0]["limit"] == pytest.approx(norm.sf(norm.isf(0.01) - 1.0), rel=1e-3)


def test_the_best_attack_there_is_stays_below_the_limit_and_a_better_one_does_not() -> None:
    above = [attacked(1.0, seed)["models"][0]["attacks"][0]["above_the_limit"] for seed in range(4)]
    assert sum(above) <= 1  # at most 5 % in the long run, and far fewer
    assert attacked(2.0)["models"][0]["attacks"][0]["above_the_limit"]
    kinds = dict(summary(whole(2.0)))
    assert "ABOVE THE LIMIT" in kinds["attack!"]
    assert "attack!" not in dict(summary(whole()))


@pytest.mark.usefixtures("no_pictures")
def test_what_an_attack_found_is_called_an_estimate_wherever_its_limit_stands() -> None:
    """ "Found 1.97 %" and "no attack finds more than 1.96 %" do not contradict each other."""
    data = whole()
    attack = data["membership"]["models"][0]["attacks"][0]["points"][0]["true_positive_rate"]
    assert "estimates with intervals" in dict(summary(data))["attack"]
    assert "may lie above the limit by chance" in data["membership"]["about"]
    assert data["membership"]["about"] in page(data)
    assert figures(data)["attack"].endswith(f"({100 * attack['low']:.3g}–{100 * attack['high']:.3g}) found")


def test_what_the_shadow_models_add_is_in_the_intervals() -> None:
    scores, rng = gaussian_scores(1.0, 0), np.random.default_rng(0)
    moved = [Scores(scores.members + shift, scores.non_members) for shift in 0.1 * rng.normal(size=8)]
    alone, widened = (
        membership_found(
            [AttackedModel("with DP", True, {"one": scores}, 0.9, 0.8, without)], CURVE, headline="one",
            shadows=16, rates=(0.01,), confidence=0.95, rng=np.random.default_rng(1),
        )["models"][0]["attacks"][0]
        for without in ({}, {"one": moved})
    )  # fmt: skip
    assert widened["auc"]["value"] == alone["auc"]["value"]
    assert widened["auc"]["low"] < alone["auc"]["low"] - 0.02
    assert (
        widened["points"][0]["true_positive_rate"]["high"] > alone["points"][0]["true_positive_rate"]["high"]
    )


def test_only_the_private_model_is_held_against_the_limit() -> None:
    assert "above_the_limit" not in attacked(1.0)["models"][1]["attacks"][0]


def test_a_contradicted_claim_is_said_at_once() -> None:
    said = dict(summary(whole(rejected=True)))["audit!"]
    assert "CONTRADICTED, do not release. At most one test in 20" in said
    assert "not contradicted" in dict(summary(whole()))["audit"]
    assert "weak attack, not safety" in dict(summary(whole()))["audit"]


@pytest.mark.usefixtures("no_pictures")
def test_a_bound_above_the_claim_that_was_not_confirmed_is_not_stated() -> None:
    """One verdict, that of both stages: the bound of the first is neither in the words nor on the page."""
    result = AuditResult(
        "claim test", 1000, 0.95, 1e-5, 4.5, 2.0, claimed_eps=4.38, claim_rejected=False, suspected=True
    )
    data = whole() | {"audits": audits_found([Planted("Canaries in this run.", (result,))])}
    said = dict(summary(data))["audit"]
    assert said.startswith("The claim of ε ≤ 4.38 is not contradicted: the second, larger test decides")
    assert figures(data)["audit"] == "not contradicted"
    sentences = [one["sentence"] for audit in data["audits"] for one in audit["results"]]
    everywhere = " ".join([*sentences, said, page(data), verdict(data)[1]])
    for words in ("4.50", "ε ≥", "proves", "did contradict", "first test"):
        assert words not in everywhere, words


def test_the_verdict_says_what_is_promised_what_tested_it_and_what_an_attacker_reaches() -> None:
    contradicted, words = verdict(whole())
    assert not contradicted
    assert words == (
        "No experiment here contradicts the promise of ε ≤ 4.38 at δ = 1e-05 for one image. It was tested "
        "with 1,000 planted records and 1 attack on membership. Any attacker who guesses whether one image "
        "took part is right at most 70 times in 100; a blind guess is right 50 times."
    )


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("data", "by"),
    [
        (whole(rejected=True), "by the planted experiment."),
        (whole(2.0), "by an attack that is above its limit."),
        (whole(2.0, rejected=True), "by an attack that is above its limit and by the planted experiment."),
    ],
    ids=["audit", "attack", "both"],
)
def test_the_verdict_says_what_contradicts_the_promise(data: dict[str, Any], by: str) -> None:
    contradicted, words = verdict(data)
    assert contradicted
    assert words.startswith(
        "DO NOT RELEASE: the promise of ε ≤ 4.38 at δ = 1e-05 for one image is contradicted"
    )
    assert by in words
    assert '<p class="verdict bad">DO NOT RELEASE' in page(data)


def test_the_verdict_of_a_run_that_nothing_tested_or_that_is_not_private() -> None:
    data = whole()
    only = {"run": data["run"], "risk": data["risk"]}
    assert "No experiment has tested it." in verdict(only)[1]
    data["run"] = data["run"] | {"private": False}
    assert verdict(data)[1].startswith("NOT PRIVATE: the run used a fixed test key")
    assert not verdict(data)[0]


@pytest.mark.usefixtures("no_pictures")
def test_the_page_begins_with_the_verdict_the_cards_and_the_strongest_evidence() -> None:
    data = whole()
    text = page(data)
    places = [
        text.index(words)
        for words in (
            "<h1>",
            verdict(data)[1],
            "What is promised",
            "What attacks found",
            "What the planted experiment shows",
            "What attacks reach",
            "What no attack can exceed",
        )
    ]
    assert places == sorted(places)
    for figure in figures(data).values():
        assert f"<span>{figure}</span>" in text


def test_the_best_evidence_is_between_guessing_and_the_limit() -> None:
    data = whole()
    members, planted = strongest(data)
    words, widths, shown, _ = zip(*members["rows"], strict=True)
    rate = data["membership"]["rates"][0]
    assert words == ("guessing", "with DP", "without DP", f"limit for ε ≤ {figures(data)['limit'][4:]}")
    assert (shown[0], shown[-1]) == (f"{100 * rate['rate']:g} %", f"{100 * rate['limit']:.3g} %")
    assert max(widths) == 1.0
    assert [figure for _, _, figure, _ in planted["rows"]][:2] == ["ε ≥ 0", "ε ≥ 3.20"]
    data["audits"][0]["results"][0]["suspected"] = True  # and the second test did not confirm it
    assert strongest(data) == [members]


def test_tables_of_attacks_are_folded() -> None:
    text = page(whole())
    (attacks,) = re.findall(r"<details>(.*?)</details>", text, flags=re.DOTALL)
    assert attacks.count("limit for any attack, on the true rate") == 1
    assert "limit for any attack" not in text.replace(attacks, "")


def test_the_figure_of_the_experiment_is_that_of_its_sentence() -> None:
    """Not the largest of several bounds, which together do not hold with the confidence that is said."""
    data = whole()
    first = data["audits"][0]["results"][0]
    data["audits"][0]["results"] = [first, first | {"eps_lower": 9.0, "method": "another"}]
    assert figures(data)["audit"] == "ε ≥ 3.20"
    assert "at least 3.20" in dict(summary(data))["audit"]


def test_the_page_stands_alone_whatever_names_it_shows_and_says_what_it_must() -> None:
    text = page(whole(name="<script>alert(1)</script>"))
    links = [found for found in re.findall(r'(?:src|href)="([^"]*)"', text) if not found.startswith("data:")]
    assert not links
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) == {"#"}, "what is clipped is clipped by the page itself"
    assert "<script" not in text
    assert set(re.findall(r"https?://[^\" ]*", text)) == {"http://www.w3.org/2000/svg"}
    for words in ("Confidential", "color-scheme: light dark", "width=device-width", "95 %"):
        assert words in text
    for part in ("What no attack can exceed", "What attacks reach", "promise hold?"):
        assert part in text


def test_parts_that_were_not_looked_at_are_left_out() -> None:
    data = whole()
    only = {"run": data["run"], "risk": data["risk"]}
    assert list(charts_of(only)) == ["two-worlds"]
    text = page(only)
    for words in ("What attacks reach", "promise hold", "What can be drawn", "The strongest evidence"):
        assert words not in text


def test_what_is_written_can_be_read_back(tmp_path: Path) -> None:
    data = whole()
    path = write_report(data, tmp_path / "report")
    assert path.read_text(encoding="utf-8") == page(data)
    assert json.loads((tmp_path / "report" / "report.json").read_text())["run"] == data["run"]
    for name in ("two-worlds", "attacks"):
        ET.parse(tmp_path / "report" / f"{name}.svg")
    assert path.stat().st_mode & 0o077 == 0


def test_a_chart_has_a_name_texts_as_text_and_the_colours_of_its_page() -> None:
    axes = new_chart("share <x>", "y", title='"A" & <B>', shares="x")
    axes.plot([0.01, 0.1, 1.0], [0.0, 1.0, 2.0], color=BLUE, label="one & two")
    inside, alone = to_svg(axes), to_svg(axes, alone=True)
    for text in (inside, alone):
        root = ET.fromstring(text)
        assert (root.get("role"), root.get("aria-label")) == ("img", '"A" & <B>')
        assert root.findtext("{http://www.w3.org/2000/svg}title") == '"A" & <B>'
        words = "".join(root.itertext())
        assert all(word in words for word in ("share <x>", "one & two", "10 %"))
        assert "stroke: var(--one)" in text
        assert BLUE not in text.replace(f"--one: light-dark({BLUE}", "")
        assert " id=" not in re.sub(r"<clipPath id=", "", text), "several charts share a page"
    assert "<style" not in inside
    assert "light-dark(" in alone
    assert len(inside) < 10_000
