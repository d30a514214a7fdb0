"""Access to data files, in the user's folders or by a download whose SHA-256 is checked."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO

from tacit.errors import InvalidInput, MissingExtra, needed

_CHUNK = 1 << 20
_TIMEOUT = 60.0  # seconds without a byte before an error
_QUIET = 2.0  # seconds before a progress bar is worth showing


@dataclass(frozen=True)
class RemoteFile:
    """A file at an official URL, and the SHA-256 that it must have."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        """The file's name, the last part of its URL."""
        return self.url.rsplit("/", 1)[-1]


def download(remote: RemoteFile, folder: Path) -> Path:
    """Return ``folder / remote.name``, and download it unless it exists with the right checksum.

    The download goes to a temporary file in the same folder, which is renamed to the final name once its
    checksum is verified. So a file under the final name is always complete, no partial file remains, and two
    processes can download at the same time. A download that takes more than 2 s shows a progress bar.

    Raises:
        InvalidInput: if the URL cannot be reached, or the checksum is wrong.
    """
    target = folder / remote.name
    if target.is_file() and sha256_of(target) == remote.sha256:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    handle, partial_name = tempfile.mkstemp(dir=folder, prefix=f".{remote.name}.", suffix=".partial")
    partial = Path(partial_name)
    try:
        with os.fdopen(handle, "wb") as file:
            checksum = _copy(remote, file)
        if checksum != remote.sha256:
            raise InvalidInput(
                f"{remote.url} has the sha256 {checksum}, not {remote.sha256}: the file is damaged or was "
                f"replaced, and the download was deleted. Try again, or put a good copy at {target}."
            )
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(remote: RemoteFile, file: IO[bytes]) -> str:
    """Download the bytes into ``file``, and return their SHA-256."""
    from tqdm.auto import tqdm  # widgets in a notebook, text elsewhere

    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(remote.url, timeout=_TIMEOUT) as response:
            length = int(response.headers.get("Content-Length") or 0) or None
            with tqdm(
                total=length, desc=remote.name, unit="B", unit_scale=True, delay=_QUIET, leave=False
            ) as bar:
                while chunk := response.read(_CHUNK):
                    file.write(chunk)
                    digest.update(chunk)
                    bar.update(len(chunk))
    except (urllib.error.URLError, HTTPException, OSError, ValueError) as problem:
        raise InvalidInput(
            f"cannot fetch {remote.url}: {problem}. Without a network, put {remote.name} in a folder "
            "and name that folder (folder=..., or the environment variable TACIT_DATA)."
        ) from None
    return digest.hexdigest()


def search_folders(folder: Path | None) -> tuple[Path, ...]:
    """Return the folders to search, in order: ``folder``, the folder in TACIT_DATA, the user's cache.

    Raises:
        InvalidInput: if ``folder``, or the folder in TACIT_DATA, does not exist.
    """
    folders: list[Path] = []
    if folder is not None:
        folders.append(_existing("folder", Path(folder)))
    if variable := os.environ.get("TACIT_DATA"):
        folders.append(_existing("the environment variable TACIT_DATA", Path(variable)))
    with contextlib.suppress(MissingExtra):  # downloads need platformdirs, so without it there are none
        folders.append(user_cache())
    return tuple(folders)


def user_cache() -> Path:
    """Return the folder for downloads, such as ``~/.cache/tacit``.

    Raises:
        MissingExtra: if platformdirs is not installed.
    """
    platformdirs = needed("platformdirs", "cli", "Finding the user's cache folder")
    return Path(platformdirs.user_cache_dir("tacit"))


def _existing(name: str, path: Path) -> Path:
    expanded = path.expanduser()
    if not expanded.is_dir():
        raise InvalidInput(f"{name} must name an existing folder; got {str(path)!r}.")
    return expanded
