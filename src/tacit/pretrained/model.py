"""Pretrained models: frozen networks that map each record to features, independently of other records.

**Guarantee**

* The features of a record depend on that record and the model alone, up to floating-point rounding: a frozen
  model stays in evaluation mode, and batch norm never uses the statistics of a batch.
* Loading runs no code from a file: weights are safetensors, or files that torch reads with ``weights_only``.

Letters: n records; d features per record.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, final

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from tacit.errors import InvalidInput, needed
from tacit.files import write_atomically
from tacit.pretrained.finding import FORMAT, SAVED, file_digest

_WEIGHTS = "model.safetensors"
BATCH = 32
"""The number of records per pass of a frozen model. More are no faster, and take more memory."""


class Pretrained(nn.Module, ABC):
    """A public model without its head, in float32, loaded by :func:`tacit.pretrained.load_pretrained`.

    Attributes:
        body: the network, at first frozen; all its weights can be trained, or only LoRA.
        features: d, the number of features.
        digest: the SHA-256 of the weights and of all settings that change the features, in hexadecimal.
        name: a description in one line.
        tunable: whether the body can be trained.

    >>> from tacit.pretrained import load_pretrained
    >>> model = load_pretrained("MiniLM")  # doctest: +SKIP
    >>> model.embed(model.tokens(["a fine film", "a waste of time"])).shape  # doctest: +SKIP
    torch.Size([2, 384])
    """

    tunable: bool = True

    def __init__(
        self,
        body: nn.Module,
        *,
        features: int,
        name: str,
        decides: Mapping[str, Any],
        files: Mapping[str, Path],
        settings: Mapping[str, Any],
    ) -> None:
        """Wrap a body as a model.

        Args:
            body: the network, in evaluation mode.
            features: d, the number of features.
            name: a description in one line.
            decides: all facts that change the features; the digest is computed from them.
            files: the files that the body was loaded from, by their names in a saved folder.
            settings: the arguments of ``load_pretrained`` that load this model again.
        """
        super().__init__()
        self.body = body.requires_grad_(False)
        self.features, self.name = features, name
        self.digest = _digest(decides)
        self._decides, self._files, self._settings = dict(decides), dict(files), dict(settings)
        self.training = False

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, d) features of n records."""

    def embed(self, inputs: Tensor) -> Tensor:
        """Return (n, d) features without gradients, computed in small batches.

        The features are computed on the model's device, and returned on the device of ``inputs``.
        """
        features = torch.empty((len(inputs), self.features), device=inputs.device)
        with torch.inference_mode():
            for start in range(0, len(inputs), BATCH):
                rows = inputs[start : start + BATCH]
                features[start : start + BATCH] = self(rows.to(self.device)).to(features)
        return features

    def made_up(self, example: Tensor) -> Tensor:
        """Return eight made-up records, of the shape and type of ``example``."""
        generator = torch.Generator().manual_seed(0)
        return torch.rand((8, *example.shape[1:]), generator=generator).to(example)

    @property
    def device(self) -> torch.device:
        """The device of the body."""
        return next((p.device for p in self.body.parameters()), torch.device("cpu"))

    def train(self, mode: bool = True) -> Self:
        """Set the mode of a body that is trained; a frozen body stays in evaluation mode.

        Batch norm always stays in evaluation mode, as the statistics of a batch would mix records.
        """
        if not any(p.requires_grad for p in self.body.parameters()):
            return self
        super().train(mode)
        for part in self.modules():
            if isinstance(part, nn.modules.batchnorm._NormBase):
                part.training = False
        return self

    def save(self, folder: Path) -> tuple[str, ...]:
        """Write the files that ``load_pretrained(folder)`` needs for this model, and return their names.

        The files contain the original weights; :meth:`save_trained` saves weights that were trained since.
        """
        return self._save(folder, self._files, self._settings)

    def save_trained(self, folder: Path) -> tuple[str, ...]:
        """Write the same files with the current weights, and give the model a new digest."""
        name, settings = _WEIGHTS, self._settings
        if "file" in settings:  # weights of an architecture
            settings = {**settings, "file": (name := "weights.safetensors")}
        folder.mkdir(parents=True, exist_ok=True)
        weights = {key: value.detach().cpu().clone() for key, value in self.body.state_dict().items()}
        save_file(weights, folder / name, metadata={"format": "pt"})
        self.digest = _digest({**self._decides, "weights": file_digest(folder / name)})
        files = {name: path for name, path in self._files.items() if not _holds_weights(name)}
        return (name, *self._save(folder, files, settings))

    def _save(self, folder: Path, files: Mapping[str, Path], settings: Mapping[str, Any]) -> tuple[str, ...]:
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, folder / name)
        description = {"format": FORMAT, "digest": self.digest, "name": self.name, **settings}
        text = json.dumps(description, indent=1) + "\n"
        write_atomically(folder / SAVED, lambda file: file.write(text.encode()))
        return (*files, SAVED)


