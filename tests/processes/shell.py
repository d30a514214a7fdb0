"""The command line in this process, and its output: for tests of commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tacit.cli.app import run


class Shell:
    """Runs commands, checks their exit codes, and returns their output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def both(self, *arguments: str | Path, code: int = 0) -> tuple[str, str]:
        """Return the output of a command, and its messages."""
        self._capsys.readouterr()
        ended = run([*map(str, arguments)])
        out, err = self._capsys.readouterr()
        assert ended == code, out + err
        return out, err

    def __call__(self, *arguments: str | Path, code: int = 0) -> str:
        """Return all output of a command, on one line."""
        return " ".join("".join(self.both(*arguments, code=code)).split())

    def out(self, *arguments: str | Path, code: int = 0) -> str:
        """Return the output of a command."""
        return self.both(*arguments, code=code)[0]

    def err(self, *arguments: str | Path, code: int = 0) -> str:
        """Return the messages of a command."""
        return self.both(*arguments, code=code)[1]

    def data(self, *arguments: str | Path, code: int = 0) -> Any:
        """Return the JSON that a command prints."""
        return json.loads(self.out(*arguments, "--json", code=code))

    def refused(self, *arguments: str | Path, code: int) -> str:
        """Return the one message of a command that does nothing: without a traceback, and nothing printed."""
        out, err = self.both(*arguments, code=code)
        assert out == ""
        assert "Traceback" not in err
        message = re.sub(r"\AReading .* …\n", "", err)
        assert message.startswith("refused: " if code == 1 else "error: ")
        return message
