"""Loading of a public model from a file or folder: finds its kind, checks its settings and loads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tacit.errors import InvalidInput
from tacit.pretrained.finding import PICTURES, TEXT, WEIGHTS, Found, ModelFolder, look_at
from tacit.pretrained.model import Pretrained


def load_pretrained(
    path: Path | str,
    *,
    architecture: str | None = None,
    length: int | None = None,
    image_size: int | None = None,
) -> Pretrained:
    """Load a public model from local files, without its head and with frozen weights; download nothing.

    Args:
        path: the folder of a transformers model for text (with tokenizer.json) or images; or a weights file
            (.pth, .pt or .safetensors), with ``architecture``; or a network of torch.export (.pt2) or ONNX
            (.onnx) that returns features; or a folder written by :meth:`Pretrained.save`.
        architecture: the network of a weights file: "mobilenet_v2", or a model name of torchvision or timm,
            if installed.
        length: the number of tokens to read from each text; by default 256, or the model's limit if that is
            lower.
        image_size: the side in pixels to which images are scaled; by default the size that the folder
            declares, or 224.

    Raises:
        InvalidInput: if files are missing, do not fit each other, or would run code; or if an argument does
            not fit them.
        MissingExtra: if a package that reads them is not installed.

    >>> load_pretrained("nowhere")
    Traceback (most recent call last):
    ...
    tacit.errors.InvalidInput: path = "nowhere": there is no such file or folder. Name the folder of a ...
    """
    settings = {"architecture": architecture, "length": length, "image_size": image_size}
    return load_called("path", path, settings)


def load_called(label: str, path: Path | str, settings: Mapping[str, Any]) -> Pretrained:
    """Load a public model; errors call its path ``label``."""
    location = look_at(Path(path), label, settings)
    with torch.random.fork_rng(devices=[]):  # networks are built with random weights first
        loaded = _loaded(location, label)
    if location.digest not in (None, loaded.digest):
        raise InvalidInput(
            f"the files in {path} changed after they were saved: SHA-256 {loaded.digest} instead of "
            f"{location.digest}. Copy the folder again."
        )
    return loaded


def _loaded(location: Found, label: str) -> Pretrained:
    if location.kind == TEXT:
        from tacit.pretrained.text import PretrainedText

        return PretrainedText(ModelFolder(location.path), location.settings.get("length"), label)
    if location.kind == PICTURES:
        from tacit.pretrained.pictures import load_vision

        return load_vision(ModelFolder(location.path), location.settings.get("image_size"), label)
    if location.kind == WEIGHTS:
        from tacit.pretrained.pictures import load_weights

        return load_weights(location.path, **location.settings)
    from tacit.pretrained.exported import load_exported

    return load_exported(location.path)
