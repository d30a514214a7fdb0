"""The number of records in memory at once (the physical batch size), and steps repeated for lack of memory.

A step is a function of (key, step) (:mod:`tacit.training.step`).  If CUDA runs out of memory, the session
repeats the step from its start with half the physical batch size.  The repeated step has the same
participants and the same noise, and contains nothing of the first try.

**Guarantee**

* Nothing of a try that ran out of memory is released: its buffers are dropped.  Model and loss keep nothing
  of it, as Python sees no value of a record; with the reference engine this is assumed.
* If one of several processes ran out of memory, all of them repeat the step.
* If the model draws random numbers, as in dropout, every process that takes or repeats a step uses the same
  size for it, because a record's random numbers depend on the size.  The resume state stores the sizes.  If a
  size changes after a save, the session adds it to that state before the step moves the weights.  A resumed
  run of such a model changes no size, because an earlier process may have taken its next steps.
* ``"auto"`` tests the size on records of zeros, so the size is a function of public facts: the shape and type
  that all records share, the expected batch size, the model, and the device.
"""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor

from tacit.errors import InvalidInput, PrivacyRefusal, check_integer
from tacit.noise.generator import Generator
from tacit.sampling.base import Indices
from tacit.training.part import Part
from tacit.training.ranks.processes import Ranks
from tacit.training.resume.state import add_to_state
from tacit.training.values import lacks_memory

PhysicalSize: TypeAlias = int | Literal["auto"]
"""The most records in memory at once; "auto" lets the session find how many fit."""

_DEFAULT = 512
_OR_AUTO = 'It may also be "auto", which finds how many records fit.'
_SPARE = 16
"""``"auto"`` leaves 1/16 of the device's memory free."""


