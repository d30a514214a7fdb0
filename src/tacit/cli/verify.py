"""``tacit verify``: check that the parts of a privacy statement or a certificate agree."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tacit.cli.terminal import AsJson, argument, console, messages, note, option, print_json, say, show_line
from tacit.errors import InvalidInput, MissingExtra, check_in, reason_of
from tacit.integrations.dp_accounting import google_epsilon
from tacit.ledger import Ledger
from tacit.report.certificate import (
    CertificateCheck,
    check_certificate,
    is_certificate,
    make_certificate,
    read_certificate,
)
from tacit.report.checklist import STATEMENTS, ask_statements, statements_text
from tacit.report.document import yaml_text
from tacit.report.registry import fields_missing, registry_record
from tacit.report.verification import (
    OtherVersion,
    Verification,
    against_its_ledger,
    read_statement,
    verify_statement,
)
from tacit.rounding import counted


def command(
    file: Annotated[Path, argument("A statement.json or its run's folder, or a certificate as JSON.")],
    second_opinion: Annotated[
        bool, option("Also ask dp_accounting, if it is installed.", "--second-opinion/--no-second-opinion")
    ] = True,
    ledger: Annotated[str | None, option("The ledger to compare with.")] = None,
    public_key: Annotated[str | None, option("The public key of a certificate's signature.")] = None,
    as_json: AsJson = False,
) -> int:
    """Check a statement or certificate: its epsilon, and that its parts agree.

    For a statement, it recomputes epsilon (also with Google's dp_accounting, if installed), rebuilds the
    statement from its plan, and compares all fields. For a run's folder, it also rebuilds statement.txt and
    the model card. For a certificate, it recomputes every cost, compares every line, and checks the
    signature. With --ledger, it replays the ledger's chain and compares the charges of the certificate or the
    statement's run. Fields that cannot be recomputed are listed as not verified.

    Exit codes: 0 agrees; 1 epsilon too low, contradictions, or written by another version;
    2 cannot be read.

    Example:  tacit verify runs/first/statement.json
    """
    folder = file if file.is_dir() else None
    if folder is not None:
        file = folder / "statement.json"
    try:
        if is_certificate(file):
            return _certificate(file, ledger, public_key, as_json)
        return _statement(file, folder, second_opinion, ledger, public_key, as_json)
    except OtherVersion as problem:
        if as_json:
            words = {"other_version": problem.version, "in_words": [str(problem)]}
            print_json({"verdict": "not verified", "agrees": False, **words})
        else:
            console.print(Text("NOT VERIFIED", "bold red"))
            say(f"\n{problem}")
        return 1


def _statement(
    file: Path,
    folder: Path | None,
    second_opinion: bool,
    ledger: str | None,
    public_key: str | None,
    as_json: bool,
) -> int:
    if public_key is not None:
        raise InvalidInput(f"{file} is not a certificate, so it needs no --public-key. Remove the option.")
    data = read_statement(file)
    hint = ""
    with messages.status("computing epsilon again"):
        try:
            result = verify_statement(data, opinions=[google_epsilon] if second_opinion else ())
        except MissingExtra as problem:
            hint = str(problem)
            result = verify_statement(data)

        # What the ledger was charged, and what the files of the folder say, are further findings.
        problems: list[str] = []
        free = list(result.not_verified)
        if ledger is not None:
            problems += against_its_ledger(data, Ledger.open(ledger))
            if not problems:
                free.remove("ledger")
                result = replace(result, checked=_AS_CHARGED)
        if folder is not None:
            from tacit.runs.learners import compare_texts

            contradictions, not_verified = compare_texts(folder, data)
            problems += contradictions
            free += not_verified
        result = replace(result, contradictions=(*result.contradictions, *problems), not_verified=tuple(free))
    if as_json:
        print_json(result.as_data())
    else:
        _show(result)
        if hint:
            note(hint)
    return 0 if result.agrees else 1


_AS_CHARGED = (
    "Checked: the figures of the statement agree with each other, the ledger's chain is whole, and its "
    "entries pay for the run that the statement describes. NOT checked: that no more was run than was "
    "charged."
)


def _certificate(file: Path, ledger: str | None, public_key: str | None, as_json: bool) -> int:
    data = read_certificate(file)
    with messages.status("computing every cost again"):
        book = None if ledger is None else Ledger.open(ledger)
        result = check_certificate(data, ledger=book, public_key=public_key)
    if as_json:
        print_json(result.as_data())
    else:
        _show(result)
    return 0 if result.agrees else 1


def _show(result: Verification | CertificateCheck) -> None:
    style = "bold green" if result.agrees else "bold red"
    console.print(Text(result.verdict.upper(), style))
    for paragraph in result.in_words():
        console.print()
        say(paragraph)


_FORMATS = ("text", "json", "registry")
_ASKED = Path("statements.toml")  # where answers go if no file is named


def certificate_command(
    ledger: Annotated[str, argument("The ledger: a file, or postgresql+psycopg://...", metavar="LEDGER")],
    dataset: Annotated[str, option("The data set.")],
    run: Annotated[str | None, option("Show only this training run: its id, or its folder.")] = None,
    statements: Annotated[Path | None, option("A TOML file with what the ledger cannot know.")] = None,
    interactive: Annotated[
        bool,
        typer.Option(
            "--interactive",
            help="Ask for missing statements, and add them to --statements (default: statements.toml).",
        ),
    ] = False,
    sign: Annotated[Path | None, option("Sign with this private key.")] = None,
    html: Annotated[Path | None, option("Also write it as a page.")] = None,
    out: Annotated[
        Path | None, option("Write JSON to this file; with --format registry, the record.")
    ] = None,
    format: Annotated[  # noqa: A002 - the name of the option
        str | None,
        typer.Option(
            help="What to print: text; json; or registry, the record for the registry of deployments.",
            show_default="text",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> int:
    """Write a certificate of all releases from a data set, as text, JSON or HTML.

    Every line is graded proved, assumed or not covered; a line without a statement says NOT STATED. The file
    of --statements may state: {statements}.

    Example:  tacit certificate budget.db --dataset visits --out visits.json
    """
    kind = check_in("format", (format or ("json" if as_json else "text")).lower(), _FORMATS)
    if out is not None and kind != "registry" and out.suffix.lower() in (".html", ".htm", ".txt"):
        other = "--html" if out.suffix.lower() != ".txt" else "remove --out, and redirect the text:  >"
        raise InvalidInput(f"--out writes JSON, and {out} has another extension. Use {other} {out}.")
    opened = Ledger.open(ledger)
    texts = {} if statements is None or (interactive and not statements.exists()) else _read(statements)
    if interactive:
        texts = _asked(opened, dataset, statements, texts)
    with messages.status("computing every cost again"):
        certificate = make_certificate(opened, dataset, run=_run_id(run), statements=texts)
    if sign is not None:
        certificate = certificate.signed(sign)
    match kind:
        case "registry":
            output = _record(certificate.data)
        case "json":
            output = certificate.to_json()
        case _:
            output = certificate.to_text()
    if out is not None:
        out.write_text(output if kind == "registry" else certificate.to_json(), encoding="utf-8")
    if html is not None:
        html.write_text(certificate.to_html(), encoding="utf-8")
    typer.echo(output, nl=False)
    if kind == "text":
        for path in filter(None, (out, html)):
            show_line(f"Written: {path}")
    return 0


command.__doc__ = str(command.__doc__).format(statements=", ".join(STATEMENTS))


def _record(data: dict[str, Any]) -> str:
    record = registry_record(data)
    text = f"A record of tier {record['tier']}, a draft until the registry approves it."
    if record["tier"] < 3 and (lacking := fields_missing(record, record["tier"] + 1)):
        text += f" Tier {record['tier'] + 1} needs {', '.join(lacking)}, which are missing or incomplete."
    messages.print(text, soft_wrap=True)
    return yaml_text(record)


def _asked(ledger: Ledger, dataset: str, path: Path | None, statements: dict[str, str]) -> dict[str, str]:
    """Ask for the statements that are missing, add the answers to the file, and return all statements."""
    file = _ASKED if path is None else path
    if path is None and file.exists():
        statements = _read(file)
    messages.print(
        "State what the ledger cannot know. The certificate marks it as assumed. Never look anything up in "
        "the records. Enter leaves a line NOT STATED; Ctrl-D skips all further lines; Ctrl-C cancels."
    )
    unit = ledger.policy(dataset).unit
    try:
        answers = ask_statements(statements, _ask, unit=unit)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Nothing was written.") from None
    new = {key: text for key, text in answers.items() if key not in statements}
    if new:
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        gap = "" if not before or before.endswith("\n") else "\n"
        file.write_text(before + gap + statements_text(new), encoding="utf-8")
        messages.print(f"{counted(len(new), 'statement')} added to {file}.", soft_wrap=True)
    return answers


def _ask(key: str, about: str, problem: str) -> str:
    if problem:
        messages.print(f"  {problem}", style="red", soft_wrap=True)
    else:
        messages.print()
        messages.print(about, soft_wrap=True)
    return messages.input(f"{key} > ")


def _run_id(run: str | None) -> str | None:
    """Return a run's id; for a folder, the id that its statement names."""
    if run is None or not (Path(run) / "statement.json").is_file():
        return run
    charged = read_statement(Path(run) / "statement.json").get("ledger")
    if not isinstance(charged, dict) or not isinstance(charged.get("run"), str):
        raise InvalidInput(
            f"the run in {run} was not charged to a ledger, so no certificate covers it. Remove --run."
        )
    return str(charged["run"])


def _read(path: Path) -> dict[str, str]:
    try:
        texts = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise InvalidInput(
            f"the statements {path} cannot be read: {reason_of(problem)}. Correct the path or the file."
        ) from None
    return {key: value.isoformat() if isinstance(value, date) else value for key, value in texts.items()}
