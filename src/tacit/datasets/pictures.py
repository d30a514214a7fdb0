"""Loader of images in folders, one folder per class."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.datasets.dataset import Dataset, TensorPair, check_some, choose_test
from tacit.errors import InvalidInput, check_integer, needed, without_values

_MODES = {1: "L", 3: "RGB"}
_PIECE = 512  # images per piece

Progress = Callable[[int, int], None]


def load_image_folder(
    path: Path,
    *,
    size: tuple[int, int],
    classes: tuple[str, ...],
    colours: int = 3,
    test_fraction: float | None = None,
    unit: str = "image",
    name: str | None = None,
    progress: Progress | None = None,
    features: Callable[[Tensor], Tensor] | None = None,
) -> Dataset:
    """Read images from ``path/<class>/``, or from ``path/train/<class>/`` and ``path/test/<class>/``.

    * ``size``: the (height, width) in pixels to which every image is scaled. The aspect ratio may change.
    * ``classes``: the names of the classes. Each needs a folder, which may be empty.
    * ``colours``: 3 for RGB, 1 for grey.
    * ``test_fraction``: without folders train and test, the share of images to use as test data. A hash of
      each image and its class chooses them.
    * ``progress``: a function that Tacit calls as ``progress(done, total)`` after every image.
    * ``features``: a function from a batch of images to one feature vector per image. It must treat each
      image independently. The dataset then contains the features instead of the images.

    The inputs are (n, colours, height, width) in [0, 1], or features (n, d).

    Raises:
        InvalidInput: if a folder is missing or undeclared, or an image cannot be read. The message gives the
            position of the image instead of its file name, which may be a person's name.
        MissingExtra: if Pillow is not installed.

    >>> import tempfile
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> for kind in ("cat", "dog"):
    ...     (folder / kind).mkdir()
    ...     for number in range(3):
    ...         Image.new("RGB", (8, 8), (90 * number, 0, 0)).save(folder / kind / f"{number}.png")
    >>> data = load_image_folder(folder, size=(4, 4), classes=("cat", "dog"), test_fraction=0.5)
    >>> len(data.train.inputs) + len(data.test.inputs), data.train.inputs.shape[1:]
    (6, torch.Size([3, 4, 4]))
    """
    root = Path(path)
    height, width = (check_integer("size", side, low=1) for side in size)
    if colours not in _MODES:
        raise InvalidInput(f"colours must be 1 or 3; got {colours!r}.")
    ready = (root / "train").is_dir() and (root / "test").is_dir()
    if ready == (test_fraction is not None):
        state = "has folders train and test" if ready else "has no folders train and test"
        raise InvalidInput(
            f"{root} {state}: test_fraction must be {'left out' if ready else 'given, such as 0.2'}; got "
            f"{test_fraction!r}."
        )
    folders = [root / "train", root / "test"] if ready else [root]
    files = [_list_files(folder, tuple(classes)) for folder in folders]
    numbers, pairs = iter(range(1, sum(map(len, files)) + 1)), []

    def count() -> None:
        done = next(numbers)
        if progress is not None:
            progress(done, sum(map(len, files)))

    for folder, part in zip(folders, files, strict=True):
        pieces, marks = [], []
        for start in range(0, len(part), _PIECE):
            pixels = _read_piece(folder, part, start, (height, width), colours, tuple(classes), count)
            labels = [label for _, label in part[start : start + _PIECE]]
            if test_fraction is not None:
                marks.append(choose_test(map(_bytes_of, pixels, labels), test_fraction))
            pieces.append(pixels if features is None else features(scaled_pixels(pixels)))
        pairs.append(TensorPair(_joined(pieces), torch.tensor([label for _, label in part])))
    if test_fraction is None:
        train, test = pairs
    else:
        tests = torch.from_numpy(np.concatenate(marks))
        check_some(tests.numpy(), test_fraction, what="picture", instead="folders train and test")
        train, test = (TensorPair(pairs[0].inputs[part], pairs[0].targets[part]) for part in (~tests, tests))
    title = name or root.name
    source = f"{title}, pictures scaled to {height}x{width}, pixels / 255"
    return Dataset(title, train, test, tuple(classes), source, unit)


def _list_files(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    if not folder.is_dir():
        raise InvalidInput(f"there is no folder {folder}; it must contain one folder per class.")
    present = {entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
    missing, undeclared = sorted(set(classes) - present), len(present - set(classes))
    if missing or undeclared:
        problem = f"lacks class folders: {', '.join(missing)}" if missing else ""
        problem = problem or f"has {undeclared} folders that are no declared class (names hidden)"
        raise InvalidInput(
            f"{folder} {problem}. It must contain exactly one folder for each declared class: "
            f"{', '.join(classes)}."
        )
    files = [
        (file, number)
        for number, label in enumerate(classes)
        for file in sorted((folder / label).rglob("*"))
        if file.is_file() and not file.name.startswith(".")
    ]
    if not files:
        raise InvalidInput(f"the class folders of {folder} contain no images.")
    return files


def read_picture(
    source: Any, size: tuple[int, int], colours: int, where: Callable[[], str]
) -> NDArray[np.uint8]:
    """Return the pixels (height, width, colours) of one image."""
    needed("PIL", "images", "Reading pictures", package="pillow")
    from PIL import Image, ImageOps

    if not isinstance(source, str | Path | Image.Image):
        raise InvalidInput(
            f"{where()} is a {type(source).__name__}. Give the path of a file, or a PIL.Image."
        )
    try:
        with nullcontext(source) if isinstance(source, Image.Image) else Image.open(source) as picture:
            upright = ImageOps.exif_transpose(picture).convert(_MODES[colours])
            pixels = np.asarray(upright.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as problem:
        raise InvalidInput(
            f"cannot read {where()}: {without_values(problem)}. Correct or remove it."
        ) from None
    return pixels.reshape(*size, colours)


def scaled_pixels(pixels: NDArray[np.uint8]) -> Tensor:
    """Return pixels (n, height, width, colours) as float32 (n, colours, height, width) in [0, 1]."""
    inputs = torch.from_numpy(np.array(pixels.transpose(0, 3, 1, 2), dtype=np.float32, order="C"))
    return inputs.div_(255.0)


def _whereabouts(folder: Path, files: list[tuple[Path, int]], number: int, classes: tuple[str, ...]) -> str:
    """Describe an image by its position, as the names of its file and inner folders may be people's names."""
    label = files[number][1]
    place = sum(other == label for _, other in files[: number + 1])
    return f"picture {place} of {folder / classes[label]}, in the order of paths"


def _read_piece(
    folder: Path,
    files: list[tuple[Path, int]],
    start: int,
    size: tuple[int, int],
    colours: int,
    classes: tuple[str, ...],
    count: Callable[[], None],
) -> NDArray[np.uint8]:
    """Return the pixels (n, height, width, colours) of up to 512 files, from the index ``start`` on."""
    batch = files[start : start + _PIECE]
    pixels = np.empty((len(batch), *size, colours), dtype=np.uint8)
    for number, (file, _) in enumerate(batch):
        pixels[number] = read_picture(
            file, size, colours, partial(_whereabouts, folder, files, start + number, classes)
        )
        count()
    return pixels


def _bytes_of(pixels: NDArray[np.uint8], label: int) -> bytes:
    return pixels.tobytes() + np.int64(label).tobytes()


def _joined(pieces: list[Any]) -> Tensor:
    """Join pieces of features, or of pixels, which are scaled only here, to (n, ...)."""
    if isinstance(pieces[0], Tensor):
        return torch.cat(pieces)
    return scaled_pixels(np.concatenate(pieces))
