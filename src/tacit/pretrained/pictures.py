"""Networks trained on public images, without their heads, that map an image to features.

Letters: n images of c channels and h by w pixels; s by s pixels after scaling; d features.
"""

from __future__ import annotations

import importlib
import importlib.util
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from tacit.errors import InvalidInput, check_integer, reason_of
from tacit.pretrained.finding import CONFIG, INDEX, USUAL_SIZE, ModelFolder, file_digest
from tacit.pretrained.model import Pretrained, files_in, parameters_of

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The channel means and standard deviations of ImageNet."""


@final
class PretrainedPictures(Pretrained):
    """A network that maps images of any size, with values in [0, 1], to features.

    Grey images are repeated in three channels. All images are scaled to ``image_size`` and normalised as in
    the network's training.

    Attributes:
        image_size: s, the side in pixels of the scaled images.
    """

    def __init__(
        self,
        body: nn.Module,
        *,
        what: str,
        image_size: int,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
        decides: Mapping[str, Any],
        files: Mapping[str, Path],
        settings: Mapping[str, Any],
    ) -> None:
        """Wrap a body as a model; see :func:`tacit.pretrained.load_pretrained`.

        Args:
            body: a network from (n, 3, s, s) images to a last feature map, features, or a transformers
                output.
            what: a description of the body, for the model's name and for errors.
            image_size: s.
            mean: the mean of each channel over the training images of the body.
            std: the standard deviation of each channel.
            decides: all other facts that change the features.
            files: the files that the body was loaded from.
            settings: the arguments of ``load_pretrained`` that load this model again.
        """
        self.image_size = check_integer("image_size", image_size, low=1)
        looks = {"image_size": self.image_size, "mean": list(mean), "std": list(std)}
        super().__init__(
            body,
            features=_features(body, self.image_size, what),
            name=f"{what}, {parameters_of(body):,} parameters",
            decides={**decides, **looks},
            files=files,
            settings={**settings, "image_size": self.image_size},
        )
        self.register_buffer("_mean", torch.tensor(mean).reshape(-1, 1, 1), persistent=False)
        self.register_buffer("_std", torch.tensor(std).reshape(-1, 1, 1), persistent=False)
        self._mean: Tensor
        self._std: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, d) features of (n, c, h, w) images; c is 1 or 3."""
        if inputs.dim() != 4 or inputs.shape[1] not in (1, 3):
            raise InvalidInput(
                f"pictures must have shape (n, c, height, width); got {tuple(inputs.shape)}. c is 3, or 1 "
                "for grey. Move the axis of the colours to the second place."
            )
        pixels = scaled(inputs.float(), self.image_size).expand(-1, 3, -1, -1)
        return _pooled(self.body((pixels - self._mean) / self._std))


def scaled(pictures: Tensor, size: int) -> Tensor:
    """Scale images to ``size`` by ``size`` pixels.

    The result equals that of bilinear ``interpolate`` with antialias. It is computed by two matrix products,
    which work in every export format and under vmap.
    """
    high, wide = (_weights(side, size, pictures) for side in pictures.shape[-2:])
    return high @ pictures @ wide.T


def _weights(source: int, target: int, like: Tensor) -> Tensor:
    """Return the weights (target, source) of the pixels of an image row in the scaled row."""
    ratio = source / target
    places = (torch.arange(target, device=like.device).to(like.dtype) + 0.5) * ratio - 0.5
    pixels = torch.arange(source, device=like.device).to(like.dtype)
    weights = (1 - (pixels - places.unsqueeze(1)).abs() / max(ratio, 1.0)).clamp(min=0)
    return weights / weights.sum(dim=1, keepdim=True)


def _pooled(output: Any) -> Tensor:
    """Return (n, d) features from features, a last feature map, or an output of transformers."""
    if not isinstance(output, Tensor):
        pooler = getattr(output, "pooler_output", None)
        output = output.last_hidden_state if pooler is None else pooler.flatten(1)
    features: Tensor = output
    if features.dim() == 4:
        return features.mean(dim=(2, 3))
    return features[:, 0] if features.dim() == 3 else features  # the first token represents the whole image


def _features(body: nn.Module, size: int, kind: str) -> int:
    """Return d, which one black image shows."""
    try:
        with torch.no_grad():
            features = _pooled(body(torch.zeros((1, 3, size, size))))
    except Exception as problem:  # noqa: BLE001  # a network may raise any exception for a wrong size
        reason = " ".join(str(problem).split())[:300].rstrip(".")
        raise InvalidInput(
            f"{kind} fails on pictures of {size} by {size} pixels: {type(problem).__name__}: "
            f"{reason}. Take the image_size that it was trained with, or a model of pictures."
        ) from None
    if features.dim() != 2:
        raise InvalidInput(f"{kind} must return features (n, d); it returned shape {tuple(features.shape)}.")
    return int(features.shape[1])


_BLOCKS = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
"""Table 2 of the paper: expansion factor, channels, number of blocks, and stride of the first block."""
_FIRST, FEATURES = 32, 1280
HEAD = "classifier."
"""The prefix of the classifier's weights, which are not loaded."""


def _convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


