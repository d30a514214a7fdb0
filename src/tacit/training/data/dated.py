"""Records with dates, which arrive over time: a step uses the records of its days.

**Guarantee**

* The steps in which a record participates depend only on its date, and the steps of a person only on the
  dates of the person's rows.
* A person participates at most as often as the plan accounts for, and with at least as many steps in between.
  Otherwise the data are refused before a step, or the rows that come too often are skipped.  Participations
  in a resume state count too, so the days of a stream may come in several files.

Letters: M rows; N records, rows or people; T steps of the plan.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput, PrivacyRefusal, check_in, check_integer
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.sampling import ByDate
from tacit.sampling.base import Indices
from tacit.training.data.records import Data, Records
from tacit.training.data.users import UserRecords
from tacit.training.part import Part

_DAY = "datetime64[D]"
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}(?!\d)")  # NumPy would read any other number as a year
_MISSING = ("", "NaT", "nan", "None", "<NA>")


@final
class DatedRecords:
    """Records that have a date, for a plan with :class:`tacit.sampling.ByDate`.

    Each step uses the records of ``days`` days, and the first step begins with the day ``first``.  A session
    takes the steps whose days are all before ``until``.  When later data arrive, a new session resumes from
    the saved state.

    Args:
        data: the M rows.  They may have any form that :class:`~tacit.training.PrivateSession` supports, if no
            person has two rows in the whole stream.  Otherwise they are
            :class:`~tacit.training.UserRecords`, and a person participates in each step that contains one of
            the person's rows.
        dates: M dates: texts such as "2026-03-01", dates of Python, or ``datetime64``.
        first: the day on which the stream begins.
        until: the first day that has not been recorded in full, by default today.  It is a public fact, and
            is not read from the data.
        days: the number of days in a step.
        too_often: what to do if a person would participate more often than the plan allows, or after too few
            steps: "refuse" the data, or "skip" the rows that come too often or too early.

    Raises:
        InvalidInput: a date is missing or unreadable, or ``until`` is before ``first``.

    >>> data = DatedRecords(
    ...     (np.zeros((3, 2)), np.zeros(3)), ["2026-03-01", "2026-03-04", "2026-03-09"],
    ...     first="2026-03-01", until="2026-03-09", days=2)
    >>> data.steps  # the days from the 1st to the 8th
    4
    """

    def __init__(
        self,
        data: Data | Records | UserRecords,
        dates: Any,
        *,
        first: str | datetime.date,
        until: str | datetime.date | None = None,
        days: int = 1,
        too_often: str = "refuse",
    ) -> None:
        self.data = data
        self.too_often = check_in("too_often", too_often, ("refuse", "skip"))
        self.days = check_integer("days", days, low=1)
        self.first = day_of("first", first)
        self.until = day_of("until", datetime.date.today() if until is None else until)
        if self.until < self.first:
            raise InvalidInput(f"until must not be before the first day, {self.first}; got {self.until}.")
        self._dates = _as_days(dates)
        self.step_of: NDArray[np.int64] = (self._dates - self.first).astype(np.int64) // self.days

    @property
    def steps(self) -> int:
        """The number of steps for which the data of every day are complete."""
        return int((self.until - self.first).astype(np.int64)) // self.days

    @property
    def left_out(self) -> int:
        """The number of rows outside the days of these steps.  It has no noise, so do not publish it."""
        return int(((self.step_of < 0) | (self.step_of >= self.steps)).sum())

    def digest(self, key: bytes) -> str:
        """Return a keyed digest of the dates."""
        return hashlib.blake2b(self._dates.tobytes(), key=key, digest_size=16).hexdigest()


class Participants(Part):
    """The choice of the participants in the steps of a plan; here the plan's sampler draws them.

    Attributes:
        steps: the number of steps that can be taken with these data.
        unsaved: whether these records belong to further days of a stream and no state has been saved since.
    """

    def __init__(self, plan: Plan, steps: int) -> None:
        self._plan, self.steps, self.unsaved = plan, steps, False

    def of_step(self, step: int, generator: Generator, records: int) -> Indices:
        """Return the participants of a step, as sorted positions among the ``records`` records."""
        return self._plan.sampling.indices(generator, step, records)

    def check_length(self, records: int) -> None:
        """Refuse dates whose number differs from that of the records."""

    def begun(self, before: Mapping[str, Any], done: int) -> None:
        """Limit the steps to the days that the saved run ``before`` had begun, until these are done."""

    def compared(self, before: dict[str, Any], now: dict[str, Any], done: int) -> None:
        """Remove, from the facts ``before`` and ``now``, those that further days of a stream may change."""


@final
class Dates(Participants):
    """Participants by the dates of their records; for people, earlier participations are counted."""

    def __init__(self, dated: DatedRecords, plan: Plan) -> None:
        if not isinstance(plan.sampling, ByDate):
            raise InvalidInput(
                f"the records have dates, but the plan ignores them: {plan.sampling.describe()}. Plan with "
                "sampling=tacit.sampling.ByDate(), or give the session the records without dates."
            )
        super().__init__(plan, min(dated.steps, plan.steps))
        self._dated, self._rule = dated, plan.sampling
        self._past: dict[int, tuple[int, int]] = {}  # by person: participations so far, and the last step
        self._begun = 0  # the number of steps that the past covers
        self.records: Any = dated.data
        self._step_of, self._person = dated.step_of, None
        if isinstance(dated.data, UserRecords):
            _check_length(len(dated.step_of), dated.data.rows)
            self.records, self._person, self._step_of = dated.data.split(dated.step_of)
        self._taken = self._steps_taken()

    def before(self, step: int, indices: Indices) -> None:
        if self.unsaved:
            raise PrivacyRefusal(
                "the records of further days need a saved state. Call session.save(path) before their "
                "first step. Otherwise the old state could be resumed with other records, which would add "
                "the same noise to different sums."
            )
        if step >= self.steps:
            raise InvalidInput(
                f"all {self.steps} steps that the data cover are done. The plan has {self._plan.steps} "
                "steps. Save the state, and continue from it in a session with the next days' records."
            )

    def check_length(self, records: int) -> None:
        if self._person is None:
            _check_length(len(self._step_of), records)

    def of_step(self, step: int, generator: Generator, records: int) -> Indices:
        return np.flatnonzero(self._taken == step).astype(np.int64)

    def facts(self, key: bytes) -> dict[str, Any]:
        dated = self._dated
        stream = f"from {dated.first} on, {dated.days} days a step"
        return {"dates": dated.digest(key), "steps there": self.steps, "stream": stream}

    def begun(self, before: Mapping[str, Any], done: int) -> None:
        recorded = before.get("steps there")
        if recorded is not None and done < recorded < self.steps:
            self.steps = recorded

    def compared(self, before: dict[str, Any], now: dict[str, Any], done: int) -> None:
        if done == before.get("steps there"):
            self.unsaved = before != now
            for facts in (before, now):  # nothing of later days has been released
                for name in ("records", "dates", "steps there"):
                    facts.pop(name, None)

    def state(self, done: int) -> dict[str, Any]:
        """Return how often, and when last, each person has participated in the steps before ``done``."""
        if self._person is None:
            return {}
        past = dict(self._past)
        self._allowed(past, self._begun, done)
        return {"dates": {"begun": done, "past": past}}

    def load(self, state: Mapping[str, Any], generator: Generator) -> None:
        if (dates := state.get("dates")) is not None:
            self._begun, self._past = dates["begun"], dict(dates["past"])
        self._taken = self._steps_taken()

    def _steps_taken(self) -> NDArray[np.int64]:
        """Return the step of each record, or -1 for those that are skipped."""
        if self._person is None:
            return self._step_of
        allowed = self._allowed(dict(self._past), self._begun, self.steps)
        inside = (self._step_of >= self._begun) & (self._step_of < self.steps)
        skipped = int((inside & ~allowed).sum())
        if skipped and self._dated.too_often == "refuse":
            raise PrivacyRefusal(
                f"{skipped} times a {self._plan.unit} would take part too often. The plan has a price for "
                f"at most {self._rule.participations} participations, at least {self._rule.separation} "
                "steps apart. Plan with more participations or a smaller separation, or say "
                'too_often="skip". This number comes from the data: do not publish it.'
            )
        return np.where(allowed, self._step_of, -1)

    def _allowed(self, past: dict[int, tuple[int, int]], begun: int, stop: int) -> NDArray[np.bool_]:
        """Choose, from step ``begun`` up to ``stop``, the participations that the plan allows, in time order.

        The method adds them to ``past``, which maps a person to the number of participations and the last
        step.  It returns whether each record is allowed.
        """
        assert self._person is not None
        allowed = np.zeros(len(self._step_of), dtype=np.bool_)
        order = np.argsort(self._step_of, kind="stable")
        people, steps = self._person[order].tolist(), self._step_of[order].tolist()
        never = (0, -self._rule.separation)
        for place, person, step in zip(order.tolist(), people, steps, strict=True):
            if not begun <= step < stop:
                continue
            times, last = past.get(person, never)
            if times < self._rule.participations and step - last >= self._rule.separation:
                allowed[place] = True
                past[person] = (times + 1, step)
        return allowed


def participants_of(data: Any, plan: Plan) -> tuple[Any, Participants]:
    """Return the data without dates, and the choice of participants."""
    if isinstance(data, DatedRecords):
        dates = Dates(data, plan)
        return dates.records, dates
    if isinstance(plan.sampling, ByDate):
        raise InvalidInput(
            "the plan samples by date; the data have no dates. Give the session "
            "tacit.training.DatedRecords(data, dates, first=...)."
        )
    return data, Participants(plan, plan.steps)


def day_of(name: str, value: object) -> np.datetime64:
    """Read one day, from a text such as "2026-03-01" or a date of Python."""
    try:
        day: np.datetime64 = _read(np.array([value], dtype=object))[0]
    except InvalidInput:
        day = np.datetime64("NaT")
    if np.isnat(day):
        raise InvalidInput(f'{name} must be a day, such as "2026-03-01"; got {value!r}.')
    return day


def _as_days(dates: Any) -> NDArray[np.datetime64]:
    """Convert dates of rows to days; times of day are dropped."""
    values = np.asarray(dates, dtype=object if isinstance(dates, list | tuple) else None)
    if values.ndim != 1:
        raise InvalidInput(f"dates must be one for each row, (M,); got shape {values.shape}.")
    if values.dtype.kind not in "OUM":
        raise InvalidInput(f'dates must be days, such as "2026-03-01"; got {values.dtype}.')
    days = values.astype(_DAY) if values.dtype.kind == "M" else _read(values)
    if missing := int(np.isnat(days).sum()):
        raise InvalidInput(
            f"{missing} rows have no date. The date decides in which step a row takes part. Leave them out."
        )
    return days


def _read(values: NDArray[Any]) -> NDArray[np.datetime64]:
    """Convert texts and Python dates to days, and marks of a missing date to NaT."""
    texts = ["" if value is None else str(value).strip() for value in values.tolist()]
    texts = ["NaT" if text in _MISSING else text for text in texts]
    try:
        if not all(text == "NaT" or _ISO.match(text) for text in texts):
            raise ValueError
        return np.array([text[:10] for text in texts], dtype=_DAY)
    except ValueError:
        raise InvalidInput(
            "a date cannot be read. Dates are days such as 2026-03-01, with the year first. Convert other "
            "dates first. (The message leaves out the value, because it belongs to a record.)"
        ) from None


def _check_length(dates: int, rows: int) -> None:
    if dates != rows:
        raise InvalidInput(f"there are {rows} rows and {dates} dates. Give one date for each row.")
