"""Names of users, checked and numbered, and a cap on rows that have several users.

Two spellings of one name would count as two users, and the promise for each would cover only some of the
person's rows.  So inputs that may hide this are refused: names of several types, missing names, and numbers
too large to tell apart.

A row may have several users, such as a message between two people.  It counts against the cap of each of
them, and is used only if none of them then exceeds the cap.  So the choice of one person's rows depends on
the rows of others: without one person's rows, others might keep more rows, and these might displace further
ones.  No bound on this effect is known.  The promise is therefore for neighbouring data sets in which every
row has the same users, and the rows of one person are blank or have another content.  This is "fixed-graph"
differential privacy (Ganesh et al., 2503.03622).  Such neighbours keep the same rows, and at most K of them
differ.

**Guarantee**

* No user is among the users of more than K rows that are kept.
* The choice of rows depends on the users of each row, and not on the content of the rows.

Letters: M rows; N users; K the most rows that a user may keep.
"""

from __future__ import annotations

import hashlib
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacit.datasets.dataset import is_missing, missing_owners
from tacit.errors import InvalidInput
from tacit.sampling.base import Indices

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

    Raises:
        InvalidInput: a row has no owners, or one name instead of a list; names have several types; or one
            owner is among the owners of all rows.

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
