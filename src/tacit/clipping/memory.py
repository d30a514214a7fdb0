"""How much memory the fast engine may take to be fast (no torch).

Letters: T positions of a record; d, p inputs and outputs of a linear map; D inputs of one output of a
convolution, over all its kernel's positions.

The norms of per-record gradients are wanted first, their weighted sum afterwards.  A layer either forms its
per-record gradients once and keeps them for both, or it finds the norms without them and makes the sum from
the activations; which of the two is faster, and what it takes, follows from the shapes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tacit.errors import check_integer, check_real


@final
@dataclass(frozen=True)
class MemoryBudget:
    """What may be kept beside what a plain step keeps, of each layer from the backward pass to the sum.

    Attributes:
        linear_slack: per-record gradients of a linear map are kept, in float32, up to this many times the
            bytes of what they are made of: if p d <= slack T (p + d), or half of that in 16 bits. At 1 they
            take no more than what is let go for them; at 0 none are kept, which takes more time and memory.
        convolution_slack: those of a convolution are kept up to this many times its inputs and output
            gradients, which are let go of in exchange; beyond once, only if they fit in ``small_bytes``.
        small_bytes: those of a convolution that take no more than this are kept whatever the slack, where
            forming them again is slow and ghost norms are no faster.
        pass_bytes: activations of the records that go through the model at once, on a CPU; a larger batch
            takes several passes, which saves time too. At least 8 times the parameters. The C library is
            asked to keep as much of what a pass frees (:func:`tacit.clipping.passes.keep_memory`). On a CUDA
            device: patches of a convolution that are made at once.
        chunk_bytes: per-record gradients that are formed at once where they are not kept.

    >>> LEAN.linear_slack < FAST.linear_slack
    True
    """

    linear_slack: float = 1.75
    convolution_slack: float = 1.5
    small_bytes: int = 32 * 2**20
    pass_bytes: int = 256 * 2**20
    chunk_bytes: int = 32 * 2**20

    def __post_init__(self) -> None:
        check_real("linear_slack", self.linear_slack, low=0.0)
        check_real("convolution_slack", self.convolution_slack, low=0.0)
        check_integer("small_bytes", self.small_bytes, low=0)
        check_integer("pass_bytes", self.pass_bytes, low=1)
        check_integer("chunk_bytes", self.chunk_bytes, low=1)


FAST = MemoryBudget()
"""The default: as fast as it goes, with at most a few times the memory of a plain step."""
LEAN = MemoryBudget(
    linear_slack=1.0, convolution_slack=1.0, small_bytes=2**20, pass_bytes=128 * 2**20, chunk_bytes=8 * 2**20
)
"""At most about the memory of a plain step; where a batch takes several passes, much less."""
