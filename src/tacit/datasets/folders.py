"""Where are data files searched for?"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tacit.errors import InvalidInput, MissingExtra


def search_folders(folder: Path | None) -> tuple[Path, ...]:
    """The folders to search, in order: the one given, the one TACIT_DATA names, the user's cache.

    Errors: :class:`InvalidInput` if the folder given, or the one that TACIT_DATA names, does not exist.
    """
    found: list[Path] = []
    if folder is not None:
        found.append(_existing("folder", Path(folder)))
    if named := os.environ.get("TACIT_DATA"):
        found.append(_existing("the environment variable TACIT_DATA", Path(named)))
    with contextlib.suppress(MissingExtra):  # without platformdirs nothing was ever downloaded
        found.append(user_cache())
    return tuple(found)


def user_cache() -> Path:
    """The folder for downloads, such as ``~/.cache/tacit``.

    Errors: :class:`MissingExtra` without platformdirs.
    """
    try:
        from platformdirs import user_cache_dir
    except ImportError:
        raise MissingExtra("platformdirs", "cli", "Finding the user's cache folder") from None
    return Path(user_cache_dir("tacit"))


def _existing(name: str, path: Path) -> Path:
    expanded = path.expanduser()
    if not expanded.is_dir():
        raise InvalidInput(f"{name} must name an existing folder; got {str(path)!r}.")
    return expanded
