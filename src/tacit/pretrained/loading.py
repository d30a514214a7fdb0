"""Loads a public model from a file or folder, also of torch.export and ONNX."""

from __future__ import annotations

import io
import json
import re
import textwrap
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from tacit.errors import InvalidInput, needed
from tacit.pretrained.finding import PICTURES, TEXT, WEIGHTS, Found, ModelFolder, file_digest, look_at
from tacit.pretrained.model import Pretrained, parameters_of

_SIZES = re.compile(r"([\w ()+*/,<>=-]|'\w*')*", re.ASCII)
"""The allowed form of a size in a program: names, numbers and operators."""
_FLOATS = {"tensor(float)": torch.float32, "tensor(int64)": torch.int64}


@final
class PretrainedExported(Pretrained):
    """An exported program from (n, ...) inputs to (n, d) features, which cannot be trained.

    The program must include all preprocessing, such as scaling.

    Attributes:
        shape: the shape of one input, without the batch axis.
    """

    tunable = False

    def __init__(
        self, body: nn.Module, declared: Sequence[int | None], dtype: torch.dtype, path: Path
    ) -> None:
        """Wrap the program of a file."""
        self.shape = tuple(declared[1:])
        self._rows, self._type = declared[0], dtype
        if self._rows not in (None, 1):
            raise InvalidInput(
                f"{path} takes batches of exactly {self._rows} records. Export it with a dynamic first axis "
                "(dynamic_shapes, or dynamic_axes)."
            )
        kind = {".onnx": "ONNX"}.get(path.suffix.lower(), "torch.export")
        parameters = parameters_of(body)
        super().__init__(
            body,
            features=self._count_features(body, path),
            name=f"a network of {kind}" + (f", {parameters:,} parameters" if parameters else ""),
            decides={"file": file_digest(path)},
            files={f"encoder{path.suffix}": path},
            settings={"file": f"encoder{path.suffix}"},
        )

    def _count_features(self, body: nn.Module, path: Path) -> int:
        """Return d, from one record of zeros."""
        if None in self.shape:
            raise InvalidInput(
                f"{path} takes inputs of variable size (n, "
                f"{', '.join(str(s or 'any') for s in self.shape)}). Export it with fixed sizes in all "
                "dimensions but the first."
            )
        try:
            with torch.no_grad():
                features = body(torch.zeros((1, *(size or 1 for size in self.shape)), dtype=self._type))
        except Exception as problem:  # noqa: BLE001  # a program may raise any exception
            reason = textwrap.shorten(str(problem), 200, placeholder=" ...").rstrip(".")
            raise InvalidInput(
                f"{path} fails on one record of zeros: {type(problem).__name__}: {reason}. Call eval() and "
                "export the network again, for a batch of any size."
            ) from None
        if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != 1:
            output = (
                f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
            )
            raise InvalidInput(
                f"{path} must return features (n, d), but returned {output} for one record. Export the "
                "network without its head, with flatten(1) at its end."
            )
        return int(features.shape[1])

    def made_up(self, example: Tensor) -> Tensor:
        """Return eight synthetic records, of zeros and ones if the inputs are integers."""
        rows = super().made_up(example)
        return rows if self._type.is_floating_point else rows.round()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, d) features of (n, ...) inputs."""
        if tuple(inputs.shape[1:]) != self.shape:
            raise InvalidInput(
                f"records must have shape {self.shape} for this network; got {tuple(inputs.shape[1:])}. "
                "Resize the records ([data] size in a run file resizes images), or export the network for "
                "their shape."
            )
        inputs = inputs.to(self._type)
        features: Tensor = (
            self.body(inputs)
            if self._rows is None
            else torch.cat([self.body(one) for one in torch.split(inputs, 1)])
        )
        return features.float()


def _torch_export(path: Path) -> PretrainedExported:
    try:
        # Loading would run code in pickles of more than tensors, and Python in a size.
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".json"):
                    content = json.loads(archive.read(name))
                    if any(not _is_harmless(key, value) for key, value in _walk(content)):
                        raise InvalidInput(
                            f"{path} contains pickles or Python code, which would run when it is read. "
                            "Export the network from plain tensors, or save its weights as .safetensors."
                        )
                elif name.endswith(".pt"):
                    torch.load(io.BytesIO(archive.read(name)), weights_only=True)
        program = torch.export.load(path)
        inputs = [node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
        if len(inputs) != 1:
            raise InvalidInput(
                f"{path} takes {len(inputs)} inputs. Export a network that takes one tensor of records."
            )
        like = inputs[0].meta["val"]
        declared = [size if isinstance(size, int) else None for size in like.shape]
        body: nn.Module = program.module()
    except InvalidInput:
        raise
    except Exception as problem:  # noqa: BLE001  # torch raises anything for another format
        raise _unreadable(path, "a program of torch.export", problem) from None
    return PretrainedExported(body, declared, like.dtype, path)


def _walk(tree: Any) -> Any:
    """Yield every key of nested JSON data, with its value."""
    if isinstance(tree, dict):
        yield from tree.items()
    if isinstance(tree, dict | list):
        for one in tree.values() if isinstance(tree, dict) else tree:
            yield from _walk(one)


def _is_harmless(key: str, value: object) -> bool:
    if key == "expr_str":
        return isinstance(value, str) and "__" not in value and _SIZES.fullmatch(value) is not None
    return key != "use_pickle" or value is False


@final
class _Onnx(nn.Module):
    """An ONNX network on the CPU. Its copies and pickles contain only the bytes of the file."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = data
        self._session = _session(data)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._session = _session(self._data)

    @property
    def session(self) -> Any:
        """The ONNX Runtime session that runs the network."""
        return self._session

    def forward(self, inputs: Tensor) -> Tensor:
        name = self._session.get_inputs()[0].name
        outputs = self._session.run(None, {name: np.ascontiguousarray(inputs.detach().cpu().numpy())})
        return torch.from_numpy(outputs[0]).to(inputs.device)


