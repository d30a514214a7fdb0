"""What this process has released under each key: the same noise never lies on two different sums.

The noise of a step is a function of the run's key and of the step.  A step that is done again after a crash
is therefore the same release, as long as it is done again exactly.  With another learning rate before it,
another loss or other records, its sum is another one under the same noise, and the difference of the two
releases is free of noise.  What a resume state can tell is refused when it is loaded; this is for the rest.

Letters: P parameters; s released numbers that are looked at.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import PrivacyRefusal
from tacit.noise.generator import Generator

__all__ = ["check_release"]

_LOOKED_AT = 1024  # numbers of each parameter, evenly spaced
_ROUNDING = 1e-6  # of their norm: what the order of additions may change from one time to the next
_TRACES: dict[bytes, array[float]] = {}
"""Digest of a key -> one number for each step that was released under it, NaN for those that were not."""
_COMING: list[tuple[array[float], int, Tensor, torch.cuda.Event]] = []
"""Traces that a device has not handed over yet: where they go, what they are made of and when it is there."""


def check_release(generator: Generator, step: int, gradients: Mapping[str, Tensor]) -> None:
    """Refuse to release for ``step`` other noisy ``gradients`` than this process did before under this key.

    A key from the testing door promises nothing and may be used as often as a test likes.

    Raises:
        PrivacyRefusal: they are others.  Nothing has left the process yet.
    """
    key, secure = generator.secret_state()
    if not secure:
        return
    _collect()
    traces = _TRACES.setdefault(hashlib.blake2b(key, digest_size=16).digest(), array("d"))
    traces.extend([math.nan] * (step + 1 - len(traces)))
    numbers = _looked_at(gradients)
    if numbers.is_cuda and math.isnan(traces[step]):  # nothing to compare with: the device is not waited for
        copy = torch.empty_like(numbers, device="cpu", pin_memory=True).copy_(numbers, non_blocking=True)
        _COMING.append((traces, step, copy, torch.cuda.current_stream(numbers.device).record_event()))
        return
    trace, norm = _trace(numbers.cpu())
    if not math.isnan(traces[step]) and abs(trace - traces[step]) > _ROUNDING * norm:
        raise PrivacyRefusal(
            f"step {step} was taken before in this process with the same key, and released something else. "
            "The same noise would lie on two different sums, and their difference would be free of noise. "
            "Give each session StepCharges of its own, and no generator. After session.load(path) let "
            "everything be as it was: learning rates and their schedule, the loss, the mode of the model. To "
            "try something else, start a new run."
        )
    traces[step] = trace


def _collect() -> None:
    """Enter the traces that were on their way; by now they are there."""
    while _COMING:
        traces, step, numbers, copied = _COMING.pop()
        copied.synchronize()
        traces[step] = _trace(numbers)[0]


def _looked_at(gradients: Mapping[str, Tensor]) -> Tensor:
    """The (s,) numbers that are looked at, where the gradients are."""
    if all(g.is_cpu for g in gradients.values()):
        numbers = [g.numpy().reshape(-1) for g in gradients.values()]
        parts = [part[:: max(1, part.size // _LOOKED_AT)] for part in numbers]
        return torch.from_numpy(np.concatenate(parts, dtype=np.float64))
    return torch.cat([g.reshape(-1)[:: max(1, g.numel() // _LOOKED_AT)] for g in gradients.values()]).double()


def _trace(looked_at: Tensor) -> tuple[float, float]:
    """A weighted sum of s of the P numbers, which hardly any change leaves as it is; and their norm."""
    numbers = looked_at.numpy()
    # Not ``@``: the threads of NumPy's BLAS stay awake after a product and would slow down the next step.
    return float((numbers * _weights(len(numbers))).sum()), math.sqrt(np.square(numbers).sum())


@lru_cache(maxsize=8)
def _weights(count: int) -> NDArray[np.float64]:
    """(s,) numbers of no pattern."""
    return np.cos(np.arange(count, dtype=np.float64))
