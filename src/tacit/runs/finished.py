"""A finished run: its folder's files, and its data loaded again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tacit.audits.attacks import Canary
from tacit.datasets import Dataset, TensorPair
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.report.verification import check_fields, read_event, read_statement
from tacit.runs.build import owned_by
from tacit.runs.canaries import read_canaries, with_canaries
from tacit.runs.checks import canary_file, resume_state
from tacit.runs.config import Config, read_config
from tacit.runs.kinds import Progress, prepared_data, silent
from tacit.runs.model import device_of, new_model
from tacit.runs.plan import make_plan
from tacit.runs.saved_model import load_weights, read_description, tuned_model
from tacit.training.records import as_records
from tacit.training.resume import is_trained_on


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run: its data, the performed plan, its statement, and its model."""

    folder: Path
    config: Config
    data: Dataset
    plan: Plan
    statement: dict[str, Any]
    model: nn.Module
    canaries: tuple[Canary, ...] = ()

    @property
    def store(self) -> Path:
        """The folder for files of attacks, which must not be released."""
        return self.folder / "private" / "attack"

    @property
    def pool(self) -> TensorPair:
        """The training records (members), followed by the test records (non-members), (n, ...)."""
        train, test = self.data.train, self.data.test
        return TensorPair(torch.cat([train.inputs, test.inputs]), torch.cat([train.targets, test.targets]))

    @property
    def is_member(self) -> NDArray[np.bool_]:
        """Whether the run was trained on each record of the pool, (n,)."""
        train, test = len(self.data.train.inputs), len(self.data.test.inputs)
        return np.arange(train + test) < train


def finished_files(folder: Path) -> tuple[Config, Plan, dict[str, Any]]:
    """Return the configuration, the performed plan and the statement of a finished run."""
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
    plan = _performed(make_plan(config), statement["mechanism"]["steps"])
    if read_event(statement["event"]) != plan.event:
        raise InvalidInput(
            f"{folder / 'statement.json'} does not belong to {folder / 'config.toml'}: their mechanisms "
            "differ. Was a file copied from another run?"
        )
    return config, plan, statement


def open_run(folder: Path, progress: Progress = silent) -> FinishedRun:
    """Read the files of a run, and load its data again."""
    config, plan, statement = finished_files(folder)
    if config.data.rows_per_user is not None:
        raise InvalidInput(
            f"attacks test single rows, and this run protects people ({owned_by(config)!r}): the guarantee "
            "is for a person with all rows, so its limits do not apply to single rows. Use tacit audit, "
            "which plants made-up people: it needs no rows."
        )
    if config.data.date is not None:
        raise InvalidInput(
            f"attacks do not support runs by date ({config.data.date!r}): they train further models on "
            "random halves of the records. Attack a run of the same model on samples of the records."
        )
    canaries = read_canaries(canary_file(folder), config)
    data = prepared_data(config, progress, private=folder / "private")
    if not is_trained_on(resume_state(folder), as_records(with_canaries(data, canaries).train)):
        raise PrivacyRefusal(
            f"the data that {folder / 'config.toml'} names are not the training records of this run: their "
            "digest differs from that in private/resume.pt. An attack would then take strangers for members "
            "and find too little. Restore the data as they were. A run on batches of `tacit batches` cannot "
            "be attacked, because its digest is of the batches."
        )
    data = replace(data, train=_usable(data.train), test=_usable(data.test))
    model = _trained(config, data, folder)
    return FinishedRun(folder, config, data, plan, statement, model, canaries)


def _usable(pair: TensorPair) -> TensorPair:
    """Convert float16 inputs, in which large tables are stored, to float32."""
    narrow = pair.inputs.dtype == torch.float16
    return TensorPair(pair.inputs.float() if narrow else pair.inputs, pair.targets)


def weights_in(folder: Path) -> Path:
    """Return the file of the trained weights in a run's folder: the adapter's if there is one."""
    adapter = folder / "adapter_model.safetensors"
    return adapter if adapter.exists() else folder / "model.safetensors"


def _trained(config: Config, data: Dataset, folder: Path) -> nn.Module:
    if config.pretrained:
        path = weights_in(folder)
        whole = tuned_model(path, read_description(path)).to(device_of(config.run.device))
        return whole.head if config.model.tune == "head" else whole
    if config.model.huggingface is not None:
        from tacit.runs.language_model import LanguageResult  # imports transformers

        return LanguageResult(config).trained(folder).to(device_of(config.run.device))
    model = new_model(config, data, Generator.from_os())
    load_weights(model, weights_in(folder))
    return model


def _performed(plan: Plan, steps: int) -> Plan:
    """Return the plan for the steps that were performed, since a ledger may have ended the run early."""
    return replace(plan, steps=steps) if 1 <= steps < plan.steps else plan
