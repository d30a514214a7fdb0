"""What is in a new policy? What was stated, ``FILL IN`` for the rest, and a comment at each line."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.columns.sections import setting

NO_COLUMN = "none"
"""Stated as the unit column of a table in which no unit has two rows."""

_HEAD = """\
# The policy of a data set: whom it protects, its budget, and public facts about its columns. It is fixed
# when the data set is opened. Replace every "FILL IN".
#
# Bounds and values are not filled in from the table, and must not be: the largest value of a column belongs
# to a person, and so does a value that only one person has. Take them from what is known without the data:
# an age is in 0 to 120, the wards are on the hospital's web page. A number outside its bounds counts as the
# nearest of them.
"""
_POLICY = """\
rows_per_unit = 1                 # so many rows of one unit are used at most; more rows, more noise
{adjacency}
{largest_table}
# public_records = 1000           # only if the number of records is public; "replace-one" needs it
# groups_per_unit = 1             # one unit is used in so many groups at most
# blocks = ["2024", "2025"]       # parts in which nobody occurs twice, if you will charge them one by one
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
    """A policy in TOML, for a person to fill in who knows the data without looking at them.

    Args:
        sections: ``[table]`` and ``[columns.NAME]``, each as text.
        unit, unit_column, largest_table, adjacency, note: as in :class:`tacit.ledger.Policy`; a unit
            column of "none" states that no unit has two rows.
        epsilon, delta: the budget.

    >>> policy_template(unit="patient", epsilon=1.5).count("FILL IN") - policy_template().count("FILL IN")
    -2
    """
    policy = [setting("unit", unit, 'what the promise protects one of: "patient", "customer"')]
    if unit_column != NO_COLUMN:
        policy.append(setting("unit_column", unit_column, _UNIT_COLUMN))
    policy.append(
        _POLICY.format(
            adjacency=setting(
                "adjacency", adjacency, '"add-remove": is a unit there; "replace-one": what its rows say'
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
