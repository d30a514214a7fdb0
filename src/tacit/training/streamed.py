"""Records from batches that were drawn before the run and are read from a folder."""

# ``tacit batches`` draws the batches of a whole plan and writes them in the order of the steps::
#
#     manifest.json     the key of the run, its sampling, and the digests of the shards
#     steps-000000.parquet, ...   step, position, length and tokens of each record of a step, in this order
#     test.parquet      the test records, if they are a share of the corpus
#     used              the random name of the run that uses these batches
#
# The folder is as secret as the corpus, because it shows who takes part and has the key of the noise.
#
# **Guarantee**
#
# * The batches are those that the plan's sampler draws under the run's key; others are refused.
# * Only one run uses a folder, and only that run may resume with it: a second one would add the same noise to
#   other sums.  A shard that has changed since it was written is refused.

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacit.datasets.dataset import TensorPair
from tacit.datasets.text import with_targets
from tacit.errors import InvalidInput, PrivacyRefusal, needed, without_values
from tacit.files import write_atomically
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.sampling.samplers import Indices
from tacit.training.records import DrawnRecords
from tacit.training.tensors import Template

pyarrow = needed("pyarrow", "tables", "reading batches")
pq = needed("pyarrow.parquet", "tables", "reading batches")

_FORMAT = 1
_MANIFEST, _USED, TEST = "manifest.json", "used", "test.parquet"


def shard_schema() -> Any:
    """Return the Parquet schema of a shard; tokens after a record's ``length`` are padding."""
    whole, small = pyarrow.int64(), pyarrow.int32()
    tokens = pyarrow.list_(small)  # Spark has no lists of a fixed size
    return pyarrow.schema([("step", small), ("position", whole), ("length", small), ("tokens", tokens)])


@final
@dataclass(frozen=True)
class Shard:
    """A file with the records of ``steps`` steps, beginning with step ``first``."""

    name: str
    first: int
    steps: int
    sha256: str


@final
@dataclass(frozen=True)
class Manifest:
    """The contents of a folder of batches, and the ``rule`` by which documents were cut into records."""

    key: bytes
    secure: bool
    sampling: str
    steps: int
    records: int
    rule: str
    shards: tuple[Shard, ...]

    def write(self, folder: Path) -> None:
        """Write the manifest last, because a folder without it counts as unfinished."""
        data = {"format": _FORMAT, **asdict(self), "key": self.key.hex()}
        text = json.dumps(data, indent=1) + "\n"
        write_atomically(folder / _MANIFEST, lambda file: file.write(text.encode()), mode=0o600)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        path = folder / _MANIFEST
        if not path.is_file():
            raise InvalidInput(
                f"{folder} has no finished batches: {path.name} is missing. Write them with `tacit "
                "batches`, or run it again if it was interrupted."
            )
        try:
            data = json.loads(path.read_bytes())
            version = data.pop("format")
            shards = tuple(Shard(**shard) for shard in data.pop("shards"))
            manifest = cls(**{**data, "key": bytes.fromhex(data["key"]), "shards": shards})
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as problem:
            raise InvalidInput(
                f"{path} cannot be read: {without_values(problem)}. Restore the file, or write the "
                "batches again."
            ) from None
        if version != _FORMAT:
            raise InvalidInput(
                f"{path} was written by another version of Tacit. Write the batches again with this one."
            )
        return manifest

    def generator_for(self, plan: Plan) -> Generator:
        """Return the generator of a run of ``plan``; refuse a plan that would draw other batches."""
        if (now := repr(plan.sampling)) != self.sampling:
            raise PrivacyRefusal(
                f"the plan samples by {now}, but these batches were drawn by {self.sampling}, so the plan's "
                "cost does not cover them. Train with the configuration of the batches."
            )
        if plan.steps > self.steps:
            raise PrivacyRefusal(
                f"the plan has {plan.steps} steps, but the batches cover only {self.steps}. Write batches "
                "for the whole plan."
            )
        return Generator(self.key, secure=self.secure)


@dataclass(frozen=True)
class _Rows:
    shard: Shard
    step: NDArray[np.int32]
    position: NDArray[np.int64]
    length: NDArray[np.int32]
    tokens: NDArray[np.int32]


