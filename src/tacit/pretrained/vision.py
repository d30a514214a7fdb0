"""Loading of transformers image models, with the image size and normalisation of their training."""

from __future__ import annotations

from typing import Any

from tacit.errors import InvalidInput
from tacit.pretrained.base import files_in
from tacit.pretrained.folder import CONFIG, INDEX, ModelFolder, file_digest
from tacit.pretrained.hub import config_of, load_network, refuse_lacking, transformers
from tacit.pretrained.looking import USUAL_SIZE
from tacit.pretrained.pictures import MEAN, STD, PretrainedPictures

_PREPROCESSOR = "preprocessor_config.json"


def load_vision(folder: ModelFolder, image_size: int | None, label: str) -> PretrainedPictures:
    """Load the image model in a folder; see :func:`tacit.pretrained.load_pretrained`."""
    where = f'{label} = "{folder.path}"'
    config = config_of(folder, where)
    body, lacking = load_network(transformers.AutoModel, folder, config, where, "a model of pictures")
    if any(name.startswith("pooler.") for name in lacking):  # the saved model has a head without pooler
        body.pooler = None
        lacking = [name for name in lacking if not name.startswith("pooler.")]
    refuse_lacking(lacking, where)
    preprocessor = folder.read(_PREPROCESSOR) if (folder.path / _PREPROCESSOR).is_file() else {}
    mean, std = (MEAN, STD) if preprocessor.get("do_normalize", True) else ((0.0,) * 3, (1.0,) * 3)
    files = files_in(folder.path, (CONFIG, INDEX, _PREPROCESSOR))
    return PretrainedPictures(
        body,
        what=f"{config.model_type} of transformers",
        image_size=image_size or _size(preprocessor, config),
        mean=_colours(preprocessor, "image_mean", mean),
        std=_colours(preprocessor, "image_std", std),
        decides={"weights": folder.weights_digest(), "config": file_digest(folder.path / CONFIG)},
        files=files | {file.name: file for file in folder.weight_files},
        settings={},
    )


def _size(preprocessor: dict[str, Any], config: Any) -> int:
    """Return the side in pixels of the model's training images."""
    for entry in (
        preprocessor.get("crop_size"),
        preprocessor.get("size"),
        getattr(config, "image_size", None),
    ):
        sides = entry.values() if isinstance(entry, dict) else [entry]
        lengths = [side for side in sides if isinstance(side, int)]
        if lengths:
            return min(lengths)
    return USUAL_SIZE


def _colours(preprocessor: dict[str, Any], name: str, usual: tuple[float, ...]) -> tuple[float, ...]:
    values = preprocessor.get(name, usual) if preprocessor.get("do_normalize", True) else usual
    if (
        not isinstance(values, list | tuple)
        or len(values) != 3
        or not all(isinstance(x, int | float) for x in values)
    ):
        raise InvalidInput(f"{_PREPROCESSOR}: {name} must be three numbers, one per colour; got {values!r}.")
    return tuple(map(float, values))
