"""Output into a pipe, whose reader may leave before the command ends."""

from __future__ import annotations

import io
import os
import stat
from typing import Any, TextIO


class _OutlivingReader(io.FileIO):
    """A pipe that takes everything after its reader has gone, such as ``head``.

    So each command runs to its end, and its verdict alone decides the exit code.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def outliving_reader(stream: TextIO) -> TextIO:
    """Return the stream, or if it is a pipe, one that takes everything after the reader has gone."""
    if not isinstance(stream, io.TextIOWrapper) or not stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
        return stream
    pipe = io.BufferedWriter(_OutlivingReader(stream.fileno(), "wb", closefd=False))
    return io.TextIOWrapper(
        pipe, encoding=stream.encoding, errors=stream.errors, line_buffering=stream.line_buffering
    )
