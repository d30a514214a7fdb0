"""Can Triton's kernels run on a device?"""

from __future__ import annotations

import os
import shutil
from functools import cache
from importlib.util import find_spec

import torch


@cache
def runs_triton(device: torch.device, capability: tuple[int, int]) -> bool:
    """Whether it is a CUDA device of at least this capability, and Triton and its C compiler are installed.

    >>> runs_triton(torch.device("cpu"), (7, 0))
    False
    """
    if device.type != "cuda" or torch.version.cuda is None or find_spec("triton") is None:
        return False
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return compiler is not None and torch.cuda.get_device_capability(device) >= capability
