"""Padding or cutting of records of varying length to a fixed, public length.

The shape of a batch must not depend on its records.  A session therefore calls ``collate`` with a list of one
record at a time, so it cannot pad to the longest record of a batch.

**Guarantee**

* The output of :func:`pad` for a record depends on that record and on public lengths and values alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from tacit.errors import InvalidInput, check_integer, check_real
from tacit.training.tensors import Path, flatten, name_of, rebuild, tensor_of

__all__ = ["pad"]

Name: TypeAlias = str | int
"""A key, for records that are mappings, or the position of a part, for records that are tuples."""


def pad(*, length: int | Mapping[Name, int], value: float | Mapping[Name, float] = 0) -> Pad:
    """Pad or cut the first axis of each record's parts to a fixed ``length``.

    Args:
        length: the length of every part that has an axis; or a mapping from keys (or positions in a tuple) to
            lengths, which leaves all other parts unchanged.
        value: the number that fills up the parts; or a mapping from keys to numbers, with 0 for all other
            parts.

    Returns:
        A function to pass as ``collate``.

    >>> collate = pad(length={"input_ids": 4, "labels": 4}, value={"labels": -100})
    >>> collate([{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}])
    {'input_ids': tensor([[5, 6, 7, 0]]), 'labels': tensor([[   5,    6,    7, -100]])}
    """
    lengths: dict[Any, int] = {**length} if isinstance(length, Mapping) else {None: length}
    values: dict[Any, float] = {**value} if isinstance(value, Mapping) else {None: value}
    for name, one in lengths.items():
        check_integer("length" if name is None else f"length[{name!r}]", one, low=1)
    for name, filler in values.items():
        check_real("value" if name is None else f"value[{name!r}]", filler)
    if isinstance(length, Mapping) and isinstance(value, Mapping) and (more := value.keys() - length.keys()):
        raise InvalidInput(
            f"value names {sorted(map(repr, more))} but length does not, so these are not padded. Name the "
            "same parts in both."
        )
    return Pad(lengths, values)


@final
@dataclass(frozen=True)
class Pad:
    """The function that :func:`pad` returns; in both mappings, the key None stands for every part.

    >>> Pad(lengths={None: 4}, values={})([torch.tensor([5, 6, 7])])
    tensor([[5, 6, 7, 0]])
    """

    lengths: Mapping[Any, int]
    values: Mapping[Any, float]

    def __call__(self, records: list[Any]) -> Any:
        """Return a batch with leading dimension 1 from a list of one record."""
        (record,) = records
        template, leaves = flatten(record)
        names = {path[0] if path else None for path in leaves}
        if unknown := (self.lengths.keys() | self.values.keys()) - names - {None}:
            raise InvalidInput(
                f"pad names {', '.join(map(repr, sorted(unknown, key=str)))}, which a record does not have. "
                "Give keys if a record is a mapping, and positions if it is a tuple."
            )
        return rebuild(template, [self._padded(leaf, path)[None] for path, leaf in leaves.items()])

    def _padded(self, leaf: Any, path: Path) -> Tensor:
        part = tensor_of(leaf, name_of(path))
        name = path[0] if path else None
        length = self.lengths.get(name, self.lengths.get(None))
        if length is None or (part.dim() == 0 and name not in self.lengths):
            return part
        if part.dim() == 0:
            raise InvalidInput(
                f"pad names {name_of(path)}, which is one number without a length. Leave it out."
            )
        if len(part) >= length:
            return part[:length]
        value = self.values.get(name, self.values.get(None, 0))
        if not part.is_floating_point() and value != int(value):
            raise InvalidInput(
                f"pad cannot fill the integers of {name_of(path)} with {value}. Give an integer as value."
            )
        return torch.cat([part, part.new_full((length - len(part), *part.shape[1:]), value)])
