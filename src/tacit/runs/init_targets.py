"""The targets that a new run file can have: one column, several booleans, or several numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tacit.columns.sections import check_column
from tacit.columns.sniffing import FoundColumn
from tacit.errors import InvalidInput

_NUMBERS = ("number", "integer")


def check_targets(targets: Sequence[str], columns: Mapping[str, FoundColumn]) -> None:
    """Refuse targets that no model can predict, alone or together.

    >>> check_targets(["spam", "age"], {"spam": FoundColumn("boolean"), "age": FoundColumn("integer")})
    Traceback (most recent call last):
    tacit.errors.InvalidInput: several targets must be all booleans (labels) or all numbers; ...
    """
    for target in targets:
        check_column("target", target, columns)
        if columns[target].kind in ("text", "date", "datetime"):
            raise InvalidInput(
                f"target {target!r} is of kind {columns[target].kind} and cannot be predicted: a model "
                "predicts a category, a boolean or a number. Name another column, or say --kind "
                f"{target}=category."
            )
    kinds = {target: columns[target].kind for target in targets}
    together = {"number" if kind in _NUMBERS else kind for kind in kinds.values()}
    if len(targets) > 1 and together not in ({"boolean"}, {"number"}):
        got = ", ".join(f"{target!r} is of kind {kind or 'unknown'}" for target, kind in kinds.items())
        other = next(target for target, kind in kinds.items() if kind != "boolean")
        raise InvalidInput(
            f"several targets must be all booleans (labels) or all numbers; {got}. Name others, or say "
            f"--kind {other}=boolean."
        )
    if twice := [target for target in targets if targets.count(target) > 1]:
        raise InvalidInput(f"--target {twice[0]} is given twice. Give it once.")