@final
class PhysicalBatch(Part):
    """The physical batch size of each step: the most records of the expected batch in memory at once.

    Args:
        size: the user's ``physical_batch_size``.
        expected: the expected batch size, over all ranks.
        find: whether the device has separate memory, so that ``"auto"`` tests how many records fit.
        fits: ``fits(size, step, indices)`` returns whether ``size`` records of zeros fit.  It reads one of
            the participants at ``indices`` for its shape.  All ranks call it together and get the same
            answer.
        draws: returns whether the model or the loss may draw random numbers.

    >>> from tacit.training.ranks.processes import Alone
    >>> size = PhysicalBatch(512, 64, Alone(), find=False, fits=lambda *_: True, draws=lambda: False)
    >>> size.halve(3)
    >>> size.at(2), size.at(3), size.at(4)
    (512, 256, 256)
    """

    def __init__(
        self,
        size: PhysicalSize,
        expected: float,
        ranks: Ranks,
        *,
        find: bool,
        fits: Callable[[int, int, Indices], bool],
        draws: Callable[[], bool],
    ) -> None:
        self._request, self._ranks, self._fits, self._draws = size, ranks, fits, draws
        self._most = covering(expected / ranks.ranks)
        self._sizes: dict[int, int] = {}
        if size != "auto":
            self._sizes[0] = check_integer("physical_batch_size", size, low=1, why=_OR_AUTO)
        elif not find:
            self._sizes[0] = _DEFAULT
        self._resumed, self._unsure, self._changed = False, False, False
        self._failed_size: int | None = None  # the size that did not fit, until a warning has named it
        self.stored: tuple[Path, bytes] | None = None
        """The last file that this run was saved to or loaded from, and its key."""

    def at(self, step: int) -> int:
        """Return the physical batch size of ``step``."""
        begun = [first for first in self._sizes if first <= step]
        return self._sizes[max(begun)] if begun else _DEFAULT  # no record has taken part so far

    def before(self, step: int, indices: Indices) -> None:
        if not self._sizes and len(indices) > 0:
            self._sizes[step] = largest(lambda size: self._fits(size, step, indices), self._most)
            self._changed = True
            empty_cache()

    def halve(self, step: int) -> None:
        """Halve the physical batch size from ``step`` on.

        Raises:
            InvalidInput: the size is already one record.
        """
        size = self.at(step)
        if size == 1:
            raise InvalidInput(
                "CUDA is out of memory even with one record at a time. The step was not taken. (A first step "
                "also holds up to eight made-up records, by which it checks the model.) Leave the device to "
                "this process alone; or use memory=tacit.clipping.LEAN, bfloat16 by torch.autocast in the "
                "loss, torch.utils.checkpoint with use_reentrant=False in the model, or fewer trained "
                "weights, as in LoRA."
            )
        self._failed_size = self._failed_size or size
        self._sizes = {first: now for first, now in self._sizes.items() if first < step} | {step: size // 2}
        self._changed, self._unsure = True, self._resumed

    def released(self, step: int, gradients: dict[str, Tensor], thresholds: list[float]) -> dict[str, Tensor]:
        if self._unsure:
            self._ranks.each(self._check_draws)
        if self._changed:
            self._ranks.only_first(lambda: self._write(step))
            self._changed, self._failed_size = False, None
        return gradients

    def _check_draws(self) -> None:
        if self._draws():
            raise PrivacyRefusal(
                "CUDA ran out of memory in a resumed run. Its model draws random numbers, as dropout does, "
                "and these depend on how many records are in memory at once. An earlier process may have "
                "taken this step with more of them, so the same noise would be added to another sum. Leave "
                "the device to this process alone, or load the saved state where there is as much memory "
                "as before."
            )

    def _write(self, step: int) -> None:
        """Write the new size into the last saved state, then warn the user."""
        if self.stored is not None:
            add_to_state(*self.stored, self.state(step))
        if self._failed_size is not None:
            now = self.at(step)
            warnings.warn(
                f"CUDA ran out of memory with {self._failed_size} records at once. The session did the "
                f"step again from its start, with the same random numbers and {now} at once, and goes on "
                f"with {now}. Set physical_batch_size={now} to avoid the failed try.",
                UserWarning,
                stacklevel=2,
            )

    def facts(self, key: bytes) -> dict[str, Any]:
        return {"physical": self._request}

    def state(self, done: int) -> dict[str, Any]:
        return {"physical": dict(self._sizes)}

    def load(self, state: Mapping[str, Any], generator: Generator) -> None:
        self._sizes = dict(state["physical"])
        self._resumed, self._unsure, self._changed, self._failed_size = bool(self._sizes), False, False, None


def covering(expected: float) -> int:
    """Return a size that few samples exceed, if a sample has ``expected`` records on average.

    >>> covering(64)
    96
    """
    return math.ceil(expected + 4 * math.sqrt(expected))


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Find approximately the largest size up to ``most`` that ``fits``; return 1 if none fits.

    >>> largest(lambda size: size <= 11, 64), largest(lambda size: True, 48), largest(lambda size: False, 48)
    (11, 48, 1)
    """
    fitting, size = 0, 1
    while fitting < most and fits(size):
        fitting, size = size, min(2 * size, most)
    while fitting < most and size - fitting > max(1, fitting // 8):
        middle = (fitting + size) // 2
        fitting, size = (middle, size) if fits(middle) else (fitting, middle)
    return max(1, fitting)


def within_memory(function: Callable[[], tuple[float, ...]], numbers: int) -> tuple[float, ...]:
    """Return the results of ``function`` and a 0; if the device lacks memory, ``numbers`` zeros and a 1.

    The sum of the last number over the ranks says whether any of them lacked memory.

    >>> within_memory(lambda: (2.0, 3.0), 2)
    (2.0, 3.0, 0.0)
    """
    try:
        return (*function(), 0.0)
    except RuntimeError as problem:
        if not lacks_memory(problem):
            raise
    empty_cache()  # outside the handler: the error holds the frames that it passed, and they hold tensors
    return (*[0.0] * numbers, 1.0)


def empty_cache() -> None:
    """Return unused memory to the device."""
    gc.collect()
    torch.cuda.empty_cache()


def spare(weights: list[Tensor], optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Allocate CUDA memory that stays reserved while a size is tested.

    It is the margin that ``"auto"`` leaves free.  If the optimizer has no state yet, it includes room for the
    state: two numbers for each weight, as AdamW needs.
    """
    if not weights[0].is_cuda:
        return []
    device = weights[0].device
    margin = torch.cuda.get_device_properties(device).total_memory // _SPARE
    reserve = [torch.empty(margin, dtype=torch.uint8, device=device)]
    return (
        reserve if optimizer.state else [*reserve, *(torch.empty_like(w) for w in weights for _ in range(2))]
    )
