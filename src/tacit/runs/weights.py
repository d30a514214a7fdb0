"""The number of weights that a run trains, computed from its run file without torch or records."""

from __future__ import annotations

import json
import math
import struct
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from tacit.columns.encoder import Encoder, TextColumn
from tacit.errors import InvalidInput
from tacit.plan.signal import Ranked, rank_tuning
from tacit.pretrained.finding import ModelFolder
from tacit.runs.config import Config, read_config
from tacit.runs.plan import make_plan

_LARGEST_HEADER = 100 * 2**20  # bytes, the limit of the safetensors format
_TABLES: dict[str, tuple[int, ...]] = {
    "linear": (),
    "additive": (),
    "logistic": (),
    "mlp": (128,),
}  # default widths of the hidden layers


def trained_weights(config: Config) -> int | None:
    """Return the number of weights that the model of a run file trains; None if it is not known.

    The number is known for a linear model or a multilayer perceptron on a table with declared columns, and
    for a public model in a folder with weights.  That can be a language model, trained as a whole or with
    LoRA, or a text model that is tuned to a target.
    """
    model = config.model
    if config.pretrained:
        return _of_public_model(config, str(model.tune))
    if model.huggingface is not None:
        path = Path(model.huggingface) / "model.safetensors"
        return _of_folder(config, tensor_shapes(path)) if path.exists() else None
    if config.data.table is None or config.data.target is None or model.name not in _TABLES:
        return None
    encoder = Encoder(config.read_columns(), config.data.target, config.read_dialect())
    outputs = len(encoder.classes) or len(encoder.labels) or len(encoder.target_bounds)
    hidden = _TABLES[model.name] if model.hidden is None else model.hidden
    widths = (len(encoder.features), *hidden, outputs)
    counts: list[int] = [(before + 1) * after for before, after in pairwise(widths)]
    return sum(counts)


def ranked_ways(path: Path) -> list[Ranked]:
    """Rank "head", "lora" and "full" as ``tune`` for the public model of a run file, each with its recipe.

    A choice is left out if the public model does not support it, or if its number of weights is unknown.
    """
    ways = {}
    for tune in ("head", "lora", "full"):
        with suppress(InvalidInput):  # such as LoRA for a model with unknown layers
            ways[tune] = read_config(path, tune=tune)
    counts = {tune: trained_weights(config) for tune, config in ways.items()}
    weights = {tune: count for tune, count in counts.items() if count is not None}
    return rank_tuning(weights, lambda tune: make_plan(ways[tune]))


def _of_public_model(config: Config, tune: str) -> int | None:
    folder, data = Path(str(config.model.huggingface)), config.data
    path = folder / "model.safetensors"
    if config.model.huggingface is None or data.target is None or not path.is_file():
        return None
    width = ModelFolder.check(folder).config.get("hidden_size")
    if not isinstance(width, int) or data.text is None:
        return None
    encoder = Encoder(config.read_columns(), data.target, config.read_dialect(), TextColumn(data.text, 1))
    outputs = len(encoder.classes) or len(encoder.labels) or len(encoder.target_bounds)
    head = (width + len(encoder.features)) * outputs  # the text's one feature stands for the bias
    return head if tune == "head" else head + _of_folder(config, tensor_shapes(path))


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the shapes of the tensors in a safetensors file from its header."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header: dict[str, Any] = json.loads(file.read(min(length, _LARGEST_HEADER)))
        return {name: tuple(one["shape"]) for name, one in header.items() if name != "__metadata__"}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        raise InvalidInput(
            f"{path} is not a safetensors file: its header cannot be read. Write it again with "
            "model.save_pretrained(folder)."
        ) from None


def _of_folder(config: Config, shapes: dict[str, tuple[int, ...]]) -> int:
    """Return the number of all weights, or with LoRA, rank times (inputs + outputs), summed over targets."""
    rank, targets, blocks = config.lora.rank, config.lora.targets, config.lora.blocks
    if rank is None:
        return sum(math.prod(shape) for shape in shapes.values())
    shapes = {
        name: shape
        for name, shape in shapes.items()
        if not blocks or any(f".{block}." in name for block in blocks)
    }
    modules = {name.removesuffix(".weight"): shape for name, shape in shapes.items() if len(shape) == 2}
    of_targets = [
        shape for name, shape in modules.items() if any(f".{name}".endswith(f".{t}") for t in targets)
    ]
    return rank * sum(sum(shape) for shape in of_targets)
