"""The model card says what the statement says, and its YAML is what a reader of YAML takes it for."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import re
import sys
from typing import Any

import pytest
from ran import make_statement, plan

from tacit.errors import InvalidInput
from tacit.plan import ScoreReport
from tacit.report import Statement
from tacit.report.checklist import check_card
from tacit.report.evaluation import evaluation_data
from tacit.report.model_card import CardFacts, model_card
from tacit.rounding import shown_epsilon
from tacit.training import Evaluation

yaml: Any = pytest.importorskip("yaml")

EXACT = evaluation_data(
    Evaluation(
        0.9, 0.3, (0.95, 0.85), baseline=0.5, constant=0, records=(100, 100), predicted=(110, 90),
        confusion=((95, 5), (15, 85)), balanced=0.9, auc=0.95, average_precision=0.94,
    ),
    classes=("no", "yes"),
)  # fmt: skip
FACTS = CardFacts(
    "table", "classes", ("no", "yes"), "Tables with the column age.", [("age", "integer; 0 to 120")]
)


def statement(**changes: Any) -> Statement:
    return Statement(copy.deepcopy(made(**changes).data))


@functools.cache
def made(**changes: Any) -> Statement:
    facts = {"noise_multiplier": 3.0, "delta": 1e-5, "records": 10_000, "batch_size": None, "steps": 5}
    return make_statement(plan(**(facts | changes)), randomness="AES", model="mlp, 9 parameters")


def front(card: str) -> dict[str, Any]:
    _, head, _ = card.split("---\n", 2)
    data: dict[str, Any] = yaml.safe_load(head)
    return data


def test_the_figures_are_those_of_the_statement() -> None:
    stated = statement()
    card = model_card(stated.data, FACTS, EXACT)
    guarantee, mechanism = stated.data["guarantee"], stated.data["mechanism"]
    found = front(card)
    assert found["tags"] == ["differential_privacy", "dp-sgd"]
    assert found["library_name"] == "tacit"
    assert found["pipeline_tag"] == "tabular-classification"
    assert "license" not in found
    assert found["differential_privacy"] == {
        "private": True,
        **{name: guarantee[name] for name in ("epsilon", "delta", "unit", "adjacency")},
        "accountant": "{name} {version}, method {method}".format(**stated.data["accountant"]),
        "mechanism": mechanism["name"],
        **{name: mechanism[name] for name in ("noise_multiplier", "clipping", "steps", "sampler")},
    }
    for name in ("epsilon", "delta", "noise_multiplier"):
        assert isinstance(found["differential_privacy"][name], float), "a figure, no text"
    assert f"Epsilon: {shown_epsilon(stated.epsilon)} at delta 1e-05" in card
    assert f"({shown_epsilon(stated.epsilon)}, 1e-05)-differential privacy" in card
    flat = " ".join(card.split())
    for line in (*stated.data["covered"], *stated.data["not_covered"]):
        assert line in flat
    assert mechanism["clipping"] in card
    assert "`no`, `yes`" in card
    assert "`age`: integer; 0 to 120" in card


def test_planted_bug_another_epsilon_would_be_seen() -> None:
    """Every figure of the guarantee comes from the statement: change it there, and the card changes."""
    data = json.loads(statement().to_json())
    before = model_card(data, FACTS, EXACT)
    for part, name, value in (
        ("guarantee", "epsilon", 7.25),
        ("guarantee", "delta", 0.002),
        ("mechanism", "steps", 77),
        ("mechanism", "noise_multiplier", 5.5),
        ("guarantee", "adjacency", "zero-out"),
    ):
        other = json.loads(json.dumps(data))
        other[part][name] = value
        card = model_card(other, FACTS, EXACT)
        assert front(card)["differential_privacy"][name] == value
        body = card.split("---\n", 2)[2]
        assert body != before.split("---\n", 2)[2], f"{name} stands in the text as well"


@pytest.mark.parametrize(
    "unit",
    ["person", "yes", "1e5", "a: b", 'the "person"', "back\\slash", "Zürich #1", "two\nlines", "😀", "\x7f"],
)
def test_any_unit_is_a_text_in_yaml(unit: str) -> None:
    data = statement().data
    data["guarantee"]["unit"] = unit
    assert front(model_card(data, FACTS, EXACT))["differential_privacy"]["unit"] == unit


HOSTILE = "<img src=x onerror=alert(1)> [a](javascript:b) ![c](d) *e* `f` &lt;g"


def test_no_text_of_a_run_becomes_html_or_markdown() -> None:
    """Column names, values, notes, verdicts: a browser or a hub shows each as the text that it is."""
    markdown_it = pytest.importorskip("markdown_it")
    data = statement().data
    for name in ("data", "model", "randomness"):
        data[name] = HOSTILE
    for name in ("notes", "public_data", "not_covered"):
        data[name] = [HOSTILE]
    data["guarantee"]["unit"] = HOSTILE
    facts = dataclasses.replace(
        FACTS,
        classes=(HOSTILE, "``"),
        records=HOSTILE,
        columns=[(HOSTILE, f"category; one of {HOSTILE}")],
        statements=dict.fromkeys(STATED, HOSTILE),
    )
    card = model_card(data, facts, EXACT | {"verdict": HOSTILE})
    body = card.split("---\n", 2)[2]
    page = markdown_it.MarkdownIt("commonmark", {"html": True}).render(body)
    for tag in ("<img", "<a ", "<em>"):
        assert tag not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt; [a](javascript:b) ![c](d) *e* `f` &amp;lt;g") > 10
    assert "<code>``</code>" in page


def test_without_a_finite_epsilon_none_is_claimed() -> None:
    data = statement().data
    data["guarantee"]["epsilon"] = None
    card = model_card(data, FACTS, EXACT)
    assert front(card)["differential_privacy"]["epsilon"] is None
    assert "no finite bound" in card
    assert "nothing is promised" in card


def test_a_run_with_a_test_key_is_not_called_private() -> None:
    data = statement().data | {"private": False}
    card = model_card(data, FACTS, EXACT)
    found = front(card)
    assert "tags" not in found
    assert found["differential_privacy"]["private"] is False
    assert "**NOT PRIVATE**" in card
    assert "differential privacy. The unit" not in card


def test_an_exact_score_is_said_to_be_outside_of_the_guarantee() -> None:
    text = section(model_card(statement().data, FACTS, EXACT), "Test score")
    assert EXACT["verdict"] in text
    assert "Test accuracy 0.9000 (majority class: 0.5000). The figures of the test records are exact" in text
    assert "the guarantee does not cover them" in text
    assert "balanced accuracy 0.9000 0.5000" in text


def test_a_useless_model_is_called_useless() -> None:
    found = Evaluation(
        0.75, 0.6, (1.0, 0.0), baseline=0.75, constant=0, records=(300, 100), predicted=(400, 0),
        confusion=((300, 0), (100, 0)), balanced=0.5, auc=0.5, average_precision=0.25,
    )  # fmt: skip
    card = model_card(statement().data, FACTS, evaluation_data(found, classes=("no", "yes")))
    assert section(card, "Test score").startswith("Test score USELESS: the model predicts")


def test_a_noisy_score_comes_with_its_interval_and_not_as_exact() -> None:
    data = statement(score_report=ScoreReport(20.0)).data
    noisy = Evaluation(
        0.91284, None, (), interval=(0.8812, 0.9444), noise=20.0, steps=5, baseline=0.5, constant=None
    )
    figures = evaluation_data(noisy, classes=("no", "yes"), baseline="the baseline")
    text = section(model_card(data, FACTS, figures), "Test score")
    assert "Test accuracy 0.913 (0.881 to 0.944) (baseline: 0.500)" in text
    assert "after 5 steps" in text
    assert "epsilon pays for" in text
    assert "exact" not in text


STATED = {
    "license": "apache-2.0",
    "curator": "The clinic",
    "intended_use": "to teach: never to diagnose",
    "published": "2026-11-30",
}


def test_what_the_publisher_states_is_said_to_be_stated_and_the_rest_is_named() -> None:
    card = model_card(statement().data, dataclasses.replace(FACTS, statements=STATED), EXACT)
    assert front(card)["license"] == "apache-2.0"
    text = section(card, "Publication")
    assert "not checked" in text
    assert "* Curator: The clinic * Intended use: to teach: never to diagnose" in text
    assert text.endswith("NOT STATED: Contact, Description, Data domain, Why this budget.")
    blank = section(model_card(statement().data, FACTS, EXACT), "Publication")
    assert "Stated by" not in blank
    assert "NOT STATED: Curator, Contact" in blank


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"license": 2}, "license must be a text"),
        ({"licence": "mit"}, "'licence' is not a statement"),
        ({"description": "a model of anonymous data"}, "anonymous"),
        ({"published": "soon"}, "a day such as"),
    ],
)
def test_a_wrong_statement_for_the_card_is_refused(stated: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_card(stated)


def test_the_hubs_own_class_reads_the_card_as_it_was_written() -> None:
    hub: Any = pytest.importorskip("huggingface_hub")
    card = model_card(statement().data, dataclasses.replace(FACTS, statements=STATED), EXACT)
    read = hub.ModelCard(card)
    assert read.data.to_dict() == front(card)
    assert read.data.library_name == "tacit"
    assert read.data.license == "apache-2.0"
    assert read.text == card.split("---\n", 2)[2]


def test_planted_bug_a_card_that_the_hub_reads_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hub: Any = pytest.importorskip("huggingface_hub")

    class Other(hub.ModelCard):  # type: ignore[misc]
        def __init__(self, content: str) -> None:
            super().__init__(content.replace("steps: 5", "steps: 6"))

    monkeypatch.setattr(hub, "ModelCard", Other)
    with pytest.raises(InvalidInput, match="reads other values of differential_privacy from the model card"):
        model_card(statement().data, FACTS, EXACT)


def test_without_the_hubs_package_the_card_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = model_card(statement().data, FACTS, EXACT)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert model_card(statement().data, FACTS, EXACT) == with_it


def section(card: str, heading: str) -> str:
    found = re.split(r"^## ", card, flags=re.MULTILINE)
    (text,) = [part for part in found if part.startswith(f"{heading}\n")]
    return " ".join(text.split())


def test_the_use_fits_the_model() -> None:
    plain = section(model_card(statement().data, FACTS, EXACT), "Use")
    assert "tacit predict . new.csv --out predictions.csv" in plain
    assert 'tacit.load(".")' in plain
    own = dataclasses.replace(FACTS, factory="net:make", task="numbers", classes=())
    text = section(model_card(statement().data, own, EXACT), "Use")
    assert 'tacit.load(".", factory="net:make")' in text
    assert "--factory net:make" in text
    assert "predictor.predict(" in text
