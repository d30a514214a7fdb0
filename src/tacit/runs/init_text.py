"""The text of a new run file or policy: the table's columns, the stated facts, and blanks to fill in.

**Guarantee**

* The file gets from the table only what :func:`tacit.columns.sniffing.sniff` proposes: names, and for each
  column one of a fixed list of kinds and formats.  Bounds, values, the number of records and the promise are
  those that the user states, or else ``FILL IN``.  The usual bounds in a comment follow from the column's
  name and kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tacit.columns.column import Column
from tacit.columns.sections import column_key, column_section, quoted, setting, table_section
from tacit.columns.sniffing import SAMPLE_ROWS, FoundColumn, Sniffed
from tacit.ledger.policy import policy_template
from tacit.pretrained.finding import usual_size
from tacit.runs.init_file import BOUNDED, Facts, policy_columns, table_columns, usual_of


def with_facts(name: str, column: FoundColumn, facts: Facts, *, policy: bool = False) -> dict[str, object]:
    """Return the settings of ``[columns.NAME]``, with None for those that are to be filled in."""
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
# data. Never take a bound or a list of values from the data: the largest value of a column belongs to one
# person. A value outside its bounds is moved to the nearest bound; one that is not listed counts as "other".
# missing = "indicator" makes a missing cell a feature of its own, "refuse" makes it an error.
"""
PROMISE = {
    "epsilon": "the most that may be revealed in total: 1 is strong, above 10 promises little",
    "delta": "the probability that the promise fails: below 1 / records, such as 1e-6",
    "unit": 'what one row is, such as "patient" or "visit"; one of them is protected',
    "adjacency": '"add-remove" hides whether a row is there, "replace-one" what it says',
    "records": "about how many rows train, a public number",
}
"""The keys of ``[privacy]`` that have to be stated, and what each means."""
_BLANK_COLUMN = {
    "lower": "the lowest possible value, known without the data",
    "upper": "the highest possible value",
    "values": '["a", "b"]: all possible values, known without the data; if too many, buckets = 32 instead',
    "true": '["yes", "y"]: the words that mean true',
    "false": "the words that mean false",
}
_ROWS_PER_USER = 2  # 1 to 8 give the same AUC within 0.005, on made-up people with 8 rows on average
_ROWS_COMMENT = "a step reads this many rows of each person; more rows take longer"
_OF_PEOPLE = {
    "unit": 'what a person is, such as "patient"; one of them, with all rows, is protected',
    "adjacency": '"add-remove" hides whether a person is there, "replace-one" all that the rows say',
    "records": "about how many people train, a public number",
}
_KIND = '"number", "integer", "category", "boolean", "date", "datetime" or "text"; the rows do not show it'
_TARGET = "the column to predict; delete missing from its section below"
_TARGET_KIND = {
    "number": "predicted as a number",
    "integer": 'predicted as a number; for classes, make it a "category" with values',
}
_MOST_CODES = 12
_CLIPPING = "the largest norm of one row's gradient"
_BINS = 16  # of equal width; on Adult, AUC is 0.909 instead of 0.891 at epsilon 1, on validation records
_BINS_COMMENT = "features in addition to the number; or inner edges, [20, 40, 60]"
_TRAINING = """\
[optimizer]
name = "adam"
learning_rate = 0.01

[training]
batch_size = "auto"  # a twentieth of the records, but at least 256; or a number
steps = 300  # more steps need more noise in each; or epochs
"""


def run_text(table: Path, sample: Sniffed, facts: Facts) -> str:
    """Return a whole run file in TOML, with ``FILL IN`` for facts that were not stated."""
    columns = table_columns(sample, facts)
    parts = [_HEAD.format(table=table.name, read=_sample_text(sample)), _data(table, facts)]
    if sample.dialect:
        parts.append("# How the file is written.\n" + table_section(sample.dialect))
    parts += _sections(sample, columns, facts)
    parts.append(_model(facts.model) if facts.public_model is None else public_model_section(facts))
    promise = PROMISE | (_OF_PEOPLE if facts.user is not None else {})
    privacy = [setting(key, getattr(facts, key), comment) for key, comment in promise.items()]
    if facts.model != "mlp":  # Tacit chooses the training of other models from public figures
        return "\n".join([*parts, "\n".join(["[privacy]", *privacy]) + "\n"])
    parts.append("\n".join(["[privacy]", *privacy, setting("clipping_norm", 1.0, _CLIPPING)]) + "\n")
    return "\n".join([*parts, _TRAINING])


