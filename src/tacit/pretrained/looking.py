"""Finds the public model at a path, from file names and the files' own descriptions; without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tacit.errors import InvalidInput, reason_of
from tacit.pretrained.folder import CONFIG, TOKENIZER, ModelFolder

FORMAT = 1
SAVED = "pretrained.json"
"""The file in a saved folder that says how to load the model next to it."""
_SETTINGS = ("architecture", "length", "image_size")
TEXT, PICTURES, WEIGHTS, PROGRAM = "text", "pictures", "weights", "program"
_TAKES = {TEXT: ("length",), PICTURES: ("image_size",), WEIGHTS: ("architecture", "image_size"), PROGRAM: ()}
_WEIGHTS, _PROGRAMS = (".pth", ".pt", ".safetensors"), (".pt2", ".onnx")
_PREPROCESSOR = "preprocessor_config.json"
USUAL_SIZE, SMALL_SIZE, _SMALL = 224, 128, 64


@final
@dataclass(frozen=True)
class Found:
    """A public model that exists, and is not loaded yet.

    Attributes:
        kind: ``TEXT`` or ``PICTURES``, a folder of transformers; ``WEIGHTS``; or ``PROGRAM``.
        path: the folder or file to load.
        settings: the settings for loading it: architecture, length and image_size, if given.
        digest: the digest that it must have; None unless the model was saved by ``Pretrained.save``.
    """

    kind: str
    path: Path
    settings: Mapping[str, Any]
    digest: str | None = None


def look_at(path: Path, called: str, asked: Mapping[str, Any]) -> Found:
    """Find the model at a path.

    Args:
        path: a file or folder.
        called: the user's name for the path.
        asked: the settings for loading it; None for settings not given.

    Raises:
        InvalidInput: if there is nothing, or no model; a file is missing; or a setting is missing or does not
            apply.
    """
    settings = {name: value for name, value in asked.items() if value is not None}
    place, digest = path, None
    if (path / SAVED).is_file():
        place, settings, digest = _what_is_saved(path, settings)
    where = f'{called} = "{place}"'
    if not place.exists():
        raise InvalidInput(
            f"{where}: there is no such file or folder. Name the folder of a model of transformers, or a "
            f"file {', '.join((*_WEIGHTS, *_PROGRAMS))}; nothing is downloaded. A relative path begins at "
            "the folder in which the command is called."
        )
    kind = _kind(place, called)
    for name in settings:
        if name not in _TAKES[kind]:
            takes = " and ".join(f"`{one}`" for one in _TAKES[kind]) or "no setting"
            raise InvalidInput(
                f"is not for {where}, which takes {takes}", argument=name, fix=f"Leave `{name}` out."
            )
    if kind == WEIGHTS and "architecture" not in settings:
        raise InvalidInput(
            f"{where} holds weights, and no file of weights says of which network",
            fix='Say `architecture`, such as architecture = "mobilenet_v2".',
        )
    return Found(kind, place, settings, digest)


def _kind(path: Path, called: str) -> str:
    if path.is_dir():
        return _kind_of_folder(path, called)
    if path.suffix.lower() in _WEIGHTS:
        return WEIGHTS
    if path.suffix.lower() in _PROGRAMS:
        return PROGRAM
    raise InvalidInput(
        f'{called} = "{path}" must end in {", ".join((*_WEIGHTS, *_PROGRAMS))}, or be the folder of a model '
        "of transformers. Rename the file by what it holds."
    )


def _kind_of_folder(path: Path, called: str) -> str:
    """Return whether a folder's model is of text or of images, by its files or its configuration."""
    named = [(path / name).is_file() for name in (TOKENIZER, _PREPROCESSOR)]
    if all(named):
        raise InvalidInput(
            f'{called} = "{path}" holds both {TOKENIZER} and {_PREPROCESSOR}, so its model takes texts '
            "and pictures together. Save the part for one of the two by itself, by save_pretrained."
        )
    folder = ModelFolder.check(path, called=called, files=(CONFIG,))
    seen = named[1] or (not named[0] and bool({"image_size", "num_channels"} & folder.config.keys()))
    if not seen and not named[0]:
        ModelFolder.check(path, called=called)  # reports the missing files
    if not folder.has_weights:
        raise InvalidInput(
            f'{called} = "{path}" has no weights: model.safetensors is missing, and random ones give '
            "no features. Add the file."
        )
    return PICTURES if seen else TEXT


def _what_is_saved(folder: Path, asked: Mapping[str, Any]) -> tuple[Path, dict[str, Any], str]:
    """Return the path of a saved model, the settings for loading it, and its digest.

    Raises:
        InvalidInput: if the description is damaged, has another format, or contradicts ``asked``.
    """
    path = folder / SAVED
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        form, digest, file = said["format"], str(said["digest"]), said.get("file")
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise InvalidInput(f"{path} cannot be read: {reason_of(problem)}. Copy the folder again.") from None
    if form != FORMAT:
        raise InvalidInput(
            f"{path} is of format {form!r}, and this version of Tacit reads {FORMAT}. Take the version that "
            "wrote it."
        )
    settings = {name: said[name] for name in _SETTINGS if said.get(name) is not None}
    for name, value in asked.items():
        if settings.get(name) != value:
            raise InvalidInput(
                f"{name} = {value!r} is not that of the saved model in {folder}, {settings.get(name)!r}. "
                "Leave it out, or load the model from where it came."
            )
    return (folder if file is None else folder / Path(str(file)).name), settings, digest


def usual_size(height: int, width: int) -> int:
    """Return the side in pixels to which images of a size are scaled, if the model takes any size.

    Enlarging small images further adds no information: MobileNetV2 on CIFAR-10 is best at 128 pixels and
    takes twice as long at 224.

    >>> usual_size(32, 32), usual_size(480, 640)
    (128, 224)
    """
    return SMALL_SIZE if max(height, width) <= _SMALL else USUAL_SIZE
