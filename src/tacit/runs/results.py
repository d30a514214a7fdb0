"""The files of a run's model, and the texts in its folder, compared with its statement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, final

from torch import nn

from tacit.datasets import Dataset
from tacit.errors import TacitError
from tacit.report.model_card import CardFacts, model_card
from tacit.report.schema import read_json
from tacit.report.statement import Statement, text_of
from tacit.runs.config import Config, read_config
from tacit.runs.kinds.texts import BASE
from tacit.runs.metrics import DATA
from tacit.runs.saved_model import card_facts, describe, read_description, save_model, statement_digest
from tacit.training.evaluation import Evaluation
from tacit.training.loop import MetricsRow


@dataclass(frozen=True)
class Outcome:
    """The result of a finished run.

    Attributes:
        folder: the folder of the run.
        rows: the lines of metrics.
        evaluation: the last evaluation.
        figures: the data of :func:`tacit.report.evaluated.evaluation_data`.
        statement: the privacy statement.
        files: the files to be released.
        remarks: reasons why a file could not be written.
        stopped: the reason why the ledger ended the run early.  The model is then that of the steps so far,
            and the run can be resumed when there is budget again.
        factory: for a model of the user's own, the reference to its factory.
        used_by: how to use the model, if ``tacit predict`` does not support it.
        days_left: how to continue a run by date.
        how_to_test: the command that tests the finished run, or the reason why none does.

    >>> import tempfile
    >>> import tacit.runs
    >>> demo = Path(tacit.runs.__file__).with_name("demo.toml")
    >>> outcome = tacit.runs.prepare(demo, out=Path(tempfile.mkdtemp()) / "run").start()
    >>> outcome.rows[-1].steps, outcome.statement.epsilon <= 3.0
    (30, True)
    >>> outcome.evaluation.score > 0.7  # of test records
    True
    """

    folder: Path
    rows: list[MetricsRow]
    evaluation: Evaluation
    figures: dict[str, Any]
    statement: Statement
    files: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    stopped: str | None = None
    factory: str | None = None
    used_by: str | None = None
    days_left: str = ""
    how_to_test: str = ""


class Result(Protocol):
    """The form in which a run saves its model: facts for the statement, and files."""

    def begin(self, folder: Path, *, resumed: bool) -> None:
        """Write facts that must be saved before the first step; for a resumed run, compare them instead."""

    def stated(self, model: nn.Module) -> dict[str, Any]:
        """Return arguments of ``make_statement`` about the model, including ``notes``."""

    def save(self, model: nn.Module, statement: Statement, folder: Path) -> tuple[str, ...]:
        pass

    def card_facts(self, statement: Statement) -> CardFacts:
        pass

    @property
    def used_by(self) -> str | None:
        """Instructions for using the model, if ``tacit predict`` does not support it."""


def result_of(config: Config, data: Dataset) -> Result:
    if config.model.public is None:
        return _OwnFile(config, data)
    if config.pretrained:
        from tacit.runs.public_result import PublicResult  # imports transformers

        return PublicResult(config, data)
    from tacit.runs.language_model import LanguageResult  # imports transformers

    return LanguageResult(config)


@final
class _OwnFile:
    used_by = None

    def __init__(self, config: Config, data: Dataset) -> None:
        self.config, self.data = config, data

    def begin(self, folder: Path, *, resumed: bool) -> None:
        pass

    def stated(self, model: nn.Module) -> dict[str, Any]:
        section, parameters = self.config.model, sum(p.numel() for p in model.parameters())
        return {"model": f"{section.name or section.factory}, {parameters:,} parameters", "notes": ()}

    def save(self, model: nn.Module, statement: Statement, folder: Path) -> tuple[str, ...]:
        save_model(model, describe(self.config, self.data, statement.to_json()), folder / "model.safetensors")
        return ("model.safetensors",)

    def card_facts(self, statement: Statement) -> CardFacts:
        return card_facts(describe(self.config, self.data, statement.to_json()))


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
