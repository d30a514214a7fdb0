"""Files that are written whole or not at all, and the resume state among them."""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

from tacit.errors import InvalidInput

__all__ = ["load_state", "save_state", "write_atomically"]


def write_atomically(path: Path, write: Callable[[IO[bytes]], object], *, mode: int = 0o644) -> None:
    """Write beside ``path``, flush to the disk, then rename: a crash or a full disk leaves the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
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


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Save a resume state, readable by its owner alone, because it holds the key of the noise."""
    write_atomically(path, lambda file: torch.save(state, file), mode=0o600)


def load_state(path: Path, expected_format: int) -> dict[str, Any]:
    """Load a resume state; nothing in it is executed."""
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except FileNotFoundError:
        raise InvalidInput(f"there is no resume state at {path}. Was the run ever saved?") from None
    except (RuntimeError, EOFError, pickle.UnpicklingError) as problem:
        raise InvalidInput(f"{path} is not a readable resume state: {problem}") from None
    if not isinstance(state, dict) or state.get("format") != expected_format:
        raise InvalidInput(f"{path} is not a resume state that this version of Tacit can read.")
    return state
