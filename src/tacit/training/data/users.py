"""Users with several rows each, or rows with several users; names are checked, numbered and capped.

By default a step draws users: it reads K rows of each, and the mean of their gradients is clipped once
(user-level sampling and clipping: McMahan et al., 1710.06963; Charles et al., 2407.07737).  Two spellings of
one name would count as two users, so inputs that may hide this are refused.

A row with several users counts against the cap of each, and is used only if none then exceeds it.  So the
choice of one person's rows depends on the rows of others, and no bound on this effect is known.  The promise
is therefore for neighbours in which every row has the same users, and the rows of one person are blank or
have another content: "fixed-graph" privacy (Ganesh et al., 2503.03622).  At most K of their rows differ.

Letters: M rows; N users; K the rows of a user that a step reads, or the most that a user may keep.

**Guarantee**

* If a step draws users, the rows that it reads of a user depend only on the key, the step, and the user's
  name and number of rows.
* No user is among the users of more than K rows that are kept.  The choice of rows depends on the users of
  each row, and not on their content.
* A plan is refused if its promise does not fit rows that have several users.
"""

from __future__ import annotations

import copy
import hashlib
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
from tacit.errors import InvalidInput, PrivacyRefusal, check_integer
from tacit.events import Adjacency
from tacit.plan import Plan
from tacit.sampling.base import Indices
from tacit.training.data.records import Collate, Data, DatasetRecords, Records, Wrapped, as_records

LISTS = (list, tuple, set, frozenset, np.ndarray)
"""Types that may hold the users of a row, if a row may have several."""


def numbered(owners: Any) -> tuple[NDArray[np.int64], NDArray[np.uint64], bytes]:
    """Number the owners from 0; return the number of each row's owner (M,), and hashes.

    The hashes are a 64-bit hash of each name (N,), and a digest of the owners of all rows.
    """
    values = owners.numpy(force=True) if isinstance(owners, Tensor) else owners
    # NumPy turns a list with one text into texts: "1.0" and "1" would be two owners
    values = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    if values.ndim != 1:
        raise InvalidInput(
            f"owners must be one for each row, (M,); got shape {values.shape}. If a row has several, give "
            "a list of lists, such as owners.tolist()."
        )
    if len(values) == 0:
        raise InvalidInput("owners must not be empty. Give one for each row.")
    if values.dtype.kind == "O":
        values = _of_objects(values)
    if values.dtype.kind == "f":
        missing = int(np.isnan(values).sum())
        if missing:
            raise missing_owners(missing)
        if not bool((values == np.floor(values)).all()) or not bool((np.abs(values) < 2.0**53).all()):
            raise InvalidInput(
                "owners must be texts, or whole numbers below 2^53. Larger floating-point numbers cannot be "
                "told apart, and a fraction is not a name. Give the column with the person of each row."
            )
    if values.dtype.kind in "US" and (empty := int((np.char.strip(values) == values.dtype.type()).sum())):
        raise missing_owners(empty)
    if values.dtype.kind not in "iufUSb":
        raise InvalidInput(f"owners must be numbers or texts; got {values.dtype}.")
    names, number = np.unique(values, return_inverse=True)
    salts = [int.from_bytes(hashlib.blake2b(str(n).encode(), digest_size=8).digest()) for n in names.tolist()]
    digest = hashlib.blake2b(str(values.dtype.kind).encode(), digest_size=32)
    digest.update(np.ascontiguousarray(values).tobytes())
    return number.astype(np.int64), np.array(salts, dtype=np.uint64), digest.digest()


def _of_objects(values: NDArray[Any]) -> NDArray[Any]:
    """Convert an array of objects, which must all have one type, to an array of that type."""
    if any(isinstance(value, LISTS) for value in values):
        raise InvalidInput("some rows have a list of owners. Give one for each row: a number or a text.")
    missing = sum(map(is_missing, values))
    if missing:
        raise missing_owners(missing)
    kinds = {"text" if isinstance(value, str) else type(value).__name__ for value in values}
    if len(kinds) > 1:
        raise InvalidInput(
            f"owners are of several types ({', '.join(sorted(kinds))}). 7 and '7' would be two owners, and "
            "one person's rows would count as two people's. Give all names one type, such as text."
        )
    return values.astype(str) if kinds == {"text"} else np.asarray(values.tolist())


