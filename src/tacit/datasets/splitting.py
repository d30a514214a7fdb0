"""How are test records chosen? One by one, so that one record more or less moves no other record.

A shuffle with a fixed seed would not do: the order depends on the number of records, so a data set with one
record more would train on quite different records, and the guarantee is about one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tacit.errors import check_real

__all__ = ["choose_test"]


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
