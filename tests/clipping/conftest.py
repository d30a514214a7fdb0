"""Set-up that all tests of clipping share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from tacit.errors import SlowModel


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def slow_models_too() -> Iterator[None]:
    """Many of these models go to the reference engine on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowModel)
        yield
