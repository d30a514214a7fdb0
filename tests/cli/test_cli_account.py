"""``tacit account``: what it prints and draws, what it refuses, and how quickly it starts."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from shell import Shell

from tacit.accounting import account
from tacit.cli import terminal
from tacit.cli.app import run
from tacit.events import Compose, Event, Gaussian, Laplace, PoissonSampled, Repeat, event_to_json
from tacit.rounding import shown_epsilon

DP_SGD = Repeat(PoissonSampled(0.01, Gaussian(4.0)), 10_000)
STATED = ["--delta", "1e-5", "--adjacency", "add-remove"]
FLAGS = ["--noise", "4", "--sampling-rate", "0.01", "--steps", "10000"]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


# --- answers ----------------------------------------------------------------------------------------------


def test_the_setting_of_the_paper_in_words(shell: Shell) -> None:
    arguments = ["--records", "60000", "--batch-size", "600", "--noise", "4", "--epochs", "100", *STATED]
    out, err = shell.both("account", *arguments, "--method", "pld,rdp,moments")
    assert err == ""
    assert "10,000 steps, sampling rate 0.01, noise multiplier 4" in out
    assert "add-remove, δ = 1e-05" in out
    lower, upper = account(DP_SGD, adjacency="add-remove").epsilon_bounds(1e-5)
    row = next(line for line in out.splitlines() if line.startswith("│ pld")).split("│")
    assert row[2].strip() == shown_epsilon(upper)
    assert float(row[3]) == pytest.approx(upper - lower, rel=0.05)
    assert "not known" in out
    for words in (
        "at most 2.58 times as probable",
        "detects at most",
        "right in at most 55.0",
        "Except with probability δ",
    ):
        assert words in " ".join(out.split()), words


def test_json_holds_what_the_library_says(shell: Shell) -> None:
    found = shell.data("account", *FLAGS, *STATED, "--method", "pld,rdp")
    curve = account(DP_SGD, adjacency="add-remove")
    lower, upper = curve.epsilon_bounds(1e-5)
    assert found["event"] == json.loads(event_to_json(DP_SGD))
    assert (found["adjacency"], found["delta"], found["epsilon"]) == ("add-remove", 1e-5, upper)
    assert [row["method"] for row in found["methods"]] == ["pld", "rdp"]
    assert (found["methods"][0]["epsilon_lower"], found["methods"][0]["epsilon"]) == (lower, upper)
    assert max([*found["methods"][0]["directions"].values(), upper]) == upper
    assert found["risk"]["advantage"] == curve.advantage()
    assert found["risk"]["success_at_even_odds"] == curve.success(0.5)
    for point in found["risk"]["true_positive_rate"]:
        missed = curve.false_negative_rate(point["at_false_positive_rate"])
        assert point["at_most"] == pytest.approx(1.0 - missed, abs=1e-5)
    assert found["figure"] is None


@pytest.mark.parametrize(
    ("flags", "steps", "rate"),
    [
        (["--sampling-rate", "0.07", "--epochs", "7"], 100, 0.07),  # 7 / 0.07 is not 100 in floats
        (["--records", "1000", "--batch-size", "300", "--epochs", "1"], 4, 0.3),
        (["--records", "7", "--batch-size", "7", "--steps", "3"], 3, 1.0),
        (["--sampling-rate", "0", "--steps", "3"], 3, 0.0),
        (["--sampling-rate", "0.5", "--epochs", "0.1", "--records", "10"], 1, 0.5),
    ],
)
def test_flags_make_the_event(flags: list[str], steps: int, rate: float, shell: Shell) -> None:
    found = shell.data("account", "--noise", "2", *flags, *STATED, "--method", "moments")
    assert found["event"] == json.loads(event_to_json(Repeat(PoissonSampled(rate, Gaussian(2.0)), steps)))
    if rate == 0.0:
        assert found["epsilon"] == 0.0


def test_events_from_files_and_the_input_add_up(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Laplace(30.0), Repeat(Gaussian(50.0), 2)
    Path("a.json").write_text(event_to_json(first))
    monkeypatch.setattr(sys, "stdin", io.StringIO(event_to_json(second)))
    arguments = ["--noise", "9", "--sampling-rate", "1", "--steps", "1"]
    found = shell.data("account", "--event", "a.json", "--event", "-", *arguments, *STATED, "--method", "rdp")
    together = Compose((first, second, Repeat(PoissonSampled(1.0, Gaussian(9.0)), 1)))
    assert found["event"] == json.loads(event_to_json(together))
    assert found["epsilon"] == account(together, adjacency="add-remove", method="rdp").epsilon(1e-5)


def test_all_accountants_and_those_that_refuse_say_why(shell: Shell) -> None:
    found = shell.data("account", *FLAGS, *STATED, "--method", "all")
    rows = {row["method"]: row for row in found["methods"]}
    assert "only supports Gaussian noise" in rows["gaussian"]["refused"]
    assert found["epsilon"] == min(row["epsilon"] for row in found["methods"] if "epsilon" in row)
    out = shell.out("account", *FLAGS, *STATED, "--method", "all")
    assert "gaussian: method 'gaussian' only supports" in " ".join(out.split())


def test_a_delta_that_a_whole_record_would_satisfy_is_remarked(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--noise", "4", "--records", "100", "--batch-size", "10", "--steps", "9"]
    assert (
        run(["account", *arguments, "--delta", "0.01", "--adjacency", "zero-out", "--method", "moments"]) == 0
    )
    assert "note: delta 0.01 is not below 1/100" in capsys.readouterr().err


def test_no_finite_bound_is_said_in_words_and_is_null_in_json(shell: Shell) -> None:
    arguments = ["--noise", "1e-200", "--sampling-rate", "1", "--steps", "1", *STATED]
    assert shell.data("account", *arguments)["epsilon"] is None
    assert "No finite epsilon is proven at delta 1e-05" in shell("account", *arguments)


EXTREME = [
    ("30", "1", "99", "1e-300"),
    ("0.05", "0.5", "10", "1e-5"),
    ("1000000", "1e-9", "1", "0.999"),
]


@pytest.mark.parametrize(("noise", "rate", "steps", "delta"), EXTREME)
def test_extreme_values_give_a_bracket_or_a_refusal_that_says_why(
    noise: str, rate: str, steps: str, delta: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--noise", noise, "--sampling-rate", rate, "--steps", steps, "--delta", delta]
    code = run(["account", *arguments, "--adjacency", "add-remove", "--json"])
    out, err = capsys.readouterr()
    if code == 0:
        (row,) = json.loads(out)["methods"]
        assert 0.0 <= row["epsilon_lower"] <= row["epsilon"] < math.inf
    else:
        assert code == 1
        assert err.startswith("refused: ")
        assert "Use " in json.loads(out)["refused"]["message"]


# --- bad input --------------------------------------------------------------------------------------------

NOISE, RATE, STEPS = FLAGS[:2], FLAGS[2:4], FLAGS[4:]
BAD: list[tuple[list[str], int, str]] = [
    (FLAGS, 2, "--delta is missing. Delta is the failure probability"),
    ([*FLAGS, *STATED[:2]], 2, "--adjacency is missing: epsilon has no meaning without it"),
    ([*FLAGS, *STATED[:2], "--adjacency", "sideways"], 2, "'sideways' is not known"),
    ([*FLAGS, "--delta", "0", *STATED[2:]], 2, "--delta must be a real number in (0, 1); got 0.0"),
    ([*FLAGS, "--delta", "1", *STATED[2:]], 2, "got 1.0. Delta is the failure probability"),
    ([*FLAGS, "--delta", "nan", *STATED[2:]], 2, "got nan"),
    ([*FLAGS, "--delta", "small", *STATED[2:]], 2, "Invalid value for '--delta'"),
    (STATED, 2, "no mechanism is given. Describe DP-SGD with --noise"),
    ([*STEPS, *RATE, *STATED], 2, "--sampling-rate, --steps describe DP-SGD, but --noise is missing"),
    ([*NOISE, *STEPS, *STATED], 2, "or both --records and --batch-size"),
    ([*NOISE, *STEPS, "--batch-size", "5", *STATED], 2, "or both --records and --batch-size"),
    ([*FLAGS, "--batch-size", "5", *STATED], 2, "--sampling-rate and --batch-size exclude"),
    ([*NOISE, *RATE, *STATED], 2, "one of --steps and --epochs; got neither"),
    ([*FLAGS, "--epochs", "5", *STATED], 2, "one of --steps and --epochs; got both"),
    (["--noise", "0", *RATE, *STEPS, *STATED], 2, "got 0.0. 1 is a usual value"),
    (["--noise", "-1", *RATE, *STEPS, *STATED], 2, "--noise must be a real number in (0, inf)"),
    (["--noise", "inf", *RATE, *STEPS, *STATED], 2, "got inf"),
    ([*NOISE, "--sampling-rate", "1.5", *STEPS, *STATED], 2, "in [0, 1]; got 1.5. It is the probability"),
    ([*NOISE, "--sampling-rate", "-0.1", *STEPS, *STATED], 2, "in [0, 1]; got -0.1"),
    ([*NOISE, *RATE, "--steps", "0", *STATED], 2, "--steps must be an integer in [1, 999999999]; got 0."),
    ([*NOISE, *RATE, "--steps", "1000000000", *STATED], 2, "fewer than 1e9"),
    ([*NOISE, *RATE, "--steps", "1e9", *STATED], 2, "Invalid value for '--steps'"),
    ([*NOISE, *RATE, "--epochs", "1e9", *STATED], 2, "means 1e+11 steps; at most 999999999 are possible"),
    ([*NOISE, *RATE, "--epochs", "0", *STATED], 2, "--epochs must be a real number in (0, inf)"),
    ([*NOISE, "--sampling-rate", "0", "--epochs", "1", *STATED], 2, "Give --steps"),
    ([*NOISE, "--records", "0", "--batch-size", "1", *STEPS, *STATED], 2, "--records must be an integer"),
    ([*NOISE, "--records", "9", "--batch-size", "10", *STEPS, *STATED], 2, "got 10. Give a number from 1"),
    ([*FLAGS, *STATED, "--method", "pdl"], 2, "got 'pdl'"),
    ([*FLAGS, *STATED, "--method", "pld,pld"], 2, "each named once"),
    ([*FLAGS, *STATED, "--method", "gaussian"], 1, "not PoissonSampled(sampling_rate=0.01"),
    ([*FLAGS, *STATED, "--figure", "cost.jpg"], 2, "Use cost.png"),
    ([*FLAGS, *STATED, "--event", "nothing.json"], 2, "cannot read the event in nothing.json: No such file"),
    ([*FLAGS, *STATED, "--event", "."], 2, "cannot read the event in .: Is a directory"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "words"), BAD)
def test_bad_input(arguments: list[str], code: int, words: str, shell: Shell) -> None:
    assert words in shell.refused("account", *arguments, code=code)


def nested(event: str, depth: int) -> str:
    head = '{"event": "Repeat", "count": 2, "of": {"event": "Compose", "of": ['
    return head * depth + event + "]}}" * depth


FILES: list[tuple[bytes, int, str]] = [
    (b"", 2, "event.json: not an event in JSON"),
    (b"[1, 2]", 2, "must be an object with the key 'event'"),
    (b"\xff\xfe", 2, "it is not UTF-8 text"),
    (nested('{"event": "Cauchy", "scale": 1}', 5).encode(), 1, "unknown event 'Cauchy'"),
    (nested('{"event": "Gaussian", "noise_multiplier": -1}', 3).encode(), 2, "got -1"),
    (nested('{"event": "Gaussian", "noise_multiplier": NaN}', 3).encode(), 2, "got nan"),
    (nested('{"event": "Gaussian", "noise_multiplier": 1, "norm": 2}', 2).encode(), 2, "exactly the fields"),
    (nested('{"event": "Gaussian", "noise_multiplier": 1}', 20_000).encode(), 2, "has too many levels"),
]


@pytest.mark.parametrize(("text", "code", "words"), FILES, ids=range(len(FILES)))
def test_bad_events(text: bytes, code: int, words: str, shell: Shell) -> None:
    Path("event.json").write_bytes(text)
    err = shell.refused("account", "--event", "event.json", *STATED, code=code)
    assert words in err
    assert "event.json" in err


def test_an_event_that_nobody_prices_is_refused_by_name(shell: Shell) -> None:
    twice: Event = PoissonSampled(0.1, Repeat(Gaussian(1.0), 2))
    Path("event.json").write_text(nested(event_to_json(twice), 3))
    err = shell.refused("account", "--event", "event.json", *STATED, "--method", "all", code=1)
    assert "several results from one random sample" in err
    assert "Draw a new sample for each result" in err


# --- the figure -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cost.png", "deep/cost.svg"])
def test_figure(name: str, shell: Shell) -> None:
    arguments = ["--noise", "3", "--sampling-rate", "1", "--steps", "40", *STATED, "--method", "gaussian,rdp"]
    assert f"Figure: {name}" in shell.out("account", *arguments, "--figure", name)
    assert Path(name).read_bytes()[:4] in (b"\x89PNG", b"<?xm")
    assert [path.name for path in Path(name).parent.iterdir()] == [Path(name).name]


# --- the way it starts ------------------------------------------------------------------------------------

START = """
import json, sys
from tacit.cli import terminal
from tacit.cli.app import run
code = run(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]))
"""
DEAR = "torch matplotlib pandas sklearn sqlalchemy duckdb scipy.stats scipy.optimize scipy.integrate"


def test_it_starts_quickly_and_without_torch() -> None:
    """Under a second of an idle machine; counted in what is imported, which is where the time goes."""
    one = ["--noise", "4", "--sampling-rate", "1", "--steps", "10", *STATED]
    command = [sys.executable, "-c", START, "account", *one]
    done = subprocess.run(command, capture_output=True, text=True)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert (code, done.stderr) == (0, "")
    assert not set(DEAR.split()) & set(modules)
    assert len(modules) < 1200


def test_help_is_honest(capsys: pytest.CaptureFixture[str], shell: Shell) -> None:
    """Every option is there, the defaults are those that exist, and the example runs."""
    text = shell("account", "--help")
    mechanism = "--noise --sampling-rate --records --batch-size --steps --epochs --event"
    for option in f"{mechanism} --delta --adjacency --method --figure --json".split():
        assert option in text
    assert text.count("[default:") == 1
    example = text.partition("Example: tacit ")[2].partition(" Options:")[0].split()
    assert example[0] == "account"
    assert example[-2:] == ["--figure", "cost.png"]
    assert run([*example[:-2], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == pytest.approx(0.946867, abs=1e-4)


def test_a_terminal_sees_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[tuple[str, int, int]] = []
    real = terminal.Preparations.__call__

    def listening(bar: terminal.Preparations, title: str, done: int, total: int) -> None:
        titles.append((title, done, total))
        real(bar, title, done, total)

    monkeypatch.setattr(terminal.Preparations, "__call__", listening)
    arguments = ["--noise", "3", "--sampling-rate", "1", "--steps", "9", *STATED, "--figure", "a.png"]
    assert run(["account", *arguments]) == 0
    assert {title for title, _, _ in titles} == {"pricing", "drawing"}
    for title in ("pricing", "drawing"):
        done = [(d, t) for name, d, t in titles if name == title]
        assert done == sorted(done)
        assert done[-1][0] == done[-1][1]