def _digest(decides: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all facts that change the features."""
    text = json.dumps({"format": FORMAT, **decides}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _holds_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".safetensors.index.json", ".pth", ".pt"))


def parameters_of(body: nn.Module) -> int:
    """Return the number of parameters of a network."""
    return sum(p.numel() for p in body.parameters())


def files_in(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Return the paths of those named files that exist in the folder, by name."""
    return {name: folder / name for name in names if (folder / name).is_file()}


@final
class UnitLength(nn.Module):
    """Scales inputs (n, d + c): the d features to length 1, and each of the c columns by 1 / sqrt(c).

    So a record's features have length 1 for any public model, and its c columns, each in [-1, 1], together
    have length at most 1.

    >>> UnitLength(2)(torch.tensor([[3.0, 4.0, -1.0]]))
    tensor([[ 0.6000,  0.8000, -1.0000]])
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scaled (n, d + c) features."""
        features, columns = inputs[:, : self.features], inputs[:, self.features :]
        scale = math.sqrt(max(1, columns.shape[1]))
        return torch.cat([F.normalize(features, dim=1), columns / scale], dim=1)


@final
class Head(nn.Sequential):
    """A linear layer, initialised to 0, on features of length 1: (n, d + c) to (n, k).

    >>> Head(384, 2)(torch.ones(5, 384)).shape
    torch.Size([5, 2])
    """

    def __init__(self, features: int, outputs: int, *, columns: int = 0) -> None:
        layer = nn.Linear(features + columns, outputs)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        super().__init__(UnitLength(features), layer)


@final
class TunedModel(nn.Module):
    """A public model with a head, which maps records and their c ordinary columns to (n, k) outputs.

    Without gradients, :meth:`Pretrained.embed` computes the features, as this takes little memory.
    """

    def __init__(self, encoder: Pretrained, head: Head, columns: int = 0) -> None:
        super().__init__()
        self.encoder, self.head, self.columns = encoder, head, columns

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, k) outputs of (n, ...) records."""
        records = inputs[:, : inputs.shape[1] - self.columns] if self.columns else inputs
        followed = torch.compiler.is_exporting() or torch._C._get_tracing_state() is not None
        by_parts = not torch.is_grad_enabled() and not followed
        features = self.encoder.embed(records) if by_parts else self.encoder(records)
        if self.columns:
            features = torch.cat([features, inputs[:, inputs.shape[1] - self.columns :]], dim=1)
        outputs: Tensor = self.head(features)
        return outputs


def with_lora(
    model: TunedModel, *, rank: int, alpha: float, targets: Sequence[str], blocks: Sequence[int] = ()
) -> TunedModel:
    """Add LoRA to the body. LoRA and the head are trained; the body's weights stay fixed.

    Args:
        model: the model to change.
        rank: the rank r of each update B A, which is initially 0.
        alpha: a number; each update is multiplied by alpha / r.
        targets: the layers that get an update, by the last part of their names, such as "query".
        blocks: the numbers of the transformer blocks whose layers get an update; all blocks if empty.

    Raises:
        InvalidInput: if the body cannot be tuned, or has no such layer.
        MissingExtra: if peft is not installed.
    """
    peft = needed("peft", "lora", '[model] tune = "lora"')
    layers = {name.rpartition(".")[2]: layer for name, layer in _body(model).named_modules()}
    for target in targets:
        if target not in layers:
            linear = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
            raise InvalidInput(
                f'[lora] targets: the public model has no layer "{target}"; it has {", ".join(linear[:8])}.'
            )
    transposed = {type(layers[target]).__name__ == "Conv1D" for target in targets}
    settings = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=list(targets),
        layers_to_transform=list(blocks) or None,
        fan_in_fan_out=transposed == {True},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of peft and transformers, about each other
        model.encoder.body = peft.get_peft_model(_body(model), settings)
    return model


def with_all_weights(model: TunedModel) -> TunedModel:
    """Make the body's weights trainable too.

    Raises:
        InvalidInput: if the body cannot be tuned.
    """
    _body(model).requires_grad_(True)
    return model


def merged(model: TunedModel) -> TunedModel:
    """Merge LoRA into the weights that it updates, and freeze them, so that the model does not need peft."""
    merge: Any = getattr(model.encoder.body, "merge_and_unload", None)
    if merge is not None:
        model.encoder.body = merge()
    model.encoder.requires_grad_(False)
    return model


def _body(model: TunedModel) -> nn.Module:
    body = model.encoder.body
    if not model.encoder.tunable:
        raise InvalidInput(
            '[model] tune must be "head" for a .pt2 or .onnx file: its weights cannot be trained. For "lora" '
            'or "full", give a file of weights instead, and name its network with [model] architecture.'
        )
    return body
