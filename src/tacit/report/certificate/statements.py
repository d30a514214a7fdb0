"""The statements that only the curator can make: their keys, their contents, and their checks.

The statements of section M are the fields of the registry of deployments
(:mod:`tacit.report.certificate.registry`). If the registry accepts only certain words in a field, the
statement must be one of these words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date

from tacit.errors import InvalidInput

CHOICES = {
    "product_type": (
        "Summary statistics",
        "Machine learning model",
        "Dataset",
        "Synthetic data",
        "Interactive API",
        "SQL queries",
    ),
    "sector": ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance"),
    "data_source": ("Static", "Dynamic"),
}
"""The words that the registry accepts, for each field that is not free text."""

STATEMENTS = {
    "several_ids": (
        "B",
        "Several ids of one {unit}",
        "whether one unit can have several ids, and what you did about it",
    ),
    "versions": ("D", "Versions of the data", "which extracts or dates the budget was used on"),
    "trials": ("G", "Trials", "how many trainings were tried, and whether all were charged"),
    "bounds": ("G", "Bounds and vocabulary", "where bounds, keys and vocabulary come from"),
    "early_stopping": (
        "G",
        "Early stopping",
        "which figures decided when runs stopped: public, noisy or exact ones",
    ),
    "public_data": ("G", "Public data", "which public data were also used, and their source"),
    "raw_access": ("H", "Who sees the records", "the people and machines"),
    "key_holders": ("H", "Who holds the keys", "who holds those of the ledger, the signature and the noise"),
    "cap_rights": ("H", "Who may raise the cap", "the people, and how they decide"),
    "commit": ("I", "Source", "the commit, or the digest of the package that ran"),
    "audit": ("I", "Audit", "a lower bound on epsilon from an experiment, with its confidence"),
    "small_groups": ("K", "Small groups", "the smallest group for which answers are useful"),
    "approved_by": ("L", "Approved by", "who chose epsilon and delta, and why"),
    "expires": ("L", "Expires", "when the promise or the permission ends"),
    "product": ("M", "Name", "one name for all the published answers and models"),
    "curator": ("M", "Curator", "the organisation that publishes them; separate several by semicolons"),
    "contact": ("M", "Contact", "where questions are answered: an office, not a private address"),
    "description": ("M", "Description", "what is published, in a sentence or two"),
    "intended_use": ("M", "Intended use", "what it is meant for, and what it must not be used for"),
    "product_type": ("M", "Kind", f"what it is: {', '.join(CHOICES['product_type'])}"),
    "region": ("M", "Region", "the region of the records, or of the law that applies"),
    "sector": ("M", "Sector", f"where the records come from: {', '.join(CHOICES['sector'])}"),
    "published": ("M", "Publication date", "the day of the first release, such as 2026-11-30"),
    "actors": ("M", "Who trusts whom", "who collects, computes and reads, and why each is trusted"),
    "data_source": (
        "M",
        "Source of the records",
        "Static: no new records arrive; Dynamic: new records arrive",
    ),
    "data_domain": ("M", "Data domain", "which tables might have been there instead of this one"),
    "post_processing": ("M", "After the noise", "what was done to answers or models after the noise"),
    "why_budget": ("M", "Why this budget", "why this epsilon and delta, and what you weighed against them"),
    "why_unit": ("M", "Why this unit", "why this unit and adjacency, and whom they leave out"),
    "why_model": ("M", "Why this deployment model", "why one organisation may see the records"),
    "why_mechanisms": ("M", "Why these mechanisms", "why these queries, models and settings"),
    "sources": ("M", "Sources", "papers, pages, or where the answers and models are"),
    "record_author": ("M", "Author of the record", "who fills in the registry's record"),
}
"""For each key, the section, the name of the line, and a hint on its contents."""

LICENSE = "license"
"""The key of the license. Only model cards have it, not certificates."""

_FORBIDDEN = "anonym"  # no (epsilon, delta) proves anonymity


def check_statements(statements: Mapping[str, str]) -> dict[str, str]:
    """Check that each key is in the checklist, and that no text claims too much. Return the statements.

    >>> check_statements({"published": "last week"})
    Traceback (most recent call last):
    tacit.errors.InvalidInput: the statement 'published' must be a day such as 2026-11-30; got 'last week'.
    """
    for key, text in statements.items():
        if key not in STATEMENTS:
            raise InvalidInput(f"{key!r} is not one of the statements: {', '.join(STATEMENTS)}.")
        if not str(text).strip() or not isinstance(text, str):
            raise InvalidInput(
                f"the statement {key!r} must be a text; leave it out if there is nothing to say."
            )
        if claims_too_much(text):
            raise InvalidInput(
                f"the statement {key!r} claims anonymity. No epsilon and delta prove that: say what was done."
            )
        _check_form(key, text)
    return dict(statements)


def check_card(statements: Mapping[str, str]) -> None:
    """Check the statements of a model card. They are those of a certificate, and a ``license``.

    Raises:
        InvalidInput: a key is unknown, or a text is empty or claims more than any epsilon and delta prove.

    >>> check_card({"license": "apache-2.0", "intended_use": "to teach"})
    """
    licensed: object = statements.get(LICENSE, "none")
    if not isinstance(licensed, str) or not licensed.strip():
        raise InvalidInput(f"the license must be a text such as 'apache-2.0'; got {licensed!r}.")
    check_statements({key: text for key, text in statements.items() if key != LICENSE})


def claims_too_much(text: str) -> bool:
    """Return whether a text calls data anonymous, which no epsilon and delta prove."""
    return _FORBIDDEN in text.lower()


def _check_form(key: str, text: str) -> None:
    """Check a statement that must be one of the registry's words, or a date."""
    if key in CHOICES and text not in CHOICES[key]:
        raise InvalidInput(
            f"the statement {key!r} must be one of {', '.join(CHOICES[key])}; got {text!r}. If none fits, "
            "leave it out: the registry takes no other word."
        )
    if key == "published":
        try:
            well_formed = date.fromisoformat(text).isoformat() == text
        except ValueError:
            well_formed = False
        if not well_formed:
            raise InvalidInput(f"the statement {key!r} must be a day such as 2026-11-30; got {text!r}.")


