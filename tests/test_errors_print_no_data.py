"""No error prints a value of a record, by whatever door the record comes in: neither our words nor those of
NumPy, torch, scikit-learn or Pillow, nor a cause that a traceback shows."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from made import a_plan, a_session, finish
from torch import Tensor, nn
from torch.utils.data import Dataset as MapStyle

from tacit.datasets import Dataset, TensorPair, load_image_folder, load_text
from tacit.datasets.text import Alphabet, load_names, token_pair
from tacit.errors import TacitError, without_values
from tacit.integrations.sklearn import PrivateClassifier, PrivateRegressor
from tacit.training import evaluate
from tacit.training.evaluation import record_scores

NUMBER = 48 * 10**6 + 151_623  # made here, as a traceback shows lines of source
NAME = "P" + str(NUMBER)

N = 40
ROWS = np.linspace(-1, 1, 2 * N).reshape(N, 2)
LABELS = np.arange(N) % 2
ONE_WRONG = np.where(np.arange(N) == 7, NUMBER, LABELS)


class Broken(MapStyle[Any]):
    """A data set that gives what ``make`` does."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return N

    def __getitem__(self, position: int) -> Any:
        return self.make(position)


class Together(Broken):
    """The same, asked for many at once."""

    def __getitems__(self, positions: list[int]) -> list[Any]:
        return [self.make(position) for position in positions]


def train(data: Any, *, engine: str = "fast", model: nn.Module | None = None) -> None:
    plan = a_plan(noise_multiplier=2.0, records=N, batch_size=N, steps=1, clipping=1.0)
    finish(a_session(nn.Linear(2, 2) if model is None else model, data, plan, generator=None, engine=engine))


def arrays(rows: object = ROWS, labels: object = LABELS) -> tuple[Tensor, Tensor]:
    return torch.tensor(np.asarray(rows, dtype=np.float32)), torch.tensor(np.asarray(labels))


def reads_words() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 2), nn.Flatten(), nn.Linear(4, 2))


def of_training() -> Iterator[tuple[str, Callable[[], object]]]:
    words = torch.full((N, 2), NUMBER)
    for engine in ("fast", "reference"):
        yield f"a label, {engine}", partial(train, arrays(labels=ONE_WRONG), engine=engine)
        read = (words, arrays()[1])
        yield f"a token, {engine}", partial(train, read, engine=engine, model=reads_words())
    yield "an array of strings", lambda: train((np.full((N, 2), NAME), LABELS))
    yield "an array of objects", lambda: train((np.full((N, 2), NAME, dtype=object), LABELS))
    yield "a list of strings", partial(train, [NAME] * N)
    yield "not finite", lambda: train((np.where(ROWS > 0.5, np.inf, NUMBER).astype(np.float32), LABELS))
    items: dict[str, Callable[[int], Any]] = {
        "float of a string": lambda i: float(NAME),
        "no such key": lambda i: dict[str, int]()[NAME],
        "no such file": lambda i: Path("/nowhere", f"{NAME}.png").read_bytes(),
        "a chain of errors": lambda i: chained(),
        "a string": lambda i: (torch.zeros(2), NAME),
        "a dictionary": lambda i: {NAME: torch.zeros(2)},
        "keys that differ": lambda i: {f"{NAME}{i}": torch.zeros(2)},
        "an array of strings": lambda i: (np.array([NAME, NAME]), 0),
        "too large a label": lambda i: (torch.zeros(2), NUMBER),
        "larger than any integer": lambda i: (torch.zeros(2), NUMBER**5),
        "another type": lambda i: (torch.zeros(2), type("T", (), {"__repr__": lambda self: NAME})()),
    }
    for name, make in items.items():
        yield f"data set: {name}", partial(train, Broken(make))
        yield f"data set, many at once: {name}", partial(train, Together(make))
    x, y = arrays(labels=ONE_WRONG)
    yield "evaluate, a label", lambda: evaluate(nn.Linear(2, 2), x, y)
    yield "evaluate, a token", lambda: evaluate(reads_words(), words, arrays()[1])
    yield "evaluate, text", lambda: evaluate(nn.Embedding(10, 5), torch.zeros(N, 2).long(), words)
    yield "record scores", lambda: record_scores(reads_words(), words, arrays()[1])


