"""Records of a folder of images: images of the declared size, with pixels divided by 255.

Letters: n images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from tacit.columns.sections import setting
from tacit.errors import InvalidInput, needed, without_values
from tacit.runs.config import Config
from tacit.runs.init import PROMISE, Facts, public_model_section, written
from tacit.runs.kinds.source import Kind, Piece, Progress, as_array, check_loss, check_path, in_range

if TYPE_CHECKING:
    from torch import Tensor

    from tacit.datasets import Dataset


@final
@dataclass(frozen=True)
class Pictures(Kind):
    """Images that are resized to ``size`` (height, width); ``colours`` is 3, or 1 for grey."""

    kind: ClassVar[str] = "pictures"
    sources: ClassVar[tuple[str, ...]] = ("images",)
    example: ClassVar[str] = "new-pictures"
    label: ClassVar[str] = "file"
    size: tuple[int, int]
    colours: int

    @classmethod
    def check(cls, config: Config) -> None:
        check_path("images", config.data.images, "folder")
        if len(config.data.size) != 2:
            raise InvalidInput("[data] images needs size = [height, width], in pixels.")
        check_loss(config.training.loss, "classes")

    @classmethod
    def load(
        cls, config: Config, progress: Progress, features: Callable[[Tensor], Tensor] | None = None
    ) -> Dataset:
        from tacit.datasets import load_image_folder

        section = config.data
        return load_image_folder(
            Path(str(section.images)),
            size=(section.size[0], section.size[1]),
            classes=tuple(section.classes),
            colours=section.colours,
            test_fraction=section.test_fraction,
            unit=config.privacy.unit,
            progress=partial(progress, "reading pictures"),
            features=features,
        )

    @classmethod
    def of(cls, config: Config, data: Dataset) -> Pictures:
        height, width = config.data.size
        return cls((height, width), config.data.colours)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.colours, *self.size)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Pictures:
        height, width = data["size"]
        return cls((int(height), int(width)), int(data["colours"]))

    def describe(self) -> str:
        colours = "red, green and blue" if self.colours == 3 else "grey"
        return f"Images of any size in {colours}; resized to {self.size[0]} x {self.size[1]} pixels."

    def inputs(self, records: Any) -> Tensor:
        if isinstance(records, list | tuple):
            return self._read(records, lambda number: f"image {number + 1}")
        from tacit.datasets.pictures import scaled_pixels

        values = as_array(records, "pictures")
        if values.dtype == np.uint8:
            pixels = values[..., None] if values.ndim == 3 else values
            if pixels.shape[1:] == (*self.size, self.colours):
                return scaled_pixels(pixels)
        elif values.dtype.kind == "f" and values.shape[1:] == self.shape:
            return in_range(values, 0.0, 1.0, "pixels over 255")
        raise InvalidInput(
            f"images have the wrong type or shape: {values.dtype} {values.shape}. Give uint8 of shape (n, "
            f"{self.size[0]}, {self.size[1]}, {self.colours}), or floats in [0, 1] of shape (n, "
            f"{', '.join(map(str, self.shape))}). Files or PIL images in a list may have any size."
        )

    def count(self, path: Path) -> int | None:
        return len(_files(path))

    def pieces(self, path: Path, rows: int) -> Iterator[Piece]:
        files = _files(path)
        root = path if path.is_dir() else path.parent
        for start in range(0, len(files), rows):
            part = files[start : start + rows]
            names = [file.relative_to(root).as_posix() for file in part]
            yield Piece(names, self._read(part, partial(_place, path, start)))

    def _read(self, pictures: Sequence[Any], where: Callable[[int], str]) -> Tensor:
        from tacit.datasets.pictures import read_picture, scaled_pixels

        if not pictures:
            raise InvalidInput("the list of images is empty. Give at least one.")
        pixels = np.empty((len(pictures), *self.size, self.colours), dtype=np.uint8)
        for number, picture in enumerate(pictures):
            pixels[number] = read_picture(picture, self.size, self.colours, partial(where, number))
        return scaled_pixels(pixels)


def _place(path: Path, start: int, number: int) -> str:
    """Name an image by its position, since its file name may identify a person."""
    return f"image {start + number + 1} of {path}, sorted by path"


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InvalidInput(f"there are no images at {path}. Check the path.")
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    if not files:
        raise InvalidInput(f"there are no images in {path}. Check the path.")
    return files


LARGEST, LARGEST_OF_PUBLIC, _LEAST = 96, 224, 8
"""Side lengths in pixels: the default maximum for Tacit's features or a public model, and the minimum."""
_GREY = ("1", "L", "LA", "I", "I;16", "F")  # Pillow's modes

