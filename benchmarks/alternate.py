"""Worker processes that take turns: each measures on request, while the others wait.

A worker answers each line of JSON on its standard input with a line on its standard output.  It has its own
memory, threads and copy of the library.  As workers alternate, a slow moment of the machine affects all of
them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Worker", "all_ended", "serve"]

Answer = dict[str, Any]


class Worker:
    """A process that runs ``script`` and answers requests."""

    def __init__(
        self,
        name: str,
        script: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        python: str = sys.executable,
    ) -> None:
        self.name = name
        command = [python, str(script), *arguments]
        self._process = subprocess.Popen(
            command, env=dict(os.environ) | dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def ask(self, what: str, **how: Any) -> Answer:
        """Send a request and wait for the answer."""
        self.send(what, **how)
        return self.answer()

    def send(self, what: str, **how: Any) -> None:
        """Send a request, without waiting for the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"what": what} | how) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def answer(self) -> Answer:
        """Wait for the answer to a request that was sent."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        found: Answer = json.loads(line)
        return found

    def kill(self) -> None:
        """End the process at once; a caller that waits for its answer gets an error."""
        self._process.kill()

    def _ended(self) -> RuntimeError:
        return RuntimeError(
            f"the worker {self.name} ended with {self._process.wait()}; its errors are above."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if error is not None:
            self._process.kill()
        with suppress(BrokenPipeError):  # it ended before, which its last request reported
            self._process.stdin.close()  # the worker ends when its input ends
        self._process.stdout.close()
        self._process.wait()


@contextmanager
def all_ended(workers: Mapping[str, Callable[[], Worker]]) -> Iterator[dict[str, Worker]]:
    """Start workers together, by name, wait until each is ready, and end all at the end."""
    with ExitStack() as stack:
        started = {name: stack.enter_context(start()) for name, start in workers.items()}
        for worker in started.values():
            worker.send("ready")
        for worker in started.values():
            worker.answer()
        yield started


def serve(requests: Mapping[str, Callable[..., Answer]]) -> None:
    """Answer requests until the input ends; redirect other prints to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(requests[request.pop("what")](**request)) + "\n")
        answers.flush()
