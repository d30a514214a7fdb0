"""Loads the model in a file or folder: finds its kind, checks its settings, loads it."""

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
        path: one of: the folder of a transformers model, of text (with tokenizer.json) or of images; a file
            of weights (.pth, .pt or .safetensors), with ``architecture``; a network of torch.export (.pt2) or
            ONNX (.onnx) that returns features; or a folder written by :meth:`Pretrained.save`.
        architecture: the network of a file of weights: "mobilenet_v2", or a name of torchvision or timm if
            installed.
        length: the number of tokens read of a text; by default 256, or fewer if the model takes fewer.
        image_size: the side in pixels to which images are scaled; by default as the folder says, or 224.

    Raises:
        InvalidInput: if the files are missing, do not fit each other, or would need code to run; or an
            argument does not fit them.
        MissingExtra: if a package that reads them is not installed.

    >>> load_pretrained("nowhere")
    Traceback (most recent call last):
    ...
    tacit.errors.InvalidInput: path = "nowhere": there is no such file or folder. Name the folder of a ...
    """
    asked = {"architecture": architecture, "length": length, "image_size": image_size}
    return load_called("path", path, asked)


def load_called(called: str, path: Path | str, asked: Mapping[str, Any]) -> Pretrained:
    """Load a public model whose path has another name, ``called``, in errors."""
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
