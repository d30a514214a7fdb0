"""What is in a new run file for a folder of pictures? Its classes, their size, what was stated, and blanks.

**Guarantee**

* Of the folder only the names of the class folders, and the size and colours of one picture, go into the
  file.  The number of records and the promise are those that were stated, or ``FILL IN``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tacit.columns.sections import setting
from tacit.errors import InvalidInput, MissingExtra, without_values
from tacit.runs.init_file import PROMISE, Facts

_LARGEST, _LEAST = 96, 8  # pixels of a side
_GREY = ("1", "L", "LA", "I", "I;16", "F")  # Pillow's modes

_HEAD = """\
# A private training run on the pictures in {folder}.
#
# Everything here is public. The classes are the names of the folders, and one picture told size and colours:
# they become public with this file, so check them. Replace every "FILL IN" by what is known WITHOUT the data.
# One picture is protected. If a person may be in several, say so where you publish: each counts by itself.
"""
_PROMISE = PROMISE | {
    "unit": 'what one picture is, "picture", "scan": one of them is protected',
    "adjacency": '"add-remove": hides whether a picture is there; "replace-one": what it shows',
    "records": "about how many pictures train, a public figure",
}


@dataclass(frozen=True)
class FoundPictures:
    """A folder of pictures: one folder for each class, below folders train and test if ``ready``.

    Attributes:
        folder: where they are.
        classes: the names of the class folders.
        size: height and width to which every picture is scaled.
        colours: 3, or 1 for grey.
        ready: there are test pictures apart.
    """

    folder: Path
    classes: tuple[str, ...]
    size: tuple[int, int]
    colours: int
    ready: bool


def find_pictures(folder: Path) -> FoundPictures:
    """Look at the folders, and at one picture.

    Raises:
        InvalidInput: there are no class folders, or the first file in them is no picture.
        MissingExtra: Pillow is not installed.
    """
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
            f"{folder} has {len(classes)} folders of pictures. Give a folder with one folder of pictures for "
            "each of at least two classes, or folders train and test that hold them; or a table."
        )
    name, file = first
    where = f"picture 1 of {root / name}, in the order of paths,"  # its own name may be a person's
    return FoundPictures(folder, tuple(classes), *_look_at(file, where), ready)


def _look_at(file: Path, where: str) -> tuple[tuple[int, int], int]:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise MissingExtra("pillow", "images", "Reading pictures") from None
    try:
        with Image.open(file) as picture:
            width, height = ImageOps.exif_transpose(picture).size
            colours = 1 if picture.mode in _GREY else 3
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as problem:
        raise InvalidInput(f"{where} is no picture: {without_values(problem)}. Mend or remove it.") from None
    scale = min(1.0, _LARGEST / max(width, height))
    return (max(_LEAST, round(scale * height)), max(_LEAST, round(scale * width))), colours


def _steps(records: int | None) -> int:
    """Few records have much noise, which grows with each step: then learning has to end early."""
    return 300 if records is None else min(max(30, records // 100), 300)


def pictures_text(found: FoundPictures, facts: Facts) -> str:
    """A whole run file in TOML, with ``FILL IN`` for what was not stated."""
    data = [
        setting("images", found.folder.as_posix(), "relative to the folder in which you call tacit"),
        setting("classes", found.classes, "" if len(found.classes) > 5 else "the folders' names"),
        setting("size", found.size, "height and width that every picture is scaled to"),
        setting("colours", found.colours, "3: red, green and blue; 1: grey"),
        setting("features", "pictures", 'fixed, so they cost nothing; "raw" for a network of your own'),
    ]
    if not found.ready:
        data.append(
            setting("test_fraction", facts.test_fraction, "this part of the pictures tests the model")
        )
    privacy = [setting(key, getattr(facts, key), said) for key, said in _PROMISE.items()]
    clipping = setting("clipping_norm", 1.0, "no picture's gradient counts for more")
    training = [
        setting("batch_size", "auto", "a twentieth of the records, but at least 256; or a number"),
        setting("steps", _steps(facts.records), "a hundredth of the records, but 30 to 300; or epochs"),
    ]
    sections = {
        "data": data,
        "model": [setting("name", "logistic", "a linear model of the features")],
        "privacy": [*privacy, clipping],
        "optimizer": [setting("name", "sgd"), setting("learning_rate", 0.3), setting("momentum", 0.9)],
        "training": training,
    }
    return "\n".join([_HEAD.format(folder=found.folder.name), *(
        "\n".join([f"[{name}]", *lines]) + "\n" for name, lines in sections.items()
    )])  # fmt: skip
