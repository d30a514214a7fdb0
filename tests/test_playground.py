"""The playground's page: in step with its sources, self-contained, served to this machine alone.

What the page computes is tested by ``make playground-test``, which needs Node and Chromium.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tacit.accounting import account
from tacit.cli.app import run
from tacit.cli.train import PAGE, serve
from tacit.errors import InvalidInput
from tacit.events import Gaussian, PoissonSampled, Repeat
from tacit.runs import read_config

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "playground"
SHARED = [ROOT / "src/tacit/report/templates" / name for name in ("colours.css", "logo.svg")]
FIXTURE = SOURCES / "tests" / "expected" / "run"
MOST_BYTES = 250_000


def digest(folder: Path) -> str:
    """Return the digest of the sources, as ``playground/build.mjs`` makes it."""
    files = [*(path for path in (folder / "src").rglob("*") if path.is_file())]
    files += [folder / "build.mjs", folder / "package-lock.json"]
    names = [(path.relative_to(folder).as_posix(), path) for path in files]
    names += [(f"../{path.relative_to(ROOT).as_posix()}", path) for path in SHARED]
    found = hashlib.sha256()
    for name, path in sorted(names):
        found.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def test_the_page_is_built_from_the_sources_that_are_committed() -> None:
    named = re.search(r'<meta name="tacit-sources" content="(\w+)">', PAGE.read_text(encoding="utf-8"))
    assert named is not None
    assert named[1] == digest(SOURCES), "run make playground, and commit what it builds"


def test_the_page_would_be_noticed_if_a_source_changed(tmp_path: Path) -> None:
    shutil.copytree(SOURCES / "src", tmp_path / "src")
    for name in ("build.mjs", "package-lock.json"):
        shutil.copy(SOURCES / name, tmp_path)
    assert digest(tmp_path) == digest(SOURCES)
    (tmp_path / "src" / "text.ts").write_text("other", encoding="utf-8")
    assert digest(tmp_path) != digest(SOURCES)


def test_the_page_is_small_and_loads_nothing() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(page.encode()) <= MOST_BYTES
    outside = [
        link for link in re.findall(r"https?://[^\s\"'`)]+", page) if "www.w3.org/2000/svg" not in link
    ]
    assert not outside
    assert not re.search(r"\b(?:fetch|XMLHttpRequest|importScripts|WebSocket|sendBeacon)\(", page)


def test_the_packages_are_pinned_and_name_no_registry() -> None:
    lock = (SOURCES / "package-lock.json").read_text(encoding="utf-8")
    assert "resolved" not in lock
    wanted = json.loads((SOURCES / "package.json").read_text(encoding="utf-8"))["devDependencies"]
    assert wanted
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values()), wanted


@pytest.fixture
def port() -> Iterator[int]:
    server = serve(0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield int(server.server_address[1])
    server.shutdown()
    thread.join()
    server.server_close()


def ask(
    port: int, path: str, method: str = "GET", host: str | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={"Host": host} if host else {})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_the_server_gives_the_page_and_nothing_else(port: int) -> None:
    response, body = ask(port, "/?from=somewhere")
    assert response.status == 200
    assert body == PAGE.read_bytes()
    assert "default-src 'none'" in (response.getheader("Content-Security-Policy") or "")
    assert ask(port, "/", "HEAD")[1] == b""
    for other in ("/../app.py", "/app.py", "//etc/passwd", "/index.html/x"):
        assert ask(port, other)[0].status == 404


def test_the_server_answers_no_other_name_that_points_to_this_machine(port: int) -> None:
    assert ask(port, "/", host=f"localhost:{port}")[0].status == 200
    assert ask(port, "/", host=f"evil.example:{port}")[0].status == 404


def test_a_port_that_is_taken_is_named_with_the_way_out(
    port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidInput, match=f"port {port} .* Remove --port"):
        serve(port)
    assert run(["playground", "--port", str(port), "--no-browser"]) == 2
    assert "Remove --port" in capsys.readouterr().err


def test_the_command_prints_its_address_opens_it_and_ends_by_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("tacit.cli.train.webbrowser.open", opened.append)

    def interrupted(_server: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tacit.cli.train.ThreadingHTTPServer.serve_forever", interrupted)
    assert run(["playground"]) == 0
    assert len(opened) == 1
    assert f"at {opened[0]}" in capsys.readouterr().out
    assert run(["playground", "--no-browser"]) == 0
    assert len(opened) == 1


@pytest.mark.usefixtures("no_pictures")
def test_the_run_file_that_the_page_copies_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``playground/tests/link.test.ts`` holds the page to these very files."""
    for path in FIXTURE.iterdir():
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    config = read_config("run.toml")
    assert (config.privacy.noise_multiplier, config.model.hidden, config.training.steps) == (1.0, [8], 300)
    text = Path("run.toml").read_text(encoding="utf-8")
    Path("short.toml").write_text(text.replace("steps = 300", "steps = 30"), encoding="utf-8")
    assert run(["train", "short.toml", "--out", "out"]) == 0
    statement = json.loads(Path("out/statement.json").read_text(encoding="utf-8"))
    event = Repeat(PoissonSampled(0.1, Gaussian(1.0)), 30)
    assert statement["guarantee"]["epsilon"] == account(event, adjacency="add-remove").epsilon(1e-4)
