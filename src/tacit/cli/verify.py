"""``tacit verify``: check that the parts of a privacy statement or a certificate agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from rich.text import Text

from tacit.cli.options import AsJson, argument, option
from tacit.cli.show import console, messages, note, print_json, say
from tacit.errors import InvalidInput, MissingExtra
from tacit.integrations.dp_accounting import google_epsilon
from tacit.report.certificate import (
    CertificateCheck,
    check_certificate,
    is_certificate,
    read_certificate,
)
from tacit.report.schema import OtherVersion
from tacit.report.verification import Verification, against_its_ledger, read_statement, verify_statement


def command(
    file: Annotated[Path, argument("A statement.json or its run's folder, or a certificate as JSON.")],
    second_opinion: Annotated[
        bool, option("Also ask dp_accounting, if it is installed.", "--second-opinion/--no-second-opinion")
    ] = True,
    ledger: Annotated[
        str | None, option("The ledger of the statement or certificate, to replay and compare.")
    ] = None,
    public_key: Annotated[str | None, option("The public key of a certificate's signature.")] = None,
    as_json: AsJson = False,
) -> int:
    """Check that the epsilon of a statement or a certificate is enough, and that its parts agree.

    For a statement, it accounts for the event again, writes the statement again from its plan, compares all
    fields, and also asks Google's dp_accounting, if it is installed. For the folder of a run, it also writes
    statement.txt and the model card again. For a certificate, it accounts for every mechanism again, adds up
    the costs, compares every line, and checks the signature. With --ledger, it replays the ledger's chain and
    compares the charges: those that a certificate lists, or those of a statement's run. It names the fields
    that nothing determines as not verified.

    Exit codes: 0 agrees; 1 claims too little epsilon, contradicts itself, or was written by another version;
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
        raise InvalidInput(f"--public-key is only for a certificate, and {file} is not one. Leave it out.")
    data = read_statement(file)
    with messages.status("pricing the event"):
        result, hint = _verified(data, second_opinion)
        if ledger is not None:
            result = _paid_for(result, data, ledger)
        if folder is not None:
            result = _with_texts(result, data, folder)
    if as_json:
        print_json(result.as_data())
    else:
        _show(result)
        if hint:
            note(hint)
    return 0 if result.agrees else 1


def _paid_for(result: Verification, data: dict[str, object], ledger: str) -> Verification:
    """Add the findings of the comparison with the ledger."""
    from tacit.ledger import Ledger

    problems = against_its_ledger(data, Ledger.open(ledger))
    if problems:
        return replace(result, contradictions=(*result.contradictions, *problems))
    left = tuple(name for name in result.not_verified if name != "ledger")
    return replace(result, checked=_AS_CHARGED, not_verified=left)


def _with_texts(result: Verification, data: dict[str, object], folder: Path) -> Verification:
    """Add the findings of the comparison with the texts in the folder."""
    from tacit.runs.folder_texts import compare_texts

    problems, not_verified = compare_texts(folder, data)
    return replace(
        result,
        contradictions=(*result.contradictions, *problems),
        not_verified=(*result.not_verified, *not_verified),
    )


_AS_CHARGED = (
    "Checked: the figures of the statement agree with each other, the ledger's chain is whole, and its "
    "entries pay for the run that the statement describes. NOT checked: that no more was run than was "
    "charged."
)


def _certificate(file: Path, ledger: str | None, public_key: str | None, as_json: bool) -> int:
    from tacit.ledger import Ledger

    data = read_certificate(file)
    with messages.status("pricing the mechanisms"):
        book = None if ledger is None else Ledger.open(ledger)
        result = check_certificate(data, ledger=book, public_key=public_key)
    if as_json:
        print_json(result.as_data())
    else:
        _show(result)
    return 0 if result.agrees else 1


def _verified(data: dict[str, object], second_opinion: bool) -> tuple[Verification, str]:
    """Return the result, and a hint on what to install for a second opinion."""
    if second_opinion:
        try:
            return verify_statement(data, opinions=[google_epsilon]), ""
        except MissingExtra as problem:
            return verify_statement(data), str(problem)
    return verify_statement(data), ""


def _show(result: Verification | CertificateCheck) -> None:
    style = "bold green" if result.agrees else "bold red"
    console.print(Text(result.verdict.upper(), style))
    for paragraph in result.in_words():
        console.print()
        say(paragraph)