@final
class _Block(nn.Module):
    """An inverted residual block: expand, filter each channel, project; add the input if shapes fit."""

    def __init__(self, times: int, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = inputs * times
        widened = [_convolution(inputs, inner, size=1)] if times > 1 else []
        self.conv = nn.Sequential(
            *widened,
            _convolution(inner, inner, stride=stride, groups=inner),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.added = stride == 1 and inputs == outputs

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.conv(inputs)
        return inputs + outputs if self.added else outputs


@final
class MobileNetV2(nn.Module):
    """The network up to its last feature map: (n, 3, h, w) to (n, 1280, h / 32, w / 32)."""

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = [_convolution(3, _FIRST, stride=2)]
        channels = _FIRST
        for times, outputs, blocks, stride in _BLOCKS:
            for place in range(blocks):
                parts.append(_Block(times, channels, outputs, stride if place == 0 else 1))
                channels = outputs
        self.features = nn.Sequential(*parts, _convolution(channels, FEATURES, size=1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the last feature map."""
        features: Tensor = self.features(inputs)
        return features


OURS = "mobilenet_v2"
"""The architecture that Tacit builds without torchvision or timm."""
_HEADS = ("classifier", "fc", "head", "heads")
"""Torchvision's names of the layers that form a head."""


def load_weights(path: Path, *, architecture: str, image_size: int | None = None) -> PretrainedPictures:
    """Load an architecture's network with the weights in a file; see ``load_pretrained``."""
    weights = _read(path)
    body, package = _network(architecture)
    expected = body.state_dict()
    lacking = [
        name for name in expected if name not in weights or weights[name].shape != expected[name].shape
    ]
    beyond = [name for name in weights if name not in expected and not _belongs_to_head(name)]
    if lacking or beyond:
        raise InvalidInput(
            f'the weights in {path} do not fit architecture = "{architecture}": '
            f"{len(lacking)} of the {len(expected)} tensors of {package} are missing or differ in shape"
            + (f" ({lacking[0]})" if lacking else "")
            + f", and {len(beyond)} of the file's tensors belong to no layer"
            + (f" ({beyond[0]})" if beyond else "")
            + ". Name the architecture that they were trained in."
        )
    body.load_state_dict({name: weights[name].to(expected[name].dtype) for name in expected})
    return PretrainedPictures(
        body.eval(),
        what=f"{architecture} of {package}",
        image_size=USUAL_SIZE if image_size is None else image_size,
        decides={"weights": file_digest(path), "architecture": architecture, "package": package},
        files={f"weights{path.suffix}": path},
        settings={"file": f"weights{path.suffix}", "architecture": architecture},
    )


def _belongs_to_head(name: str) -> bool:
    return name.partition(".")[0] in _HEADS


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # torch's message says how to run the code anyway
        raise InvalidInput(
            f"{path} is not a file of tensors alone. Nothing else is read, as other pickles can run any "
            "code: save model.state_dict(), best as .safetensors."
        ) from None
    except Exception as problem:  # noqa: BLE001  # the libraries raise anything for another format
        reason = reason_of(problem).partition("\n")[0][:200].rstrip(".")
        raise InvalidInput(
            f"{path} cannot be read as weights: {type(problem).__name__}: {reason}. Only tensors are read, "
            "as other pickles can run any code: save model.state_dict(), best as .safetensors."
        ) from None
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]  # the format of many training scripts
    if not isinstance(content, dict) or not all(isinstance(one, Tensor) for one in content.values()):
        raise InvalidInput(
            f"{path} holds no weights: it must be a dict from names to tensors. Save model.state_dict()."
        )
    return content


def _network(architecture: str) -> tuple[nn.Module, str]:
    """Return the network without its head, and the package that built it."""
    if architecture == OURS:
        return MobileNetV2(), "torchvision"
    for package, build in (("torchvision", _of_torchvision), ("timm", _of_timm)):
        if importlib.util.find_spec(package) is None:
            continue
        try:
            return build(architecture), package
        except (ValueError, RuntimeError, KeyError):
            continue  # the package does not know the name
    installed = [name for name in ("torchvision", "timm") if importlib.util.find_spec(name) is not None]
    tried = " and ".join((f"Tacit ({OURS})", *installed))
    raise InvalidInput(
        f"is not known to {tried}",
        argument="architecture",
        value=architecture,
        fix="Take a name that it knows."
        if installed
        else "Install the package that has it: pip install "
        "torchvision, or pip install timm; or export the network, without its head, as .pt2 or .onnx.",
    )


def _of_torchvision(architecture: str) -> nn.Module:
    models = importlib.import_module("torchvision.models")
    body: nn.Module = models.get_model(architecture, weights=None)
    for name in _HEADS:
        if hasattr(body, name):
            setattr(body, name, nn.Identity())
    return body


def _of_timm(architecture: str) -> nn.Module:
    body: nn.Module = importlib.import_module("timm").create_model(
        architecture, pretrained=False, num_classes=0
    )
    return body


_PREPROCESSOR = "preprocessor_config.json"


def load_vision(folder: ModelFolder, image_size: int | None, label: str) -> PretrainedPictures:
    """Load the image model in a folder; see :func:`tacit.pretrained.load_pretrained`."""
    from tacit.pretrained.hub import config_of, load_network, refuse_lacking, transformers  # slow import

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
