"""Whether what records leave on a tape is the same in two passes, but for rounding.

Letters: n records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from tacit.clipping.per_example.parameter import Gradient
from tacit.clipping.per_example.recorder import Tape, Unseen
from tacit.clipping.per_example.use import Use

__all__ = ["HANGS", "HangsOnOthers", "Tolerance", "confirmed", "moved", "norms_on", "sketch", "tolerance_of"]

T = TypeVar("T")
HANGS = "the backward pass of a record depends on the other records"
NOTHING = 1e-13
"""What the norm of no gradient comes out as, at most."""
AGAIN = 2
"""How often parameters are moved to see whether what differs does so elsewhere."""


class HangsOnOthers(Unseen):
    """What a record leaves on the tape is another beside other records."""


@dataclass(frozen=True)
class Tolerance:
    """By what gradients of a record may differ, alone and beside others.

    Attributes:
        linear: by this part of their norm.
        rounded: and by this part of the record's whole gradient: it may be rounding of parts that cancel.
    """

    linear: float
    rounded: float

    def check(self, found: Tensor, wanted: Tensor, total: float) -> None:
        """Raise unless two sketches are the same, of a record whose norms add up to ``total``."""
        if found.shape != wanted.shape:
            raise HangsOnOthers("a weight is as long as the batch")
        if float((found - wanted).norm()) > self.linear * float(wanted.norm()) + self.rounded * total:
            raise HangsOnOthers(HANGS)

    def check_each(self, found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
        """Raise unless one record's sketches, one for each use, are the same; False if uses are others."""
        if len(found) != len(wanted):
            return False
        total = sum(float(sketched[0]) for sketched in wanted)
        for one, other in zip(found, wanted, strict=True):
            self.check(one, other, total)
        return True

    def check_norms(self, found: Sequence[Tensor], wanted: Sequence[Tensor], half: Tensor) -> bool:
        """Raise unless the records of a half have the same norms, and the others none; if they are finite.

        False if there are other uses, of which nothing is said.
        """
        if not wanted or len(found) != len(wanted):
            return not wanted and not found
        total = torch.stack(list(wanted)).sum(0)
        finite = (total + torch.stack(list(found)).sum(0)).isfinite()
        for one, other in zip(found, wanted, strict=True):
            inside = half.to(other.device)
            least = one[~inside].nan_to_num(nan=0.0).min()  # zeros may have no gradient, as of a root
            nothing = (2 * least).clamp(max=NOTHING)  # an allowance for squares that underflow
            expected = torch.where(inside, other, 0.0)
            differ = (one - expected).abs() > self.linear * expected + self.rounded * total + nothing
            if bool((differ & finite).any()):
                raise HangsOnOthers(HANGS)
        return True


SINGLE = Tolerance(linear=1e-3, rounded=1e-6)
IN_16_BITS = Tolerance(linear=2e-2, rounded=1e-3)


def tolerance_of(tape: Tape) -> Tolerance:
    """That of the types in which gradients came."""
    return IN_16_BITS if tape.in_16_bits else SINGLE


def sketch(use: Use | Gradient, i: int) -> Tensor:
    """Return what the gradient of record i is compared by: its norm and up to 2048 of its numbers."""
    row = use.gradients(i, i + 1).flatten().nan_to_num(nan=0.0)
    return torch.cat([row.norm()[None], row[:: max(1, row.numel() // 1024)]])


def norms_on(tape: Tape) -> list[Tensor]:
    """|g_i|, (n,), of each use."""
    return [use.squared_norms().double().sqrt() for use in tape.all_uses()]


def confirmed(look: Callable[[], T], elsewhere: Callable[[int], AbstractContextManager[None]]) -> T:
    """Return what a look returns; raise what it finds wrong if it finds it with other parameters, too.

    Batches of other sizes are rounded otherwise, by a ten-millionth.  Where a number is as near to a kink, as
    to 0 before a ReLU, that decides on which side it lies, and gradients differ by far more.  With parameters
    that are moved a little it lies elsewhere, while records that hang on others still do.  A look that
    compared nothing, which it says by something false, clears nobody.
    """
    try:
        return look()
    except HangsOnOthers:
        for seed in range(AGAIN):
            try:
                with elsewhere(seed):
                    if seen := look():
                        return seen
            except HangsOnOthers:
                continue
        raise


def _uncounted(tensors: Sequence[Tensor]) -> AbstractContextManager[object]:
    """Writes that are not counted: by their number those of the model are seen."""
    return _unsafe_preserve_version_counter(tuple(tensors))


@contextmanager
def moved(parameters: Iterable[Tensor], seed: int) -> Iterator[None]:
    """Parameters that differ by far more than rounding, and far less than by what training moves them.

    By the square root of what their type rounds by, relative to each.  They are put back bit for bit.
    """
    tensors = list(parameters)
    kept = [tensor.detach().clone() for tensor in tensors]
    try:
        with torch.no_grad(), _uncounted(tensors):
            for tensor in tensors:
                generator = torch.Generator(tensor.device).manual_seed(seed)
                by = torch.empty_like(tensor).normal_(generator=generator)
                tensor.addcmul_(tensor, by, value=torch.finfo(tensor.dtype).eps ** 0.5)
        yield
    finally:
        with torch.no_grad(), _uncounted(tensors):
            for tensor, as_it_was in zip(tensors, kept, strict=True):
                tensor.copy_(as_it_was)
