"""How does a person with several rows become one record? By data that name an owner for each row.

A step draws owners, not rows.  Of each it reads up to K rows, and the session clips the mean of their
gradients once; so the guarantee is that of one owner with all rows (user-level sampling and clipping:
McMahan et al., 1710.06963; Charles et al., 2407.07737).

**Guarantee**

* Which rows of an owner a step reads depends on the key, the step, the owner's name and number of rows, and
  on no other owner.
* Of rows with several owners, none is read by a plan whose promise does not fit them
  (:mod:`tacit.training.data.user_names`).

Letters: M rows; N owners; K rows that a step reads of one.
"""

from __future__ import annotations

import copy
import hashlib
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InvalidInput, PrivacyRefusal, check_integer
from tacit.events import Adjacency
from tacit.plan import Plan
from tacit.sampling.base import Indices
from tacit.training.data.records import Collate, Data, DatasetRecords, Records, Wrapped, as_records
from tacit.training.data.user_names import SharedRows, are_shared, hashed, numbered


@final
class UserRecords:
    """Rows with an owner each: a record is an owner with all rows, and so is the unit of privacy.

    By default a step draws users.  It averages the gradients of ``rows_per_user`` rows of each of them, and
    clips the mean once.  Of a user with more rows it draws so many; of one with fewer it takes some of them
    once more.  So each user counts the same, whatever the number of rows.  The plan counts users: ``records``
    is a public figure for how many there are, ``batch_size`` how many of them a step draws.

    With a plan that has ``rows_per_user`` too, a step draws rows.  Each is clipped by itself, and the price
    is that of all rows of a user, of which the run reads so many.  The plan counts rows.

    Where a row has several owners, such as a message of two people, the plan must have ``rows_per_user``.  A
    row is kept only if none of its owners has more than so many with it.  As that depends on the rows of
    others, the promise is for the content of all rows in which a user has a part, and takes who has a part in
    which row to be public: the plan's adjacency is "zero-out" or "replace-one".

    Args:
        data: the M rows, in any form that :class:`~tacit.training.PrivateSession` takes.
        owners: M numbers, or M texts: whose a row is, such as a column of patients' numbers.  Or M lists or
            sets of these, where a row may have several owners.
        rows_per_user: K.  More of them make the mean of a user's gradient less noisy and a step longer.

    Raises:
        InvalidInput: an owner is missing, or owners are of several types; one has all rows, or a part in all;
            or no user has ``rows_per_user`` rows.

    >>> rows = (torch.randn(6, 3), torch.tensor([0, 1, 1, 0, 1, 0]))
    >>> data = UserRecords(rows, ["ann", "bob", "ann", "cyd", "ann", "bob"], rows_per_user=2)
    >>> len(data), data.most_rows
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
                "all rows have one owner. A guarantee for owners hides what any one of them has, which here "
                "is everything. Check that owners is the column that says whose a row is."
            )
        if self.rows_per_user > self.most_rows:
            raise InvalidInput(
                f"rows_per_user is {self.rows_per_user}, and no user has more than {self.most_rows} rows: a "
                f"step would read rows twice for nothing. Take rows_per_user={self.most_rows} or less."
            )

    def __len__(self) -> int:
        """N, the number of owners."""
        return len(self._counts)

    @property
    def most_rows(self) -> int:
        """The most rows of one owner: a figure of the data, for whoever trains; do not publish it."""
        return int(self._counts.max())

    @property
    def rows(self) -> int:
        """M."""
        return len(self._rows) if self._shared is None else self._shared.rows

    @property
    def shared(self) -> bool:
        """Whether a row may have several owners."""
        return self._shared is not None

    def chosen(self, users: Indices, seed: int) -> Indices:
        """The rows (n K,) of the ``users`` (n,) in a step with this ``seed``, K of each after one another.

        Rows of one user are drawn without replacement, all of them before any is taken again.

        Raises:
            PrivacyRefusal: a row may have several owners.
        """
        self._check_own_rows()
        counts = self._counts[users]
        user = np.repeat(np.arange(len(users)), counts)
        number = np.arange(len(user)) - np.repeat(
            np.cumsum(counts) - counts, counts
        )  # 0, 1, ... of each user
        order = np.lexsort((hashed(seed, self._salts[users[user]], number), user))
        places = np.arange(self.rows_per_user) % counts[:, None] + (np.cumsum(counts) - counts)[:, None]
        shuffled: Indices = self._rows[self._starts[users[user]] + number[order]]
        return shuffled[places.ravel()]

    def capped(self) -> Indices:
        """The rows that stay where each user may have ``rows_per_user``, in order."""
        return self._capped

    @cached_property
    def _capped(self) -> Indices:
        if self._shared is not None:
            return self._shared.kept(self.rows_per_user)
        users = np.arange(len(self))
        counts = np.minimum(self._counts, self.rows_per_user)
        first = np.arange(self.rows_per_user) < counts[:, None]  # what comes after them comes again
        return np.sort(self.chosen(users, 0).reshape(-1, self.rows_per_user)[first])

    def split(self, parts: NDArray[np.int64]) -> tuple[UserRecords, NDArray[np.uint64], NDArray[np.int64]]:
        """Of each owner one for each of the ``parts`` (M,) that the rows are in.

        Returns:
            The records of the new owners, and for each of these the old one, by a word for the name, and the
            part.

        Raises:
            PrivacyRefusal: a row may have several owners.
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
        """Rows beyond ``rows_per_user``: a figure of the data, for whoever trains; do not publish it."""
        return self.rows - len(self._capped)

    def digest(self, key: bytes) -> str:
        """A keyed digest of whose each row is."""
        return hashlib.blake2b(self._digest, key=key, digest_size=16).hexdigest()

    def check_promise(self, plan: Plan) -> None:
        """Refuse a plan that promises for rows with several owners what is not proven.

        Raises:
            PrivacyRefusal: it draws people, or its neighbours have one person more.
        """
        if self._shared is None:
            return
        if plan.rows_per_user is None:
            self._check_own_rows()
        if plan.adjacency is Adjacency.ADD_REMOVE:
            raise PrivacyRefusal(
                f"rows have several owners, and the plan hides whether one {plan.unit} is there at all "
                f"({plan.adjacency}). Without that one and all rows shared with others, these would keep "
                "other rows, without a bound. What can be hidden is the content of all rows in which one has "
                'a part: plan with adjacency="zero-out" or "replace-one"; who has a part in which row is '
                "then taken to be public, and the statement says so."
            )

    def _check_own_rows(self) -> None:
        if self._shared is not None:
            raise PrivacyRefusal(
                "rows have several owners, and drawing people would read a row for each of them: all rows of "
                "one would move the gradients of all whom they are shared with. Draw rows, each at the price "
                f"of all that one keeps: rows_per_user={self.rows_per_user} in the plan too, or [data] "
                'draw = "rows" in a configuration. Or join people who share rows into groups, each one owner.'
            )


