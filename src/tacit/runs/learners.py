"""The model that a run trains: its file, its form in the folder of a run, and its documents."""

# Guarantee:
# * The description of a model holds only public facts from the configuration or about a standard data set,
#   and the digest of the statement, which is released, too.
# * Reading a file runs no code that it holds or names: weights are numbers, the description is JSON, and
#   the user's own factory is called only if the caller gives it.
# * A resumed run uses the public model with which it began, since the digests are compared.

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from tacit import __version__
from tacit.datasets import Dataset
from tacit.errors import InvalidInput, TacitError
from tacit.files import write_atomically
from tacit.noise.generator import Generator, Purpose
from tacit.pretrained.loading import load_pretrained
from tacit.pretrained.model import Head, Pretrained, TunedModel, merged
from tacit.report.model_card import CardFacts, model_card
from tacit.report.statement import Statement, text_of
from tacit.report.verification import read_json
from tacit.runs.config import Config, read_config
from tacit.runs.kinds import Kind, Table, kind_from, kind_of
from tacit.runs.kinds.texts import BASE
from tacit.runs.metrics import DATA
from tacit.runs.model import (
    Factory,
    Learner,
    begin_from,
    build_model,
    device_of,
    import_factory,
    task_of,
)
from tacit.runs.public_model import columns_of, new_public_model, public_model
from tacit.runs.sections import BEGAN, ModelSection
from tacit.serial import parse_json
from tacit.training.evaluation import Evaluation
from tacit.training.loop import MetricsRow

MODEL, ENCODER = "model.safetensors", "encoder"
"""The file of the trained weights, and the folder of the public model's body, in the folder of a run."""
_FORMAT = 2  # Tacit 0.2.0 wrote format 1
_NAME = "tacit"
_TASKS = ("classes", "labels", "numbers", "survival", "text")


@dataclass(frozen=True)
class Description:
    """The description of a model in its file.

    Attributes:
        model: the [model] section of the run; its factory is a reference, "module:function".
        input_shape: the shape of one record as the model gets it, after features are computed.
        outputs: the number of outputs for a record, or for each character of text.
        task: "classes", "labels", "numbers", "survival" or "text".
        classes: the names of the classes, in the order of the outputs; empty for other tasks.
        target_bounds: for numbers, the values of each target that are scaled to -1 and 1.
        preprocessing: the kind of data, which encodes the user's records.
        features: "raw", or for images "scattering" or "pictures" (whitened scattering).
        statement_digest: SHA-256 of the run's ``statement.json``, in hexadecimal.
        pretrained: the digest of the body in the folder ``encoder``, if the model is the head of a public
            model; None for other models.
        labels: the names of the labels, in the order of the outputs; empty for other tasks.
        version: the version of Tacit that wrote the file.
    """

    model: ModelSection
    input_shape: tuple[int, ...]
    outputs: int
    task: str
    classes: tuple[str, ...]
    target_bounds: tuple[tuple[float, float], ...]
    preprocessing: Kind
    features: str
    statement_digest: str
    pretrained: str | None = None
    labels: tuple[str, ...] = ()
    version: str = __version__

    def to_data(self) -> dict[str, Any]:
        kind = {"kind": self.preprocessing.kind, **self.preprocessing.to_data()}
        own = {"model": self.model.model_dump(exclude_none=True), "preprocessing": kind}
        return {"format": _FORMAT, **vars(self), **own}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Description:
        task, features = data["task"], data["features"]
        if task not in _TASKS or features not in ("raw", "scattering", "pictures"):
            raise ValueError(f"task {task!r} with features {features!r}")
        return cls(
            model=ModelSection.model_validate(data["model"]),
            input_shape=tuple(map(int, data["input_shape"])),
            outputs=int(data["outputs"]),
            task=task,
            classes=tuple(map(str, data["classes"])),
            target_bounds=tuple((float(low), float(high)) for low, high in data["target_bounds"]),
            preprocessing=kind_from(data["preprocessing"]),
            features=features,
            statement_digest=str(data["statement_digest"]),
            pretrained=data.get("pretrained"),
            labels=tuple(map(str, data["labels"])),
            version=str(data["version"]),
        )


