"""What did a finished run leave? Its folder's files, and its data, loaded again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tacit.attacks.memorisation import Canary
from tacit.datasets import Dataset, TensorPair
from tacit.errors import InvalidInput
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.report.statement.reading import check_fields, read_event, read_statement
from tacit.runs.build import owned_by
from tacit.runs.canaries import read_canaries
from tacit.runs.checks import canary_file
from tacit.runs.config import Config, read_config
from tacit.runs.kinds import Progress, silent
from tacit.runs.load import prepared_data
from tacit.runs.model import device_of, new_model
from tacit.runs.plan import make_plan
from tacit.runs.saved_model import load_weights


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run: its data, the plan performed, its statement, and its model."""

    folder: Path
    config: Config
    data: Dataset
    plan: Plan
    statement: dict[str, Any]
    model: nn.Module
    canaries: tuple[Canary, ...] = ()

    @property
    def store(self) -> Path:
        """The folder for what must not be released."""
        return self.folder / "private" / "attack"

    @property
    def pool(self) -> TensorPair:
        """Members, then others; (n, ...)."""
        train, test = self.data.train, self.data.test
        return TensorPair(torch.cat([train.inputs, test.inputs]), torch.cat([train.targets, test.targets]))

    @property
    def is_member(self) -> NDArray[np.bool_]:
        """(n,) whether the run was trained on a record of the pool."""
        train, test = len(self.data.train.inputs), len(self.data.test.inputs)
        return np.arange(train + test) < train


def open_run(folder: Path, progress: Progress = silent) -> FinishedRun:
    """Read the files of a run, and its data again.

    :raises InvalidInput: if the folder holds no finished run, its files do not fit together, or its model
        cannot be loaded; or a record was a person with several rows.
    """
    weights = weights_in(folder)
    if not folder.is_dir():
        raise InvalidInput(f"there is no run at {folder}. Name a folder that tacit train wrote.")
    if not weights.exists():
        raise InvalidInput(
            f"{folder} holds no finished run: {weights.name} is missing. Finish it by "
            "tacit train with --resume."
        )
    statement = read_statement(folder / "statement.json")
    check_fields(statement)
    config = read_config(folder / "config.toml")
    if config.data.rows_per_user is not None:
        raise InvalidInput(
            "attacks ask whether single rows were trained on, and the guarantee of this run is for people "
            f"with all their rows ({owned_by(config)!r}), so its limits say nothing of rows. [audit] slots "
            'plants made-up people in a run whose steps draw people (draw = "users"); '
            "tacit.runs.slots.audit_folder says in Python what they prove."
        )
    if config.data.date is not None:
        raise InvalidInput(
            "attacks train further models on random halves of the records, and this run took them by date "
            f"({config.data.date!r}). Attack a run of the same model on samples of them."
        )
    plan = _performed(make_plan(config), statement["mechanism"]["steps"])
    if read_event(statement["event"]) != plan.event:
        raise InvalidInput(
            f"{folder / 'statement.json'} is not of the run that {folder / 'config.toml'} describes: their "
            "mechanisms differ. Was a file copied from another run?"
        )
    canaries = read_canaries(canary_file(folder), config)
    data = prepared_data(config, progress)
    data = replace(data, train=_usable(data.train), test=_usable(data.test))
    model = _trained(config, data, folder)
    return FinishedRun(folder, config, data, plan, statement, model, canaries)


def _usable(pair: TensorPair) -> TensorPair:
    """Records in a type with which models compute: those of large tables are kept in float16."""
    narrow = pair.inputs.dtype == torch.float16
    return TensorPair(pair.inputs.float() if narrow else pair.inputs, pair.targets)


def weights_in(folder: Path) -> Path:
    """The file of the trained weights in a run's folder; of an adapter, those alone."""
    adapter = folder / "adapter_model.safetensors"
    return adapter if adapter.exists() else folder / "model.safetensors"


def _trained(config: Config, data: Dataset, folder: Path) -> nn.Module:
    if config.model.huggingface is not None:
        from tacit.runs.language_model import LanguageResult  # imports transformers

        return LanguageResult(config).trained(folder).to(device_of(config.run.device))
    model = new_model(config, data, Generator.from_os())
    load_weights(model, weights_in(folder))
    return model


def _performed(plan: Plan, steps: int) -> Plan:
    """The part of the plan that was performed: a ledger may have ended the run before its end."""
    return replace(plan, steps=steps) if 1 <= steps < plan.steps else plan
