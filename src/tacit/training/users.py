"""Records of people with several rows, rows with several users, and records with dates.

Letters: M rows; N users; K rows_per_user; T steps.
"""

# By default a step draws users: it reads K rows of each, and clips the mean of their gradients once
# (McMahan et al., 1710.06963; Charles et al., 2407.07737).  Two spellings of one name would count as two
# users, so inputs that may hide this are refused.  A row with several users counts against the cap of each,
# so the choice of one person's rows depends on others, and no bound on this effect is known.  The promise
# is then for neighbours in which every row has the same users: "fixed-graph" privacy (Ganesh et al.,
# 2503.03622).
#
# **Guarantee**
#
# * If a step draws users, the rows that it reads of a user depend only on the key, the step, and the user's
#   name and number of rows.
# * No user is among the users of more than K rows that are kept.  The choice of rows depends on the users
#   of each row, and not on their content.
# * A plan is refused if its promise does not fit rows that have several users.
# * The steps of a dated record depend only on its date, and those of a person only on the dates of the
#   person's rows.  A person participates at most as often as the plan accounts for, and with at least as
#   many steps in between, or the data are refused before a step, or the rows are skipped.  Participations
#   in a resume state count too, so the days of a stream may come in several files.

from __future__ import annotations

import copy
import datetime
import hashlib
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.columns.sniffing import repeated_in_frame
from tacit.columns.tables import has_column_names
from tacit.datasets.dataset import is_missing, missing_owners
from tacit.errors import InvalidInput, PrivacyRefusal, check_in, check_integer
from tacit.events import Adjacency
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.sampling import ByDate
from tacit.sampling.samplers import Indices
from tacit.training.part import Part
from tacit.training.records import Collate, Data, DatasetRecords, Records, Wrapped, as_records

LISTS = (list, tuple, set, frozenset, np.ndarray)
"""Types of a row's users, if a row may have several."""


def numbered(owners: Any) -> tuple[NDArray[np.int64], NDArray[np.uint64], bytes]:
    """Number the owners from 0, by row (M,); return also a 64-bit hash of each (N,), and a digest of all."""
    values = owners.numpy(force=True) if isinstance(owners, Tensor) else owners
    # NumPy turns a list with one text into texts: "1.0" and "1" would be two owners
    values = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    if values.ndim != 1:
        raise InvalidInput(
            f"owners must have shape (M,), one owner per row; got shape {values.shape}. For several owners "
            "per row, give a list of lists, such as owners.tolist()."
        )
    if len(values) == 0:
        raise InvalidInput("owners must not be empty. Give one owner for each row.")
    if values.dtype.kind == "O":
        values = _of_objects(values)
    if values.dtype.kind == "f":
        missing = int(np.isnan(values).sum())
        if missing:
            raise missing_owners(missing)
        if not bool((values == np.floor(values)).all()) or not bool((np.abs(values) < 2.0**53).all()):
            raise InvalidInput(
                "owners must be strings, or integers below 2^53, because floats round larger ones. Give the "
                "column with the person of each row."
            )
    if values.dtype.kind in "US" and (empty := int((np.char.strip(values) == values.dtype.type()).sum())):
        raise missing_owners(empty)
    if values.dtype.kind not in "iufUSb":
        raise InvalidInput(f"owners must be integers or strings; got {values.dtype}.")
    names, number = np.unique(values, return_inverse=True)
    salts = [int.from_bytes(hashlib.blake2b(str(n).encode(), digest_size=8).digest()) for n in names.tolist()]
    digest = hashlib.blake2b(str(values.dtype.kind).encode(), digest_size=32)
    digest.update(np.ascontiguousarray(values).tobytes())
    return number.astype(np.int64), np.array(salts, dtype=np.uint64), digest.digest()


def _of_objects(values: NDArray[Any]) -> NDArray[Any]:
    if any(isinstance(value, LISTS) for value in values):
        raise InvalidInput("some rows have a list of owners. Give one number or string for each row.")
    missing = sum(map(is_missing, values))
    if missing:
        raise missing_owners(missing)
    kinds = {"text" if isinstance(value, str) else type(value).__name__ for value in values}
    if len(kinds) > 1:
        raise InvalidInput(
            f"owners are of several types ({', '.join(sorted(kinds))}), so one person could count twice, as "
            "7 and '7'. Give all owners one type, such as str."
        )
    return values.astype(str) if kinds == {"text"} else np.asarray(values.tolist())


