"""A PostgreSQL server of one's own, for the tests that need one: on a socket in a folder, gone afterwards."""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_USER = "postgres"  # PostgreSQL refuses to run as root


def binaries() -> Path | None:
    """The folder with ``initdb`` and ``pg_ctl``: on the path, else the newest where distributions put it."""
    found = shutil.which("pg_ctl")
    if found is not None:
        return Path(found).resolve().parent
    installed = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "pg_ctl").exists()]
    return max(installed, key=lambda path: int(path.parent.name), default=None)


def missing() -> str:
    """Return the reason why there can be no server here; empty if there can."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed"
    if binaries() is None:
        return "PostgreSQL is not installed"
    if os.geteuid() == 0 and (shutil.which("runuser") is None or not _known(_USER)):
        return f"PostgreSQL does not run as root, and there is no user {_USER}"
    return ""


def _known(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


@dataclass(frozen=True)
class Server:
    """A server and its data. ``url`` is SQLAlchemy's."""

    folder: Path

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{_USER}@/postgres?host={self.folder}"

    def start(self, *settings: str) -> None:
        """Start it; ``settings`` like ``fsync=off``."""
        options = " ".join(
            f"-c {setting}"
            for setting in ("listen_addresses=", f"unix_socket_directories={self.folder}", *settings)
        )
        log = str(self.folder / "log")
        self._control("start", "--wait", "--silent", f"--log={log}", f"--options={options}")

    def stop(self, mode: str = "fast") -> None:
        """Stop it: ``fast``, or ``immediate``, as after a crash."""
        self._control("stop", "--wait", "--silent", f"--mode={mode}")

    def limit(self, largest_file: str) -> None:
        """The size up to which files may grow under clients that come from now on: bytes, or "unlimited"."""
        process = (self.folder / "data" / "postmaster.pid").read_text().split()[0]
        _as_user("prlimit", f"--pid={process}", f"--fsize={largest_file}:")

    def _control(self, *arguments: str) -> None:
        _run("pg_ctl", *arguments, "--timeout=600", f"--pgdata={self.folder / 'data'}")


def _run(program: str, *arguments: str) -> None:
    folder = binaries()
    assert folder is not None
    _as_user(str(folder / program), *arguments)


def _as_user(*command: str) -> None:
    if os.geteuid() == 0:
        command = ("runuser", "-u", _USER, "--", *command)
    with open(os.devnull, "w") as nothing:  # a pipe would stay open as long as the server runs
        subprocess.run(command, stdout=nothing, stderr=nothing, cwd="/", check=True)


def _folder() -> Path:
    """A new folder of the server's user."""
    # Not where TMPDIR points: the path of a socket is short, and the server's user must reach it.
    folder = Path(tempfile.mkdtemp(prefix="tacit-pg-", dir="/tmp"))
    if os.geteuid() == 0:
        shutil.chown(folder, _USER, _USER)
    return folder


@cache
def _made(*options: str) -> Path:
    """The data of a server that was never started, to be copied: ``initdb`` takes seven times as long."""
    folder = _folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _run("initdb", f"--pgdata={folder / 'data'}", *options)
    return folder / "data"


@contextlib.contextmanager
def running(*settings: str, made_with: Sequence[str] = ()) -> Iterator[Server]:
    """A fresh server until the end of the block; ``made_with``: options of ``initdb``."""
    folder = _folder()
    try:
        server = Server(folder)
        made = _made(*made_with, f"--username={_USER}", "--auth=trust", "--no-sync")
        _as_user("cp", "-a", str(made), str(folder / "data"))
        server.start(*settings)
        try:
            yield server
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):  # a test may have stopped it
                server.stop("immediate")
    finally:
        shutil.rmtree(folder)
