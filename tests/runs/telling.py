"""A run in another process, which tells the test of every step, and may be killed after any."""

from __future__ import annotations

import os
from pathlib import Path

import warm


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


class Reporter:
    """Tells the parent of every step."""

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:
        say(f"step {steps}")

    def on_row(self, row: object) -> None:
        """Nothing: lines come from time to time."""


class Trainer:
    """The parent's side of a script that, told a line, trains in a child and says how that ended."""

    def __init__(self, script: str) -> None:
        self.server = warm.Server(script)

    def start(self, folder: Path, *, resume: bool, more: str = "") -> int:
        """Train in ``folder``; the process."""
        self.server.tell(f"{'yes' if resume else 'no'} {more}{folder}")
        return int(self.next("pid"))

    def next(self, *kinds: str) -> str:
        """The value of the next line of one of these kinds; an exit is never skipped."""
        while True:
            found, value = self.server.stdout.readline().split()
            if found in kinds:
                return str(value)
            assert found != "exit", f"it ended with {value}"

    def steps(self, count: int) -> bool:
        """Wait for so many steps; False if the run came to its end before."""
        while count > 0:
            found, value = self.server.stdout.readline().split()
            if found == "exit":
                assert value == "0", f"it ended with {value}"
                return False
            count -= found == "step"
        return True
