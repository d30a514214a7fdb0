"""How is a privacy statement read? As JSON whose fields have their kinds; event and plan become objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.errors import InvalidInput, TacitError
from tacit.events import Event, event_from_json
from tacit.plan import Plan
from tacit.report.schema import read_json
from tacit.report.statement.of_0_2 import plan_of_0_2
from tacit.report.statement.statement import FORMAT

_LARGEST = 1e300
_KINDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "": {
        "private": bool, "guarantee": dict, "mechanism": dict, "accountant": dict, "event": dict,
        "plan": dict, "randomness": str,
    },
    "guarantee": {
        "unit": str, "adjacency": str, "epsilon": (int, float, type(None)), "delta": (int, float),
        "groups": dict, "lower_bound_of_the_same_analysis": (int, float),
    },
    "mechanism": {
        "steps": int, "sampler": str, "expected_batch_size": (int, float), "clipping": str,
        "public_figure_for_the_number_of_records": int, "noise_multiplier": (int, float),
        "noise_multiplier_of_the_gradients": (int, float), "views_per_record": int, "loss_report": str,
        "preparation": list,
    },
}  # fmt: skip


def read_statement(path: Path | str) -> dict[str, Any]:
    """Read a statement that a run has written.

    :raises InvalidInput: if there is none, it is not JSON, or it lacks a part of a statement.
    """
    data: Any = read_json(path, "statement", "the statement.json of a run, not its statement.txt")
    if not isinstance(data, dict) or data.get("statement") != "tacit privacy statement":
        raise InvalidInput(
            f"{path} is not a privacy statement of Tacit: it does not begin by saying so. Give the "
            "statement.json of a run."
        )
    found: dict[str, Any] = data
    return found


def check_fields(data: Mapping[str, Any]) -> None:
    """Raise InvalidInput unless ``data`` has the fields of a statement, each of its kind and in its range."""
    if data.get("format") not in (1, FORMAT):
        raise InvalidInput(
            f"the statement has format {data.get('format')!r}; this version of Tacit reads formats 1 and "
            f"{FORMAT}. Use the version that wrote it."
        )
    for where, kinds in _KINDS.items():
        part = data[where] if where else data
        for name, kind in kinds.items():
            if name == "plan" and data["format"] == 1:
                continue
            value = part.get(name, ...)
            wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
            endless = isinstance(value, int | float) and not abs(value) < _LARGEST
            if wrong or endless:
                given = "it is missing" if value is ... else f"it is {json.dumps(value)[:60]}"
                raise InvalidInput(
                    f"the statement's {f'{where}.{name}' if where else name} cannot be read: {given}. A "
                    "statement that a run has left is whole; get it again from where it comes from."
                )
    guarantee = data["guarantee"]
    if not 0.0 < guarantee["delta"] < 1.0 or (guarantee["epsilon"] or 0.0) < 0.0:
        raise InvalidInput(
            f"the statement's epsilon ({guarantee['epsilon']}) must be at least 0 and its delta "
            f"({guarantee['delta']}) in (0, 1); no mechanism has others."
        )


def read_event(data: object) -> Event:
    """The event that a statement holds; InvalidInput if there is no such event."""
    try:
        return event_from_json(json.dumps(data))
    except (TacitError, RecursionError) as problem:
        raise InvalidInput(f"the statement's event cannot be read: {problem}") from None


def read_plan(data: Mapping[str, Any]) -> Plan:
    """The plan that a statement holds, or describes in the words of 0.2.0.

    :raises TacitError: if there is no such plan, or it is none that may run.
    """
    if data["format"] == 1:
        return plan_of_0_2(data)
    return Plan.from_json(json.dumps(data.get("plan")))
