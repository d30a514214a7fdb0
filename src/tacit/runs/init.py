"""A new run file or policy: stated facts, questions, and the text with blanks to fill in."""

# Guarantee:
# * The file gets from the table only what tacit.columns.sniffing.sniff proposes: names, and for each column
#   one of a fixed list of kinds and formats.  Bounds, values, the number of records and the promise are
#   those that the user states, or else FILL IN.  The usual bounds in a comment follow from the column's
#   name and kind.

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit.columns.column import KINDS, Column, Fact
from tacit.columns.sections import (
    bounds_from_text,
    by_column,
    check_column,
    column_key,
    column_section,
    quoted,
    refuse_two_meanings,
    setting,
    table_section,
    values_from_text,
)
from tacit.columns.sniffing import (
    REPEATS,
    SAMPLE_ROWS,
    FoundColumn,
    Sniffed,
    Usual,
    is_identifier,
    person_in,
    usual_bounds,
)
from tacit.errors import (
    InvalidInput,
    PrivacyRefusal,
    TacitError,
    check_in,
    check_integer,
    check_real,
    suggested_delta,
    warn_if_weak,
)
from tacit.ledger.policy import NO_COLUMN, policy_template
from tacit.pretrained.finding import usual_size

_NUMBERS = ("number", "integer")


def check_targets(targets: Sequence[str], columns: Mapping[str, FoundColumn]) -> None:
    for target in targets:
        check_column("target", target, columns)
        if columns[target].kind in ("text", "date", "datetime"):
            raise InvalidInput(
                f"target {target!r} is of kind {columns[target].kind} and cannot be predicted. Name a "
                f"category, boolean or number column, or set --kind {target}=category."
            )
    kinds = {target: columns[target].kind for target in targets}
    together = {"number" if kind in _NUMBERS else kind for kind in kinds.values()}
    if len(targets) > 1 and together not in ({"boolean"}, {"number"}):
        got = ", ".join(f"{target!r} is of kind {kind or 'unknown'}" for target, kind in kinds.items())
        other = next(target for target, kind in kinds.items() if kind != "boolean")
        raise InvalidInput(
            f"several targets must all be booleans (labels) or all numbers; {got}. Name others, or set "
            f"--kind {other}=boolean."
        )
    if twice := [target for target in targets if targets.count(target) > 1]:
        raise InvalidInput(f"--target {twice[0]} is given twice. Give it once.")


