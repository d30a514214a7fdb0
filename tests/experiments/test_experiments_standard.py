"""Standard image sets in files: npz, IDX, CIFAR in its three forms; where they are found; downloads."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import pickle
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from experiments import standard
from experiments.standard import (
    IDX_FILES,
    RemoteFile,
    fetch,
    load,
    load_idx,
    load_npz,
    read_batches,
    read_idx,
    safe_unpickle,
    sha256_of,
)
from tacit.errors import InvalidInput

DATA = Path(os.environ.get("TACIT_DATA", "/nowhere"))
CLASSES = ("a", "b")


@pytest.fixture(autouse=True)
def _no_files_but_the_tests_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("TACIT_DATA", raising=False)


def pixels(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def save_npz(path: Path, x: NDArray[Any], y: NDArray[Any]) -> Path:
    np.savez(path, x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    return path


def save_idx(folder: Path, *, compress: bool = False, images: NDArray[np.uint8] | None = None) -> None:
    x = pixels(4, 28, 28) if images is None else images
    y = np.arange(len(x), dtype=np.uint8) % 2
    folder.mkdir(parents=True, exist_ok=True)
    for file, values in zip(IDX_FILES, (x, y, x[:2], y[:2]), strict=True):
        raw = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()
        (folder / (f"{file}.gz" if compress else file)).write_bytes(gzip.compress(raw) if compress else raw)


# npz


@pytest.mark.parametrize(
    ("shape", "wanted"), [((4, 5, 6), (1, 5, 6)), ((4, 5, 6, 3), (3, 5, 6)), ((4, 30), (30,))]
)
def test_npz(tmp_path: Path, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    x = pixels(*shape)
    data = load_npz(save_npz(tmp_path / "toy.npz", x, np.array([0, 1, 1, 0])), name="toy", classes=CLASSES)
    assert data.input_shape == wanted
    flat = torch.from_numpy(x.astype(np.float32) / 255)
    again = data.train.inputs.permute(0, 2, 3, 1).reshape(shape) if len(wanted) == 3 else data.train.inputs
    assert torch.equal(again, flat)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (pixels(4, 5), np.array([0, 1, 2, 0]), r"0\.\.1.*; 1 of them do not"),
        (pixels(4, 5), np.array([0, 1, 1]), "4 inputs and 3 targets"),
        (pixels(4, 5), np.array([0.0, 1.0, 1.0, 0.0]), "integer class numbers"),
        (np.full((4, 5), np.nan), np.array([0, 1, 1, 0]), "not finite"),
        (np.array(["a"] * 4), np.array([0, 1, 1, 0]), "must be images or rows of numbers"),
    ],
)
def test_npz_with_faults(tmp_path: Path, x: NDArray[Any], y: NDArray[Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load_npz(save_npz(tmp_path / "toy.npz", x, y), name="toy", classes=CLASSES)


def test_npz_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "toy.npz"
    with pytest.raises(InvalidInput, match=r"cannot read .*toy\.npz"):
        load_npz(path, name="toy", classes=CLASSES)
    path.write_bytes(b"PK not a zip")
    with pytest.raises(InvalidInput, match=r"cannot read .*toy\.npz"):
        load_npz(path, name="toy", classes=CLASSES)
    np.savez(path, x_train=pixels(2, 3))
    with pytest.raises(InvalidInput, match="lacks the array 'y_train'"):
        load_npz(path, name="toy", classes=CLASSES)
    with path.open("wb") as file:
        np.save(file, pixels(2, 3))
    with pytest.raises(InvalidInput, match=r"cannot read .*toy\.npz"):
        load_npz(path, name="toy", classes=CLASSES)


# IDX


@pytest.mark.parametrize("compress", [False, True])
def test_idx(tmp_path: Path, compress: bool) -> None:
    save_idx(tmp_path, compress=compress)
    data = load_idx(tmp_path, name="toy", classes=CLASSES)
    assert torch.equal(data.train.inputs[:, 0] * 255, torch.from_numpy(pixels(4, 28, 28)).float())
    assert data.test.targets.tolist() == [0, 1]


def test_idx_of_other_types(tmp_path: Path) -> None:
    path = tmp_path / "ints"
    path.write_bytes(struct.pack(">BBBBI3i", 0, 0, 0x0C, 1, 3, 1, -2, 70_000))
    assert read_idx(path).tolist() == [1, -2, 70_000]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is not an IDX file"),
        (b"\x89PNG....", "is not an IDX file"),
        (struct.pack(">BBBBI", 0, 0, 8, 1, 5) + b"abc", "11 bytes where its header says 13"),
        (struct.pack(">BBBB", 0, 0, 8, 3), "cut short"),
    ],
)
def test_idx_with_faults(tmp_path: Path, raw: bytes, message: str) -> None:
    (tmp_path / "broken").write_bytes(raw)
    with pytest.raises(InvalidInput, match=message):
        read_idx(tmp_path / "broken")
    with pytest.raises(InvalidInput, match="cannot read"):
        read_idx(tmp_path / "absent")
    (tmp_path / "half.gz").write_bytes(gzip.compress(b"x" * 1000)[:20])
    with pytest.raises(InvalidInput, match="cannot read"):
        read_idx(tmp_path / "half.gz")
    with pytest.raises(InvalidInput, match="lacks train-images-idx3-ubyte"):
        load_idx(tmp_path, name="toy", classes=CLASSES)


# Where standard sets are looked for


def test_folder_comes_before_the_environment_and_that_before_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {name: tmp_path / name for name in ("given", "named", "cache/tacit")}
    for number, place in enumerate(places.values()):
        place.mkdir(parents=True)
        save_npz(place / "mnist.npz", np.full((4, 28, 28), number, dtype=np.uint8), np.arange(4))
    monkeypatch.setenv("TACIT_DATA", str(places["named"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def which() -> int:
        return round(float(load("mnist", folder=places["given"]).train.inputs.max()) * 255)

    for number, place in enumerate(places.values()):
        assert which() == number
        (place / "mnist.npz").unlink()
    with pytest.raises(
        InvalidInput, match=r"given, .*named, .*tacit\. Put mnist\.npz.*TACIT_DATA.*download=True"
    ):
        which()


def test_idx_sets_differ_by_their_folder(tmp_path: Path) -> None:
    """MNIST and Fashion-MNIST have the same file names: loose files count only in a folder named for them."""
    save_idx(tmp_path / "fashion-mnist", compress=True, images=np.full((4, 28, 28), 255, dtype=np.uint8))
    save_idx(tmp_path / "MNIST" / "raw", images=np.zeros((4, 28, 28), dtype=np.uint8))
    assert float(load("mnist", folder=tmp_path).train.inputs.max()) == 0.0
    assert float(load("fashion-mnist", folder=tmp_path).train.inputs.min()) == 1.0
    assert load("fashion-mnist", folder=tmp_path).classes[9] == "Ankle boot"
    loose = tmp_path / "loose"
    save_idx(loose)
    assert load("mnist", folder=loose).name == "mnist"


def test_folders_that_do_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="folder must name an existing folder"):
        load("mnist", folder=tmp_path / "absent")
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "absent"))
    with pytest.raises(InvalidInput, match="variable TACIT_DATA must name an existing folder"):
        load("mnist")


# CIFAR


def batch(labels: list[int], key: str = "labels") -> bytes:
    """As the official files are: protocol 2, arrays that name the old NumPy module."""
    content = {"data": pixels(len(labels), 3072), key: labels, "batch_label": "a batch", "raw": b"\x00\xff"}
    return pickle.dumps(content, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def save_cifar10(folder: Path) -> None:
    folder.mkdir()
    for number in range(1, 6):
        (folder / f"data_batch_{number}").write_bytes(batch([number, 9]))
    (folder / "test_batch").write_bytes(batch([3]))


def test_cifar10_from_its_pickles_and_from_the_archive(tmp_path: Path) -> None:
    save_cifar10(tmp_path / "cifar-10-batches-py")
    data = load("cifar10", folder=tmp_path)
    assert data.train.inputs.shape == (10, 3, 32, 32)
    assert torch.equal(data.train.inputs[0], torch.from_numpy(pixels(2, 3, 32, 32)[0]).float() / 255)
    assert data.train.targets.tolist() == [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
    assert data.classes[3] == "cat"
    packed = tmp_path / "packed"
    packed.mkdir()
    with tarfile.open(packed / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "cifar-10-batches-py", "cifar-10-batches-py")
    again = load("cifar10", folder=packed)
    assert torch.equal(again.train.inputs, data.train.inputs)
    assert torch.equal(again.test.targets, data.test.targets)
    assert [path.name for path in packed.iterdir()] == ["cifar-10-python.tar.gz"]  # nothing was unpacked


def test_cifar100(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (folder / "train").write_bytes(batch([0, 99, 50], "fine_labels"))
    (folder / "test").write_bytes(batch([7], "fine_labels"))
    data = load("cifar100", folder=tmp_path)
    assert len(set(data.classes)) == 100
    assert [data.classes[int(label)] for label in data.train.targets] == ["apple", "worm", "mouse"]


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["TACIT_TEST_TRAP"],)


def test_a_pickle_that_runs_code_is_refused_unrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = tmp_path / "trap"
    monkeypatch.setenv("TACIT_TEST_TRAP", str(trap))
    for protocol in range(6):
        raw = pickle.dumps({"data": Hostile(), "labels": [1]}, protocol=protocol)
        with pytest.raises(InvalidInput, match=r"it calls (posix|nt)\.mkdir, which no data file needs"):
            safe_unpickle(raw, name="data_batch_1")
    assert not trap.exists()
    pickle.loads(raw)  # the test's own trap works
    assert trap.exists()


@pytest.mark.parametrize("value", [np.random.default_rng, np.array, np.memmap, getattr, eval])
def test_no_other_function_can_be_named_in_a_pickle(value: object) -> None:
    with pytest.raises(InvalidInput, match="which no data file needs"):
        safe_unpickle(pickle.dumps(value), name="toy")


def test_cifar_files_with_faults(tmp_path: Path) -> None:
    assert read_batches(tmp_path, fine_labels=False) is None
    folder = tmp_path / "cifar-10-batches-py"
    save_cifar10(folder)
    for raw, message in (
        (b"junk", "data_batch_3 is not a pickle of arrays"),
        (pickle.dumps([1]), "must be a dict"),
        (pickle.dumps({"data": np.zeros((1, 5), np.uint8), "labels": [1]}), r"uint8 \(n, 3072\)"),
        (batch([10]), r"0\.\.9"),
    ):
        (folder / "data_batch_3").write_bytes(raw)
        with pytest.raises(InvalidInput, match=message):
            read_batches(tmp_path, fine_labels=False)
    (folder / "data_batch_3").unlink()
    with pytest.raises(InvalidInput, match="Unpack the archive again"):
        read_batches(tmp_path, fine_labels=False)
    for content, message in ((b"junk", "cannot read"), (None, "lacks cifar-10-batches-py/data_batch_1")):
        packed = tmp_path / f"packed-{message.split()[0]}"
        packed.mkdir()
        archive = packed / "cifar-10-python.tar.gz"
        if content is None:
            tarfile.open(archive, "w:gz").close()
        else:
            archive.write_bytes(content)
        with pytest.raises(InvalidInput, match=message):
            read_batches(packed, fine_labels=False)


def test_cifar10_as_jpeg(tmp_path: Path) -> None:
    grey = np.array([0, 85, 170, 255], dtype=np.uint8)
    streams = []
    for level in grey:
        stream = io.BytesIO()
        Image.fromarray(np.full((32, 32, 3), level, dtype=np.uint8)).save(stream, "JPEG")
        streams.append(stream.getvalue())
    offsets = np.cumsum([0, *map(len, streams)])
    joined = np.frombuffer(b"".join(streams), dtype=np.uint8)
    arrays = {"jpeg": joined, "offsets": offsets, "y": np.arange(4)}
    both = {f"{kind}_{part}": value for kind, value in arrays.items() for part in ("train", "test")}
    np.savez(tmp_path / "cifar10_jpeg.npz", **both)  # type: ignore[arg-type]
    data = load("cifar10", folder=tmp_path)
    assert torch.allclose(data.train.inputs.mean((1, 2, 3)), torch.from_numpy(grey).float() / 255, atol=0.01)
    assert "lossy" in data.source
    both["offsets_test"] = offsets - np.array([0, 5, 0, 0, 0])
    np.savez(tmp_path / "cifar10_jpeg.npz", **both)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"picture 0 of .* cannot be decoded"):
        load("cifar10", folder=tmp_path)


@pytest.mark.skipif(not (DATA / "mnist.npz").is_file(), reason="TACIT_DATA has no mnist.npz")
def test_mnist() -> None:
    data = load("mnist", folder=DATA)
    assert data.train.inputs.shape == (60_000, 1, 28, 28)
    assert data.test.inputs.shape == (10_000, 1, 28, 28)
    assert torch.equal(torch.bincount(data.test.targets)[:3], torch.tensor([980, 1135, 1032]))
    assert float(data.train.inputs.mean()) == pytest.approx(0.1307, abs=1e-4)
    with np.load(DATA / "mnist.npz") as raw:
        pixels = torch.from_numpy(raw["x_test"][:100].astype(np.float32) / 255)
    assert torch.equal(data.test.inputs[:100, 0], pixels)


# Downloads


CONTENT = bytes(range(256)) * 40_000  # 10 MB: several chunks


@pytest.fixture
def remote(tmp_path: Path) -> RemoteFile:
    source = tmp_path / "source.bin"
    source.write_bytes(CONTENT)
    return RemoteFile(source.as_uri(), hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that promises 1000 bytes under /torn, and hangs up after 10; no proxy stands before it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404 if self.path == "/absent" else 200)
            self.send_header("Content-Length", "1000" if self.path == "/torn" else "10")
            self.end_headers()
            self.wfile.write(b"0123456789")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  named by the base class
            pass

    monkeypatch.setenv("no_proxy", "*")
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def at_each_chunk(monkeypatch: pytest.MonkeyPatch, told: Callable[[int], None]) -> None:
    """Calls ``told`` in the place of the bar, with the bytes of each chunk."""

    class Bar:
        def __init__(self, total: int | None, **_: Any) -> None:
            self.total, self.update = total, told

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *problem: object) -> None:
            assert self.total == len(CONTENT)

    monkeypatch.setattr("tqdm.auto.tqdm", Bar)


def test_fetches_and_checks(tmp_path: Path, remote: RemoteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    at_each_chunk(monkeypatch, seen.append)
    path = fetch(remote, tmp_path / "cache")
    assert path == tmp_path / "cache" / "source.bin"
    assert path.read_bytes() == CONTENT
    assert sum(seen) == len(CONTENT)
    assert len(seen) > 5


def test_a_file_with_the_right_checksum_is_not_fetched_again(tmp_path: Path, remote: RemoteFile) -> None:
    path = fetch(remote, tmp_path / "cache")
    (tmp_path / "source.bin").unlink()
    assert fetch(remote, tmp_path / "cache") == path


def test_a_wrong_checksum_leaves_nothing_behind(tmp_path: Path, remote: RemoteFile) -> None:
    wrong = RemoteFile(remote.url, "0" * 64)
    with pytest.raises(InvalidInput, match=f"has the sha256 {remote.sha256}, not 0+"):
        fetch(wrong, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_interrupted_download_leaves_nothing_behind_and_keeps_the_old_file(
    tmp_path: Path, remote: RemoteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "source.bin").write_bytes(b"older")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    at_each_chunk(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(remote, cache)
    assert [path.read_bytes() for path in cache.iterdir()] == [b"older"]


def test_over_http(tmp_path: Path, server: str) -> None:
    good = RemoteFile(f"{server}/ten", hashlib.sha256(b"0123456789").hexdigest())
    assert fetch(good, tmp_path).read_bytes() == b"0123456789"


@pytest.mark.parametrize("path", ["/absent", "/torn"])
def test_http_failures_say_what_to_do(tmp_path: Path, server: str, path: str) -> None:
    with pytest.raises(InvalidInput, match=r"cannot fetch http.*TACIT_DATA|has the sha256"):
        fetch(RemoteFile(server + path, hashlib.sha256(b"0123456789x").hexdigest()), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_load_downloads_only_when_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it: four files are fetched to the cache with their checksums, then found there."""
    monkeypatch.delenv("TACIT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    origin = tmp_path / "origin"
    origin.mkdir()
    x, y = np.full((2, 28, 28), 51, dtype=np.uint8), np.array([3, 4], dtype=np.uint8)
    remotes = []
    for file, values in zip(IDX_FILES, (x, y, x, y), strict=True):
        raw = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()
        path = origin / f"{file}.gz"
        path.write_bytes(gzip.compress(raw))
        remotes.append(RemoteFile(path.as_uri(), sha256_of(path)))
    sets = dict(standard._IMAGE_SETS)
    entry = standard._ImageSet(sets["mnist"].find, tuple(remotes), "mnist", sets["mnist"].files)
    monkeypatch.setitem(standard._IMAGE_SETS, "mnist", entry)
    with pytest.raises(InvalidInput, match="download=True"):
        load("mnist")
    assert not (tmp_path / "cache" / "tacit").exists()
    data = load("mnist", download=True)
    assert data.train.targets.tolist() == [3, 4]
    assert float(data.train.inputs.mean()) == pytest.approx(0.2)
    assert len(list((tmp_path / "cache" / "tacit" / "mnist").iterdir())) == 4
    assert load("mnist").name == "mnist"  # from the cache
