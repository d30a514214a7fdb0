"""The statement: every field, the words for readers who know no DP, the group figures, what is not hidden."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ran import make_statement, plan

from tacit import __version__
from tacit.accounting import account
from tacit.clipping.rules import AdaptiveClipping
from tacit.errors import InvalidInput
from tacit.events import Gaussian, GroupPrivacy, Repeat, event_from_json
from tacit.plan import LossReport, Plan
from tacit.report import Statement, group_epsilon
from tacit.rounding import round_up
from tacit.sampling import FullBatch, ShuffledBatches


def statement(the_plan: Plan | None = None, **changes: Any) -> Statement:
    return make_statement(the_plan or plan(), **changes)


def words(made: Statement) -> str:
    """The text with all white space made one, since lines break anywhere."""
    return " ".join(made.to_text().split())


def test_every_field() -> None:
    made = statement(
        plan(views=3, loss_report=LossReport(4.0)),
        data_source="a table of patients",
        model="logistic, 8 parameters",
        public_data=("ImageNet",),
        notes=("a note",),
    )
    data = json.loads(made.to_json())
    assert list(data) == [
        "statement", "format", "private", "guarantee", "mechanism", "plan", "accountant", "event", "data",
        "ledger", "public_data", "model", "randomness", "covered", "not_covered", "notes", "versions",
    ]  # fmt: skip
    promised = {"unit": "patient", "adjacency": "add-remove", "delta": 1e-4}
    ran = {
        "sampler": "Poisson sampling, rate 0.1 per step", "steps": 20, "expected_batch_size": 100,
        "clipping": "FlatClipping(norm=1.5)", "noise_multiplier": 2.0, "views_per_record": 3,
    }  # fmt: skip
    for part, fields in (("guarantee", promised), ("mechanism", ran)):
        assert {name: data[part][name] for name in fields} == fields
    assert data["mechanism"]["noise_multiplier_of_the_gradients"] > 2.0
    assert "bound=4.0" in data["mechanism"]["loss_report"]
    assert data["ledger"] == "none"
    assert data["accountant"] == {"name": "tacit", "method": "pld", "version": __version__}
    assert data["versions"]["tacit"] == __version__
    text = words(made)
    for expected in (
        "one patient", "add-remove", "Poisson sampling, rate 0.1 per step", "FlatClipping(norm=1.5)",
        "a table of patients", "logistic, 8 parameters", "ImageNet", "the system's", "a note",
        "Noise multiplier 2 ", "Steps 20 ", "Views per record 3", "Divisor of sums 100, public",
        f"torch {data['versions']['torch']}", "Preparation none",
    ):  # fmt: skip
        assert expected in text


def test_what_is_not_known_says_so() -> None:
    assert "Data NOT STATED" in words(statement())
    assert "Model NOT STATED" in words(statement())
    assert "Public data none" in words(statement())


@pytest.mark.parametrize(
    ("adjacency", "phrase", "count"),
    [
        ("add-remove", "if any one patient had been left out of the training data, or put into it", "secret"),
        ("replace-one", "if any one patient in the training data had been another", "public"),
        ("zero-out", "if any one patient in the training data had been blank", "public"),
    ],
)
def test_the_promise_in_plain_words(adjacency: str, phrase: str, count: str) -> None:
    made = statement(plan(adjacency=adjacency))
    assert phrase in words(made)
    assert f"(adjacency {adjacency})" in words(made)
    assert count in words(made).partition("How many of them there are is")[2][:25]
    factor = float(words(made).partition("at most ")[2].split()[0].replace(",", ""))
    assert math.exp(made.epsilon) <= factor <= 1.02 * math.exp(made.epsilon)


def test_the_event_comes_back_from_the_file_and_gives_the_epsilon() -> None:
    data = json.loads(statement(plan(adjacency="replace-one")).to_json())
    event = event_from_json(json.dumps(data["event"]))
    assert event == plan(adjacency="replace-one").event
    curve = account(event, adjacency=data["guarantee"]["adjacency"])
    assert curve.epsilon(data["guarantee"]["delta"]) == pytest.approx(data["guarantee"]["epsilon"])
    assert data["guarantee"]["lower_bound_of_the_same_analysis"] <= data["guarantee"]["epsilon"]


@pytest.mark.parametrize(
    ("sampling", "phrase", "event"),
    [
        (FullBatch(), "full batch, every record in every step", Repeat(Gaussian(2.0), 20)),
        (ShuffledBatches(100, 1000), "no amplification claimed", Repeat(Gaussian(2.0), 2)),
    ],
)
def test_the_sampler_is_the_one_that_ran(sampling: Any, phrase: str, event: Any) -> None:
    batch = None if isinstance(sampling, FullBatch) else 100
    made = statement(plan(sampling=sampling, batch_size=batch, adjacency="replace-one"))
    assert phrase in words(made)
    assert "Poisson" not in made.to_json()
    assert event_from_json(json.dumps(made.data["event"])) == event


def test_steps_done_are_priced_and_not_the_steps_planned() -> None:
    half = statement(steps_done=10)
    assert half.epsilon == pytest.approx(plan(steps=10).epsilon)
    assert half.epsilon < statement().epsilon
    for steps in (-1, 21):
        with pytest.raises(InvalidInput, match=r"\[0, 20\]"):
            statement(steps_done=steps)


def test_group_figures_are_those_of_the_group_of_the_event() -> None:
    """At the epsilon that d(e) (e^{ke} - 1) / (e^e - 1) = delta gives, a group's delta is less."""
    curve = plan().curve
    for size in (2, 4):
        found = group_epsilon(curve, 1e-4, size)
        event = GroupPrivacy(curve.event, size)
        assert found == account(event, adjacency=curve.adjacency).epsilon(1e-4)
        assert curve.delta(found / size) * sum(math.exp(i * found / size) for i in range(size)) > 1e-4
    data = statement().data["guarantee"]["groups"]
    assert data == {str(size): group_epsilon(curve, 1e-4, size) for size in (2, 4)}
    assert data["4"] > 4 * statement().epsilon, "a group of k costs more than k times epsilon at one delta"