def hashed(seed: int, salt: NDArray[np.uint64], number: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash the seed, the owner's hash and the row's number to 64 bits (splitmix64, Steele et al., 2014)."""
    x = (salt ^ np.uint64(seed)) + np.uint64(0x9E3779B97F4A7C15) * (number.astype(np.uint64) + np.uint64(1))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x


def are_shared(owners: Any) -> bool:
    if isinstance(owners, Tensor) or getattr(owners, "ndim", 1) != 1 or not hasattr(owners, "__len__"):
        return False  # a table is refused later
    return any(isinstance(one, LISTS) for one in owners)


@final
class SharedRows:
    """Rows of one or more owners each; ``counts`` (N,) is the number of rows per owner."""

    def __init__(self, owners: Any) -> None:
        lists = [*owners]
        single = sum(not isinstance(one, LISTS) for one in lists)
        if single:
            raise InvalidInput(
                f"{single} of {len(lists)} rows name their owner without a list, unlike the others. Give "
                'each row a list, such as ["ann"] for one owner.'
            )
        missing = sum(len(one) == 0 or any(map(is_missing, one)) for one in lists)
        if missing:
            raise missing_owners(missing)
        owner, salts, _ = numbered([name for one in lists for name in one])
        row = np.repeat(np.arange(len(lists)), [len(one) for one in lists])
        # each owner once per row, in an order that does not depend on the order of a set
        self._row, self._owner = np.unique(np.stack([row, owner]), axis=1)
        self.rows = len(lists)
        self.counts = np.bincount(self._owner)
        digest = hashlib.blake2b(salts.tobytes(), digest_size=32)
        digest.update(np.ascontiguousarray([self._row, self._owner]).tobytes())
        self.digest = digest.digest()
        if int(self.counts.max()) == self.rows:
            raise InvalidInput(
                "one owner appears in all rows, so protecting this owner would hide the whole dataset. If "
                "this owner needs no protection, such as the mailbox itself, name only the other owners."
            )

    def capped(self, most: int) -> Indices:
        """Choose rows greedily, with at most ``most`` rows per user; return them in ascending order.

        Rows with fewer owners come first, because they count against fewer caps.  Ties are in a fixed random
        order.
        """
        sizes = np.bincount(self._row)
        shuffle = hashed(0, np.zeros(self.rows, dtype=np.uint64), np.arange(self.rows))
        order = np.lexsort((shuffle, sizes))
        by_row = np.split(self._owner, np.cumsum(sizes)[:-1])
        room = [most] * len(self.counts)
        rows = []
        for row in order.tolist():
            owners = by_row[row].tolist()
            if all(room[owner] for owner in owners):
                rows.append(row)
                for owner in owners:
                    room[owner] -= 1
        return np.array(sorted(rows), dtype=np.int64)


@final
class UserRecords:
    """Rows grouped by user, so that the guarantee protects each user with all of their rows.

    By default, a step samples users.  It averages the gradients of ``rows_per_user`` random rows of each
    sampled user, and clips this mean.  If a user has fewer rows, some are repeated.  The plan's ``records``
    and ``batch_size`` count users.

    If you also set ``rows_per_user`` in the plan, a step samples rows instead, and clips each row's gradient.
    The run uses at most ``rows_per_user`` rows of each user, and the plan accounts for all of them.  Its
    ``records`` and ``batch_size`` then count rows.

    A row may have several users, such as a message between two people.  Then set ``rows_per_user`` in the
    plan too, with adjacency "zero-out" or "replace-one".  The run drops a row if one of its users would
    otherwise have more than ``rows_per_user`` rows.  This depends on other users' rows, so the guarantee
    hides what a user's rows contain, but not which users each row has.

    Args:
        data: the M rows, in any form that :class:`~tacit.training.PrivateSession` supports.
        owners: the user of each row, (M,): numbers or strings, such as patient numbers.  If a row may have
            several users: M lists or sets of users.
        rows_per_user: K, the number of rows that a step uses of each user; if the plan sets it too, the most
            rows that the run uses.  With a larger K, a user's mean gradient is more precise, but steps are
            slower.

    Raises:
        InvalidInput: if a row has no owner, the owners are of several types, one user has all rows, or every
            user has fewer than ``rows_per_user`` rows.

    >>> rows = (torch.randn(6, 3), torch.tensor([0, 1, 1, 0, 1, 0]))
    >>> data = UserRecords(rows, ["ann", "bob", "ann", "cyd", "ann", "bob"], rows_per_user=2)
    >>> len(data), data.most_rows  # three users; ann has three rows
    (3, 3)
    >>> messages = UserRecords(rows, [("ann", "bob"), ("ann", "cyd"), ("bob", "cyd")] * 2, rows_per_user=2)
    >>> messages.shared, messages.rows, messages.dropped
    (True, 6, 3)
    """

    def __init__(self, data: Data | Records, owners: Any, *, rows_per_user: int) -> None:
        self.data = data
        self.rows_per_user = check_integer("rows_per_user", rows_per_user, low=1)
        self._shared = SharedRows(owners) if are_shared(owners) else None
        if self._shared is None:
            owner, self._salts, self._digest = numbered(owners)
            self._rows = np.argsort(owner, kind="stable")
            self._counts = np.bincount(owner)
            self._starts = np.cumsum(self._counts) - self._counts
        else:
            self._counts, self._digest = self._shared.counts, self._shared.digest
        if len(self) < 2:
            raise InvalidInput(
                "all rows have one owner, so protecting this owner would hide the whole dataset. Check that "
                "owners is the column with the person of each row."
            )
        if self.rows_per_user > self.most_rows:
            raise InvalidInput(
                f"rows_per_user is {self.rows_per_user}, but no user has more than {self.most_rows} rows. "
                f"Use rows_per_user={self.most_rows} or less."
            )

    def __len__(self) -> int:
        """Return N, the number of users."""
        return len(self._counts)

    @property
    def most_rows(self) -> int:
        """The largest number of rows of one user.  This number has no noise: do not publish it."""
        return int(self._counts.max())

    @property
    def rows(self) -> int:
        """The number of rows, M."""
        return len(self._rows) if self._shared is None else self._shared.rows

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """The 64-bit hashes of the N users' names, (N,), made without a secret key.

        Raises:
            PrivacyRefusal: if a row may have several users.
        """
        self._check_own_rows()
        return self._salts

    @property
    def shared(self) -> bool:
        """True if a row may have several users."""
        return self._shared is not None

    def chosen(self, users: Indices, seed: int) -> Indices:
        """Choose K random rows of each of the n ``users``, and return their positions, (n*K,).

        The same ``seed`` chooses the same rows.  If a user has fewer than K rows, all are chosen before any
        is repeated.

        Raises:
            PrivacyRefusal: if a row may have several users.
        """
        self._check_own_rows()
        counts = self._counts[users]
        user = np.repeat(np.arange(len(users)), counts)
        number = np.arange(len(user)) - np.repeat(
            np.cumsum(counts) - counts, counts
        )  # numbers the rows of each user from 0
        order = np.lexsort((hashed(seed, self._salts[users[user]], number), user))
        places = np.arange(self.rows_per_user) % counts[:, None] + (np.cumsum(counts) - counts)[:, None]
        shuffled: Indices = self._rows[self._starts[users[user]] + number[order]]
        return shuffled[places.ravel()]

    def capped(self) -> Indices:
        """Return the positions of the rows to use, ascending: at most ``rows_per_user`` of each user."""
        return self._capped

    @cached_property
    def _capped(self) -> Indices:
        if self._shared is not None:
            return self._shared.capped(self.rows_per_user)
        users = np.arange(len(self))
        counts = np.minimum(self._counts, self.rows_per_user)
        first = np.arange(self.rows_per_user) < counts[:, None]  # later ones are repetitions
        return np.sort(self.chosen(users, 0).reshape(-1, self.rows_per_user)[first])

    def split(self, parts: NDArray[np.int64]) -> tuple[UserRecords, NDArray[np.uint64], NDArray[np.int64]]:
        """Split users by part: one user's rows in one part, such as a step, become a new user.

        Args:
            parts: the part of each row, such as the number of its step, (M,).

        Returns:
            The records of the new users; for each new user, the hash of the old user's name; and the part.

        Raises:
            PrivacyRefusal: if a row may have several users.
        """
        self._check_own_rows()
        owner = np.empty(self.rows, dtype=np.int64)
        owner[self._rows] = np.repeat(np.arange(len(self)), self._counts)
        pairs, number = np.unique(np.stack([owner, parts], axis=1), axis=0, return_inverse=True)
        number = number.ravel()
        split = copy.copy(self)
        split.__dict__.pop("_capped", None)
        split._salts = self._salts[pairs[:, 0]]
        split._rows = np.argsort(number, kind="stable")
        split._counts = np.bincount(number)
        split._starts = np.cumsum(split._counts) - split._counts
        return split, split._salts, pairs[:, 1]

    @property
    def dropped(self) -> int:
        """The number of rows that the run does not use, because of ``rows_per_user``.

        This number has no noise: do not publish it.
        """
        return self.rows - len(self._capped)

    def digest(self, key: bytes) -> str:
        """Return a hash of the users of all rows under the secret ``key``, to detect changes on resume."""
        return hashlib.blake2b(self._digest, key=key, digest_size=16).hexdigest()

    def _check_promise(self, plan: Plan) -> None:
        """Refuse a plan whose guarantee would not hold for rows with several users.

        Raises:
            PrivacyRefusal: if rows may have several users, and the plan samples users or its adjacency is
                "add-remove".
        """
        if self._shared is None:
            return
        if plan.rows_per_user is None:
            self._check_own_rows()
        if plan.adjacency is Adjacency.ADD_REMOVE:
            raise PrivacyRefusal(
                f"{plan.adjacency} has no bound for rows with several owners: without one {plan.unit}, the "
                'limit rows_per_user would drop other rows of other owners. Use adjacency="zero-out" or '
                '"replace-one". They hide the content of all rows of an owner, and treat the owners of each '
                "row as public."
            )

    def _check_own_rows(self) -> None:
        if self._shared is not None:
            raise PrivacyRefusal(
                "rows with several owners cannot be sampled by person, because the rows of one owner would "
                "change the gradients of others. Sample rows instead: set "
                f"rows_per_user={self.rows_per_user} in the plan too; in a configuration, set [data] draw = "
                '"rows". Or make people who share rows one owner.'
            )


@final
class RowsOfUsers(Wrapped):
    """The records of ``users``: ``whole`` users with ``rows`` rows each, or single rows under the cap."""

    def __init__(self, users: UserRecords, inner: Records, *, whole: bool) -> None:
        if len(inner) != users.rows:
            raise InvalidInput(
                f"there are {len(inner)} rows and {users.rows} owners. Give one owner for each row."
            )
        super().__init__(inner)
        self.users, self._capped = users, None if whole else users.capped()

    def __len__(self) -> int:
        return len(self.users if self._capped is None else self._capped)

    @property
    def rows(self) -> int:
        return self.users.rows_per_user if self._capped is None else 1

    def positions(self, indices: Indices, seed: int = 0) -> Indices:
        return self.users.chosen(indices, seed) if self._capped is None else self._capped[indices]

    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        return self.inner.take(self.positions(indices, seed), seed=seed)

    def fingerprint(self, key: bytes) -> str:
        kind = "of users" if self._capped is None else "of users, by rows"
        names = f"{self.users.digest(key)} {self.users.rows_per_user}"
        return f"{self.inner.fingerprint(key)} {kind} {names}"


def records_for(
    data: Any, plan: Plan, *, collate: Collate | None = None, floating: torch.dtype | None = None
) -> tuple[Records, DatasetRecords | None]:
    """Return the records that a plan trains on, and the dataset to check, or None."""
    if isinstance(data, UserRecords):
        data._check_promise(plan)
    if plan.rows_per_user is not None:
        _check_cap(data, plan)
    inner = as_records(
        data.data if isinstance(data, UserRecords) else data, collate=collate, floating=floating
    )
    items = inner if isinstance(inner, DatasetRecords) else None
    if isinstance(data, UserRecords):
        return RowsOfUsers(data, inner, whole=plan.rows_per_user is None), items
    return inner, items


def _check_cap(data: Any, plan: Plan) -> None:
    if not isinstance(data, UserRecords):
        raise PrivacyRefusal(
            f"the plan has rows_per_user={plan.rows_per_user}, but the data name no owners. Give the session "
            f"UserRecords(data, owners, rows_per_user={plan.rows_per_user})."
        )
    if data.rows_per_user != plan.rows_per_user:
        raise PrivacyRefusal(
            f"the plan has rows_per_user={plan.rows_per_user}, but the data have "
            f"rows_per_user={data.rows_per_user}. Give both the same number."
        )


def rows_read(records: Records, indices: Indices) -> Indices:
    """Return the positions of the items read for these records; canaries have none."""
    return records.positions(indices[indices < len(records)])


def are_of_users(records: Records) -> bool:
    return isinstance(records, RowsOfUsers)


def check_unit(plan: Plan, records: Records, *, charged: bool, owned_by: str | None) -> None:
    """Refuse a plan or charges with another unit of privacy than the records."""
    owned = are_of_users(records)
    if charged and isinstance(records, RowsOfUsers) and records.users.shared:
        raise PrivacyRefusal(
            "rows with several owners cannot be charged to a ledger, because its other runs and queries "
            f"count a row for one {plan.unit} only. Train without a ledger, give each row one owner, or make "
            "people who share rows one owner."
        )
    if owned_by is not None and not owned:
        raise PrivacyRefusal(
            f"the charges count by column {owned_by!r}, but the session counts rows. Give the session "
            "UserRecords with that column as owners, or make the charges without owned_by."
        )
    if owned and plan.unit in _ROWS:
        raise PrivacyRefusal(
            f"the plan's unit {plan.unit!r} does not fit UserRecords, which makes all rows of an owner one "
            'record. Plan with a word for an owner, such as unit="user" or unit="patient". Count owners in '
            "records and batch_size."
        )


_ROWS = ("row", "record", "example", "sample")


def check_columns(data: Any, plan: Plan) -> None:
    """Refuse data with a column that seems to identify the units and has repeated values."""
    for part in data if isinstance(data, tuple) else (data,):
        if not has_column_names(part):
            continue
        columns = part
        if isinstance(part, Mapping):
            columns = {
                name: values.detach().cpu().numpy() if isinstance(values, Tensor) else values
                for name, values in part.items()
            }
        name, unit = repeated_in_frame(columns, plan.unit), plan.unit
        if name is not None:
            raise PrivacyRefusal(
                f"the plan's unit is {unit!r}, but values in column {name!r} of the data repeat. A {unit} "
                "seems to have several rows, and each row would be protected separately. Give the session "
                'UserRecords with that column as owners. To protect single rows, plan with unit="row". If '
                f"each row is a different {unit}, remove the column from the data."
            )


_DAY = "datetime64[D]"
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}(?!\d)")  # NumPy would read any other number as a year
_MISSING = ("", "NaT", "nan", "None", "<NA>")


@final
class DatedRecords:
    """Records with dates, for a plan that samples by date (:class:`tacit.sampling.ByDate`).

    One step uses the records of ``days`` days; the first step begins on the day ``first``.  A session takes
    the steps that end before ``until``.  When later data arrive, make a new session, and load the saved
    state.

    Args:
        data: the M rows, in any form that :class:`~tacit.training.PrivateSession` supports.  If a person may
            have two rows in the whole stream, pass :class:`~tacit.training.UserRecords`; a step then uses
            ``rows_per_user`` rows of each person who has rows in it.
        dates: the date of each row, (M,): strings such as "2026-03-01", Python dates, or ``datetime64``.
        first: the first day of the stream.
        until: the day after the last day with complete data.  Default: today, whatever the data contain.
        days: the number of days per step.
        too_often: what to do if a person takes part in more steps, or in steps closer together, than the plan
            allows: "refuse" the data, or "skip" the excess rows.

    Raises:
        InvalidInput: if a date is missing or unreadable, or ``until`` is before ``first``.

    >>> data = DatedRecords(
    ...     (np.zeros((3, 2)), np.zeros(3)), ["2026-03-01", "2026-03-04", "2026-03-09"],
    ...     first="2026-03-01", until="2026-03-09", days=2)
    >>> data.steps  # of two days each, from the 1st to the 8th
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
        """The number of steps that end before ``until``."""
        return int((self.until - self.first).astype(np.int64)) // self.days

    @property
    def left_out(self) -> int:
        """The number of rows dated before the first step or after the last.

        This number has no noise: do not publish it.
        """
        return int(((self.step_of < 0) | (self.step_of >= self.steps)).sum())

    def digest(self, key: bytes) -> str:
        """Return a hash of all dates under the secret ``key``, to detect changes on resume."""
        return hashlib.blake2b(self._dates.tobytes(), key=key, digest_size=16).hexdigest()


@final
class Dates(Part):
    """Chooses participants by the dates of their records, and counts participations of people."""

    def __init__(self, dated: DatedRecords, plan: Plan) -> None:
        if not isinstance(plan.sampling, ByDate):
            raise InvalidInput(
                f"the records have dates, but the plan ignores them: {plan.sampling.describe()}. Plan with "
                "sampling=tacit.sampling.ByDate(), or pass the records without dates."
            )
        self._plan, self.steps, self.unsaved = plan, min(dated.steps, plan.steps), False
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
                "call session.save(path) before the first step on records of further days. Otherwise the old "
                "state could be resumed with other records, and the same noise added to different sums."
            )
        if step >= self.steps:
            raise InvalidInput(
                f"all {self.steps} steps with data are done; the plan has {self._plan.steps}. Save the "
                "state, and resume from it in a session with the next days' records."
            )

    def check_length(self, records: int) -> None:
        if self._person is None:
            _check_length(len(self._step_of), records)

    def of_step(self, step: int) -> Indices:
        return np.flatnonzero(self._taken == step).astype(np.int64)

    def facts(self, key: bytes) -> dict[str, Any]:
        dated = self._dated
        stream = f"from {dated.first} on, {dated.days} days a step"
        return {"dates": dated.digest(key), "steps there": self.steps, "stream": stream}

    def begun(self, before: Mapping[str, Any], done: int) -> None:
        """Limit the steps to the days of the saved run ``before``, until these are done."""
        recorded = before.get("steps there")
        if recorded is not None and done < recorded < self.steps:
            self.steps = recorded

    def compared(self, before: dict[str, Any], now: dict[str, Any], done: int) -> None:
        """Remove facts that may change with further days from ``before`` and ``now``."""
        if done == before.get("steps there"):
            self.unsaved = before != now
            for facts in (before, now):  # nothing of later days has been released
                for name in ("records", "dates", "steps there"):
                    facts.pop(name, None)

    def state(self, done: int) -> dict[str, Any]:
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
                f"a {self._plan.unit} would take part too often (cases: {skipped}). The plan covers at most "
                f"{self._rule.participations} participations, at least {self._rule.separation} steps apart. "
                'Plan for more participations or a smaller separation, or set too_often="skip". Do not '
                "publish the number of cases: it comes from the data."
            )
        return np.where(allowed, self._step_of, -1)

    def _allowed(self, past: dict[int, tuple[int, int]], begun: int, stop: int) -> NDArray[np.bool_]:
        """Return which participations the plan allows, in time order, and add them to ``past``."""
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


