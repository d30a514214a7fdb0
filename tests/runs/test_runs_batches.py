"""Batches that are written beforehand: the run's own sample, to the last bit, and one run for each folder."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import stat
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from byte_model import write_model
from run_files import changed, run_file

from tacit.cli.app import run as command
from tacit.datasets.text import CorpusPart, Fields, read_part
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import Event
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.runs import batches as batches_
from tacit.runs import prepare, read_config
from tacit.runs.batches import Counts, Engine, Rule, cut_part, drawn_of_part, write_batches, write_shards
from tacit.runs.kinds import load_data
from tacit.runs.plan import make_plan
from tacit.runs.sections import LedgerSection
from tacit.sampling import PoissonSampling, TruncatedPoissonSampling
from tacit.testing import seeded_generator
from tacit.training import PrivateSession
from tacit.training.audit_slots import AuditSlots
from tacit.training.streamed import Shard, StreamedBatches

pytestmark = pytest.mark.usefixtures("no_pictures")
CONFIG = run_file(
    data='parquet = "{folder}/corpus"; text = "body"; sequence_length = 6; documents = "split"; '
    "test_fraction = 0.3",
    model='huggingface = "{folder}/base"',
    privacy='epsilon = 1.0; unit = "sequence"; records = 120; clipping_norm = 0.5; loss_bound = 8.0; '
    'sampling = "poisson"',
    optimizer='name = "adam"; learning_rate = 0.01',
    training="batch_size = 12; steps = 7; physical_batch_size = 5",
)


TRUNCATED = {'"poisson"': '"truncated-poisson"', "[training]": "[training]\nlargest_batch = 13"}
FULL = {'"poisson"': '"full"', "batch_size = 12": 'batch_size = "full"'}
EPOCHS = {'"poisson"': '"epochs"', "batch_size = 12": "batch_size = 17"}  # an epoch of 7 steps
SAMPLINGS: dict[str, dict[str, str]] = {
    "poisson": {},
    "truncated": TRUNCATED,
    "full": FULL,
    "epochs": EPOCHS,
}


@pytest.fixture(autouse=True)
def quick_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Price samples that are often cut as those that never are: exact prices take a quarter of a minute."""

    def event(self: TruncatedPoissonSampling, *arguments: Any) -> Event:
        return PoissonSampling(self.sampling_rate).event(*arguments)

    monkeypatch.setattr(TruncatedPoissonSampling, "event", event)


class Here:
    """Spark's work, done part by part in this process."""

    def cut(self, rule: Rule, parts: Sequence[CorpusPart], work: Path) -> list[Counts]:
        return [cut_part(rule, part, number, work) for number, part in enumerate(parts)]

    def write(
        self, firsts: Sequence[int], length: int, each: int, steps: int, work: Path, out: Path
    ) -> list[Shard]:
        own = [batch for n, first in enumerate(firsts) for batch in drawn_of_part(n, first, work, length)]
        rows = pa.Table.from_batches(own).sort_by([("step", "ascending"), ("position", "ascending")])
        return [*write_shards(rows.combine_chunks().to_batches(max_chunksize=7), each, steps, out)]


def texts(count: int = 60) -> list[str]:
    rng = np.random.default_rng(0)
    return ["".join(chr(97 + int(c)) for c in rng.integers(26, size=1 + i % 12)) for i in range(count)]


def configured(folder: Path, changes: dict[str, str] | None = None, *, group: int = 9) -> Path:
    """A corpus in three files, of which one is in a folder of its own and one is empty."""
    if not (folder / "base").exists():
        write_model(folder / "base", weights=True)
    bodies = texts()
    (folder / "corpus" / "more").mkdir(parents=True, exist_ok=True)
    for name, a, b in (("a", 0, 25), ("b", 25, 25), ("more/c", 25, 60)):
        body, numbers = pa.array(bodies[a:b], pa.string()), pa.array(range(a, b), pa.int64())
        table = pa.table({"other": numbers, "body": body, "who": numbers})
        pq.write_table(table, folder / "corpus" / f"{name}.parquet", row_group_size=group)
    path = folder / "run.toml"
    path.write_text(changed(CONFIG.format(folder=folder), changes or {}))
    return path


def written(path: Path, out: Path, *, seed: int = 4, engine: Callable[[], Engine] = Here) -> StreamedBatches:
    write_batches(read_config(path), out, engine, progress=lambda *_: None, generator=seeded_generator(seed))
    return StreamedBatches(out)


# --- the same bits -----------------------------------------------------------------------------------------


