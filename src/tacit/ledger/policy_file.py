"""How is a policy written? As a TOML file; ``tacit init TABLE --policy`` writes one to fill in."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tacit.columns import Column, Dialect, parse_columns
from tacit.columns.blanks import refuse_blanks
from tacit.errors import InvalidInput, check_in, reason_of
from tacit.ledger.budgets import ApproximateBudget, PureBudget
from tacit.ledger.counting import Budget
from tacit.ledger.policy import Policy
from tacit.ledger.renyi import RenyiBudget, ZeroConcentratedBudget

_BUDGETS: dict[str, tuple[type[Budget], tuple[str, ...], tuple[str, ...]]] = {
    "pure": (PureBudget, ("epsilon",), ()),
    "approximate": (ApproximateBudget, ("epsilon", "delta"), ()),
    "zcdp": (ZeroConcentratedBudget, ("epsilon", "delta"), ("threshold_delta",)),
    "renyi": (RenyiBudget, ("epsilon", "delta"), ("orders", "threshold_delta")),
}
"""For each mode of counting its class, the settings that it needs, and those that it may have."""
_POLICY = (
    "unit", "unit_column", "rows_per_unit", "groups_per_unit", "adjacency", "largest_table", "public_records",
    "blocks", "parent", "parent_block", "note",
)  # fmt: skip
_COLUMN = tuple(item.name for item in fields(Column))


def read_policy(path: Path | str) -> Policy:
    """The policy in a TOML file with ``[policy]``, ``[budget]``, ``[columns.NAME]`` and ``[table]``.

    :raises InvalidInput: naming the part and the setting that is missing, misspelt, blank or impossible.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInput(
            f"there is no policy at {path}. `tacit init TABLE --policy --out {path}` writes one to fill in."
        ) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(
            f"the policy {path} cannot be read: {reason_of(problem)}. Check the path."
        ) from None
    return parse_policy(text, source=str(path))


def parse_policy(text: str, *, source: str = "the policy") -> Policy:
    """The policy in TOML text; see :func:`read_policy`.

    >>> policy = parse_policy('''
    ... [policy]
    ... unit = "patient"
    ... unit_column = "patient_id"
    ... adjacency = "add-remove"
    ... [budget]
    ... mode = "pure"
    ... epsilon = 1.5
    ... [columns.age]
    ... kind = "integer"
    ... lower = 0
    ... upper = 120
    ... ''')
    >>> policy.unit, policy.columns["age"].upper
    ('patient', 120.0)
    """
    refuse_blanks(text, source)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as problem:  # no TOML, a number of thousands of digits, too deep
        raise InvalidInput(f"{source} is not TOML: {problem}. Correct that place.") from None
    _check_names(source, data, ("policy", "budget", "columns", "table"), required=("policy", "budget"))
    for part in data:
        if not isinstance(data[part], dict):
            raise InvalidInput(f"{source}: [{part}] must be a section; it is {data[part]!r}.")
    settings = dict(data["policy"])
    _check_names(f"{source}: [policy]", settings, _POLICY, required=("unit", "adjacency"))
    for name, given in data.get("columns", {}).items():
        _check_column(f"{source}: [columns.{name}]", given)
    settings |= {
        "budget": _budget(f"{source}: [budget]", data["budget"]),
        "columns": parse_columns(data.get("columns", {}), source=f"{source}: "),
        "dialect": Dialect.from_data(data.get("table", {}), f"{source}: [table]"),
    }
    policy: Policy = _made(f"{source}: [policy]", Policy, settings)
    return policy


def _budget(where: str, given: Mapping[str, Any]) -> Budget:
    _check_names(where, given, ("mode", "epsilon", "delta", "orders", "threshold_delta"), required=("mode",))
    mode = check_in(f"{where} mode", given["mode"], tuple(_BUDGETS))
    made, required, optional = _BUDGETS[mode]
    _check_names(f"{where} of mode {mode!r}", given, ("mode", *required, *optional), required=required)
    settings = {name: value for name, value in given.items() if name != "mode"}
    budget: Budget = _made(where, made, settings)
    return budget


def _check_column(where: str, given: object) -> None:
    if not isinstance(given, dict):
        raise InvalidInput(f"{where} must be a section, with a kind; it is {given!r}.")
    _check_names(where, given, (*_COLUMN, *(["keys"] if "keys" in given else [])), required=("kind",))


def _made(where: str, kind: type[Any], settings: Mapping[str, Any]) -> Any:
    """``kind`` with these settings, all of them known to it; its errors get the place in the file."""
    try:
        return kind(**settings)
    except InvalidInput as problem:
        raise InvalidInput(f"{where}: {problem}") from None


def _check_names(
    where: str, given: Mapping[str, Any], known: tuple[str, ...], *, required: tuple[str, ...] = ()
) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
            raise InvalidInput(f"{where} has {name!r}, which means nothing there; {hint}")
    for name in required:
        if name not in given:
            raise InvalidInput(f"{where} lacks {name!r}; there is no default for it. State it.")
