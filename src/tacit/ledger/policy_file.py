"""Policies as TOML files; ``tacit init TABLE --policy`` writes one to fill in."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from tacit.columns import Dialect
from tacit.columns.column import check_settings, parse_columns
from tacit.columns.sections import refuse_blanks, setting
from tacit.errors import InvalidInput, reason_of
from tacit.ledger.budgets import budget_from_data
from tacit.ledger.policy import Policy

_NOT_HERE = ("budget", "columns", "dialect")  # these have separate sections


def read_policy(path: Path | str) -> Policy:
    """Read the policy in a TOML file with ``[policy]``, ``[budget]``, ``[columns.NAME]`` and ``[table]``.

    Raises:
        InvalidInput: if a setting is missing, misspelt, blank or impossible; the message names it.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInput(
            f"there is no policy at {path}. `tacit init TABLE --policy --out {path}` writes one to fill in."
        ) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(
            f"the policy {path} cannot be read: {reason_of(problem)}. Check the path."
        ) from None
    return parse_policy(text, source=str(path))


def parse_policy(text: str, *, source: str = "the policy") -> Policy:
    """Read the policy in TOML text; see :func:`read_policy`.

    >>> policy = parse_policy('''
    ... [policy]
    ... unit = "patient"
    ... unit_column = "patient_id"
    ... adjacency = "add-remove"
    ... [budget]
    ... mode = "pure"
    ... epsilon = 1.5
    ... [columns.age]
    ... kind = "integer"
    ... lower = 0
    ... upper = 120
    ... ''')
    >>> policy.unit, policy.columns["age"].upper
    ('patient', 120.0)
    """
    refuse_blanks(text, source)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as problem:  # not TOML, a number of thousands of digits, or too deep
        raise InvalidInput(f"{source} is not TOML: {problem}. Correct that place.") from None
    check_settings(source, data, ("policy", "budget", "columns", "table"), ("policy", "budget"))
    place = f"{source}: [policy]"
    names = [field.name for field in fields(Policy) if field.name not in _NOT_HERE]
    settings = check_settings(place, data["policy"], names, ("unit", "adjacency"))
    budget = budget_from_data(data["budget"], f"{source}: [budget]")
    columns = parse_columns(data.get("columns", {}), source=f"{source}: ")
    dialect = Dialect.from_data(data.get("table", {}), f"{source}: [table]")
    try:
        return Policy(**settings, budget=budget, columns=columns, dialect=dialect)
    except InvalidInput as problem:
        raise InvalidInput(f"{place}: {problem}") from None


NO_COLUMN = "none"
"""The value of ``unit_column`` that states that no unit has two rows."""

_HEAD = """\
# The policy of a data set: the unit that it protects, its budget, and public facts of its columns. It is
# fixed when the data set is opened. Replace every "FILL IN".
#
# Do not take bounds and values from the table: the largest value of a column belongs to a person, and so does
# a value that only one person has. Take them from public knowledge: an age is from 0 to 120, and the wards
# are on the hospital's web page. A number outside its bounds counts as the nearest bound.
"""
_LIMITS = """\
rows_per_unit = 1                 # the most rows of one unit that are used; more rows need more noise
{adjacency}
{largest_table}
# public_records = 1000           # only if the number of records is public; "replace-one" needs it
# groups_per_unit = 1             # the most groups in which one unit is used
# blocks = ["2024", "2025"]       # parts that share no person, if you will charge each one separately
# parent = "visits"               # the data set that this one is made from: it is charged too
{note}
"""
_UNIT_COLUMN = "the column that names a row's unit; delete the line if no unit has two rows"
_LARGEST_TABLE = "no version of the table will have more rows: a public figure, such as 100000"
_COLUMNS = """\
# Delete the columns that no query needs, and the one that identifies the unit. Kinds and formats were
# proposed from the table; they become public with this policy: check them.
"""


def policy_template(
    sections: Sequence[str] = (),
    *,
    unit: str | None = None,
    unit_column: str | None = None,
    largest_table: int | None = None,
    adjacency: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    note: str | None = None,
) -> str:
    """Return a policy in TOML, for a person to fill in from public knowledge of the data.

    Args:
        sections: the texts of the sections ``[table]`` and ``[columns.NAME]``.
        unit, unit_column, largest_table, adjacency, note: as in :class:`tacit.ledger.Policy`. The unit
            column "none" states that no unit has two rows.
        epsilon, delta: the limits of the budget.

    >>> policy_template(unit="patient", epsilon=1.5).count("FILL IN") - policy_template().count("FILL IN")
    -2
    """
    policy = [setting("unit", unit, 'one of these is protected: "patient", "customer"')]
    if unit_column != NO_COLUMN:
        policy.append(setting("unit_column", unit_column, _UNIT_COLUMN))
    policy.append(
        _LIMITS.format(
            adjacency=setting(
                "adjacency",
                adjacency,
                '"add-remove" hides if a unit is there, "replace-one" what its rows say',
            ),
            largest_table=setting("largest_table", largest_table, _LARGEST_TABLE),
            note=setting("note", note, "who approved this budget, when, why, until when"),
        )
    )
    budget = [
        setting("mode", "renyi", 'trainings and queries; "pure": Laplace noise; "zcdp": Gaussian noise'),
        setting("epsilon", epsilon, "for all that will ever be released: 1 is strong, above 10 says little"),
        setting("delta", delta, 'below 1 / largest_table, such as 1e-6; not for "pure"'),
    ]
    parts = [_HEAD, "\n".join(["[policy]", *policy]), "\n".join(["[budget]", *budget]) + "\n"]
    columns = [section for section in sections if section.startswith("[columns.")]
    if columns:
        tables = [section for section in sections if section not in columns]
        parts += [*tables, _COLUMNS, *columns]
    return "\n".join(parts)
