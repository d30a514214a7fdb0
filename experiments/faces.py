"""Loader of the AT&T faces (ORL), a classic data set of face recognition: 40 people, 10 pictures each."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.standard import search_folders
from tacit.errors import InvalidInput, MissingExtra, check_integer, without_values

_PEOPLE, _PICTURES, _HEIGHT, _WIDTH = 40, 10, 112, 92
_HOME = "https://cam-orl.co.uk/facedatabase.html"


def load_faces(folder: Path | None = None, *, shrink: int = 2) -> Tensor:
    """Return the AT&T faces by person, (40, 10, 112 / shrink, 92 / shrink) float32 in [0, 1].

    They are searched for in ``folder``, then in the folder that the environment variable TACIT_DATA names,
    then in the user's cache: ``att_faces.npz`` with ``x`` (400, 112, 92) bytes and ``y`` (400,) numbers of
    the people, or ``att_faces.zip`` as AT&T Laboratories Cambridge publish it.

    Args:
        shrink: the side of the squares in which pixels are averaged: 1, 2 or 4.

    Raises:
        InvalidInput: if the file is not found or is damaged.
        MissingExtra: if the file is the zip file and Pillow is not installed.
    """
    check_integer("shrink", shrink, low=1)
    if _HEIGHT % shrink or _WIDTH % shrink:
        raise InvalidInput(f"shrink must divide {_HEIGHT} and {_WIDTH}: 1, 2 or 4; got {shrink}.")
    pixels = torch.from_numpy(_find(folder)).float() / 255.0
    return torch.nn.functional.avg_pool2d(pixels, shrink)


def _find(folder: Path | None) -> NDArray[np.uint8]:
    places = search_folders(folder)
    for place in places:
        for name, read in (("att_faces.npz", _read_npz), ("att_faces.zip", _read_zip)):
            if (place / name).is_file():
                return read(place / name)
    raise InvalidInput(
        f"the AT&T faces were not found in {', '.join(map(str, places)) or 'any folder'}. Get att_faces.zip "
        f"from {_HOME}, put it into a folder, and name that with folder=... or the environment variable "
        "TACIT_DATA."
    )


def _read_npz(path: Path) -> NDArray[np.uint8]:
    try:
        with np.load(path, allow_pickle=False) as file:
            x, y = file["x"], file["y"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as problem:
        raise InvalidInput(f"cannot read {path}: {without_values(problem)}. Fetch it again.") from None
    wanted = (_PEOPLE * _PICTURES, _HEIGHT, _WIDTH)
    counts = np.bincount(y, minlength=_PEOPLE) if y.dtype.kind in "iu" else np.zeros(0)
    if x.shape != wanted or x.dtype != np.uint8 or y.shape != wanted[:1] or set(counts) != {_PICTURES}:
        raise InvalidInput(
            f"{path} must hold x {wanted} of bytes and y {wanted[:1]} with {_PICTURES} pictures of each of "
            f"{_PEOPLE} people; got {x.dtype} {x.shape} and {y.dtype} {y.shape}."
        )
    return np.asarray(x[np.argsort(y, kind="stable")].reshape(_PEOPLE, _PICTURES, _HEIGHT, _WIDTH))


def _read_zip(path: Path) -> NDArray[np.uint8]:
    """Read pictures ``s1/1.pgm`` to ``s40/10.pgm``, at the top of the archive or in a folder."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("Pillow", "images", "Reading att_faces.zip") from None
    x = np.empty((_PEOPLE, _PICTURES, _HEIGHT, _WIDTH), dtype=np.uint8)
    try:
        with zipfile.ZipFile(path) as archive:
            files = {"/".join(name.split("/")[-2:]): name for name in archive.namelist()}
            for person in range(_PEOPLE):
                for picture in range(_PICTURES):
                    raw = archive.read(files[f"s{person + 1}/{picture + 1}.pgm"])
                    with Image.open(io.BytesIO(raw)) as image:
                        x[person, picture] = np.asarray(image.convert("L"))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as problem:
        raise InvalidInput(
            f"cannot read {path} as the archive of the AT&T faces: {without_values(problem)}. Fetch it again."
        ) from None
    return x
