"""Checks of whether Triton's kernels can run on a device."""

from __future__ import annotations

import os
import shutil
import warnings
from functools import cache
from importlib.util import find_spec

import torch


@cache
def runs_triton(device: torch.device, capability: tuple[int, int]) -> bool:
    """Return whether this CUDA device has the capability, and Triton and its C compiler work for it.

    This is called before a step launches any kernel, so that no kernel fails in the middle of a step.

    >>> runs_triton(torch.device("cpu"), (7, 0))
    False
    """
    if device.type != "cuda" or torch.version.cuda is None or find_spec("triton") is None:
        return False
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    enough = compiler is not None and torch.cuda.get_device_capability(device) >= capability
    return enough and works(device)


@cache
def works(device: torch.device) -> bool:
    """Return whether a kernel compiles for the device and computes correctly there; if not, warn why."""
    from tacit.native.trial import TILE, trial

    try:
        result = torch.zeros((), dtype=torch.float64, device=device)
        with torch.cuda.device_of(result):  # type: ignore[no-untyped-call]
            trial[(1,)](result, TILE=TILE)
        value = float(result)
        why = None if value == TILE**3 else f"a test kernel returned {value} instead of {TILE**3}"
    except torch.OutOfMemoryError:
        raise
    except Exception as reason:  # noqa: BLE001 (compilers of Triton, of C and of the device raise anything)
        why = f"{type(reason).__name__}: {' '.join(str(reason).split())[:300]}"
    if why is not None:
        warnings.warn(
            f"Triton is installed, but its kernels do not run on {device}: {why}. Tacit uses PyTorch's "
            "operations instead: steps take longer, and noise is drawn on the CPU.",
            RuntimeWarning,
            stacklevel=3,
        )
    return why is None
