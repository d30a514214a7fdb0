"""The record of a certificate for the registry of deployments, as YAML (Dwork et al., 2509.13509).

Every figure and sentence is a line of the certificate or a statement of the curator. Epsilon and delta are
those of the cap, not today's spending. The record has the highest tier with no field missing or NOT STATED.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.report.checklist import NOT_STATED, STATEMENTS, signature_line
from tacit.report.verification import check_against, read_schema

Record = dict[str, Any]

_SCHEMA = "registry.schema.json"
_REQUIRED = (
    "product", "curator", "description", "intended_use", "region", "published", "record_author",
)  # fmt: skip
_STATED = {
    "basic": {
        "name": "product",
        "intended_use": "intended_use",
        "data_product_type": "product_type",
        "data_product_region": "region",
        "description": "description",
        "publication_date": "published",
        "data_product_sector": "sector",
    },
    "dp_variant": {"data_domain": "data_domain"},
    "deployment_model": {"data_source_type": "data_source"},
    "accounting": {"post_processing": "post_processing"},
    "administrative": {"sources": "sources"},
}
"""For each section of the record, the fields that copy a statement, and the key of that statement."""
_FROM_LINES: dict[str, dict[str, tuple[str, ...]]] = {
    "dp_variant": {"unprotected_quantities": ("Number of records", "Outside the promise", "Side channels")},
    "privacy_loss": {
        "privacy_unit_details": (
            "Relation", "Unit", "Bound on one unit's rows", "Training", "Training by people", "several_ids",
        ),
        "privacy_parameters_details": ("Definition", "Cap", "Spent today", "δ times the number"),
    },
    "deployment_model": {
        "model_name_details": ("Deployment model", "why_model"),
        "actors": ("actors", "raw_access", "key_holders", "cap_rights", "Spenders"),
        "release_type_details": ("Cap", "Changes of the cap", "Other budgets", "Blocks"),
        "data_source_type_details": ("Contents", "versions"),
        "access_type_details": ("Spenders", "Refusals"),
    },
    "accounting": {"composition": ("Method", "Theorem", "Rounding")},
    "implementation": {
        "preprocessing_and_hyperparameter_tuning": (
            "Cells", "bounds", "Private selection", "Choices by looking", "trials", "early_stopping",
            "public_data",
        ),
        "mechanisms": (
            "Mechanism", "Further mechanisms", "Mechanisms", "Sensitivity", "Sampling", "Software",
            "Noise of queries", "NULL, NaN, infinity", "Noise of training", "Random numbers", "Side channels",
            "commit", "audit",
        ),
        "justification": ("why_budget", "approved_by", "why_unit", "why_model", "why_mechanisms"),
    },
}  # fmt: skip
"""For each section of the record, the fields that list lines of the certificate. A line is given by its name,
or by the key of a statement. "Mechanism" stands for the lines of all mechanisms."""


def registry_record(data: Mapping[str, Any]) -> Record:
    """Make the registry's record of a data set from its certificate, with the published fields."""
    statements = data["statements"]
    _check(data, statements)
    parts: dict[str, Record] = {
        "basic": {
            "data_curators": [name.strip() for name in statements["curator"].split(";") if name.strip()]
        },
        **_derived(data),
        "accounting": {},
        "implementation": {},
        "administrative": {"registry_authors": [statements["record_author"]], "notes": _notes(data)},
    }
    for part, fields in _STATED.items():
        parts[part] |= {field: statements[key] for field, key in fields.items() if key in statements}
    parts["basic"].setdefault("data_product_type", _product_type(data["kinds"])[0])
    for part, lines in _FROM_LINES.items():
        parts[part] |= {field: _sentences(data, names) for field, names in lines.items()}
    record: Record = {"url_slug": _slug(statements), "status": "Draft", "tier": 1, "deployment": parts}
    record["tier"] = next(tier for tier in (3, 2, 1) if tier == 1 or not fields_missing(record, tier))
    check_against(read_schema(_SCHEMA), record, what="the registry's record")
    return record


