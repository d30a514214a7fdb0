"""Sections of a run file for several columns, such as ``[columns."x*"]``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.columns import Dialect
from tacit.columns.sections import matching
from tacit.columns.tables import names_of_file
from tacit.errors import InvalidInput


def with_each_column(run_file: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the sections with a ``*`` by one for each column of the table that they match.

    A column's own section takes precedence.  The columns of people, days and texts are not matched.

    **Guarantee**

    * The result depends only on the run file and on the names of the table's columns.

    Args:
        run_file: the content of the run file.
    """
    declared, data = run_file.get("columns", {}), run_file.get("data", {})
    if not isinstance(declared, Mapping) or not isinstance(data, Mapping):
        return dict(run_file)
    path = next((data[key] for key in ("table", "jsonl") if isinstance(data.get(key), str)), None)
    if path is None or not any("*" in name for name in declared):
        return dict(run_file)

    names = names_of_file(Path(path), Dialect.from_data(run_file.get("table", {}), "[table]"))
    user = data.get("user")
    unused = [data.get("date"), data.get("text"), *(user if isinstance(user, list) else [user])]
    patterns = [name for name in declared if "*" in name and name not in names]
    matched: dict[str, str] = {}
    for pattern in patterns:
        own = [name for name in matching(pattern, names) if name not in declared and name not in unused]
        if not own:
            raise InvalidInput(
                f'[columns."{pattern}"] matches no column of {path} that has no section of its own. Correct '
                "the pattern, in which * stands for any characters, or remove the section."
            )
        if twice := [name for name in own if name in matched]:
            raise InvalidInput(
                f'[columns."{pattern}"] and [columns."{matched[twice[0]]}"] both match the column '
                f"{twice[0]!r}. Give it a section of its own, or change a pattern."
            )
        matched |= dict.fromkeys(own, pattern)

    columns: dict[str, Any] = {}
    for name, facts in declared.items():
        if name in patterns:
            columns |= {each: facts for each in names if matched.get(each) == name}
        else:
            columns[name] = facts
    return {**run_file, "columns": columns}