def describe(config: Config, data: Dataset, statement: str) -> Description:
    """Return what the file of a model says of it, from which the model is made again."""
    task = task_of(data)
    kind = kind_of(config, data)
    # a public model computes features itself, so it gets records as they are read
    return Description(
        model=config.model,
        input_shape=kind.shape if config.pretrained else data.input_shape,
        outputs=task.outputs,
        task=task.name,
        classes=data.classes,
        labels=data.labels,
        target_bounds=data.target_bounds,
        preprocessing=kind,
        features=config.data.features,
        statement_digest=statement_digest(statement.encode()),
    )


def card_facts(description: Description) -> CardFacts:
    preprocessing = description.preprocessing
    reads_text = isinstance(preprocessing, Table) and preprocessing.encoder.text is not None
    return CardFacts(
        kind="text" if reads_text else preprocessing.kind,
        task=description.task,
        classes=description.classes,
        records=preprocessing.describe(),
        columns=preprocessing.lines(),
        factory=description.model.factory,
        example=preprocessing.example,
    )


def statement_digest(statement: bytes) -> str:
    return hashlib.sha256(statement).hexdigest()


def save_model(model: nn.Module, description: Description, path: Path) -> None:
    """Write weights and description.

    Each name gets a separate copy of its tensor, since safetensors refuses tied weights.
    """
    weights = {
        name: tensor.detach().cpu().clone().contiguous() for name, tensor in model.state_dict().items()
    }
    # One metadata name only, as safetensors writes several in any order, and bytes must be reproducible.
    metadata = {_NAME: json.dumps(description.to_data(), allow_nan=False)}
    write_atomically(path, lambda file: file.write(save(weights, metadata)))


def read_description(path: Path) -> Description:
    if not path.is_file():
        raise InvalidInput(
            f"there is no model at {path}. Give the folder of a finished run, or copy the file into it."
        )
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(_NAME)
    except (SafetensorError, OSError) as problem:
        raise _unreadable(path, problem) from None
    if text is None:
        raise InvalidInput(
            f"{path} does not describe its model: another program wrote it. If you still have the data and "
            f"private/, rewrite the run's folder without training: tacit train {path.parent}/config.toml "
            f"--out {path.parent} --resume. Otherwise train again."
        )
    try:
        data = parse_json(text)
        if data["format"] != _FORMAT:
            raise InvalidInput(
                f"{path} was written by Tacit {data.get('version', 'of another version')!s:.20} in format "
                f"{data['format']!r:.20}, but this version reads format {_FORMAT}. Install that version, or "
                "train again."
            )
        return Description.from_data(data)
    except InvalidInput:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise InvalidInput(
            f"the description of the model in {path} cannot be read ({type(problem).__name__}): it was "
            "changed, or the file is damaged. Copy the file again from the run's folder."
        ) from None


def rebuild(path: Path, description: Description, factory: Factory | str | None = None) -> nn.Module:
    """Make the model of a file, in evaluation mode; the state of torch's generator does not change."""
    section = description.model
    if description.pretrained is not None:
        return tuned_model(path, description)
    if section.factory is not None and factory is None:
        raise InvalidInput(
            f"{path} needs the function that made its model. For your safety, a file never chooses the code. "
            f'Pass tacit.load(..., factory="{section.factory}"), or --factory {section.factory}. Its '
            "module must be in the current folder or installed."
        )
    if section.factory is None and factory is not None:
        raise InvalidInput(
            f"factory is only for your own models; {path} contains Tacit's network {section.name!r}. "
            "Remove factory."
        )
    function = import_factory(factory) if isinstance(factory, str) else factory
    with torch.random.fork_rng(devices=[]):
        shape, outputs = description.input_shape, description.outputs
        model = build_model(section, shape, outputs, function, task=description.task)
    load_weights(model, path)
    return model.eval()