def test_a_group_figure_of_the_gaussian_in_closed_form() -> None:
    """For one Gaussian the curve is known, so that the figure can be had without an accountant."""

    def delta(epsilon: float) -> float:
        def cdf(x: float) -> float:
            return math.erfc(-x / math.sqrt(2)) / 2

        mu = 2 / 2.0  # two records move the sum by twice as much
        return cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * cdf(-epsilon / mu - mu / 2)

    curve = account(Gaussian(2.0), adjacency="add-remove")
    assert delta(group_epsilon(curve, 1e-4, 2)) == pytest.approx(1e-4, rel=1e-6)


def test_a_group_without_a_finite_bound_is_said_to_have_none() -> None:
    loud = plan(noise_multiplier=0.05, steps=2, batch_size=None)
    made = statement(loud)
    data = json.loads(made.to_json())  # strict JSON, without Infinity
    assert data["guarantee"]["groups"]["4"] is None
    assert "4 of them: no finite bound" in words(made)
    assert group_epsilon(loud.curve, 1e-4, 4) == math.inf


def test_not_private_is_the_first_thing_said() -> None:
    made = statement(private=False)
    assert json.loads(made.to_json())["private"] is False
    assert made.to_text().splitlines()[2].startswith("NOT PRIVATE: the randomness of this run came from")
    assert "NOT PRIVATE" not in statement().to_text()


def test_covered_and_not_covered() -> None:
    with_loss = statement(plan(loss_report=LossReport()))
    assert any("noisy training loss" in item for item in with_loss.data["covered"])
    assert not any("loss" in item for item in statement().data["covered"])
    assert "Loss report none" in words(statement())
    made = statement()
    beyond = ("test records", "other runs", "several records", "side channels", "floating-point", "key")
    for phrase in (*beyond, "two different runs continued"):
        assert any(phrase in item for item in made.data["not_covered"])
        assert phrase in words(made).partition("Not covered:")[2]


def test_the_assumption_of_the_reference_engine_is_stated_if_it_ran() -> None:
    assumption = "keeps of a record in Python"
    assert assumption in words(statement(route="reference")).partition("Not covered:")[2]
    assert assumption not in words(statement())


def test_adaptive_clipping_states_its_rule_and_the_raised_noise() -> None:
    made = statement(plan(clipping=AdaptiveClipping(1.0, quantile=0.4)))
    assert "AdaptiveClipping" in made.data["mechanism"]["clipping"]
    assert "quantile=0.4" in made.data["mechanism"]["clipping"]
    mechanism = made.data["mechanism"]
    assert mechanism["noise_multiplier_of_the_gradients"] > mechanism["noise_multiplier"]


def test_preparation_is_stated() -> None:
    made = statement(plan(preparation=(Gaussian(8.0),)))
    assert event_from_json(json.dumps(made.data["mechanism"]["preparation"][0])) == Gaussian(8.0)
    assert "8.0" in words(made).partition("Preparation")[2][:80]


def test_lines_fit_into_80_columns() -> None:
    made = statement(data_source="a long name of a source " * 9, notes=("a long note " * 20,))
    assert max(map(len, made.to_text().splitlines())) <= 79


def test_the_unit_may_be_any_text() -> None:
    assert "one [red]{0} hospital stay%s" in words(statement(plan(unit="[red]{0} hospital stay%s")))


@given(st.floats(1e-12, 1e12), st.integers(1, 8))
def test_rounding_is_upward_and_tight(value: float, digits: int) -> None:
    shown = Decimal(round_up(value, digits))
    exact = Decimal(repr(value))
    assert exact <= shown < exact * (1 + Decimal(10) ** (1 - digits)) + Decimal(10) ** -20


def test_epsilon_is_never_stated_below_what_it_is() -> None:
    made = statement()
    stated = float(words(made).partition("trained with (")[2].partition(",")[0])
    assert made.epsilon <= stated <= 1.001 * made.epsilon
    assert round_up(0.1) == "0.1"