def fields_missing(record: Mapping[str, Any], tier: int) -> list[str]:
    """Return the fields of this tier and lower tiers that are missing, or NOT STATED even in part."""
    tiers = tuple(f"Tier {number}" for number in range(1, tier + 1))
    return [
        ".".join(path)
        for path, description in _fields(read_schema(_SCHEMA))
        if description in tiers and _blank(record, path)
    ]


def _check(data: Mapping[str, Any], statements: Mapping[str, str]) -> None:
    if data["ledger"]["test_keys"]:
        raise PrivacyRefusal(
            f"{data['ledger']['test_keys']:,} charges of this ledger were made with a fixed test key. They "
            "give no privacy, because their noise can be subtracted. Start a new ledger without the key."
        )
    required = (*_REQUIRED, "product_type") if data["kinds"].get("claimed") else _REQUIRED
    if keys := [key for key in required if key not in statements]:
        missing = "; ".join(f"{key}, {STATEMENTS[key][2]}" for key in keys)
        raise InvalidInput(
            f"the registry of deployments requires these statements: {missing}. Add them to the file of "
            "--statements, or use --interactive."
        )


def _product_type(kinds: Mapping[str, int]) -> tuple[str, ...]:
    """Return the registry's words for the products that the charges paid for. The registry takes the first.

    >>> _product_type({"query": 3, "training": 1}), _product_type({})
    (('Machine learning model', 'SQL queries'), ('SQL queries',))
    """
    trained = any(kind.startswith("training") and count for kind, count in kinds.items())
    models = ("Machine learning model",) if trained else ()
    return (*models, "SQL queries") if kinds.get("query") or not models else models


def _derived(data: Mapping[str, Any]) -> dict[str, Record]:
    """Return the fields that follow from the ledger."""
    policy, cap = data["policy"], data["guarantee"]["cap"]
    unit = policy["unit"]
    whole = policy["unit_column"] is not None or data["kinds"].get("training by people")
    delta = {"delta": cap["delta"]} if cap["delta"] else {}
    return {
        "dp_variant": {"variant_name": "Approximate DP" if delta else "Pure DP"},
        "privacy_loss": {
            "privacy_unit": f"one {unit}" if whole else f"one row of the table, taken to be one {unit}",
            "privacy_parameters": {"epsilon": cap["epsilon"], **delta},
        },
        "deployment_model": {
            "model_name": "Central",
            "release_type": "Many releases",
            "access_type": "Interactive" if data["kinds"].get("query") else "Non-interactive",
        },
    }


def _sentences(data: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Write the lines with these names, and their grades, as a Markdown list."""
    unit = data["policy"]["unit"]
    sentences = []
    for name in names:
        title = STATEMENTS[name][1].format(unit=unit) if name in STATEMENTS else name
        for line in data["lines"]:
            if line["name"] == title or (name == "Mechanism" and re.match(r"Mechanism \d", line["name"])):
                value = NOT_STATED if line["value"] is None else line["value"]
                sentences.append(f"- {line['name']} ({line['grade']}): {value}")
    return "\n".join(sentences)


def _notes(data: Mapping[str, Any]) -> str:
    contact = data["statements"].get("contact")
    kinds = _product_type(data["kinds"])[1:] if "product_type" not in data["statements"] else ()
    return "\n".join(
        [
            *(f"- Kind: also {other}; the registry takes one kind." for other in kinds),
            f"- Contact: {NOT_STATED if contact is None else contact}",
            f"- Made by tacit {data['software']['tacit']} on {data['issued'][:10]} from entries 0 to "
            f"{data['ledger']['last']:,} of a ledger. Each line says whether it is proved from these "
            "entries, assumed, or not covered. `tacit verify` checks the certificate with these lines.",
            f"- Anchor: {data['ledger']['anchor']}",
            f"- {signature_line(data)}",
        ]
    )


def _slug(statements: Mapping[str, str]) -> str:
    text = f"{statements['product']} {statements['curator'].partition(';')[0]} {statements['published'][:4]}"
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return "-".join(re.findall(r"[a-z0-9]+", plain.lower()))


def _fields(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of each field of a schema, and its description."""
    for name, rule in schema.get("properties", {}).items():
        yield (*path, name), rule.get("description", "")
        yield from _fields(rule, (*path, name))


def _blank(record: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    value: Any = record
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return not value or (isinstance(value, str) and NOT_STATED in value)