def _session(data: bytes) -> Any:
    runtime = needed("onnxruntime", "onnx", "a network of ONNX")
    return runtime.InferenceSession(data, providers=["CPUExecutionProvider"])


def _onnx(path: Path) -> PretrainedExported:
    needed("onnxruntime", "onnx", "a network of ONNX")
    try:
        body = _Onnx(path.read_bytes())
    except Exception as problem:  # noqa: BLE001  # onnxruntime raises anything for another format
        raise _unreadable(path, "a network of ONNX", problem) from None
    inputs, outputs = body.session.get_inputs(), body.session.get_outputs()
    if len(inputs) != 1 or len(outputs) != 1 or inputs[0].type not in _FLOATS:
        raise InvalidInput(
            f"{path} takes {', '.join(one.type for one in inputs)} and returns {len(outputs)} results. "
            f"Export a network that takes one {' or '.join(_FLOATS)} and returns only its features."
        )
    declared = [size if isinstance(size, int) else None for size in inputs[0].shape]
    return PretrainedExported(body, declared, _FLOATS[inputs[0].type], path)


def _unreadable(path: Path, kind: str, problem: Exception) -> InvalidInput:
    reason = " ".join(str(problem).split())[:200].rstrip(".")
    return InvalidInput(
        f"{path} cannot be read as {kind}: {type(problem).__name__}: {reason}. Export the network again."
    )


def load_pretrained(
    path: Path | str,
    *,
    architecture: str | None = None,
    length: int | None = None,
    image_size: int | None = None,
) -> Pretrained:
    """Load a public model from local files, without its head and with frozen weights.

    Args:
        path: the model: the folder of a transformers model for text (with tokenizer.json) or images, or a
            folder that :meth:`Pretrained.save` wrote. Or a file of weights (.pth, .pt or .safetensors), with
            ``architecture``. Or a network that returns features, as a file of torch.export (.pt2) or ONNX
            (.onnx).
        architecture: for a file of weights, its network: "mobilenet_v2", or the name of a model in
            torchvision or timm.
        length: the number of tokens to read from each text. Default: 256, or the model's limit if that is
            lower.
        image_size: the side length in pixels to which images are resized. Default: the size that the model's
            folder names, or 224.

    Raises:
        InvalidInput: if files are missing, do not fit each other or an argument, or contain code that loading
            would run.
        MissingExtra: if the package that reads these files is not installed.

    >>> load_pretrained("nowhere")
    Traceback (most recent call last):
    ...
    tacit.errors.InvalidInput: path = "nowhere": there is no such file or folder. Name the folder of a ...
    """
    settings = {"architecture": architecture, "length": length, "image_size": image_size}
    return load_called("path", path, settings)


def load_called(label: str, path: Path | str, settings: Mapping[str, Any]) -> Pretrained:
    """Load a public model; ``label`` names its path in errors."""
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
        from tacit.pretrained.networks import PretrainedText

        return PretrainedText(ModelFolder(location.path), location.settings.get("length"), label)
    if location.kind == PICTURES:
        from tacit.pretrained.networks import load_vision

        return load_vision(ModelFolder(location.path), location.settings.get("image_size"), label)
    if location.kind == WEIGHTS:
        from tacit.pretrained.networks import load_weights

        return load_weights(location.path, **location.settings)
    return _onnx(location.path) if location.path.suffix.lower() == ".onnx" else _torch_export(location.path)
