"""Several public lengths for padded records, to compute short records at shorter lengths.

Letters: n records; K rows per record; S lengths.
"""

# **Guarantee**
#
# * The length of a record depends on that record alone: it is the smallest after which all is padding.
# * The number of calls of the engine for each length follows from plan, shares and physical batch size, never
#   from the records.  A call without records runs on zeros.

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from tacit.clipping.engine import PerExampleLoss
from tacit.clipping.isolation.randomness import WithoutDraws
from tacit.clipping.isolation.synthetic import is_same_loss
from tacit.errors import InvalidInput
from tacit.training.records import Records
from tacit.training.tensors import Template, paths_of

Name: TypeAlias = str | int | None
"""A key if records are mappings, a position if they are tuples; None is every part with an axis."""


@final
@dataclass(frozen=True)
class Lengths:
    """The S ascending ``lengths`` of each part, its padding ``values``, and the expected ``shares`` (S,).

    ``axis`` is the padded axis of a batch.
    """

    lengths: Mapping[Any, tuple[int, ...]]
    values: Mapping[Any, float]
    shares: tuple[float, ...]
    axis: int = 1

    def split(
        self, batch: tuple[Tensor, ...], template: Template, rows: int, slots: Tensor | None = None
    ) -> list[tuple[Tensor, ...]]:
        """Split padded records (n * K, ...) by length; return S batches, which may be empty.

        The rows of a record stay together, at the length of the longest.  A ``slots`` entry above 0 marks a
        record whose content does not count.
        """
        numbers = self._numbers(batch, template)
        if slots is not None:
            numbers = numbers.where(slots == 0, 0)
        numbers = numbers.view(-1, rows).amax(1).repeat_interleave(rows)
        return [self.cut(tuple(t[numbers == s] for t in batch), template, s) for s in range(len(self.shares))]

    def cut(self, batch: tuple[Tensor, ...], template: Template, number: int) -> tuple[Tensor, ...]:
        cut = list(batch)
        for place, of_part, _ in self._padded(batch, template):
            cut[place] = batch[place].narrow(self.axis, 0, of_part[number]).contiguous()
        return tuple(cut)

    def calls(self, expected: int, size: int) -> list[tuple[int, int]]:
        """Return the number of calls for each length, and the expected number of records of each call.

        ``expected`` is the number of records of a step.  ``size`` of the longest fit into memory, and
        proportionally more of shorter ones.
        """
        result = []
        for number, share in enumerate(self.shares):
            more = min(of_part[-1] // of_part[number] for of_part in self.lengths.values())
            records = max(1, math.ceil(share * expected))
            calls = math.ceil(records / (size * more))
            result.append((calls, math.ceil(records / calls)))
        return result

    def check_padding(
        self, model: nn.Module, loss: PerExampleLoss, records: Records, like: tuple[Tensor, ...]
    ) -> None:
        """Refuse a model if padding changes its loss on synthetic records of the shortest length.

        Only shapes and types of ``like`` are read.
        """
        device, template = next(model.parameters()).device, records.template
        whole = tuple(t.new_ones((2, *t.shape[1:]), device=device) for t in like)
        padded = list(whole)
        for place, of_part, value in self._padded(whole, template):
            padded[place] = torch.full_like(whole[place], value)
            padded[place].narrow(self.axis, 0, of_part[0]).fill_(1)
        draws = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
        try:
            with torch.no_grad(), draws, WithoutDraws():
                short, long = loss(model, *self.cut(whole, template, 0)), loss(model, *padded)
        except Exception:  # noqa: BLE001 (the user's own code may fail on ones; the engine checks it on others)
            return
        if not is_same_loss(short, long):
            raise InvalidInput(
                "a record's loss changes with its padding, which differs between lengths. Mask padding with "
                "attention_mask, give it labels of -100, and leave it out of means. Or pad to one length."
            )

    def _numbers(self, batch: tuple[Tensor, ...], template: Template) -> Tensor:
        """Return, for each row, the number of lengths that are too short for it."""
        numbers = torch.zeros(len(batch[0]), dtype=torch.int64, device=batch[0].device)
        for place, of_part, value in self._padded(batch, template):
            is_content = batch[place] != value
            rest = [is_content.narrow(self.axis, one, of_part[-1] - one) for one in of_part[:-1]]
            too_short = torch.stack([part.flatten(1).any(1) for part in rest])
            numbers = torch.maximum(numbers, too_short.sum(0))
        return numbers

    def _padded(
        self, batch: Sequence[Tensor], template: Template
    ) -> Iterator[tuple[int, tuple[int, ...], float]]:
        """Yield place, lengths and padding value of the parts that are padded."""
        for place, path in enumerate(paths_of(template)):
            name = path[0] if path else None
            of_part = self.lengths.get(name, self.lengths.get(None))
            if of_part is not None and batch[place].dim() > 1:
                yield place, of_part, self.values.get(name, self.values.get(None, 0))


def lengths_of(collate: object) -> Lengths | None:
    """Return the lengths of :func:`tacit.collate.pad`, which a Trainer may have wrapped, if several."""
    while isinstance(collate, partial):
        collate = collate.args[0]
    collate = getattr(collate, "data_collator", collate)
    several = getattr(collate, "several", None)
    return several if isinstance(several, Lengths) else None
