"""``tacit verify``: true statements agree; tampered ones are caught, and unreadable ones said to be so."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from ran import make_statement

from tacit.cli.app import run
from tacit.clipping.rules import AdaptiveClipping, AutomaticClipping, ClippingRule, PerLayerClipping
from tacit.errors import MissingExtra
from tacit.events import Adjacency, Event, Gaussian
from tacit.integrations import dp_accounting as google
from tacit.plan import LossReport, Plan
from tacit.report import Statement
from tacit.report.statement.verification import Opinion, Verification, verify_statement
from tacit.sampling import ByDate, ShuffledBatches, TruncatedPoissonSampling

Data = dict[str, Any]


def plan(**changes: Any) -> Plan:
    settings: Data = {
        "noise_multiplier": 2.0, "delta": 1e-4, "records": 1000, "batch_size": None, "steps": 20,
        "clipping": 1.5, "adjacency": "add-remove", "unit": "patient",
    }  # fmt: skip
    return Plan.with_noise(**(settings | changes))


def statement(the_plan: Plan, steps: int | None = None) -> Statement:
    done = the_plan.steps if steps is None else steps
    return make_statement(the_plan, steps_done=done, randomness="AES-128-CTR, from the system", private=True)


SAMPLED = statement(plan(batch_size=100, loss_report=LossReport(4.0), preparation=(Gaussian(8.0),)))
FULL = statement(plan(loss_report=LossReport(4.0)))  # priced in closed form, hence quickly


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "statement.json"


def write(path: Path, data: object) -> list[str]:
    path.write_text(json.dumps(data))
    return ["verify", str(path)]


# --- true statements -------------------------------------------------------------------------------------

RULES: list[ClippingRule | float] = [
    1.5, AdaptiveClipping(1.0, quantile=0.4), AutomaticClipping(1.0),
    PerLayerClipping(5.0, (("a", 3.0), ("b", 4.0))),
]  # fmt: skip
TRUE = [
    *(plan(clipping=rule) for rule in RULES),
    plan(loss_report=LossReport(4.0), views=4, preparation=(Gaussian(8.0), Gaussian(5.0))),
    plan(adjacency="replace-one"),
    plan(adjacency="zero-out", sampling=ShuffledBatches(90, 1000), batch_size=90),
    plan(delta=0.01, allow_large_delta=True),
    plan(batch_size=100, adjacency="replace-one", steps=1),
]


@pytest.mark.parametrize("number", range(len(TRUE)))
def test_true_statements_agree(number: int) -> None:
    for steps in (0, 1, TRUE[number].steps):
        found = verify_statement(json.loads(statement(TRUE[number], steps).to_json()))
        assert found.agrees, found.in_words()
        assert found.lower <= found.stated <= found.upper * (1 + 1e-9)


def test_a_true_statement_and_the_second_opinion(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write(path, SAMPLED.data)) == 0
    out, err = capsys.readouterr()
    words = " ".join(out.split())
    assert words.startswith("AGREES The statement says epsilon ")
    assert "What is stated is enough." in words
    assert "dp_accounting 0.6.0 (PLD on a grid of 1e-4, an upper bound) says" in words
    assert "the two agree." in words
    assert "NOT checked: that they are what was run" in words
    assert err == ""
    assert run([*write(path, SAMPLED.data), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["verdict"], data["agrees"], data["contradictions"]) == ("agrees", True, [])
    assert data["lower"] <= data["stated"] <= data["upper"] * (1 + 1e-9)
    (opinion,) = data["opinions"]
    step = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0))
    priced = PLDAccountant().compose(step, 20).compose(dp_accounting.GaussianDpEvent(8.0))
    assert opinion["epsilon"] == pytest.approx(priced.get_epsilon(1e-4), rel=1e-9)


RUN = """
[data]
name = "iris"
[model]
name = "logistic"
[privacy]
epsilon = 3.0
delta = 1e-3
unit = "flower"
adjacency = "add-remove"
records = 120
[optimizer]
learning_rate = 0.5
[training]
batch_size = "full"
steps = 3
"""


@pytest.mark.usefixtures("no_pictures")
def test_what_a_run_leaves_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "iris.toml").write_text(RUN)
    assert run(["train", str(tmp_path / "iris.toml"), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert run(["verify", str(tmp_path / "run" / "statement.json")]) == 0
    assert run(["verify", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("AGREES")


def test_what_is_said_beside(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = copy.deepcopy(statement(plan(delta=0.01, allow_large_delta=True)).data)
    data["private"] = False
    data["accountant"]["version"] = "0.0.9"
    assert run([*write(path, data), "--no-second-opinion"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "NOT PRIVATE: the statement says that a fixed test key was used" in words
    assert "Delta 0.01 is not below one over the number of records (1000)" in words
    assert "written by tacit 0.0.9" in words
    assert "dp_accounting" not in words


def test_a_statement_that_promises_nothing_agrees() -> None:
    data = copy.deepcopy(FULL.data)
    data["guarantee"]["epsilon"] = None
    found = verify_statement(data)
    assert found.agrees
    assert found.stated == math.inf
    assert "says no finite epsilon" in found.in_words()[0]


# --- tampered ones ---------------------------------------------------------------------------------------


def change(*where: str | int, to: object) -> Callable[[Data], None]:
    def changed(data: Data) -> None:
        part: Any = data
        for key in where[:-1]:
            part = part[key]
        assert part[where[-1]] != to
        part[where[-1]] = to

    return changed


TAMPERED: dict[str, tuple[Callable[[Data], None], str, str]] = {
    "epsilon lowered": (change("guarantee", "epsilon", to=5.0), "claims too little", "it is false"),
    "epsilon lowered a little": (
        lambda data: data["guarantee"].update(epsilon=0.9999 * data["guarantee"]["epsilon"]),
        "claims too little",
        "is too little by",
    ),
    "delta lowered": (change("guarantee", "delta", to=1e-6), "claims too little", "is too little by"),
    "adjacency changed": (
        change("guarantee", "adjacency", to="replace-one"), "claims too little", "is too little by"
    ),
    "noise of the event": (
        change("event", "of", "noise_multiplier", to=4.0),
        "contradicts itself",
        "the event's noise_multiplier is 4.0; by the plan it must be 2.0",
    ),
    "noise of the plan": (
        change("plan", "noise_multiplier", to=2.1),
        "contradicts itself",
        "the event's noise_multiplier is 2.0; by the plan it must be 2.1",
    ),
    "noise of the mechanism": (
        change("mechanism", "noise_multiplier", to=2.1),
        "contradicts itself",
        "the mechanism's noise_multiplier is 2.1; by the plan it must be 2.0",
    ),
    "noise of the event, lowered": (
        change("event", "of", "noise_multiplier", to=1.9),
        "claims too little",
        "the event's noise_multiplier is 1.9",
    ),
    "steps dropped from the event": (
        change("event", "count", to=10),
        "contradicts itself",
        "the event's count is 10; by the plan it must be 20",
    ),
    "steps of the mechanism": (
        change("mechanism", "steps", to=19),
        "contradicts itself",
        "the event's count is 20; by the plan it must be 19",
    ),
    "negative steps": (change("mechanism", "steps", to=-1), "contradicts itself", "steps must be an integer"),
    "more steps than planned": (
        change("plan", "steps", to=19), "contradicts itself", "steps must be an integer in [0, 19]; got 20"
    ),
    "noise of the gradients": (
        change("mechanism", "noise_multiplier_of_the_gradients", to=2.0),
        "contradicts itself",
        "the mechanism's noise_multiplier_of_the_gradients is 2.0; by the plan it must be 2.01",
    ),
    "batch size": (
        change("plan", "expected_batch_size", to=900.0),
        "contradicts itself",
        "batch_size is 900, and the sampler draws 1000 of 1000 records a step",
    ),
    "sampler": (
        change("mechanism", "sampler", to="Poisson sampling, rate 0.01 per step"),
        "contradicts itself",
        'the mechanism\'s sampler is "Poisson sampling, rate 0.01 per step"; by the plan it must be',
    ),
    "another form of event": (
        change("event", to={"event": "Gaussian", "noise_multiplier": 20.0}),
        "contradicts itself",
        'the event\'s form is {"event": "Gaussian"',
    ),
    "unit left out": (
        change("guarantee", "unit", to=" "), "contradicts itself", 'the guarantee\'s unit is " "; by the plan'
    ),
    "unit of the plan": (change("plan", "unit", to="row"), "contradicts itself", "the guarantee's unit is"),
    "delta raised": (change("guarantee", "delta", to=2e-4), "contradicts itself", "the guarantee's delta is"),
    "clipping": (
        change("plan", "clipping", "norm", to=-1.0), "contradicts itself", "norm must be a real number"
    ),
    "clipping in words": (
        change("mechanism", "clipping", to="__import__('os').system('true')"),
        "contradicts itself",
        "the mechanism's clipping is",
    ),
    "an unknown rule": (
        change("plan", "clipping", "kind", to="SoftClipping"),
        "contradicts itself",
        "unknown kind 'SoftClipping'; known: Plan, LossReport",
    ),
    "an unknown fact": (
        lambda data: data["plan"].update(lots=4), "contradicts itself", "Plan takes exactly the fields"
    ),
    "loss report": (
        change("plan", "loss_report", "relative_noise", to=50.0),
        "contradicts itself",
        "the mechanism's noise_multiplier_of_the_gradients is",
    ),
    "a release before training left out": (
        change("plan", "preparation", to=[{"event": "Gaussian", "noise_multiplier": 9.0}]),
        "contradicts itself",
        "the event's form is",
    ),
    "group figure": (
        change("guarantee", "groups", "2", to=12.0),
        "contradicts itself",
        "a group of 2 has epsilon 12 in the statement, which does not follow from its event",
    ),
    "lower bound": (
        change("guarantee", "lower_bound_of_the_same_analysis", to=20.0),
        "contradicts itself",
        "its lower bound, 20, is above the upper bound",
    ),
    "test key": (
        change("randomness", to="AES-128-CTR, FIXED TEST KEY, not private"),
        "contradicts itself",
        "came from a fixed test key",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TAMPERED)
def test_tampered_statements_are_caught(what: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tamper, verdict, words = TAMPERED[what]
    data = copy.deepcopy(FULL.data)
    tamper(data)
    assert run([*write(path, data), "--no-second-opinion"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(verdict.upper())
    assert words in out


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (change("event", "of", 1, "of", "sampling_rate", to=0.05), "the event's sampling_rate is 0.05"),
        (
            change("event", "of", 1, "of", "of", "noise_multiplier", to=2.5),
            "the event's noise_multiplier is 2.5",
        ),
        (change("event", "of", 1, "count", to=5), "the event's count is 5"),
        (change("event", "of", 0, "noise_multiplier", to=80.0), "the event's noise_multiplier is 80.0"),
        (change("plan", "records", to=2000), "the sampler draws 200 of 2000"),
    ],
)
def test_tampered_sampled_statements_are_caught(tamper: Callable[[Data], None], words: str) -> None:
    data = copy.deepcopy(SAMPLED.data)
    tamper(data)
    data["guarantee"]["groups"] = {}
    found = verify_statement(data)
    assert not found.agrees
    assert words in " ".join(found.in_words())


# What a percent more or less may change without a contradiction: a larger claim is a weaker promise.
HARMLESS = {
    ("guarantee", "epsilon", "more"),
    ("guarantee", "lower_bound_of_the_same_analysis", "less"),
    ("guarantee", "groups", "2", "more"),
    ("guarantee", "groups", "4", "more"),
    ("plan", "steps", "more"),  # of which fewer were taken
}


def numbers(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], float]]:
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(value, dict | list):
            yield from numbers(value, (*at, key))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield (*at, key), value


def test_every_number_of_a_statement_is_checked() -> None:
    data = copy.deepcopy(
        statement(plan(loss_report=LossReport(4.0), preparation=(Gaussian(8.0),), views=3)).data
    )
    passed = set()
    for name in ("guarantee", "mechanism", "event", "plan"):
        for (*where, last), value in list(numbers(data[name], (name,))):
            part: Any = data
            for key in where:
                part = part[key]
            step = 1 if isinstance(value, int) else 0.01 * value
            for word, other in (("more", value + step), ("less", value - step)):
                part[last] = other
                if verify_statement(data).agrees:
                    passed.add((*where, last, word))
                part[last] = value
    assert passed == HARMLESS
    assert verify_statement(data).agrees


# --- statements of 0.2.0, which describe their plan in words -----------------------------------------------

OLD = Path(__file__).parents[1] / "artefacts" / "0.2.0" / "statements"


@pytest.mark.parametrize("name", sorted(path.stem for path in OLD.glob("*.json")))
def test_statements_of_0_2_0_agree_and_those_with_another_event_do_not(name: str) -> None:
    data = json.loads((OLD / f"{name}.json").read_text())
    found = verify_statement(data)
    assert found.agrees, found.in_words()
    data["guarantee"]["groups"] = {}
    quieter = json.dumps(data["event"]).replace('"noise_multiplier": 2.0', '"noise_multiplier": 2.5')
    changed = verify_statement({**data, "event": json.loads(quieter)})
    assert changed.agrees is (name == "untaken")  # whose event has no step


OLD_TAMPERED: dict[str, tuple[str, Callable[[Data], None], str]] = {
    "clipping with code": (
        "poisson",
        change("mechanism", "clipping", to="__import__('os').system('true')"),
        "describes none of FlatClipping",
    ),
    "clipping": (
        "full",
        change("mechanism", "clipping", to="FlatClipping(norm=-1.0)"),
        "norm must be a real",
    ),
    "sampler": (
        "full",
        change("mechanism", "sampler", to="Poisson sampling, rate 0.01 per step"),
        "neither what the event says nor what 1000 of 1000 records come to",
    ),
    "batch size": (
        "full",
        change("mechanism", "expected_batch_size", to=900.0),
        "the sampler draws 1000 of 1000",
    ),
    "records": (
        "poisson",
        change("mechanism", "public_figure_for_the_number_of_records", to=2000),
        "the sampler draws 194",
    ),
    "steps": (
        "full",
        change("mechanism", "steps", to=19),
        "the event's count is 20; by the plan it must be 19",
    ),
    "negative steps": ("full", change("mechanism", "steps", to=-1), "-1 steps were taken"),
    "noise": (
        "shuffled",
        change("mechanism", "noise_multiplier", to=2.1),
        "the event's noise_multiplier is 2.0; by the plan",
    ),
    "noise of the gradients": (
        "adaptive",
        change("mechanism", "noise_multiplier_of_the_gradients", to=2.0),
        "the mechanism's noise_multi",
    ),
    "loss report": (
        "poisson",
        change("mechanism", "loss_report", to="LossReport(bound=4.0, relative_noise=50.0)"),
        "the mechanism's noise_multiplier_of_the_gradients is",
    ),
    "preparation": ("untaken", change("mechanism", "preparation", to=["none"]), "the event's of is [{"),
    "dates": (
        "dates",
        change("mechanism", "sampler", to=ByDate(2, 5).describe()),
        "the event's participations is 3",
    ),
    "noise in time": (
        "tree",
        change("mechanism", "noise_in_time", to="Tree(restart_every=10)"),
        "by the plan it must be",
    ),
    "rows": (
        "rows",
        change("mechanism", "rows_per_unit", to=2),
        "the event's size is 3; by the plan it must be 2",
    ),
    "cut": (
        "truncated",
        change("mechanism", "sampler", to=TruncatedPoissonSampling(0.1, 1000, 140).describe()),
        "the event's largest_batch is 150",
    ),
}


@pytest.mark.parametrize("what", OLD_TAMPERED)
def test_tampered_statements_of_0_2_0_are_caught(what: str) -> None:
    name, tamper, words = OLD_TAMPERED[what]
    data = json.loads((OLD / f"{name}.json").read_text())
    tamper(data)
    data["guarantee"]["groups"] = {}
    found = verify_statement(data)
    assert not found.agrees
    assert words in " ".join(found.contradictions)


def test_what_lies_between_the_bounds_is_not_proven() -> None:
    found = verify_statement(statement(plan(batch_size=100)).data)
    between = Verification(
        **(
            vars(found) | {"stated": 0.9 * found.upper, "lower": 0.8 * found.upper}
        )  # as a loose accountant would
    )
    assert not between.enough
    assert "it may be true, but it is not proven" in between.in_words()[0]


def test_an_event_that_nobody_can_price_supports_nothing(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = copy.deepcopy(FULL.data)
    both = {"event": "Compose", "of": [{"event": "Gaussian", "noise_multiplier": 2.0}] * 2}
    twice = {"event": "BallsInBins", "bins": 3, "passes": 1, "of": both}
    data["event"] = {"event": "PoissonSampled", "sampling_rate": 0.1, "of": twice}
    assert run([*write(path, data), "--no-second-opinion"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "no finite bound is proven" in out
    assert "Nothing supports what is stated." in out
    assert "no epsilon is proven for the statement's event:" in out


# --- opinions that differ --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (1.0001, "0.01 % above ours: the two agree"),
        (1.5, "50 % above ours: a looser bound, which does not contradict ours"),
        (0.9, "below our lower bound: the two do not agree"),
    ],
)
def test_other_opinions_in_words(factor: float, words: str) -> None:
    def other(event: Event, adjacency: Adjacency, delta: float) -> Opinion:
        return Opinion("somebody 1.0", "by guess", factor * FULL.epsilon, "")

    assert words in " ".join(verify_statement(FULL.data, opinions=[other]).in_words())


def test_without_dp_accounting_it_is_said_how_to_get_it(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> Any:
        raise MissingExtra("dp-accounting", "second-opinion", "a second opinion")

    monkeypatch.setattr(google, "_google", missing)
    assert run(write(path, FULL.data)) == 0
    out, err = capsys.readouterr()
    assert out.startswith("AGREES")
    assert "pip install 'tacit-dp[second-opinion]'" in err


def test_beyond_any_promise_nobody_else_is_asked() -> None:
    made = statement(plan(noise_multiplier=0.1))
    assert made.epsilon > 500

    def never(*_: object) -> Opinion:
        raise AssertionError("asked")

    assert verify_statement(made.data, opinions=[never]).opinions == ()


# --- what cannot be read ---------------------------------------------------------------------------------

UNREADABLE: dict[str, tuple[Callable[[Data], None], str]] = {
    "another format": (change("format", to=3), "has format 3; this version of Tacit reads formats 1 and 2"),
    "no plan": (lambda data: data.pop("plan"), "the statement's plan cannot be read: it is missing"),
    "not a statement": (change("statement", to="hello"), "is not a privacy statement of Tacit"),
    "no guarantee": (lambda data: data.pop("guarantee"), "guarantee cannot be read: it is missing"),
    "no delta": (lambda data: data["guarantee"].pop("delta"), "guarantee.delta cannot be read"),
    "a word for a number": (
        change("guarantee", "epsilon", to="3"), 'guarantee.epsilon cannot be read: it is "3"'
    ),
    "true for a number": (change("mechanism", "steps", to=True), "steps cannot be read: it is true"),
    "not a number": (change("guarantee", "epsilon", to=math.nan), "guarantee.epsilon cannot be read"),
    "endless steps": (change("mechanism", "steps", to=10**400), "mechanism.steps cannot be read"),
    "negative epsilon": (change("guarantee", "epsilon", to=-1.0), "must be at least 0"),
    "delta of one": (change("guarantee", "delta", to=1.0), "in (0, 1)"),
    "adjacency": (change("guarantee", "adjacency", to="near"), "adjacency must be one of"),
    "group": (change("guarantee", "groups", to={"two": 3.0}), "group figure for 'two'"),
    "unknown event": (change("event", "of", "event", to="Magic"), "unknown event 'Magic'"),
    "event without noise": (change("event", "of", "noise_multiplier", to=0.0), "event cannot be read"),
    "event with a word": (change("event", "count", to="many"), "event cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("what", UNREADABLE)
def test_unreadable_statements(what: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, words = UNREADABLE[what]
    data = copy.deepcopy(FULL.data)
    spoil(data)
    assert run(write(path, data)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PRIVACY STATEMENT\n", "is not JSON"),
        (b"\xff\xfe", "cannot read the statement"),
        (b"[1, 2]", "is not a privacy statement"),
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_unreadable_files(content: bytes, words: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(content)
    assert run(["verify", str(path)]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err


def test_no_file_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(tmp_path / "nothing.json")]) == 2
    assert "there is no statement at" in capsys.readouterr().err
    assert run(["verify", str(tmp_path)]) == 2
    assert f"there is no statement at {tmp_path / 'statement.json'}" in capsys.readouterr().err.replace(
        "\n", ""
    )


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--help"]) == 0
    out = capsys.readouterr().out
    assert "Example:  tacit verify runs/first/statement.json" in out
    assert max(map(len, out.splitlines())) <= 80
