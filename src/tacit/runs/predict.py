"""Predictions of a trained model: ``tacit.load`` makes a predictor from a run's folder or a copy of it.

Letters: n records, k outputs, L characters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.columns import Column
from tacit.errors import InvalidInput, check_real
from tacit.report.verification import check_fields, read_statement
from tacit.runs.export import export_model
from tacit.runs.kinds import Kind, Piece, Table, Text, features_of
from tacit.runs.kinds.documents import BASE
from tacit.runs.model import Factory, device_of
from tacit.runs.saved_model import Description, read_description, rebuild, statement_digest
from tacit.training.evaluation import evaluation_mode
from tacit.training.tensors import without_numbers

_MODEL, _STATEMENT = "model.safetensors", "statement.json"
_MOST_ROWS = 1024  # as in the evaluation of a run, so that floating-point errors are the same
_NUMBERS = 1 << 24  # limit for the records of one forward pass
_CHUNK = 1 << 16  # rows of a file in memory


def load(run: Path | str, *, factory: Factory | str | None = None, device: str = "cpu") -> Predictor:
    """Load the model of a finished run, ready to predict.

    Args:
        run: the folder that ``tacit train`` wrote, or a copy of it; or only its ``model.safetensors``.
        factory: for a model of your own (``[model] factory`` in the run's configuration), the function that
            made it, or "module:function".  Code that only a file names is never imported.
        device: the device of the model.

    Raises:
        InvalidInput: there is no finished run, or its model is a language model for transformers; the file
            has another format or is damaged; its weights do not fit; or the folder's statement is not that of
            this model.

    >>> import tacit
    >>> predictor = tacit.load("runs/first")  # doctest: +SKIP
    >>> predictor.predict(pictures)  # doctest: +SKIP
    array(['3', '8'], dtype='<U1')
    """
    path = Path(run)
    if (path / BASE).is_file():
        raise InvalidInput(
            f"{path} holds a language model for transformers: Tacit does not predict with it. Load it in "
            f"transformers, as {path / 'README.md'} shows; its test loss and perplexity are in "
            f"{path / 'evaluation.json'}."
        )
    weights = path / _MODEL if path.is_dir() else path
    if not weights.exists():
        problem = f"{weights} is missing" if path.is_dir() else "there is nothing"
        raise InvalidInput(
            f"there is no finished run at {path}: {problem}. Name the folder that tacit train wrote, or a "
            "copy of it. To finish an interrupted run, use tacit train with --resume."
        )
    description = read_description(weights)
    statement = _statement(weights.parent / _STATEMENT, description.statement_digest)
    model = rebuild(weights, description, factory).to(device_of(device, "device"))
    if description.pretrained is not None:
        description = replace(description, preprocessing=_with_tokens(description.preprocessing, model))
    return Predictor(model, description, statement)


def _with_tokens(kind: Kind, model: Any) -> Kind:
    """Return the preprocessing, with the tokenizer of the model's body if the model reads a text."""
    if not isinstance(kind, Table) or kind.encoder.text is None:
        return kind
    return kind.with_tokens(model.encoder.tokens)


def _statement(path: Path, digest: str) -> dict[str, Any] | None:
    if not path.exists():
        return None
    if statement_digest(path.read_bytes()) != digest:
        raise InvalidInput(
            f"{path} does not belong to the model next to it: one of the two was changed or copied from "
            "another run, or the run was killed while it wrote them (tacit train with --resume writes both "
            "again). Copy both from one folder. The model also works without a statement."
        )
    statement = read_statement(path)
    check_fields(statement)
    return statement


@final
class Predictor:
    """A trained model with the preprocessing of a user's records; made by :func:`load`.

    Records have the kind that the model was trained on:

    * a table: the path of a CSV or Parquet file, a data frame, or a mapping of columns; also a list of texts,
      if a column of texts is the only input;
    * pictures: the path of a folder or a picture, a list of files or of Pillow's pictures, or an array;
    * text: the path of a file with one record a line, or a list of texts;
    * a standard data set: an array, scaled as that data set is, or the path of a .npy, .npz or CSV file.

    **Guarantee**

    * A record's prediction depends only on that record and the model, up to the floating-point error of a
      matrix product, which may depend on the other records in the batch.

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
        """The classes, in the order of the probabilities; empty for models of numbers or labels.

        For text, they are the end of the text ("") and the characters of the alphabet.
        """
        preprocessing = self.description.preprocessing
        if isinstance(preprocessing, Text):
            return ("", *preprocessing.alphabet)
        return self.description.classes

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of the outputs; empty for models of classes, numbers or text."""
        return self.description.labels

    @property
    def columns(self) -> Mapping[str, Column]:
        """The declared columns of a table, including the target; empty for other data."""
        preprocessing = self.description.preprocessing
        return preprocessing.encoder.columns if isinstance(preprocessing, Table) else {}

    def outputs(self, data: Any) -> Tensor:
        """Return the outputs of the model: logits of classes, or scaled numbers.

        Shapes: (n, k) float32, or (n, L, k) for text.
        """
        return torch.cat([self.outputs_of(piece) for piece in self._pieces(data)])

    def predict(self, data: Any, *, threshold: float | None = None) -> NDArray[Any]:
        """Return each record's most probable class, by name, or its predicted number, in the target's unit.

        Shapes: (n,), or (n, k) for several numbers and for labels, which are true or false.  For text, the
        result is the most probable character after each record, or "" for the end of the text.

        Args:
            threshold: the least probability, from 0 to 1, at which the second of two classes, or a label, is
                predicted.  Choose it from public knowledge, such as the costs of both mistakes or how common
                the class is.  A threshold chosen on records of the data set would depend on private data.

        Raises:
            InvalidInput: a threshold is given for a model with neither two classes nor labels.
        """
        self.check_threshold(threshold)
        return self._all(partial(self.predictions, threshold=threshold), data)

    def check_threshold(self, threshold: float | None) -> None:
        """Refuse a threshold that is out of range, or for a model with neither two classes nor labels."""
        if threshold is None:
            return
        check_real("threshold", threshold, low=0.0, high=1.0)
        if self._text is not None or not (self.labels or len(self.classes) == 2):
            targets = f"{len(self.classes)} classes" if self.classes else "numbers"
            raise InvalidInput(
                f"a threshold needs two classes or labels: this model predicts {targets}. Leave it out; "
                "predict_proba gives the probability of each class."
            )

    def predict_proba(self, data: Any) -> NDArray[np.float64]:
        """Return the probability of each of :attr:`classes`, or of each of :attr:`labels`, (n, k).

        For text, it is the probability that each character comes next after the record.

        Raises:
            InvalidInput: the model predicts numbers, which have no probabilities.
        """
        return self._all(self.probabilities, data)

    def log_probability(self, data: Any) -> NDArray[np.float64]:
        """Return the natural logarithm of each text's probability, including its end, (n,).

        Raises:
            InvalidInput: the model is not a language model.
        """
        return self._all(self.log_probabilities, data)

    def export(self, path: Path | str, *, format: str, overwrite: bool = False) -> None:  # noqa: A002
        """Write the network for other programs; see :func:`tacit.runs.export.export_model`."""
        export_model(
            self.model, self.description, self.statement, Path(path), format=format, overwrite=overwrite
        )

    # --- one piece at a time, for files larger than memory -------------------------------------------------

    @property
    def rows_at_once(self) -> int:
        """The number of records in a forward pass, the same for data in memory and in files."""
        each = math.prod(self.description.input_shape) * (len(self.classes) if self._text else 1)
        return min(_MOST_ROWS, 1 << max(0, (_NUMBERS // max(1, each)).bit_length() - 1))

    def pieces(self, path: Path) -> Iterator[Piece]:
        """Yield the records of a file, as the model reads them, piece by piece."""
        preprocessing, rows = self.description.preprocessing, self.rows_at_once
        fit = _NUMBERS // math.prod(preprocessing.shape) // rows * rows
        yield from preprocessing.pieces(path, min(_CHUNK, max(rows, fit)))

    def outputs_of(self, piece: Piece) -> Tensor:
        """Return the outputs of the model for the records of a piece."""
        device = next(self.model.parameters()).device
        batches: list[Tensor] = []
        with evaluation_mode(self.model), torch.no_grad(), without_numbers():
            parts = torch.split(piece.inputs, self.rows_at_once)
            batches.extend(self.model(self._features(part).to(device)).float().cpu() for part in parts)
        outputs = torch.cat(batches)
        return outputs if self._text else outputs.reshape(len(outputs), -1)

    def _features(self, records: Tensor) -> Tensor:
        name = self.description.features
        return records if name == "raw" else features_of(name, self.description.preprocessing.shape)(records)

    def predictions(self, outputs: Tensor, piece: Piece, *, threshold: float | None = None) -> NDArray[Any]:
        """Return the result of :meth:`predict` for the records of a piece with these outputs."""
        if self.description.task == "numbers":
            low, high = np.asarray(self.description.target_bounds or [(-1.0, 1.0)], dtype=np.float64).T
            values = low + (outputs.double().clamp(-1.0, 1.0).numpy() + 1.0) / 2.0 * (high - low)
            result: NDArray[Any] = values[:, 0] if values.shape[1] == 1 else values
        elif self.labels:
            result = self.probabilities(outputs, piece) >= (0.5 if threshold is None else threshold)
        elif threshold is not None:
            at_least = self.probabilities(outputs, piece)[:, 1] >= threshold
            result = np.array(self.classes)[at_least.astype(np.intp)]
        else:
            result = np.array(self.classes)[self.probabilities(outputs, piece).argmax(axis=1)]
        return result

    def probabilities(self, outputs: Tensor, piece: Piece) -> NDArray[np.float64]:
        """Return the result of :meth:`predict_proba` for the records of a piece with these outputs."""
        if self.description.task == "numbers":
            raise InvalidInput("the model predicts numbers, which have no probabilities: call predict.")
        if self._text is not None:
            outputs = outputs[torch.arange(len(outputs)), self._text.lengths(piece.inputs)]
        if self.labels:
            return torch.sigmoid(outputs.double()).numpy()
        return torch.softmax(outputs.double(), dim=1).numpy()

    def log_probabilities(self, outputs: Tensor, piece: Piece) -> NDArray[np.float64]:
        """Return the result of :meth:`log_probability` for the records of a piece with these outputs."""
        if self._text is None:
            raise InvalidInput(
                "only a language model gives texts a probability: call predict or predict_proba."
            )
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
