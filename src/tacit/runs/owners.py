"""Whose records does a run train on? ``[data] user`` names the column of people, who may have several."""

from __future__ import annotations

from pathlib import Path

from tacit.columns.tables import whole_table
from tacit.datasets import Dataset
from tacit.datasets.documents import check_users
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.runs.config import Config
from tacit.training.data.records import Data
from tacit.training.data.user_names import numbered
from tacit.training.data.users import OwnedRecords


def records_of(config: Config, data: Dataset) -> Data | OwnedRecords:
    """The training records: people with their rows, where a person may have several; else one row each.

    Raises:
        PrivacyRefusal: each person may have one row, and some have more.
    """
    if data.owners is None:
        return data.train
    if config.data.rows_per_user is None:
        for owners, name in ((data.owners, "training"), (data.test_owners, "testing")):
            numbered(owners)  # refuses rows without an owner
            check_users(owners or (), name, table=config.data.table is not None)
        return data.train
    return OwnedRecords(data.train, data.owners, rows_per_user=config.data.rows_per_user)


def owned_by(config: Config) -> str | None:
    """The column of people, if a record is a person with several rows; of several columns, all of them."""
    user = config.data.user
    if config.data.rows_per_user is None or user is None:
        return None
    return user if isinstance(user, str) else " or ".join(user)


def owners_line(config: Config, data: Dataset) -> tuple[str, ...]:
    """The line of the statement on what a record is."""
    unit, user, most = config.privacy.unit, config.data.user, config.data.rows_per_user
    if user is None:
        return ()
    if isinstance(data.owners, list) and any(isinstance(owner, tuple) for owner in data.owners):
        return (
            f"steps draw rows, which may be of several people; each {unit}, a value of {owned_by(config)!r}, "
            f"has a part in at most {most} of those that are kept, and which these are depends on nothing "
            f"that rows hold; each row is clipped by itself, and the price is that of all rows of a {unit}",
        )
    if most is None:
        return (f"each {unit}, a value of {user!r}, has one training record, as was checked",)
    if config.data.draw == "rows":
        return (
            f"steps draw rows, of which each {unit}, a value of {user!r}, keeps at most {most}; each row is "
            f"clipped by itself, and the price is that of all rows of a {unit}",
        )
    return (
        f"one record is one {unit}, all rows with one value of {user!r}; a step reads {most} rows of "
        "each that it draws, and clips the mean of their gradients",
    )


def check_unit_column(config: Config) -> None:
    """Refuse a unit that is a column of the table with repeated values, if rows are trained one by one.

    Raises:
        PrivacyRefusal: one unit has several rows.
    """
    section, unit = config.data, config.privacy.unit
    if section.table is None or section.user is not None:
        return
    try:
        cells = whole_table(Path(section.table), [unit], config.read_dialect())[unit]
    except InvalidInput:  # no such column: the unit is a word
        return
    rows, units = len(cells), len({str(cell) for cell in cells})
    if section.date is not None:
        raise PrivacyRefusal(
            f"the unit of privacy is one {unit}, a column of the table, and in a stream a {unit} of this "
            f'file may come back in the next one. Say [data] user = "{unit}" and rows_per_user, and in '
            f"[privacy] how often a {unit} takes part (participations, separation); or, if rows are what "
            'you mean to protect, [privacy] unit = "row".'
        )
    if units < rows:
        raise PrivacyRefusal(
            f"the unit of privacy is one {unit}, a column of the table of which {rows - units:,} values are "
            f"repeated: a {unit} has several rows, and each would be protected by itself. Say [data] user "
            f'= "{unit}" and rows_per_user, so that a record is a {unit} with all rows; or, if rows are '
            'what you mean to protect, [privacy] unit = "row".'
        )
