"""The analyst of a charge is the user of the operating system by default."""

from __future__ import annotations

import getpass
import os

import pytest

from tacit.events import DiscreteLaplace
from tacit.ledger import Ledger, Policy, PureBudget
from tacit.ledger.records import current_user


def test_a_charge_names_the_user_or_whom_the_caller_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    ledger = Ledger.create("sqlite://")
    ledger.open_dataset("visits", Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0)))
    ledger.reserve("visits", DiscreteLaplace(20.0), key="1", request={})
    ledger.reserve("visits", DiscreteLaplace(20.0), key="2", request={}, by="bob")
    assert [entry.body["by"] for entry in ledger.history("visits")[1:]] == ["ada", "bob"]


@pytest.mark.parametrize("problem", [KeyError, OSError, ImportError])
def test_where_there_is_no_account_there_is_a_number(
    problem: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise problem("no account")

    monkeypatch.setattr(getpass, "getuser", none)
    assert current_user() == f"user {os.getuid()}"
