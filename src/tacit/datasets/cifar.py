"""Readers of CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the official pickles, or JPEG in an npz file."""

from __future__ import annotations

import io
import itertools
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.datasets.arrays import read_npz, to_targets
from tacit.datasets.dataset import TensorPair
from tacit.errors import InvalidInput, needed, without_values

_RECONSTRUCT = np.zeros(0).__reduce__()[0]
_ARRAY_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy.core", "numpy._core")


def read_jpeg_npz(path: Path) -> tuple[TensorPair, TensorPair]:
    """Read CIFAR-10 from JPEG images in an npz file.

    Its arrays are ``jpeg_train`` (the bytes of all images), ``offsets_train`` (n + 1,) and ``y_train`` (n,),
    and the same for test.

    Raises:
        MissingExtra: if Pillow is not installed.
        InvalidInput: if an image cannot be read.
    """
    keys = tuple(f"{kind}_{part}" for part in ("train", "test") for kind in ("jpeg", "offsets", "y"))
    arrays = read_npz(path, keys)
    train, test = (
        TensorPair(
            _decode(arrays[f"jpeg_{part}"], arrays[f"offsets_{part}"], name=f"{path} ({part})"),
            to_targets(arrays[f"y_{part}"], classes=10, name=f"y_{part} of {path}"),
        )
        for part in ("train", "test")
    )
    return train, test


def _decode(stream: NDArray[np.uint8], offsets: NDArray[np.int64], *, name: str) -> Tensor:
    needed("PIL", "images", "Decoding JPEG pictures", package="pillow")
    from PIL import Image, UnidentifiedImageError

    raw = stream.tobytes()
    pixels = np.empty((len(offsets) - 1, 32, 32, 3), dtype=np.uint8)
    for number, (begin, end) in enumerate(itertools.pairwise(offsets)):
        try:
            with Image.open(io.BytesIO(raw[begin:end])) as picture:
                pixels[number] = np.asarray(picture.convert("RGB"))
        except (UnidentifiedImageError, OSError, ValueError) as problem:
            raise InvalidInput(
                f"picture {number} of {name} cannot be decoded: {without_values(problem)}."
            ) from None
    return _to_images(pixels.transpose(0, 3, 1, 2))


def _to_images(pixels: NDArray[np.uint8]) -> Tensor:
    images = torch.from_numpy(np.ascontiguousarray(pixels)).to(torch.float32)
    return images.div_(255.0)


def read_batches(root: Path, *, fine_labels: bool) -> tuple[TensorPair, TensorPair] | None:
    """Read the official Python version in ``root``, unpacked or as tar.gz; return None if neither exists.

    The tar.gz is read without unpacking it to the disk.

    Args:
        root: the folder that contains the unpacked folder or the archive.
        fine_labels: False for CIFAR-10; True for CIFAR-100 with its 100 fine labels.

    Raises:
        InvalidInput: if a file is damaged, or a pickle contains more than arrays and lists.
    """
    folder = "cifar-100-python" if fine_labels else "cifar-10-batches-py"
    archive = root / ("cifar-100-python.tar.gz" if fine_labels else "cifar-10-python.tar.gz")
    if (root / folder).is_dir():
        return _read_parts(lambda name: _read_file(root / folder / name), fine_labels)
    if not archive.is_file():
        return None
    try:
        with tarfile.open(archive) as tar:
            return _read_parts(lambda name: _read_member(tar, archive, f"{folder}/{name}"), fine_labels)
    except (tarfile.TarError, OSError, EOFError) as problem:
        raise InvalidInput(
            f"cannot read {archive}: {without_values(problem)}. Fetch the file again."
        ) from None


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise InvalidInput(
            f"cannot read {path}: {without_values(problem)}. Unpack the archive again."
        ) from None


def _read_member(tar: tarfile.TarFile, archive: Path, name: str) -> bytes:
    try:
        member = tar.extractfile(name)
    except KeyError:
        member = None
    if member is None:
        raise InvalidInput(f"{archive} lacks {name}; fetch the file again.")
    return member.read()


def _read_parts(read: Callable[[str], bytes], fine: bool) -> tuple[TensorPair, TensorPair]:
    train_files = ("train",) if fine else tuple(f"data_batch_{number}" for number in range(1, 6))
    test_files = ("test",) if fine else ("test_batch",)
    train, test = (
        _join([_read_batch(read(name), name, fine) for name in files]) for files in (train_files, test_files)
    )
    return train, test


def _join(pairs: list[tuple[NDArray[np.uint8], Tensor]]) -> TensorPair:
    pixels = np.concatenate([part for part, _ in pairs]).reshape(-1, 3, 32, 32)
    return TensorPair(_to_images(pixels), torch.cat([labels for _, labels in pairs]))


def _read_batch(raw: bytes, name: str, fine: bool) -> tuple[NDArray[np.uint8], Tensor]:
    batch = safe_unpickle(raw, name=name)
    key = "fine_labels" if fine else "labels"
    if not isinstance(batch, dict) or not {"data", key} <= set(batch):
        raise InvalidInput(f"{name} is not a CIFAR batch: it must be a dict with 'data' and {key!r}.")
    pixels = np.asarray(batch["data"])
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise InvalidInput(f"'data' of {name} must be uint8 (n, 3072); got {pixels.dtype} {pixels.shape}.")
    return pixels, to_targets(np.asarray(batch[key]), classes=100 if fine else 10, name=f"{key} of {name}")


class _Refused(pickle.UnpicklingError):
    """Raised for a pickle with something that no data file needs. The message names it and shows no data."""


class _ArraysOnly(pickle.Unpickler):
    """Builds dicts, lists, strings and NumPy arrays; refuses all other objects without calling their code."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if module_name in _ARRAY_MODULES and global_name in ("_reconstruct", "ndarray", "dtype"):
            return {"_reconstruct": _RECONSTRUCT, "ndarray": np.ndarray, "dtype": np.dtype}[global_name]
        if (module_name, global_name) == ("_codecs", "encode"):  # protocol 2 writes bytes this way
            return _encode_latin1
        raise _Refused(f"it calls {module_name}.{global_name}, which no data file needs")


def _encode_latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise _Refused(f"it encodes bytes as {encoding}")
    return text.encode("latin1")


def safe_unpickle(raw: bytes, *, name: str) -> Any:
    """Read a pickle of arrays, strings, numbers, lists and dicts, without running code from it.

    Raises:
        InvalidInput: if the pickle contains anything else. None of its code has run by then.

    >>> safe_unpickle(pickle.dumps({"labels": [1, 2]}), name="toy")
    {'labels': [1, 2]}
    """
    try:
        return _ArraysOnly(io.BytesIO(raw), encoding="latin1").load()
    except Exception as problem:  # noqa: BLE001  a hostile pickle can make the reader raise anything
        reason = str(problem) if isinstance(problem, _Refused) else without_values(problem)
        raise InvalidInput(f"{name} is not a pickle of arrays: {reason}.") from None
