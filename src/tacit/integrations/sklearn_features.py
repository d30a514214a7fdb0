"""Frozen features of X, computed once before the first private step, for each record independently.

Letters: n records; d columns of X; f features.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.errors import InvalidInput, PrivacyRefusal, TacitError, check_in, of_device, without_values
from tacit.models.additive import Binned
from tacit.pretrained.model import Pretrained
from tacit.recipes import BINS, additive_pays

Estimator = Any  # PrivateClassifier or PrivateRegressor, which import this file

_PIECE = 64  # records per call, so that texts of some hundred tokens, or pictures, fit into memory
_TRIED = 8  # the number of records whose features are computed again, each alone
_SAME = 1e-3  # relative to a row's length; summing in another order in float32 changes far less


# --- X as given ------------------------------------------------------------------------------------------


def takes_given(estimator: Estimator) -> bool:
    """Return whether ``features`` gets X as given, because neither bounds nor columns are declared."""
    return estimator.features is not None and estimator.bounds is None and estimator.columns is None


def is_additive(estimator: Estimator, rows: int, numbers: int) -> bool:
    """Return whether numbers get bins, so that the model is a sum of one curve for each column.

    Args:
        rows: the number of rows of X. It is used only if ``records`` is not declared; then it is public.
        numbers: the number of numeric columns, which would get bins.
    """
    model = check_in("model", estimator.model, ("auto", "linear", "additive"))
    conflicts_of = {
        "features": estimator.features is not None,
        "hidden": bool(estimator.hidden),
        "normalise=True": estimator.normalise,
        'head="least-squares"': estimator.head == "least-squares",
    }
    against = [name for name, conflicts in conflicts_of.items() if conflicts]
    if model == "additive" and against:
        raise InvalidInput(
            f'model="additive" does not go with {against[0]}: the model is a sum of one curve per declared '
            f"column. Leave {against[0]} out, or take another model."
        )
    if model != "auto":
        return model == "additive"
    records = rows if estimator.records is None else estimator.records
    return not against and additive_pays(
        max(1, records), estimator.epsilon, numbers
    )  # an empty X is refused later


@dataclass(frozen=True)
class Given:
    """Records as the user passed them, before their features are computed.

    >>> from types import SimpleNamespace
    >>> lengths = lambda texts: [[len(text), text.count("a"), 1] for text in texts]
    >>> estimator = SimpleNamespace(features=lengths, verbose=False)
    >>> Given(estimator, ["Anna", "Bob"]).compute().norm(dim=1)
    tensor([1., 1.])
    """

    estimator: Estimator
    X: Any

    def __post_init__(self) -> None:
        if not callable(self.estimator.features):
            raise InvalidInput(
                "features must be callable: a torch module, or a function that maps records to numbers, such "
                f"as model.encode of sentence-transformers; got {type(self.estimator.features).__name__}."
            )
        if isinstance(self.X, str | bytes) or not hasattr(self.X, "__len__"):
            raise InvalidInput(
                f"X must be a list, array or column of a data frame; got {type(self.X).__name__}. For one "
                "record give a list with it."
            )
        if not len(self.X):
            raise InvalidInput("X holds no records. Give at least one.")

    def __len__(self) -> int:
        return len(self.X)

    def compute(self, *, width: int | None = None) -> Tensor:
        """Return (n, f) float32 features, each row of mean 0 and length 1; a constant row becomes 0.

        Args:
            width: f for a fitted estimator; None during fit, which then checks that records are not mixed.

        **Guarantee**

        * In fit, some records of the first piece are computed again, each alone, before and after the other
          pieces, and must get the same features.  As far as this check shows, a record's features depend on
          that record alone.
        """
        from tqdm.auto import tqdm  # widgets in a notebook, text elsewhere

        features, total = self.estimator.features, len(self.X)
        rows: list[NDArray[np.float64]] = []
        title: dict[str, Any] = {"desc": "features", "unit": "record", "dynamic_ncols": True}
        with tqdm(total=total, disable=not self.estimator.verbose, **title) as bar:
            for start in range(0, total, _PIECE):
                piece = _slice(self.X, start, min(start + _PIECE, total))
                rows.append(_rows(features, piece, rows[0].shape[1] if rows else width))
                if width is None and not start:
                    self._compare_alone(rows[0])
                bar.update(len(piece))
        if width is None:
            self._compare_alone(rows[0])
        return torch.from_numpy(np.concatenate([_unit(part) for part in rows]).astype(np.float32))

    def _compare_alone(self, together: NDArray[np.float64]) -> None:
        for index in np.unique(np.linspace(0, len(together) - 1, _TRIED).astype(int)):
            alone = _rows(self.estimator.features, _slice(self.X, index, index + 1), together.shape[1])[0]
            if np.linalg.norm(alone - together[index]) > _SAME * np.linalg.norm(alone):
                raise PrivacyRefusal(
                    "features depend on other records or on chance: a record alone has other features than "
                    "among others or in a second call. So one record would change what the model learns "
                    "from the others, which no budget covers. Take features that map each record alone: a "
                    "model in eval mode, without statistics of a batch, with padding masked, without random "
                    "numbers, and in 32 bits."
                )


def name_of(features: Any) -> str:
    """Return the name for the statement: a public model's name and digest, or a class or function name.

    >>> name_of(nn.Linear(2, 2)), name_of(len), name_of("ab".count)
    ('Linear', 'len', 'str.count')
    """
    if isinstance(features, Pretrained):
        return f"{features.name} (SHA-256 {features.digest})"
    return str(getattr(features, "__qualname__", type(features).__name__))


def _slice(X: Any, start: int, stop: int) -> Any:
    return X.iloc[start:stop] if hasattr(X, "iloc") else X[start:stop]


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Subtract each row's mean, and scale the row to length 1."""
    rows = rows / np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-300)  # no overflow of squares
    rows = rows - rows.mean(axis=1, keepdims=True)
    unit: NDArray[np.float64] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return unit


