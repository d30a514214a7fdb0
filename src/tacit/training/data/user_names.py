"""Who are the owners of rows? Their names, checked and numbered.

Two spellings of one name would be two owners, and each would get the promise for some of one person's rows.
So what may hide that is refused: several types, missing names, numbers that run together.

Letters: M rows; N owners.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacit.datasets.splitting import is_missing, missing_owners
from tacit.errors import InvalidInput

LISTS = (list, tuple, set, frozenset, np.ndarray)
"""What holds the owners of one row, where it may have several."""


def numbered(owners: Any) -> tuple[NDArray[np.int64], NDArray[np.uint64], bytes]:
    """The owners numbered from 0, (M,), a word for each name, (N,), and a digest of whose each row is."""
    values = owners.numpy(force=True) if isinstance(owners, Tensor) else owners
    # of a list NumPy would make texts where one item is a text: "1.0" and "1" would be two owners
    values = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    if values.ndim != 1:
        raise InvalidInput(
            f"owners must be one for each row, (M,); got shape {values.shape}. Where "
            "a row has several, give a list of lists, such as owners.tolist()."
        )
    if len(values) == 0:
        raise InvalidInput("there are no owners.")
    if values.dtype.kind == "O":
        values = _of_objects(values)
    if values.dtype.kind == "f":
        missing = int(np.isnan(values).sum())
        if missing:
            raise missing_owners(missing)
        if not bool((values == np.floor(values)).all()) or not bool((np.abs(values) < 2.0**53).all()):
            raise InvalidInput(
                "owners are numbers with a fraction, or beyond 2^53, where numbers run together. Give whole "
                "numbers or texts: the column that says whose a row is."
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
    """Objects that are all texts, or all whole numbers, as an array of these."""
    if any(isinstance(value, LISTS) for value in values):
        raise InvalidInput("some rows have a list of owners. Give one for each row: a number or a text.")
    missing = sum(map(is_missing, values))
    if missing:
        raise missing_owners(missing)
    kinds = {"text" if isinstance(value, str) else type(value).__name__ for value in values}
    if len(kinds) > 1:
        raise InvalidInput(
            f"owners are of several types ({', '.join(sorted(kinds))}): 7 and '7' would be two owners, and "
            "one person's rows would count as two people's. Give all of one type, such as texts."
        )
    return values.astype(str) if kinds == {"text"} else np.asarray(values.tolist())


def hashed(seed: int, salt: NDArray[np.uint64], number: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Words by seed, owner and number of the row that look independent (splitmix64, Steele et al., 2014)."""
    x = (salt ^ np.uint64(seed)) + np.uint64(0x9E3779B97F4A7C15) * (number.astype(np.uint64) + np.uint64(1))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x
