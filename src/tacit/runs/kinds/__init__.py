"""Which kinds of data are there? One file each, with all that runs, models and predictions need of it.

* ``base``: the interface; a new kind is one more file, and an entry in the list below.
* ``table``: rows of a table; ``pictures``: a folder of pictures; ``text``: lines of text.
* ``documents``: a corpus for a language model; ``arrays``: numbers of a standard data set.
"""

from collections.abc import Mapping
from typing import Any

from tacit.runs.kinds.arrays import Arrays
from tacit.runs.kinds.base import Kind, Piece, Progress, silent
from tacit.runs.kinds.documents import Documents
from tacit.runs.kinds.pictures import Pictures
from tacit.runs.kinds.table import Table
from tacit.runs.kinds.text import Text
from tacit.runs.sections import DataSection

__all__ = [
    "Arrays", "Documents", "Kind", "Pictures", "Piece", "Progress", "Table", "Text", "kind_from", "kind_of",
    "silent",
]  # fmt: skip  # fmt: skip

_KINDS: tuple[type[Kind], ...] = (Table, Pictures, Text, Documents, Arrays)


def kind_of(section: DataSection) -> type[Kind]:
    """The kind of the data that a run file names."""
    return next(kind for kind in _KINDS if section.source in kind.sources)


def kind_from(data: Mapping[str, Any]) -> Kind:
    """The kind that the file of a model describes.

    :raises ValueError: if there is none like that, or a part of it is missing or wrong.
    """
    found = [kind for kind in _KINDS if kind.kind == data["kind"] and kind is not Documents]
    if not found:
        raise ValueError(f"there is no kind of data {data['kind']!r}")
    return found[0].from_data(data)
