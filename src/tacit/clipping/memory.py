"""The memory that the fast engine may take to be fast (no torch).

Letters: T positions of a record; d, p inputs and outputs of a linear map; D inputs of one output of a
convolution, over all its kernel's positions.

The engine needs the norms of per-record gradients first, and their weighted sum afterwards. A layer either
forms its per-record gradients once and keeps them for both, or computes the norms without them and the sum
from the activations. The shapes alone decide which is faster, and how much memory it takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tacit.errors import check_integer, check_real


@final
@dataclass(frozen=True)
class MemoryBudget:
    """Limits on the memory that each layer keeps from the backward pass to the sum.

    They come in addition to the memory of a plain step.

    Attributes:
        linear_slack: keep the per-record gradients of a linear map, in float32, up to this many times the
            bytes of the activations and output gradients that form them: if p d <= slack T (p + d), or half
            of that in 16 bits. At 1 they take no more than the tensors freed in exchange; at 0 none are kept,
            which takes more time and memory.
        convolution_slack: keep those of a convolution up to this many times its inputs and output gradients,
            which are freed in exchange; above 1, only if they fit in ``small_bytes``.
        small_bytes: keep those of a convolution up to this size with any slack, if forming them again is slow
            and ghost norms are no faster.
        pass_bytes: on a CPU, the activations of one pass, at least 8 times the parameters. A larger batch
            takes several passes, which also saves time. The C library is asked to keep as much freed memory
            (:func:`tacit.clipping.passes.keep_memory`). On a CUDA device: the patches of a convolution that
            exist at one time.
        chunk_bytes: per-record gradients formed together where they are not kept.

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
"""The default: the fastest, with at most a few times the memory of a plain step."""
LEAN = MemoryBudget(
    linear_slack=1.0, convolution_slack=1.0, small_bytes=2**20, pass_bytes=128 * 2**20, chunk_bytes=8 * 2**20
)
"""About the memory of a plain step at most; much less if a batch takes several passes."""
