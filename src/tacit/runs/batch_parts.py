"""The work on each part of a corpus: cut it into records, and select the records that were drawn.

Letters: n records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tacit.datasets import Cutting
from tacit.datasets.dataset import choose_test
from tacit.datasets.documents import CorpusPart, check_users, read_part
from tacit.errors import MissingExtra
from tacit.files import write_atomically
from tacit.noise.generator import Generator
from tacit.runs.kinds.documents import tokens_of
from tacit.sampling import Sampling
from tacit.training.streamed import TEST, Shard, shard_schema

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

    ``tokenizer`` is the path of the tokenizer's folder.  ``text`` and ``user`` name columns of the corpus.
    """

    tokenizer: str
    text: str
    user: str | Sequence[str] | None
    cutting: Cutting
    test_fraction: float | None


@final
@dataclass(frozen=True)
class Counts:
    """The numbers of training records and test records in one part of the corpus."""

    train: int
    test: int


# --- documents to records ----------------------------------------------------------------------------------


def cut_part(rule: Rule, part: CorpusPart, number: int, work: Path) -> Counts:
    encode = tokens_of(rule.tokenizer).encode
    sequences: dict[bool, list[Sequence[int]]] = {False: [], True: []}
    users: list[tuple[str, bool]] = []
    for document in read_part(part, text=rule.text, user=rule.user):
        if isinstance(document.user, tuple):
            check_users([document.user], "training")  # raises, as a document may have only one user
        tests = rule.test_fraction is not None and _tests(document.text, rule.test_fraction)
        pieces = [*rule.cutting.pieces(encode(document.text))]
        users += [(str(document.user), tests)] * len(pieces)
        sequences[tests] += [piece for piece in pieces if len(piece) > 1]  # a single token predicts nothing
    for tests, name in ((False, "train"), (True, "test")):
        _write_table(_path(work, name, number), _as_table(sequences[tests], rule.cutting))
    if rule.user is not None:
        names, marks = ([user for user, _ in users], [tests for _, tests in users])
        _write_table(_path(work, "users", number), pyarrow.table({"user": names, "test": marks}))
    return Counts(len(sequences[False]), len(sequences[True]))


def _tests(text: str, fraction: float) -> bool:
    return bool(choose_test([text.encode()], fraction)[0])


def _as_table(sequences: Sequence[Sequence[int]], cutting: Cutting) -> Any:
    lengths = np.fromiter(map(len, sequences), dtype=np.int32, count=len(sequences))
    tokens = np.full((len(sequences), cutting.length), cutting.padding, dtype=np.int32)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
    return pyarrow.table({"length": lengths, "tokens": _listed(tokens)})


def _listed(tokens: NDArray[np.int32]) -> Any:
    offsets = np.arange(len(tokens) + 1, dtype=np.int32) * tokens.shape[1]
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), pyarrow.array(tokens.reshape(-1)))


def write_tests(work: Path, parts: int, out: Path) -> None:
    tables = [pq.read_table(_path(work, "test", number)) for number in range(parts)]
    _write_table(out / TEST, pyarrow.concat_tables(tables))


def users_of(work: Path, parts: int) -> Iterator[tuple[str, bool]]:
    for number in range(parts):
        table = pq.read_table(_path(work, "users", number))
        yield from zip(table["user"].to_pylist(), table["test"].to_pylist(), strict=True)


# --- records to batches ------------------------------------------------------------------------------------


def draw(
    sampling: Sampling, generator: Generator, steps: int, counts: Sequence[int], work: Path
) -> Iterator[int]:
    """Draw the batches of all steps, and write the positions of the drawn records of each part.

    The generator's key stays in this process.

    Args:
        counts: the number of training records in each part.

    Yields:
        The number of steps drawn so far.
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
    """Return a description of a shard as an Arrow batch of one row, which Spark sends back."""
    small, text = pyarrow.int32(), pyarrow.string()
    schema = pyarrow.schema([("name", text), ("first", small), ("steps", small), ("sha256", text)])
    return pyarrow.RecordBatch.from_pylist([vars(shard)], schema=schema)


def empty_shards(shards: Iterable[Shard], steps_in_shard: int, steps: int, folder: Path) -> list[Shard]:
    """Write empty shards for steps without records, and return all shards in order."""
    by_step = {shard.first: shard for shard in shards}
    for first in range(0, steps, steps_in_shard):
        if first not in by_step:
            empty = pyarrow.RecordBatch.from_pylist([], schema=shard_schema())
            by_step[first] = _write_shard([empty], first // steps_in_shard, steps_in_shard, steps, folder)
    return [by_step[first] for first in sorted(by_step)]


def _path(work: Path, name: str, number: int) -> Path:
    return work / f"{name}-{number:06d}.parquet"


def _write_table(path: Path, table: Any) -> str:
    """Write a table atomically, and return the SHA-256 of the file."""
    sink = pyarrow.BufferOutputStream()
    pq.write_table(table, sink)
    data = sink.getvalue()
    write_atomically(path, lambda file: file.write(data))
    return hashlib.sha256(data).hexdigest()