def hashed(seed: int, salt: NDArray[np.uint64], number: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash the seed, the owner's hash and the row's number to 64 bits (splitmix64, Steele et al., 2014)."""
    x = (salt ^ np.uint64(seed)) + np.uint64(0x9E3779B97F4A7C15) * (number.astype(np.uint64) + np.uint64(1))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x


def are_shared(owners: Any) -> bool:
    """Return whether ``owners`` has a list of names for each row, instead of one name."""
    if isinstance(owners, Tensor) or getattr(owners, "ndim", 1) != 1 or not hasattr(owners, "__len__"):
        return False  # a table is refused later
    return any(isinstance(one, LISTS) for one in owners)


@final
class SharedRows:
    """Rows that may have several owners; ``owners`` has a list or set of names for each row.

    Attributes:
        rows: M.
        counts: (N,), the number of rows of each owner.
        digest: a digest of the owners of all rows.

    >>> shared = SharedRows([["ann", "bob"], ["bob", "cyd"], ["ann", "bob"], {"dan"}])
    >>> shared.counts.tolist(), len(shared.capped(1)), len(shared.capped(2))
    ([2, 3, 1, 1], 2, 3)
    """

    def __init__(self, owners: Any) -> None:
        lists = [*owners]
        single = sum(not isinstance(one, LISTS) for one in lists)
        if single:
            raise InvalidInput(
                f"{single} of {len(lists)} rows have no list of owners. The others have one. Give each a "
                'list, such as ["ann"] for one owner.'
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
                "one owner has a part in all rows. A guarantee for owners hides all rows of any one owner, "
                "and here these are all rows of the data. If that owner needs no protection (the "
                "address of the mailbox itself, for example), leave it out and give only the others."
            )

    def capped(self, most: int) -> Indices:
        """Choose rows greedily such that no user has more than ``most``; return them in ascending order.

        Rows with fewer owners are chosen first, because they count against fewer caps.  Rows with the same
        number of owners are tried in a fixed random order.
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
    """Rows that belong to users: a record, and so the unit of privacy, is a user with all rows.

    By default a step draws users.  It averages the gradients of ``rows_per_user`` rows of each user, and
    clips the mean once.  If a user has more rows, the step draws this number of them; if a user has fewer, it
    repeats some.  So each user counts the same, whatever the number of rows.  The plan's numbers refer to
    users: ``records`` is a public figure for the number of users, and ``batch_size`` is the expected number
    of users in a step.

    If the plan has ``rows_per_user`` too, a step draws rows and clips the gradient of each row.  The run
    keeps at most ``rows_per_user`` rows of each user, and the plan accounts for all of them together.  The
    plan's ``records`` and ``batch_size`` then refer to rows.

    If a row may have several users, such as a message between two people, the plan must have
    ``rows_per_user``.  A row is kept only if none of its users then has more than ``rows_per_user`` rows.
    Because this choice depends on the rows of others, the promise hides the content of a user's rows, but not
    which users each row has.  The plan's adjacency must be "zero-out" or "replace-one".

    Args:
        data: the M rows, in any form that :class:`~tacit.training.PrivateSession` supports.
        owners: M numbers or texts that name the user of each row, such as a column of patient numbers.  If a
            row may have several users, M lists or sets of numbers or texts.
        rows_per_user: K.  A larger K makes the mean of a user's gradients less noisy and a step slower.

    Raises:
        InvalidInput: a name is missing, or names have several types; one user has all rows; or no user has
            ``rows_per_user`` rows.

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
                "all rows have one owner. A guarantee for owners hides all rows of any one owner, and here "
                "these are all rows of the data. Check that owners is the column with the person of each "
                "row."
            )
        if self.rows_per_user > self.most_rows:
            raise InvalidInput(
                f"rows_per_user is {self.rows_per_user}, but no user has more than {self.most_rows} rows. "
                f"A step would read rows twice for nothing. Take rows_per_user={self.most_rows} or less."
            )

    def __len__(self) -> int:
        """Return N, the number of users."""
        return len(self._counts)

    @property
    def most_rows(self) -> int:
        """The largest number of rows of a user.  It has no noise, so do not publish it."""
        return int(self._counts.max())

    @property
    def rows(self) -> int:
        """The number of rows, M."""
        return len(self._rows) if self._shared is None else self._shared.rows

    @property
    def shared(self) -> bool:
        """True if a row may have several users."""
        return self._shared is not None

    def chosen(self, users: Indices, seed: int) -> Indices:
        """Choose K rows of each of the ``users`` (n,) in a step with this ``seed``; return (n K,) positions.

        The rows of a user are consecutive.  They are drawn without replacement; a user with fewer than K rows
        gets each row before any is repeated.

        Raises:
            PrivacyRefusal: a row may have several users.
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
        """Return the rows that are kept if each user may have at most ``rows_per_user``, in order."""
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
        """Split each user by ``parts`` (M,), which assigns each row to a part, such as a step.

        Returns:
            Records with one new user for each pair of a user and a part; and for each new user, a 64-bit hash
            of the user's name, and the part.

        Raises:
            PrivacyRefusal: a row may have several users.
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
        """The number of rows that the cap ``rows_per_user`` drops.  It has no noise, so do not publish it."""
        return self.rows - len(self._capped)

    def digest(self, key: bytes) -> str:
        """Return a keyed digest of the users of all rows."""
        return hashlib.blake2b(self._digest, key=key, digest_size=16).hexdigest()

    def check_promise(self, plan: Plan) -> None:
        """Refuse a plan whose promise is not proven for rows with several users.

        Raises:
            PrivacyRefusal: rows have several users, and the plan draws people or has adjacency add-remove.
        """
        if self._shared is None:
            return
        if plan.rows_per_user is None:
            self._check_own_rows()
        if plan.adjacency is Adjacency.ADD_REMOVE:
            raise PrivacyRefusal(
                f"{plan.adjacency} has no bound for rows with several owners. It would have to hide "
                f"whether one {plan.unit} is in the data at all. But without that {plan.unit} and the shared "
                'rows, the others would keep other rows. Plan with adjacency="zero-out" or "replace-one", '
                "which hide the content of all rows of an owner. They treat the names of the owners of each "
                "row as public, and the statement says so."
            )

    def _check_own_rows(self) -> None:
        if self._shared is not None:
            raise PrivacyRefusal(
                "rows with several owners cannot be drawn by person. A step would read a row for each of "
                "its owners, so the rows of one owner would change the gradients of others. Draw rows "
                "instead, at the price of all rows that one owner keeps: set "
                f'rows_per_user={self.rows_per_user} in the plan too, or [data] draw = "rows" in a '
                "configuration. Or join people who share rows into groups, and make each group one owner."
            )


@final
class RowsOfUsers(Wrapped):
    """The records of ``users``, which are either users with ``rows`` rows each, or single rows.

    If records are single rows, each user keeps at most ``rows_per_user`` of them.  The choice depends only on
    the user's name and number of rows.  If rows have several users, it depends on the users of all rows.

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
        self.users, self._capped = users, None if whole else users.capped()

    def __len__(self) -> int:
        return len(self.users if self._capped is None else self._capped)

    @property
    def rows(self) -> int:
        return self.users.rows_per_user if self._capped is None else 1

    def positions(self, indices: Indices, seed: int = 0) -> Indices:
        """Return the rows of these records in a step with this ``seed``, as positions among all rows."""
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
    """Return the records that a plan trains on, and the data set whose items must be checked, or None."""
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
            f"the plan draws rows, and the data name no owners. One {plan.unit} has at most "
            f"{plan.rows_per_user} of the rows. Give the session UserRecords(data, owners, "
            f"rows_per_user={plan.rows_per_user})."
        )
    if data.rows_per_user != plan.rows_per_user:
        raise PrivacyRefusal(
            f"the plan has rows_per_user={plan.rows_per_user} and the data {data.rows_per_user}. Give both "
            "the same number."
        )


