"""May a run write to its folder? It checks that, and that one process alone does so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from tacit.errors import InvalidInput, reason_of
from tacit.runs.hub_layout import BASE

_PRIVATE = "private"


def resume_state(folder: Path) -> Path:
    """The path of a run's resume state."""
    return folder / _PRIVATE / "resume.pt"


def slot_files(folder: Path) -> tuple[Path, Path]:
    """The paths of the slots of an audited run, and, apart from what is released, of the coins."""
    return folder / "slots.npy", folder / _PRIVATE / "coins.npy"


def declarations_file(folder: Path) -> Path:
    """The path of what a run's table says of its declared columns, for the curator."""
    return folder / _PRIVATE / "declarations.txt"


def canary_file(folder: Path) -> Path:
    """The path of a text run's canaries: their secrets, and which of them took part."""
    return folder / _PRIVATE / "canaries.json"


def check_resumable(folder: Path) -> None:
    """Refuse to resume where no run was saved."""
    if not (state := resume_state(folder)).exists():
        raise InvalidInput(
            f"there is no run to resume in {folder}: {state} does not exist. Start it without --resume, or "
            "name its folder with --out."
        )
    if not (config := folder / "config.toml").exists():
        raise InvalidInput(
            f"{config} is missing, so the run cannot check that it goes on with the settings that "
            "it was started with. Restore the file, or start a new run."
        )


def check_empty(folder: Path, config_text: str) -> None:
    """Refuse a folder that holds anything except the files of a run that was killed before it saved."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file; choose another folder with --out.")
    state = resume_state(folder)
    if state.exists():
        raise InvalidInput(
            f"the folder {folder} holds a run already. Go on with it by --resume, or choose another folder "
            "with --out."
        )
    for entry in [*folder.glob("*"), *state.parent.glob("*")]:
        harmless = (
            entry == state.parent
            or entry == state.parent / "lock"
            or entry == folder / BASE  # of a language model, written before the state
            or entry.name.endswith(".tmp")
            or (entry == folder / "config.toml" and entry.read_text(encoding="utf-8") == config_text)
        )
        if not harmless:
            raise InvalidInput(
                f"the folder {folder} is not empty: it holds {entry.name}. Choose another folder with --out."
            )


def check_writable(folder: Path) -> None:
    """Refuse a folder that the process cannot write to, before any long work."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    effective = os.access in os.supports_effective_ids
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK, effective_ids=effective):
        raise InvalidInput(
            f"nothing can be written to {folder}: {nearest} is "
            f"{'read-only' if nearest.is_dir() else 'a file'}. Choose another folder with --out."
        )


@contextmanager
def sole_user(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system releases it when the process ends.

    Raises:
        InvalidInput: another process works on this run, or the folder cannot be locked.
    """
    path = folder / _PRIVATE / "lock"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(path, timeout=0, mode=0o600)
    try:
        lock.acquire()
    except Timeout:
        raise InvalidInput(
            f"another process is training in {folder}. Wait for it, or choose another folder with --out."
        ) from None
    except (OSError, NotImplementedError) as problem:
        raise InvalidInput(
            f"{path} cannot be locked: {reason_of(problem)}. Without a lock two processes might add "
            "the same noise to two sums. Choose a folder on another disk with --out."
        ) from None
    try:
        yield
    finally:
        lock.release()