_HEAD = """\
# A private training run on the images in {folder}.
#
# Everything here is public. The classes are the names of the folders; size and colours were read
# from one image. They become public with this file, so check them. Replace every "FILL IN" by what is
# known WITHOUT the data. One image is protected. If a person may be in several, say so where you publish
# the model: each image is protected separately.
"""
_PROMISE = PROMISE | {
    "unit": 'what one image is, such as "image" or "scan"; one of them is protected',
    "adjacency": '"add-remove" hides whether an image is there, "replace-one" what it shows',
    "records": "approximate number of training images, publicly known",
}


@dataclass(frozen=True)
class FoundPictures:
    """A folder of images with a subfolder per class, inside folders train and test if ``ready``.

    Attributes:
        folder: the path.
        classes: the names of the class folders.
        size: height and width to which every image is resized.
        colours: 3, or 1 for grey.
        ready: whether the test images are in a separate folder.
    """

    folder: Path
    classes: tuple[str, ...]
    size: tuple[int, int]
    colours: int
    ready: bool


def find_pictures(folder: Path, largest: int = LARGEST) -> FoundPictures:
    """Find the classes in a folder of images, and read size and colours from the first image."""
    ready = (folder / "train").is_dir() and (folder / "test").is_dir()
    root = folder / "train" if ready else folder
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and entry.name[0] != ".")
    files = (
        (name, file)
        for name in classes
        for file in sorted((root / name).rglob("*"))
        if file.is_file() and not file.name.startswith(".")
    )
    first = next(files, None)
    if len(classes) < 2 or first is None:
        raise InvalidInput(
            f"{folder} has {len(classes)} folders of images. It needs one per class (at least two), directly "
            "or inside train and test. Or give a table."
        )
    name, file = first
    where = f"image 1 of {root / name}, sorted by path,"  # the file name may be a person's
    return FoundPictures(folder, tuple(classes), *_look_at(file, where, largest), ready)


def _look_at(file: Path, where: str, largest: int) -> tuple[tuple[int, int], int]:
    image = needed("PIL.Image", "images", "Reading pictures", package="pillow")
    from PIL import ImageOps

    try:
        with image.open(file) as picture:
            width, height = ImageOps.exif_transpose(picture).size
            colours = 1 if picture.mode in _GREY else 3
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as problem:
        raise InvalidInput(
            f"{where} is not an image: {without_values(problem)}. Replace or remove it."
        ) from None
    scale = min(1.0, largest / max(width, height))
    return (max(_LEAST, round(scale * height)), max(_LEAST, round(scale * width))), colours


def pictures_text(pictures: FoundPictures, facts: Facts) -> str:
    data = [
        setting("images", pictures.folder.as_posix(), "relative to the folder where you run tacit"),
        setting("classes", pictures.classes, "" if len(pictures.classes) > 5 else "the folders' names"),
        setting("size", pictures.size, "height and width to which every image is resized"),
        setting("colours", pictures.colours, "3: red, green and blue; 1: grey"),
    ]
    if facts.public_model is None:
        about = 'fixed features, which cost no privacy; "raw" for a network of your own'
        data.append(setting("features", "pictures", about))
    if not pictures.ready:
        about = "fraction of images for testing"
        data.append(setting("test_fraction", facts.test_fraction, about))

    privacy = [setting(key, getattr(facts, key), comment) for key, comment in _PROMISE.items()]
    parts = [_HEAD.format(folder=pictures.folder.name), written("data", data)]
    if facts.public_model is not None:
        return "\n".join([*parts, public_model_section(facts, pictures.size), written("privacy", privacy)])

    # Few records get few steps, since each step adds to the noise.
    steps = 300 if facts.records is None else min(max(30, facts.records // 100), 300)
    privacy.append(setting("clipping_norm", 1.0, "maximum norm of one image's gradient"))
    training = [
        setting("batch_size", "auto", "a twentieth of the records, but at least 256; or a number"),
        setting("steps", steps, "a hundredth of the records, but 30 to 300; or epochs"),
    ]
    optimizer = [setting("name", "sgd"), setting("learning_rate", 0.3), setting("momentum", 0.9)]
    parts += [
        written("model", [setting("name", "logistic", "a linear model of the features")]),
        written("privacy", privacy),
        written("optimizer", optimizer),
        written("training", training),
    ]
    return "\n".join(parts)
