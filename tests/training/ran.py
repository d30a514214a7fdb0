"""Statements of runs that did not run: for tests of what a statement says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tacit.ledger.charged import ChargedRun
from tacit.plan import Plan
from tacit.report import Statement
from tacit.report import make_statement as statement_of

__all__ = ["make_statement"]


def make_statement(
    plan: Plan,
    *,
    steps_done: int,
    randomness: str = "the system's",
    private: bool = True,
    ledger: ChargedRun | None = None,
    stopped: str | None = None,
    **said: Any,
) -> Statement:
    """The statement of a session that says so of itself."""
    charges = None if ledger is None else SimpleNamespace(so_far=lambda: ledger)
    session: Any = SimpleNamespace(
        plan=plan,
        steps_done=steps_done,
        randomness=randomness,
        private=private,
        charges=charges,
        stopped=stopped,
    )
    return statement_of(session, **said)