def policy_text(sample: Sniffed, facts: Facts) -> str:
    """Return a whole policy in TOML, with ``FILL IN`` for facts that were not stated."""
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


def _sample_text(sample: Sniffed) -> str:
    return f"{'' if sample.dialect else 'its types and '}the first {SAMPLE_ROWS:,} rows"


def _data(table: Path, facts: Facts) -> str:
    tested = (
        setting("test_fraction", facts.test_fraction, "this share of the rows tests the model")
        if facts.test_table is None
        else setting("test_table", facts.test_table, "its rows test the model")
    )
    comment = {0: _TARGET, 1: "the column to predict"}.get(len(facts.targets), "the columns to predict")
    lines = [
        setting("table", table.as_posix(), "relative to the folder where you run tacit"),
        setting("target", facts.target, comment),
        tested,
    ]
    if facts.text is not None:
        lines.insert(1, setting("text", facts.text, "the column that the public model reads"))
    if facts.user is not None:
        lines.append(setting("user", facts.user, "the column of the person of each row"))
        lines.append(setting("rows_per_user", facts.rows_per_user or _ROWS_PER_USER, _ROWS_COMMENT))
    return "\n".join(["[data]", *lines]) + "\n"


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
            usual = "a label" if len(facts.targets) > 1 else "the classes are its values"
            comments["kind"] = _TARGET_KIND.get(column.kind, usual)
        elif column.kind == "text":
            comments["kind"] = "a name or an identifier: never a feature"
        if "bins" in settings:
            comments["bins"] = _BINS_COMMENT
        if column.kind == "category" and "missing_values" in settings:
            comments["missing_values"] = "these count as missing; remove those that are values"
        bounds = (settings.get("lower"), settings.get("upper"))
        if (to := usual_of({name: column}).get(name)) and bounds in ((None, None), (to.lower, to.upper)):
            comments["lower"] = f"usual for this name: {to}; state what is possible, known without the data"
        if not policy and name not in facts.targets and (codes := _codes_of(column, settings)):
            comments.setdefault("kind", f"no order? Then values = {codes} instead of lower, upper and bins")
        if column.formats:
            comments["format"] = " or ".join(column.formats) + ": the first rows fit each of them"
        if policy and "values" in comments:
            comments["values"] = (
                '["a", "b"]: values that may form a group; delete the line if they are not public'
            )
        sections.append(column_section(name, settings, comments))
    unused = [f"# {quoted(name)} is left out." for name in facts.left_out]
    unused += [f"# Column {at} has no name, and is not used." for at in sample.unnamed]
    return [*sections, "\n".join(unused) + "\n"] if unused else sections


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
    return "\n".join(["[model]", *lines]) + "\n"


def public_model_section(facts: Facts, size: tuple[int, int] | None = None) -> str:
    """Return ``[model]`` for a public model; Tacit chooses its training from public figures."""
    path = Path(str(facts.public_model))
    kind = "huggingface" if path.is_dir() else "encoder"
    lines = [setting(kind, path.as_posix(), "a public model; relative to the folder where you run tacit")]
    if facts.architecture is not None:
        lines.append(setting("architecture", facts.architecture, "the network of these weights"))
        side = usual_size(*size) if size is not None else 224
        lines.append(setting("image_size", side, "pictures are enlarged to this side, in pixels"))
    lines.append(setting("tune", "auto", 'or "head", "lora", "full"; auto takes the one expected to do best'))
    return "\n".join(["[model]", *lines]) + "\n"