@final
class StreamedBatches(DrawnRecords):
    """The records of a corpus, (tokens, targets) of (T,) int64; -100 means no target."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, Manifest.read(folder)
        self._now: _Rows | None = None
        self._step = -1
        self._rows = slice(0, 0)
        self._ahead: tuple[Shard, Future[_Rows]] | None = None
        self._reader: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return self.manifest.records

    @property
    def template(self) -> Template:
        return (0, 1)

    def generator_for(self, plan: Plan) -> Generator:
        return self.manifest.generator_for(plan)

    def check_free(self, run: str) -> None:
        path = self.folder / _USED
        if path.exists() and path.read_text() != run:
            raise PrivacyRefusal(
                f"the batches in {self.folder} belong to another run. A second run would add their noise to "
                "other sums. Resume that run (--resume), or write new batches, with a new key."
            )

    def claim(self, run: str) -> None:
        try:
            with (self.folder / _USED).open("x") as file:
                file.write(run)
        except FileExistsError:
            self.check_free(run)

    def begin(self, step: int) -> None:
        if self._now is None or not _holds(self._now.shard, step):
            self._now = self._shard_of(step)
        rows = self._now
        self._step = step
        self._rows = slice(*np.searchsorted(rows.step, [step, step + 1]).tolist())

    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        del seed
        positions = self._now.position[self._rows] if self._now is not None else np.empty(0, np.int64)
        places = np.searchsorted(positions, indices)
        inside = places < len(positions)
        if self._now is None or not (inside.all() and np.array_equal(positions[places], indices)):
            raise PrivacyRefusal(
                f"the batch for step {self._step} lacks some of its records: it was drawn with another key "
                "or other settings. Write the batches again, for this plan."
            )
        at = places + self._rows.start
        return with_targets(self._now.tokens[at], self._now.length[at])

    def fingerprint(self, key: bytes) -> str:
        shards = json.dumps([asdict(shard) for shard in self.manifest.shards]).encode()
        return hashlib.blake2b(shards, key=key, digest_size=16).hexdigest()

    def content(self) -> Iterator[bytes | memoryview] | None:
        return None

    def test_records(self) -> TensorPair | None:
        """Return tokens and targets of the test records, (n, T) each; None if the folder has none."""
        path = self.folder / TEST
        if not path.exists():
            return None
        rows = _columns(_table(path.read_bytes(), path))
        return with_targets(rows["tokens"], rows["length"])

    def _shard_of(self, step: int) -> _Rows:
        shards = [shard for shard in self.manifest.shards if _holds(shard, step)]
        if not shards:
            raise InvalidInput(
                f"{self.folder} has no batch for step {step}. Write the batches again, for the whole plan."
            )
        ahead, self._ahead = self._ahead, None
        rows = ahead[1].result() if ahead is not None and ahead[0] == shards[0] else self._read(shards[0])
        if after := [
            shard for shard in self.manifest.shards if shard.first == rows.shard.first + rows.shard.steps
        ]:
            if self._reader is None:
                self._reader = ThreadPoolExecutor(1, thread_name_prefix="batches")
            self._ahead = after[0], self._reader.submit(self._read, after[0])
        return rows

    def _read(self, shard: Shard) -> _Rows:
        path = self.folder / shard.name
        try:
            data = path.read_bytes()
        except OSError as problem:
            raise InvalidInput(f"{path} cannot be read: {without_values(problem)}.") from None
        if hashlib.sha256(data).hexdigest() != shard.sha256:
            raise InvalidInput(
                f"{path} has changed since it was written: its digest differs from the one in {_MANIFEST}. "
                "Restore the file, or write the batches again and start a new run."
            )
        rows = _columns(_table(data, path))
        tokens = rows["tokens"]
        if len(tokens) == 0:  # the shard does not show how many tokens a record has
            tokens = np.empty((0, self._length), np.int32)
        return _Rows(shard, rows["step"], rows["position"], rows["length"], tokens)

    @cached_property
    def _length(self) -> int:
        """The number of tokens of a record; 1 if no shard in the folder has rows."""
        for shard in self.manifest.shards:
            tokens = _columns(_table((self.folder / shard.name).read_bytes(), self.folder))["tokens"]
            if len(tokens) > 0:
                return int(tokens.shape[1])
        return 1


def _holds(shard: Shard, step: int) -> bool:
    return shard.first <= step < shard.first + shard.steps


def _table(data: bytes, path: Path) -> Any:
    try:
        return pq.read_table(io.BytesIO(data))
    except (OSError, pyarrow.ArrowException) as problem:
        raise InvalidInput(f"{path} cannot be read as a Parquet file: {without_values(problem)}.") from None


def _columns(table: Any) -> dict[str, NDArray[Any]]:
    """Return the columns of a table as arrays by name; tokens are (n, T)."""
    columns = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        columns[name] = (column.flatten() if name == "tokens" else column).to_numpy(zero_copy_only=False)
    columns["tokens"] = columns["tokens"].reshape(len(table), columns["tokens"].size // max(1, len(table)))
    return columns
