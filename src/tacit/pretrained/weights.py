"""Loading of weights for a known architecture, from .pth, .pt or .safetensors files, as tensors only."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.errors import InvalidInput, reason_of
from tacit.pretrained import mobilenet
from tacit.pretrained.folder import file_digest
from tacit.pretrained.looking import USUAL_SIZE
from tacit.pretrained.pictures import PretrainedPictures

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
        return mobilenet.MobileNetV2(), "torchvision"
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
