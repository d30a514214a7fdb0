"""``tacit init``: write a run file for a table or a folder of images, or the policy of a table."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.terminal import (
    Adjacency,
    AsJson,
    Delta,
    Epsilon,
    NoInput,
    argument,
    can_ask,
    console,
    given_options,
    messages,
    option,
    plain_table,
    print_json,
    show_line,
)
from tacit.columns.sections import BLANK, find_blanks
from tacit.columns.sniffing import Sniffed, sniff
from tacit.columns.tables import is_json
from tacit.errors import InvalidInput, check_in, check_probability
from tacit.pretrained.finding import TEXT, look_at
from tacit.rounding import counted
from tacit.runs.init import (
    Facts,
    Question,
    ask_facts,
    checked_promise,
    policy_text,
    run_text,
    stated_facts,
    table_columns,
    usual_of,
)
from tacit.runs.kinds.pictures import LARGEST, LARGEST_OF_PUBLIC, find_pictures, pictures_text
from tacit.runs.kinds.texts import language_text

_ByColumn = list[str] | None


_OF_TABLES = (
    "policy", "target", "bounds", "values", "kind", "format", "leave_out", "text", "test_table",
    "unit_column", "note", "largest_table", "user", "rows_per_user", "missing",
    "usual_bounds", "time", "event",
)  # fmt: skip


def command(
    context: typer.Context,
    table: Annotated[
        Path, argument("A .csv, .tsv (also .gz), .parquet or .jsonl file, or a folder of images.")
    ],
    out: Annotated[Path | None, option("The file to write; default: TABLE.toml next to the table.")] = None,
    policy: Annotated[
        bool, typer.Option("--policy", help="Write a policy for a ledger instead of a run file.")
    ] = False,
    target: Annotated[
        list[str] | None, option("The column to predict; repeat it for several labels, each true or false.")
    ] = None,
    time: Annotated[str | None, option("For a survival model: the column with the observation time.")] = None,
    event: Annotated[str | None, option("And the column with whether the event then happened.")] = None,
    unit: Annotated[str | None, option("What one row is, such as patient or visit.")] = None,
    adjacency: Adjacency = None,
    records: Annotated[int | None, option("Approximate number of training rows, publicly known.")] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    bounds: Annotated[
        _ByColumn,
        option(
            "Bounds of a number or a date; may be repeated. x*=-4:4 is for all columns that begin with x.",
            metavar="NAME=LOWER:UPPER",
        ),
    ] = None,
    usual_bounds: Annotated[
        bool,
        typer.Option(
            "--usual-bounds", help="Use bounds usual for column names, such as age 0:120; check them."
        ),
    ] = False,
    values: Annotated[
        _ByColumn, option("Values of a category; may be repeated.", metavar="NAME=A,B,...")
    ] = None,
    kind: Annotated[
        _ByColumn,
        option("Kind of a column, instead of the proposed one; may be repeated.", metavar="NAME=KIND"),
    ] = None,
    format: Annotated[  # noqa: A002 - the name of the option
        _ByColumn,
        option("Format of dates, such as admitted=%d.%m.%Y.", metavar="NAME=FORMAT"),
    ] = None,
    leave_out: Annotated[
        list[str] | None, option("Do not use this column; may be repeated.", metavar="NAME")
    ] = None,
    missing: Annotated[
        str, typer.Option(help="Treat a missing cell as a feature (indicator) or an error (refuse).")
    ] = "indicator",
    test_fraction: Annotated[float, typer.Option(help="Fraction of rows for testing.")] = 0.2,
    test_table: Annotated[str | None, option("Or: a separate table for testing.")] = None,
    model: Annotated[
        str | None,
        option(
            "auto, linear, additive or mlp; or the folder or file of a public model.", metavar="NAME|PATH"
        ),
    ] = None,
    text: Annotated[
        str | None, option("The text column that the public model reads.", metavar="NAME")
    ] = None,
    architecture: Annotated[
        str | None, option("Architecture of a weights file, such as mobilenet_v2.", metavar="NAME")
    ] = None,
    user: Annotated[
        str | None,
        option("The column that identifies people with several rows.", metavar="NAME"),
    ] = None,
    rows_per_user: Annotated[int | None, option("Rows of each person read per step; default: 2.")] = None,
    unit_column: Annotated[
        str | None, option("For a policy: the column that identifies people, or none.")
    ] = None,
    largest_table: Annotated[
        int | None, option("For a policy: maximum rows the table will ever have.")
    ] = None,
    note: Annotated[str | None, option("For a policy: who approved it, and why.")] = None,
    no_input: NoInput = False,
    as_json: AsJson = False,
) -> int:
    """Write a run file for a table, with FILL IN for every public fact that is not stated.

    Names, kinds and formats of the columns are proposed from the first 1,000 rows, and become public with the
    run file: check them. No value of a cell is written. Bounds, values and the privacy promise must be stated
    from what is known without the data; in a terminal, you are asked for them.

    A .jsonl file is for a language model: the names of the fields in its first line, which become public,
    show whether it has documents, prompts with completions, chats, or pairs of answers.

    For a folder with one folder of images for each class, the run file trains a linear model on fixed
    features, usually the best choice under noise. The names of the classes, and the size and colours of one
    image, become public with the file.

    Exit codes: 0 written, 1 refused by a privacy rule, 2 bad usage or input, 130 interrupted.

    Example:  tacit init visits.csv --target readmitted --unit visit --bounds age=0:120 --values sex=f,m
    """
    path = _free(out or table.with_name(_stem(table) + ("-policy.toml" if policy else ".toml")))
    own, public = _model(model)
    facts = Facts(
        target=target[0] if target is not None and len(target) == 1 else target,
        time=time,
        event=event,
        test_fraction=check_probability("test_fraction", test_fraction),
        test_table=test_table,
        user=user,
        rows_per_user=rows_per_user,
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        adjacency=adjacency,
        records=records,
        unit_column=unit_column,
        largest_table=largest_table,
        note=note,
        left_out=tuple(leave_out or ()),
        missing=check_in("missing", missing.lower(), ("indicator", "refuse")),
        text=text,
        architecture=architecture,
        model=own,
        public_model=public,
    )
    if target is None and time is None and not policy and is_json(table):
        return _init_language(table, path, facts, given_options(context, *_OF_TABLES), as_json)
    reads = None if public is None else look_at(Path(public), "--model", {"architecture": architecture}).kind
    if reads is not None and (reads == TEXT) == table.is_dir():
        wants, got = ("text", "a folder of images") if reads == TEXT else ("images", "a table")
        raise InvalidInput(f"--model {public} is for {wants}, but {table} is {got}. Choose another model.")
    if table.is_dir():
        return _init_pictures(table, path, facts, given_options(context, *_OF_TABLES), as_json)
    if policy and (user is not None or rows_per_user is not None):
        raise InvalidInput(
            "--user and --rows-per-user are only for run files. For a policy, use --unit-column, and set "
            "rows_per_unit in the policy file."
        )
    sample = sniff(table)
    if public is not None and text is None:
        raise InvalidInput(
            f"--model {public} reads a text column. Set --text to one of {', '.join(sample.columns)}."
        )
    facts = stated_facts(
        sample,
        facts,
        kinds=kind or (),
        formats=format or (),
        bounds=bounds or (),
        values=values or (),
        usual=usual_bounds,
    )
    asks = can_ask(no_input=no_input, as_json=as_json)
    if asks:
        facts = _dialogue(table, sample, facts, policy=policy)
    text = policy_text(sample, facts) if policy else run_text(table, sample, facts)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    if as_json:
        print_json(_as_data(path, sample, facts, text))
    else:
        if not asks:
            _show_columns(table, sample, facts)
            _show_usual(sample, facts)
        _show_written(path, text, policy=policy)
    return 0


def _model(name: str | None) -> tuple[str | None, str | None]:
    """Return (network of Tacit, public model), each as ``--model`` names it or else None."""
    if name is None or not Path(name).exists():
        names = ("auto", "linear", "additive", "mlp")
        if name is not None and name.lower() not in names:
            raise InvalidInput(
                f"--model {name} is no file, folder or known model. Name the folder or file of a public "
                f"model, or one of {', '.join(names)}."
            )
        return None if name is None else name.lower(), None
    return None, name


def _init_pictures(folder: Path, path: Path, facts: Facts, options: list[str], as_json: bool) -> int:
    if facts.model is not None:
        options = [*options, "--model"]
    if options:
        raise InvalidInput(
            f"{folder} is a folder of images: options for tables do not apply ({', '.join(options)}). "
            "Remove them, or give a table."
        )
    pictures = find_pictures(folder, largest=LARGEST if facts.public_model is None else LARGEST_OF_PUBLIC)
    if pictures.ready and facts.test_fraction != Facts.test_fraction:
        raise InvalidInput(f"{folder} already has test images. Remove --test-fraction.")
    text = pictures_text(pictures, checked_promise(facts, Sniffed(columns={})))
    height, width = pictures.size
    found = {"classes": pictures.classes, "size": pictures.size, "colours": pictures.colours}
    about = (
        f"{folder}: {counted(len(pictures.classes), 'class', 'classes')}, images of {height} by {width} "
        "pixels, "
        f"{'grey' if pictures.colours == 1 else 'in colour'}, as the first one. These facts and the names "
        "of the classes become public with the file that is written: check them."
    )
    return _write_found(path, text, found, about, as_json)


def _init_language(file: Path, path: Path, facts: Facts, options: list[str], as_json: bool) -> int:
    unused = [option for option in options if option not in ("--text", "--user", "--rows-per-user")]
    if unused or facts.model is not None:
        raise InvalidInput(
            f"{file} is for a language model, so options for tables do not apply "
            f"({', '.join(unused or ['--model'])}). Remove them."
        )
    checked_promise(replace(facts, user=None, rows_per_user=None, text=None), Sniffed(columns={}))
    about = "The names of fields were read from the first line. They become public with the file: check them."
    return _write_found(path, language_text(file, facts), {}, about, as_json)


def _write_found(path: Path, text: str, found: dict[str, object], about: str, as_json: bool) -> int:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    if as_json:
        left = [vars(blank) for blank in find_blanks(text)]
        print_json({"file": str(path), **found, "left_to_fill_in": left})
    else:
        console.print(about)
        _show_written(path, text, policy=False)
    return 0


def _stem(table: Path) -> str:
    return Path(table.name.removesuffix(".gz")).stem


def _free(path: Path) -> Path:
    if path.exists():
        raise InvalidInput(f"{path} exists and is never overwritten. Name another file with --out.")
    return path


# --- the dialogue ------------------------------------------------------------------------------------------


def _dialogue(table: Path, sample: Sniffed, facts: Facts, *, policy: bool) -> Facts:
    _show_columns(table, sample, facts)
    console.print(
        "Answer from what is known WITHOUT the data. Never look up a bound or a value in the table: a "
        f"column's maximum is one person's value. Enter accepts the value in brackets, or writes {BLANK}, "
        "to be filled in later. Ctrl-D skips all further questions; Ctrl-C cancels.",
    )
    try:
        return ask_facts(sample, facts, _ask, policy=policy)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Nothing was written.") from None


def _ask(question: Question) -> str:
    if question.problem:
        messages.print(f"  {question.problem}", style="red")
    else:
        console.print()
        show_line(f"{question.key}: {question.about}")
    offered = f" [{question.default}]" if question.default else ""
    return console.input(f"{question.key.rpartition('.')[2]}{offered} > ", markup=False)


# --- what was found and written ----------------------------------------------------------------------------


def _show_columns(table: Path, sample: Sniffed, facts: Facts) -> None:
    columns = table_columns(sample, facts)
    where = f"{'' if sample.dialect else 'the types in the file and '}the first {sample.rows:,} rows"
    show_line(f"{table}: {len(columns)} columns, by {where}")
    if sample.dialect:
        dialect = ", ".join(f"{name} {value!r}" for name, value in sample.dialect.items() if value)
        show_line(dialect)
    view = plain_table("column", "kind", "written as")
    for name, column in columns.items():
        form = [f"{key} {value!r}" for key, value in column.settings.items()]
        form += [" or ".join(column.formats) + "?"] if column.formats else []
        if name in (facts.user, facts.unit_column):
            form.append("identifies the person of each row")
        else:
            form += ["an identifier: not used"] if column.kind == "text" else []
            form += [column.doubt] if column.doubt else []
        view.add_row(name, column.kind or "?", ", ".join(form))
    console.print(view)
    console.print(
        "These names, kinds and formats were read from the table. They become public with the file that is "
        "written: check them."
    )


def _show_usual(sample: Sniffed, facts: Facts) -> None:
    """Show the usual bounds of columns that have no stated bounds; they depend on the names alone."""
    offered = usual_of(table_columns(sample, facts))
    left = [f"{name} {to}" for name, to in offered.items() if name not in facts.bounds]
    if left:
        show_line(
            f"Usual bounds, proposed from the names alone: {', '.join(left)}. If all are right, use "
            "--usual-bounds"
        )


def _show_written(path: Path, text: str, *, policy: bool) -> None:
    blanks = find_blanks(text)
    name = shlex.quote(str(path))
    command = f"tacit ledger open LEDGER --dataset NAME --policy {name}" if policy else f"tacit train {name}"
    console.print()
    if not blanks:
        show_line(f"Wrote {path}. Next: {command}")
        return
    facts = counted(len(blanks), "public fact")
    show_line(f"Wrote {path}. Before {command}, fill in {facts}, never from the data:")
    for blank in blanks:
        show_line(f"  {blank}")


def _as_data(path: Path, sample: Sniffed, facts: Facts, text: str) -> dict[str, object]:
    return {
        "file": str(path),
        "dialect": dict(sample.dialect),
        "columns": {
            name: {"kind": column.kind, **column.settings}
            for name, column in table_columns(sample, facts).items()
        },
        "rows_read": sample.rows,
        "left_to_fill_in": [vars(blank) for blank in find_blanks(text)],
    }
