"""Loads transformers models of images, with the image size and normalisation of their training."""

from __future__ import annotations

from typing import Any

from tacit.errors import InvalidInput
from tacit.pretrained.base import files_in
from tacit.pretrained.folder import CONFIG, INDEX, ModelFolder, file_digest
from tacit.pretrained.hub import config_of, load_network, refuse_lacking, transformers
from tacit.pretrained.looking import USUAL_SIZE
from tacit.pretrained.pictures import MEAN, STD, PretrainedPictures

_PREPROCESSOR = "preprocessor_config.json"


def load_vision(folder: ModelFolder, image_size: int | None, called: str) -> PretrainedPictures:
    """Load the image model in a folder; see :func:`tacit.pretrained.load_pretrained`."""
    where = f'{called} = "{folder.path}"'
    config = config_of(folder, where)
    body, lacking = load_network(transformers.AutoModel, folder, config, where, "a model of pictures")
    if any(name.startswith("pooler.") for name in lacking):  # saved with a head that does not need it
        body.pooler = None
        lacking = [name for name in lacking if not name.startswith("pooler.")]
    refuse_lacking(lacking, where)
    said = folder.read(_PREPROCESSOR) if (folder.path / _PREPROCESSOR).is_file() else {}
    mean, std = (MEAN, STD) if said.get("do_normalize", True) else ((0.0,) * 3, (1.0,) * 3)
    files = files_in(folder.path, (CONFIG, INDEX, _PREPROCESSOR))
    return PretrainedPictures(
        body,
        what=f"{config.model_type} of transformers",
        image_size=image_size or _size(said, config),
        mean=_colours(said, "image_mean", mean),
        std=_colours(said, "image_std", std),
        decides={"weights": folder.weights_digest(), "config": file_digest(folder.path / CONFIG)},
        files=files | {file.name: file for file in folder.weight_files},
        settings={},
    )


def _size(said: dict[str, Any], config: Any) -> int:
    """Return the side in pixels of the model's training images."""
    for asked in (said.get("crop_size"), said.get("size"), getattr(config, "image_size", None)):
        sides = asked.values() if isinstance(asked, dict) else [asked]
        found = [side for side in sides if isinstance(side, int)]
        if found:
            return min(found)
    return USUAL_SIZE


def _colours(said: dict[str, Any], name: str, usual: tuple[float, ...]) -> tuple[float, ...]:
    found = said.get(name, usual) if said.get("do_normalize", True) else usual
    if (
        not isinstance(found, list | tuple)
        or len(found) != 3
        or not all(isinstance(x, int | float) for x in found)
    ):
        raise InvalidInput(
            f"{_PREPROCESSOR}: {name} must be three numbers, one for each colour; got {found!r}."
        )
    return tuple(map(float, found))
