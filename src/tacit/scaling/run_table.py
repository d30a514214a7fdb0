"""Where do a user's own runs come from? A CSV file with one line a run."""

from __future__ import annotations

import csv
from pathlib import Path

from tacit.errors import InvalidInput, reason_of
from tacit.scaling.law import Run

_COLUMNS = ("model_size", "steps", "noise_batch_ratio", "loss")


def read_runs(path: Path) -> tuple[Run, ...]:
    """The runs of a CSV file; its first line names model_size, steps, noise_batch_ratio and loss.

    Further columns are not read.

    Raises:
        InvalidInput: no such file, a column that is missing, or a value that is no number; with its line.

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
                    f"{path}: the first line must name the columns {', '.join(_COLUMNS)}, separated by "
                    f"commas; missing: {', '.join(missing)}."
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
