"""The policy of a data set, fixed before any question: unit, adjacency, budget, bounds; and its TOML file.

A policy is public, and nothing in it is read from the data. The first entry of the data set's history
contains it, and the data set is never opened again with another policy.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tacit.columns import Column, Dialect
from tacit.columns.column import check_settings, parse_columns
from tacit.columns.sections import refuse_blanks, setting
from tacit.errors import InvalidInput, check_integer, reason_of
from tacit.events import Adjacency
from tacit.ledger.budgets import Budget, budget_from_data
from tacit.serial import parse_json

OWNED_BY = "owned by the column"
"""The words before the unit column in the label of a training charge, if a record is a person's rows."""
_LARGEST_TABLE = 2**62
_TYPES: tuple[tuple[str, Any, str], ...] = (
    ("budget", Budget, "a Budget, such as PureBudget(1.0)"),
    ("columns", Mapping, "an object of columns by name"),
    ("blocks", list | tuple, "a list of names"),
    ("dialect", Dialect, "a Dialect"),
)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The public facts of a data set: what its budget protects, the budget, and what is known of the data.

    Attributes:
        unit: the unit of privacy, which the promise protects, such as ``patient`` or ``row``.
        adjacency: ``add-remove``, ``replace-one`` or ``zero-out``; see :class:`~tacit.events.Adjacency`.
        budget: the limit on epsilon and delta, and the way in which they are counted.
        unit_column: the column that identifies a row's unit; None if one row is one unit.
        rows_per_unit: the largest number of a unit's rows that count. Queries enforce it.
        groups_per_unit: the largest number of groups of one answer in which a unit counts; if None,
            ``rows_per_unit``.
        largest_table: the largest number of rows that the table can ever have, so that no sum overflows.
        public_records: the number of records, if it is public; ``replace-one`` needs it.
        columns: the public facts about each column, by name.
        dialect: the format of the data set's CSV files.
        blocks: the names of parts of the data set that share no person. Charges to one block do not add to
            those of another.
        parent: the data set that this one is derived from. Every charge to this one is charged to it too.
        parent_block: the block of the parent that contains this one.
        note: a text on who approved the policy, why, and until when. The certificate prints it.

    >>> from tacit.ledger import PureBudget
    >>> policy = Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0))
    >>> Policy.from_json(policy.to_json()) == policy
    True
    """

    unit: str
    adjacency: Adjacency | str
    budget: Budget
    unit_column: str | None = None
    rows_per_unit: int = 1
    groups_per_unit: int | None = None
    largest_table: int = 10**9
    public_records: int | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    dialect: Dialect = field(default_factory=Dialect)
    blocks: tuple[str, ...] = ()
    parent: str | None = None
    parent_block: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name in ("unit", "note"):
            _check_text(name, getattr(self, name), empty=name == "note")
        for name in ("unit_column", "parent", "parent_block"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
        put("adjacency", Adjacency.parse(self.adjacency))
        for name, kind, words in _TYPES:
            if not isinstance(getattr(self, name), kind):
                raise InvalidInput(f"{name} must be {words}; got {getattr(self, name)!r}.")
        check_integer("rows_per_unit", self.rows_per_unit, low=1)
        check_integer("largest_table", self.largest_table, low=1, high=_LARGEST_TABLE)
        if self.groups_per_unit is not None:
            check_integer("groups_per_unit", self.groups_per_unit, low=1, high=self.rows_per_unit)
        if self.public_records is not None:
            check_integer("public_records", self.public_records, low=1, high=self.largest_table)
        put("columns", MappingProxyType(dict(self.columns)))
        put("blocks", tuple(self.blocks))
        self._check_together()

    def _check_together(self) -> None:
        if self.unit_column is None and self.rows_per_unit != 1:
            raise InvalidInput(
                f"rows_per_unit is {self.rows_per_unit}, but without unit_column one row is one unit. Name "
                "the column of each row's unit as unit_column."
            )
        if self.adjacency is Adjacency.REPLACE_ONE and self.public_records is None:
            raise InvalidInput(
                "replace-one needs public_records: the number of records is public under it. State it, "
                "or use add-remove, which keeps it secret."
            )
        if self.adjacency is Adjacency.ADD_REMOVE and self.public_records is not None:
            raise InvalidInput(
                "add-remove takes no public_records: the number of records is secret under it. Leave it "
                "out, or use replace-one."
            )
        for name, column in self.columns.items():
            _check_text("name of a column", name)
            if not isinstance(column, Column):
                raise InvalidInput(f"columns[{name!r}] must be a Column; got {column!r}.")
        for block in self.blocks:
            _check_text("name of a block", block)
            if not block.isprintable():
                raise InvalidInput(f"the name of a block must be printable; got {block!r}.")
        if len(set(self.blocks)) != len(self.blocks):
            raise InvalidInput(f"blocks must differ from each other; got {self.blocks!r}.")
        if self.parent_block is not None and self.parent is None:
            raise InvalidInput(
                f"parent_block {self.parent_block!r} is given without parent. Name its data set as parent."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return Policy.from_json, (self.to_json(),)

    @property
    def relation(self) -> Adjacency:
        """The adjacency as a member of :class:`~tacit.events.Adjacency`."""
        return Adjacency.parse(self.adjacency)

    @property
    def needed_columns(self) -> list[str]:
        """The unit column and the declared columns, which a table of the data set must have."""
        return list(dict.fromkeys([*([self.unit_column] if self.unit_column else []), *self.columns]))

    def to_data(self) -> dict[str, Any]:
        """Return the policy as plain data, with all fields."""
        data: dict[str, Any] = {
            item.name: getattr(self, item.name)
            for item in dataclasses.fields(self)
            if item.name not in ("columns", "dialect")
        }
        changed = {
            "adjacency": self.relation.value,
            "budget": self.budget.to_data(),
            "blocks": list(self.blocks),
            "columns": {name: column.to_data() for name, column in self.columns.items()},
        }
        dialect = self.dialect.to_data()
        return data | changed | ({"dialect": dialect} if dialect else {})

    def to_json(self) -> str:
        """Return the policy as JSON; :meth:`from_json` reads it back."""
        return json.dumps(self.to_data(), sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Policy:
        """Read a policy from JSON.

        Raises:
            InvalidInput: if the text is not a policy, or has an unknown field, which the message names.
        """
        try:
            data = parse_json(text)
        except (ValueError, RecursionError) as problem:  # not JSON, a huge number, equal keys, or too deep
            raise InvalidInput(f"not a policy in JSON: {problem}.") from None
        return cls.from_data(data)

    @classmethod
    def from_data(cls, data: object) -> Policy:
        """Read a policy from the plain data of :meth:`to_data`; fields with defaults may be absent."""
        names = [item.name for item in dataclasses.fields(cls)]
        settings = check_settings("a policy", data, names, ["unit", "adjacency", "budget"])
        columns = settings.get("columns", {})
        if not isinstance(columns, Mapping):
            raise InvalidInput(f"columns must be an object of columns by name; got {columns!r}.")
        parts = {
            "budget": budget_from_data(settings["budget"]),
            "columns": {
                str(name): Column.from_data(facts, f"column {name!r}") for name, facts in columns.items()
            },
            "dialect": Dialect.from_data(settings.get("dialect", {}), "dialect"),
        }
        return cls(**settings | parts)


def _check_text(name: str, value: object, *, empty: bool = False) -> None:
    if not isinstance(value, str) or (not value and not empty) or "\x00" in value:
        raise InvalidInput(f"{name} must be a text{'' if empty else ' that is not empty'}; got {value!r}.")


_NOT_HERE = ("budget", "columns", "dialect")  # these have separate sections


def read_policy(path: Path | str) -> Policy:
    """Read the policy in a TOML file with ``[policy]``, ``[budget]``, ``[columns.NAME]`` and ``[table]``.

    Raises:
        InvalidInput: if a setting is missing, misspelt, blank or impossible; the message names it.
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
    """Read the policy in TOML text; see :func:`read_policy`.

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
    except (ValueError, RecursionError) as problem:  # not TOML, a number of thousands of digits, or too deep
        raise InvalidInput(f"{source} is not TOML: {problem}. Correct that place.") from None
    check_settings(source, data, ("policy", "budget", "columns", "table"), ("policy", "budget"))
    place = f"{source}: [policy]"
    names = [field.name for field in fields(Policy) if field.name not in _NOT_HERE]
    settings = check_settings(place, data["policy"], names, ("unit", "adjacency"))
    budget = budget_from_data(data["budget"], f"{source}: [budget]")
    columns = parse_columns(data.get("columns", {}), source=f"{source}: ")
    dialect = Dialect.from_data(data.get("table", {}), f"{source}: [table]")
    try:
        return Policy(**settings, budget=budget, columns=columns, dialect=dialect)
    except InvalidInput as problem:
        raise InvalidInput(f"{place}: {problem}") from None


NO_COLUMN = "none"
"""The value of ``unit_column`` that states that no unit has two rows."""

_HEAD = """\
# The policy of a data set: the unit that it protects, its budget, and public facts of its columns. It is
# fixed when the data set is opened. Replace every "FILL IN".
#
# Do not take bounds and values from the table: the largest value of a column belongs to a person, and so does
# a value that only one person has. Take them from public knowledge: an age is from 0 to 120, and the wards
# are on the hospital's web page. A number outside its bounds counts as the nearest bound.
"""
_LIMITS = """\
rows_per_unit = 1                 # the most rows of one unit that are used; more rows need more noise
{adjacency}
{largest_table}
# public_records = 1000           # only if the number of records is public; "replace-one" needs it
# groups_per_unit = 1             # the most groups in which one unit is used
# blocks = ["2024", "2025"]       # parts that share no person, if you will charge each one separately
# parent = "visits"               # the data set that this one is made from: it is charged too
{note}
"""
_UNIT_COLUMN = "the column that names a row's unit; delete the line if no unit has two rows"
_LARGEST_TABLE_HINT = "no version of the table will have more rows: a public figure, such as 100000"
_COLUMNS = """\
# Delete the columns that no query needs, and the one that identifies the unit. Kinds and formats were
# proposed from the table; they become public with this policy: check them.
"""


def policy_template(
    sections: Sequence[str] = (),
    *,
    unit: str | None = None,
    unit_column: str | None = None,
    largest_table: int | None = None,
    adjacency: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    note: str | None = None,
) -> str:
    """Return a policy in TOML, for a person to fill in from public knowledge of the data.

    Args:
        sections: the texts of the sections ``[table]`` and ``[columns.NAME]``.
        unit, unit_column, largest_table, adjacency, note: as in :class:`tacit.ledger.Policy`. The unit
            column "none" states that no unit has two rows.
        epsilon, delta: the limits of the budget.

    >>> policy_template(unit="patient", epsilon=1.5).count("FILL IN") - policy_template().count("FILL IN")
    -2
    """
    policy = [setting("unit", unit, 'one of these is protected: "patient", "customer"')]
    if unit_column != NO_COLUMN:
        policy.append(setting("unit_column", unit_column, _UNIT_COLUMN))
    policy.append(
        _LIMITS.format(
            adjacency=setting(
                "adjacency",
                adjacency,
                '"add-remove" hides if a unit is there, "replace-one" what its rows say',
            ),
            largest_table=setting("largest_table", largest_table, _LARGEST_TABLE_HINT),
            note=setting("note", note, "who approved this budget, when, why, until when"),
        )
    )
    budget = [
        setting("mode", "renyi", 'trainings and queries; "pure": Laplace noise; "zcdp": Gaussian noise'),
        setting("epsilon", epsilon, "for all that will ever be released: 1 is strong, above 10 says little"),
        setting("delta", delta, 'below 1 / largest_table, such as 1e-6; not for "pure"'),
    ]
    parts = [_HEAD, "\n".join(["[policy]", *policy]), "\n".join(["[budget]", *budget]) + "\n"]
    columns = [section for section in sections if section.startswith("[columns.")]
    if columns:
        tables = [section for section in sections if section not in columns]
        parts += [*tables, _COLUMNS, *columns]
    return "\n".join(parts)
