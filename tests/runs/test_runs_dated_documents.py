"""Documents that arrive day by day: messages of users, for a language model, from JSON Lines and Parquet."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from byte_model import write_model
from run_files import run_file

from tacit.cli.app import run as tacit
from tacit.datasets.text import Fields, read_documents
from tacit.errors import InvalidInput
from tacit.runs import read_config
from tacit.runs.kinds import load_data

pytestmark = pytest.mark.usefixtures("no_pictures")
CONFIG = run_file(
    data='{source}; text = "body"; sequence_length = 8; documents = "first"; '
    'test_jsonl = "test.jsonl"; user = "who"; rows_per_user = 1; date = "sent"; '
    'first_day = "2026-03-01"; until = "2026-03-05"',
    model='huggingface = "base"',
    privacy='epsilon = 8.0; unit = "user"; records = 30; sampling = "dates"; participations = 2; '
    'separation = 3; correlation = "banded"; bands = 2; report_loss = false',
    optimizer="learning_rate = 0.1",
    training='batch_size = "auto"; steps = 8',
)


def messages(first: int, stop: int, seed: int = 0) -> list[dict[str, Any]]:
    """Each user writes every fourth day."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(first, stop):
        day = str(datetime.date(2026, 3, 1) + datetime.timedelta(days=number))
        for who in range(number % 4, 24, 4):
            body = "".join(chr(97 + int(c)) for c in rng.integers(26, size=6))
            found.append({"body": body, "who": f"u{who}", "sent": f"{day}T09:30:00"})
    return found


def write(path: str, lines: list[dict[str, Any]]) -> None:
    Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "base")
    write("first.jsonl", messages(0, 4))
    write("second.jsonl", messages(4, 8))
    write("test.jsonl", [{"body": "hello you", "who": "t1", "sent": "2026-01-01"}])
    Path("run.toml").write_text(CONFIG.format(source='jsonl = "first.jsonl"'))
    return tmp_path


def test_a_language_model_goes_on_with_the_next_days(here: Path) -> None:
    assert tacit(["train", "run.toml", "--out", "run"]) == 0
    text = Path("run.toml").read_text().replace("first.jsonl", "second.jsonl")
    assert 'until = "2026-03-05"' in text
    Path("run.toml").write_text(text.replace('until = "2026-03-05"', 'until = "2026-03-09"'))
    assert tacit(["train", "run.toml", "--out", "run", "--resume"]) == 0
    statement = json.loads(Path("run/statement.json").read_text())
    assert statement["mechanism"]["steps"] == 8
    assert "2 times, 3 steps apart" in statement["mechanism"]["sampler"]
    assert tacit(["verify", "run/statement.json"]) == 0


def test_who_writes_too_often_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("first.jsonl", [*messages(0, 4), {"body": "and again", "who": "u1", "sent": "2026-03-03"}])
    assert tacit(["train", "run.toml", "--out", "run"]) == 1
    assert "at least 3 steps apart" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["text", "date", "time"])
def test_a_corpus_has_dates_of_all_kinds(here: Path, kind: str) -> None:
    lines = messages(0, 4)
    days = [line["sent"] for line in lines]
    sent: Any = {
        "text": days,
        "date": pa.array([datetime.date.fromisoformat(day[:10]) for day in days]),
        "time": pa.array([datetime.datetime.fromisoformat(day) for day in days]),
    }[kind]
    columns = {"body": [line["body"] for line in lines], "who": [line["who"] for line in lines], "sent": sent}
    pq.write_table(pa.table(columns), "corpus.parquet")
    Path("parquet.toml").write_text(CONFIG.format(source='parquet = "corpus.parquet"'))
    data, other = (load_data(read_config(name)) for name in ("parquet.toml", "run.toml"))
    assert data.dates is not None
    assert [str(date)[:10] for date in data.dates] == [str(date)[:10] for date in other.dates or ()]
    assert tacit(["train", "parquet.toml", "--out", "run"]) == 0


def test_a_document_without_a_date_is_named_by_its_line(here: Path) -> None:
    for line, words in (({"body": "hi"}, "missing"), ({"body": "hi", "sent": 3}, "no text")):
        write("some.jsonl", [line])
        with pytest.raises(InvalidInput, match=f'line 1 of some.jsonl: the field "sent" is {words}'):
            [*read_documents(Path("some.jsonl"), Fields("body", date="sent"))]
    pq.write_table(pa.table({"body": ["hi"], "sent": pa.array([None], pa.date32())}), "some.parquet")
    with pytest.raises(InvalidInput, match='"sent" is empty'):
        [*read_documents(Path("some.parquet"), Fields("body", date="sent"))]
    with pytest.raises(InvalidInput, match='no column "when"'):
        [*read_documents(Path("some.parquet"), Fields("body", date="when"))]


def test_batches_are_not_drawn_beforehand_from_a_stream(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.Table.from_pylist(messages(0, 4)), "corpus.parquet")
    text = (
        CONFIG.format(source='parquet = "corpus.parquet"')
        .replace("rows_per_user = 1\n", "")
        .replace('user = "who"\n', "")
    )
    text = text.replace("participations = 2\nseparation = 3\n", "")
    Path("run.toml").write_text(text)
    assert tacit(["batches", "run.toml", "--out", "batches"]) == 2
    assert "does not support [data] date" in capsys.readouterr().err
