"""Set-up that all tests of clipping share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    """Seed the CPU alone; ``torch.manual_seed`` formats the stack for each kind of device, which is slow."""
    torch.default_generator.manual_seed(0)
