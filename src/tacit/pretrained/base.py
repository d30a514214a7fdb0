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
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tacit.files import write_atomically
from tacit.pretrained.folder import file_digest
from tacit.pretrained.looking import FORMAT, SAVED

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
