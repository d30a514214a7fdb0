"""Loaders of image sets in array files: NumPy's npz, and the IDX format of MNIST and similar sets."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Tensor

from tacit.datasets.dataset import Dataset, TensorPair
from tacit.errors import InvalidInput, check_real, without_values

_KEYS = ("x_train", "y_train", "x_test", "y_test")
_IDX_TYPES: Mapping[int, str] = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

IDX_FILES: tuple[str, str, str, str] = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def load_npz(
    path: Path,
    *,
    name: str,
    classes: tuple[str, ...],
    scale: float = 255.0,
    source: str | None = None,
    unit: str = "image",
) -> Dataset:
    """Read ``x_train, y_train, x_test, y_test`` from an npz file.

    In the file, x is (n, h, w), (n, h, w, c) with c = 1 or 3, or (n, d), and y is (n,) class numbers. The
    data set's ``inputs`` are (n, c, h, w) or (n, d), divided by the public constant ``scale``: 255 for
    pixels, 1 for features.

    Raises:
        InvalidInput: if the file is unreadable, an array is missing, or labels are outside the classes.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "toy.npz"
    >>> x, y = np.full((4, 2, 2), 255, dtype=np.uint8), np.array([0, 1, 0, 1])
    >>> np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    >>> load_npz(path, name="toy", classes=("a", "b")).train.inputs.shape
    torch.Size([4, 1, 2, 2])
    """
    arrays = read_npz(Path(path), _KEYS)
    train, test = (
        TensorPair(
            to_inputs(arrays[f"x_{part}"], scale=scale, name=f"x_{part} of {path}"),
            to_targets(arrays[f"y_{part}"], classes=len(classes), name=f"y_{part} of {path}"),
        )
        for part in ("train", "test")
    )
    return Dataset(name, train, test, tuple(classes), source or f"{name}, from {Path(path).name}", unit)


def load_idx(
    folder: Path, *, name: str, classes: tuple[str, ...], source: str | None = None, unit: str = "image"
) -> Dataset:
    """Read the four IDX files of an MNIST-like set, plain or ``.gz``, from one folder.

    Raises:
        InvalidInput: if a file is missing or broken, or labels are outside the classes.

    >>> import struct, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in IDX_FILES:
    ...     axes = (2, 3, 3) if "images" in name else (2,)
    ...     head = bytes([0, 0, 8, len(axes)]) + struct.pack(f">{len(axes)}I", *axes)
    ...     _ = (folder / name).write_bytes(head + bytes(np.prod(axes)))
    >>> data = load_idx(folder, name="tiny", classes=("a", "b"))
    >>> data.train.inputs.shape, data.train.targets.tolist()
    (torch.Size([2, 1, 3, 3]), [0, 0])
    """
    paths = [find_idx(Path(folder), file) for file in IDX_FILES]
    missing = [file for file, path in zip(IDX_FILES, paths, strict=True) if path is None]
    if missing:
        raise InvalidInput(
            f"{folder} lacks {', '.join(missing)} (plain or .gz); an IDX set has these four files."
        )
    images, labels, test_images, test_labels = (read_idx(path) for path in paths if path is not None)
    count = len(classes)
    train = TensorPair(
        to_inputs(images, name=IDX_FILES[0]), to_targets(labels, classes=count, name=IDX_FILES[1])
    )
    test = TensorPair(
        to_inputs(test_images, name=IDX_FILES[2]), to_targets(test_labels, classes=count, name=IDX_FILES[3])
    )
    return Dataset(name, train, test, tuple(classes), source or f"{name}, IDX files", unit)


def find_idx(folder: Path, file: str) -> Path | None:
    """Return the plain or the gzipped IDX file of this name in ``folder``, if either exists."""
    candidates = (folder / file, folder / f"{file}.gz")
    return next((path for path in candidates if path.is_file()), None)


def read_idx(path: Path) -> NDArray[Any]:
    """Read one IDX file.

    Its bytes are two zeros, the type, the number of axes, big-endian sizes of the axes, and the values.

    Raises:
        InvalidInput: if the file is not IDX or its length does not fit its header.
    """
    path = Path(path)
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as problem:
        raise InvalidInput(f"cannot read {path}: {without_values(problem)}. Fetch the file again.") from None
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX_TYPES:
        raise InvalidInput(
            f"{path} is not an IDX file: it does not start with two zero bytes and the type of its numbers. "
            "Name the file that came with the data set."
        )
    axes = raw[3]
    header = 4 + 4 * axes
    shape = tuple(int(size) for size in np.frombuffer(raw[4:header], dtype=">u4"))
    kind = np.dtype(_IDX_TYPES[raw[2]])
    expected = header + kind.itemsize * int(np.prod(shape, dtype=np.int64))
    if len(shape) != axes or len(raw) != expected:
        raise InvalidInput(
            f"{path} is cut short or damaged: {len(raw)} bytes where its header says {expected}."
        )
    return np.frombuffer(raw, dtype=kind, offset=header).reshape(shape).astype(kind.newbyteorder("="))


def read_npz(path: Path, keys: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Return the named arrays of an npz file; refuse pickled objects.

    Raises:
        InvalidInput: if the file is unreadable or an array is missing.
    """
    try:
        with _open_npz(path) as archive:
            missing = [key for key in keys if key not in archive]
            if missing:
                raise InvalidInput(
                    f"{path} lacks the array {missing[0]!r}; it must hold {', '.join(keys)} and holds "
                    f"{', '.join(archive) or 'nothing'}."
                )
            return {key: archive[key] for key in keys}
    except InvalidInput:
        raise
    except (OSError, EOFError, zipfile.BadZipFile, ValueError) as problem:
        raise InvalidInput(
            f"cannot read {path} as an npz file: {without_values(problem)}. It must hold arrays of numbers, "
            "saved with numpy.savez; arrays of Python objects are not read."
        ) from None


