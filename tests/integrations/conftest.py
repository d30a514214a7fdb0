"""Set-up that all tests of integrations share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the epsilons of groups out of statements: no test here reads them, and they take longest."""
    monkeypatch.setattr("tacit.report.statement._GROUPS", ())
