"""Export of a model for programs without Tacit, as ONNX or a program of torch.export."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.errors import InvalidInput, MissingExtra, check_in, needed
from tacit.files import write_atomically
from tacit.runs.saved_model import Description

FORMATS = ("onnx", "torch-export")
INPUT, OUTPUT = "inputs", "outputs"
"""The names of the input and of the output in the file."""
METADATA = "tacit"
"""The name of the metadata in the file."""
_ROWS = 2  # of the example for tracing; torch.export would treat a size of 1 as a constant
_OTHER_ROWS = (1, 5)
_CHATTY = (
    "torch.onnx._internal.exporter._registration",
    "torch.fx.experimental.symbolic_shapes",
    "onnxscript.optimizer._constant_folding",
)
"""Loggers of torch that report missing packages that are not needed here, or repeat an error's text."""
_TOLERANCE = 1e-4  # above floating-point error, below the effect of another branch of the network


def export_model(
    model: nn.Module,
    description: Description,
    statement: Mapping[str, Any] | None,
    path: Path,
    *,
    format: str,  # noqa: A002
    overwrite: bool = False,
) -> None:
    """Write the network to ``path``, after comparing the export with the model on a few public rows.

    Args:
        model: the network.
        description: its inputs and outputs.
        statement: the privacy statement of the run, for the metadata; None if it is not known.
        path: the file to write.
        format: "onnx", which needs the extra of that name; or "torch-export".
        overwrite: whether to replace an existing file.
    """
    kind = check_in("format", format.lower(), FORMATS)
    if path.exists() and not overwrite:
        raise InvalidInput(
            f"there is a file {path} already. Name another file, or replace this one by --overwrite."
        )
    network = copy.deepcopy(model).cpu().eval()
    example = _rows(description, _ROWS)
    metadata = json.dumps(_metadata(description, statement), allow_nan=False)
    write = _onnx if kind == "onnx" else _torch_export
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), torch.random.fork_rng(devices=[]):
        target = Path(folder) / "model.pt2"  # torch warns of other endings
        with _without_warnings_about_torch():
            again = _exported(write, network, example, target, metadata, kind)
        for rows in (_ROWS, *_OTHER_ROWS):
            _check_same(network, again, _rows(description, rows), kind)
        write_atomically(path, lambda file: file.write(target.read_bytes()))


Run = Callable[[Tensor], Tensor]


@contextlib.contextmanager
def _without_warnings_about_torch() -> Iterator[None]:
    """Hide torch's warnings about torch itself, but not those about the user's network."""
    loggers = [logging.getLogger(name) for name in _CHATTY]
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("ignore", r"The tensor attributes? .* (was|were) assigned during export")
        for logger in loggers:
            logger.addFilter(_is_an_error)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(_is_an_error)


def _is_an_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _exported(
    write: Callable[[nn.Module, Tensor, Path, str], Run],
    network: nn.Module,
    example: Tensor,
    path: Path,
    metadata: str,
    kind: str,
) -> Run:
    try:
        return write(network, example, path, metadata)
    except (MissingExtra, MemoryError, OSError):
        raise
    except Exception as problem:  # torch raises many types for a network that it cannot trace
        reason = " ".join(str(problem).split())[:300]
        raise InvalidInput(
            f"torch cannot export this network as {kind}: {type(problem).__name__}: {reason}. Take the "
            f"other of {' and '.join(FORMATS)}, or use the plain module, Predictor.model."
        ) from problem


def _rows(description: Description, count: int) -> Tensor:
    """Return ``count`` public rows that all differ; for text, the first row is all zeros."""
    shape = (count, *description.input_shape)
    if description.task == "text":
        numbers = torch.arange(shape[1]).repeat(count, 1) * torch.arange(count)[:, None]
        return numbers % description.outputs
    size = torch.Size(shape).numel()
    return torch.linspace(0.0, 1.0, size).reshape(shape)


def _metadata(description: Description, statement: Mapping[str, Any] | None) -> dict[str, Any]:
    guarantee = None if statement is None else statement["guarantee"]
    keys = ("epsilon", "delta", "unit", "adjacency")
    promise = {} if guarantee is None else {name: guarantee[name] for name in keys}
    private = {} if statement is None else {"private": statement["private"]}
    return {**description.to_data(), **private, **promise}


def _torch_export(network: nn.Module, example: Tensor, path: Path, metadata: str) -> Run:
    torch.export.save(_program(network, example), path, extra_files={METADATA: metadata})
    loaded: Run = torch.export.load(path).module()
    return loaded


def _onnx(network: nn.Module, example: Tensor, path: Path, metadata: str) -> Run:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        runtime = needed(package, "onnx", "Exporting a model as ONNX")
    exported = _program(network, example)
    program = torch.onnx.export(
        exported, dynamo=True, verbose=False, input_names=[INPUT], output_names=[OUTPUT]
    )
    assert program is not None  # as with dynamo=True
    for node in program.model.graph:
        node.metadata_props.clear()  # they would show the user's source and its paths
    program.model.metadata_props[METADATA] = metadata
    program.save(path, external_data=False)
    session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(session.run([OUTPUT], {INPUT: inputs.numpy()})[0])


def _program(network: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """Trace the network with torch.export for any number of rows, without paths of the user's files."""
    program = torch.export.export(
        _Named(network), (example,), dynamic_shapes={INPUT: {0: torch.export.Dim("rows")}}, strict=False
    )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


class _Named(nn.Module):
    """The network with an input named :data:`INPUT`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.network(inputs)
        return outputs


def _check_same(network: nn.Module, again: Run, inputs: Tensor, kind: str) -> None:
    """Refuse an export with other outputs, since tracing records one branch for one number of rows."""
    expected, outputs = network(inputs), again(inputs)
    if outputs.shape != expected.shape or not torch.allclose(
        outputs, expected, rtol=_TOLERANCE, atol=_TOLERANCE
    ):
        raise InvalidInput(
            f"the exported {kind} differs from the model on {len(inputs)} rows: the network depends on the "
            "values or the number of its inputs, which such a file cannot hold. Take the other of "
            f"{' and '.join(FORMATS)}, or use the plain module, Predictor.model."
        )
