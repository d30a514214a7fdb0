"""How do the rows of a table become tensors? Piece by piece, so that no more than the tensors is in memory.

Letters: n rows; d features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.columns import Encoder
from tacit.columns.features import Floats
from tacit.columns.tables import pieces
from tacit.datasets.dataset import TensorPair
from tacit.errors import InvalidInput

_Targets: TypeAlias = NDArray[np.int64] | Floats
Split: TypeAlias = Callable[[Floats, _Targets, int], Sequence[NDArray[np.bool_]]]
"""Of some rows: their inputs (n, d), targets and how many came before; gives the rows of each part, (n,)."""


def encoded_parts(
    path: Path, encoder: Encoder, split: Split, *, narrow: bool = False
) -> tuple[list[TensorPair], list[NDArray[np.bool_]]]:
    """The parts of a table, such as train and test, as tensors, and the rows of each, (n,).

    Args:
        narrow: whether inputs are kept in float16, which rounds a feature by 1 part in 2,000.

    Raises:
        InvalidInput: the table holds no rows, or what the encoder refuses.
    """
    assert encoder.target is not None, "a table is loaded with a target"
    found: list[tuple[_Growing, _Growing, _Growing]] = []
    before = 0
    for piece in pieces(path, [*encoder.inputs_of, encoder.target], encoder.dialect):
        inputs = encoder.inputs(piece, source=str(path), before=before)
        targets = encoder.targets(piece, source=str(path), before=before)
        marks = split(inputs, targets, before)
        inputs = inputs.astype(np.float16) if narrow else inputs
        found = found or [(_Growing(), _Growing(), _Growing()) for _ in marks]
        for grown, part in zip(found, marks, strict=True):
            for whole, rows in zip(grown, (inputs[part], targets[part], part), strict=True):
                whole.append(rows)
        before += len(inputs)
    if not before:
        raise InvalidInput(f"the table {path} holds no rows.")
    pairs = [
        TensorPair(*(torch.from_numpy(grown.array()) for grown in (inputs, targets)))
        for inputs, targets, _ in found
    ]
    return pairs, [marks.array() for _, _, marks in found]


class _Growing:
    """Rows of an array, whose memory grows in place: what is not filled yet takes none."""

    def __init__(self) -> None:
        self._array: NDArray[Any] | None = None
        self._count = 0

    def append(self, rows: NDArray[Any]) -> None:
        if self._array is None:
            self._array = np.empty_like(rows)
        count = self._count + len(rows)
        if count > len(self._array):
            room = max(count, 2 * len(self._array))
            self._array.resize((room, *rows.shape[1:]), refcheck=False)
        self._array[self._count : count] = rows
        self._count = count

    def array(self) -> NDArray[Any]:
        assert self._array is not None, "there were rows"
        self._array.resize((self._count, *self._array.shape[1:]), refcheck=False)
        return self._array
