"""A cache of features, in files that are named by a hash of the model and the records.

Features are as sensitive as the records, as they reveal nearly everything about them.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from tacit.clipping.isolation.synthetic import made_up
from tacit.errors import InvalidInput, UnsupportedModel
from tacit.files import write_atomically
from tacit.pretrained.model import Pretrained

PIECE = 512
"""The number of records per file. After an interruption, at most one file is computed again."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SUM = 32
"""The number of bytes of the SHA-256 at the end of a file, which reveals damage."""


@final
class FeatureCache:
    """A cache of a frozen model's features, in files that only their owner can read.

    A file's name is the SHA-256 of the model's digest and of the records, so the features of another model or
    of other records are never used. A damaged file is computed again. An interrupted run continues where it
    stopped.
    """

    def __init__(self, encoder: Pretrained, folder: Path, also_in: Sequence[Path] = ()) -> None:
        """Open the cache of a model.

        Args:
            encoder: a frozen model.
            folder: the folder for new files. It is created if needed.
            also_in: further folders to search for files.
        """
        self.encoder, self.folder = encoder, Path(folder)
        self._folders = (self.folder, *map(Path, also_in))

    def __call__(self, inputs: Tensor, progress: Callable[[int], object] | None = None) -> Tensor:
        """Return (n, d) features of (n, ...) records, on the CPU.

        Args:
            inputs: the records, in the form of the model's inputs.
            progress: a function that is called after each piece, with the number of records done.

        Raises:
            InvalidInput: if the model is not frozen, or the disk is full.
        """
        if any(p.requires_grad for p in self.encoder.parameters()):
            raise InvalidInput(
                "the encoder must be frozen. Features of a trained encoder change at each step. Freeze it "
                "with requires_grad_(False), or call the encoder itself, without the cache."
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
                f"the disk of {self.folder} is full: features of {left:,} records are not written yet, and "
                f"need {megabytes:,.1f} MB more. Make room and run the same command again: it continues."
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
    "Its features depend on other records, and no private step bounds that. Look for batch norm in training "
    "mode (call eval() first), for x - x.mean(0), and for padding without a mask."
)


def check_isolated(encoder: Encoder, example_inputs: Tensor) -> None:
    """Refuse an encoder whose features depend on other records, or that does not return features.

    The encoder gets made-up records alone, in a batch and in another order. If it is a module, its buffers
    are restored.

    Args:
        encoder: maps (n, ...) inputs to (n, d) features.
        example_inputs: (n, ...); only their shape and type are read.

    Raises:
        InvalidInput: if the encoder fails, or does not return (n, d) finite floats.
        UnsupportedModel: if features depend on other records, or are random.

    >>> import torch
    >>> check_isolated(lambda x: x - x.mean(0), torch.zeros(4, 3))
    Traceback (most recent call last):
    ...
    tacit.errors.UnsupportedModel: the encoder gives a record different features alone and in a batch. Its ...
    """
    with torch.no_grad(), torch.random.fork_rng(), _restored_buffers(encoder):
        rows, features = _accepted_records(encoder, example_inputs)
        if not _alike(features, _features(encoder, rows)):
            raise UnsupportedModel(
                "the encoder is not deterministic: the same records get different features each time. Look "
                "for dropout in training mode (call eval() first) and for torch.rand."
            )
        alone = torch.cat([_features(encoder, row) for row in torch.split(rows, 1)])
        if not _alike(features, alone):
            raise UnsupportedModel(
                f"the encoder gives a record different features alone and in a batch. {_CAUSES}"
            )
        if not _alike(features, _features(encoder, rows.flip(0)).flip(0)):
            raise UnsupportedModel(f"the encoder's features depend on the order of records. {_CAUSES}")


def _accepted_records(encoder: Encoder, example: Tensor) -> tuple[Tensor, Tensor]:
    """Return made-up records that the encoder accepts, and their features."""
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
            f"the encoder fails on made-up records of shape {tuple(rows.shape)}: {type(problem).__name__}: "
            f"{reason}. Make it accept inputs (n, ...) for any n."
        ) from None
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != len(rows):
        output = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise InvalidInput(
            f"the encoder must return features (n, d); for n = {len(rows)} records it returned {output}. "
            "Take its output before the head, and call flatten(1) on it."
        )
    if not features.is_floating_point() or not bool(features.isfinite().all()):
        raise InvalidInput(
            f"the encoder must return finite floats; it returned {features.dtype}"
            + (", with NaN or infinity among them" if features.is_floating_point() else "")
            + ". Check its weights, and the range of inputs that it expects."
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
