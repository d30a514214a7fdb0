"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100, from local files or a download whose SHA-256 is checked.

The experiments read them as npz, in the IDX format, and as official pickles, which run no code here.
Pixels are divided by 255, a public constant.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import os
import pickle
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Tensor

from tacit import datasets
from tacit.datasets import Dataset, TensorPair
from tacit.datasets.tables import NAMES
from tacit.errors import InvalidInput, check_in, check_real, needed, without_values

# --- where the files are ---

_CHUNK = 1 << 20
_TIMEOUT = 60.0  # seconds without a byte before an error
_QUIET = 2.0  # seconds before a progress bar is worth showing


@dataclass(frozen=True)
class RemoteFile:
    """A file at an official URL, and the SHA-256 that it must have."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        """The file's name, the last part of its URL."""
        return self.url.rsplit("/", 1)[-1]


def fetch(remote: RemoteFile, folder: Path) -> Path:
    """Return ``folder / remote.name``, and download it unless it exists with the right checksum.

    The download goes to a temporary file in the same folder, which is renamed to the final name once its
    checksum is verified. So a file under the final name is always complete, no partial file remains, and two
    processes can download at the same time. A download that takes more than 2 s shows a progress bar.

    Raises:
        InvalidInput: if the URL cannot be reached, or the checksum is wrong.
    """
    target = folder / remote.name
    if target.is_file() and sha256_of(target) == remote.sha256:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    handle, partial_name = tempfile.mkstemp(dir=folder, prefix=f".{remote.name}.", suffix=".partial")
    partial = Path(partial_name)
    try:
        with os.fdopen(handle, "wb") as file:
            checksum = _copy(remote, file)
        if checksum != remote.sha256:
            raise InvalidInput(
                f"{remote.url} has the sha256 {checksum}, not {remote.sha256}: the file is damaged or was "
                f"replaced, and the download was deleted. Try again, or put a good copy at {target}."
            )
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(remote: RemoteFile, file: IO[bytes]) -> str:
    """Download the bytes into ``file``, and return their SHA-256."""
    from tqdm.auto import tqdm  # widgets in a notebook, text elsewhere

    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(remote.url, timeout=_TIMEOUT) as response:
            length = int(response.headers.get("Content-Length") or 0) or None
            with tqdm(
                total=length, desc=remote.name, unit="B", unit_scale=True, delay=_QUIET, leave=False
            ) as bar:
                while chunk := response.read(_CHUNK):
                    file.write(chunk)
                    digest.update(chunk)
                    bar.update(len(chunk))
    except (urllib.error.URLError, HTTPException, OSError, ValueError) as problem:
        raise InvalidInput(
            f"cannot fetch {remote.url}: {problem}. Without a network, put {remote.name} in a folder "
            "and name that folder (folder=..., or the environment variable TACIT_DATA)."
        ) from None
    return digest.hexdigest()


def search_folders(folder: Path | None) -> tuple[Path, ...]:
    """Return the folders to search, in order: ``folder``, the folder in TACIT_DATA, the user's cache.

    Raises:
        InvalidInput: if ``folder``, or the folder in TACIT_DATA, does not exist.
    """
    folders: list[Path] = []
    if folder is not None:
        folders.append(_existing("folder", Path(folder)))
    if variable := os.environ.get("TACIT_DATA"):
        folders.append(_existing("the environment variable TACIT_DATA", Path(variable)))
    folders.append(user_cache())
    return tuple(folders)