def chained() -> float:
    try:
        return float(NAME)
    except ValueError as problem:
        raise RuntimeError(f"row {NAME}") from problem


def classifier(classes: Sequence[object] = (0, 1)) -> PrivateClassifier:
    return PrivateClassifier(
        epsilon=8.0, delta=1e-4, unit="row", adjacency="replace-one", bounds=(-1, 1), classes=classes, steps=1
    )


def regressor() -> PrivateRegressor:
    return PrivateRegressor(
        epsilon=8.0, delta=1e-4, unit="row", adjacency="replace-one", bounds=(-1, 1), target_bounds=(0, 1),
        steps=1,
    )  # fmt: skip


def of_scikit_learn() -> Iterator[tuple[str, Callable[[], object]]]:
    one = ROWS.astype(object)
    one[7, 1] = NAME
    tables: dict[str, Any] = {
        "one cell": one,
        "strings": np.full((N, 2), NAME),
        "bytes": np.full((N, 2), NAME.encode()),
        "lists": [[NAME, 1.0]] * N,
        "a frame": pd.DataFrame({"age": ROWS[:, 0], "ward": [NAME] * N}),
        "categories": pd.DataFrame({"age": ROWS[:, 0], "ward": pd.Categorical([NAME] * N)}),
        "ragged": [[NUMBER], [NUMBER, 1]] * (N // 2),
        "one column": np.full(N, float(NUMBER)),
        "complex": np.full((N, 2), NUMBER + 1j),
        "dictionaries": [[{NAME: 1}, 0]] * N,
        "larger than any float": [[NUMBER**50, 0]] * N,
        "deeper": [[[NUMBER], [NUMBER]]] * N,
        "not finite": np.where(ROWS > 0.5, np.nan, NUMBER),
    }
    targets: dict[str, Any] = {
        "an undeclared label": ONE_WRONG,
        "strings": [NAME] * N,
        "a series": pd.Series([NAME] * N),
        "fractions": ONE_WRONG + 0.5,
        "several types": np.array([NAME, 1] * (N // 2), dtype=object),
        "two columns": np.full((N, 2), NUMBER),
        "not finite": np.where(LABELS > 0, np.nan, NUMBER),
        "ragged": [[NUMBER], [1, 2]] * (N // 2),
        "dictionaries": [{NAME: 1}] * N,
    }
    short = np.full((N - 1, 2), float(NUMBER))
    yield "another number of records", partial(classifier().fit, short, LABELS)
    fitted, numbers = classifier().fit(ROWS, LABELS), regressor().fit(ROWS, LABELS)
    for name, X in tables.items():
        yield f"classifier, X: {name}", partial(classifier().fit, X, LABELS)
        yield f"regressor, X: {name}", partial(regressor().fit, X, LABELS)
        yield f"prediction, X: {name}", partial(fitted.predict, X)
        yield f"probabilities, X: {name}", partial(fitted.predict_proba, X)
        yield f"regression, X: {name}", partial(numbers.predict, X)
        yield f"score, X: {name}", partial(fitted.score, X, LABELS)
    for name, y in targets.items():
        yield f"classifier, y: {name}", partial(classifier().fit, ROWS, y)
        yield f"classes of words, y: {name}", partial(classifier(classes=["a", "b"]).fit, ROWS, y)
        if name not in ("an undeclared label", "not finite"):  # which is no error there
            yield f"score, y: {name}", partial(fitted.score, ROWS, y)
        if name not in ("an undeclared label", "fractions"):
            yield f"regressor, y: {name}", partial(regressor().fit, ROWS, y)
            yield f"score of a regression, y: {name}", partial(numbers.score, ROWS, y)


def of_files(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    def text(name: str, content: bytes) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    def lines(name: str, content: bytes) -> Callable[[], object]:
        path = text(name, content)
        return lambda: load_text(path, alphabet="ab", longest=10, test_fraction=0.5)

    yield "text, another character", lines("strange.txt", f"ab\n{NAME}\n".encode())
    yield "text, too long", lines("long.txt", f"ab\n{NAME}{NAME}\n".encode())
    yield "text, no UTF-8", lines("latin.txt", f"ab\n{NAME}\xe9\n".encode("latin1"))
    yield "text, not compressed", lines("plain.txt.gz", NAME.encode())
    yield "alphabet", lambda: Alphabet("ab").encode(NAME)
    yield "token pair", lambda: token_pair(["a" * 9 + "b"], Alphabet("ab"), 3)
    (folder / "names").mkdir()
    (folder / "names" / "names.txt.gz").write_bytes(NAME.encode())
    yield "names", lambda: load_names(folder=folder / "names")

    yield (
        "data set, a label",
        lambda: Dataset(
            "toy", pair(ONE_WRONG), pair(LABELS), classes=("a", "b"), source="made up", unit="row"
        ),
    )
    for place in ("cat", "dog", "cat/smith"):
        (folder / "pictures" / place).mkdir(parents=True)
    (folder / "pictures" / "cat" / f"{NAME}.png").write_bytes(NAME.encode())
    (folder / "pictures" / "cat" / "smith" / "2.png").write_bytes(b"none")
    for place in (NAME, "cat"):
        (folder / "persons" / place).mkdir(parents=True)
    yield "picture", lambda: pictures(folder / "pictures", "cat", "dog")
    (folder / "other" / "cat" / "smith").mkdir(parents=True)
    (folder / "other" / "cat" / "smith" / "2.png").write_bytes(b"none")
    yield "picture of a person", lambda: pictures(folder / "other", "cat")
    yield "folder of a person", lambda: pictures(folder / "persons", "cat")
    yield "folders of persons and none of a class", lambda: pictures(folder / "persons", "cat", "dog")


def pair(labels: np.ndarray[Any, Any]) -> TensorPair:
    return TensorPair(*arrays(labels=labels))


def pictures(folder: Path, *classes: str) -> Dataset:
    return load_image_folder(folder, size=(2, 2), classes=classes, test_fraction=0.5)


def doors(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    yield from of_training()
    yield from of_scikit_learn()
    yield from of_files(folder)


def error_of(enter: Callable[[], object]) -> Exception | None:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X has feature names")  # which are none of a record's
            enter()
    except Exception as error:  # noqa: BLE001 (which one it is is looked at)
        return error
    return None


def test_no_error_prints_a_value_of_a_record(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tried = 0
    for name, enter in doors(tmp_path):
        error = error_of(enter)
        assert error is not None, name
        shown = "".join(traceback.format_exception(error))
        assert not any(value in shown for value in (str(NUMBER), "smith")), name
        assert isinstance(error, TacitError), f"{name}: {error!r}"
        tried += 1
    assert tried > 150


def test_the_error_names_columns_and_places_instead_of_values() -> None:
    """The error names columns, numbers of cells and places: enough to mend the table."""
    one = ROWS.astype(object)
    one[7, 1] = one[9, 1] = NAME
    with pytest.raises(TacitError, match=r"not numbers: 2 in column 1 .* Declare"):
        classifier().fit(one, LABELS)
    frame = pd.DataFrame({"age": ROWS[:, 0], "ward": [NAME] * N})
    with pytest.raises(ValueError, match=rf"{N} in column 'ward'"):
        classifier().fit(frame, LABELS)
    with pytest.raises(
        TacitError, match=r"record \d+ of the dataset could not be read: ValueError in test_err"
    ):
        train(Broken(lambda i: float(NAME)))
    with pytest.raises(
        TacitError, match=rf"must be in 0\.\.1, because the model has 2 outputs; 1 of {N} are not"
    ):
        evaluate(nn.Linear(2, 2), *arrays(labels=ONE_WRONG))


def test_labels_of_words_are_trained_on() -> None:
    labels = np.array(["no", "yes"])[LABELS]
    model = classifier(classes=["no", "yes"]).fit(ROWS, labels)
    assert set(model.predict(ROWS)) <= {"no", "yes"}
    assert 0.0 <= model.score(ROWS, labels) <= 1.0


def test_planted_bug_a_cause_is_seen() -> None:
    """The test above looks at causes too."""
    with pytest.raises(RuntimeError) as caught:
        chained()
    assert str(NUMBER) in "".join(traceback.format_exception(caught.value))
    assert str(NUMBER) not in without_values(caught.value)