def tuned_model(path: Path, description: Description) -> TunedModel:
    """Load the head in a file and the body in its folder ``encoder``, in evaluation mode."""
    folder, kind = path.parent / ENCODER, description.preprocessing
    if not folder.is_dir():
        raise InvalidInput(
            f"{folder}, the model's body, is missing; {path} has only its last layer. Copy the run's whole "
            "folder; private/ is not needed."
        )
    encoder = load_pretrained(folder)
    if encoder.digest != description.pretrained:
        raise InvalidInput(
            f"the model's body in {folder} does not belong to its last layer in {path}. Copy both from one "
            "run."
        )
    text = kind.encoder.text if isinstance(kind, Table) else None
    columns = 0 if text is None else kind.shape[0] - text.length
    model = TunedModel(encoder, Head(encoder.features, description.outputs, columns=columns), columns)
    load_weights(model.head, path)
    return model.eval()


def load_weights(model: nn.Module, path: Path) -> None:
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as problem:
        raise _unreadable(path, problem) from None
    if misfits := _misfits(model.state_dict(), weights):
        raise InvalidInput(
            f"{path} does not fit its model: {'; '.join(misfits)}. The file comes from another run, or the "
            "model's code has changed. Use the code and file of one run."
        )
    if broken := [name for name, value in weights.items() if not bool(torch.isfinite(value).all())]:
        raise InvalidInput(
            f"{path} has NaN or infinite weights in {_some(broken)}: training diverged. Train again with a "
            "lower learning rate."
        )
    model.load_state_dict(weights)


