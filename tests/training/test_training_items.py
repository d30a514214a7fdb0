"""Data sets whose items draw other records are refused if reading a few shows it; others are not."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from made import a_plan, a_session, network, one_step
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset

from tacit.errors import UnsupportedModel
from tacit.training import PrivateSession
from tacit.training import by_record as items
from tacit.training.by_record import check_items
from tacit.training.records import DatasetRecords

N, D = 40, 6
SOME = np.array([3, 17, 18, 39])


class Rows(Dataset[Any]):
    """Rows and labels in memory."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x, self.y = torch.randn(N, D, generator=generator), torch.arange(N) % 2
        self.reads = 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        self.reads += 1
        return self.item(i), self.y[i]

    def item(self, i: int) -> Tensor:
        return self.x[i]


class Mixup(Rows):
    def item(self, i: int) -> Tensor:
        return 0.5 * (self.x[i] + self.x[random.randrange(N)]) if torch.rand(()) < 0.5 else self.x[i]


class OwnMixup(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(0)

    def item(self, i: int) -> Tensor:
        return self.x[i] + self.x[self.random.integers(N)]


class Mosaic(Rows):
    """Makes a mosaic of files, which are read by name."""

    def __init__(self) -> None:
        super().__init__()
        self.files = {f"{i}.png": self.x[i] for i in range(N)}
        self.names = list(self.files)
        del self.x

    def item(self, i: int) -> Tensor:
        chosen = [i, *np.random.randint(0, N, 3).tolist()]  # noqa: NPY002
        return torch.stack([self.files[self.names[j]] for j in chosen])


class Triplets(Rows):
    """Adds a random item of another class."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = [(row, label) for row, label in zip(self.x, self.y.tolist(), strict=True)]
        del self.x

    def item(self, i: int) -> Tensor:
        while True:
            j = int(torch.randint(N, ()))
            if self.samples[j][1] != self.samples[i][1]:
                return torch.cat([self.samples[i][0], self.samples[j][0]])


class FixedPairs(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.partner = torch.randperm(N, generator=torch.Generator().manual_seed(0))

    def item(self, i: int) -> Tensor:
        return self.x[i] + self.x[self.partner[i]]


class Centred(Rows):
    def item(self, i: int) -> Tensor:
        return self.x[i] - self.x.mean(0)


class Previous(Rows):
    """Adds half of the item before."""

    last: Any = None

    def item(self, i: int) -> Tensor:
        mixed = self.x[i] if self.last is None else self.x[i] + self.last
        self.last = self.x[i]
        return mixed


class Scaled(Rows):
    """Divides by the largest number of the item read first."""

    largest: Any = None

    def item(self, i: int) -> Tensor:
        if self.largest is None:
            self.largest = self.x[i].abs().max()
        return torch.as_tensor(self.x[i] / self.largest)


class Remembered(Rows):
    """Adds one of the items read last."""

    def __init__(self) -> None:
        super().__init__()
        self.recent = deque[Tensor](maxlen=8)
        self.read = self.x.__getitem__
        del self.x

    def item(self, i: int) -> Tensor:
        self.recent.append(self.read(i))
        return self.read(i) + random.choice(self.recent)


class Together(Rows):
    def __getitems__(self, positions: list[int]) -> list[Any]:
        mean = self.x[positions].mean(0)
        return [(self.x[i] - mean, self.y[i]) for i in positions]


class FromTable(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.table = pd.DataFrame(self.x.numpy())
        del self.x

    def item(self, i: int) -> Tensor:
        rows = self.table.iloc[[i, random.randrange(N)]]
        return torch.from_numpy(rows.to_numpy().sum(0))


class Over(Dataset[Any]):
    """Wraps another data set, and mixes two of its items, or none."""

    def __init__(self, base: Any, *, mixed: bool) -> None:
        self.base, self.mixed = base, mixed

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, i: int) -> Any:
        (x, y), (other, _) = self.base[i], self.base[random.randrange(len(self))]
        return (x + other if self.mixed else x), y


class Foreign:
    """Can be indexed, and does not show its contents."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = Rows()

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return self._rows[i]


class Store:
    """Holds the rows of a data set."""

    def __init__(self) -> None:
        self.columns = {"x": Rows().x.numpy()}


class FromStore(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        del self.x

    def item(self, i: int) -> Tensor:
        return torch.from_numpy(self.store.columns["x"][[i, random.randrange(N)]].max(0))


MIXED: dict[str, Callable[[], Any]] = {
    "mixup": Mixup,
    "mixup by its own generator": OwnMixup,
    "mosaic": Mosaic,
    "triplets": Triplets,
    "fixed pairs": FixedPairs,
    "statistics": Centred,
    "previous item": Previous,
    "recent items": Remembered,
    "scaled by the first item": Scaled,
    "items that are asked for together": Together,
    "table": FromTable,
    "store": FromStore,
    "subset": lambda: Subset(Subset(Mixup(), range(N)[::-1]), range(4, N)),
    "chain": lambda: ConcatDataset([Rows(), Mixup()]),
    "over rows": lambda: Over(Rows(), mixed=True),
    "over mixup": lambda: Over(Mixup(), mixed=False),
    "over a subset": lambda: Over(Subset(Rows(), range(N)), mixed=True),
    "over something foreign": lambda: Over(Foreign(), mixed=True),
}


def drawn(dataset: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([len(dataset) - 1, 3, 17, 18])


@pytest.mark.parametrize("mixed", MIXED)
def test_items_that_are_made_of_other_records_are_refused(mixed: str) -> None:
    dataset = MIXED[mixed]()
    with pytest.raises(UnsupportedModel, match=r"So it depends on other records.*from its own record"):
        check_items(DatasetRecords(dataset), drawn(dataset))


class Augmented(Rows):
    """Draws crops, flips and noise from all global generators and from a separate one."""

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(0)

    def item(self, i: int) -> Tensor:
        x = self.x[i].roll(random.randrange(D)) * np.random.choice([-1, 1])  # noqa: NPY002
        return torch.as_tensor(x + torch.randn(D) + self.random.random())


class Unrepeatable(Rows):
    def item(self, i: int) -> Tensor:
        return self.x[i] + np.random.default_rng().random()


class Cached(Rows):
    """Decodes an item once, with random numbers, and stores it in three places."""

    def __init__(self) -> None:
        super().__init__()
        self.cache, self.list = OrderedDict[int, Tensor](), list[int | None]([None] * N)
        self.kept: Any = torch.zeros(N, D)

    def item(self, i: int) -> Tensor:
        if i not in self.cache:
            self.cache[i] = self.x[i] + torch.randn(D)
            self.list[i] = i
            self.kept[i] = self.x[i]
        return self.cache[i] + torch.randn(D)


class Decoded(Rows):
    @lru_cache  # noqa: B019
    def item(self, i: int) -> Tensor:
        return self.x[i] * 2


class Reordered(Rows):
    """Permutes the items, and has a weight for each."""

    def __init__(self) -> None:
        super().__init__()
        self.order = np.random.default_rng(0).permutation(N)
        self.weights = torch.rand(N, 1, generator=torch.Generator().manual_seed(0))

    def item(self, i: int) -> Tensor:
        return self.x[self.order[i]] * self.weights[i]


class Ragged(Rows):
    """Gives pieces of a series between given places."""

    def __init__(self) -> None:
        super().__init__()
        self.starts, self.series = np.arange(N) * D, self.x.flatten()
        del self.x

    def item(self, i: int) -> Tensor:
        end = self.starts[i + 1] if i + 1 < N else len(self.series)
        return self.series[self.starts[i] : end]


class Failing(Rows):
    def item(self, i: int) -> Tensor:
        raise OSError("truncated file")


class Closing(Rows):
    """Has a file that it closes when it is deleted."""

    closed = False

    def __del__(self) -> None:
        type(self).closed = True


def test_nothing_is_closed() -> None:
    dataset = Closing()
    check_items(DatasetRecords(dataset), SOME)
    assert not Closing.closed
    assert len(dataset) == N


class Odd(Rows):
    """Has attributes that cannot be copied, or whose length raises."""

    def __init__(self) -> None:
        super().__init__()
        self.unsized, self.itself = Unsized(), self


class Unsized:
    def __len__(self) -> int:
        raise AttributeError("base")

    def __copy__(self) -> Any:
        raise RuntimeError("one of it is enough")


ALONE: dict[str, Callable[[], Any]] = {
    "rows": Rows,
    "augmented": Augmented,
    "not repeatable": Unrepeatable,
    "cached": Cached,
    "decoded": Decoded,
    "reordered": Reordered,
    "ragged": Ragged,
    "failing": Failing,
    "odd": Odd,
    "over": lambda: Over(Augmented(), mixed=False),
    "over something foreign": lambda: Over(Foreign(), mixed=False),
    "subset": lambda: Subset(Augmented(), range(N)[::-1]),
    "chain": lambda: ConcatDataset([Rows(), Augmented()]),
    "stack": lambda: StackDataset(Rows(), Augmented()),
    "tensors": lambda: Subset(TensorDataset(Rows().x, Rows().y), range(N)[::-1]),
    "two": lambda: Subset(Rows(), [0, 1]),
}


@pytest.mark.parametrize("alone", ALONE)
def test_items_that_are_made_of_their_own_records_are_not(alone: str) -> None:
    dataset = ALONE[alone]()
    check_items(DatasetRecords(dataset), drawn(dataset)[-len(dataset) :] % len(dataset))


def states() -> list[str]:
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    return [repr(python), repr(numpy), repr(torch.get_rng_state().tolist())]


def test_the_data_set_and_the_generators_are_left_as_they_were() -> None:
    dataset = Cached()
    before, x, held = states(), dataset.x.clone(), dict(vars(dataset))
    check_items(DatasetRecords(dataset), SOME)
    assert all(vars(dataset)[name] is value for name, value in held.items())
    assert torch.equal(dataset.x, x)
    assert not dataset.cache
    assert dataset.list == [None] * N
    assert states() == before
    own = OwnMixup()
    state = own.random.bit_generator.state
    with pytest.raises(UnsupportedModel):
        check_items(DatasetRecords(own), SOME)
    assert own.random.bit_generator.state == state


class Counted(Rows):
    """Counts reads in memory that all copies share."""

    def __init__(self) -> None:
        super().__init__()
        self.count = torch.zeros(())

    def item(self, i: int) -> Tensor:
        self.count += 1
        return self.x[i]


class CountedTogether(Counted):
    def __getitems__(self, positions: list[int]) -> list[Any]:
        return [self[i] for i in positions]


@pytest.mark.parametrize(("kind", "most"), [(Counted, 32), (CountedTogether, 40)])
def test_few_items_are_read(kind: type[Counted], most: int) -> None:
    dataset = kind()
    check_items(DatasetRecords(dataset), SOME)
    assert int(dataset.count) == most


def test_large_arrays_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "_LARGE", 0)
    for mixed in (Mixup, Centred, FromStore):
        with pytest.raises(UnsupportedModel):
            check_items(DatasetRecords(mixed()), SOME)
    dataset = Augmented()
    before = dataset.x.clone()
    check_items(DatasetRecords(dataset), SOME)
    check_items(DatasetRecords(Cached()), SOME)
    assert torch.equal(dataset.x, before)


def session(dataset: Any, workers: int = 0) -> PrivateSession:
    plan = a_plan(records=N, batch_size=10, steps=3, clipping=1.0)
    return a_session(network(D, 2), dataset, plan, lr=0.1, workers=workers)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_session_reads_them_before_its_first_step(workers: int) -> None:
    refused = session(Mixup(), workers)
    before = [parameter.clone() for parameter in refused.model.parameters()]
    with pytest.raises(UnsupportedModel, match="Mixup changes when other records"):
        one_step(refused)
    assert refused.steps_done == 0
    assert all(map(torch.equal, refused.model.parameters(), before))


def test_a_session_reads_them_once() -> None:
    dataset = Counted()
    made = session(dataset)
    steps, counts = made.batches(), []
    for _ in range(3):
        before = int(dataset.count)
        made.step(next(steps))
        counts.append(int(dataset.count) - before)
    assert counts[0] > 32
    assert max(counts[1:]) < 25
