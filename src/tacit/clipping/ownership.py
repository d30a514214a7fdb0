"""Whether what a tape recorded lies with the record that it belongs to: judged on a few records.

Letters: n records.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.clipping.layers.tape import Tape, Unseen
from tacit.clipping.layers.use import Use

__all__ = ["check_alike", "owned_uses", "sketch", "some_of", "three_of"]

LINEAR = 1e-3
"""Gradients of a record alone and beside others may differ by this part of their norm."""
ROUNDED = 1e-6
"""What is below this part of a record's whole gradient may be rounding of parts that cancel."""
SOME = 16
"""Records of a batch among which gradients are compared with those beside zeros."""


def three_of(losses: Tensor) -> Tensor:
    """Return the numbers of three records, finite losses first; some twice if there are fewer."""
    order = losses.isfinite().logical_not().to(torch.uint8).argsort(stable=True)
    return order[torch.arange(3, device=order.device) % len(order)]


def some_of(losses: Tensor, records: Tensor) -> Tensor:
    """Return the numbers of some of n records in order: evenly spaced, and the extreme ones.

    ``records``: (n, d) of any type.  A model may do with the whole batch what one large record moves it to.
    """
    n = len(losses)
    m = min(n, max(4, min(SOME, n // 4)))
    even = torch.arange(m, device=losses.device) * n // m
    sizes = [losses]
    if records.numel():
        numbers = (records.abs() if records.is_complex() else records).to(losses)
        sizes += [numbers.amax(1), numbers.amin(1)]
    extremes = [find(size) for size in sizes for find in (torch.argmax, torch.argmin)]
    some: Tensor = torch.unique(torch.cat([even, torch.stack(extremes)]))
    return some


def sketch(use: Use, i: int) -> Tensor:
    """Return what the gradient of record i is compared by: its norm and up to 2048 of its numbers."""
    row = use.gradients(i, i + 1).flatten().nan_to_num(nan=0.0)
    return torch.cat([row.norm()[None], row[:: max(1, row.numel() // 1024)]])


def owned_uses(probe: Tape, j: int, summed: list[list[Tensor]]) -> set[int]:
    """Return the numbers of the uses that record j's loss reaches; none may be reached in another record.

    ``summed``: for each use the sketches of the n records when all losses are summed; j's must be the same.
    """
    reached = set()
    total = sum(float(sketches[j][0]) for sketches in summed)
    for number, (use, sketches) in enumerate(zip(probe.all_uses(), summed, strict=True)):
        n, beside = len(sketches), sketches[j]
        # NaN is what 0 times infinity leaves; it does not come from another record's loss
        for i in (i for i in range(n) if bool(use.gradients(i, i + 1).nan_to_num(nan=0.0).any())):
            if i != j:
                raise Unseen("the model does not keep the rows of a record together, or reorders them")
            reached.add(number)
        _check_same(sketch(use, j), beside, total)
    return reached


def check_alike(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    """Raise unless one record's sketches, one for each use, are the same; nothing is said of other uses."""
    if len(found) == len(wanted):
        total = sum(float(sketched[0]) for sketched in wanted)
        for one, other in zip(found, wanted, strict=True):
            _check_same(one, other, total)


def _check_same(found: Tensor, wanted: Tensor, total: float) -> None:
    difference = float((found - wanted).norm())
    if difference > LINEAR * float(wanted.norm()) + ROUNDED * total:
        raise Unseen("the backward pass of a record depends on the other records")
