"""Tables of predictions for files of records, written piece by piece in constant memory."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tacit.columns.encoder import classes_of
from tacit.columns.tables import Cells, pieces, words_of
from tacit.errors import InvalidInput
from tacit.files import write_atomically
from tacit.runs.kinds import Piece, Table, Text, silent
from tacit.runs.predict import Predictor

PredictionProgress = Callable[[int, int | None], None]
"""A function that is called after each piece, with (records done, estimated number of all records)."""


def write_predictions(
    predictor: Predictor,
    data: Path,
    out: Path,
    *,
    overwrite: bool = False,
    threshold: float | None = None,
    keep: Sequence[str] = (),
    progress: PredictionProgress = silent,
) -> int:
    """Predict for every record of ``data``, and write the table to ``out`` atomically.

    Args:
        overwrite: whether to replace an existing file.
        threshold: as in :meth:`Predictor.predict`.
        keep: the columns of the input table to copy unchanged.
        progress: called after each piece.

    Returns:
        The number of records.
    """
    check_out(out, data, overwrite=overwrite)
    predictor.check_threshold(threshold)
    header = _header(predictor, keep)
    total = predictor.description.preprocessing.count(data)
    done = 0

    def write(file: IO[bytes]) -> None:
        nonlocal done
        cells = _copied_cells(predictor, data, keep)
        file.write(_lines([header]))
        for piece in predictor.pieces(data):
            rows = _rows(predictor, piece, threshold)
            extra = islice(cells, len(piece.names))
            file.write(_lines([name, *own, *row] for (name, *row), own in zip(rows, extra, strict=True)))
            done += len(piece.names)
            progress(done, total)

    write_atomically(out, write)
    return done


def check_out(out: Path, data: Path, *, overwrite: bool) -> None:
    if out.exists() and out.resolve() == data.resolve():
        raise InvalidInput(f"{out} is the data itself. Name another file with --out.")
    if out.is_dir():
        raise InvalidInput(
            f"{out} is a folder. Name a file in it with --out, such as {out / 'predictions.csv'}."
        )
    if out.suffix != ".csv":
        raise InvalidInput(
            f"{out} should end in .csv: the predictions are a table in CSV. Rename it with --out."
        )
    if out.exists() and not overwrite:
        raise InvalidInput(
            f"there is a file {out} already. Name another file with --out, or replace this one by "
            "--overwrite."
        )


def _header(predictor: Predictor, keep: Sequence[str]) -> list[str]:
    label, figures = predictor.description.preprocessing.label, _figures(predictor)
    if twice := [name for name in keep if [label, *keep, *figures].count(name) > 1]:
        raise InvalidInput(
            f"--keep {twice[0]} would make two columns of this name. Name it once, or rename it in the table."
        )
    return [label, *keep, *figures]


def _figures(predictor: Predictor) -> list[str]:
    description = predictor.description
    if description.task == "text":
        return ["log_probability", "bits_per_character"]
    if description.task == "classes":
        return ["prediction", *(f"probability_{name}" for name in description.classes)]
    if description.task == "labels":
        return [*description.labels, *(f"probability_{name}" for name in description.labels)]
    if description.outputs == 1:
        return ["prediction"]
    table = description.preprocessing if isinstance(description.preprocessing, Table) else None
    names = range(1, description.outputs + 1) if table is None else table.encoder.target_names
    return [f"prediction_{name}" for name in names]


def _copied_cells(predictor: Predictor, data: Path, keep: Sequence[str]) -> Iterator[list[str]]:
    if not keep:
        return repeat([])
    preprocessing = predictor.description.preprocessing
    if not isinstance(preprocessing, Table):
        raise InvalidInput("--keep names a column of a table: this model reads no table. Leave it out.")
    return (
        list(row)
        for piece in pieces(data, keep, preprocessing.encoder.dialect)
        for row in zip(*(_as_written(piece[name]) for name in keep), strict=True)
    )


def _as_written(cells: Cells) -> Iterator[str]:
    """Yield texts unchanged, and whole numbers without the ".0" of a Parquet column with missing cells."""
    for cell, word in zip(cells, words_of(cells), strict=True):
        yield cell if isinstance(cell, str) else word or ""


def _rows(predictor: Predictor, piece: Piece, threshold: float | None) -> Iterator[list[str]]:
    """Yield the lines of a piece, with nine digits per number, since they determine every float32."""
    outputs = predictor.outputs_of(piece)
    preprocessing = predictor.description.preprocessing
    if isinstance(preprocessing, Text):
        logs = predictor.log_probabilities(outputs, piece)
        bits = -logs / math.log(2) / (preprocessing.lengths(piece.inputs).numpy() + 1)  # includes the end
        figures = np.stack([logs, bits], axis=1)
        words = np.empty((len(logs), 0), dtype=np.str_)
    elif predictor.description.task in ("classes", "labels"):
        words = predictor.predictions(outputs, piece, threshold=threshold)
        words = _label_words(predictor, words) if predictor.labels else words[:, None]
        figures = predictor.probabilities(outputs, piece)
    else:
        words = np.empty((len(outputs), 0), dtype=np.str_)
        figures = predictor.predictions(outputs, piece).reshape(len(outputs), -1)
    for name, cells, values in zip(piece.names, words.tolist(), figures.tolist(), strict=True):
        yield [name, *cells, *(f"{value:.9g}" for value in values)]


def _label_words(predictor: Predictor, labels: NDArray[Any]) -> NDArray[np.str_]:
    """Convert labels (n, k), true or false, to the words that their columns declare."""
    columns = predictor.columns
    words = [classes_of(columns[name]) if name in columns else ("false", "true") for name in predictor.labels]
    return np.stack(
        [np.array(own)[index] for own, index in zip(words, labels.T.astype(int), strict=True)], axis=1
    )


def _lines(rows: Iterable[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
