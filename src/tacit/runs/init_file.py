"""The public facts that a user states for a new run file or policy, and checks of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tacit.columns.column import KINDS, Fact
from tacit.columns.sections import (
    bounds_from_text,
    by_column,
    check_column,
    values_from_text,
)
from tacit.columns.sniffing import FoundColumn, Sniffed, Usual, usual_bounds
from tacit.errors import InvalidInput, PrivacyRefusal, check_in, check_integer, check_real, warn_if_weak
from tacit.ledger.policy import NO_COLUMN
from tacit.runs.init_targets import check_targets

BOUNDED = ("number", "integer", "date", "datetime")
"""The kinds of columns that have bounds."""
_ADJACENCIES = ("add-remove", "replace-one", "zero-out")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The public facts that the user has stated; None, or no entry, leaves a fact to be filled in.

    Attributes:
        target: the column to predict, or a list of columns.
        test_fraction, test_table: the source of the test records.
        user: the column that identifies people with several rows.
        rows_per_user: the number of rows of each person that a step reads; None for the usual number.
        epsilon, delta, unit, adjacency, records: the guarantee, as in ``[privacy]``.
        unit_column, largest_table, note: facts for a policy.
        kinds, formats, bounds, values: facts about single columns, by column name.
        left_out: columns that are not used.
        missing: the treatment of a missing cell of a feature: ``indicator`` or ``refuse``.
        model: ``auto``, ``linear``, ``additive`` or ``mlp``; None for auto.
        public_model: the folder or file of a public model, in place of ``model``.
        architecture: the network to which the weights in a file belong.
        text: the column of texts that the public model reads.
    """

    target: str | Sequence[str] | None = None
    test_fraction: float = 0.2
    test_table: str | None = None
    user: str | None = None
    rows_per_user: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    adjacency: str | None = None
    records: int | None = None
    unit_column: str | None = None
    largest_table: int | None = None
    note: str | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[str, tuple[Fact, Fact]] = field(default_factory=dict)
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    missing: str = "indicator"
    model: str | None = None
    public_model: str | None = None
    architecture: str | None = None
    text: str | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target,) if isinstance(self.target, str) else tuple(self.target or ())


def stated_facts(
    sample: Sniffed,
    facts: Facts,
    *,
    kinds: Sequence[str] = (),
    formats: Sequence[str] = (),
    bounds: Sequence[str] = (),
    values: Sequence[str] = (),
    usual: bool = False,
) -> Facts:
    """Add the facts about single columns that options state, each as ``NAME=VALUE``.

    Args:
        usual: whether columns without stated bounds get the usual bounds for their names.

    >>> table = Sniffed(columns={"age": FoundColumn("integer"), "sex": FoundColumn("category")})
    >>> stated_facts(table, Facts(), bounds=["age=0:120"], values=["sex=f,m"]).values
    {'sex': ('f', 'm')}
    """
    names = sample.columns
    for name in facts.left_out:
        check_column("--leave-out", name, names)
    _refuse_bounds_of_unused(facts, bounds)
    facts = replace(
        facts,
        kinds=by_column("--kind", kinds, names),
        formats=by_column("--format", formats, names),
        values={name: values_from_text(text) for name, text in by_column("--values", values, names).items()},
    )
    columns = table_columns(sample, facts)
    limits: dict[str, tuple[Fact, Fact]] = {}
    if usual:
        limits |= {name: (to.lower, to.upper) for name, to in usual_of(columns).items()}
    for name, text in by_column("--bounds", bounds, columns).items():
        if columns[name].kind not in BOUNDED:
            raise _misfit("bounds", name, columns[name], "number, integer, date or datetime")
        limits[name] = bounds_from_text(columns[name].kind, text)
    return checked_promise(replace(facts, bounds=limits), sample)


def _refuse_bounds_of_unused(facts: Facts, bounds: Sequence[str]) -> None:
    """Refuse bounds of a column that another option takes out of the features."""
    unused = dict.fromkeys(facts.left_out, "--leave-out")
    unused |= {name: option for name, option in ((facts.user, "--user"), (facts.text, "--text")) if name}
    for name, option in unused.items():
        if any(text.startswith(f"{name}=") for text in bounds):
            raise InvalidInput(
                f"--bounds {name}: the column needs none, as {option} {name} leaves it out of the features. "
                "Leave out one of the two options."
            )


def usual_of(columns: Mapping[str, FoundColumn]) -> dict[str, Usual]:
    """Return the usual bounds of columns with a well-known name, such as age."""
    bounds = {name: usual_bounds(name, c.kind, c.settings.get("unit", "")) for name, c in columns.items()}
    return {name: usual for name, usual in bounds.items() if usual is not None}


