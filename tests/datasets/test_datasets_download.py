"""Downloads: checked, atomic, and clear about what to do when they fail.  Everything here is local."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.columns import Column
from tacit.datasets import download as module
from tacit.datasets import load, load_image_folder, load_table, registry
from tacit.datasets.arrays import IDX_FILES
from tacit.datasets.download import RemoteFile, download, sha256_of
from tacit.errors import InvalidInput, MissingExtra

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
    path = download(remote, tmp_path / "cache")
    assert path == tmp_path / "cache" / "source.bin"
    assert path.read_bytes() == CONTENT
    assert sum(seen) == len(CONTENT)
    assert len(seen) > 5


def test_a_file_with_the_right_checksum_is_not_fetched_again(tmp_path: Path, remote: RemoteFile) -> None:
    path = download(remote, tmp_path / "cache")
    (tmp_path / "source.bin").unlink()
    assert download(remote, tmp_path / "cache") == path


def test_a_damaged_file_in_the_cache_is_replaced(tmp_path: Path, remote: RemoteFile) -> None:
    path = download(remote, tmp_path / "cache")
    path.write_bytes(b"damaged")
    assert sha256_of(download(remote, tmp_path / "cache")) == remote.sha256


def test_a_wrong_checksum_leaves_nothing_behind(tmp_path: Path, remote: RemoteFile) -> None:
    wrong = RemoteFile(remote.url, "0" * 64)
    with pytest.raises(InvalidInput, match=f"has the sha256 {remote.sha256}, not 0+"):
        download(wrong, tmp_path / "cache")
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
        download(remote, cache)
    assert [path.read_bytes() for path in cache.iterdir()] == [b"older"]


def test_over_http(tmp_path: Path, server: str) -> None:
    good = RemoteFile(f"{server}/ten", hashlib.sha256(b"0123456789").hexdigest())
    assert download(good, tmp_path).read_bytes() == b"0123456789"


@pytest.mark.parametrize("path", ["/absent", "/torn"])
def test_http_failures_say_what_to_do(tmp_path: Path, server: str, path: str) -> None:
    with pytest.raises(InvalidInput, match=r"cannot fetch http.*TACIT_DATA|has the sha256"):
        download(RemoteFile(server + path, hashlib.sha256(b"0123456789x").hexdigest()), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_such_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(InvalidInput, match=r"put nothing\.gz in a folder"):
        download(RemoteFile((tmp_path / "nothing.gz").as_uri(), "0" * 64), tmp_path)
    with pytest.raises(InvalidInput, match="cannot fetch"):
        download(RemoteFile("http://127.0.0.1:1/x", "0" * 64), tmp_path)


def test_a_long_download_shows_a_bar_and_a_short_one_does_not(
    tmp_path: Path, remote: RemoteFile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_QUIET", 1e9)
    download(remote, tmp_path / "short")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(module, "_QUIET", -1.0)
    download(remote, tmp_path / "long")
    assert "source.bin" in capsys.readouterr().err


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make a package look as if it were not installed."""
    for name in (package, *(name for name in sys.modules if name.startswith(f"{package}."))):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(
    ("package", "extra", "call"),
    [
        ("sklearn", "sklearn", lambda folder: load("digits")),
        ("platformdirs", "cli", lambda folder: load("mnist", folder=folder, download=True)),
        ("PIL", "images", lambda folder: load("cifar10", folder=folder)),
        (
            "PIL",
            "images",
            lambda folder: load_image_folder(folder, size=(2, 2), classes=("a",), test_fraction=0.5),
        ),
        ("pyarrow", "tables", lambda folder: read_parquet(folder / "x.parquet")),
    ],
)
def test_a_missing_package_is_named_with_its_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str, call: Any
) -> None:
    monkeypatch.delenv("TACIT_DATA", raising=False)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "picture.png").write_bytes(b"")
    (tmp_path / "x.parquet").write_bytes(b"")
    arrays = {"jpeg": np.zeros(1, np.uint8), "offsets": np.array([0, 1]), "y": np.array([0])}
    both = {f"{kind}_{part}": value for kind, value in arrays.items() for part in ("train", "test")}
    np.savez(tmp_path / "cifar10_jpeg.npz", **both)  # type: ignore[arg-type]
    hide(monkeypatch, package)
    with pytest.raises(MissingExtra, match=rf"pip install 'tacit-dp\[{extra}\]'"):
        call(tmp_path)


DOCUMENTS = """
import pathlib, sys

sys.modules["pyarrow"] = None
from tacit.datasets import Cutting, load_documents

path = pathlib.Path(sys.argv[1])
cutting = Cutting(3, "first", padding=0)
print(len(load_documents(
    path, text="note", encode=lambda text: [*text.encode()], vocabulary=256, cutting=cutting, test_path=path
).train.inputs))
"""


def test_documents_in_json_lines_need_no_pyarrow(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text('{"note": "abc"}\n{"note": "be"}\n')
    command = [sys.executable, "-c", DOCUMENTS, str(path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "2\n"


def read_parquet(path: Path) -> object:
    number = Column(kind="number", lower=0, upper=1)
    schema = {"a": number, "b": number}
    return load_table(path, target="b", schema=schema, test_path=path)


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
    sets = dict(registry._IMAGE_SETS)
    entry = registry._ImageSet(sets["mnist"].find, tuple(remotes), "mnist", sets["mnist"].files)
    monkeypatch.setitem(registry._IMAGE_SETS, "mnist", entry)
    with pytest.raises(InvalidInput, match="download=True"):
        load("mnist")
    assert not (tmp_path / "cache" / "tacit").exists()
    data = load("mnist", download=True)
    assert data.train.targets.tolist() == [3, 4]
    assert float(data.train.inputs.mean()) == pytest.approx(0.2)
    assert len(list((tmp_path / "cache" / "tacit" / "mnist").iterdir())) == 4
    assert load("mnist").name == "mnist"  # from the cache


def test_official_files_have_plausible_addresses_and_checksums() -> None:
    remotes = [remote for entry in registry._IMAGE_SETS.values() for remote in entry.remote]
    assert len(remotes) == 10
    assert len({remote.sha256 for remote in remotes}) == 10
    for remote in remotes:
        assert len(bytes.fromhex(remote.sha256)) == 32
        assert remote.url.startswith("http")
        assert remote.name.endswith(".gz")


def test_two_threads_that_fetch_at_once_do_not_disturb_each_other(
    tmp_path: Path, remote: RemoteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[Path] = []
    at_each_chunk(monkeypatch, lambda _: time.sleep(0.005))
    threads = [
        threading.Thread(target=lambda: paths.append(download(remote, tmp_path / "cache"))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() == CONTENT for path in paths] == [True, True]
    assert len(list((tmp_path / "cache").iterdir())) == 1