def user_cache() -> Path:
    """Return the folder for downloads, ``~/.cache/tacit`` unless XDG_CACHE_HOME names another place."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit"


def _existing(name: str, path: Path) -> Path:
    expanded = path.expanduser()
    if not expanded.is_dir():
        raise InvalidInput(f"{name} must name an existing folder; got {str(path)!r}.")
    return expanded


# --- array files ---

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


# --- CIFAR ---

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


# --- the data sets by name ---

_DIGITS = tuple(str(digit) for digit in range(10))
_FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100_TEXT = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal
shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
_CIFAR100 = tuple(_CIFAR100_TEXT.split())

_MNIST_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class _ImageSet:
    """An image set in files: the function that finds it in a folder, and its URLs.

    ``find`` gets a folder, and whether the user named that folder for this set.
    """

    find: Callable[[Path, bool], Dataset | None]
    remote: tuple[RemoteFile, ...]
    subfolder: str  # in the user's cache; "" if the file names are unique to the set
    files: str  # the names of the files, for the error


def load(name: str, *, folder: Path | None = None, download: bool = False) -> Dataset:
    """Load a data set by name, from the standard image sets or from :func:`tacit.datasets.load`.

    Image sets are searched for in ``folder``, then in the folder that the environment variable TACIT_DATA
    names, then in the user's cache. ``download=True`` allows downloading them to the cache, with a checksum.
    Their inputs are (n, channels, height, width) in [0, 1].

    Raises:
        InvalidInput: if the name is unknown, or the files are missing or damaged.
    """
    if name in NAMES:
        return datasets.load(name, folder=folder)
    check_in("name", name, (*NAMES, *_IMAGE_SETS))
    image_set = _IMAGE_SETS[name]
    folders = search_folders(folder)
    for place in folders:
        by_user = folder is not None and place == folders[0]
        if (dataset := image_set.find(place, by_user)) is not None:
            return dataset
    if not download:
        places = ", ".join(str(place) for place in folders) or "no folder"
        raise InvalidInput(
            f"data set {name!r} was not found in {places}. Put {image_set.files} in a folder and name it "
            "with folder=... or the environment variable TACIT_DATA, or allow fetching it from "
            f"{image_set.remote[0].url.rsplit('/', 1)[0]} with download=True."
        )
    cache = user_cache()
    for remote in image_set.remote:
        fetch(remote, cache / image_set.subfolder)
    fetched = image_set.find(cache, False)
    assert fetched is not None  # all its files were just put there
    return fetched


_MNIST = "MNIST, LeCun, Cortes and Burges 1998, pixels / 255; the official split"
_FASHION_MNIST = "Fashion-MNIST, Xiao et al. 2017 (1708.07747), pixels / 255; the official split"


def _find_idx_set(
    folder: Path, by_user: bool, *, name: str, subfolder: str, classes: tuple[str, ...], source: str
) -> Dataset | None:
    """Load MNIST or Fashion-MNIST from ``folder``; return None if its files are not there.

    They are one npz file, or four IDX files in a subfolder with the set's name or in torchvision's subfolder.
    Both sets use the same IDX file names, so IDX files directly in ``folder`` count only if the user named
    that folder.
    """
    npz = folder / f"{name.replace('-', '_')}.npz"
    if npz.is_file():
        return load_npz(npz, name=name, classes=classes, source=source)
    for place in ("", name, subfolder) if by_user else (name, subfolder):
        if all(find_idx(folder / place, file) is not None for file in IDX_FILES):
            return load_idx(folder / place, name=name, classes=classes, source=source)
    return None


def _find_cifar(
    folder: Path, _by_user: bool, *, name: str, classes: tuple[str, ...], about: str
) -> Dataset | None:
    pairs, lossy = read_batches(folder, fine_labels=name == "cifar100"), ""
    if pairs is None and name == "cifar10" and (folder / "cifar10_jpeg.npz").is_file():
        pairs, lossy = read_jpeg_npz(folder / "cifar10_jpeg.npz"), "re-encoded as JPEG (lossy), "
    if pairs is None:
        return None
    source = f"{about}, {lossy}pixels / 255; the official split"
    return Dataset(name, *pairs, classes=classes, source=source, unit="image")


def _idx_set(
    name: str, subfolder: str, classes: tuple[str, ...], source: str, base: str, checksums: tuple[str, ...]
) -> _ImageSet:
    return _ImageSet(
        partial(_find_idx_set, name=name, subfolder=subfolder, classes=classes, source=source),
        tuple(RemoteFile(f"{base}{file}.gz", sum_) for file, sum_ in zip(IDX_FILES, checksums, strict=True)),
        subfolder=name,
        files=f"{name.replace('-', '_')}.npz, or the four IDX files in a sub-folder {name}/,",
    )


_IMAGE_SETS: dict[str, _ImageSet] = {
    "mnist": _idx_set(
        "mnist",
        "MNIST/raw",
        _DIGITS,
        _MNIST,
        _MNIST_URL,
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    "fashion-mnist": _idx_set(
        "fashion-mnist",
        "FashionMNIST/raw",
        _FASHION,
        _FASHION_MNIST,
        _FASHION_URL,
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    "cifar10": _ImageSet(
        partial(_find_cifar, name="cifar10", classes=_CIFAR10, about="CIFAR-10, Krizhevsky 2009"),
        (
            RemoteFile(
                f"{_CIFAR_URL}cifar-10-python.tar.gz",
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        subfolder="",
        files="cifar-10-python.tar.gz, its folder cifar-10-batches-py, or cifar10_jpeg.npz",
    ),
    "cifar100": _ImageSet(
        partial(
            _find_cifar, name="cifar100", classes=_CIFAR100, about="CIFAR-100, Krizhevsky 2009, fine labels"
        ),
        (
            RemoteFile(
                f"{_CIFAR_URL}cifar-100-python.tar.gz",
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            ),
        ),
        subfolder="",
        files="cifar-100-python.tar.gz or its folder cifar-100-python",
    ),
}
