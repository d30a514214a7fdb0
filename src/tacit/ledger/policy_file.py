"""How is a policy written? As a TOML file, with a template for a table.

The template takes names and types from the table, nothing else.  The smallest and the largest value in a
column belong to a person, and so do the keys that occur, so bounds and keys must come from outside.
"""

from __future__ import annotations

import csv
import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tacit.columns import Column, Dialect, parse_columns
from tacit.errors import InvalidInput, MissingExtra, check_in
from tacit.ledger.budgets import (
    ApproximateBudget,
    Budget,
    PureBudget,
    RenyiBudget,
    ZeroConcentratedBudget,
)
from tacit.ledger.policy import Policy

__all__ = ["parse_policy", "policy_template", "read_policy", "table_columns"]

_BLANK = "FILL IN"
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
            f"there is no policy at {path}. `tacit ledger template TABLE > {path}` writes one to fill in."
        ) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(f"the policy {path} cannot be read: {problem}. Check the path.") from None
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
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
            raise InvalidInput(f"{where} has {name!r}, which means nothing there; {hint}")
        if value == _BLANK:
            raise InvalidInput(
                f"{where}: {name} is still {_BLANK!r}. State it from what is known beforehand, never from "
                "the "
                "data; or delete the line where the comment beside it says so."
            )
    for name in required:
        if name not in given:
            raise InvalidInput(f"{where} lacks {name!r}; there is no default for it. State it.")


# --- the template ------------------------------------------------------------------------------------------

_HEAD = """\
# The policy of a data set: whom it protects, its budget, and public facts about its columns. It is fixed
# when the data set is opened. Replace every "FILL IN".
#
# Bounds and values are not filled in from the table, and must not be: the largest value of a column belongs
# to a person, and so does a value that only one person has. Take them from what is known without the data: an
# age is in 0 to 120, the wards are on the hospital's web page. Numbers outside go to the nearest bound.

[policy]
unit = "FILL IN"             # what the promise protects one of: "patient", "customer"
unit_column = "FILL IN"      # the column that names a row's unit; delete the line if no unit has two rows
rows_per_unit = 1            # so many rows of one unit are used at most; more rows, more noise
adjacency = "add-remove"     # hides whether a unit is in the table; "replace-one": only what its rows say
largest_table = 1000000000   # no version of the table will have more rows
# public_records = 1000      # only if the number of records is public; "replace-one" needs it
# groups_per_unit = 1        # one unit is used in so many groups at most
# blocks = ["2024", "2025"]  # parts in which nobody occurs twice, if you will charge them one by one
# parent = "visits"          # the data set that this one is made from: it is charged too
note = "FILL IN"             # who approved this budget, when, why, until when: printed in every certificate

[budget]
mode = "renyi"               # trainings and queries; "pure": Laplace noise alone; "zcdp": Gaussian noise
epsilon = "FILL IN"          # for everything that will ever be released: 1 is strong, above 10 says little
delta = "FILL IN"            # below one over the number of units, such as 1e-6; delete the line for "pure"
"""
_BY_KIND = {
    "number": ('lower = "FILL IN"', 'upper = "FILL IN"'),
    "integer": ('lower = "FILL IN"', 'upper = "FILL IN"'),
    "category": (
        'values = "FILL IN"  # ["a", "b"]: what may be a group; delete the line if they are not public',
    ),
    "boolean": (),
    "date": ('lower = "FILL IN"  # 2015-01-01', 'upper = "FILL IN"'),
    "datetime": ('lower = "FILL IN"  # 2015-01-01', 'upper = "FILL IN"'),
    "": (
        f'kind = "{_BLANK}"  # number, integer, category, boolean, date, datetime, text: a CSV does not say',
        "# lower = 0  # of a number, an integer or a date",
        "# upper = 1",
        '# values = ["a", "b"]  # of a category: what may be a group',
    ),
}


def policy_template(columns: Mapping[str, str]) -> str:
    """A policy in TOML with blanks, for a person to fill in who knows the data without looking at them.

    :param columns: kind by name, or "" where it is not known.

    >>> print(policy_template({"age": "integer"})[-69:].strip())
    [columns."age"]
    kind = "integer"
    lower = "FILL IN"
    upper = "FILL IN"
    """
    parts = [_HEAD]
    if columns:
        parts.append("# Delete the columns that no query needs, and the one that identifies the unit.\n")
    for name, kind in columns.items():
        known = [f'kind = "{kind}"'] if kind else []
        lines = [f"[columns.{_quoted(name)}]", *known, *_BY_KIND[kind]]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")  # allowed in JSON, not in TOML


def table_columns(path: Path | str) -> dict[str, str]:
    """Names and kinds of the columns of a Parquet, Arrow or CSV file; reads no value.

    A CSV file has no types, so that its kinds are "".

    :raises InvalidInput: if the file cannot be read or is of another kind.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    try:
        if suffix == ".csv":
            with path.open(encoding="utf-8-sig", newline="") as file:
                return dict.fromkeys(next(csv.reader(file), []), "")
        if suffix in (".parquet", ".arrow", ".feather"):
            return _typed_columns(path, suffix)
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as problem:
        raise InvalidInput(f"the table {path} cannot be read: {problem}. Check the path.") from None
    raise InvalidInput(f"a table is a .parquet, .arrow, .feather or .csv file; got {path.name!r}.")


def _typed_columns(path: Path, suffix: str) -> dict[str, str]:
    try:
        import pyarrow as pa
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "tables", "reading the types of a table") from None
    schema = pa.parquet.read_schema(path) if suffix == ".parquet" else pa.ipc.open_file(path).schema
    kinds = {}
    for field in schema:
        if pa.types.is_boolean(field.type):
            kinds[field.name] = "boolean"
        elif pa.types.is_integer(field.type):
            kinds[field.name] = "integer"
        elif pa.types.is_floating(field.type) or pa.types.is_decimal(field.type):
            kinds[field.name] = "number"
        elif pa.types.is_date(field.type):
            kinds[field.name] = "date"
        elif pa.types.is_timestamp(field.type):
            kinds[field.name] = "datetime"
        elif pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            kinds[field.name] = "category"
        else:
            kinds[field.name] = "category" if pa.types.is_dictionary(field.type) else ""
    return kinds
