"""The command line, with one command for each verb. It only shows results and sets exit codes.

Exit codes: 0 done, 1 refused by a privacy rule or a budget, 2 bad usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from typing import Any, TextIO

__all__ = ["main"]


class _OutlivingReader(io.FileIO):
    """A pipe that takes everything after its reader has gone, such as ``head``.

    So each command runs to its end, and its verdict alone decides the exit code.
    """

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def _outliving_reader(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper) or not stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
        return stream
    pipe = io.BufferedWriter(_OutlivingReader(stream.fileno(), "wb", closefd=False))
    return io.TextIOWrapper(
        pipe, encoding=stream.encoding, errors=stream.errors, line_buffering=stream.line_buffering
    )


def main() -> None:
    """Run the command line. Errors of Tacit are printed as one paragraph, without a traceback."""
    try:
        from tacit.cli.app import run
        from tacit.launched import launched
    except ModuleNotFoundError as problem:
        if (problem.name or "").startswith("tacit"):
            raise  # a broken installation, not one without an extra
        sys.stderr.write(
            f"The command line needs more packages ({problem.name} is missing). "
            "Install them with: pip install 'tacit-dp[cli]', or 'tacit-dp[all]' for every verb.\n"
        )
        sys.exit(2)
    except KeyboardInterrupt:  # during imports; ``run`` reports a later one
        sys.exit(130)
    sys.stdout, sys.stderr = _outliving_reader(sys.stdout), _outliving_reader(sys.stderr)
    code = run(sys.argv[1:])
    if launched().processes > 1:
        # If Python ends as usual, a thread of torch's process groups aborts about a fifth of such processes,
        # and the launcher takes a finished run for a failed one.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
