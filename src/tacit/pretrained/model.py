"""Pretrained models: frozen networks that map each record to features, independently of other records.

Letters: n records; d features per record.
"""

# Guarantee:
# * The features of a record depend on that record and the model alone, up to floating-point rounding: a
#   frozen model stays in evaluation mode, and batch norm never uses the statistics of a batch.
# * Loading runs no code from a file: weights are safetensors, or files that torch reads with weights_only.

from __future__ import annotations

import errno
import hashlib
import json
import math
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from tacit.clipping.isolation.synthetic import made_up
from tacit.errors import InvalidInput, UnsupportedModel, needed
from tacit.files import write_atomically
from tacit.pretrained.finding import FORMAT, SAVED, file_digest

_WEIGHTS = "model.safetensors"
BATCH = 32
"""The number of records per pass of a frozen model. More are no faster, and take more memory."""


class Pretrained(nn.Module, ABC):
    """A public model without its head, in float32, loaded by :func:`tacit.pretrained.load_pretrained`.

    Attributes:
        body: the network, frozen at first.
        features: d, the number of features.
        digest: the SHA-256 of the weights and of all settings that change the features, in hexadecimal.
        name: a description in one line.
        tunable: whether the body can be trained.
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

        ``decides`` contains all facts that change the features, for the digest.  ``settings`` are the
        arguments of ``load_pretrained`` that load this model again.
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

        They are computed on the model's device, and returned on the device of ``inputs``.
        """
        features = torch.empty((len(inputs), self.features), device=inputs.device)
        with torch.inference_mode():
            for start in range(0, len(inputs), BATCH):
                rows = inputs[start : start + BATCH]
                features[start : start + BATCH] = self(rows.to(self.device)).to(features)
        return features

    def made_up(self, example: Tensor) -> Tensor:
        """Return eight synthetic records, of the shape and type of ``example``."""
        generator = torch.Generator().manual_seed(0)
        return torch.rand((8, *example.shape[1:]), generator=generator).to(example)

    @property
    def device(self) -> torch.device:
        """The device of the body."""
        return next((p.device for p in self.body.parameters()), torch.device("cpu"))

    def train(self, mode: bool = True) -> Self:
        """Set the mode of a trained body; a frozen body stays in evaluation mode.

        Batch norm always stays in evaluation mode, because batch statistics would mix records.
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

        The files contain the original weights; :meth:`save_trained` saves the trained ones.
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
        files = {
            name: path
            for name, path in self._files.items()
            if not name.endswith((".safetensors", ".safetensors.index.json", ".pth", ".pt"))
        }
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


def parameters_of(body: nn.Module) -> int:
    """Return the number of parameters of a network."""
    return sum(p.numel() for p in body.parameters())


def files_in(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Return the paths of those named files that exist in the folder, by name."""
    return {name: folder / name for name in names if (folder / name).is_file()}


@final
class UnitLength(nn.Module):
    """Scales inputs (n, d + c): the d features to length 1, and each of the c columns by 1 / sqrt(c).

    So a record's features have length 1 for any public model, and its c columns in [-1, 1] have length at
    most 1.
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
    """A linear layer, initialised to 0, on features of length 1: (n, d + c) to (n, k)."""

    def __init__(self, features: int, outputs: int, *, columns: int = 0) -> None:
        layer = nn.Linear(features + columns, outputs)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        super().__init__(UnitLength(features), layer)


@final
class TunedModel(nn.Module):
    """A public model with a head, from records and their c ordinary columns to (n, k) outputs.

    Without gradients, :meth:`Pretrained.embed` computes the features, to save memory.
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
    """Add LoRA to the body. LoRA and the head are trained; the body's weights stay fixed."""
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
    """Make the body's weights trainable too."""
    _body(model).requires_grad_(True)
    return model


def merged(model: TunedModel) -> TunedModel:
    """Merge LoRA into the weights and freeze them, so that the model does not need peft."""
    merge: Any = getattr(model.encoder.body, "merge_and_unload", None)
    if merge is not None:
        model.encoder.body = merge()
    model.encoder.requires_grad_(False)
    return model


def _body(model: TunedModel) -> nn.Module:
    body = model.encoder.body
    if not model.encoder.tunable:
        raise InvalidInput(
            '[model] tune must be "head" for a .pt2 or .onnx file, which cannot be trained. For "lora" or '
            '"full", give a file of weights, and name its network with [model] architecture.'
        )
    return body