def _rows(features: Any, piece: Any, width: int | None) -> NDArray[np.float64]:
    """Return (n, f) features of a piece; check that they are finite, and f = ``width`` if that is given."""
    rows = _numbers(_output_of(features, piece))
    if rows.ndim != 2 or len(rows) != len(piece) or rows.shape[1] < 2:
        raise InvalidInput(
            f"features must have shape ({len(piece)}, f) with f >= 2; got {rows.shape}. Join the numbers of "
            "a record, as by rows.reshape(len(rows), -1), or take their mean over words or places."
        )
    if width is not None and rows.shape[1] != width:
        raise InvalidInput(
            f"features gave {rows.shape[1]} numbers for a record, and {width} for others. Take features of "
            "one width, such as the mean over the words of a text."
        )
    if wrong := int((~np.isfinite(rows).all(axis=1)).sum()):
        raise InvalidInput(
            f"features gave NaN or infinite numbers for {wrong} of {len(rows)} records. Let the callable "
            "give such records fixed numbers, as for an empty text, or remove them."
        )
    return rows


def _output_of(features: Any, piece: Any) -> Any:
    """Return the output of ``features`` for a piece of X. Errors contain no value of a record."""
    try:
        if isinstance(features, Pretrained):  # embed batches texts of similar length
            return features.embed(_inputs(features, piece))
        if isinstance(features, nn.Module):
            with _eval_mode(features), torch.no_grad():
                return features(_inputs(features, piece))
        return features(piece)
    except TacitError:
        raise
    except Exception as problem:
        if of_device(problem):
            raise
        summary = without_values(problem)
    raise InvalidInput(  # outside the handler: the first error may print a record
        f"features failed on {len(piece)} record{'s' * (len(piece) > 1)} ({summary}); the text of the error "
        "is left out, as it may contain values of records. Try features(X[:8]) and features(X[:1]): it must "
        "take X as given to fit, also a single record, and return numbers (n, f). For a module on scaled "
        "columns of numbers, declare bounds."
    )


def _inputs(features: nn.Module, piece: Any) -> Tensor:
    """Return a module's inputs: tokens from its own ``tokens`` method if it has one, or float32 numbers."""
    tokens = getattr(features, "tokens", None)
    if callable(tokens):
        inputs: Tensor = tokens(list(piece))
    else:
        values = piece if isinstance(piece, Tensor) else torch.from_numpy(np.ascontiguousarray(piece))
        inputs = values.float() / 255 if values.dtype == torch.uint8 else values.float()
    weights = next(chain(features.parameters(), features.buffers()), None)
    return inputs if weights is None else inputs.to(weights.device)


@contextmanager
def _eval_mode(module: nn.Module) -> Iterator[None]:
    """Put the module into eval mode, and restore the mode of each submodule at the end."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def _numbers(output: Any) -> NDArray[np.float64]:
    if isinstance(output, Tensor):
        output = output.detach().cpu().double()
    elif hasattr(output, "toarray"):  # a sparse matrix, as of HashingVectorizer
        output = output.toarray()
    numbers: NDArray[np.float64] | None = None
    with suppress(TypeError, ValueError):  # the error's text would contain a value
        numbers = np.asarray(output, dtype=np.float64)
    if numbers is None:
        raise InvalidInput(
            f"features must return numbers (n, f); got {type(output).__name__} without numbers, or with rows "
            "of different lengths. Return an array or a tensor: the part of a model's output with the "
            "numbers, such as last_hidden_state.mean(1)."
        )
    return numbers


# --- scaled values ---------------------------------------------------------------------------------------


class _Fixed(nn.Module):
    """Maps records in [-1, 1] to [0, 1], and applies the user's module."""

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features.eval().requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        rows: Tensor = self.features((inputs + 1) / 2)
        return rows


def front_of(estimator: Estimator, columns: int, *, least_squares: bool) -> nn.Module:
    """Return the fixed module in front of the model; it maps each record once, before all steps."""
    if takes_given(estimator):
        return nn.Identity()
    if estimator.additive_ and estimator.encoder_ is None:
        return Binned(BINS)
    if estimator.features is None:
        first = estimator.normalise and least_squares  # the models of DP-SGD have a layer for it
        return nn.LayerNorm(columns, elementwise_affine=False) if first else nn.Identity()
    if not isinstance(estimator.features, nn.Module):
        raise InvalidInput(
            f"features must be a torch module; got {type(estimator.features).__name__}. With bounds or "
            "columns take one such as tacit.models.PictureFeatures(28, 28). For a callable on X as given, "
            "leave out bounds and columns: its features need none."
        )
    front = _Fixed(copy.deepcopy(estimator.features))
    samples = torch.rand(3, columns, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        together, alone = front(samples), torch.cat([front(row[None]) for row in samples])
    if together.ndim != 2 or len(together) != 3:
        raise InvalidInput(f"features must have shape (3, f) for 3 records; got {tuple(together.shape)}.")
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4 * float(alone.abs().max())):
        raise PrivacyRefusal(
            "features depend on the other records of a batch: one record would change what the model learns "
            "from the others. Take a module that maps each record alone."
        )
    return front
