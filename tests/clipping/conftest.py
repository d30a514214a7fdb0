"""What all tests of clipping share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from tacit.clipping.isolation import Isolation
from tacit.clipping.isolation.provenance import Provenance
from tacit.errors import SlowModel


@pytest.fixture(autouse=True)
def slow_models_too() -> Iterator[None]:
    """Many of these models go to the reference engine on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowModel)
        yield


@pytest.fixture
def unfollowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is tried out on records shows whether they meet: each proof must hold without the other."""
    monkeypatch.setattr(Provenance, "why_not_by_row", lambda *_: None)
    monkeypatch.setattr(Provenance, "is_laden", lambda *_: False)


@pytest.fixture
def placeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said of models that give a record other losses in another place of the batch."""
    monkeypatch.setattr(Isolation, "_probe_place", lambda *_: None)
