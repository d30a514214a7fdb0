"""The file of a trained model, with a description so that the model can be used without its data.

**Guarantee**

* The description holds only public facts from the configuration or about a standard data set, and the digest
  of the statement, which is released, too.
* Reading a file runs no code that it holds or names: weights are numbers, the description is JSON, and the
  user's own factory is called only if the caller gives it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from tacit import __version__
from tacit.datasets import Dataset
from tacit.errors import InvalidInput
from tacit.files import write_atomically
from tacit.report.model_card import CardFacts
from tacit.runs.config import Config
from tacit.runs.kinds import Kind, Table, kind_from, kind_of
from tacit.runs.model import Factory, build_model, import_factory
from tacit.runs.sections import ModelSection
from tacit.runs.tasks import task_of
from tacit.serial import parse_json

if TYPE_CHECKING:
    from tacit.pretrained.model import TunedModel

ENCODER = "encoder"
"""The name of the folder for the public model's body, inside the folder of a run."""
_FORMAT = 2  # Tacit 0.2.0 wrote format 1
_NAME = "tacit"
_TASKS = ("classes", "labels", "numbers", "text")


@dataclass(frozen=True)
class Description:
    """The description of a model in its file.

    Attributes:
        model: the [model] section of the run; its factory is a reference, "module:function".
        input_shape: the shape of one record as the model gets it, after features are computed.
        outputs: the number of outputs for a record, or for each character of text.
        task: "classes", "labels", "numbers" or "text".
        classes: the names of the classes, in the order of the outputs; empty for other tasks.
        target_bounds: for numbers, the values of each target that are scaled to -1 and 1.
        preprocessing: the kind of data, which encodes the user's records.
        features: "raw", or for pictures "scattering" or "pictures" (whitened scattering).
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
        """Read a description from plain data."""
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
    """Describe the model of a run; ``statement`` is the JSON of its privacy statement."""
    task = task_of(data)
    kind = kind_of(config, data)
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
    """Return the SHA-256 of a statement's bytes, in hexadecimal."""
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
    """Read the description in the file of a model."""
    if not path.is_file():
        raise InvalidInput(
            f"there is no model at {path}. Name the folder of a finished run, or copy the file into it."
        )
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(_NAME)
    except (SafetensorError, OSError) as problem:
        raise _unreadable(path, problem) from None
    if text is None:
        raise InvalidInput(
            f"{path} does not say which model its weights belong to: another program wrote it. If you have "
            "the data and the folder private/, write the folder of the run again, without a further step: "
            f"tacit train {path.parent}/config.toml --out {path.parent} --resume. Otherwise train again."
        )
    try:
        data = parse_json(text)
        if data["format"] != _FORMAT:
            raise InvalidInput(
                f"{path} was written by Tacit {data.get('version', 'of another version')!s:.20} in format "
                f"{data['format']!r:.20}, and this version reads format {_FORMAT}: install that version, or "
                "train again."
            )
        return Description.from_data(data)
    except InvalidInput:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise InvalidInput(
            f"{path} has an unreadable description of its model ({type(problem).__name__}): it was changed "
            "after the run, or the file is damaged. Copy it again from the run's folder."
        ) from None


def rebuild(path: Path, description: Description, factory: Factory | str | None = None) -> nn.Module:
    """Make the model of a file, in evaluation mode; the state of torch's generator does not change.

    Args:
        factory: for a model of the user's own, the function that makes it, or its "module:function".
    """
    section = description.model
    if description.pretrained is not None:
        return tuned_model(path, description)
    if section.factory is not None and factory is None:
        raise InvalidInput(
            f"{path} needs the function that made its model: a file must not decide which code runs. Name "
            f'it yourself: tacit.load(..., factory="{section.factory}"), or --factory {section.factory}; '
            "its module must be in the current folder or installed."
        )
    if section.factory is None and factory is not None:
        raise InvalidInput(
            f"factory is for models of your own; {path} holds the network {section.name!r} of Tacit."
        )
    function = import_factory(factory) if isinstance(factory, str) else factory
    with torch.random.fork_rng(devices=[]):
        numbers = not (description.classes or description.labels)
        model = build_model(section, description.input_shape, description.outputs, function, numbers=numbers)
    load_weights(model, path)
    return model.eval()


def tuned_model(path: Path, description: Description) -> TunedModel:
    """Load the head in a file and the body in its folder ``encoder``, in evaluation mode."""
    from tacit.pretrained import load_pretrained  # imports transformers
    from tacit.pretrained.model import Head, TunedModel

    folder, kind = path.parent / ENCODER, description.preprocessing
    if not folder.is_dir():
        raise InvalidInput(
            f"{folder}, the body of the model, is missing: {path} holds only its head. Copy the whole "
            "folder of the run; private/ is not needed."
        )
    encoder = load_pretrained(folder)
    if encoder.digest != description.pretrained:
        raise InvalidInput(
            f"the body in {folder} does not belong to the head in {path}. Copy both from one run."
        )
    text = kind.encoder.text if isinstance(kind, Table) else None
    columns = 0 if text is None else kind.shape[0] - text.length
    model = TunedModel(encoder, Head(encoder.features, description.outputs, columns=columns), columns)
    load_weights(model.head, path)
    return model.eval()


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights of a file into a model."""
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as problem:
        raise _unreadable(path, problem) from None
    if misfits := _misfits(model.state_dict(), weights):
        raise InvalidInput(
            f"{path} does not fit its model: {'; '.join(misfits)}. Was a file copied from another run, or "
            "the code of the model changed? Take the file and the code that belong together."
        )
    if broken := [name for name, value in weights.items() if not bool(torch.isfinite(value).all())]:
        raise InvalidInput(
            f"{path} holds numbers that are not finite, in {_some(broken)}: training diverged. Train again, "
            "with a lower learning rate."
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
