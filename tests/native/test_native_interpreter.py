"""The tests of Triton kernels, in Triton's interpreter where there is Triton and no device."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parents[1]
INSTALLED = importlib.util.find_spec("triton") is not None


@pytest.mark.skipif(
    not INSTALLED or torch.cuda.is_available(), reason="Triton is not installed, or runs already"
)
@pytest.mark.parametrize(
    ("file", "least"),
    [
        ("native/test_native_cuda.py", 9),
        ("clipping/test_clipping_triton_outer.py", 20),
        ("noise/test_noise_on_device.py", 8),
    ],
)
def test_kernels_in_the_interpreter(file: str, least: int) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", str(TESTS / file)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= least