@final
class RowsOfUsers(Wrapped):
    """The records of :class:`UserRecords`, ``users``: these with ``rows`` rows each, or their rows.

    Where rows are the records, at most ``rows_per_user`` of each user: which of them stay depends on the
    user's name and number of rows alone; where rows have several users, on who has a part in which.

    Args:
        inner: all rows.
        whole: whether a record is a user.
    """

    def __init__(self, users: UserRecords, inner: Records, *, whole: bool) -> None:
        if len(inner) != users.rows:
            raise InvalidInput(
                f"there are {len(inner)} rows and {users.rows} owners. Give one owner for each row."
            )
        super().__init__(inner)
        self.users, self._kept = users, None if whole else users.capped()

    def __len__(self) -> int:
        return len(self.users if self._kept is None else self._kept)

    @property
    def rows(self) -> int:
        return self.users.rows_per_user if self._kept is None else 1

    def positions(self, indices: Indices, seed: int = 0) -> Indices:
        """The rows of these records in a step with this ``seed``, as positions among all rows."""
        return self.users.chosen(indices, seed) if self._kept is None else self._kept[indices]

    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        return self.inner.take(self.positions(indices, seed), seed=seed)

    def fingerprint(self, key: bytes) -> str:
        how = "of users" if self._kept is None else "of users, by rows"
        whose = f"{self.users.digest(key)} {self.users.rows_per_user}"
        return f"{self.inner.fingerprint(key)} {how} {whose}"


def records_for(
    data: Any, plan: Plan, *, collate: Collate | None = None, floating: torch.dtype | None = None
) -> tuple[Records, DatasetRecords | None]:
    """The records that a plan trains on, and what of them has to be checked item by item.

    Raises:
        PrivacyRefusal: the plan is for rows of which one unit has several, and nothing says whose a row is;
            or for another number of them; or rows have several owners, and the promise does not fit them.
    """
    if isinstance(data, UserRecords):
        data.check_promise(plan)
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
            f"the plan draws rows, of which one {plan.unit} has at most {plan.rows_per_user}, and nothing "
            "says whose a row is. Give the session UserRecords(data, owners, "
            f"rows_per_user={plan.rows_per_user})."
        )
    if data.rows_per_user != plan.rows_per_user:
        raise PrivacyRefusal(
            f"the plan is priced for {plan.rows_per_user} rows of one {plan.unit}, and the data are cut to "
            f"{data.rows_per_user}. Give both the same rows_per_user."
        )


def rows_read(records: Records, indices: Indices) -> Indices:
    """The positions of items that are read for records: for owners, some rows of each.

    Canaries, which come after the records, have none.
    """
    real = indices[indices < len(records)]
    return records.positions(real) if isinstance(records, RowsOfUsers) else real


def are_of_users(records: Records) -> bool:
    """Whether one unit of privacy may have several rows among them."""
    return isinstance(records, RowsOfUsers)


def check_unit(plan: Plan, records: Records, *, charged: bool, owned_by: str | None) -> None:
    """Refuse a plan for rows on the records of owners: statement and training must mean the same person.

    ``charged``: whether the run is charged to a ledger, which takes the records to be owned by the column
    ``owned_by``, if any.
    """
    owned = are_of_users(records)
    if charged and isinstance(records, RowsOfUsers) and records.users.shared:
        raise PrivacyRefusal(
            "rows have several owners, and the charges are to a ledger, whose other runs and queries count "
            f"a row against one {plan.unit}: what they cost does not add up to a promise for all rows in "
            "which one has a part. Train without a ledger; or give each row one owner; or join people who "
            "share rows into groups."
        )
    if owned_by is not None and not owned:
        raise PrivacyRefusal(
            f"the charges are for owners, the column {owned_by!r}, and the session's records are rows. Give "
            "the session UserRecords with that column as owners, or make the charges without owned_by."
        )
    if owned and plan.unit in _ROWS:
        raise PrivacyRefusal(
            f"the plan protects one {plan.unit}, and with UserRecords a record is an owner with all "
            'rows. Make the plan with the word for an owner, unit="user" or unit="patient", and count owners '
            "in records and batch_size."
        )


_ROWS = ("row", "record", "example", "sample")
