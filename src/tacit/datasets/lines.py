"""Which texts are bundled as lines? First names, one a record."""

from __future__ import annotations

import gzip
import string
from pathlib import Path

from tacit.datasets.dataset import Dataset
from tacit.datasets.folders import search_folders
from tacit.datasets.text import Alphabet, text_dataset
from tacit.errors import InvalidInput, without_values

NAMES_ALPHABET = " " + string.ascii_lowercase + string.digits
"""What names consist of, and secrets that are planted among them."""
NAMES_LONGEST = 15

_FILES = ("names.txt", "names.txt.gz")
_SOURCE = "https://github.com/karpathy/makemore"
_TEST_FRACTION = 0.2


def load_names(*, folder: Path | None = None) -> tuple[str, ...]:
    """32,033 first names in small letters, one a record: a usual example for small language models.

    ``names.txt``, plain or gzipped, is searched for in ``folder``, then in the folder that the environment
    variable TACIT_DATA names, then in the user's cache.

    Errors: :class:`InvalidInput` if it is nowhere, or is no text.
    """
    folders = search_folders(folder)
    for path in (place / file for place in folders for file in _FILES):
        if path.is_file():
            return _lines(path)
    places = ", ".join(str(place) for place in folders) or "no folder"
    raise InvalidInput(
        f"names.txt was not found in {places}. Take it from {_SOURCE}, put it in a folder, and name that "
        "with folder=... or the environment variable TACIT_DATA."
    )


def names_dataset(*, folder: Path | None = None) -> Dataset:
    """The same as a data set of text; about a fifth, chosen name by name, is for the test."""
    return text_dataset(
        load_names(folder=folder),
        None,
        Alphabet(NAMES_ALPHABET),
        NAMES_LONGEST,
        test_fraction=_TEST_FRACTION,
        name="names",
        source=f"first names from {_SOURCE}, one a record",
        unit="name",
    )


def _lines(path: Path) -> tuple[str, ...]:
    data = path.read_bytes()
    try:
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as problem:
        raise InvalidInput(
            f"{path} is damaged, or no text: {without_values(problem)}. Fetch it again from {_SOURCE}."
        ) from None
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not names:
        raise InvalidInput(f"{path} holds no line. Fetch it again from {_SOURCE}.")
    return names
