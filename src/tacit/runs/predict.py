"""Predictions of a trained model, for records in memory and in files, and its export.

Letters: n records, k outputs, L characters.
"""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import json
import logging
import math
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import IO, Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.columns import Column
from tacit.columns.encoder import classes_of
from tacit.columns.tables import Cells, pieces, words_of
from tacit.errors import InvalidInput, MissingExtra, check_in, check_real, needed
from tacit.files import write_atomically
from tacit.models.survival import mean_time, survival_of
from tacit.pretrained.model import TunedModel
from tacit.pretrained.networks import PretrainedText
from tacit.report.verification import check_fields, read_statement
from tacit.runs.kinds import Piece, Table, Text, features_of, silent
from tacit.runs.kinds.texts import BASE
from tacit.runs.learners import MODEL, Description, read_description, rebuild, statement_digest
from tacit.runs.model import Factory, device_of
from tacit.training.evaluation import evaluation_mode
from tacit.training.tensors import without_numbers

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
    """Write the network to ``path``, after comparing the export with the model on a few public rows."""
    kind = check_in("format", format.lower(), FORMATS)
    if path.exists() and not overwrite:
        raise InvalidInput(f"{path} exists already. Name another file, or replace it with --overwrite.")
    network = copy.deepcopy(model).cpu().eval()
    example = _rows(description, _ROWS)
    metadata = json.dumps(_metadata(description, statement), allow_nan=False)
    write = _onnx if kind == "onnx" else _torch_export
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), torch.random.fork_rng(devices=[]):
        target = Path(folder) / "model.pt2"  # torch warns of other endings
        with _without_warnings_about_torch():
            again = _exported(write, network, example, target, metadata, kind)
        for rows in (_ROWS, *_OTHER_ROWS):
            # Tracing records one branch for one number of rows.
            inputs = _rows(description, rows)
            expected, outputs = network(inputs), again(inputs)
            if outputs.shape != expected.shape or not torch.allclose(
                outputs, expected, rtol=_TOLERANCE, atol=_TOLERANCE
            ):
                raise InvalidInput(
                    f"the exported {kind} gives other results than the model on {len(inputs)} rows, because "
                    f"its control flow depends on the data. Try the other format ({' or '.join(FORMATS)}), "
                    "or use the torch module, Predictor.model."
                )
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
            f"torch cannot export this network as {kind}: {type(problem).__name__}: {reason}. Try the other "
            f"format ({' or '.join(FORMATS)}), or use the torch module, Predictor.model."
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
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.network(inputs)
        return outputs


_STATEMENT = "statement.json"
_MOST_ROWS = 1024  # as in the evaluation of a run, so that floating-point errors are the same
_NUMBERS = 1 << 24  # limit for the records of one forward pass
_CHUNK = 1 << 16  # rows of a file in memory


def load(run: Path | str, *, factory: Factory | str | None = None, device: str = "cpu") -> Predictor:
    """Load the model of a finished run, ready to predict.

    Args:
        run: the folder that ``tacit train`` wrote, or only its ``model.safetensors``.
        factory: for your own model (``[model] factory``), the function that builds it, or "module:function".
            For safety, it is never read from the file.
        device: the device of the model.

    Raises:
        InvalidInput: if there is no finished run, the file is damaged or does not fit the model, or the
            statement in the folder is that of another model. Also for a language model, which transformers
            loads.

    >>> import tacit
    >>> predictor = tacit.load("runs/first")  # doctest: +SKIP
    >>> predictor.predict(images)  # doctest: +SKIP
    array(['3', '8'], dtype='<U1')
    """
    path = Path(run)
    if (path / BASE).is_file():
        raise InvalidInput(
            f"{path} contains a language model. Sample from it with tacit generate, or load it in "
            f"transformers as {path / 'README.md'} shows; its test loss and perplexity are in "
            f"{path / 'evaluation.json'}."
        )
    weights = path / MODEL if path.is_dir() else path
    if not weights.exists():
        problem = f"{weights} is missing" if path.is_dir() else "there is nothing"
        raise InvalidInput(
            f"there is no finished run at {path}: {problem}. Name the folder that tacit train wrote, or a "
            "copy. Resume an interrupted run with tacit train --resume."
        )
    description = read_description(weights)
    statement = _statement(weights.parent / _STATEMENT, description.statement_digest)
    model = rebuild(weights, description, factory).to(device_of(device, "device"))
    kind = description.preprocessing
    if (
        isinstance(model, TunedModel)
        and isinstance(model.encoder, PretrainedText)
        and isinstance(kind, Table)
    ):
        description = replace(description, preprocessing=kind.with_tokens(model.encoder.tokens))
    return Predictor(model, description, statement)