def checked_promise(facts: Facts, sample: Sniffed) -> Facts:
    """Return the facts if each is within its range; the guarantee itself is checked before training."""
    if facts.epsilon is not None:
        warn_if_weak(check_real("epsilon", facts.epsilon, low=0.0, open_low=True))
    if facts.delta is not None:
        check_real("delta", facts.delta, low=0.0, high=1.0, open_low=True, open_high=True)
    if facts.records is not None:
        check_integer("records", facts.records, low=1)
    if facts.largest_table is not None:
        check_integer("largest_table", facts.largest_table, low=1)
    _check_people(facts, sample)
    _check_text(facts, sample)
    if facts.adjacency is not None:
        check_in("adjacency", facts.adjacency, _ADJACENCIES)
    if facts.unit is not None and not any(map(str.isalpha, facts.unit)):
        raise InvalidInput(
            f"unit must say what one row is, in words; got {facts.unit!r}. Name it, such as patient or visit."
        )
    if facts.unit_column not in (None, NO_COLUMN):
        check_column("unit_column", str(facts.unit_column), sample.columns)
    if facts.delta is not None and facts.records is not None and facts.delta >= 1 / facts.records:
        raise PrivacyRefusal(
            f"delta = {facts.delta:g} is not below 1/records = {1 / facts.records:.3g}: publishing one row "
            f"in full would keep such a promise. Choose a smaller delta, such as {facts.records**-1.1:.1g}."
        )
    return facts


def _check_people(facts: Facts, sample: Sniffed) -> None:
    if facts.user is not None:
        check_column("--user", facts.user, sample.columns)
        if facts.user in (*facts.targets, *facts.left_out):
            raise InvalidInput(
                f"--user {facts.user} names the people: it cannot also be a target or left out. Name "
                "another column."
            )
    if facts.rows_per_user is not None:
        check_integer("--rows-per-user", facts.rows_per_user, low=1)
        if facts.user is None:
            raise InvalidInput("--rows-per-user needs a column of people: name it by --user.")


def _check_text(facts: Facts, sample: Sniffed) -> None:
    if facts.text is None:
        return
    check_column("--text", facts.text, sample.columns)
    if facts.text in (*facts.targets, facts.user, *facts.left_out):
        raise InvalidInput(
            f"--text {facts.text} is read by the public model: it cannot also be a target, the column of "
            "--user, or left out. Name another column."
        )
    if facts.public_model is None:
        raise InvalidInput(
            f"--text {facts.text} needs a public model: say --model FOLDER, where the folder holds "
            "config.json, tokenizer.json and model.safetensors."
        )


def table_columns(sample: Sniffed, facts: Facts) -> dict[str, FoundColumn]:
    """Return the columns to use, with stated kinds and formats in place of those found in the table.

    The column of people and the column of texts for a public model are left out, as they are not encoded.
    """
    columns = {}
    for name, column in sample.columns.items():
        if name in (*facts.left_out, facts.user, facts.text):
            continue
        if name in facts.kinds:
            kind = check_in(f"kind of the column {name!r}", facts.kinds[name], KINDS)
            column = column if kind == column.kind else _of_kind(kind, column)
        if name in facts.formats:
            if column.kind not in ("date", "datetime"):
                raise _misfit("a format", name, column, "date or datetime")
            column = FoundColumn(column.kind, {"format": facts.formats[name]})
        if name in facts.bounds and column.kind not in BOUNDED:
            raise _misfit("bounds", name, column, "number, integer, date or datetime")
        if name in facts.values and column.kind != "category":
            raise _misfit("values", name, column, "category")
        columns[name] = _without_values(column, facts.values.get(name, ()))
    check_targets(facts.targets, columns)
    return columns


def _without_values(column: FoundColumn, values: Sequence[str]) -> FoundColumn:
    """Return the column without the stated values, such as "unknown", among its words for a missing cell."""
    proposed = column.settings.get("missing_values", ())
    missing = [word for word in proposed if word not in values]
    settings = {key: value for key, value in column.settings.items() if key != "missing_values"}
    return replace(column, settings={**settings, "missing_values": missing} if missing else settings)


def _of_kind(kind: str, column: FoundColumn) -> FoundColumn:
    if kind == "boolean" and column.kind in ("category", "text"):
        return FoundColumn(kind, {"true": None, "false": None})
    return FoundColumn(kind)


def policy_columns(sample: Sniffed, facts: Facts) -> dict[str, FoundColumn]:
    """Return the columns that a policy declares: all except the column of people.

    >>> table = Sniffed(columns={"pid": FoundColumn("integer"), "age": FoundColumn("integer")})
    >>> list(policy_columns(table, Facts(unit_column="pid")))
    ['age']
    """
    return {name: c for name, c in table_columns(sample, facts).items() if name != facts.unit_column}


def _misfit(fact: str, name: str, column: FoundColumn, kinds: str) -> InvalidInput:
    return InvalidInput(
        f"{fact} of the column {name!r}: it is of kind {column.kind or 'unknown'}, and only a {kinds} has "
        f"{'one' if fact == 'a format' else 'them'}. Correct the name, or state the kind with --kind."
    )
