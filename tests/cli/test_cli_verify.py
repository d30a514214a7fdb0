"""``tacit verify``: true statements agree; tampered ones are caught, and unreadable ones said to be so."""

from __future__ import annotations

import copy
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from ran import GONE, changed, make_statement
from ran import plan as made_plan
from shell import Shell
from undrawn import undrawn

import tacit.runs
from tacit import __version__
from tacit.cli.app import run
from tacit.clipping.rules import AdaptiveClipping, AutomaticClipping, ClippingRule, PerLayerClipping
from tacit.errors import MissingExtra
from tacit.events import Adjacency, Event, Gaussian
from tacit.integrations import dp_accounting as google
from tacit.ledger import Ledger, Policy, PureBudget
from tacit.plan import LossReport, Plan
from tacit.report import Statement, make_certificate
from tacit.report.verification import Opinion, Verification, verify_statement
from tacit.sampling import ShuffledBatches

Data = dict[str, Any]


def plan(**changes: Any) -> Plan:
    return made_plan(**({"batch_size": None} | changes))


def statement(the_plan: Plan, steps: int | None = None) -> Statement:
    return make_statement(the_plan, steps_done=steps, randomness="AES-128-CTR, from the system")


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
        assert found.lower <= found.epsilon <= found.upper * (1 + 1e-9)


def test_a_true_statement_and_the_second_opinion(path: Path, shell: Shell) -> None:
    out, err = shell.both(*write(path, SAMPLED.data))
    words = " ".join(out.split())
    assert words.startswith("AGREES The statement says ε = ")
    assert "The stated ε is enough." in words
    assert "dp_accounting 0.6.0 (PLD on a grid of 1e-4, an upper bound) says" in words
    assert "the two agree." in words
    assert "NOT checked: that they describe the real run" in words
    assert err == f"Reading {path} …\n"
    data = shell.data(*write(path, SAMPLED.data))
    assert (data["verdict"], data["agrees"], data["contradictions"]) == ("agrees", True, [])
    assert data["lower"] <= data["stated"] <= data["upper"] * (1 + 1e-9)
    (opinion,) = data["opinions"]
    step = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0))
    priced = PLDAccountant().compose(step, 20).compose(dp_accounting.GaussianDpEvent(8.0))
    assert opinion["epsilon"] == pytest.approx(priced.get_epsilon(1e-4), rel=1e-9)


def test_what_is_said_beside(path: Path, shell: Shell) -> None:
    data = copy.deepcopy(statement(plan(delta=0.01, allow_large_delta=True)).data)
    data["private"] = False
    words = shell(*write(path, data), "--no-second-opinion")
    assert words.startswith("AGREES")
    assert "NOT PRIVATE: the statement says that a fixed test key was used" in words
    assert "Delta 0.01 is not below one over the number of records (1000)" in words
    assert "dp_accounting" not in words


@pytest.mark.parametrize(("where", "to"), [("accountant.version", "0.2.0"), ("format", 1)])
def test_a_paper_of_another_version_is_not_verified(where: str, to: object, path: Path, shell: Shell) -> None:
    """Its figures are not computed again either: a false epsilon must not look as if it had been."""
    version = to if isinstance(to, str) else __version__
    ledger = Ledger.create("sqlite://")
    ledger.open_dataset("visits", Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0)))
    certificate = make_certificate(ledger, "visits").data
    false = changed(FULL.data, "guarantee.epsilon", 0.1)
    for data, place in ((false, where), (certificate, where.replace("accountant.version", "software.tacit"))):
        command = write(path, changed(data, place, to))
        out = shell(*command, code=1)
        assert out.startswith("NOT VERIFIED")
        assert f"written by tacit {version}" in out
        found = shell.data(*command, code=1)
        assert (found["verdict"], found["agrees"], found["other_version"]) == ("not verified", False, version)


