"""The choice of training records for shadow models, and their training, which can be interrupted.

:func:`paired_halves` chooses the records of each shadow model.  :func:`train_shadows` trains the models
group by group, saves each group's outputs on all records, and resumes after an interruption.  The user gives
the function that trains a group.  :func:`one_by_one` makes it from any function that trains one model, and
:mod:`tacit.attacks.stacked` can train many small models together.

Letters: K models, n records, g models in a group.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.errors import InvalidInput, check_integer
from tacit.files import write_atomically

Bools: TypeAlias = NDArray[np.bool_]
Indices: TypeAlias = NDArray[np.int64]

Progress: TypeAlias = Callable[[int, int], None]
Train: TypeAlias = Callable[[Indices], Callable[[], ArrayLike]]
"""A function that trains a model on the records at (m,) indices.  It returns a function without arguments,
which computes the model's (n, ...) scores of all n records."""

TrainGroup: TypeAlias = Callable[[Bools], NDArray[Any]]
"""A function that trains g models.  Its argument is a (g, n) table of their training records, and its result
the models' outputs, of shape (g, ...)."""


@dataclass(frozen=True, eq=False)
class Shadows:
    """The training records of each shadow model, ``trained_on`` (K, n), and its ``outputs`` (K, ...).

    Any even number of the first models is balanced too, for example ``trained_on[:8]``.
    """

    trained_on: Bools
    outputs: NDArray[Any]


def paired_halves(models: int, records: int, rng: np.random.Generator) -> Bools:
    """Draw a (K, n) table of random halves of the records, complementary for models 0 and 1, 2 and 3, ...

    Every record is in the training data of exactly one model of each pair.  Therefore a set of some pairs,
    after an interruption for instance, is as balanced as the whole set.

    Args:
        models: K, an even number.

    >>> halves = paired_halves(6, 100, np.random.default_rng(0))
    >>> [set(counts.tolist()) for counts in (halves.sum(0), halves[:2].sum(0), halves.sum(1))]
    [{3}, {1}, {50}]
    """
    if check_integer("models", models, low=2) % 2:
        raise InvalidInput(f"models must be an even number; got {models}. Every record is in half of them.")
    check_integer("records", records, low=2)
    order = np.argsort(rng.random((models // 2, records)), axis=1)
    first = np.zeros((models // 2, records), dtype=np.bool_)
    np.put_along_axis(first, order[:, : records // 2], True, axis=1)
    return np.stack([first, ~first], axis=1).reshape(models, records)


def one_by_one(train: Train) -> TrainGroup:
    """Make a function that trains a group of models from one that trains one model, in any framework.

    >>> lookup = lambda indices: lambda: np.isin(np.arange(4), indices).astype(float)
    >>> one_by_one(lookup)(np.array([[True, True, False, False]])).tolist()
    [[1.0, 1.0, 0.0, 0.0]]
    """

    def group(trained_on: Bools) -> NDArray[Any]:
        return np.stack([np.asarray(train(np.flatnonzero(row))()) for row in trained_on])

    return group


def train_shadows(
    train: TrainGroup,
    trained_on: Bools,
    *,
    at_once: int,
    store: Path | None = None,
    identity: str = "",
    progress: Progress | None = None,
) -> Shadows:
    """Train K models in groups, and return their outputs on every record.

    Args:
        train: the function that trains a group.
        trained_on: a (K, n) table from :func:`paired_halves`.  The models may include those to attack.
        at_once: g, the number of models in a group.  An interruption loses at most one group's work.
        store: a file for finished groups.  If it already exists, *its* table and its models are used, and
            only the missing models are trained.  It contains outputs and memberships of the records, so it is
            as confidential as the records.
        identity: a name for everything that the outputs depend on: data, model and settings.  A store with
            another identity is refused.
        progress: called with the number of finished models, and K.

    Raises:
        InvalidInput: if the store is damaged or belongs to other work, or a model's outputs are not finite.

    >>> lookup = one_by_one(lambda indices: lambda: np.isin(np.arange(6), indices).astype(float))
    >>> design = paired_halves(4, 6, np.random.default_rng(0))
    >>> shadows = train_shadows(lookup, design, at_once=2)
    >>> bool((shadows.outputs == shadows.trained_on).all())
    True
    """
    check_integer("at_once", at_once, low=1)
    if trained_on.ndim != 2 or trained_on.dtype != np.bool_:
        raise InvalidInput(f"trained_on must be a table of booleans; got {trained_on.dtype}.")
    done: list[NDArray[Any]] = []
    if store is not None and store.exists():
        trained_on, done = _load(store, identity, trained_on.shape)
    count = len(trained_on)
    if progress is not None:
        progress(len(done), count)
    while len(done) < count:
        group = trained_on[len(done) : len(done) + at_once]
        done += list(_checked(train(group), len(done), len(group)))
        if store is not None:
            _save(store, identity, trained_on, np.stack(done))
        if progress is not None:
            progress(len(done), count)
    return Shadows(trained_on, np.stack(done))


def _checked(outputs: NDArray[Any], first: int, count: int) -> NDArray[Any]:
    if len(outputs) != count:
        raise InvalidInput(f"train must return outputs of {count} models; it returned {len(outputs)}.")
    for number, values in enumerate(outputs, first):
        if not np.isfinite(values).all():
            raise InvalidInput(
                f"outputs of model {number} must be finite; {int((~np.isfinite(values)).sum())} of "
                f"{values.size} are not. Did its training diverge? Lower the learning rate."
            )
    return outputs


def _save(store: Path, identity: str, trained_on: Bools, outputs: NDArray[Any]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, identity=np.array(json.dumps(identity)), trained_on=trained_on, outputs=outputs)
    write_atomically(store, lambda file: file.write(buffer.getbuffer()), mode=0o600)


def _load(store: Path, identity: str, shape: tuple[int, ...]) -> tuple[Bools, list[NDArray[Any]]]:
    try:
        with np.load(io.BytesIO(store.read_bytes()), allow_pickle=False) as data:
            saved_identity, trained_on, outputs = (data[key] for key in ("identity", "trained_on", "outputs"))
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile):
        raise InvalidInput(
            f"{store} is not a readable store of shadow models: it is damaged, or another program wrote it. "
            "Remove it to train them again."
        ) from None
    if json.loads(str(saved_identity)) != identity or trained_on.shape != shape:
        raise InvalidInput(
            f"{store} belongs to other data, models or settings. Continue with those, or remove the file to "
            "train again."
        )
    return trained_on, list(outputs)
