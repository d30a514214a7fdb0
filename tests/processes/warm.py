"""Processes that are there at once: Python's fork server imports torch once, and forks each of them.

A new interpreter imports it for five seconds, more than most tests take. What must be new (another seed of
hashes, libraries that are or are not loaded) starts one by :mod:`subprocess`.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

__all__ = ["CONTEXT", "SECONDS", "Server", "run", "start"]

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["pytest", "torch", "torch._dynamo", "torch.distributed.fsdp", "tacit.runs.train",
     "tacit.training", "tacit.ledger"]
)  # fmt: skip
SECONDS = 600
"""The time after which a process that still runs is ended."""


def start(
    script: Path | str,
    *arguments: str,
    streams: Sequence[Path | str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
) -> ForkServerProcess:
    """Run a script as ``python SCRIPT ARGUMENTS`` would.

    Args:
        streams: files that are its standard input, output and error; by default it shares the last two.
        env: all of its environment. What is read when a library is loaded, OMP_NUM_THREADS for one, was.
    """
    process = CONTEXT.Process(
        target=_be, args=(str(script), arguments, streams, dict(env or os.environ), str(cwd or Path.cwd()))
    )
    process.start()
    return process


def run(
    script: Path | str, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | str | None = None
) -> subprocess.CompletedProcess[str]:
    """Return the output of a script, and its exit code; a text is the script itself, a path its file."""
    with tempfile.TemporaryDirectory() as folder:
        code, out, err = (Path(folder) / name for name in ("code.py", "out", "err"))
        if isinstance(script, str):
            code.write_text(script, encoding="utf-8")
            script = code
        process = start(script, *arguments, streams=(os.devnull, out, err), env=env, cwd=cwd)
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
        return subprocess.CompletedProcess(
            arguments, process.exitcode or 0, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8")
        )


class Server:
    """A script that reads a line and answers with lines, one exchange after the other."""

    def __init__(self, script: Path | str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            given, answers = (Path(folder) / name for name in ("given", "answers"))
            os.mkfifo(given)
            os.mkfifo(answers)
            self.process = start(script, streams=(given, answers))
            self.stdin, self.stdout = given.open("w"), answers.open()

    def tell(self, line: str) -> None:
        self.stdin.write(f"{line}\n")
        self.stdin.flush()

    def close(self) -> None:
        self.stdin.close()
        self.process.join(SECONDS)
        self.stdout.close()


def _be(
    script: str,
    arguments: Sequence[str],
    streams: Sequence[Path | str] | None,
    environment: dict[str, str],
    folder: str,
) -> None:
    multiprocessing.set_start_method(None, force=True)  # else its own are forked by the same server
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(streams or ()):
        opened = os.open(path, os.O_NOCTTY | (os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY), 0o600)
        os.dup2(opened, number)
        os.close(opened)
    encoding, _, errors = environment.get("PYTHONIOENCODING", "utf-8").partition(":")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        kept = "backslashreplace" if number == 2 else errors or "strict"
        stream = os.fdopen(number, "w" if number else "r", encoding=encoding, errors=kept, closefd=False)
        setattr(sys, name, stream)
    os.chdir(folder)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
