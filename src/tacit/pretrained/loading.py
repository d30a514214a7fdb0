"""Which model is in a file or folder? Looked at, loaded, and asked for what fits no other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tacit.errors import InvalidInput
from tacit.pretrained.base import Pretrained
from tacit.pretrained.folder import ModelFolder
from tacit.pretrained.looking import PICTURES, TEXT, WEIGHTS, Found, look_at


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
    asked = {"architecture": architecture, "length": length, "image_size": image_size}
    return load_called("path", path, asked)


def load_called(called: str, path: Path | str, asked: Mapping[str, Any]) -> Pretrained:
    """The same for a user who calls the path something else, for errors."""
    found = look_at(Path(path), called, asked)
    with torch.random.fork_rng(devices=[]):  # networks are built with random weights first
        loaded = _loaded(found, called)
    if found.digest not in (None, loaded.digest):
        raise InvalidInput(
            f"the files in {path} are not those that were saved: SHA-256 {loaded.digest} instead of "
            f"{found.digest}. Copy the folder again."
        )
    return loaded


def _loaded(found: Found, called: str) -> Pretrained:
    if found.kind == TEXT:
        from tacit.pretrained.text import PretrainedText

        return PretrainedText(ModelFolder(found.path), found.settings.get("length"), called)
    if found.kind == PICTURES:
        from tacit.pretrained.vision import load_vision

        return load_vision(ModelFolder(found.path), found.settings.get("image_size"), called)
    if found.kind == WEIGHTS:
        from tacit.pretrained.weights import load_weights

        return load_weights(found.path, **found.settings)
    from tacit.pretrained.exported import load_exported

    return load_exported(found.path)