def test_a_corpus_in_parquet_has_the_records_of_the_same_lines(tmp_path: Path) -> None:
    path = configured(tmp_path)
    lines = "".join(json.dumps({"body": text}) + "\n" for text in texts())
    (tmp_path / "lines.jsonl").write_text(lines)
    found = load_data(read_config(path))
    path.write_text(path.read_text().replace('parquet = "', 'jsonl = "').replace("/corpus", "/lines.jsonl"))
    wanted = load_data(read_config(path))
    for part in ("train", "test"):
        for one, other in zip(getattr(found, part), getattr(wanted, part), strict=True):
            assert torch.equal(one, other)


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("group", [1, 4, 100])
@pytest.mark.parametrize("shard_bytes", [1, 2000, 1 << 26])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_batches_are_those_that_the_run_would_draw(
    sampling: str, shard_bytes: int, group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_, "_SHARD_BYTES", shard_bytes)
    path = configured(tmp_path, SAMPLINGS[sampling], group=group)
    batches = written(path, tmp_path / "out")
    data, plan = load_data(read_config(path)), make_plan(read_config(path))
    assert len(batches) == len(data.train.inputs)
    assert len(batches.manifest.shards) == {1: 7, 1 << 26: 1}.get(shard_bytes, len(batches.manifest.shards))
    rows = 0
    for step in (*range(plan.steps), 2):  # and back
        indices = plan.sampling.indices(seeded_generator(4), step, len(batches))
        batches.begin(step)
        for some in (indices, indices[1::2]):  # all, and what one of two ranks takes
            if len(some):
                for found, wanted in zip(batches.take(some, seed=0), data.train, strict=True):
                    assert torch.equal(found, wanted[torch.from_numpy(some)])
        rows += len(indices)
    assert rows > 40
    test = batches.test_records()
    assert test is not None
    assert all(torch.equal(one, other) for one, other in zip(test, data.test, strict=True))


def test_steps_in_several_turns_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = configured(tmp_path)
    whole = written(path, tmp_path / "whole")
    monkeypatch.setattr("tacit.runs.batches._PAIRS", 10)
    monkeypatch.setattr("tacit.runs.batches._AT_ONCE", 3)
    turns = written(path, tmp_path / "turns")
    assert whole.fingerprint(b"k") == turns.fingerprint(b"k")
    assert whole.fingerprint(b"k") != written(path, tmp_path / "other", seed=5).fingerprint(b"k")


def test_a_step_without_records_has_an_empty_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_, "_SHARD_BYTES", 1)

    path = configured(tmp_path, {"size = 12": "size = 1", "epsilon = 1.0": "noise_multiplier = 2.0"})
    batches = written(path, tmp_path / "out")
    plan = make_plan(read_config(path))
    sizes = [len(plan.sampling.indices(seeded_generator(4), step, len(batches))) for step in range(7)]
    assert 0 in sizes
    assert len(batches.manifest.shards) == 7
    session = prepare(path, out=tmp_path / "run", batches=tmp_path / "out").session
    for ticket in session.batches():
        session.step(ticket)
    assert session.steps_done == 7


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_run_on_batches_is_bit_for_bit_the_run_on_the_corpus(sampling: str, tmp_path: Path) -> None:
    path = configured(tmp_path, SAMPLINGS[sampling])
    written(path, tmp_path / "out")
    assert prepare(path, out=tmp_path / "corpus-run", generator=seeded_generator(4)).start() is not None
    stopped = prepare(path, out=tmp_path / "run", batches=tmp_path / "out")
    assert stopped.start(should_stop=lambda: stopped.session.steps_done == 3) is None
    resumed = prepare(path, out=tmp_path / "run", resume=True, batches=tmp_path / "out")
    assert resumed.start() is not None
    name = "model.safetensors"
    assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "corpus-run" / name).read_bytes()
    one, other = (json.loads((tmp_path / x / "evaluation.json").read_text()) for x in ("run", "corpus-run"))
    assert one["loss"] == other["loss"]


