"""Padding or cutting of records of varying length to a fixed, public length.

The shape of a batch must not depend on its records.  A session therefore calls ``collate`` with a list of one
record at a time, so it cannot pad to the longest record of a batch.

**Guarantee**

* The output of a collate function for a record depends on that record and on public lengths and values alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from tacit.errors import InvalidInput, check_integer, check_real
from tacit.training.tensors import Path, flatten, name_of, rebuild, tensor_of

__all__ = ["pad", "pairs"]

Name: TypeAlias = str | int
"""A key, for records that are mappings, or the position of a part, for records that are tuples."""
_PARTS = ("prompt_ids", "chosen_ids", "rejected_ids")
_REFERENCES = ("ref_chosen_logps", "ref_rejected_logps")


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
        """Return a batch of the records; a session gives one at a time."""
        template, _ = flatten(records[0])
        parts = zip(*map(self._parts, records), strict=True)
        return rebuild(template, [torch.stack(part) for part in parts])

    def _parts(self, record: Any) -> list[Tensor]:
        _, leaves = flatten(record)
        names = {path[0] if path else None for path in leaves}
        if unknown := (self.lengths.keys() | self.values.keys()) - names - {None}:
            raise InvalidInput(
                f"pad names {', '.join(map(repr, sorted(unknown, key=str)))}, which a record does not have. "
                "Give keys if a record is a mapping, and positions if it is a tuple."
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


def pairs(*, length: int) -> Pairs:
    """Join the prompt and the two answers of a pair, for :func:`tacit.losses.preference`.

    A record is a mapping with ``prompt_ids``, ``chosen_ids`` and ``rejected_ids``, and perhaps
    ``ref_chosen_logps`` and ``ref_rejected_logps``, as TRL's ``DPOTrainer`` prepares it.  If a prompt and its
    longer answer have more than ``length`` tokens, the prompt loses its beginning; an answer that alone is
    longer loses its end.

    Args:
        length: the number of tokens of prompt and answer together.

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
                f"a pair has no {missing[0]}. Give the tokens of the prompt and of the two answers as "
                f"{', '.join(_PARTS)}, as TRL's DPOTrainer prepares them."
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
