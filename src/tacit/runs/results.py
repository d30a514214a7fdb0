"""The forms in which a run saves its model: for networks, for language models, and for public models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

from torch import nn

from tacit.datasets import Dataset
from tacit.report.model_card import CardFacts
from tacit.report.statement import Statement
from tacit.runs.config import Config
from tacit.runs.saved_model import card_facts, describe, save_model
from tacit.training.evaluation import Evaluation
from tacit.training.loop import MetricsRow


@dataclass(frozen=True)
class Outcome:
    """The result of a finished run.

    Attributes:
        folder: the folder of the run.
        rows: the lines of metrics.
        evaluation: the last evaluation.
        figures: the data of :func:`tacit.report.evaluation.evaluation_data`.
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