def rows_read(records: Records, indices: Indices) -> Indices:
    """Return the positions of the items that must be read for these records: for users, those of their rows.

    Canaries come after the records and have no items.
    """
    real = indices[indices < len(records)]
    return records.positions(real) if isinstance(records, RowsOfUsers) else real


def are_of_users(records: Records) -> bool:
    """Return whether a unit of privacy may have several rows in the data."""
    return isinstance(records, RowsOfUsers)


def check_unit(plan: Plan, records: Records, *, charged: bool, owned_by: str | None) -> None:
    """Refuse a plan or charges whose unit of privacy differs from that of the records.

    ``charged`` says whether the run is charged to a ledger.  ``owned_by`` is the column of the users
    according to the charges, or None.
    """
    owned = are_of_users(records)
    if charged and isinstance(records, RowsOfUsers) and records.users.shared:
        raise PrivacyRefusal(
            "rows with several owners cannot be charged to a ledger. Its other runs and queries count a "
            f"row against one {plan.unit}, so the costs do not add up to a promise for all rows of an "
            "owner. Train without a ledger; or give each row one owner; or join people who share rows into "
            "groups."
        )
    if owned_by is not None and not owned:
        raise PrivacyRefusal(
            f"the charges count by column {owned_by!r}, the session by rows. Give the session UserRecords "
            "with that column as owners, or make the charges without owned_by."
        )
    if owned and plan.unit in _ROWS:
        raise PrivacyRefusal(
            f"the plan's unit {plan.unit!r} does not fit UserRecords. A record is an owner with all rows. "
            'Make the plan with a word for an owner, such as unit="user" or unit="patient", and count '
            "owners in records and batch_size."
        )


_ROWS = ("row", "record", "example", "sample")


def check_columns(data: Any, plan: Plan) -> None:
    """Refuse a data frame or mapping with a column that seems to identify the units and has repeated values.

    Data in :class:`UserRecords` are not checked: they name the unit of each row.
    """
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
                f"the plan's unit is {unit!r}, and column {name!r} of the data has repeated values: a {unit} "
                "seems to have several rows, and each row would be protected separately. Give the session "
                f"UserRecords with that column as owners; or, to protect single rows, make the plan with "
                f'unit="row"; or, if each row is another {unit}, leave the column out of the data.'
            )