def ask_statements(
    known_texts: Mapping[str, str], ask: Callable[[str, str, str], str], *, unit: str
) -> dict[str, str]:
    """Ask for each statement that is not given, section M first, and return all statements.

    Args:
        known_texts: the statements that are known already.
        ask: a function that shows a key, a hint on the contents, and the problem with the last answer (""
            at first), and returns the answer. The answer "" leaves out this statement. If the function raises
            EOFError, this statement and all that follow are left out.
        unit: the unit of privacy.

    >>> ask_statements({}, lambda key, about, problem: "2" if key == "trials" else "", unit="patient")
    {'trials': '2'}
    """
    statements = check_statements(known_texts)
    try:
        for key, (_, name, hint) in sorted(STATEMENTS.items(), key=lambda item: item[1][0] != "M"):
            problem = ""
            while key not in statements:
                answer = ask(key, f"{name.format(unit=unit)}: {hint}", problem).strip()
                if not answer:
                    break
                try:
                    statements |= check_statements({key: answer})
                except InvalidInput as refused:
                    problem = str(refused)
    except EOFError:
        pass
    return statements


def statements_text(statements: Mapping[str, str]) -> str:
    """Write the statements as the TOML file of ``--statements``, in the order of the checklist.

    >>> print(statements_text({"trials": 'two, "small" and large'}), end="")
    trials = "two, \\"small\\" and large"
    """
    return "".join(f"{key} = {_quoted(statements[key])}\n" for key in STATEMENTS if key in statements)


def _quoted(text: str) -> str:
    """Write a TOML string, which is the JSON string with DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
