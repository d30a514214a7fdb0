"""Records that are distributed over the ranks: each rank reads only its own."""

# Record i of rank r has the address (number of records of the ranks before r) + i, by which the samplers
# decide whether it takes part.  So the steps are those of one process that has all records in the order of
# the ranks.  The ranks tell each other their numbers of records, which nothing outside them shows.  A number
# only moves the addresses of later records: the words of all addresses are independent, so the law of the
# draws stays the same, as if a record were inserted among those of one process.
#
# **Guarantee**
#
# * A rank draws for its own records alone, and no other rank reads them, or a value that follows from one of
#   them alone.
# * A record at one rank only takes part at most as often as the plan accounts for.  Ranks with the same
#   records are refused, and so are ranks that together have more than the plan's public number, and users
#   with rows at two ranks.
#
# Not covered: a record, but not all of them, at two ranks.

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.plan import Plan
from tacit.sampling.samplers import Indices
from tacit.training.ranks import Ranks
from tacit.training.records import Content, Data, DrawnRecords, Records, Wrapped, names_of_columns
from tacit.training.users import RowsOfUsers, UserRecords


@final
class OwnRecords(Wrapped):
    """The records of all ranks.  This rank can read its own, ``inner``, which begin at ``first``."""

    def __init__(self, inner: Records, names: list[str], ranks: Ranks) -> None:
        super().__init__(inner)
        self._ranks = ranks
        layouts = ranks.gathered(lambda: _layout(inner, names))
        ranks.each(lambda: _check_layout(layouts[0], layouts[ranks.rank], ranks.rank))
        self._counts = ranks.gathered(lambda: len(inner))
        self.first = sum(self._counts[: ranks.rank])

    def __len__(self) -> int:
        return sum(self._counts)

    def __getstate__(self) -> dict[str, Any]:  # for workers, which only take records
        return {**vars(self), "_ranks": None}

    def own(self, records: int) -> range:
        """Return this rank's positions among ``records``; the last rank also has the canaries."""
        is_last = self._ranks.rank == self._ranks.ranks - 1
        return range(self.first, records if is_last else self.first + len(self.inner))

    def held(self) -> tuple[Tensor, ...]:
        return self.inner.held()

    def positions(self, indices: Indices, seed: int = 0) -> Indices:
        return self.inner.positions(indices - self.first, seed)

    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        return self.inner.take(indices - self.first, seed=seed)

    def fingerprint(self, key: bytes) -> str:
        """Return the digests of all ranks' records; all ranks call this together."""
        digests = self._ranks.gathered(lambda: self.inner.fingerprint(key))
        found: dict[str, int] = {}
        for rank, digest in enumerate(digests):
            if self._counts[rank] > 0 and found.setdefault(digest, rank) != rank:
                raise PrivacyRefusal(
                    f"processes {found[digest]} and {rank} have the same records, but the plan accounts for "
                    "only one use of each record. Give each process its own records, or remove own_records "
                    "to share them."
                )
        return " ".join(digests)

    def content(self) -> Iterator[bytes | memoryview] | None:
        return self.inner.content()

    def contents(self) -> list[Content]:
        """Return the digest of each rank's records for a ledger; all ranks call this together."""
        return self._ranks.gathered(self._digest)

    def _digest(self) -> list[bytes] | None:
        content = self.inner.content()
        if content is None:
            return None
        digest = hashlib.blake2b(digest_size=32)
        for piece in content:
            digest.update(piece)
        return [digest.digest()]


def contents_of(records: Records) -> list[Callable[[], Content]]:
    if not isinstance(records, OwnRecords):
        return [records.content]
    return [partial(_same, content) for content in records.contents()]


def _same(content: Content) -> Content:
    return content


def with_others(
    records: Records, data: Data | UserRecords | Records, plan: Plan, ranks: Ranks, *, dated: bool
) -> Records:
    """Return ``records``, or with ``own_records`` those of all ranks."""
    mine = ranks.own_records
    first = ranks.from_first(lambda: mine)

    def check() -> None:
        if mine != first:
            raise InvalidInput(
                f"process {ranks.rank} has own_records={mine}, but process 0 has {first}. Set the same value "
                "in all processes."
            )
        if mine and (dated or isinstance(records, DrawnRecords)):
            what = "records with dates" if dated else "batches drawn in advance"
            raise InvalidInput(
                f"own_records cannot be used with {what}. Remove it. All processes then read the same "
                "records."
            )

    ranks.each(check)
    if not mine:
        return records
    if isinstance(records, RowsOfUsers):
        check_apart(lambda: records.users.hashes, plan.unit, ranks)
    whole = OwnRecords(records, names_of_columns(data.data if isinstance(data, UserRecords) else data), ranks)
    if len(whole) > plan.records:
        raise PrivacyRefusal(
            f"the processes together have more records than the plan's public number, {plan.records}. Give "
            "each process its own records, not the same file. If each has its own already, plan with a "
            "larger number, from public knowledge."
        )
    return whole


def check_apart(hashes: Callable[[], NDArray[np.uint64]], unit: str, ranks: Ranks) -> None:
    """Refuse ranks that share a user, by the 64-bit ``hashes`` (N,) of their users' names."""
    of_ranks = ranks.gathered(lambda: np.unique(hashes()))
    every = np.concatenate(of_ranks)
    if len(np.unique(every)) < len(every):
        raise PrivacyRefusal(
            f"the same {unit} has rows at two processes and would count twice. Move all rows of a {unit} to "
            "one process."
        )


def _layout(records: Records, names: list[str]) -> dict[str, str]:
    parts = records.take(np.empty(0, dtype=np.int64), seed=0)
    shapes = [f"{tuple(part.shape[1:])} {part.dtype}" for part in parts]
    return {"columns": ", ".join(names), "structure": repr(records.template), "tensors": "; ".join(shapes)}


def _check_layout(first: dict[str, str], mine: dict[str, str], rank: int) -> None:
    for name, layout in mine.items():
        if layout != first[name]:
            raise InvalidInput(
                f"the records of process {rank} differ from those of process 0 in their {name}: "
                f"{layout or 'none'}, not {first[name] or 'none'}. Give the records of all processes the "
                "same columns and types, in the same order."
            )
