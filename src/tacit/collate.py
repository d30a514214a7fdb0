"""Padding or cutting of records of varying length to fixed, public lengths.

The shape of a batch must not depend on its records.  A session therefore calls ``collate`` with a list of one
record at a time, so it cannot pad to the longest record of a batch.  If :func:`pad` has several lengths, the
session computes each record at the smallest that holds it.

**Guarantee**

* The output of :func:`pad` for a record depends on that record and on public lengths and values alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from tacit.errors import InvalidInput, check_integer, check_lengths, check_real, check_shares
from tacit.training.lengths import Lengths
from tacit.training.tensors import Path, flatten, name_of, rebuild, tensor_of

__all__ = ["pad"]

Name: TypeAlias = str | int
"""A key, for records that are mappings, or the position of a part, for records that are tuples."""


Length: TypeAlias = int | Sequence[int]
"""A public length, or several in ascending order."""


def pad(
    *,
    length: Length | Mapping[Name, Length],
    value: float | Mapping[Name, float] = 0,
    shares: Sequence[float] | None = None,
) -> Pad:
    """Pad or cut the first axis of each record's parts to a fixed ``length``.

    If ``length`` is several lengths, a session computes each record at the smallest length that holds it.  A
    step takes a public number of passes for each length.  So the model must not read the padding: mask it,
    and let labels there be -100, as for :func:`tacit.losses.causal`.

    Args:
        length: the length of every part that has an axis; or a mapping from keys (or positions in a tuple) to
            lengths, which leaves all other parts unchanged.  A length may be several numbers in ascending
            order, equally many for each part that has several.
        value: the number that fills up the parts; or a mapping from keys to numbers, with 0 for all other
            parts.
        shares: for several lengths, the share of the records that each is expected to hold, from public
            knowledge and never from the data; equal by default.  Shares that do not fit the data change only
            time and memory.

    Returns:
        A function to pass as ``collate``.  It pads a record to the last length.

    Raises:
        InvalidInput: lengths are not in ascending order, or shares are not positive or do not add up to 1.

    >>> collate = pad(length={"input_ids": 4, "labels": 4}, value={"labels": -100})
    >>> collate([{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}])
    {'input_ids': tensor([[5, 6, 7, 0]]), 'labels': tensor([[   5,    6,    7, -100]])}
    >>> pad(length=(64, 128, 256, 512), shares=(0.5, 0.25, 0.15, 0.1)).lengths
    {None: 512}
    """
    of_parts: dict[Any, Length] = {**length} if isinstance(length, Mapping) else {None: length}
    values: dict[Any, float] = {**value} if isinstance(value, Mapping) else {None: value}
    lengths = {name: _ascending(name, one) for name, one in of_parts.items()}
    for name, filler in values.items():
        check_real("value" if name is None else f"value[{name!r}]", filler)
    if isinstance(length, Mapping) and isinstance(value, Mapping) and (more := value.keys() - length.keys()):
        raise InvalidInput(
            f"value names {sorted(map(repr, more))} but length does not, so these are not padded. Name the "
            "same parts in both."
        )
    return Pad({name: one[-1] for name, one in lengths.items()}, values, _several(lengths, values, shares))


def _ascending(name: Name | None, length: Length) -> tuple[int, ...]:
    where = "length" if name is None else f"length[{name!r}]"
    if isinstance(length, Sequence):
        return check_lengths(where, length)
    return (check_integer(where, length, low=1),)


def _several(
    lengths: Mapping[Any, tuple[int, ...]], values: Mapping[Any, float], shares: Sequence[float] | None
) -> Lengths | None:
    several = {name: one for name, one in lengths.items() if len(one) > 1}
    counts = sorted({len(one) for one in several.values()})
    if not several:
        if shares is None:
            return None
        raise InvalidInput(
            "shares need several lengths, and length has one. Leave shares out, or give length=(64, 512)."
        )
    if len(counts) > 1:
        raise InvalidInput(
            f"some parts have {counts[0]} lengths, others {counts[-1]}. Give each part equally many: a "
            "record has one place among them."
        )
    return Lengths(several, values, check_shares("shares", shares, counts[0]))


@final
@dataclass(frozen=True)
class Pad:
    """The function that :func:`pad` returns; in both mappings, the key None stands for every part.

    >>> Pad(lengths={None: 4}, values={})([torch.tensor([5, 6, 7])])
    tensor([[5, 6, 7, 0]])
    """

    lengths: Mapping[Any, int]
    values: Mapping[Any, float]
    several: Lengths | None = None

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