def _misfits(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    missing = [name for name in expected if name not in weights]
    strange = [name for name in weights if name not in expected]
    other = [
        f"{name} {tuple(weights[name].shape)} instead of {tuple(value.shape)}"
        for name, value in expected.items()
        if name in weights and weights[name].shape != value.shape
    ]
    parts = (("the file lacks ", missing), ("the model lacks ", strange), ("other shapes: ", other))
    return [label + _some(names) for label, names in parts if names]


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _unreadable(path: Path, problem: BaseException) -> InvalidInput:
    return InvalidInput(
        f"{path} cannot be read as a model: {problem}. Copy it again, or train the run again."
    )


@dataclass(frozen=True)
class Outcome:
    """The result of a finished run.

    Attributes:
        folder: the folder of the run.
        rows: the metrics, such as loss and epsilon, one row for each evaluation.
        evaluation: the last evaluation.
        figures: the numbers on the evaluation page.
        statement: the privacy statement.
        files: the names of the files that you may release.
        remarks: for each file that could not be written, the reason.
        stopped: why the ledger ended the run early; None if it did not. The model is then that of the steps
            so far. You can resume the run when there is budget again.
        factory: for a model of your own, the reference ("module:function") to the function that builds it.
        used_by: if ``tacit predict`` does not support the model, a sentence on how to use it.
        days_left: for an incomplete run on dated records, a sentence on the days that it needs next.
        how_to_test: the command that tests the finished run, or the reason why there is none.

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


def learner_of(config: Config, data: Dataset) -> Learner:
    if config.model.public is None:
        return Network(config, data)
    if config.pretrained:
        return PublicModel(config, data)
    from tacit.runs.language_model import LanguageModel  # imports transformers

    return LanguageModel(config, data)


def new_model(config: Config, data: Dataset, generator: Generator) -> nn.Module:
    """Make the configuration's model on its device, with initial weights from the generator's key.

    A resumed run therefore starts from the same weights.
    """
    seed = int(generator.words(1, purpose=Purpose.INITIALISATION, step=0)[0]) >> 1
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = learner_of(config, data).build()
    return model.to(device_of(config.run.device))


class Network(Learner):
    def build(self) -> nn.Module:
        task = task_of(self.data)
        return build_model(self.config.model, self.data.input_shape, task.outputs, task=task.name)

    def stated(self, model: nn.Module) -> dict[str, Any]:
        section, parameters = self.config.model, sum(p.numel() for p in model.parameters())
        return {"model": f"{section.name or section.factory}, {parameters:,} parameters", "notes": ()}

    def save(self, model: nn.Module, statement: Statement, folder: Path) -> tuple[str, ...]:
        save_model(model, self._description(statement), folder / MODEL)
        return (MODEL,)

    def trained(self, folder: Path) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            model = self.build().to(device_of(self.config.run.device))
        load_weights(model, folder / MODEL)
        return model

    def card_facts(self, statement: Statement) -> CardFacts:
        return card_facts(self._description(statement))

    def _description(self, statement: Statement) -> Description:
        return describe(self.config, self.data, statement.to_json())


@final
class PublicModel(Network):
    """A public model that learns a target: only a new head on its features, or body and head."""

    @cached_property
    def encoder(self) -> Pretrained:
        return public_model(self.config)

    def build(self) -> nn.Module:
        return new_public_model(self.config, self.data, task_of(self.data).outputs)

    def begin(self, folder: Path, *, resumed: bool) -> None:
        own = {"name": self.encoder.name, "sha256": self.encoder.digest}
        begin_from(folder / BEGAN, own, self.config.model.public, resumed=resumed)

    def stated(self, model: nn.Module) -> dict[str, Any]:
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        part = _TUNED[str(self.config.model.tune)]
        return {
            "model": f"{self.encoder.name}; {trained:,} weights are trained: {part}",
            "public_data": [f"the public model {self.encoder.name}, SHA-256 {self.encoder.digest}"],
            "not_covered": [
                "the data that the public model was trained on before this run: the guarantee is for the "
                "records of this run alone"
            ],
            "notes": [],
        }

    def save(self, model: nn.Module, statement: Statement, folder: Path) -> tuple[str, ...]:
        if isinstance(model, Head):
            tuned = TunedModel(self.encoder, model, columns_of(self.data))
            names = tuned.encoder.save(folder / ENCODER)
        else:
            assert isinstance(model, TunedModel), "as new_public_model makes it"
            tuned = merged(copy.deepcopy(model))
            names = tuned.encoder.save_trained(folder / ENCODER)
        description = replace(self._description(statement), pretrained=tuned.encoder.digest)
        save_model(tuned.head, description, folder / MODEL)
        return (MODEL, *(f"{ENCODER}/{name}" for name in names), BEGAN)

    def trained(self, folder: Path) -> nn.Module:
        path = folder / MODEL
        whole = tuned_model(path, read_description(path)).to(device_of(self.config.run.device))
        return whole.head if self.config.model.tune == "head" else whole


_TUNED = {
    "head": "a linear layer on its frozen features",
    "lora": "LoRA adapters and a linear layer",
    "full": "all of them",
}


def compare_texts(folder: Path, statement: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Compare ``statement.txt``, the model card and the model's digest with the statement of their folder."""
    due: dict[str, str] = {"statement.txt": text_of(statement)}
    problems: list[str] = []
    not_verified: list[str] = []
    if (folder / "README.md").is_file():
        try:
            config = read_config(folder / "config.toml")
            untested = config.data.database is not None and config.data.test_table is None
            figures = (
                {} if untested else read_json(folder / DATA, "evaluation", "the whole folder of the run")
            )
            facts = replace(_facts(folder, config), statements=config.card)
            due["README.md"] = model_card(statement, facts, figures)
        except TacitError as problem:
            not_verified.append(f"README.md ({problem})")

    for name, text in due.items():
        path = folder / name
        if path.is_file() and path.read_bytes() != text.encode():
            problems.append(f"{name} is not the text of this statement.")

    model = folder / MODEL
    if model.is_file() and not (folder / BASE).is_file():  # a language model has no description
        digest = statement_digest((folder / "statement.json").read_bytes())
        if read_description(model).statement_digest != digest:
            problems.append("model.safetensors belongs to another statement.")
    return problems, not_verified


def _facts(folder: Path, config: Config) -> CardFacts:
    if (folder / BASE).is_file():
        from tacit.runs.language_model import language_card_facts  # imports transformers

        return language_card_facts(config, read_json(folder / BASE, "base model", "the folder of the run"))
    return card_facts(read_description(folder / MODEL))
