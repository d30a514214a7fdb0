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
from collections.abc import Mapping, Sequence
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


def check_release(generator: Generator, step: int, gradients: Mapping[str, Tensor]) -> None:
    """Refuse to release for ``step`` other noisy ``gradients`` than this process did before under this key.

    A key from the testing door promises nothing and may be used as often as a test likes.

    Raises:
        PrivacyRefusal: they are others.  Nothing has left the process yet.
    """
    key, secure = generator.secret_state()
    if not secure:
        return
    traces = _TRACES.setdefault(hashlib.blake2b(key, digest_size=16).digest(), array("d"))
    traces.extend([math.nan] * (step + 1 - len(traces)))
    trace, norm = _trace(gradients)
    if not math.isnan(traces[step]) and abs(trace - traces[step]) > _ROUNDING * norm:
        raise PrivacyRefusal(
            f"step {step} was taken before in this process with the same key, and released something else. "
            "The same noise would lie on two different sums, and their difference would be free of noise. "
            "Give each session StepCharges of its own, and no generator. After session.load(path) let "
            "everything be as it was: learning rates and their schedule, the loss, the mode of the model. To "
            "try something else, start a new run."
        )
    traces[step] = trace


def _trace(gradients: Mapping[str, Tensor]) -> tuple[float, float]:
    """A weighted sum of s of the P numbers, which hardly any change leaves as it is; and their norm."""
    looked_at = _looked_at([g.reshape(-1)[:: max(1, g.numel() // _LOOKED_AT)] for g in gradients.values()])
    # Not ``@``: the threads of NumPy's BLAS stay awake after a product and would slow down the next step.
    return float((looked_at * _weights(len(looked_at))).sum()), math.sqrt(np.square(looked_at).sum())


def _looked_at(parts: Sequence[Tensor]) -> NDArray[np.float64]:
    """All parts in one array; from another device in one copy, as each waits for what the device does."""
    if all(part.is_cpu for part in parts):
        return np.concatenate([part.numpy() for part in parts], dtype=np.float64)
    return torch.cat([part.double() for part in parts]).cpu().numpy()


@lru_cache(maxsize=8)
def _weights(count: int) -> NDArray[np.float64]:
    """(s,) numbers of no pattern."""
    return np.cos(np.arange(count, dtype=np.float64))
