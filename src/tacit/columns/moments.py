"""The conversion of dates and datetimes ("moments") to numbers, and of their parts to features."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput

_FIRST = dt.date(1970, 1, 1).toordinal()
_START = dt.datetime(1970, 1, 1)
_SECOND = dt.timedelta(seconds=1)
_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ISO_DATETIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?"
)


def number_of_moment(moment: dt.date) -> float:
    """Return the number of days (for a datetime, of seconds in UTC) since 1970-01-01.

    >>> number_of_moment(dt.date(1970, 1, 3)), number_of_moment(dt.datetime(1970, 1, 1, 0, 1))
    (2.0, 60.0)
    """
    if isinstance(moment, dt.datetime):
        if moment.tzinfo is not None:
            moment = moment.astimezone(dt.UTC).replace(tzinfo=None)
        return (moment - _START) / _SECOND
    return float(moment.toordinal() - _FIRST)


def as_moment(name: str, kind: str, value: object) -> dt.date:
    """Return a public date or datetime, which TOML or a text in ISO format gives.

    Raises:
        InvalidInput: if the value is not of this kind, ``date`` or ``datetime``.
    """
    if isinstance(value, str):
        value = _from_iso(kind, value) or value
    if kind == "date" and isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value
    if kind == "datetime" and isinstance(value, dt.date):
        if isinstance(value, dt.datetime):
            return value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
        return dt.datetime(value.year, value.month, value.day)
    form = "2015-01-31" if kind == "date" else "2015-01-31 14:05:00"
    raise InvalidInput(f"{name} must be a {kind}, such as {form}; got {value!r}.")


def _from_iso(kind: str, text: str) -> dt.date | None:
    if not (_ISO_DATE if kind == "date" else _ISO_DATETIME).fullmatch(text):
        return None
    try:
        return dt.date.fromisoformat(text) if kind == "date" else dt.datetime.fromisoformat(text)
    except ValueError:  # such as 31 February
        return None


def check_format(kind: str, form: object) -> str:
    """Check that a format of ``strptime`` has all parts of a date or datetime.

    Raises:
        InvalidInput: if ``form`` lacks a part, or is not a format.
    """
    example = dt.datetime(2013, 11, 24, 21, 47)
    try:
        read = dt.datetime.strptime(example.strftime(form), form)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        read = None
    if read is None or read.date() != example.date() or (kind == "datetime" and read.hour != example.hour):
        parts = "day, month and year" if kind == "date" else "day, month, year and time"
        raise InvalidInput(
            f'format must contain {parts}, such as "%d.%m.%Y{"" if kind == "date" else " %H:%M"}"; '
            f"got {form!r}."
        )
    return str(form)


def reader_of_moments(kind: str, form: str | None) -> Callable[[str], float]:
    """Return the function that reads a cell as a number, or as NaN if it is not a date in this format."""

    def read(cell: str) -> float:
        if form is None:
            moment = _from_iso(kind, cell)
        else:
            try:
                moment = dt.datetime.strptime(cell, form)
            except ValueError:
                moment = None
            if moment is not None and kind == "date":
                moment = moment.date()
        try:
            return math.nan if moment is None else number_of_moment(moment)
        except OverflowError:  # a time at the start of year 1, which UTC moves to year 0
            return math.nan

    return read


PART_NAMES: dict[str, tuple[str, ...]] = {
    "weekday": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "month": (
        "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
        "November", "December",
    ),
    "hour": tuple(f"{hour:02}" for hour in range(24)),
}  # fmt: skip
"""The values of each part, in the order of their numbers."""


def codes_of_part(part: str, kind: str, values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of a part, such as the weekday, of each moment; a missing one counts as 1970-01-01.

    >>> codes_of_part("weekday", "date", np.array([0.0, 1.0])).tolist()  # Thursday, 1 January 1970
    [3, 4]
    """
    unit = "D" if kind == "date" else "s"
    moments = np.floor(np.nan_to_num(values)).astype(np.int64).astype(f"datetime64[{unit}]")
    days = moments.astype("datetime64[D]")
    match part:
        case "weekday":
            return (days.astype(np.int64) + 3) % 7
        case "month":
            return days.astype("datetime64[M]").astype(np.int64) % 12
        case _:
            return moments.astype("datetime64[h]").astype(np.int64) % 24
