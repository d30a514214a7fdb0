"""A mistake in a configuration is found before torch is imported, and the error names the key to change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from run_files import digits_run

from tacit.datasets import text as text_files
from tacit.datasets.tables import NAMES
from tacit.errors import TacitError
from tacit.models import networks
from tacit.runs.config import parse_config
from tacit.runs.plan import make_plan
from tacit.runs.sections import DATA_SETS, NAMES_ALPHABET, NAMES_LONGEST, NETWORKS

BASE = digits_run("batch_size = 64; steps = 40", optimizer="learning_rate = 0.5")

PLANS = [
    ("epsilon = 3.0", "epsilon = -1", "[privacy] epsilon must be"),
    ("epsilon = 3.0", "epsilon = 1e9", "[privacy] epsilon 1e+09 at delta"),
    ("epsilon = 3.0", "noise_multiplier = 0.0", "[privacy] noise_multiplier must be"),
    ("epsilon = 3.0", "noise_multiplier = 1e-200", "[privacy] noise_multiplier 1e-200 is too small"),
    ("epsilon = 3.0", "epsilon = 0.1\nnoise_multiplier = 1.0", "[privacy] epsilon: the plan costs epsilon ="),
    ("delta = 1e-4", "delta = 2", "[privacy] delta must be a real number in (0, 1); got 2"),
    ("delta = 1e-4", "delta = 0.1", "[privacy] delta = 0.1 is not below"),
    ("delta = 1e-4", "delta = 0.1", "or set [privacy] allow_large_delta = true."),
    ('unit = "image"', 'unit = ""', "[privacy] unit must name"),
    ("records = 1437", "records = 0", "[privacy] records must be"),
    ("records = 1437", "records = 10", "[training] batch_size 64 is larger"),
    ("records = 1437", "records = 1437\nclipping_norm = -2.0", "[privacy] clipping_norm must be"),
    ("records = 1437", 'records = 1437\nclipping = "adaptive"\nquantile = 2.0', "[privacy] quantile must be"),
    (
        "records = 1437",
        'records = 1437\nclipping = "adaptive"\ncount_noise = 0.01',
        "Raise [privacy] count_noise above",
    ),
    ("records = 1437", "records = 1437\nloss_bound = 0.0", "[privacy] loss_bound must be"),
    ("records = 1437", "records = 1437\ntest_noise = -1.0", "[privacy] test_noise must be"),
    ("records = 1437", 'records = 1437\nsampling = "shuffled"', "[privacy] sampling: shuffled batches"),
    ('"add-remove"', '"replace-one"\ntest_noise = 9.0', "[privacy] test_noise has no guarantee under"),
    ('"add-remove"', '"replace-one"\ntest_noise = 9.0', '[privacy] adjacency = "add-remove"'),
    ("batch_size = 64", "batch_size = 0", "[training] batch_size must be"),
    ("steps = 40", "steps = 0", "[training] steps must be"),
    ("steps = 40", "epochs = -1.0", "[training] epochs must be"),
    ("steps = 40", "", "[training] needs exactly one of epochs and steps"),
    ("steps = 40", "steps = 40\nviews = 0", "[training] views = 0"),
]


@pytest.mark.parametrize(("old", "new", "words"), PLANS)
def test_errors_of_the_plan_name_the_key(old: str, new: str, words: str) -> None:
    assert BASE.count(old) == 1
    with pytest.raises(TacitError) as caught:
        make_plan(parse_config(BASE.replace(old, new), "run.toml"))
    assert words in str(caught.value)


OTHERS = [
    ('name = "digits"', 'name = "digitz"', "[data] name must be one of digits"),
    ('name = "digits"', 'table = "none.csv"', "[data] table: there is no table at none.csv"),
    ('name = "digits"', 'images = "none"', "[data] images: there is no folder at none"),
    ('name = "digits"', 'text = "none.txt"', "[data] text: there is no text at none.txt"),
    ('name = "digits"', 'name = "digits"\ntext = "a.txt"', "[data] needs exactly one of"),
    ('name = "logistic"', 'name = "logistics"', "[model] name must be one of linear"),
    ('name = "logistic"', 'name = "logistic"\nhidden = [3]', "has no option 'hidden'; it has normalise"),
    ('name = "logistic"', 'factory = "no_such_nets:make"', "No module named 'no_such_nets'"),
    ("learning_rate = 0.5", "learning_rate = 0.5\nmomentum = 0.9\nname = 'adam'", "adam has no momentum"),
    ("steps = 40", "steps = 40\nema_decay = 1.0", "[training] ema_decay = 1.0: input should be less than 1"),
    ("steps = 40", "steps = 40\n[ledger]\nchunk = 3", "[ledger] chunk needs url"),
    ("steps = 40", "stepz = 40", "did you mean 'steps'?"),
    ("steps = 40", "steps = 40\n[canaries]\nlength = 3", "[canaries] count is missing"),
    ("steps = 40", "steps = 40\n[canaries]\ncount = [1, 1, 1]", "[canaries] need lines of text"),
    ("steps = 40", "steps = ", "is not valid TOML"),
]

TABLE = """table = "rows.csv"
target = "y"
[columns.x]
kind = "number"
lower = 0
upper = 1
[columns.y]
kind = "category"
values = ["a", "b"]
"""
TABLES = [
    ("upper = 1", "uper = 1", "uper"),
    ("upper = 1\n", "", "[columns.x]"),
    ('kind = "number"', 'kind = "numbers"', "[columns.x]"),
    ('values = ["a", "b"]', "", "values"),
    ('target = "y"', 'target = "z"', "target, time and event must be declared columns (x, y); got 'z'"),
    ("[columns.x]", '[table]\nseparatr = ";"\n[columns.x]', "separatr"),
    ("[columns.x]", '[table]\nseparator = ";;"\n[columns.x]', "separator"),
]

CALLS = """
import json, sys
from tacit.cli.app import run
for number in range(int(sys.argv[1])):
    code = run(["train", f"{number}.toml"])
    print(json.dumps([code, "torch" in sys.modules]))
