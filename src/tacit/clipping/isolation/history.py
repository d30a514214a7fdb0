"""Whether the losses of a batch depend on the batches that went through model and loss before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from tacit.clipping.isolation.state import Memory, Place, Surroundings
from tacit.errors import TacitError, UnsupportedModel

__all__ = ["HISTORY", "check_first", "check_history", "near", "rounded"]

_Batch: TypeAlias = tuple[Tensor, ...]
_ROUNDINGS = 64
"""By how many units in the last place of the largest loss rounding may move one."""
HISTORY = (
    "a batch has other losses than before, though the model and the random numbers are the same: the loss or "
    "the model keeps something of earlier batches, goes by how often it was called, or draws from a random "
    "number generator of its own. Later steps would depend on the records of earlier ones without noise; and "
    "how often the loss is called depends on how many records there are. Compute what it keeps before "
    "training, on public records; set what changes during training between the steps; draw by torch."
)


def check_history(memory: Memory, losses: Callable[..., Tensor], batch: _Batch) -> None:
    """Refuse what gives a batch other losses after itself than after zeros.

    ``losses`` of batches of some parts; ``memory``, of the model with which both passes begin.
    """

    def after(before: _Batch) -> Tensor:
        memory.restore()
        losses([before])
        return losses([batch])

    if _follow_the_batch_before(after, batch):
        raise UnsupportedModel(HISTORY)


def check_first(
    losses: Callable[..., Tensor], begun: Surroundings, made: set[Place], now: Surroundings, few: _Batch
) -> None:
    """Refuse a loss that computes from the first batch what it uses later.

    ``made``: what it computed in its first pass, which was of zeros, and left alone since ``begun``.  It is
    taken away for some passes, which compute it anew, and put back as it is ``now``.
    """

    def after(first: _Batch) -> Tensor:
        begun.put_back(made)
        losses(first)
        if not made <= begun.changed():
            raise UnsupportedModel(HISTORY)
        return losses(few)

    try:
        if _follow_the_batch_before(after, few):
            raise UnsupportedModel(HISTORY)
    except Exception as reason:
        begun.put_back(made)
        if isinstance(reason, TacitError | torch.OutOfMemoryError):
            raise
        raise UnsupportedModel(HISTORY) from reason  # it fails without: it went by its number of calls
    now.put_back(made)


def _follow_the_batch_before(after: Callable[[_Batch], Tensor], batch: _Batch) -> bool:
    """Whether the losses of a batch are others ``after`` itself than after zeros."""
    zeros = tuple(torch.zeros_like(t) for t in batch)
    after_itself, after_zeros = after(batch), after(zeros)
    if rounded(after_itself, after_zeros):
        return False
    return rounded(after(zeros), after_zeros)  # else sums are in a random order, or losses others each time


def rounded(a: Tensor, b: Tensor) -> bool:
    """Equal up to the rounding of a few operations; 0 and infinite losses to the last bit.

    >>> [rounded(torch.tensor([loss]), torch.ones(1)) for loss in (1.000001, 1.1)]
    [True, False]
    """
    most = _ROUNDINGS * torch.finfo(a.dtype).eps * b.abs().max()
    return torch.equal(a, b) or bool((a - b).abs().max() <= most < torch.inf)


def near(a: Tensor, b: Tensor, tolerance: float = 1e-3) -> bool:
    """Equal up to rounding; equal infinite losses are not.

    >>> near(torch.tensor([1.0001]), torch.ones(1))
    True
    """
    return bool((a - b).abs().max() <= tolerance * b.abs().max())