def _token_loss(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = model(inputs).transpose(1, 2)
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none", ignore_index=-100).sum(1)


# --- one run for each folder -------------------------------------------------------------------------------


def test_one_run_uses_a_folder_and_can_be_resumed(tmp_path: Path) -> None:
    path, out = configured(tmp_path), tmp_path / "out"
    written(path, out)
    first = prepare(path, out=tmp_path / "first", batches=out)
    assert first.start(should_stop=lambda: first.session.steps_done == 1) is None
    again = path.read_text().replace("learning_rate = 0.01", "learning_rate = 0.02")
    path.write_text(again)
    second = prepare(path, out=tmp_path / "second", batches=out)
    with pytest.raises(PrivacyRefusal, match="belong to another run"):
        second.start()
    assert second.session.steps_done == 0
    path.write_text(again.replace("learning_rate = 0.02", "learning_rate = 0.01"))
    assert prepare(path, out=tmp_path / "first", resume=True, batches=out).start() is not None


def test_a_run_that_was_saved_before_its_first_step_is_refused_once_another_has_begun(tmp_path: Path) -> None:
    path, out, state = configured(tmp_path), tmp_path / "out", tmp_path / "state.pt"
    written(path, out)
    prepare(path, out=tmp_path / "first", batches=out).session.save(state)
    second = prepare(path, out=tmp_path / "second", batches=out)
    assert second.start(should_stop=lambda: second.session.steps_done == 1) is None
    first = prepare(path, out=tmp_path / "first", batches=out).session
    first.load(state)
    before = [p.detach().clone() for p in first.model.parameters()]
    with pytest.raises(PrivacyRefusal, match="belong to another run"):
        first.step(next(first.batches()))
    assert all(torch.equal(*pair) for pair in zip(before, first.model.parameters(), strict=True))
    assert prepare(path, out=tmp_path / "second", resume=True, batches=out).start() is not None


def test_a_run_that_released_nothing_leaves_the_folder_to_another(tmp_path: Path) -> None:
    path, out = configured(tmp_path), tmp_path / "out"
    batches, plan = written(path, out), make_plan(read_config(path))
    model = torch.nn.Sequential(torch.nn.Embedding(257, 4), torch.nn.Linear(4, 256))  # too few for the end
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = PrivateSession(model, optimizer, batches, plan, loss=_token_loss)
    with pytest.raises(InvalidInput):
        session.step(next(session.batches()))
    assert prepare(path, out=tmp_path / "run", batches=out).start() is not None


def test_a_used_folder_is_refused_before_the_ledger_is_charged(tmp_path: Path) -> None:
    tests = f'test_parquet = "{tmp_path}/corpus"'
    path, out = (configured(tmp_path, {"test_fraction = 0.3": tests}), tmp_path / "out")
    written(path, out)
    assert prepare(path, out=tmp_path / "first", batches=out).start() is not None
    url = str(tmp_path / "budget.db")
    with closing(Ledger.create(url)) as ledger:
        budget = RenyiBudget(epsilon=3.0, delta=1e-4)
        ledger.open_dataset("letters", Policy(unit="sequence", adjacency="add-remove", budget=budget))
    charged = LedgerSection(url=url, dataset="letters", one_record_per_unit=True)
    second = prepare(path, out=tmp_path / "second", batches=out, ledger=charged)
    with pytest.raises(PrivacyRefusal, match="belong to another run"):
        second.start()
    with closing(Ledger.open(url)) as ledger:
        assert ledger.status("letters").spent_epsilon == 0.0


def test_the_folder_is_closed_to_others_and_the_key_in_one_file(tmp_path: Path) -> None:
    path, out = configured(tmp_path), tmp_path / "out"
    batches = written(path, out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert stat.S_IMODE((out / "manifest.json").stat().st_mode) == 0o600
    key = batches.manifest.key
    for file in out.iterdir():
        found = file.read_bytes()
        assert (key in found or key.hex().encode() in found) == (file.name == "manifest.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"batch_size = 12": "batch_size = 13"},
            r"were drawn by PoissonSampling\(sampling_rate=0.1\)",
        ),
        ({"steps = 7": "steps = 8"}, "has 8 steps, but the batches cover only 7"),
        (
            {"sequence_length = 6": "sequence_length = 5"},
            r"Batches: .*length=6.*Run file: Cutting\(length=5",
        ),
    ],
)
def test_a_run_of_another_configuration_is_refused(
    change: dict[str, str], words: str, tmp_path: Path
) -> None:
    path, out = configured(tmp_path), tmp_path / "out"
    written(path, out)
    path.write_text(changed(path.read_text(), change))
    with pytest.raises(PrivacyRefusal, match=words):
        prepare(path, out=tmp_path / "run", batches=out)