LINES = FULL.data["not_covered"]
WORDS: dict[str, tuple[str, object, str]] = {
    "covered": ("covered.0", "everything, for ever", 'the covered is "everything, for ever"'),
    "not covered": ("not_covered.0", "nothing", 'the not_covered is "nothing"'),
    "a limit left out": ("not_covered", LINES[:3] + LINES[4:], "the not_covered is ["),
    "no group": ("guarantee.groups", {}, "the guarantee's groups is {}"),
    "another program": ("accountant.name", "google", "the accountant's name is"),
    "another version among the versions": ("versions.tacit", "9.9", "the versions's tacit is"),
    "a field of its own": ("certified", "by nobody", "it has the unknown field 'certified'"),
    "a plan that promises more": ("plan.epsilon_budget", 50.0, "the plan's epsilon_budget is 50.0"),
}


@pytest.mark.parametrize("what", WORDS)
def test_every_word_that_follows_from_the_plan_is_compared(what: str) -> None:
    where, to, words = WORDS[what]
    found = verify_statement(
        changed(FULL.data, where, to) | ({where: to} if what.startswith("a field") else {})
    )
    assert found.verdict == "contradicts itself"
    assert words in " ".join(found.contradictions)


def test_a_field_that_nothing_determines_is_named_as_not_verified(path: Path, shell: Shell) -> None:
    made = make_statement(plan(), data_source="x", notes=["proved safe"], not_covered=["a"], owned_by="p'id")
    found = verify_statement(json.loads(made.to_json()))
    assert found.agrees, found.contradictions
    named = {"data", "model", "public_data", "notes", "randomness", "versions"}
    assert set(found.not_verified) == {*named, "the first line of not_covered"}
    assert "Not verified: data, model, public_data" in shell(*write(path, made.data))


def test_two_keys_of_one_name_are_refused(path: Path, shell: Shell) -> None:
    text = FULL.to_json().replace('"delta":', '"epsilon": 0.1, "delta":', 1)
    path.write_text(text)
    assert "an object has the key 'epsilon' 2 times" in shell.refused("verify", path, code=2)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "run"
    with undrawn():
        assert tacit.runs.prepare(Path(tacit.runs.__file__).with_name("demo.toml"), out=out).start()
    return out


@pytest.mark.parametrize("name", ["statement.txt", "README.md"])
def test_a_text_in_the_folder_of_a_run_is_made_again(
    name: str, demo: Path, tmp_path: Path, shell: Shell
) -> None:
    shutil.copytree(demo, tmp_path / "run")
    verify = ["verify", str(tmp_path / "run"), "--no-second-opinion"]
    assert shell.out(*verify).startswith("AGREES")
    file = tmp_path / "run" / name
    text = file.read_text()
    changed_text = re.sub(r"(?i)(epsilon:? +)[0-9.]+", r"\g<1>0.1", text)
    assert changed_text != text
    file.write_text(changed_text)
    assert f"Contradiction: {name} is not the text of this statement." in shell.out(*verify, code=1)
    file.write_text(text)
    (tmp_path / "run" / "evaluation.json").unlink()
    assert "README.md (there is no evaluation" in shell.out(*verify)


