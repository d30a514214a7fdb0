"""Which rows does a run keep where a row may have several owners, such as a message of two people?

A row counts against each of its owners, and is kept only if all of them have room.  So the choice for one
person depends on the rows of others: without one person's rows, others might keep more of theirs, and these
might crowd out further ones.  No bound is known on how far that goes.  The promise is therefore for
neighbours in which the same people have a part in the same rows, and all rows of one person are blank or
hold something else: "fixed-graph" differential privacy (Ganesh et al., 2503.03622).  There the same rows are
kept, and at most K of them differ.

**Guarantee**

* Nobody has a part in more than K rows of those that are kept.
* Which rows are kept depends on who has a part in which row, and on nothing that rows hold.

Letters: M rows; N owners; K rows that one owner keeps at most.
"""

from __future__ import annotations

import hashlib
from typing import Any, final

import numpy as np
from torch import Tensor

from tacit.datasets.splitting import is_missing, missing_owners
from tacit.errors import InvalidInput
from tacit.sampling import Indices
from tacit.training.data.user_names import LISTS, hashed, numbered


def are_shared(owners: Any) -> bool:
    """Whether ``owners`` has lists of names, one for each row, and not one name for each."""
    if isinstance(owners, Tensor) or getattr(owners, "ndim", 1) != 1 or not hasattr(owners, "__len__"):
        return False  # a table is refused later
    return any(isinstance(one, LISTS) for one in owners)


@final
class SharedRows:
    """The rows of ``owners``, M lists or sets of names.

    Attributes:
        rows: M.
        counts: (N,), in how many rows each owner has a part.
        digest: of who has a part in which row.

    Raises:
        InvalidInput: a row has no owners, or one name instead of a list; names are of several types; or one
            owner has a part in all rows.

    >>> shared = SharedRows([["ann", "bob"], ["bob", "cyd"], ["ann", "bob"], {"dan"}])
    >>> shared.counts.tolist(), len(shared.kept(1)), len(shared.kept(2))
    ([2, 3, 1, 1], 2, 3)
    """

    def __init__(self, owners: Any) -> None:
        lists = [*owners]
        single = sum(not isinstance(one, LISTS) for one in lists)
        if single:
            raise InvalidInput(
                f"{single} of {len(lists)} rows have no list of owners, and the others have one. Give each a "
                'list, such as ["ann"] for one owner.'
            )
        missing = sum(len(one) == 0 or any(map(is_missing, one)) for one in lists)
        if missing:
            raise missing_owners(missing)
        owner, salts, _ = numbered([name for one in lists for name in one])
        row = np.repeat(np.arange(len(lists)), [len(one) for one in lists])
        # each owner once in a row, in an order that does not depend on how a set was read
        self._row, self._owner = np.unique(np.stack([row, owner]), axis=1)
        self.rows = len(lists)
        self.counts = np.bincount(self._owner)
        digest = hashlib.blake2b(salts.tobytes(), digest_size=32)
        digest.update(np.ascontiguousarray([self._row, self._owner]).tobytes())
        self.digest = digest.digest()
        if int(self.counts.max()) == self.rows:
            raise InvalidInput(
                "one owner has a part in all rows. A guarantee for owners hides what any one of them has, "
                "which here is everything. Leave that owner out if it is nobody to be protected, such as the "
                "address of the mailbox itself, and give the others."
            )

    def kept(self, most: int) -> Indices:
        """The rows, in order, of which nobody has more than ``most``; no further row could be kept too.

        Rows of few owners come first, as they take few places; among them the order is a fixed shuffle.
        """
        sizes = np.bincount(self._row)
        shuffle = hashed(0, np.zeros(self.rows, dtype=np.uint64), np.arange(self.rows))
        order = np.lexsort((shuffle, sizes))
        whose = np.split(self._owner, np.cumsum(sizes)[:-1])
        room = [most] * len(self.counts)
        kept = []
        for row in order.tolist():
            owners = whose[row].tolist()
            if all(room[owner] for owner in owners):
                kept.append(row)
                for owner in owners:
                    room[owner] -= 1
        return np.array(sorted(kept), dtype=np.int64)