def _open_npz(path: Path) -> NpzFile:
    archive = np.load(path, allow_pickle=False)
    if not isinstance(archive, NpzFile):
        raise InvalidInput(f"cannot read {path} as an npz file: it holds a single array, not named ones.")
    return archive


def to_inputs(values: NDArray[Any], *, scale: float = 255.0, name: str) -> Tensor:
    """Convert pixels (n, h, w), (n, h, w, c) or rows (n, d) to float32 (n, c, h, w) or (n, d).

    Values are divided by ``scale``.
    """
    scale = check_real("scale", scale, low=0.0, open_low=True)
    if (
        values.ndim not in (2, 3, 4)
        or values.dtype.kind not in "uif"
        or (values.ndim == 4 and values.shape[3] > 4)
    ):
        raise InvalidInput(
            f"{name} must be images or rows of numbers; got {values.dtype} {values.shape}. Images are (n, h, "
            "w), or (n, h, w, c) with c <= 4; rows are (n, d)."
        )
    if values.ndim == 3:
        values = values[:, None]
    elif values.ndim == 4:
        values = values.transpose(0, 3, 1, 2)
    inputs = torch.from_numpy(np.array(values, dtype=np.float32, order="C"))  # a copy
    inputs /= scale
    if not bool(torch.isfinite(inputs).all()):
        raise InvalidInput(f"{name} holds values that are not finite; replace or remove them first.")
    return inputs


def to_targets(labels: NDArray[Any], *, classes: int, name: str) -> Tensor:
    """Convert labels (n,) or (n, 1) to int64 (n,), and check that they are below ``classes``."""
    flat = labels.reshape(-1) if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or flat.dtype.kind not in "ui":
        raise InvalidInput(f"{name} must be integer class numbers (n,); got {labels.dtype} {labels.shape}.")
    outside = int(((flat < 0) | (flat >= classes)).sum())
    if outside:
        raise InvalidInput(
            f"{name} must lie in 0..{classes - 1}, one number per declared class; {outside} of them do not."
        )
    return torch.from_numpy(flat.astype(np.int64))