PIECE = 512
"""The number of records per file. After an interruption, at most one file is computed again."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SUM = 32
"""The number of bytes of the SHA-256 at the end of a file, which reveals damage."""


@final
class FeatureCache:
    """A cache of a frozen model's features, in files that only their owner can read.

    A file's name is the SHA-256 of the model's digest and of the records, so features of another model or of
    other records are never used. A damaged file is computed again. An interrupted run continues where it
    stopped.
    """

    def __init__(self, encoder: Pretrained, folder: Path, also_in: Sequence[Path] = ()) -> None:
        """Open the cache of a model."""
        self.encoder, self.folder = encoder, Path(folder)
        self._folders = (self.folder, *map(Path, also_in))

    def __call__(self, inputs: Tensor, progress: Callable[[int], object] | None = None) -> Tensor:
        """Return (n, d) features of (n, ...) records, on the CPU."""
        if any(p.requires_grad for p in self.encoder.parameters()):
            raise InvalidInput(
                "the encoder must be frozen; otherwise the cached features become wrong. Freeze it with "
                "requires_grad_(False), or call the encoder without the cache."
            )
        features = torch.empty((len(inputs), self.encoder.features))
        for start in range(0, len(inputs), PIECE):
            rows = inputs[start : start + PIECE]
            features[start : start + PIECE] = self._piece(rows, left=len(inputs) - start)
            if progress is not None:
                progress(start + len(rows))
        return features

    def _piece(self, rows: Tensor, left: int) -> Tensor:
        key, shape = self._key(rows), (len(rows), self.encoder.features)
        for folder in self._folders:
            stored = _read(folder / f"{key}.npy", shape)
            if stored is not None:
                return torch.from_numpy(stored)
        features = self.encoder.embed(rows).cpu().float()
        try:
            _write(self.folder / f"{key}.npy", features.numpy())
        except OSError as problem:
            if problem.errno not in _FULL:
                raise
            megabytes = left * self.encoder.features * 4 / 1e6
            raise InvalidInput(
                f"the disk of {self.folder} is full: {left:,} more records need {megabytes:,.1f} MB. Free "
                "some space and run the same command again; it continues."
            ) from None
        return features

    def _key(self, rows: Tensor) -> str:
        rows = rows.detach().cpu().contiguous()
        digest = hashlib.sha256(f"{self.encoder.digest} {rows.dtype} {tuple(rows.shape)} ".encode())
        digest.update(rows.view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def _write(path: Path, features: np.ndarray) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    whole = BytesIO()
    np.save(whole, features)
    data = whole.getvalue()
    write_atomically(path, lambda file: file.write(data + hashlib.sha256(data).digest()), mode=0o600)


def _read(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the features in a file; None if the file is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data[:-_SUM]).digest() != data[-_SUM:]:
        return None
    features = np.load(BytesIO(data[:-_SUM]), allow_pickle=False)
    return features if features.shape == shape and features.dtype == np.float32 else None


Encoder = Callable[[Tensor], Tensor]
_ROUNDING = 1e-3  # relative; rounding differs far less, and features that mix records differ far more
_CAUSES = (
    "One record's influence then has no bound. Look for batch norm in training mode (call eval() first), for "
    "x - x.mean(0), and for padding without a mask."
)


def check_isolated(encoder: Encoder, example_inputs: Tensor) -> None:
    """Refuse an encoder that mixes records, or that does not return features.

    The encoder gets synthetic records alone, in a batch and in another order. A module's buffers are
    restored.
    """
    with torch.no_grad(), torch.random.fork_rng(), _restored_buffers(encoder):
        rows, features = _accepted_records(encoder, example_inputs)
        if not _alike(features, _features(encoder, rows)):
            raise UnsupportedModel(
                "the encoder is not deterministic. Look for dropout in training mode (call eval() first) and "
                "for torch.rand."
            )
        alone = torch.cat([_features(encoder, row) for row in torch.split(rows, 1)])
        if not _alike(features, alone):
            raise UnsupportedModel(
                f"the encoder's features of a record depend on the other records of the batch. {_CAUSES}"
            )
        if not _alike(features, _features(encoder, rows.flip(0)).flip(0)):
            raise UnsupportedModel(
                f"the encoder's features of a record depend on its place in the batch. {_CAUSES}"
            )


def _accepted_records(encoder: Encoder, example: Tensor) -> tuple[Tensor, Tensor]:
    """Return synthetic records that the encoder accepts, and their features."""
    if isinstance(encoder, Pretrained):
        rows = encoder.made_up(example)
        return rows, _features(encoder, rows)
    normal, whole = made_up((example,), 1)[0], made_up((example.long(),), 1)[0].to(example)
    try:
        return normal, _features(encoder, normal)
    except InvalidInput:  # it may accept only integers, such as tokens or indices
        return whole, _features(encoder, whole)


def _features(encoder: Callable[[Tensor], object], rows: Tensor) -> Tensor:
    try:
        features = encoder(rows)
    except Exception as problem:  # noqa: BLE001  # an encoder raises anything; the records are made up
        reason = " ".join(str(problem).split())[:300].rstrip(".")
        raise InvalidInput(
            f"the encoder fails on synthetic records of shape {tuple(rows.shape)}: {type(problem).__name__}: "
            f"{reason}. Make it accept inputs (n, ...) for any n."
        ) from None
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != len(rows):
        output = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise InvalidInput(
            f"the encoder must return features (n, d), but returned {output} for n = {len(rows)} records. "
            "Use its output before the head, with flatten(1)."
        )
    if not features.is_floating_point() or not bool(features.isfinite().all()):
        raise InvalidInput(
            f"the encoder must return finite floats; it returned {features.dtype}"
            + (", with NaN or infinity among them" if features.is_floating_point() else "")
            + ". Check its weights and its range of inputs."
        )
    return features.detach().clone()


def _alike(first: Tensor, second: Tensor) -> bool:
    """Return whether features are equal up to rounding: for each record, the difference has a small norm."""
    first, second = first.double(), second.double()
    most = _ROUNDING * first.norm(dim=1).clamp(min=1e-12)
    return first.shape == second.shape and bool(((first - second).norm(dim=1) <= most).all())


@contextmanager
def _restored_buffers(encoder: Encoder) -> Iterator[None]:
    """Restore a module's buffers at the end, as batch norm in training mode changes them."""
    copies = {}
    if isinstance(encoder, nn.Module):
        copies = {buffer: buffer.detach().clone() for buffer in encoder.buffers()}
    try:
        yield
    finally:
        for buffer, before in copies.items():
            buffer.copy_(before)
