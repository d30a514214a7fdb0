"""How do records, given for prediction, become what the model was trained on? By what the run declared.

Each kind of data has a class: frozen data that goes into the model's file, and comes back from it.

* ``base``: what all kinds have in common.
* ``table``: rows of a table, by declared columns.
* ``pictures``: files of pictures.
* ``text``: lines of text.
* ``arrays``: numbers of a standard data set.

**Guarantee**

* What goes into the file are public facts: settings of the configuration, and what is known of a standard
  data set; nothing is read from the records.
* A record's numbers depend on that record and on these facts alone.
"""

from collections.abc import Mapping
from typing import Any

from tacit.datasets import Dataset
from tacit.runs.config import Config
from tacit.runs.preprocessing.arrays import ArrayInputs
from tacit.runs.preprocessing.base import Piece, Preprocessing
from tacit.runs.preprocessing.pictures import PictureInputs
from tacit.runs.preprocessing.table import TableInputs
from tacit.runs.preprocessing.text import TextInputs

__all__ = [
    "ArrayInputs",
    "PictureInputs",
    "Piece",
    "Preprocessing",
    "TableInputs",
    "TextInputs",
    "preprocessing_from",
    "preprocessing_of",
]


def preprocessing_from(data: Mapping[str, Any]) -> Preprocessing:
    """The preprocessing that the file of a model describes.

    :raises ValueError: if there is none like that, or a part of it is missing or wrong.
    """
    match data["kind"]:
        case "table":
            return TableInputs.from_data(data)
        case "pictures":
            return PictureInputs.from_data(data)
        case "text":
            return TextInputs.from_data(data)
        case "arrays":
            return ArrayInputs.from_data(data)
        case kind:
            raise ValueError(f"there is no preprocessing {kind!r}")


def preprocessing_of(config: Config, data: Dataset) -> Preprocessing:
    """What made the records of a run from the data that its configuration names."""
    section = config.data
    if data.encoder is not None:
        return TableInputs(data.encoder)
    if section.images is not None:
        return PictureInputs((section.size[0], section.size[1]), section.colours)
    if data.alphabet:
        return TextInputs(data.alphabet, data.input_shape[0] - 1)
    shape = data.pictures or data.input_shape
    low = -1.0 if data.features else 0.0  # tables are scaled to [-1, 1], pixels to [0, 1]
    return ArrayInputs(shape, low, 1.0, data.source, data.features)
