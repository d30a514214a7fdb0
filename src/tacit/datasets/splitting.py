"""How are test records chosen? One by one, so that one record more or less moves no other record.

A shuffle with a fixed seed would not do: the order depends on the number of records, so a data set with one
record more would train on quite different records, and the guarantee is about one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.datasets.dataset import Owners
from tacit.errors import InvalidInput, check_real


def choose_test(records: Iterable[bytes], test_fraction: float) -> NDArray[np.bool_]:
    """Mark the records that go to the test part: those whose sha256 is below ``test_fraction``.

    Guarantee: whether a record is marked depends on its own bytes alone, so data sets that differ in one
    record have training parts that differ in at most one.  Equal records go to the same part.

    The share of test records is ``test_fraction`` on average, not exactly.

    >>> choose_test([b"a", b"b", b"c", b"d"], 0.5).tolist()
    [False, True, True, True]
    """
    fraction = check_real("test_fraction", test_fraction, low=0.0, high=1.0, open_low=True, open_high=True)
    limit = round(fraction * 2**64)
    marks = [int.from_bytes(hashlib.sha256(record).digest()[:8], "big") < limit for record in records]
    return np.asarray(marks, dtype=np.bool_)


def choose_people(owners: Owners, test_fraction: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Mark the records of people who train the model, and those of people who test it, each by their name.

    Records that people of both parts share are in neither.

    Raises:
        InvalidInput: a record has no owner.

    >>> train, test = choose_people(["a", "b", ("a", "b"), ("b", "c")], 0.5)
    >>> train.tolist(), test.tolist()
    ([True, False, False, False], [False, True, False, True])
    """
    whose = [one if isinstance(one, tuple) else (one,) for one in owners]
    missing = sum(any(map(is_missing, all_of_one)) for all_of_one in whose)
    if missing:
        raise missing_owners(missing)
    names = [*{name for all_of_one in whose for name in all_of_one}]
    tests = dict(zip(names, choose_test((str(name).encode() for name in names), test_fraction), strict=True))
    marks = [[bool(tests[name]) for name in all_of_one] for all_of_one in whose]
    return np.array([not any(one) for one in marks], bool), np.array([all(one) for one in marks], bool)


def is_missing(name: Any) -> bool:
    """Whether nothing says who it is: None, NaN and the like, or a blank text."""
    if isinstance(name, str):
        return not name.strip()
    return name is None or str(name) in ("<NA>", "NaT", "nan")  # pandas' NA is neither equal nor unequal


def missing_owners(count: int) -> InvalidInput:
    """The error that so many rows have no owner."""
    return InvalidInput(
        f"{count} rows have no owner (empty, None or NaN), so nothing says whose privacy they touch. Leave "
        "them out, or give each an owner of its own if no two of them can be of one person."
    )
