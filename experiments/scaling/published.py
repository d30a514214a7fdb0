"""The runs to which a scaling law is fitted: published runs of McKenna et al., or a user's runs.

``published.json`` holds the published runs. Each entry names its source, and says if it was read second-hand.
A user's runs are a CSV file with one line for each run.
"""

from __future__ import annotations

import csv
import json
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from experiments.scaling.law import Law, Run
from tacit.errors import InvalidInput, reason_of


@cache
def published_facts() -> dict[str, Any]:
    """Return all published numbers that a plan uses, with their sources."""
    text = (Path(__file__).parent / "published.json").read_text(encoding="utf-8")
    facts: dict[str, Any] = json.loads(text)
    return facts


def published_runs() -> tuple[Run, ...]:
    """Return the 20 configurations of table 2 of McKenna et al., with the loss stated there for each.

    The noise-batch ratio follows from their privacy budget by Tacit's accountant.

    >>> len(published_runs())
    20
    """
    names = [field.name for field in fields(Run)]
    return tuple(Run(**{name: row[name] for name in names}) for row in published_facts()["runs"])


@cache
def published_law() -> Law:
    """Return the scaling law that :meth:`Law.fit` finds for :func:`published_runs`.

    >>> published_law().sequence_length
    512
    """
    return Law.from_data(published_facts()["law"])


_COLUMNS = ("model_size", "steps", "noise_batch_ratio", "loss")


def read_runs(path: Path) -> tuple[Run, ...]:
    """Read runs from a CSV file with the columns model_size, steps, noise_batch_ratio and loss.

    The first line names the columns. Other columns are ignored.

    Raises:
        InvalidInput: if there is no such file, a column is missing, or a value is not a number. The message
            states the line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "runs.csv"
    >>> _ = path.write_text("model_size,steps,noise_batch_ratio,loss\\n12e6,5000,1e-4,3.21\\n")
    >>> read_runs(path)[0].loss
    3.21
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, strict=True)
            missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise InvalidInput(
                    f"{path}: the first line lacks {', '.join(missing)}. It must name the columns "
                    f"{', '.join(_COLUMNS)}, separated by commas."
                )
            return tuple(_run(path, rows.line_num, row) for row in rows)
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise InvalidInput(f"{path} cannot be read as a CSV file of runs: {reason_of(problem)}.") from None


def _run(path: Path, line: int, row: dict[str, str | None]) -> Run:
    try:
        values = {name: float(row[name] or "") for name in _COLUMNS}
    except ValueError:
        raise InvalidInput(
            f"{path}, line {line}: {', '.join(_COLUMNS)} must be numbers, such as 12000000, 5000, 1e-4, "
            f"3.21; got {', '.join(str(row[name]) for name in _COLUMNS)}."
        ) from None
    try:
        return Run(**values, source=f"{path}, line {line}")
    except InvalidInput as problem:
        raise InvalidInput(f"{path}, line {line}: {problem}") from None
