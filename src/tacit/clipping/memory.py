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
    """Limits on the memory that clipping may use in addition to a non-private step.

    Clipping needs the norm of each record's gradient, and then the sum of the clipped gradients. Between the
    two, a layer may store its per-record gradients; otherwise it does more work. The defaults (``FAST``) save
    time, and ``LEAN`` saves memory.

    Attributes:
        linear_slack: how large the stored gradients of a linear layer may be, as a multiple of its inputs and
            output gradients. Those are freed in exchange: at 1, storing takes no additional memory. At 0,
            nothing is stored and nothing freed, which takes more time and memory. A layer with d inputs, p
            outputs and records of T positions stores if p d <= slack T (p + d), or half of that in 16 bits.
        convolution_slack: the same for convolutions. On a CPU, gradients larger than the inputs and output
            gradients must also fit into ``small_bytes``.
        small_bytes: the bytes of gradients that a convolution may store whatever the slack, if the
            alternatives are slow.
        pass_bytes: on a CPU, the bytes of activations in one forward and backward pass, but at least 8 times
            the parameters. A larger batch is split into several passes. The C library is asked to retain this
            much freed memory (:func:`tacit.clipping.fast.keep_memory`). On a CUDA device, the bytes of a
            convolution's patches (unfolded inputs) at any one time.
        chunk_bytes: the bytes of per-record gradients that a layer computes at once if it does not store
            them.

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
