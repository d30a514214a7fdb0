"""Checks before the first step: each row is one unit of privacy, and the declared columns fit the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tacit.columns.sniffing import repeated_in_file, unit_columns
from tacit.columns.tables import names_of_file
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.runs.config import Config
from tacit.runs.declarations import FIRST_ROWS, doubts

Confirm: TypeAlias = Callable[[str, str], bool]
"""A function that shows a finding and asks a question; it returns whether the answer is yes."""

_FOR_YOU = (
    "Confidential: the following comes from single records, without noise. It is for you, who have the "
    "table, and is written nowhere that is released."
)


def check_fit(config: Config, confirm: Confirm | None = None) -> None:
    """Stop a run whose unit may have several rows, or whose declared columns do not fit the table.

    Args:
        config: the configuration.
        confirm: asks the person who has the table; None if nobody can be asked.
    """
    _check_unit(config, confirm)
    if config.data.table is None or not Path(config.data.table).is_file():
        return

    findings = [doubt for doubt in doubts(config, rows=FIRST_ROWS) if doubt.degree != "remark"]
    if findings and confirm is not None:
        text = "\n".join([_FOR_YOU, "", *(f"* {doubt}" for doubt in findings)])
        if not confirm(text, "Train all the same?"):
            raise InvalidInput(
                "stopped before the first step: the declarations do not fit the table. Nothing was trained, "
                "written or charged. Correct the run file, then start again."
            )
        return
    if nowhere := [str(doubt) for doubt in findings if doubt.degree == "nowhere"]:
        raise InvalidInput(
            "declarations fit no cell of the table, and the run would learn nothing from these columns: "
            f"{' '.join(nowhere)} Correct or remove them, or start the run in a terminal, which asks whether "
            "to go on."
        )


def _check_unit(config: Config, confirm: Confirm | None) -> None:
    data, unit = config.data, config.privacy.unit
    path = Path(str(data.table or data.corpus))
    one_row = config.privacy.one_record_per_unit or config.ledger.one_record_per_unit
    if data.user is not None or one_row or not path.is_file():
        return

    dialect = config.read_dialect()
    kinds = {name: column.kind for name, column in config.read_columns().items()}
    instead = (
        f'or, to protect single rows, [privacy] unit = "row"; or, if each row is another {unit}, [privacy] '
        "one_record_per_unit = true."
    )
    if data.date is not None:
        for name in unit_columns(names_of_file(path, dialect), unit, kinds):
            raise PrivacyRefusal(
                f'[privacy] unit = "{unit}" has a column in this stream, {name!r}: the same {unit} may be in '
                f'the next file. Set [data] user = "{name}" and rows_per_user, and in [privacy] '
                f"participations and separation, how often a {unit} takes part; {instead}"
            )
        return

    repeated = repeated_in_file(path, unit, kinds, dialect)
    if repeated is None:
        return
    problem = (
        f"{_FOR_YOU}\n\nThe unit is a {unit}, and column {repeated!r} has repeated values: a {unit} seems to "
        "have several rows, and each row would be protected separately."
    )
    if confirm is not None and confirm(problem, f"Is each row another {unit}?"):
        return
    raise PrivacyRefusal(
        f'[privacy] unit = "{unit}", and column {repeated!r} has repeated values: a {unit} seems to have '
        f"several rows, and each row would be protected separately. Set [data] user = "
        f'"{repeated}" and rows_per_user, so that a record is a {unit} with all rows; {instead}'
    )
