"""Whose records does a run train on? ``[data] user`` names the column of people, who may have several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tacit.attacks.memorisation import Canary
from tacit.datasets import Dataset
from tacit.datasets.documents import check_users
from tacit.errors import InvalidInput
from tacit.plan import Plan
from tacit.runs.config import Config
from tacit.training.data.dated import DatedRecords, day_of
from tacit.training.data.records import Data
from tacit.training.data.user_names import numbered
from tacit.training.data.users import UserRecords
from tacit.training.session import PrivateSession


def records_of(config: Config, data: Dataset) -> Data | UserRecords:
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
    return UserRecords(data.train, data.owners, rows_per_user=config.data.rows_per_user)


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


def in_order_of_dates(
    config: Config, data: Dataset, records: Data | UserRecords
) -> Data | UserRecords | DatedRecords:
    """The records with their dates, where the run takes them by date."""
    section = config.data
    if data.dates is None:
        return records
    return DatedRecords(
        records,
        data.dates,
        first=str(section.first_day),
        until=section.until,
        days=section.days_per_step,
        too_often=section.too_often,
    )


def dates_line(config: Config, plan: Plan, steps_done: int) -> tuple[str, ...]:
    """The line of the statement on which days the run has read."""
    section = config.data
    if section.date is None:
        return ()
    first, days = day_of("first_day", section.first_day), section.days_per_step
    each = "one day" if days == 1 else f"{days} days"
    return (
        f"a step takes the rows of {each} by the column {section.date!r}, the first those from {first} on; "
        f"the days before {first + steps_done * days} were trained on, {steps_done} of {plan.steps} steps",
    )


def days_left(config: Config, plan: Plan, steps_done: int) -> str:
    """How a run goes on that has trained on all days so far; empty where it is at its end."""
    if config.data.date is None or steps_done >= plan.steps:
        return ""
    first, days = day_of("first_day", config.data.first_day), config.data.days_per_step
    begin = first + steps_done * days
    return (
        f"The days before {begin} are trained on, {steps_done} of {plan.steps} steps. The next step needs "
        f"those before {begin + days}."
    )


def check_days(config: Config, data: Dataset, session: PrivateSession, *, continued: bool) -> None:
    """Refuse to go on with days that are not there, as steps without a row would add noise alone.

    Raises:
        InvalidInput: a continued run has no further day, and the message says until when to wait; or the
            table has no row of the days that are left.
    """
    dated = in_order_of_dates(config, data, data.train)
    if not isinstance(dated, DatedRecords):
        return
    steps_done, steps_there = session.steps_done, session.steps_there
    first, days = dated.first, dated.days
    if steps_there > steps_done:
        rows = (dated.step_of >= steps_done) & (dated.step_of < steps_there)
        if not rows.any():
            raise InvalidInput(
                f"{config.data.table or config.data.corpus} has no record of the days from "
                f"{first + steps_done * days} to {first + steps_there * days - 1}, so that steps would add "
                "noise and nothing else. Name the file that has them, --data with --continue; or an earlier "
                "until."
            )
    elif continued:
        needed = first + (steps_done + 1) * days
        raise _too_early(steps_done, needed)


def _too_early(steps_done: int, needed: np.datetime64) -> InvalidInput:
    return InvalidInput(
        f"there is no further day to train on: {steps_done} steps are done, and the days of the next one go "
        f"up to {needed - 1}. Wait until they are recorded, and say --until {needed}, or a later day."
    )


def notes_on(
    config: Config, data: Dataset, session: PrivateSession, canaries: Sequence[Canary]
) -> tuple[str, ...]:
    """What the statement of a run says beside its mechanism: public facts, a line each.

    That canaries were planted is public, as they belong to no person; which took part is not.
    """
    slots, ranks = config.audit.slots, session.ranks.ranks
    found = [*owners_line(config, data), *dates_line(config, session.plan, session.steps_done)]
    if slots:
        found.append(f"{slots} audit slots: canary records without data were planted for half of them")
    if canaries:
        planted = f"{len(canaries)} made-up lines with random secrets were planted"
        found.append(f"{planted}, each by a secret coin")
    if ranks > 1:
        found.append(f"{ranks} processes that trust each other took each step together and released it once")
    return tuple(found)
