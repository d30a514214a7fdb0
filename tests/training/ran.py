"""Statements of made-up runs: for tests of the text of a statement."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tacit.ledger.ledger import ChargedRun
from tacit.plan import Plan
from tacit.report import Statement
from tacit.report import make_statement as statement_of
from tacit.training import Alone


def plan(**changes: Any) -> Plan:
    """Return a plan of 20 steps, with batches of 100 out of 1,000 patients, and some changes."""
    settings: dict[str, Any] = {
        "noise_multiplier": 2.0, "delta": 1e-4, "records": 1000, "batch_size": 100, "steps": 20,
        "clipping": 1.5, "adjacency": "add-remove", "unit": "patient",
    }  # fmt: skip
    return Plan.with_noise(**(settings | changes))


def make_statement(
    plan: Plan,
    *,
    steps_done: int | None = None,
    randomness: str = "the system's",
    private: bool = True,
    ledger: ChargedRun | None = None,
    stopped: str | None = None,
    route: str = "fast",
    **said: Any,
) -> Statement:
    """Return the statement of a made-up session; all steps were taken, unless the arguments differ."""
    charges = None if ledger is None else SimpleNamespace(so_far=lambda: ledger)
    session: Any = SimpleNamespace(
        falling=SimpleNamespace(said=lambda: ""),
        ranks=Alone(),
        plan=plan,
        steps_done=plan.steps if steps_done is None else steps_done,
        randomness=randomness,
        private=private,
        charges=charges,
        stopped=stopped,
        route=route,
    )
    return statement_of(session, **said)


GONE = object()


def changed(data: dict[str, Any], where: str | Sequence[str | int], to: object) -> dict[str, Any]:
    """Return a copy with another value, or none, at a place such as "event.of.0.count"."""
    data = copy.deepcopy(data)
    part: Any = data
    path = where.split(".") if isinstance(where, str) else where
    for key in path[:-1]:
        part = part[int(key) if isinstance(part, list) else key]
    last = int(path[-1]) if isinstance(part, list) else path[-1]
    if to is GONE:
        del part[last]
    else:
        part[last] = to
    return data
