"""The search for the public model at a path, by file names and configuration files, without torch."""

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
"""The file in a saved folder that says how to load the model in this folder."""
_SETTINGS = ("architecture", "length", "image_size")
TEXT, PICTURES, WEIGHTS, PROGRAM = "text", "pictures", "weights", "program"
_TAKES = {TEXT: ("length",), PICTURES: ("image_size",), WEIGHTS: ("architecture", "image_size"), PROGRAM: ()}
_WEIGHTS, _PROGRAMS = (".pth", ".pt", ".safetensors"), (".pt2", ".onnx")
_PREPROCESSOR = "preprocessor_config.json"
USUAL_SIZE, SMALL_SIZE, _SMALL = 224, 128, 64


@final
@dataclass(frozen=True)
class Found:
    """A public model that was found, but not loaded yet.

    Attributes:
        kind: ``TEXT`` or ``PICTURES`` for a transformers folder, ``WEIGHTS`` or ``PROGRAM`` for a file.
        path: the folder or file to load.
        settings: the settings for loading it that are given: architecture, length or image_size.
        digest: the digest that the loaded model must have, if ``Pretrained.save`` wrote it; else None.
    """

    kind: str
    path: Path
    settings: Mapping[str, Any]
    digest: str | None = None


def look_at(path: Path, label: str, arguments: Mapping[str, Any]) -> Found:
    """Find the model at a path.

    Args:
        path: a file or folder.
        label: the setting by which the user names the path, for errors.
        arguments: the settings for loading the model, with None for those that the user leaves out.

    Raises:
        InvalidInput: if the path does not exist or contains no model, if a file is missing, or if a setting
            is missing or does not apply.
    """
    settings = {name: value for name, value in arguments.items() if value is not None}
    place, digest = path, None
    if (path / SAVED).is_file():
        place, settings, digest = _saved_model(path, settings)
    where = f'{label} = "{place}"'
    if not place.exists():
        raise InvalidInput(
            f"{where}: there is no such file or folder. Name the folder of a model of transformers, or a "
            f"file {', '.join((*_WEIGHTS, *_PROGRAMS))}; nothing is downloaded. A relative path begins at "
            "the folder in which the command is called."
        )
    kind = _kind(place, label)
    for name in settings:
        if name not in _TAKES[kind]:
            takes = " and ".join(f"`{one}`" for one in _TAKES[kind]) or "no setting"
            raise InvalidInput(
                f"is not for {where}, which takes {takes}", argument=name, fix=f"Leave `{name}` out."
            )
    if kind == WEIGHTS and "architecture" not in settings:
        raise InvalidInput(
            f"{where} holds weights alone, without their network",
            fix='Name `architecture`, such as architecture = "mobilenet_v2".',
        )
    return Found(kind, place, settings, digest)


def _kind(path: Path, label: str) -> str:
    if path.is_dir():
        return _kind_of_folder(path, label)
    if path.suffix.lower() in _WEIGHTS:
        return WEIGHTS
    if path.suffix.lower() in _PROGRAMS:
        return PROGRAM
    raise InvalidInput(
        f'{label} = "{path}" must end in {", ".join((*_WEIGHTS, *_PROGRAMS))}. It may also be a folder of a '
        "transformers model. Give the file the ending of its format."
    )


def _kind_of_folder(path: Path, label: str) -> str:
    """Return TEXT or PICTURES, by the files and the configuration of a model's folder."""
    present = [(path / name).is_file() for name in (TOKENIZER, _PREPROCESSOR)]
    if all(present):
        raise InvalidInput(
            f'{label} = "{path}" holds both {TOKENIZER} and {_PREPROCESSOR}. Its model takes texts and '
            "pictures together. Save its part for texts or its part for pictures alone, with save_pretrained."
        )
    folder = ModelFolder.check(path, called=label, files=(CONFIG,))
    of_pictures = present[1] or (
        not present[0] and bool({"image_size", "num_channels"} & folder.config.keys())
    )
    if not of_pictures and not present[0]:
        ModelFolder.check(path, called=label)  # reports the missing files
    if not folder.has_weights:
        raise InvalidInput(
            f'{label} = "{path}" has no weights: model.safetensors is missing, and random weights give '
            "no features. Add the file."
        )
    return PICTURES if of_pictures else TEXT


def _saved_model(folder: Path, arguments: Mapping[str, Any]) -> tuple[Path, dict[str, Any], str]:
    """Return the path of a saved model, the settings for loading it, and its digest.

    Raises:
        InvalidInput: if the saved description is damaged, has another format, or contradicts ``arguments``.
    """
    path = folder / SAVED
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        form, digest, file = description["format"], str(description["digest"]), description.get("file")
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise InvalidInput(f"{path} cannot be read: {reason_of(problem)}. Copy the folder again.") from None
    if form != FORMAT:
        raise InvalidInput(
            f"{path} has format {form!r}; this version of Tacit reads {FORMAT}. Use the version that wrote "
            "it."
        )
    settings = {name: description[name] for name in _SETTINGS if description.get(name) is not None}
    for name, value in arguments.items():
        if settings.get(name) != value:
            raise InvalidInput(
                f"{name} = {value!r} contradicts the model saved in {folder}, which has "
                f"{settings.get(name)!r}. Leave it out, or load the original model."
            )
    return (folder if file is None else folder / Path(str(file)).name), settings, digest


def usual_size(height: int, width: int) -> int:
    """Return the side in pixels to which images should be scaled for a model that takes any size.

    Small images are scaled to 128 pixels only: on CIFAR-10, MobileNetV2 is most accurate at 128 pixels and
    takes twice as long at 224.

    >>> usual_size(32, 32), usual_size(480, 640)
    (128, 224)
    """
    return SMALL_SIZE if max(height, width) <= _SMALL else USUAL_SIZE