def test_the_verdict_decides_the_exit_code_when_the_reader_leaves(path: Path) -> None:
    write(path, changed(FULL.data, "guarantee.epsilon", 0.1))
    command = [sys.executable, "-m", "tacit", "verify", str(path), "--no-second-opinion"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read().decode() == f"Reading {path} …\n"
    process.stderr.close()
    assert process.wait() == 1


def test_a_statement_that_promises_nothing_agrees() -> None:
    data = copy.deepcopy(FULL.data)
    data["guarantee"]["epsilon"] = None
    found = verify_statement(data)
    assert found.agrees
    assert found.epsilon == math.inf
    assert "says no finite ε" in found.in_words()[0]


# --- tampered ones ---------------------------------------------------------------------------------------


NOISE, BY_PLAN = "the event's noise_multiplier", "by the plan it must be"
OF_GRADIENTS, RARELY = "noise_multiplier_of_the_gradients", "Poisson sampling, rate 0.01 per step"
CODE = "__import__('os').system('true')"
TAMPERED: dict[str, tuple[str, object, str]] = {  # where, the new value, what is said of it
    "epsilon lowered": ("guarantee.epsilon", 5.0, "It is false"),
    "epsilon lowered a little": ("guarantee.epsilon", 0.9999 * FULL.epsilon, "is too small by"),
    "delta lowered": ("guarantee.delta", 1e-6, "is too small by"),
    "adjacency changed": ("guarantee.adjacency", "replace-one", "is too small by"),
    "noise of the event": ("event.of.noise_multiplier", 4.0, f"{NOISE} is 4.0; {BY_PLAN} 2.0"),
    "noise of the plan": ("plan.noise_multiplier", 2.1, f"{NOISE} is 2.0; {BY_PLAN} 2.1"),
    "noise of the mechanism": (
        "mechanism.noise_multiplier",
        2.1,
        f"the mechanism's noise_multiplier is 2.1; {BY_PLAN} 2.0",
    ),
    "noise of the event, lowered": ("event.of.noise_multiplier", 1.9, f"{NOISE} is 1.9"),
    "steps dropped from the event": ("event.count", 10, f"the event's count is 10; {BY_PLAN} 20"),
    "steps of the mechanism": ("mechanism.steps", 19, f"the event's count is 20; {BY_PLAN} 19"),
    "negative steps": ("mechanism.steps", -1, "steps must be an integer"),
    "more steps than planned": ("plan.steps", 19, "steps must be an integer in [0, 19]; got 20"),
    "noise of the gradients": (f"mechanism.{OF_GRADIENTS}", 2.0, f"{OF_GRADIENTS} is 2.0; {BY_PLAN} 2.01"),
    "batch size": (
        "plan.expected_batch_size",
        900.0,
        "batch_size is 900, but sampling draws 1000",
    ),
    "sampler": ("mechanism.sampler", RARELY, f'the mechanism\'s sampler is "{RARELY}"; {BY_PLAN}'),
    "another form of event": (
        "event",
        {"event": "Gaussian", "noise_multiplier": 20.0},
        'the event\'s form is {"event": "Gaussian"',
    ),
    "unit left out": ("guarantee.unit", " ", 'the guarantee\'s unit is " "; by the plan'),
    "unit of the plan": ("plan.unit", "row", "the guarantee's unit is"),
    "delta raised": ("guarantee.delta", 2e-4, "the guarantee's delta is"),
    "clipping": ("plan.clipping.norm", -1.0, "norm must be a real number"),
    "clipping in words": ("mechanism.clipping", CODE, "the mechanism's clipping is"),
    "an unknown rule": (
        "plan.clipping.kind",
        "SoftClipping",
        "unknown kind 'SoftClipping'; known: Plan, LossReport",
    ),
    "an unknown fact": ("plan.lots", 4, "Plan takes exactly the fields"),
    "loss report": ("plan.loss_report.relative_noise", 50.0, f"the mechanism's {OF_GRADIENTS} is"),
    "a release before training left out": (
        "plan.preparation",
        [{"event": "Gaussian", "noise_multiplier": 9.0}],
        "the event's form is",
    ),
    "group figure": (
        "guarantee.groups.2",
        12.0,
        "2 has epsilon 12 in the statement, which does not follow from its event",
    ),
    "lower bound": (
        "guarantee.lower_bound_of_the_same_analysis",
        20.0,
        "its lower bound, 20, is above the upper bound",
    ),
    "test key": ("randomness", "FIXED TEST KEY, not private", "came from a fixed test key"),
}
TOO_LITTLE = {
    "adjacency changed",
    "delta lowered",
    "epsilon lowered",
    "epsilon lowered a little",
    "noise of the event, lowered",
}


@pytest.mark.parametrize("what", TAMPERED)
def test_tampered_statements_are_caught(what: str, path: Path, shell: Shell) -> None:
    where, to, words = TAMPERED[what]
    out = shell(*write(path, changed(FULL.data, where, to)), "--no-second-opinion", code=1)
    assert out.startswith("CLAIMS TOO LITTLE" if what in TOO_LITTLE else "CONTRADICTS ITSELF")
    assert words in out


@pytest.mark.parametrize(
    ("where", "to", "words"),
    [
        ("event.of.1.of.sampling_rate", 0.05, "the event's sampling_rate is 0.05"),
        ("event.of.1.of.of.noise_multiplier", 2.5, f"{NOISE} is 2.5"),
        ("event.of.1.count", 5, "the event's count is 5"),
        ("event.of.0.noise_multiplier", 80.0, f"{NOISE} is 80.0"),
        ("plan.records", 2000, "sampling draws 200"),
    ],
)
def test_tampered_sampled_statements_are_caught(where: str, to: object, words: str) -> None:
    data = changed(SAMPLED.data, where, to)
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


def test_what_lies_between_the_bounds_is_not_proven() -> None:
    found = verify_statement(statement(plan(batch_size=100)).data)
    between = Verification(
        **(
            vars(found) | {"epsilon": 0.9 * found.upper, "lower": 0.8 * found.upper}
        )  # as a loose accountant would
    )
    assert not between.enough
    assert "it may be true, but it is not proven" in between.in_words()[0]


def test_an_event_that_nobody_can_price_supports_nothing(path: Path, shell: Shell) -> None:
    data = copy.deepcopy(FULL.data)
    both = {"event": "Compose", "of": [{"event": "Gaussian", "noise_multiplier": 2.0}] * 2}
    twice = {"event": "BallsInBins", "bins": 3, "passes": 1, "of": both}
    data["event"] = {"event": "PoissonSampled", "sampling_rate": 0.1, "of": twice}
    out = shell(*write(path, data), "--no-second-opinion", code=1)
    assert "no finite bound" in out
    assert "Nothing supports the stated ε." in out
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
    path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> Any:
        raise MissingExtra("dp-accounting", "second-opinion", "a second opinion")

    monkeypatch.setattr(google, "_google", missing)
    out, err = shell.both(*write(path, FULL.data))
    assert out.startswith("AGREES")
    assert "pip install -e '.[second-opinion]'" in err


def test_beyond_any_promise_nobody_else_is_asked() -> None:
    made = statement(plan(noise_multiplier=0.1))
    assert made.epsilon > 500

    def never(*_: object) -> Opinion:
        raise AssertionError("asked")

    assert verify_statement(made.data, opinions=[never]).opinions == ()


# --- what cannot be read ---------------------------------------------------------------------------------

UNREADABLE: dict[str, tuple[str, object, str]] = {
    "no plan": ("plan", GONE, "the statement's plan cannot be read: it is missing"),
    "not a statement": ("statement", "hello", "is not a privacy statement of Tacit"),
    "no guarantee": ("guarantee", GONE, "guarantee cannot be read: it is missing"),
    "no delta": ("guarantee.delta", GONE, "guarantee.delta cannot be read"),
    "a word for a number": ("guarantee.epsilon", "3", 'guarantee.epsilon cannot be read: it is "3"'),
    "true for a number": ("mechanism.steps", True, "steps cannot be read: it is true"),
    "not a number": ("guarantee.epsilon", math.nan, "guarantee.epsilon cannot be read"),
    "endless steps": ("mechanism.steps", 10**400, "mechanism.steps cannot be read"),
    "negative epsilon": ("guarantee.epsilon", -1.0, "must be at least 0"),
    "delta of one": ("guarantee.delta", 1.0, "in (0, 1)"),
    "adjacency": ("guarantee.adjacency", "near", "adjacency must be one of"),
    "group": ("guarantee.groups", {"two": 3.0}, "for a group of 'two' cannot be read"),
    "unknown event": ("event.of.event", "Magic", "unknown event 'Magic'"),
    "event without noise": (
        "event.of.noise_multiplier",
        0.0,
        "which describes the mechanism, cannot be read",
    ),
    "event with a word": (
        "event.count",
        "many",
        "which describes the mechanism, cannot be read",
    ),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_unreadable_statements(what: str, path: Path, shell: Shell) -> None:
    where, to, words = UNREADABLE[what]
    err = shell.refused(*write(path, changed(FULL.data, where, to)), code=2)
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
def test_unreadable_files(content: bytes, words: str, path: Path, shell: Shell) -> None:
    path.write_bytes(content)
    err = shell.err("verify", str(path), code=2)
    assert words in err
    assert "Traceback" not in err


def test_no_file_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], shell: Shell) -> None:
    assert "there is no statement at" in shell.err("verify", str(tmp_path / "nothing.json"), code=2)
    assert run(["verify", str(tmp_path)]) == 2
    assert f"there is no statement at {tmp_path / 'statement.json'}" in capsys.readouterr().err.replace(
        "\n", ""
    )