BOUNDED = ("number", "integer", "date", "datetime")
"""The kinds of columns that have bounds."""
_ADJACENCIES = ("add-remove", "replace-one", "zero-out")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The public facts that the user has stated; None, or no entry, leaves a fact to be filled in.

    Attributes:
        target: the column to predict, or a list of columns.
        time, event: in place of a target, the columns of a survival model.
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
        text: the text column that the public model reads.
    """

    target: str | Sequence[str] | None = None
    time: str | None = None
    event: str | None = None
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
        if self.time is not None and self.event is not None:
            return self.time, self.event
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
    names = sample.columns
    for name in facts.left_out:
        check_column("--leave-out", name, names)
    if (facts.time is None) != (facts.event is None) or (facts.time and facts.target):
        raise InvalidInput(
            "--time (how long a person was observed) and --event (whether the event then happened) go "
            "together, without --target. Name both, or only a target."
        )
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
                f"--bounds {name}: the column needs no bounds, because {option} {name} removes it from the "
                "features. Remove one option."
            )


def usual_of(columns: Mapping[str, FoundColumn]) -> dict[str, Usual]:
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
            f"unit must name what one row is, such as patient or visit; got {facts.unit!r}. Change it."
        )
    if facts.unit_column not in (None, NO_COLUMN):
        check_column("unit_column", str(facts.unit_column), sample.columns)
    if facts.delta is not None and facts.records is not None and facts.delta >= 1 / facts.records:
        raise PrivacyRefusal(
            f"delta = {facts.delta:g} is not below 1/records = {1 / facts.records:.3g}. Such a delta would "
            "even allow publishing one random row in full. Choose a smaller delta, such as "
            f"{suggested_delta(facts.records):g}."
        )
    return facts


def _check_people(facts: Facts, sample: Sniffed) -> None:
    if facts.user is not None:
        check_column("--user", facts.user, sample.columns)
        if facts.user in (*facts.targets, *facts.left_out):
            raise InvalidInput(
                f"--user {facts.user} identifies people, so it cannot also be a target or left out. Name "
                "another column."
            )
    if facts.rows_per_user is not None:
        check_integer("--rows-per-user", facts.rows_per_user, low=1)
        if facts.user is None:
            raise InvalidInput("--rows-per-user needs a column that identifies people. Name it with --user.")


def _check_text(facts: Facts, sample: Sniffed) -> None:
    if facts.text is None:
        return
    check_column("--text", facts.text, sample.columns)
    if facts.text in (*facts.targets, facts.user, *facts.left_out):
        raise InvalidInput(
            f"--text {facts.text} is read by the public model, so it cannot also be a target, the column of "
            "--user, or left out. Name another column."
        )
    if facts.public_model is None:
        raise InvalidInput(
            f"--text {facts.text} needs a public model. Set --model FOLDER; the folder must contain "
            "config.json, tokenizer.json and model.safetensors."
        )


def table_columns(sample: Sniffed, facts: Facts) -> dict[str, FoundColumn]:
    """Return the columns to use, with stated kinds and formats in place of those found in the table.

    The user column and a public model's text column are left out, as they are not encoded.
    """
    columns = {}
    for name, column in sample.columns.items():
        if name in (*facts.left_out, facts.user, facts.text):
            continue
        if name in facts.kinds:
            kind = check_in(f"kind of the column {name!r}", facts.kinds[name], KINDS)
            column = column if kind == column.kind else _of_kind(kind, column)
        if name == facts.event and column.kind in ("integer", "category"):  # such as 0 and 1
            column = _of_kind("boolean", column)
        if name in facts.formats:
            if column.kind not in ("date", "datetime"):
                raise _misfit("a format", name, column, "date or datetime")
            column = FoundColumn(column.kind, {"format": facts.formats[name]})
        if name in facts.bounds and column.kind not in BOUNDED:
            raise _misfit("bounds", name, column, "number, integer, date or datetime")
        if name in facts.values and column.kind != "category":
            raise _misfit("values", name, column, "category")
        # A stated value, such as "unknown", is no word for a missing cell.
        values = facts.values.get(name, ())
        proposed = column.settings.get("missing_values", ())
        missing = [word for word in proposed if word not in values]
        settings = {key: value for key, value in column.settings.items() if key != "missing_values"}
        columns[name] = replace(
            column, settings={**settings, "missing_values": missing} if missing else settings
        )
    if facts.time is None or facts.event is None:
        check_targets(facts.targets, columns)
        return columns
    for option, name, kinds in (("time", facts.time, _NUMBERS), ("event", facts.event, ("boolean",))):
        check_column(f"--{option}", name, columns)
        if (kind := columns[name].kind) not in kinds:
            raise InvalidInput(
                f"--{option} {name} must be of kind {kinds[0]}; it is of kind {kind or 'unknown'}. Name "
                f"another column, or set --kind {name}={kinds[0]}."
            )
    return columns


def _of_kind(kind: str, column: FoundColumn) -> FoundColumn:
    if kind == "boolean" and column.kind in ("category", "text"):
        return FoundColumn(kind, {"true": None, "false": None})
    return FoundColumn(kind)


def policy_columns(sample: Sniffed, facts: Facts) -> dict[str, FoundColumn]:
    return {name: c for name, c in table_columns(sample, facts).items() if name != facts.unit_column}


def _misfit(fact: str, name: str, column: FoundColumn, kinds: str) -> InvalidInput:
    return InvalidInput(
        f"column {name!r} is of kind {column.kind or 'unknown'}, and only a {kinds} can have {fact}. Name "
        "another column, or set the kind with --kind."
    )


def with_facts(name: str, column: FoundColumn, facts: Facts, *, policy: bool = False) -> dict[str, object]:
    settings: dict[str, object] = {"kind": column.kind or None}
    if column.kind in BOUNDED:
        settings["lower"], settings["upper"] = facts.bounds.get(name, (None, None))
    if column.kind == "category":
        settings["values"] = facts.values.get(name)
    settings |= column.settings
    if column.formats:
        settings["format"] = None
    if column.words and name in facts.targets and not policy:  # so that predictions use the same words
        settings["true"], settings["false"] = ([word] for word in column.words)
    if not policy and name not in facts.targets and column.kind != "text" and facts.missing != "refuse":
        settings["missing"] = facts.missing
    if (
        column.kind in ("number", "integer")
        and not policy
        and name not in facts.targets
        and facts.model == "mlp"
    ):
        settings["bins"] = _BINS
    if name == facts.time and not policy:
        settings["bins"] = _TIME_BINS
    values = {key: value for key, value in settings.items() if value is not None}
    if values.get("lower") is None:
        values.pop("bins", None)  # bins need bounds, which are not filled in yet
    if column.kind:
        Column.from_data(values, f"[{column_key(name)}]")
    return settings


_HEAD = """\
# A private training run on {table}.
#
# Everything here is public. Names, kinds and formats were proposed from {read}:
# they become public with this file, so check them. Replace every "FILL IN" by what is known WITHOUT the
# data. Never take a bound or a list of values from the data: a column's maximum is one person's value.
# A value outside its bounds is clipped; one that is not listed counts as "other".
# missing = "indicator" adds a feature for missing cells, "refuse" makes them an error.
"""
PROMISE = {
    "epsilon": "the total privacy budget: 1 is strong, above 10 promises little",
    "delta": "the failure probability of the guarantee: at most a tenth of 1 / records",
    "unit": 'what one row is, such as "patient" or "visit"; one of them is protected',
    "adjacency": '"add-remove" hides whether a row is there, "replace-one" what it says',
    "records": "approximate number of training rows, publicly known",
}
"""The keys of ``[privacy]`` that have to be stated, and what each means."""
_BLANK_COLUMN = {
    "lower": "the lowest possible value, known without the data",
    "upper": "the highest possible value",
    "values": '["a", "b"]: all possible values, known without the data; if too many, buckets = 32 instead',
    "true": '["yes", "y"]: the words that mean true',
    "false": "the words that mean false",
}
_ROWS_PER_USER = 2  # 1 to 8 give the same AUC within 0.005, on synthetic people with 8 rows on average
_ROWS_COMMENT = "rows of each person read per step; more rows take longer"
OF_PEOPLE = {
    "unit": 'what a person is, such as "patient"; one of them, with all rows, is protected',
    "adjacency": '"add-remove" hides whether a person is there, "replace-one" the content of all rows',
    "records": "approximate number of people in training, publicly known",
}
_KIND = '"number", "integer", "category", "boolean", "date", "datetime" or "text"; not clear from the rows'
_TARGET = "the column to predict; delete missing from its section below"
_TARGET_KIND = {
    "number": "predicted as a number",
    "integer": 'predicted as a number; for classes, make it a "category" with values',
}
_MOST_CODES = 12
_CLIPPING = "maximum norm of one row's gradient"
_BINS = 16  # of equal width; on Adult, AUC is 0.909 instead of 0.891 at epsilon 1, on validation records
_TIME_BINS = 20  # 10 to 40 give the same concordance within 0.01 on three tables
_TIME_COMMENT = "number of time bins of equal width; or inner edges, [365, 730]"
_SURVIVAL_KIND = {
    "time": "observation time; later events are censored at upper",
    "event": "true if the event happened then, false if censored",
}
_BINS_COMMENT = "additional binned features; or inner edges, [20, 40, 60]"
_TRAINING = """\
[optimizer]
name = "adam"
learning_rate = 0.01

