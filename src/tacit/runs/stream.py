"""How does a run train on data that arrive in time? By the dates of a column, some days a step.

Such a run ends at the days that are there, with the model so far; it goes on when there are more.
"""

from __future__ import annotations

import numpy as np

from tacit.datasets import Dataset
from tacit.errors import InvalidInput
from tacit.plan import Plan
from tacit.runs.config import Config
from tacit.training.data.dated import DatedRecords, day_of
from tacit.training.data.records import Data
from tacit.training.data.users import OwnedRecords
from tacit.training.session import PrivateSession


def in_order_of_dates(
    config: Config, data: Dataset, records: Data | OwnedRecords
) -> Data | OwnedRecords | DatedRecords:
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