def without_dates(data: Any, plan: Plan) -> tuple[Any, Dates | None]:
    if isinstance(data, DatedRecords):
        dates = Dates(data, plan)
        return dates.records, dates
    if isinstance(plan.sampling, ByDate):
        raise InvalidInput(
            "the plan samples by date, but the data have no dates. Pass "
            "data=tacit.training.DatedRecords(data, dates, first=...)."
        )
    return data, None


def day_of(name: str, value: object) -> np.datetime64:
    try:
        day: np.datetime64 = _read(np.array([value], dtype=object))[0]
    except InvalidInput:
        day = np.datetime64("NaT")
    if np.isnat(day):
        raise InvalidInput(f'{name} must be a day, such as "2026-03-01"; got {value!r}.')
    return day


def _as_days(dates: Any) -> NDArray[np.datetime64]:
    values = np.asarray(dates, dtype=object if isinstance(dates, list | tuple) else None)
    if values.ndim != 1:
        raise InvalidInput(f"dates must have shape (M,), one date per row; got shape {values.shape}.")
    if values.dtype.kind not in "OUM":
        raise InvalidInput(f'dates must be days, such as "2026-03-01"; got {values.dtype}.')
    days = values.astype(_DAY) if values.dtype.kind == "M" else _read(values)
    if missing := int(np.isnat(days).sum()):
        raise InvalidInput(
            f"{missing} rows have no date. Remove them, because the date determines a row's step."
        )
    return days


def _read(values: NDArray[Any]) -> NDArray[np.datetime64]:
    """Convert strings and Python dates to days, and markers of a missing date to NaT."""
    texts = ["" if value is None else str(value).strip() for value in values.tolist()]
    texts = ["NaT" if text in _MISSING else text for text in texts]
    try:
        if not all(text == "NaT" or _ISO.match(text) for text in texts):
            raise ValueError
        return np.array([text[:10] for text in texts], dtype=_DAY)
    except ValueError:
        raise InvalidInput(
            "a date cannot be read (value hidden). Convert dates to days such as 2026-03-01, with the year "
            "first."
        ) from None


def _check_length(dates: int, rows: int) -> None:
    if dates != rows:
        raise InvalidInput(f"there are {rows} rows and {dates} dates. Give one date for each row.")
