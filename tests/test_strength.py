"""An epsilon that promises nothing gets a warning, wherever it is chosen; a useful one gets none."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit import Plan, PrivateSession, train
from tacit.cli.app import run
from tacit.errors import MOST, PrivacyWarning, weakness
from tacit.integrations.sklearn import PrivateClassifier
from tacit.report.statement import make_statement

WORDS = "epsilon = 60 is too weak to guarantee anything"
RUN = """
[data]
name = "iris"
[model]
name = "logistic"
[privacy]
unit = "flower"
adjacency = "add-remove"
records = 100
epsilon = {epsilon}
delta = 1e-3
[training]
steps = 20
batch_size = 100
[optimizer]
learning_rate = 0.1
"""


def plan(epsilon: float) -> Plan:
    return Plan.calibrate(
        epsilon=epsilon, delta=1e-3, records=60, steps=20, clipping=1.0, adjacency="add-remove", unit="row"
    )


def test_the_words_say_what_an_attacker_may_find_and_what_is_usual() -> None:
    assert weakness(MOST) is None
    told = weakness(60.0)
    assert told is not None
    assert told.startswith(WORDS)
    assert "1 % false positives may reach 100 % true positives" in told
    assert "Usual values are 0.1 to 10" in told
    assert "docs/explanation/what-epsilon-means.md" in told
    page = Path(__file__).parents[1] / "docs" / "explanation" / "what-epsilon-means.md"
    assert f"| above {MOST:g} |" in page.read_text()


def test_the_words_are_true_of_a_plan_of_that_epsilon() -> None:
    with pytest.warns(PrivacyWarning):
        curve = plan(60.0).curve
    assert 1.0 - curve.false_negative_rate(0.01) > 0.999


def test_a_plan_warns_at_the_line_that_asks_for_it() -> None:
    with pytest.warns(PrivacyWarning, match=WORDS) as told:
        plan(60.0)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan(20.0)


def test_the_statement_says_it_beside_the_promise() -> None:
    texts = {}
    for epsilon in (3.0, 60.0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)
            the_plan = plan(epsilon)
        model = nn.Linear(2, 2)
        records = torch.randn(60, 2), torch.zeros(60, dtype=torch.int64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = PrivateSession(model, optimizer, records, the_plan, loss=nn.CrossEntropyLoss())
        train(session, progress=False)
        texts[epsilon] = " ".join(make_statement(session).to_text().split())
    assert "is too weak to guarantee" not in texts[3.0]
    assert texts[60.0].index("THIS PROMISE IS WEAK: epsilon = ") < texts[60.0].index("In plain words")


def test_an_estimator_says_it() -> None:
    model = PrivateClassifier(
        epsilon=60.0,
        delta=1e-3,
        unit="row",
        adjacency="replace-one",
        classes=[0, 1],
        bounds=(-1, 1),
        steps=2,
    )
    with pytest.warns(PrivacyWarning, match=WORDS):
        model.fit(np.zeros((60, 2)), np.arange(60) % 2)


PROMISE = ["--unit", "row", "--adjacency", "add-remove", "--records", "1000", "--delta", "1e-4"]


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("epsilon", ["8", "60"])
@pytest.mark.parametrize("verb", ["plan", "train", "init"])
def test_the_command_line_has_one_line_for_it(
    verb: str, epsilon: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(RUN.format(epsilon=epsilon))
    Path("table.csv").write_text("age,sick\n" + "30,yes\n40,no\n" * 10)
    arguments = {
        "plan": ["plan", *PROMISE, "--epsilon", epsilon, "--steps", "50", "--batch-size", "100"],
        "train": ["train", "run.toml", "--out", "out"],
        "init": ["init", "table.csv", *PROMISE, "--epsilon", epsilon, "--no-input"],
    }
    assert run(arguments[verb]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert [line[: len("note: ") + len(WORDS)] for line in notes] == (
        [f"note: {WORDS}"] if epsilon == "60" else []
    )