"""


def test_mistakes_are_found_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("x,y\n")
    assert all(TABLE.count(old) == 1 for old, _, _ in TABLES)
    cases = [*(case for case in PLANS if "1e9" not in case[1]), *OTHERS]  # which takes a second
    cases += [('name = "digits"', TABLE.replace(old, new), words) for old, new, words in TABLES]
    assert all(BASE.count(old) == 1 for old, _, _ in cases)
    texts = [(BASE.replace(old, new), words) for old, new, words in cases]
    other_loss = BASE.replace("steps = 40", 'steps = 40\nloss = "regression"')
    for source in (TABLE, 'name = "names"'):
        words = '[training] loss = "regression" does not fit targets'
        texts.append((other_loss.replace('name = "digits"', source), words))
    for number, (text, _) in enumerate(texts):
        (tmp_path / f"{number}.toml").write_text(text)
    command = [sys.executable, "-c", CALLS, str(len(texts))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if not line.startswith("Reading ")]
    for (text, words), line, complaint in zip(texts, done.stdout.splitlines(), said, strict=True):
        code, with_torch = json.loads(line)
        assert code in (1, 2), text
        assert not with_torch, f"found after torch was imported: {complaint}"
        assert words in complaint


def test_the_catalogue_names_what_there_is() -> None:
    assert (NAMES_ALPHABET, NAMES_LONGEST) == (text_files.NAMES_ALPHABET, text_files.NAMES_LONGEST)
    assert NAMES == DATA_SETS
    assert {name: network.options for name, network in networks._NETWORKS.items()} == NETWORKS


@pytest.mark.parametrize(("records", "expected"), [(200, 200), (256, 256), (1437, 256), (20_000, 1000)])
def test_an_automatic_batch_size_follows_the_public_number_of_records(records: int, expected: int) -> None:
    text = BASE.replace("records = 1437", f"records = {records}").replace("delta = 1e-4", "delta = 1e-5")
    plan = make_plan(parse_config(text.replace("batch_size = 64", 'batch_size = "auto"'), "run.toml"))
    assert plan.expected_batch_size == expected
