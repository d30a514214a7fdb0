"""A cache of features, in files that are named by a hash of the model and the records.

Features are as sensitive as the records, as they reveal nearly everything about them.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from tacit.errors import InvalidInput
from tacit.files import write_atomically
from tacit.pretrained.base import Pretrained

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
