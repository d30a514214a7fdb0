"""Limits on the memory that the fast engine uses to save time, without importing torch.

Letters: T positions per record; d inputs and p outputs of a linear map.
"""

# The engine needs the norms of per-record gradients first, and their weighted sum afterwards. A layer either
# computes its per-record gradients once and keeps them for both, or computes the norms without them and the
# sum from the activations. The shapes alone decide which is faster, and how much memory it takes.

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tacit.errors import check_integer, check_real


@final
@dataclass(frozen=True)
class MemoryBudget:
    """Limits on the memory of each layer from the backward pass to the sum, beyond a non-private step.

    Attributes:
        linear_slack: the largest size of stored per-record gradients of a linear map (float32), relative to
            its inputs and output gradients, which are then freed: p d <= slack T (p + d), or half of that in
            16 bits. At 1 they take no additional memory. At 0 none are stored, which takes more time and
            memory.
        convolution_slack: the same for a convolution. If the gradients take more than its inputs and output
            gradients, they must also fit into ``small_bytes`` on a CPU.
        small_bytes: the size up to which a convolution stores per-record gradients for any slack, if
            computing them twice is slow and ghost norms are not faster.
        pass_bytes: on a CPU, the most bytes of activations in one pass, but at least 8 times the parameters.
            A larger batch takes several passes, which also saves time. The C library is asked to retain this
            much freed memory (:func:`tacit.clipping.fast.keep_memory`). On a CUDA device, the most bytes of
            a convolution's patches at any one time.
        chunk_bytes: the most bytes of per-record gradients computed together if they are not stored.

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
"""The default: the fastest settings, with at most a few times the memory of a non-private step."""
LEAN = MemoryBudget(
    linear_slack=1.0, convolution_slack=1.0, small_bytes=2**20, pass_bytes=128 * 2**20, chunk_bytes=8 * 2**20
)
"""Settings with about the memory of a non-private step, or much less if a batch takes several passes."""
