"""How is a run's resume state stored? Whole, readable by its owner alone, and of use to that run alone."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.files import write_atomically
from tacit.noise.generator import Generator
from tacit.training.resume.identity import differences

_FORMAT = 6


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Save a resume state, readable by its owner alone, because it holds the key of the noise."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    buffer = io.BytesIO()  # torch would hide an error of the file system, such as a full disk
    torch.save({"format": _FORMAT, **state}, buffer)
    write_atomically(path, lambda file: file.write(buffer.getbuffer()), mode=0o600)


def load_state(path: Path) -> dict[str, Any]:
    """Load a resume state; nothing in it is executed.

    Raises:
        InvalidInput: there is none, it is damaged, or another version of Tacit wrote it.
    """
    try:
        content = io.BytesIO(path.read_bytes())  # errors from here on come from the content
    except FileNotFoundError:
        raise InvalidInput(
            f"there is no resume state at {path}. Give the path that session.save wrote to."
        ) from None
    except OSError as problem:
        raise InvalidInput(
            f"the resume state {path} cannot be read: {problem.strerror}. Give the path of the file that "
            "session.save wrote, and let this user read it."
        ) from None
    try:
        state = torch.load(content, weights_only=True, map_location="cpu")
    except (RuntimeError, EOFError, OSError, LookupError, TypeError, ValueError, pickle.UnpicklingError):
        raise InvalidInput(
            f"{path} is not a readable resume state: it is damaged, or another program wrote it. "
            "Restore the file from a copy, or start a new run."
        ) from None
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise InvalidInput(
            f"{path} is not a resume state that this version of Tacit can read. Finish the run with the "
            "version that wrote it, or start a new run."
        )
    return state


def check_same_run(path: Path | str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse the state at ``path`` where the facts of the run ``before`` differ from those ``now``.

    Raises:
        PrivacyRefusal: they differ; the message says in which facts.
    """
    if differing := differences(before, now):
        raise PrivacyRefusal(
            f"the resume state {path} belongs to another run. What differs: {', '.join(differing)}. "
            "Going on with it would add the same noise to different sums, and the difference of the two "
            "would have no noise. Let all be as it was when that run's session was made, or start a "
            "new run."
        )


def saved_generator(path: Path | str) -> Generator:
    """The generator of a saved run: with it, the random numbers in a model can be drawn again as before."""
    state = load_state(Path(path))
    return Generator(state["key"], secure=state["secure"])
