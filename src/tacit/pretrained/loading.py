"""Which model is in a file or folder? Looked at, loaded, and asked for what fits no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tacit.errors import InvalidInput, reason_of
from tacit.pretrained.base import FORMAT, SAVED, Pretrained
from tacit.pretrained.folder import CONFIG, TOKENIZER, ModelFolder

_WEIGHTS, _PROGRAMS = (".pth", ".pt", ".safetensors"), (".pt2", ".onnx")
_SETTINGS = ("architecture", "length", "image_size")
_PREPROCESSOR = "preprocessor_config.json"
_CALLED = "path"


def load_pretrained(
    path: Path | str,
    *,
    architecture: str | None = None,
    length: int | None = None,
    image_size: int | None = None,
) -> Pretrained:
    """Load a public model from local files, without its head and frozen; nothing is downloaded.

    Args:
        path: one of: the folder of a model of transformers, of text (with tokenizer.json) or of pictures; a
            file of weights (.pth, .pt or .safetensors), with ``architecture``; a network of torch.export
            (.pt2) or ONNX (.onnx) that gives features; or what :meth:`Pretrained.save` has written.
        architecture: whose weights a file holds: "mobilenet_v2", or a name of torchvision or timm where that
            is installed.
        length: how many tokens of a text are read, 256 or what the model takes if not given.
        image_size: to how many pixels a side pictures are scaled; as the folder says, or 224, if not given.

    Raises:
        InvalidInput: the files are missing, do not fit each other, or would need code to be run; or an
            argument does not fit them.
        MissingExtra: a package that reads them is not installed.

    >>> load_pretrained("nowhere")
    Traceback (most recent call last):
    ...
    tacit.errors.InvalidInput: path = "nowhere": there is no such file or folder. Name the folder of a ...
    """
    given = {"architecture": architecture, "length": length, "image_size": image_size}
    asked = {name: value for name, value in given.items() if value is not None}
    place = Path(path)
    if not place.exists():
        raise InvalidInput(
            f'{_CALLED} = "{path}": there is no such file or folder. Name the folder of a model of '
            f"transformers, or a file {', '.join((*_WEIGHTS, *_PROGRAMS))}; nothing is downloaded. A "
            "relative path begins at the folder in which the command is called."
        )
    if (place / SAVED).is_file():
        with torch.random.fork_rng(devices=[]):
            return _saved(place, asked)
    read, takes = _reader(place)
    for name in asked:
        if name not in takes:
            raise InvalidInput(
                f'{name} is not for {_CALLED} = "{path}", which takes {" and ".join(takes) or "no setting"}. '
                f"Leave {name} out."
            )
    with torch.random.fork_rng(devices=[]):  # networks are built with random weights first
        return read(place, **asked)


def _saved(folder: Path, asked: dict[str, Any]) -> Pretrained:
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
    read, _ = _reader(folder if file is None else folder / Path(str(file)).name)
    found = read(folder if file is None else folder / Path(str(file)).name, **settings)
    if found.digest != digest:
        raise InvalidInput(
            f"the files in {folder} are not those that were saved: SHA-256 {found.digest} instead of "
            "{digest}. Copy the folder again."
        )
    return found


def _reader(path: Path) -> tuple[Callable[..., Pretrained], tuple[str, ...]]:
    """What reads a file or folder, and which settings it takes."""
    ending = path.suffix.lower()
    if path.is_dir():
        return (_text, ("length",)) if _is_text(path) else (_pictures, ("image_size",))
    if ending in _WEIGHTS:
        from tacit.pretrained.weights import load_weights

        return load_weights, ("architecture", "image_size")
    if ending in _PROGRAMS:
        from tacit.pretrained.exported import load_exported

        return load_exported, ()
    raise InvalidInput(
        f'{_CALLED} = "{path}" must end in {", ".join((*_WEIGHTS, *_PROGRAMS))}, or be the folder of a model '
        "of transformers. Rename the file by what it holds."
    )


def _is_text(folder: Path) -> bool:
    """Whether a folder is of a model of text; where a file is missing, by what its configuration says."""
    named = [(folder / name).is_file() for name in (TOKENIZER, _PREPROCESSOR)]
    if all(named):
        raise InvalidInput(
            f'{_CALLED} = "{folder}" holds both {TOKENIZER} and {_PREPROCESSOR}, so its model takes texts '
            "and pictures together. Save the part for one of the two by itself, by save_pretrained."
        )
    if any(named):
        return named[0]
    config = ModelFolder.check(folder, called=_CALLED, files=(CONFIG,)).config
    return not {"image_size", "num_channels"} & config.keys()


def _text(path: Path, *, length: int | None = None) -> Pretrained:
    from tacit.pretrained.text import PretrainedText

    return PretrainedText(_checked(ModelFolder.check(path, called=_CALLED)), length, _CALLED)


def _pictures(path: Path, *, image_size: int | None = None) -> Pretrained:
    from tacit.pretrained.vision import load_vision

    return load_vision(
        _checked(ModelFolder.check(path, called=_CALLED, files=(CONFIG,))), image_size, _CALLED
    )


def _checked(folder: ModelFolder) -> ModelFolder:
    if not folder.has_weights:
        raise InvalidInput(
            f'{_CALLED} = "{folder.path}" has no weights: model.safetensors is missing, and random ones give '
            "no features. Add the file."
        )
    return folder
