"""What all tests of clipping share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from tacit.errors import SlowModel


@pytest.fixture(autouse=True)
def slow_models_too() -> Iterator[None]:
    """Many of these models go to the reference engine on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowModel)
        yield
