"""How does a file of records become a table of predictions? Piece by piece, in constant memory.

The table is CSV: what the record is called (``row`` from 1, ``file`` or ``line``), the ``prediction``, and
for classes ``probability_<class>`` for each.  A language model gives each line a ``log_probability``, and its
``bits_per_character``.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from tacit.errors import InvalidInput
from tacit.runs.predict import Predictor
from tacit.runs.preprocessing import Piece, TextInputs
from tacit.training.files import write_atomically

__all__ = ["PredictionProgress", "write_predictions"]

PredictionProgress = Callable[[int, int | None], None]
"""Called after each piece, with (records done, about how many there are)."""


def write_predictions(
    predictor: Predictor,
    data: Path,
    out: Path,
    *,
    overwrite: bool = False,
    threshold: float | None = None,
    progress: PredictionProgress | None = None,
) -> int:
    """Predict for every record of ``data`` and write the table to ``out``; returns the number of records.

    ``out`` is written as a whole or not at all: an error or a Ctrl-C leaves what was there before.

    Raises:
        InvalidInput: ``out`` exists, or is the data; or a record is not what the model was trained on.
    """
    check_out(out, data, overwrite=overwrite)
    predictor.check_threshold(threshold)
    total = predictor.description.preprocessing.count(data)
    done = 0

    def write(file: IO[bytes]) -> None:
        nonlocal done
        file.write(_lines([_header(predictor)]))
        for piece in predictor.pieces(data):
            file.write(_lines(_rows(predictor, piece, threshold)))
            done += len(piece.names)
            if progress is not None:
                progress(done, total)

    write_atomically(out, write)
    return done


def check_out(out: Path, data: Path, *, overwrite: bool) -> None:
    """Refuse a place for the table that would lose something."""
    if out.exists() and out.resolve() == data.resolve():
        raise InvalidInput(f"{out} is the data itself. Name another file with --out.")
    if out.is_dir():
        raise InvalidInput(
            f"{out} is a folder. Name a file in it with --out, such as {out / 'predictions.csv'}."
        )
    if out.suffix != ".csv":
        raise InvalidInput(
            f"{out} should end in .csv, as the predictions are a table in CSV. Rename it with --out."
        )
    if out.exists() and not overwrite:
        raise InvalidInput(
            f"{out} exists already. Name another file with --out, or replace it by --overwrite."
        )


def _header(predictor: Predictor) -> list[str]:
    description = predictor.description
    label = description.preprocessing.label
    if description.task == "text":
        return [label, "log_probability", "bits_per_character"]
    if description.task == "classes":
        return [label, "prediction", *(f"probability_{name}" for name in description.classes)]
    if description.outputs == 1:
        return [label, "prediction"]
    return [label, *(f"prediction_{number}" for number in range(1, description.outputs + 1))]


def _rows(predictor: Predictor, piece: Piece, threshold: float | None) -> Iterator[list[str]]:
    """The lines of a piece; nine digits are enough for every float32."""
    outputs = predictor.outputs_of(piece)
    preprocessing = predictor.description.preprocessing
    if isinstance(preprocessing, TextInputs):
        found = predictor.log_probabilities(outputs, piece)
        bits = -found / math.log(2) / (preprocessing.lengths(piece.inputs).numpy() + 1)  # with the end
        figures = np.stack([found, bits], axis=1)
        words = None
    elif predictor.description.task == "classes":
        words = predictor.predictions(outputs, piece, threshold=threshold).tolist()
        figures = predictor.probabilities(outputs, piece)
    else:
        words = None
        figures = predictor.predictions(outputs, piece).reshape(len(outputs), -1)
    for number, (name, values) in enumerate(zip(piece.names, figures.tolist(), strict=True)):
        yield [name, *([] if words is None else [words[number]]), *(f"{value:.9g}" for value in values)]


def _lines(rows: Iterator[list[str]] | list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
