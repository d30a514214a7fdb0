"""``[privacy] correlation``: from the file to the statement, noise in time is that of the plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_files import run_file

from tacit.cli.app import run as tacit
from tacit.correlation import BLT, Banded, BandedInverse, Tree
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.plan import Plan
from tacit.runs.config import parse_config
from tacit.runs.plan import make_plan
from tacit.sampling import CyclicPoissonSampling, FullBatch

pytestmark = pytest.mark.usefixtures("no_pictures")
TOML = run_file(
    data='name = "digits"',
    model='name = "logistic"; normalise = true',
    privacy='epsilon = 6.0; unit = "image"; records = 1437; {privacy}',
    optimizer="learning_rate = 0.1",
    training="batch_size = {batch}; steps = 20",
    run="rows = 1",
)
BANDED = 'sampling = "cyclic"\ncycle = 10\ncorrelation = "banded"\nbands = 4\nreport_loss = false\n'
BLT_ = BANDED.replace("banded", "blt").replace("bands", "buffers").replace("4", "3")


def planned(privacy: str, batch: str = "144") -> Plan:
    return make_plan(parse_config(TOML.format(privacy=privacy, batch=batch), "run.toml"))


def test_the_plan_is_that_of_the_words() -> None:
    whole = planned(BANDED)
    best = Banded.optimised(4, 20, participations=2, separation=10)
    assert (whole.correlation, whole.sampling) == (best, CyclicPoissonSampling(1.0, 10))
    sampled = planned(BANDED, "50")
    assert isinstance(sampled.sampling, CyclicPoissonSampling)
    assert sampled.sampling.sampling_rate == pytest.approx(500 / 1437)
    assert sampled.correlation == Banded.optimised(4, 20)
    assert sampled.noise_multiplier < whole.noise_multiplier, "a sample hides something"
    inverse = planned(BANDED.replace("banded", "inverse"))
    assert inverse.correlation == BandedInverse.optimised(4, 20, participations=2, separation=10)
    buffered = planned(BLT_)
    assert buffered.correlation == BLT.optimised(3, 20, participations=2, separation=10)
    tree = planned('sampling = "full"\ncorrelation = "tree"\nreport_loss = false\n', '"full"')
    assert (tree.correlation, tree.sampling) == (Tree(), FullBatch())


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("kind", ["banded", "blt"])
def test_a_run_ends_and_its_statement_says_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(TOML.format(privacy=BANDED if kind == "banded" else BLT_, batch="144"))
    assert tacit(["train", "run.toml", "--out", "run"]) == 0
    statement = json.loads(Path("run/statement.json").read_text())
    form = Banded if kind == "banded" else BLT
    best = form.optimised(4 if kind == "banded" else 3, 20, participations=2, separation=10)
    assert statement["mechanism"]["noise_in_time"] == repr(best)
    assert statement["event"]["event"] == "MatrixFactorization"
    assert tacit(["verify", "run/statement.json"]) == 0
    assert json.loads(Path("run/evaluation.json").read_text())["score"] > 0.5


@pytest.mark.parametrize(
    ("privacy", "batch", "kind", "words"),
    [
        ("cycle = 10\n", "144", InvalidInput, r"cycle.*go together"),
        ('sampling = "cyclic"\n', "144", InvalidInput, r"cycle.*go together"),
        (BANDED + "restart_every = 5\n", "144", InvalidInput, "restart_every"),
        (BANDED.replace("bands = 4\n", ""), "144", InvalidInput, r"bands.*go together"),
        (BANDED.replace("banded", "blt"), "144", InvalidInput, r"bands.*go together"),
        (BLT_.replace("buffers = 3\n", ""), "144", InvalidInput, r"buffers.*go together"),
        (BLT_.replace('"blt"', '"tree"'), "144", InvalidInput, r"buffers.*go together"),
        (BLT_.replace("buffers = 3", "buffers = 16"), "144", InvalidInput, r"buffers"),
        (BLT_, "50", PrivacyRefusal, "only with banded noise"),
        (BANDED.replace('"banded"', '"tree"'), "144", InvalidInput, r"bands.*go together"),
        (BANDED.replace("report_loss = false\n", ""), "144", InvalidInput, "report_loss = false"),
        (BANDED, '"full"', InvalidInput, "batch_size to at most 144, one part"),
        (BANDED, "300", InvalidInput, "sampling draws 143.7"),
        (BANDED.replace("bands = 4", "bands = 11"), "50", InvalidInput, "one entry per step of the cycle"),
        (BANDED.replace("banded", "inverse"), "50", PrivacyRefusal, "only with banded noise"),
        ('correlation = "tree"\nreport_loss = false\n', "144", PrivacyRefusal, "in which steps a record"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    privacy: str, batch: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        planned(privacy, batch)


@pytest.mark.parametrize(
    ("privacy", "batch", "words"),
    [
        ('sampling = "cyclic"\ncycle = 10\n', "144", 'sampling = "cyclic"'),
        ('sampling = "full"\ncorrelation = "tree"\nreport_loss = false\n', '"full"', 'correlation = "tree"'),
        (
            'sampling = "full"\ncorrelation = "blt"\nbuffers = 2\nreport_loss = false\n',
            '"full"',
            'correlation = "blt"',
        ),
        ('sampling = "dates"\n', "9", 'sampling = "dates"'),
    ],
)
def test_a_comparison_of_plans_knows_independent_noise_alone(
    privacy: str, batch: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(TOML.format(privacy=privacy, batch=batch))
    assert tacit(["plan", str(tmp_path / "run.toml")]) == 2
    assert words in capsys.readouterr().err