def test_another_key_and_other_records_are_refused(tmp_path: Path) -> None:
    path, out = configured(tmp_path), tmp_path / "out"
    batches, plan = written(path, out), make_plan(read_config(path))
    model = torch.nn.Sequential(torch.nn.Embedding(257, 4), torch.nn.Linear(4, 257))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(PrivacyRefusal, match=r"drawn with another key .* than this run's"):
        PrivateSession(model, optimizer, batches, plan, loss=_token_loss, generator=seeded_generator(5))
    with pytest.raises(InvalidInput, match="audit slots cannot be added to batches"):
        PrivateSession(model, optimizer, batches, plan, loss=_token_loss, audit=AuditSlots(10))
    with pytest.raises(InvalidInput, match=r"prefetches .* Remove workers"):
        PrivateSession(model, optimizer, batches, plan, loss=_token_loss, workers=1)
    batches.begin(3)
    with pytest.raises(PrivacyRefusal, match="step 3 lacks some of its records"):
        batches.take(np.arange(len(batches)), seed=0)
    with pytest.raises(InvalidInput, match="no batch for step 7"):
        batches.begin(7)
    stopped = prepare(path, out=tmp_path / "run", batches=out)
    assert stopped.start(should_stop=lambda: stopped.session.steps_done == 1) is None
    written(path, tmp_path / "other", seed=5)
    for other, words in ((None, "Different: the records"), (tmp_path / "other", "drawn with another key")):
        with pytest.raises(PrivacyRefusal, match=words):
            prepare(path, out=tmp_path / "run", resume=True, batches=other)


def test_a_changed_shard_and_a_folder_without_a_manifest_are_refused(tmp_path: Path) -> None:
    path, out = configured(tmp_path), tmp_path / "out"
    batches = written(path, out)
    shard = out / batches.manifest.shards[0].name
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + b"x")
    with pytest.raises(InvalidInput, match="has changed since it was written"):
        batches.begin(0)
    shard.unlink()
    with pytest.raises(InvalidInput, match="cannot be read"):
        batches.begin(0)
    manifest = out / "manifest.json"
    data = json.loads(manifest.read_text())
    for text in ("{", "{}", "[]", json.dumps({**data, "more": 1})):
        manifest.write_text(text)
        with pytest.raises(InvalidInput, match="cannot be read"):
            StreamedBatches(out)
    manifest.write_text(json.dumps({**data, "format": 2}))
    with pytest.raises(InvalidInput, match="another version"):
        StreamedBatches(out)
    manifest.unlink()
    with pytest.raises(InvalidInput, match="no finished batches"):
        StreamedBatches(out)


# --- what is refused before and while batches are written --------------------------------------------------


