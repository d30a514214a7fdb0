"""The texts in the folder of a run, written again from its statement and compared byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.errors import TacitError
from tacit.report.model_card import CardFacts, model_card
from tacit.report.statement import text_of
from tacit.report.verification import read_json
from tacit.runs.config import Config, read_config
from tacit.runs.evaluated import DATA
from tacit.runs.kinds.documents import BASE
from tacit.runs.saved_model import card_facts, read_description, statement_digest


def compare_texts(folder: Path, statement: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Compare ``statement.txt``, the model card and the model's digest with the statement of their folder.

    Returns:
        One sentence on each text that differs, and the names of those that could not be written again.
    """
    due: dict[str, str] = {"statement.txt": text_of(statement)}
    problems: list[str] = []
    not_verified: list[str] = []
    if (folder / "README.md").is_file():
        try:
            due["README.md"] = _card(folder, statement)
        except TacitError as problem:
            not_verified.append(f"README.md ({problem})")

    for name, text in due.items():
        path = folder / name
        if path.is_file() and path.read_bytes() != text.encode():
            problems.append(f"{name} is not the text of this statement.")

    model = folder / "model.safetensors"
    if model.is_file() and not (folder / BASE).is_file():  # a language model has no description
        digest = statement_digest((folder / "statement.json").read_bytes())
        if read_description(model).statement_digest != digest:
            problems.append("model.safetensors belongs to another statement.")
    return problems, not_verified


def _card(folder: Path, statement: Mapping[str, Any]) -> str:
    config = read_config(folder / "config.toml")
    figures = read_json(folder / DATA, "evaluation", "the whole folder of the run")
    facts = replace(_facts(folder, config), statements=config.card)
    return model_card(statement, facts, figures)


def _facts(folder: Path, config: Config) -> CardFacts:
    if (folder / BASE).is_file():
        from tacit.runs.language_model import language_card_facts  # imports transformers

        return language_card_facts(config, read_json(folder / BASE, "base model", "the folder of the run"))
    return card_facts(read_description(folder / "model.safetensors"))
