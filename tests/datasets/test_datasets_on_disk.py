"""Tables larger than the memory: their rows are in a file, of which little is in memory at once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from tacit.columns import Column
from tacit.columns.tables import pieces
from tacit.datasets import load_table, tables
from tacit.datasets.on_disk import OnDisk
from tacit.errors import InvalidInput
from tacit.training.records import as_records

SCHEMA = {
    "age": Column(kind="number", lower=0, upper=100),
    "kind": Column(kind="category", values=("a", "b")),
    "ill": Column(kind="boolean"),
}
MB = 1 << 20


def of_file() -> int:
    """Return the bytes of files that this process has in memory."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssFile:")[2].split()[0])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    chance = random.Random(2)
    lines = [
        f"{chance.uniform(0, 100):.2f},{chance.choice('ab')},{chance.choice('01')}" for _ in range(20000)
    ]
    (tmp_path / "people.csv").write_text("\n".join(["age,kind,ill", *lines]) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_rows_in_a_file_are_those_in_memory(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So are the draws and the digest, and no file is left, even if the process is killed."""
    before = sorted(here.iterdir())
    data = []
    for largest in (1 << 31, 1):
        monkeypatch.setattr(tables, "_LARGEST", largest)
        data.append(
            load_table(Path("people.csv"), target="ill", schema=SCHEMA, test_fraction=0.2, records=20000)
        )
        assert sorted(here.iterdir()) == before
    in_memory, on_disk = data
    assert not hasattr(in_memory.train.inputs, "pages")
    assert hasattr(on_disk.train.inputs, "pages")
    for part in ("train", "test"):
        for one, other in zip(getattr(in_memory, part), getattr(on_disk, part), strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
    records = [as_records(each.train) for each in data]
    assert records[0].fingerprint(bytes(16)) == records[1].fingerprint(bytes(16))
    rows = np.array([3, 5, 9000])
    for one, other in zip(*(each.take(rows, seed=0) for each in records), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["stored", "map", "list of maps"])
def test_little_of_a_file_is_in_memory_at_once(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.arange(16 * MB, dtype=np.float32).reshape(-1, 32)  # 64 MiB
    if kind == "stored":
        grown = OnDisk()
        for part in np.split(rows, 16):
            grown.append(part)
        data: tuple[Any, ...] = (grown.tensor(),)
    else:
        np.save("rows.npy", rows)
        numbers = np.load("rows.npy", mmap_mode="r")
        data = (numbers, numbers) if kind == "list of maps" else (numbers,)
    before = of_file()
    records = as_records(data)
    records.fingerprint(bytes(16))
    assert of_file() < before + 16 * MB
    for first in range(0, len(rows), 1000):
        (taken, *_) = records.take(np.arange(first, min(first + 1000, len(rows))), seed=0)
        assert torch.equal(taken, torch.from_numpy(rows[first : first + 1000]))
    assert of_file() < before + 16 * MB


def test_little_of_a_parquet_file_is_in_memory_at_once(tmp_path: Path) -> None:
    schema = pyarrow.schema([("x", pyarrow.float64())])
    with parquet.ParquetWriter(tmp_path / "rows.parquet", schema, compression="none") as out:
        for _ in range(40):  # row groups of 0.5 MiB
            out.write_table(pyarrow.table([np.random.default_rng(1).random(1 << 16)], schema=schema))
    most, rows = 0, 0
    before = pyarrow.total_allocated_bytes()
    for piece in pieces(tmp_path / "rows.parquet", ["x"]):
        rows += len(piece["x"])
        most = max(most, pyarrow.total_allocated_bytes() - before)
    assert rows == 40 << 16
    assert most < 4 * MB


def test_what_is_written_to_a_private_map_stays(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((2000, 4), np.float32))
    rows = np.load(tmp_path / "rows.npy", mmap_mode="c")
    rows[7] = 1.0
    records = as_records((rows,))
    for _ in range(2):
        assert records.take(np.array([7]), seed=0)[0].sum() == 4.0


def test_a_folder_without_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    grown = OnDisk()
    grown._file.close()

    class Full:
        def write(self, rows: object) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(grown, "_file", Full())
    with pytest.raises(InvalidInput, match=r"cannot write .*: No space left.*Start in a folder on"):
        grown.append(np.zeros((2, 2), np.float32))