SLOTS = {"[training]": "[audit]\nslots = 10\n[training]"}
CANARIES = {"[training]": '[canaries]\ncount = [2]\ncopies = [1]\nprefix = "a"\nlength = 2\n[training]'}
WITHOUT_CORPUS = {
    "parquet =": 'name = "digits" #',
    'text = "body"\nsequence_length = 6\ndocuments = "split"\ntest_fraction = 0.3\n': "",
    "huggingface =": 'name = "mlp" #',
}
BY_USER = {'"split"': '"first"\nuser = "who"', '"sequence"': '"user"'}
REFUSED: dict[str, tuple[dict[str, str], type[Exception], str]] = {
    "slots": (SLOTS, InvalidInput, r"cannot add the canaries of \[audit\] slots"),
    "canaries": (CANARIES, InvalidInput, r"cannot add the canaries of \[canaries\]"),
    "no corpus": (WITHOUT_CORPUS, InvalidInput, r"needs a Parquet corpus\. Set \[data\] parquet"),
    "too many records": (
        {"records = 120": "records = 30"} | TRUNCATED,
        PrivacyRefusal,
        "more records than the plan's public number, 30",
    ),
    "exact": (
        {'"add-remove"': '"zero-out"'} | FULL,
        InvalidInput,
        r"the plan has 120 records and the data \d+",
    ),
    "no file": ({"/corpus": "/base"}, InvalidInput, "no .parquet file"),
    "no folder": ({"/corpus": "/nothing"}, InvalidInput, "no file or folder at"),
    "no column": ({'"body"': '"text"'}, InvalidInput, 'has no column "text"'),
    "numbers": ({'"body"': '"other"'}, InvalidInput, '"other" is of type int64'),
    "no test": ({"test_fraction = 0.3": "test_fraction = 1e-9"}, InvalidInput, "no document for testing"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_written_is_refused(what: str, tmp_path: Path) -> None:
    change, error, words = REFUSED[what]
    path = configured(tmp_path, change)
    with pytest.raises(error, match=words):
        written(path, tmp_path / "out")
    with pytest.raises(InvalidInput):
        StreamedBatches(tmp_path / "out")


def test_a_user_has_one_record(tmp_path: Path) -> None:
    path = configured(tmp_path, BY_USER)
    batches, data = written(path, tmp_path / "out"), load_data(read_config(path))
    assert len(batches) == len(data.train.inputs)
    table = pa.table({"body": texts(), "who": [n // 2 for n in range(60)]})
    pq.write_table(table, tmp_path / "corpus" / "a.parquet")
    with pytest.raises(PrivacyRefusal, match=r"^\d+ of \d+ users have several records .* up to [23]\."):
        written(path, tmp_path / "more")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body": pa.array(["secret", None])}, 'row 1: "body" is empty'),
        ({"body": pa.array([b"secret"])}, '"body" is of type binary; it must hold strings'),
        ({"body": pa.array(["a"]), "who": pa.array([0.7311])}, '"who" is of type double; .* whole numbers'),
        ({"body": pa.array(["secret"]), "who": pa.array([None], pa.int64())}, 'row 0: "who" is empty'),
    ],
)
def test_cells_that_cannot_be_read_are_named_by_their_row_alone(
    columns: dict[str, Any], words: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    part = CorpusPart(str(tmp_path / "a.parquet"), 0, 0)
    with pytest.raises(InvalidInput, match=words) as caught:
        [*read_part(part, Fields("body", "who" if "who" in columns else None))]
    assert "secret" not in str(caught.value)
    assert "7311" not in str(caught.value)


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    path = configured(tmp_path)
    (tmp_path / "corpus" / "a.parquet").write_bytes(b"secret")
    with pytest.raises(InvalidInput, match="cannot be read as a Parquet file") as caught:
        written(path, tmp_path / "out")
    assert "secret" not in str(caught.value)


def test_unfinished_batches_are_written_again_and_nothing_else_is_overwritten(tmp_path: Path) -> None:
    class Fails(Here):
        def write(self, *arguments: Any, **named: Any) -> list[Shard]:
            raise KeyboardInterrupt

    path, out = configured(tmp_path), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        written(path, out, engine=Fails)
    assert (out / "work").is_dir()
    written(path, out)
    assert not (out / "work").exists()
    with pytest.raises(InvalidInput, match="is not empty"):
        written(path, out)


@pytest.mark.parametrize(("change", "name"), [(SLOTS, "slots"), (CANARIES, "canaries")])
def test_nothing_is_planted_by_a_run_on_batches(change: dict[str, str], name: str, tmp_path: Path) -> None:
    path, out = configured(tmp_path), tmp_path / "out"
    written(path, out)
    path.write_text(changed(path.read_text(), change))
    with pytest.raises(InvalidInput, match=f"cannot add the canaries of .*{name}"):
        prepare(path, out=tmp_path / "run", batches=out)


def test_train_says_what_batches_are_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = configured(tmp_path)
    (tmp_path / "lines.jsonl").write_text('{"body": "some text"}\n')
    path.write_text(path.read_text().replace('parquet = "', 'jsonl = "').replace("/corpus", "/lines.jsonl"))
    assert command(["train", str(path), "--batches", str(tmp_path)]) == 2
    assert "--batches" in capsys.readouterr().err


# --- Spark -------------------------------------------------------------------------------------------------


def no_spark() -> str:
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed; make test-spark installs it"
    return "" if shutil.which("java") else "Java is not installed"


@pytest.mark.skipif(bool(no_spark()), reason=no_spark())
@pytest.mark.parametrize("sampling", ["poisson", "truncated"])
def test_spark_writes_the_same_files(sampling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_, "_SHARD_BYTES", 1500)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    path = configured(tmp_path, SAMPLINGS[sampling])
    here = written(path, tmp_path / "here")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pyspark, about pandas
        from tacit.runs.batches import Spark

        spark = Spark("local[2]", lambda *_: None)
        try:
            there = written(path, tmp_path / "there", engine=lambda: spark)
        finally:
            spark.stop()
    assert len(there.manifest.shards) > 2
    for one, other in zip(here.manifest.shards, there.manifest.shards, strict=True):
        assert (one.name, one.first, one.steps) == (other.name, other.first, other.steps)
        tables = [pq.read_table(tmp_path / folder / one.name) for folder in ("here", "there")]
        assert tables[0].equals(tables[1])
    assert prepare(path, out=tmp_path / "run", batches=tmp_path / "there").start() is not None


@pytest.mark.skipif(bool(no_spark()), reason=no_spark())
def test_what_a_worker_of_spark_refuses_is_refused_in_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    path = configured(tmp_path, {'"body"': '"text"'})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = command(["batches", str(path), "--out", str(tmp_path / "out"), "--master", "local[1]"])
    assert code == 2
    assert 'has no column "text"' in " ".join(capsys.readouterr().err.split())
