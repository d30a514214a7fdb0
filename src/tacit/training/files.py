"""Files that are written whole or not at all, and the resume state among them."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

from tacit.errors import InvalidInput

__all__ = ["load_state", "remove_leftovers", "save_state", "write_atomically"]


def write_atomically(path: Path, write: Callable[[IO[bytes]], object], *, mode: int = 0o644) -> None:
    """Write beside ``path``, flush to the disk, then rename: a crash or a full disk leaves the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    """Make the rename itself last through a power cut, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes left beside ``path``; only where nobody else writes it now."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        leftover.unlink(missing_ok=True)


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Save a resume state, readable by its owner alone, because it holds the key of the noise."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    buffer = io.BytesIO()  # torch would hide what goes wrong with a file, such as a full disk
    torch.save(state, buffer)
    write_atomically(path, lambda file: file.write(buffer.getbuffer()), mode=0o600)


def load_state(path: Path, expected_format: int) -> dict[str, Any]:
    """Load a resume state; nothing in it is executed."""
    try:
        content = io.BytesIO(path.read_bytes())  # what goes wrong from here on is the content's fault
    except FileNotFoundError:
        raise InvalidInput(f"there is no resume state at {path}. Was the run ever saved?") from None
    try:
        state = torch.load(content, weights_only=True, map_location="cpu")
    except (RuntimeError, EOFError, OSError, LookupError, TypeError, ValueError, pickle.UnpicklingError):
        raise InvalidInput(
            f"{path} is not a readable resume state: it is damaged, or something else wrote it. Put back a "
            "copy of the file, or start a new run."
        ) from None
    if not isinstance(state, dict) or state.get("format") != expected_format:
        raise InvalidInput(f"{path} is not a resume state that this version of Tacit can read.")
    return state
