"""How does a picture become a record? It is scaled to the declared size, and its pixels are divided by 255.

Letters: n pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from torch import Tensor

from tacit.datasets.arrays import to_inputs
from tacit.datasets.pictures import read_picture
from tacit.errors import InvalidInput
from tacit.runs.preprocessing.base import Piece, Preprocessing, as_array, in_range


@final
@dataclass(frozen=True)
class PictureInputs(Preprocessing):
    """Pictures, scaled to ``size`` (height, width); ``colours`` is 3, or 1 for grey."""

    kind: ClassVar[str] = "pictures"
    example: ClassVar[str] = "new-pictures"
    label: ClassVar[str] = "file"
    size: tuple[int, int]
    colours: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.colours, *self.size)

    def to_data(self) -> dict[str, Any]:
        return {"size": list(self.size), "colours": self.colours}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> PictureInputs:
        """The same from plain data."""
        height, width = data["size"]
        return cls((int(height), int(width)), int(data["colours"]))

    def describe(self) -> str:
        colours = "red, green and blue" if self.colours == 3 else "grey"
        return f"Pictures of any size in {colours}; scaled to {self.size[0]} x {self.size[1]} pixels."

    def inputs(self, records: Any) -> Tensor:
        if isinstance(records, list | tuple):
            return self._read(records, lambda number: f"picture {number + 1}")
        values = as_array(records, "pictures")
        if values.dtype == np.uint8:
            pixels = values[..., None] if values.ndim == 3 else values
            if pixels.shape[1:] == (*self.size, self.colours):
                return to_inputs(pixels, name="pictures")
        elif values.dtype.kind == "f" and values.shape[1:] == self.shape:
            return in_range(values, 0.0, 1.0, "pixels over 255")
        raise InvalidInput(
            f"pictures in an array must be bytes of shape (n, {self.size[0]}, {self.size[1]}, "
            f"{self.colours}), or floats in [0, 1] of shape (n, {', '.join(map(str, self.shape))}); got "
            f"{values.dtype} {values.shape}. Files, and Pillow's pictures, in a list may have any size."
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
        if not pictures:
            raise InvalidInput("the list of pictures is empty. Give at least one.")
        pixels = np.empty((len(pictures), *self.size, self.colours), dtype=np.uint8)
        for number, picture in enumerate(pictures):
            pixels[number] = read_picture(picture, self.size, self.colours, partial(where, number))
        return to_inputs(pixels, name="pictures")


def _place(path: Path, start: int, number: int) -> str:
    """A picture by its place: its name may be a person's."""
    return f"picture {start + number + 1} of {path}, in the order of paths"


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InvalidInput(f"there is no picture, and no folder of pictures, at {path}. Check the path.")
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    if not files:
        raise InvalidInput(f"the folder {path} holds no pictures to predict for.")
    return files
