"""``tacit batches``: write the batches of a run in advance, in three stages: cut, draw, sort by step.

Letters: n records.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from tacit.datasets import Cutting, Dataset
from tacit.datasets.dataset import choose_test
from tacit.datasets.text import (
    CorpusPart,
    Fields,
    check_users,
    corpus_parts,
    pair_of,
    read_documents,
    read_part,
    sequence_pair,
)
from tacit.errors import InvalidInput, MissingExtra, PrivacyRefusal, TacitError, needed, without_values
from tacit.files import write_atomically
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.pretrained.finding import ModelFolder
from tacit.runs.canaries import check_nothing_planted
from tacit.runs.config import Config
from tacit.runs.kinds import Documents, Progress
from tacit.runs.kinds.texts import tokens_of
from tacit.runs.plan import make_plan
from tacit.sampling import Sampling
from tacit.training.streamed import TEST, Manifest, Shard, StreamedBatches, shard_schema

try:
    import pyarrow
    import pyarrow.parquet as pq
except ImportError:
    raise MissingExtra("pyarrow", "spark", "tacit batches") from None


_AT_ONCE = 1 << 13
"""The number of records in one message to the next machine."""
_PAIRS = 1 << 22
"""The number of (step, position) pairs in memory at once while batches are drawn."""


@final
@dataclass(frozen=True)
class Rule:
    """The rule by which documents become records.

    ``tokenizer`` is the path of the tokenizer's folder.
    """

    tokenizer: str
    fields: Fields
    cutting: Cutting
    test_fraction: float | None


@final
@dataclass(frozen=True)
class Counts:
    train: int
    test: int


# --- documents to records ----------------------------------------------------------------------------------


def cut_part(rule: Rule, part: CorpusPart, number: int, work: Path) -> Counts:
    encode = tokens_of(rule.tokenizer).encode
    sequences: dict[bool, list[Sequence[int]]] = {False: [], True: []}
    users: list[tuple[str, bool]] = []
    for document in read_part(part, rule.fields):
        if isinstance(document.user, tuple):
            check_users([document.user], "training")  # raises, as a document may have only one user
        tests = rule.test_fraction is not None and bool(
            choose_test([document.text.encode()], rule.test_fraction)[0]
        )
        pieces = [*rule.cutting.pieces(encode(document.text))]
        users += [(str(document.user), tests)] * len(pieces)
        sequences[tests] += [piece for piece in pieces if len(piece) > 1]  # a single token predicts nothing
    for tests, name in ((False, "train"), (True, "test")):
        _write_table(_path(work, name, number), _as_table(sequences[tests], rule.cutting))
    if rule.fields.users:
        names, marks = ([user for user, _ in users], [tests for _, tests in users])
        _write_table(_path(work, "users", number), pyarrow.table({"user": names, "test": marks}))
    return Counts(len(sequences[False]), len(sequences[True]))


def _as_table(sequences: Sequence[Sequence[int]], cutting: Cutting) -> Any:
    lengths = np.fromiter(map(len, sequences), dtype=np.int32, count=len(sequences))
    tokens = np.full((len(sequences), cutting.length), cutting.padding, dtype=np.int32)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
    return pyarrow.table({"length": lengths, "tokens": _listed(tokens)})


def _listed(tokens: NDArray[np.int32]) -> Any:
    offsets = np.arange(len(tokens) + 1, dtype=np.int32) * tokens.shape[1]
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), pyarrow.array(tokens.reshape(-1)))


# --- records to batches ------------------------------------------------------------------------------------


def draw(
    sampling: Sampling, generator: Generator, steps: int, counts: Sequence[int], work: Path
) -> Iterator[int]:
    """Draw the batches of all steps, and write the positions of the drawn records of each part.

    The generator's key stays in this process.
    """
    first = np.concatenate([[0], np.cumsum(counts)])
    pending: list[tuple[int, NDArray[np.int64]]] = []
    pairs = turn = 0
    for step in range(steps):
        positions = sampling.indices(generator, step, int(first[-1]))
        pending.append((step, positions))
        pairs += len(positions)
        if pairs >= _PAIRS or step == steps - 1:
            _write_drawn(pending, first, turn, work)
            pending, pairs, turn = [], 0, turn + 1
        yield step + 1


def _write_drawn(batches: Iterable[tuple[int, NDArray[np.int64]]], first: Any, turn: int, work: Path) -> None:
    """Write, for each part, an array (2, n) with the steps and positions of its drawn records."""
    steps = np.concatenate([np.full(len(positions), step) for step, positions in batches])
    positions = np.concatenate([positions for _, positions in batches])
    parts = np.searchsorted(first, positions, side="right") - 1
    order = np.argsort(parts, kind="stable")
    cuts = np.searchsorted(parts[order], np.arange(len(first)))
    for number, (a, b) in enumerate(pairwise(cuts)):
        if a < b:
            pairs = np.stack([steps[order[a:b]], positions[order[a:b]]])
            path = work / f"drawn-{number:06d}-{turn:06d}.npy"
            write_atomically(path, lambda file, pairs=pairs: np.save(file, pairs))  # type: ignore[misc]


def drawn_of_part(number: int, first: int, work: Path, length: int) -> Iterator[Any]:
    """Yield the drawn records of a part as Arrow batches of :func:`shard_schema`.

    A record is yielded once for each step that drew it.  ``first`` is the position of the part's first record
    in the corpus.
    """
    files = sorted(work.glob(f"drawn-{number:06d}-*.npy"))
    if not files:
        return
    table = pq.read_table(_path(work, "train", number))
    lengths = table["length"].to_numpy()
    tokens = table["tokens"].combine_chunks().flatten().to_numpy().reshape(-1, length)
    for file in files:
        steps, positions = np.load(file)
        for start in range(0, len(steps), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            rows = positions[some] - first
            columns = [
                pyarrow.array(steps[some].astype(np.int32)),
                pyarrow.array(positions[some]),
                pyarrow.array(lengths[rows]),
                _listed(tokens[rows]),
            ]
            yield pyarrow.RecordBatch.from_arrays(columns, schema=shard_schema())


def write_shards(batches: Iterable[Any], steps_in_shard: int, steps: int, folder: Path) -> Iterator[Shard]:
    """Write Arrow batches, already sorted by step and position, to shards; yield each complete shard."""
    pending: list[Any] = []
    now = None
    for batch in batches:
        numbers = batch.column("step").to_numpy() // steps_in_shard
        for number in np.unique(numbers).tolist():
            if now is not None and number != now:
                yield _write_shard(pending, now, steps_in_shard, steps, folder)
                pending = []
            now = number
            a, b = np.searchsorted(numbers, [number, number + 1])
            pending.append(batch.slice(int(a), int(b - a)))
    if now is not None:
        yield _write_shard(pending, now, steps_in_shard, steps, folder)


def _write_shard(batches: list[Any], number: int, each: int, steps: int, folder: Path) -> Shard:
    first = number * each
    name = f"steps-{first:08d}.parquet"
    # One chunk makes the file independent of the batches in which rows arrived.
    digest = _write_table(folder / name, pyarrow.Table.from_batches(batches).combine_chunks())
    return Shard(name, first, min(each, steps - first), digest)


def shard_row(shard: Shard) -> Any:
    small, text = pyarrow.int32(), pyarrow.string()
    schema = pyarrow.schema([("name", text), ("first", small), ("steps", small), ("sha256", text)])
    return pyarrow.RecordBatch.from_pylist([vars(shard)], schema=schema)


def empty_shards(shards: Iterable[Shard], steps_in_shard: int, steps: int, folder: Path) -> list[Shard]:
    by_step = {shard.first: shard for shard in shards}
    for first in range(0, steps, steps_in_shard):
        if first not in by_step:
            empty = pyarrow.RecordBatch.from_pylist([], schema=shard_schema())
            by_step[first] = _write_shard([empty], first // steps_in_shard, steps_in_shard, steps, folder)
    return [by_step[first] for first in sorted(by_step)]


def _path(work: Path, name: str, number: int) -> Path:
    return work / f"{name}-{number:06d}.parquet"


def _write_table(path: Path, table: Any) -> str:
    sink = pyarrow.BufferOutputStream()
    pq.write_table(table, sink)
    data = sink.getvalue()
    write_atomically(path, lambda file: file.write(data))
    return hashlib.sha256(data).hexdigest()


_SHARD_BYTES = 1 << 26


class Engine(Protocol):
    """An engine that processes all parts of a corpus, such as :class:`tacit.runs.batches.Spark`."""

    def cut(self, rule: Rule, parts: Sequence[CorpusPart], work: Path) -> list[Counts]:
        pass

    def write(
        self, firsts: Sequence[int], length: int, each: int, steps: int, work: Path, out: Path
    ) -> list[Shard]:
        pass


@final
@dataclass(frozen=True)
class Written:
    folder: Path
    plan: Plan
    shards: int
    bytes: int


def write_batches(
    config: Config,
    out: Path,
    engine: Callable[[], Engine],
    *,
    progress: Progress,
    generator: Generator | None = None,
) -> Written:
    if config.data.parquet is None:
        raise InvalidInput(
            "`tacit batches` needs a Parquet corpus. Set [data] parquet. For other data, train without "
            "batches."
        )
    check_nothing_planted(config)
    Documents.check(config)
    plan = make_plan(config)
    rule = rule_of(config)
    parts = corpus_parts(Path(str(config.data.parquet)).resolve())
    out = out.resolve()  # Spark's workers run in other folders
    work = _fresh(out)
    worker = engine()
    counts = worker.cut(rule, parts, work)
    _check_counts(plan, config, counts, work)
    key_source = Generator.from_os() if generator is None else generator
    for done in draw(plan.sampling, key_source, plan.steps, [count.train for count in counts], work):
        progress("drawing batches", done, plan.steps)
    expected = plan.expected_batch_size * (4 * rule.cutting.length + 16)
    each = max(1, min(plan.steps, int(_SHARD_BYTES // max(1.0, expected))))
    firsts = [sum(count.train for count in counts[:number]) for number in range(len(counts))]
    partial_shards = worker.write(firsts, rule.cutting.length, each, plan.steps, work, out)
    shards = empty_shards(partial_shards, each, plan.steps, out)
    if rule.test_fraction is not None:
        tests = [pq.read_table(_path(work, "test", number)) for number in range(len(parts))]
        _write_table(out / TEST, pyarrow.concat_tables(tests))
    shutil.rmtree(work)
    key, secure = key_source.secret_state()
    Manifest(
        key=key,
        secure=secure,
        sampling=repr(plan.sampling),
        steps=plan.steps,
        records=sum(count.train for count in counts),
        rule=described(config, rule.cutting),
        shards=tuple(shards),
    ).write(out)
    return Written(out, plan, len(shards), sum((out / shard.name).stat().st_size for shard in shards))


def rule_of(config: Config) -> Rule:
    section, folder = config.data, str(Path(str(config.model.huggingface)).resolve())
    assert section.sequence_length is not None  # ``Documents.check`` has refused None
    assert section.documents is not None
    cutting = Cutting(section.sequence_length, section.documents, tokens_of(folder).padding)
    return Rule(folder, Fields(str(section.text), section.user), cutting, section.test_fraction)


def described(config: Config, cutting: Cutting) -> str:
    """Describe the rule in words that differ for any two rules that could make different records."""
    digest = ModelFolder.check(str(config.model.huggingface)).tokenizer_digest()
    data = config.data
    settings = f"text={data.text!r}, user={data.user!r}, test_fraction={data.test_fraction}"
    return f"{cutting}, {settings}, tokenizer={digest}"


def _fresh(out: Path) -> Path:
    """Make a folder for temporary files in ``out``, which must be empty or left by an interrupted command."""
    work = out / "work"
    if out.exists() and any(out.iterdir()):
        if not work.is_dir():
            raise InvalidInput(f"{out} is not empty. Choose another folder with --out, or delete this one.")
        shutil.rmtree(out)
    out.mkdir(parents=True, mode=0o700, exist_ok=True)
    out.chmod(0o700)
    work.mkdir()
    return work


def _check_counts(plan: Plan, config: Config, counts: Sequence[Counts], work: Path) -> None:
    train, test = sum(count.train for count in counts), sum(count.test for count in counts)
    if not train or (config.data.test_fraction is not None and not test):
        name = "testing" if train else "training"
        raise InvalidInput(f"no document for {name} has at least two tokens. Check the corpus.")
    plan.check_records(train)
    if config.data.user is None:
        return
    for tests, name in ((False, "training"), (True, "testing")):
        tables = (pq.read_table(_path(work, "users", number)) for number in range(len(counts)))
        rows = (row for table in tables for row in zip(*table.to_pydict().values(), strict=True))
        check_users((user for user, mark in rows if mark == tests), name)


def data_of_batches(config: Config, batches: StreamedBatches) -> Dataset:
    """Return the data set of a run from written batches.

    The batches hold the training records, so ``train`` of the data set is a single blank placeholder.
    """
    rule, tokens = rule_of(config), tokens_of(str(config.model.huggingface))
    if (now := described(config, rule.cutting)) != batches.manifest.rule:
        raise PrivacyRefusal(
            "the batches were written with other rules than the run file's. Batches: "
            f"{batches.manifest.rule}. Run file: {now}. Train with the run file for which they were written."
        )
    test, section, path = batches.test_records(), config.data, Path(str(config.data.parquet))
    if test is None:
        documents = [*read_documents(Path(str(section.test_corpus)), rule.fields)]
        test, _, _ = pair_of(documents, tokens.encode, rule.cutting, "testing")
    return Dataset(
        path.name.split(".")[0],
        sequence_pair([[rule.cutting.padding] * 2], rule.cutting),
        test,
        classes=(),
        source=rule.cutting.describe(path),
        unit=config.privacy.unit,
        vocabulary=tokens.vocabulary,
        spelling=tokens.spelling,
    )


_LOOKS = 0.2  # seconds between two reports of progress


@final
class Spark:
    """A Spark session; ``master`` is its address, such as "local[4]", or None for the configured one."""

    def __init__(self, master: str | None, progress: Progress) -> None:
        spark = needed("pyspark.sql", "spark", "tacit batches")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = spark.SparkSession.builder.appName("tacit batches")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        self._session = (builder if master is None else builder.master(master)).getOrCreate()
        self._session.sparkContext.setLogLevel("ERROR")
        self._progress = progress

    def cut(self, rule: Rule, parts: Sequence[CorpusPart], work: Path) -> list[Counts]:
        def one(numbered: tuple[int, CorpusPart]) -> Counts | TacitError:
            try:
                return cut_part(rule, numbered[1], numbered[0], work)
            except TacitError as problem:  # Spark would wrap it in a Java stack trace
                return problem

        rows = self._session.sparkContext.parallelize([*enumerate(parts)], len(parts)).map(one)
        answers = self._watched("cutting documents", rows.collect)
        for answer in answers:
            if isinstance(answer, TacitError):
                raise answer
        return answers

    def write(
        self, firsts: Sequence[int], length: int, each: int, steps: int, work: Path, out: Path
    ) -> list[Shard]:
        """Write the drawn records to shards; ``firsts`` has the position of the first record of each part."""

        def drawn(numbers: Iterator[Any]) -> Iterator[Any]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from drawn_of_part(number, firsts[number], work, length)

        def written(batches: Iterator[Any]) -> Iterator[Any]:
            for shard in write_shards(batches, each, steps, out):
                yield shard_row(shard)

        from pyspark.sql.functions import col, floor

        session, shards = self._session, -(-steps // each)
        numbers = session.sparkContext.parallelize([(n,) for n in range(len(firsts))], len(firsts))
        rows = numbers.toDF("part int").mapInArrow(
            drawn, "step int, position long, length int, tokens array<int>"
        )
        sorted_rows = rows.repartition(shards, floor(col("step") / each)).sortWithinPartitions(
            "step", "position"
        )
        answers = sorted_rows.mapInArrow(written, "name string, first int, steps int, sha256 string")
        return [Shard(**row.asDict()) for row in self._watched("writing batches", answers.collect)]

    def _watched(self, title: str, job: Callable[[], list[Any]]) -> list[Any]:
        """Run a job in a separate thread, and report how many of its tasks are done."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        results: list[Any] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                results.extend(job())
            except BaseException as problem:  # noqa: BLE001 (raised again below)
                failed.append(problem)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        tracker = self._session.sparkContext.statusTracker()
        while thread.is_alive():
            thread.join(_LOOKS)
            for stage in tracker.getActiveStageIds():
                if (info := tracker.getStageInfo(stage)) is not None:
                    self._progress(title, info.numCompletedTasks, info.numTasks)
        if failed:
            if isinstance(failed[0], PySparkException | Py4JError):
                raise InvalidInput(
                    f"Spark failed while {title}: {without_values(failed[0])}. Spark's log has the message, "
                    "which may contain a document. Correct the cause, and run the command again."
                ) from None
            raise failed[0]
        self._progress(title, 1, 1)
        return results

    def stop(self) -> None:
        self._session.stop()
