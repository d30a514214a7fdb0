"""Who writes the metrics of a run? A CSV file and, where configured, TensorBoard.

They contain nothing without noise: epsilon is public, the loss is noisy and accounted for, test figures are
of the test records.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from tacit.errors import MissingExtra
from tacit.training.files import write_atomically
from tacit.training.loop import Row

__all__ = ["CsvWatcher", "TensorBoardWatcher"]

_FIGURES = ("epsilon", "loss", "test_score", "test_loss")


class CsvWatcher:
    """``metrics.csv``, complete at any moment: each line of metrics writes it anew."""

    def __init__(self, path: Path, rows: list[Row]) -> None:
        self._path = path
        self._rows = list(rows)
        self._write()

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:
        """Nothing: lines are written per row."""

    def on_row(self, row: Row) -> None:
        """Write the file anew with one line more."""
        self._rows.append(row)
        self._write()

    def _write(self) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, ("steps", *_FIGURES), lineterminator="\n")
        writer.writeheader()
        writer.writerows(vars(row) for row in self._rows)
        write_atomically(self._path, lambda file: file.write(text.getvalue().encode()))


class TensorBoardWatcher:
    """The same figures in a folder ``tensorboard``; removes those past ``steps_done``, of a run cut short."""

    def __init__(self, folder: Path, steps_done: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("tensorboard", "tensorboard", "logging to TensorBoard") from None
        writer: Any = SummaryWriter
        self._writer = writer(str(folder), purge_step=steps_done + 1 if steps_done else None)

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:
        """Nothing: figures are written per row."""

    def on_row(self, row: Row) -> None:
        """Write the figures of a row."""
        for name in _FIGURES:
            value = getattr(row, name)
            if value is not None:
                self._writer.add_scalar(name, value, row.steps)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
