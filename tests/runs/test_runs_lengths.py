"""A language model of a run file with several lengths trains as with one."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_runs_batches
import torch
from test_runs_language import LORA, configured
from torch import Tensor

from tacit.errors import InvalidInput
from tacit.report.verification import read_statement
from tacit.runs import prepare, read_config
from tacit.runs.build import make_session
from tacit.testing import seeded_generator
from tacit.training.streamed import StreamedBatches

pytestmark = pytest.mark.usefixtures("no_pictures")
SEVERAL = {"sequence_length = 8": "lengths = [3, 6, 8]", '"adam"': '"sgd"'}
ONE = {'"adam"': '"sgd"'}
USERS = {
    'documents = "split"': 'documents = "split"\nuser = "who"\nrows_per_user = 2',
    '"sequence"': '"user"',
    "records = 90": "records = 40",
}
KINDS = {
    "all weights": {},
    "adapters": LORA,
    "users": USERS,
    "canaries": {
        "[training]": '[canaries]\ncount = [8]\ncopies = [2]\nprefix = "p {name}"\nlength = 1\n[training]'
    },
    "shares": {"[3, 6, 8]": "[3, 6, 8]\nshares = [0.9, 0.05, 0.05]"},
}


def weights(path: Path, batches: StreamedBatches | None = None) -> Tensor:
    _, session = make_session(read_config(path), generator=seeded_generator(4), batches=batches)
    session.model.eval()  # no dropout, whose draws depend on the physical batches
    for ticket in session.batches():
        session.step(ticket)
    assert session.route == "fast"
    return torch.cat([p.detach().flatten() for p in session.model.parameters() if p.requires_grad])


@pytest.mark.parametrize("kind", KINDS)
def test_several_lengths_train_the_weights_of_one(kind: str, tmp_path: Path) -> None:
    change = KINDS[kind]
    several = weights(configured(tmp_path, {**SEVERAL, **change}))
    one = weights(configured(tmp_path, {**ONE, **({} if kind == "shares" else change)}))
    torch.testing.assert_close(several, one, rtol=1e-4, atol=1e-5)


def test_batches_drawn_beforehand_train_the_weights_of_one_length(tmp_path: Path) -> None:
    found = []
    for name, change in (("several", {"_length = 6": "_length = 6\nlengths = [3, 6]"}), ("one", {})):
        path = test_runs_batches.configured(tmp_path / name, {'"adam"': '"sgd"', **change})
        found.append(weights(path, test_runs_batches.written(path, tmp_path / name / "out")))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_the_statement_names_the_lengths(tmp_path: Path) -> None:
    prepare(configured(tmp_path, SEVERAL), out=tmp_path / "out").start()
    (line,) = [
        note for note in read_statement(tmp_path / "out" / "statement.json")["notes"] if "padded" in note
    ]
    assert line.startswith("records are padded to the smallest of 3, 6, 8 tokens")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"_length = 8": "_length = 8\nlengths = [8, 3]"},
            r"\[data\] lengths must be lengths in ascending order",
        ),
        (
            {"_length = 8": "_length = 8\nlengths = [3, 6]"},
            "sequence_length = 8 contradicts lengths, whose last value is 6",
        ),
        (
            {"_length = 8": "_length = 8\nlengths = [3, 8]\nshares = [1.0]"},
            r"\[data\] shares must be 2 numbers",
        ),
        ({"_length = 8": "_length = 8\nlengths = [3, 8]\nshares = [0.5, 0.6]"}, "add up to 1"),
        (
            {"_length = 8": "_length = 8\nlengths = [3, 8]\nshares = [0.0, 1.0]"},
            r"\[data\] shares must be a real number",
        ),
        ({"_length = 8": "_length = 8\nshares = [1.0]"}, r"shares need \[data\] lengths"),
        ({"sequence_length = 8": "lengths = [3, 13]"}, "exceeds the model's 12"),
        (
            {
                "jsonl =": 'name = "digits" #',
                'text = "body"\n': "",
                "_length = 8": "_length = 8\nlengths = [3, 8]",
            },
            r"\[data\] lengths apply only to documents",
        ),
    ],
)
def test_wrong_lengths_are_refused(change: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=words):
        prepare(configured(tmp_path, change), out=tmp_path / "run")
