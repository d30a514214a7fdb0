"""Padding and truncation of records of varying length to fixed, public lengths.

The shape of a batch must not depend on its records, so a session calls ``collate`` with one record at a time,
and padding to the longest record of a batch is impossible.  With several lengths, :func:`pad` uses the
smallest into which the record fits.

**Guarantee**

* The output of a collate function for a record depends only on that record and on public lengths and values.
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

__all__ = ["pad", "pairs"]

Name: TypeAlias = str | int
"""A key if records are mappings; the position of a part if they are tuples."""
_PARTS = ("prompt_ids", "chosen_ids", "rejected_ids")
_REFERENCES = ("ref_chosen_logps", "ref_rejected_logps")


Length: TypeAlias = int | Sequence[int]
"""A public length, or several in ascending order."""


def pad(
    *,
    length: Length | Mapping[Name, Length],
    value: float | Mapping[Name, float] = 0,
    shares: Sequence[float] | None = None,
) -> Pad:
    """Return a collate function that pads or truncates each tensor of a record to a fixed ``length``.

    Only the first axis changes. The model must ignore the padding: mask it, and give it the label -100, as
    for :func:`tacit.losses.causal`. With several lengths, a session pads each record to the smallest length
    into which it fits. How many forward passes a step makes at each length is then public.

    Args:
        length: the length of each tensor; scalars stay unchanged. A mapping gives the lengths by key (or by
            position in a tuple), and other entries stay unchanged. For several lengths, give them in
            ascending order, such as (64, 512), and equally many for each entry.
        value: the padding value, by default 0. A mapping gives the values by key, with 0 for other entries.
        shares: for several lengths, the share of records that you expect at each length, such as (0.9, 0.1).
            Default: equal shares. Take them from public knowledge, never from the data. Wrong shares cost
            only time and memory.

    Returns:
        A function to pass as ``collate``. If you call it yourself, it pads a record to the last length.

    Raises:
        InvalidInput: if lengths are not in ascending order, or shares are not positive or do not add up to 1.

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
            f"value is set for {sorted(map(repr, more))}, but length is not. Set both for the same parts of "
            "a record."
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
            "shares needs several lengths, but length has only one. Remove shares, or give length=(64, 512)."
        )
    if len(counts) > 1:
        raise InvalidInput(
            f"length gives {counts[0]} lengths for some parts of a record and {counts[-1]} for others. Give "
            "the same number for each."
        )
    return Lengths(several, values, check_shares("shares", shares, counts[0]))


@final
@dataclass(frozen=True)
class Pad:
    """The function that :func:`pad` returns.  In both mappings, the key None stands for every part.

    >>> Pad(lengths={None: 4}, values={})([torch.tensor([5, 6, 7])])
    tensor([[5, 6, 7, 0]])
    """

    lengths: Mapping[Any, int]
    values: Mapping[Any, float]
    several: Lengths | None = None

    def __call__(self, records: list[Any]) -> Any:
        """Return a batch of the records; a session gives one at a time."""
        template, _ = flatten(records[0])
        parts = zip(*map(self._parts, records), strict=True)
        return rebuild(template, [torch.stack(part) for part in parts])

    def _parts(self, record: Any) -> list[Tensor]:
        _, leaves = flatten(record)
        names = {path[0] if path else None for path in leaves}
        if unknown := (self.lengths.keys() | self.values.keys()) - names - {None}:
            raise InvalidInput(
                f"pad is set for {', '.join(map(repr, sorted(unknown, key=str)))}, which a record does not "
                "have. Give keys if records are mappings, and positions if they are tuples."
            )
        return [self._padded(leaf, path) for path, leaf in leaves.items()]

    def _padded(self, leaf: Any, path: Path) -> Tensor:
        part = tensor_of(leaf, name_of(path))
        name = path[0] if path else None
        length = self.lengths.get(name, self.lengths.get(None))
        if length is None or (part.dim() == 0 and name not in self.lengths):
            return part
        if part.dim() == 0:
            raise InvalidInput(
                f"pad is set for {name_of(path)}, a single number, which cannot be padded. Leave it out."
            )
        if len(part) >= length:
            return part[:length]
        value = self.values.get(name, self.values.get(None, 0))
        if not part.is_floating_point() and value != int(value):
            raise InvalidInput(
                f"pad cannot fill the integers of {name_of(path)} with {value}. Give an integer as value."
            )
        return torch.cat([part, part.new_full((length - len(part), *part.shape[1:]), value)])


def pairs(*, length: int) -> Pairs:
    """Return a collate function for pairs of answers to a prompt, one chosen and one rejected.

    It joins the prompt with each answer, as :func:`tacit.losses.preference` needs it. A record of your
    dataset is a mapping with ``prompt_ids``, ``chosen_ids`` and ``rejected_ids``, as TRL's ``DPOTrainer``
    prepares it. ``ref_chosen_logps`` and ``ref_rejected_logps`` are optional. A prompt that is too long loses
    its first tokens. An answer longer than ``length`` loses its last ones.

    Args:
        length: the number of tokens of a prompt with an answer, after padding or truncation.

    Returns:
        A function to pass as ``collate``.

    >>> collate = pairs(length=4)
    >>> collate([{"prompt_ids": [1, 2], "chosen_ids": [3], "rejected_ids": [4, 5]}])
    {'input_ids': tensor([[[1, 2, 3, 0],
             [1, 2, 4, 5]]]), 'completion_mask': tensor([[[0, 0, 1, 0],
             [0, 0, 1, 1]]])}
    """
    return Pairs(check_integer("length", length, low=2))


@final
@dataclass(frozen=True)
class Pairs:
    """The function that :func:`pairs` returns.

    >>> Pairs(2)([{"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3]}])["input_ids"].shape
    torch.Size([1, 2, 2])
    """

    length: int

    def __call__(self, records: list[Any]) -> dict[str, Tensor]:
        """Return a batch of the records; a session gives one at a time."""
        pairs = [self._pair(record) for record in records]
        return {name: torch.stack([pair[name] for pair in pairs]) for name in pairs[0]}

    def _pair(self, record: Mapping[str, Any]) -> dict[str, Tensor]:
        if missing := [name for name in _PARTS if name not in record]:
            raise InvalidInput(
                f"a pair has no {missing[0]}. Give the tokens of prompt and answers under the keys "
                f"{', '.join(_PARTS)}, as TRL's DPOTrainer does."
            )
        prompt, *answers = (tensor_of(record[name], name) for name in _PARTS)
        room = max(self.length - max(map(len, answers)), 0)
        prompt = prompt[max(len(prompt) - room, 0) :]

        tokens = torch.zeros(2, self.length, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, answer in enumerate(answers):
            text = torch.cat([prompt, answer])[: self.length]
            tokens[row, : len(text)] = text
            mask[row, len(prompt) : len(text)] = 1
        known = {name: tensor_of(record[name], name) for name in _REFERENCES if name in record}
        return {"input_ids": tokens, "completion_mask": mask, **known}
