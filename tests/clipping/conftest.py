"""Set-up that all tests of clipping share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    torch.manual_seed(0)
