"""Has this process already released this step's noise on another sum? Then the session refuses the step.

The noise of a step is a function of the run's key and of the step.  A step that is repeated after a crash is
therefore the same release, as long as all else is the same.  With another learning rate before it, another
loss or other records, its sum differs under the same noise, and the difference of the two releases has no
noise.  ``session.load`` refuses what a resume state can show; this file covers the rest.

Letters: P parameters; s sampled numbers of a release.
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

_SAMPLED = 1024  # numbers of each parameter, evenly spaced
_ROUNDING = 1e-6  # of their norm: what the order of additions may change between two computations
_TRACES: dict[bytes, array[float]] = {}
"""Digest of a key -> one number for each step that was released under it, NaN for the other steps."""
_COMING: list[tuple[array[float], int, Tensor, torch.cuda.Event]] = []
"""Traces that are being copied from a device: where they go, the step, the numbers, and when they arrive."""


def check_release(generator: Generator, step: int, gradients: Mapping[str, Tensor]) -> None:
    """Refuse to release for ``step`` other noisy ``gradients`` than this process did before under this key.

    A key from :mod:`tacit.testing` promises nothing, so tests may use it as often as they like.

    Raises:
        PrivacyRefusal: the gradients differ.  Nothing has left the process yet.
    """
    key, secure = generator.secret_state()
    if not secure:
        return
    _collect()
    traces = _TRACES.setdefault(hashlib.blake2b(key, digest_size=16).digest(), array("d"))
    traces.extend([math.nan] * (step + 1 - len(traces)))
    numbers = _sampled(gradients)
    if numbers.is_cuda and math.isnan(traces[step]):  # nothing to compare with: do not wait for the device
        copy = torch.empty_like(numbers, device="cpu", pin_memory=True).copy_(numbers, non_blocking=True)
        _COMING.append((traces, step, copy, torch.cuda.current_stream(numbers.device).record_event()))
        return
    trace, norm = _trace(numbers.cpu())
    if not math.isnan(traces[step]) and abs(trace - traces[step]) > _ROUNDING * norm:
        raise PrivacyRefusal(
            f"step {step} was taken before in this process with the same key, and released something else. "
            "The same noise would be added to two different sums, and their difference would have no noise. "
            "Give each session its own StepCharges, and no generator. After session.load(path) let "
            "everything be as it was: learning rates and their schedule, the loss, the mode of the model. To "
            "try something else, start a new run."
        )
    traces[step] = trace


def _collect() -> None:
    """Store the traces that were copied from a device meanwhile; by now they have arrived."""
    while _COMING:
        traces, step, numbers, copied = _COMING.pop()
        copied.synchronize()
        traces[step] = _trace(numbers)[0]


def _sampled(gradients: Mapping[str, Tensor]) -> Tensor:
    """The (s,) sampled numbers, on the device of the gradients."""
    if all(g.is_cpu for g in gradients.values()):
        numbers = [g.numpy().reshape(-1) for g in gradients.values()]
        parts = [part[:: max(1, part.size // _SAMPLED)] for part in numbers]
        return torch.from_numpy(np.concatenate(parts, dtype=np.float64))
    return torch.cat([g.reshape(-1)[:: max(1, g.numel() // _SAMPLED)] for g in gradients.values()]).double()


def _trace(sampled: Tensor) -> tuple[float, float]:
    """A weighted sum of the s sampled numbers, which almost any change alters; and their norm."""
    numbers = sampled.numpy()
    # Not ``@``: the threads of NumPy's BLAS stay awake after a product and would slow down the next step.
    return float((numbers * _weights(len(numbers))).sum()), math.sqrt(np.square(numbers).sum())


@lru_cache(maxsize=8)
def _weights(count: int) -> NDArray[np.float64]:
    """(s,) weights without a pattern."""
    return np.cos(np.arange(count, dtype=np.float64))