[training]
batch_size = "auto"  # a twentieth of the records, but at least 256; or a number
steps = 300  # more steps need more noise in each; or epochs
"""


def run_text(table: Path, sample: Sniffed, facts: Facts) -> str:
    columns = table_columns(sample, facts)
    types = "" if sample.dialect else "its types and "
    parts = [
        _HEAD.format(table=table.name, read=f"{types}the first {SAMPLE_ROWS:,} rows"),
        _data(table, facts),
    ]
    if sample.dialect:
        parts.append("# How the file is written.\n" + table_section(sample.dialect))
    parts += _sections(sample, columns, facts)
    parts.append(_model(facts.model) if facts.public_model is None else public_model_section(facts))
    promise = PROMISE | (OF_PEOPLE if facts.user is not None else {})
    privacy = [setting(key, getattr(facts, key), comment) for key, comment in promise.items()]
    if facts.model != "mlp":  # Tacit chooses the training of other models from public figures
        return "\n".join([*parts, written("privacy", privacy)])
    privacy.append(setting("clipping_norm", 1.0, _CLIPPING))
    return "\n".join([*parts, written("privacy", privacy), _TRAINING])


def written(section: str, settings: Sequence[str]) -> str:
    """Return a section of a run file in TOML."""
    return "\n".join([f"[{section}]", *settings]) + "\n"


def policy_text(sample: Sniffed, facts: Facts) -> str:
    table = [table_section(sample.dialect)] if sample.dialect else []
    return policy_template(
        [*table, *_sections(sample, policy_columns(sample, facts), facts, policy=True)],
        unit=facts.unit,
        unit_column=facts.unit_column,
        largest_table=facts.largest_table,
        adjacency=facts.adjacency,
        epsilon=facts.epsilon,
        delta=facts.delta,
        note=facts.note,
    )


def _data(table: Path, facts: Facts) -> str:
    tested = (
        setting("test_fraction", facts.test_fraction, "fraction of rows for testing")
        if facts.test_table is None
        else setting("test_table", facts.test_table, "the test table")
    )
    comment = {0: _TARGET, 1: "the column to predict"}.get(len(facts.targets), "the columns to predict")
    lines = [
        setting("table", table.as_posix(), "relative to the folder where you run tacit"),
        setting("target", facts.target, comment),
        tested,
    ]
    if facts.time is not None:
        lines[1:2] = [
            setting("time", facts.time, "a survival model: the observation time"),
            setting("event", facts.event, "whether the event then happened"),
        ]
    if facts.text is not None:
        lines.insert(1, setting("text", facts.text, "the column that the public model reads"))
    if facts.user is not None:
        lines.append(setting("user", facts.user, "the column that identifies the person of each row"))
        lines.append(setting("rows_per_user", facts.rows_per_user or _ROWS_PER_USER, _ROWS_COMMENT))
    return written("data", lines)


def _sections(
    sample: Sniffed, columns: Mapping[str, FoundColumn], facts: Facts, *, policy: bool = False
) -> list[str]:
    sections = []
    for name, column in columns.items():
        settings = with_facts(name, column, facts, policy=policy)
        comments = {key: words for key, words in _BLANK_COLUMN.items() if settings.get(key, "") is None}
        if not column.kind:
            comments["kind"] = _KIND
        elif column.doubt:
            comments["kind"] = f"CHECK: {column.doubt}"
        elif name in facts.targets and not policy:
            comments["kind"] = _target_kind(name, column, facts)
        elif column.kind == "text":
            comments["kind"] = "a name or an identifier: never a feature"
        if "bins" in settings:
            comments["bins"] = _TIME_COMMENT if name == facts.time else _BINS_COMMENT
        if column.kind == "category" and "missing_values" in settings:
            comments["missing_values"] = "these count as missing; remove any that are values"
        bounds = (settings.get("lower"), settings.get("upper"))
        if (to := usual_of({name: column}).get(name)) and bounds in ((None, None), (to.lower, to.upper)):
            comments["lower"] = f"usual for this name: {to}; give the possible range, known without the data"
        if not policy and name not in facts.targets and (codes := _codes_of(column, settings)):
            comments.setdefault("kind", f"no order? Then values = {codes} instead of lower, upper and bins")
        if column.formats:
            comments["format"] = " or ".join(column.formats) + ": the first rows fit each of them"
        if policy and "values" in comments:
            comments["values"] = '["a", "b"]: values for GROUP BY; delete the line if they are not public'
        sections.append(column_section(name, settings, comments))
    unused = [f"# {quoted(name)} is left out." for name in facts.left_out]
    unused += [f"# Column {at} has no name, and is not used." for at in sample.unnamed]
    return [*sections, "\n".join(unused) + "\n"] if unused else sections


def _target_kind(name: str, column: FoundColumn, facts: Facts) -> str:
    if name in (facts.time, facts.event):
        return _SURVIVAL_KIND["time" if name == facts.time else "event"]
    usual = "a label" if len(facts.targets) > 1 else "the classes are its values"
    return _TARGET_KIND.get(column.kind, usual)


def _codes_of(column: FoundColumn, settings: Mapping[str, object]) -> list[int]:
    """Return all numbers between the stated bounds of an integer, if they are few enough to be codes."""
    lower, upper = settings.get("lower"), settings.get("upper")
    if column.kind != "integer" or not isinstance(lower, int) or not isinstance(upper, int):
        return []
    return list(range(lower, upper + 1)) if upper - lower < _MOST_CODES else []


def _model(name: str | None) -> str:
    comment = 'or "linear", "additive" (with bins for numbers), "mlp" (a network); auto chooses one'
    lines = [setting("name", name or "auto", comment)]
    if name == "mlp":
        lines.append(setting("hidden", [64], "units of the hidden layer"))
    return written("model", lines)


def public_model_section(facts: Facts, size: tuple[int, int] | None = None) -> str:
    """Return ``[model]`` for a public model; Tacit chooses its training from public facts."""
    path = Path(str(facts.public_model))
    kind = "huggingface" if path.is_dir() else "encoder"
    lines = [setting(kind, path.as_posix(), "a public model; relative to the folder where you run tacit")]
    if facts.architecture is not None:
        lines.append(setting("architecture", facts.architecture, "the network of these weights"))
        side = usual_size(*size) if size is not None else 224
        lines.append(setting("image_size", side, "images are resized to this side length, in pixels"))
    lines.append(
        setting("tune", "auto", 'or "head", "lora", "full"; auto chooses the one expected to score best')
    )
    return written("model", lines)


_BOUNDS = "the lowest and the highest possible value, such as 0:120"
_CODES = "; for codes without an order, all possible ones, such as 1,2,3"
_DAYS = "the first and the last possible day, such as 2015-01-01:2025-12-31"
_PERSON_COLUMN = (
    "does a person have several rows? Name the column that identifies the person of each row, else "
    "none. Enter: {why}"
)
_PROMISE = {
    "unit": "what one row is, such as patient or visit; one of them is protected",
    "largest_table": "maximum rows that any version of the table will have, a public number",
    "adjacency": (
        "what is hidden: add-remove (usual), whether a {unit} is in the data; replace-one, its content"
    ),
    "records": "approximate number of {rows} in the table, publicly known; {part:g} of them train",
    "epsilon": "the total privacy budget: 1 is strong, 3 is usual, above 10 promises little",
    "delta": "the failure probability of the guarantee: at most a tenth of 1 / records",
    "note": "who approved this budget, when, why and until when; printed in every certificate",
}
_PERSON = "what a person is called, such as patient; one of them, with all rows, is protected"
_OF_RUN = ("unit", "adjacency", "records", "epsilon", "delta")
_OF_POLICY = ("unit", "largest_table", "adjacency", "epsilon", "delta", "note")
_COUNTS = ("records", "largest_table")


@dataclass(frozen=True)
class Question:
    """One question of the wizard.

    Attributes:
        key: the key of the fact, as in the file.
        about: the meaning of the fact, in one line.
        default: the answer for Enter; empty if Enter leaves the fact to be filled in.
        problem: why the last answer was refused; empty at first.
    """

    key: str
    about: str
    default: str = ""
    problem: str = ""


def ask_facts(
    sample: Sniffed, facts: Facts, ask: Callable[[Question], str], *, policy: bool = False
) -> Facts:
    wizard = _Wizard(sample, facts, ask)
    columns = policy_columns if policy else table_columns
    try:
        wizard.kinds()
        if not policy:
            wizard.target()
        wizard.person_column("unit_column" if policy else "user")
        wizard.usual(columns(sample, wizard.facts))
        for name in columns(sample, wizard.facts):
            wizard.column(name, policy=policy)
        for key in _OF_POLICY if policy else _OF_RUN:
            wizard.promise(key)
    except EOFError:
        pass  # the user leaves the rest to be filled in
    return wizard.facts


class _Wizard:
    """A dialogue that collects facts, and repeats a question after an invalid answer, with the reason."""

    def __init__(self, sample: Sniffed, facts: Facts, ask: Callable[[Question], str]) -> None:
        self.sample, self.facts, self._ask = sample, facts, ask

    def _take(self, question: Question, read: Callable[[str], Facts]) -> None:
        while answer := self._ask(question).strip() or question.default:
            try:
                facts = read(answer)
                table_columns(self.sample, facts)
            except TacitError as problem:
                question = replace(question, problem=str(problem))
            else:
                self.facts = facts
                return

    def _columns(self) -> dict[str, FoundColumn]:
        return table_columns(self.sample, self.facts)

    def kinds(self) -> None:
        question = Question(
            "kinds",
            (
                "is a kind wrong? Give NAME=KIND, several with commas; columns of text are not used. Enter: "
                "all are right"
            ),
        )

        def read(answer: str) -> Facts:
            kinds = by_column("--kind", values_from_text(answer), self.sample.columns)
            return replace(self.facts, kinds={**self.facts.kinds, **kinds})

        self._take(question, read)

    def target(self) -> None:
        if not self.facts.targets:
            names = ", ".join(name for name, column in self._columns().items() if column.kind != "text")
            self._take(
                Question("target", f"the column to predict: {names}"),
                lambda answer: replace(self.facts, target=check_column("target", answer, self._columns())),
            )

    def person_column(self, key: str) -> None:
        if getattr(self.facts, key) is not None:
            return
        names = [name for name in self._columns() if is_identifier(name)]
        likely = next(filter(self._identifies_people, names), NO_COLUMN)
        why = "no person has several rows" + f". By the names it may be {' or '.join(names)}" * bool(names)
        if likely != NO_COLUMN:
            why = f"{likely}, by its name and its repeated values"

        def read(answer: str) -> Facts:
            column = None if (key, answer) == ("user", NO_COLUMN) else answer
            return checked_promise(replace(self.facts, **{key: column}), self.sample)  # type: ignore[arg-type]

        self._take(Question(key, _PERSON_COLUMN.format(why=why), likely), read)

    def _identifies_people(self, name: str) -> bool:
        column = self._columns()[name]
        return bool(person_in(name)) and (column.kind, column.doubt) == ("text", REPEATS)

    def usual(self, columns: Mapping[str, FoundColumn]) -> None:
        offered = {name: to for name, to in usual_of(columns).items() if name not in self.facts.bounds}
        if not offered:
            return

        def read(answer: str) -> Facts:
            wrong = {"all": (), NO_COLUMN: tuple(offered)}
            other = wrong[answer] if answer in wrong else values_from_text(answer)
            for name in other:
                check_column("bounds", name, offered)
            bounds = {name: (to.lower, to.upper) for name, to in offered.items() if name not in other}
            return replace(self.facts, bounds={**self.facts.bounds, **bounds})

        bounds_text = ", ".join(f"{name} {to}" for name, to in offered.items())
        about = (
            f"usual bounds for these names: {bounds_text}. Name those that are wrong or too wide. Enter: "
            "all fit"
        )
        self._take(Question("bounds", about, "all"), read)

    def column(self, name: str, *, policy: bool) -> None:
        """Ask for a column's kind and format if the first rows leave them open, then its bounds or values."""
        key = f"columns.{name}"

        def ask(fact: str, key: str, about: str, read: Callable[[str], object]) -> None:
            self._take(Question(key, about), lambda answer: self._with(fact, name, read(answer)))

        if not self._columns()[name].kind:
            about = f"its kind, which the rows do not show: {', '.join(KINDS)}"
            ask("kinds", key, about, lambda answer: check_in("kind", answer, KINDS))
        column = self._columns()[name]
        if column.formats:
            about = f"{' or '.join(column.formats)}: the first rows fit each of them"
            ask("formats", f"{key}.format", about, lambda answer: check_in("format", answer, column.formats))
        if column.kind in BOUNDED and name not in self.facts.bounds:
            about = _BOUNDS if column.kind in ("number", "integer") else _DAYS
            about += _CODES if column.kind == "integer" else ""
            self._take(
                Question(key, f"{column.kind}: {about}"),
                lambda answer: self._with_range(name, column.kind, answer),
            )
        if column.kind == "category" and name not in self.facts.values:
            about = "the values for GROUP BY" if policy else "its values"
            about = "the classes" if name in self.facts.targets else about
            about = f"category: {about}, all that are possible, such as f,m"
            ask("values", key, about, values_from_text)

    def _with(self, fact: str, name: str, value: object) -> Facts:
        changed: dict[str, Any] = {fact: {**getattr(self.facts, fact), name: value}}
        return replace(self.facts, **changed)

    def _with_range(self, name: str, kind: str, answer: str) -> Facts:
        """Return the facts with a column's bounds; codes such as 1,2,3 turn an integer into a category."""
        if kind != "integer" or ":" in answer or "," not in answer:
            form = {**self.sample.dialect, **self._columns()[name].settings}
            grouped = bool(form.get("thousands")) or form.get("decimal") == ","
            return self._with("bounds", name, bounds_from_text(kind, answer, grouped=grouped))
        codes = values_from_text(answer)
        if not all(re.fullmatch("-?[0-9]+", code) for code in codes):
            raise InvalidInput(f"codes must be whole numbers, such as 1,2,3; got {answer!r}.")
        kinds = {**self.facts.kinds, name: "category"}
        return replace(self.facts, kinds=kinds, values={**self.facts.values, name: codes})

    def promise(self, key: str) -> None:
        """Ask for one fact of the guarantee; the default follows from public facts stated so far."""
        facts = self.facts
        if getattr(facts, key) is not None:
            return
        default = ""
        about, most = _PROMISE[key], facts.records or facts.largest_table
        person_column = facts.user or (facts.unit_column if facts.unit_column != NO_COLUMN else None)
        if key == "unit" and person_column is not None:
            about, default = _PERSON, person_in(person_column)
        if key == "delta" and most is not None:
            default = f"{suggested_delta(most):g}"
            about += f". Enter: {default}, below 1 / {most:,}"
        part = 1.0 if facts.test_table else 1.0 - facts.test_fraction
        rows = "rows" if facts.user is None else "people"
        about = about.format(unit=facts.unit or "row", rows=rows, part=part)

        def read(answer: str) -> Facts:
            value = _value(key, answer)
            if key == "records" and isinstance(value, int):
                value = round(part * value)
            return checked_promise(replace(facts, **{key: value}), self.sample)

        self._take(Question(key, about, default), read)


def _value(key: str, answer: str) -> Any:
    if key not in ("epsilon", "delta", *_COUNTS):
        return answer
    if key in _COUNTS:
        refuse_two_meanings(key, answer)
        if re.fullmatch(r"[0-9]{1,3}(,[0-9]{3})+", answer):
            answer = answer.replace(",", "")
    try:
        number = float(answer)
    except ValueError:
        raise InvalidInput(f"{key} must be a number; got {answer!r}.") from None
    return int(number) if key in _COUNTS and number.is_integer() else number