def _statement(path: Path, digest: str) -> dict[str, Any] | None:
    if not path.exists():
        return None
    if statement_digest(path.read_bytes()) != digest:
        raise InvalidInput(
            f"{path} does not belong to the model next to it. One was changed or copied from another run, or "
            "the run was killed while writing them. Copy both from one run, or run tacit train --resume. "
            "The model also works without a statement."
        )
    statement = read_statement(path)
    check_fields(statement)
    return statement


@final
class Predictor:
    """A trained model bundled with its preprocessing; made by :func:`load`.

    Its methods take the kind of data that the model was trained on:

    * a table: the path of a CSV or Parquet file, a data frame, or a mapping of columns; also a list of
      strings, if a text column is the only input;
    * images: the path of a folder or an image, a list of files or of PIL images, or an array;
    * text: the path of a file with one record per line, or a list of strings;
    * a dataset of :func:`tacit.datasets.load`: an array, scaled as there, or the path of a .npy, .npz or CSV
      file.

    **Guarantee**

    * A record's prediction depends only on that record and the model. Only the rounding error of a matrix
      product may depend on the other records in the batch.

    Attributes:
        model: the network, a plain module in evaluation mode: inputs (n, ...) to (n, k).
        description: the description in the file of the model.
        statement: the privacy statement of the run; None if the model's folder has none.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> rows = [f"{age},{'yes' if age > 60 else 'no'}" for age in range(20, 100)]
    >>> _ = (folder / "people.csv").write_text("\\n".join(["age,sick", *rows]))
    >>> _ = (folder / "run.toml").write_text(f'''
    ... data = {{table = "{folder}/people.csv", target = "sick", test_fraction = 0.2}}
    ... columns = {{age = {{kind = "number", lower = 0, upper = 120}}, sick = {{kind = "boolean"}}}}
    ... model = {{name = "logistic"}}
    ... optimizer = {{name = "sgd", learning_rate = 1}}
    ... training = {{batch_size = "full", steps = 5}}
    ... [privacy]
    ... epsilon = 3
    ... delta = 1e-4
    ... unit = "person"
    ... adjacency = "add-remove"
    ... records = 80
    ... clipping_norm = 1
    ... ''')
    >>> from tacit.runs import prepare
    >>> _ = prepare(folder / "run.toml", out=folder / "run").start()
    >>> predictor = load(folder / "run")
    >>> predictor.predict({"age": [25.0, 80.0]}).shape, predictor.classes
    ((2,), ('false', 'true'))
    """

    def __init__(self, model: nn.Module, description: Description, statement: dict[str, Any] | None) -> None:
        self.model = model
        self.description = description
        self.statement = statement

    def __repr__(self) -> str:
        section = self.description.model
        kinds = f"{self.description.preprocessing.kind} to {self.description.task}"
        return f"Predictor({section.name or section.factory}, {kinds})"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the probabilities; empty for models of numbers or labels.

        For text, they are the end of the text ("") and the characters of the alphabet.
        """
        preprocessing = self.description.preprocessing
        if isinstance(preprocessing, Text):
            return ("", *preprocessing.alphabet)
        return self.description.classes

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, in the order of the outputs; empty if the model predicts no labels."""
        return self.description.labels

    @property
    def time_edges(self) -> tuple[float, ...]:
        """The edges of the time bins of a survival model; empty for other models."""
        preprocessing = self.description.preprocessing
        return preprocessing.encoder.time_edges if isinstance(preprocessing, Table) else ()

    @property
    def columns(self) -> Mapping[str, Column]:
        """The declared columns of a table, including the target; empty if the data are no table."""
        preprocessing = self.description.preprocessing
        return preprocessing.encoder.columns if isinstance(preprocessing, Table) else {}

    def outputs(self, data: Any) -> Tensor:
        """Return the raw outputs of the model: logits, or numbers scaled to [-1, 1].

        Shapes: (n, k) float32, or (n, L, k) for text.
        """
        return torch.cat([self.outputs_of(piece) for piece in self._pieces(data)])

    def predict(self, data: Any, *, threshold: float | None = None) -> NDArray[Any]:
        """Return the name of each record's most probable class, or its predicted number in the target's unit.

        The result is (n,), or (n, k) for several numbers or for labels, which are true or false. For
        survival, it is the mean time until the event or the last edge, whichever comes first. For text, it is
        the most probable next character, or "" for the end of the text.

        Args:
            threshold: for two classes or for labels, the least probability at which the second class, or a
                label, is predicted; 0 to 1. Choose it from public knowledge, such as the costs of both
                mistakes, because a threshold tuned on private records leaks.

        Raises:
            InvalidInput: if you give a threshold for a model of numbers, text or more than two classes.
        """
        self._check_threshold(threshold)
        return self._all(partial(self.predictions, threshold=threshold), data)

    def _check_threshold(self, threshold: float | None) -> None:
        """Raise an error if a threshold is out of range, or the model has neither two classes nor labels."""
        if threshold is None:
            return
        check_real("threshold", threshold, low=0.0, high=1.0)
        if self._text is not None or not (self.labels or len(self.classes) == 2):
            targets = f"{len(self.classes)} classes" if self.classes else "numbers"
            raise InvalidInput(
                f"a threshold needs two classes or labels; this model predicts {targets}. Remove it; "
                "predict_proba returns class probabilities."
            )

    def predict_proba(self, data: Any) -> NDArray[np.float64]:
        """Return the probabilities (n, k) of the classes, in the order of :attr:`classes`.

        For a model of several labels, column j is the probability of label j.

        For survival, column j is the probability that no event has happened by ``time_edges[j + 1]``.

        For text, column j is the probability that character j of :attr:`classes` comes next.

        Raises:
            InvalidInput: if the model predicts numbers, which have no probabilities.
        """
        return self._all(self.probabilities, data)

    def log_probability(self, data: Any) -> NDArray[np.float64]:
        """Return the log-probability (n,) of each string, in nats. It includes the end of the string.

        Raises:
            InvalidInput: if the model is not a language model.
        """
        return self._all(self._log_probabilities, data)

    def export(self, path: Path | str, *, format: str, overwrite: bool = False) -> None:  # noqa: A002
        """Export the network as ONNX or with torch.export; see :func:`tacit.runs.predict.export_model`."""
        export_model(
            self.model, self.description, self.statement, Path(path), format=format, overwrite=overwrite
        )

    # --- one piece at a time, for files larger than memory -------------------------------------------------

    @property
    def _rows_at_once(self) -> int:
        """The number of records per forward pass. It is the same for data in memory and in files."""
        each = math.prod(self.description.input_shape) * (len(self.classes) if self._text else 1)
        return min(_MOST_ROWS, 1 << max(0, (_NUMBERS // max(1, each)).bit_length() - 1))

    def pieces(self, path: Path) -> Iterator[Piece]:
        """Yield the records of a file in pieces that fit into memory, as inputs of the model."""
        preprocessing, rows = self.description.preprocessing, self._rows_at_once
        fit = _NUMBERS // math.prod(preprocessing.shape) // rows * rows
        yield from preprocessing.pieces(path, min(_CHUNK, max(rows, fit)))

    def outputs_of(self, piece: Piece) -> Tensor:
        """Return the raw outputs of the model for one piece of :meth:`pieces`."""
        device = next(self.model.parameters()).device
        batches: list[Tensor] = []
        with evaluation_mode(self.model), torch.no_grad(), without_numbers():
            parts = torch.split(piece.inputs, self._rows_at_once)
            batches.extend(self.model(self._features(part).to(device)).float().cpu() for part in parts)
        outputs = torch.cat(batches)
        return outputs if self._text else outputs.reshape(len(outputs), -1)

    def _features(self, records: Tensor) -> Tensor:
        name = self.description.features
        return records if name == "raw" else features_of(name, self.description.preprocessing.shape)(records)

    def predictions(self, outputs: Tensor, piece: Piece, *, threshold: float | None = None) -> NDArray[Any]:
        """Convert the raw outputs for a piece to the result of :meth:`predict`."""
        if self.description.task == "survival":
            result: NDArray[Any] = mean_time(survival_of(outputs), self.time_edges).numpy()
        elif self.description.task == "numbers":
            low, high = np.asarray(self.description.target_bounds or [(-1.0, 1.0)], dtype=np.float64).T
            values = low + (outputs.double().clamp(-1.0, 1.0).numpy() + 1.0) / 2.0 * (high - low)
            result = values[:, 0] if values.shape[1] == 1 else values
        elif self.labels:
            result = self.probabilities(outputs, piece) >= (0.5 if threshold is None else threshold)
        elif threshold is not None:
            at_least = self.probabilities(outputs, piece)[:, 1] >= threshold
            result = np.array(self.classes)[at_least.astype(np.intp)]
        else:
            result = np.array(self.classes)[self.probabilities(outputs, piece).argmax(axis=1)]
        return result

    def probabilities(self, outputs: Tensor, piece: Piece) -> NDArray[np.float64]:
        """Convert the raw outputs for a piece to the result of :meth:`predict_proba`."""
        if self.description.task == "numbers":
            raise InvalidInput("the model predicts numbers, which have no probabilities: call predict.")
        if self._text is not None:
            outputs = outputs[torch.arange(len(outputs)), self._text.lengths(piece.inputs)]
        if self.time_edges:
            return survival_of(outputs).numpy()
        if self.labels:
            return torch.sigmoid(outputs.double()).numpy()
        return torch.softmax(outputs.double(), dim=1).numpy()

    def _log_probabilities(self, outputs: Tensor, piece: Piece) -> NDArray[np.float64]:
        """Convert the raw outputs for a piece to the result of :meth:`log_probability`."""
        if self._text is None:
            raise InvalidInput("log_probability needs a language model. Call predict or predict_proba.")
        following = torch.cat([piece.inputs[:, 1:], torch.zeros_like(piece.inputs[:, :1])], dim=1)
        each = torch.log_softmax(outputs.double(), dim=2).gather(2, following[..., None]).squeeze(2)
        mask = torch.arange(each.shape[1]) <= self._text.lengths(piece.inputs)[:, None]
        return (each * mask).sum(dim=1).numpy()

    @property
    def _text(self) -> Text | None:
        preprocessing = self.description.preprocessing
        return preprocessing if isinstance(preprocessing, Text) else None

    def _all(self, figures: Callable[[Tensor, Piece], NDArray[Any]], data: Any) -> NDArray[Any]:
        return np.concatenate([figures(self.outputs_of(piece), piece) for piece in self._pieces(data)])

    def _pieces(self, data: Any) -> Iterator[Piece]:
        if isinstance(data, str | Path):
            yield from self.pieces(Path(data))
        else:
            inputs = self.description.preprocessing.inputs(data)
            yield Piece([str(number) for number in range(1, len(inputs) + 1)], inputs)


PredictionProgress = Callable[[int, int | None], None]
"""A function that is called after each piece, with (records done, estimated number of all records)."""


def write_predictions(
    predictor: Predictor,
    data: Path,
    out: Path,
    *,
    overwrite: bool = False,
    threshold: float | None = None,
    keep: Sequence[str] = (),
    progress: PredictionProgress = silent,
) -> int:
    check_out(out, data, overwrite=overwrite)
    predictor._check_threshold(threshold)
    header = _header(predictor, keep)
    total = predictor.description.preprocessing.count(data)
    done = 0

    def write(file: IO[bytes]) -> None:
        nonlocal done
        cells = _copied_cells(predictor, data, keep)
        file.write(_lines([header]))
        for piece in predictor.pieces(data):
            rows = _table_rows(predictor, piece, threshold)
            extra = islice(cells, len(piece.names))
            file.write(_lines([name, *own, *row] for (name, *row), own in zip(rows, extra, strict=True)))
            done += len(piece.names)
            progress(done, total)

    write_atomically(out, write)
    return done


def check_out(out: Path, data: Path, *, overwrite: bool) -> None:
    if out.exists() and out.resolve() == data.resolve():
        raise InvalidInput(f"{out} is the input file. Name another file with --out.")
    if out.is_dir():
        raise InvalidInput(
            f"{out} is a folder. Name a file in it with --out, such as {out / 'predictions.csv'}."
        )
    if out.suffix != ".csv":
        raise InvalidInput(f"{out} must end in .csv, the format of predictions. Rename it with --out.")
    if out.exists() and not overwrite:
        raise InvalidInput(
            f"{out} exists already. Name another file with --out, or replace it with --overwrite."
        )


def _header(predictor: Predictor, keep: Sequence[str]) -> list[str]:
    label, figures = predictor.description.preprocessing.label, _figures(predictor)
    if twice := [name for name in keep if [label, *keep, *figures].count(name) > 1]:
        raise InvalidInput(
            f"--keep {twice[0]} would create two columns of this name. Name it once, or rename the column in "
            "the table."
        )
    return [label, *keep, *figures]


def _figures(predictor: Predictor) -> list[str]:
    description = predictor.description
    if description.task == "text":
        return ["log_probability", "bits_per_character"]
    if description.task == "classes":
        return ["prediction", *(f"probability_{name}" for name in description.classes)]
    if description.task == "labels":
        return [*description.labels, *(f"probability_{name}" for name in description.labels)]
    if description.task == "survival":
        return ["mean_time", *(f"survival_{edge:g}" for edge in predictor.time_edges[1:])]
    if description.outputs == 1:
        return ["prediction"]
    table = description.preprocessing if isinstance(description.preprocessing, Table) else None
    names = range(1, description.outputs + 1) if table is None else table.encoder.target_names
    return [f"prediction_{name}" for name in names]


def _copied_cells(predictor: Predictor, data: Path, keep: Sequence[str]) -> Iterator[list[str]]:
    if not keep:
        return repeat([])
    preprocessing = predictor.description.preprocessing
    if not isinstance(preprocessing, Table):
        raise InvalidInput("--keep needs a model that reads a table. Remove --keep.")
    return (
        list(row)
        for piece in pieces(data, keep, preprocessing.encoder.dialect)
        for row in zip(*(_as_written(piece[name]) for name in keep), strict=True)
    )


def _as_written(cells: Cells) -> Iterator[str]:
    """Yield texts unchanged, and whole numbers without the ".0" of a Parquet column with missing cells."""
    for cell, word in zip(cells, words_of(cells), strict=True):
        yield cell if isinstance(cell, str) else word or ""


def _table_rows(predictor: Predictor, piece: Piece, threshold: float | None) -> Iterator[list[str]]:
    """Yield the lines of a piece, with nine digits per number, since they determine every float32."""
    outputs = predictor.outputs_of(piece)
    preprocessing = predictor.description.preprocessing
    if isinstance(preprocessing, Text):
        logs = predictor._log_probabilities(outputs, piece)
        bits = -logs / math.log(2) / (preprocessing.lengths(piece.inputs).numpy() + 1)  # includes the end
        figures = np.stack([logs, bits], axis=1)
        words = np.empty((len(logs), 0), dtype=np.str_)
    elif predictor.description.task in ("classes", "labels"):
        words = predictor.predictions(outputs, piece, threshold=threshold)
        words = _label_words(predictor, words) if predictor.labels else words[:, None]
        figures = predictor.probabilities(outputs, piece)
    else:
        words = np.empty((len(outputs), 0), dtype=np.str_)
        figures = predictor.predictions(outputs, piece).reshape(len(outputs), -1)
        if predictor.time_edges:
            figures = np.concatenate([figures, predictor.probabilities(outputs, piece)], axis=1)
    for name, cells, values in zip(piece.names, words.tolist(), figures.tolist(), strict=True):
        yield [name, *cells, *(f"{value:.9g}" for value in values)]


def _label_words(predictor: Predictor, labels: NDArray[Any]) -> NDArray[np.str_]:
    """Convert labels (n, k), true or false, to the words that their columns declare."""
    columns = predictor.columns
    words = [classes_of(columns[name]) if name in columns else ("false", "true") for name in predictor.labels]
    return np.stack(
        [np.array(own)[index] for own, index in zip(words, labels.T.astype(int), strict=True)], axis=1
    )


def _lines(rows: Iterable[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
