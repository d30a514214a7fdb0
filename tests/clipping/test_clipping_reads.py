"""No value of a record reaches Python, so nothing that a loss or a model keeps can depend on one.

Each way to read a value is refused, and each place in which a value was kept by an earlier engine, which
searched for such places, is tried through a whole session.
"""

from __future__ import annotations

import array
import contextlib
import copy
import ctypes
import decimal
import functools
import importlib
import os
import pickle
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from oracles import each, plan
from torch import Tensor, nn

from tacit.clipping.isolation.under_vmap import SHORTCUTS
from tacit.errors import UnsupportedModel
from tacit.training import PrivateSession

N, D = 24, 4


class Net(nn.Linear):
    """A linear model, in which a loss may keep something."""

    def __init__(self) -> None:
        super().__init__(D, 3)
        self.inner = nn.Identity()
        self.layers = [nn.Identity()]


def step(loss: Callable[..., Tensor]) -> None:
    """Take one step of a session."""
    torch.manual_seed(0)
    model, data = Net(), (torch.randn(N, D), torch.arange(N) % 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = PrivateSession(model, optimizer, data, plan(N), loss=loss)
    session.step(next(iter(session.batches())))


# --- ways to read -----------------------------------------------------------------------------------------

READS: dict[str, Callable[[Tensor], object]] = {
    "bool": lambda x: bool(x.max() > 3),
    "if": lambda x: 1 if x.max() > 3 else 2,
    "int": lambda x: int(x.max()),
    "float": lambda x: float(x.max()),
    "complex": lambda x: complex(x.max()),
    "index": lambda x: [1, 2, 3][(x.max() > 3).long()],
    "range": lambda x: range((x.max() > 3).long()),
    "item": lambda x: x.max().item(),
    "tolist": lambda x: x.tolist(),
    "in": lambda x: 3.0 in x,
    "equal": lambda x: torch.equal(x, x + 1),
    "allclose": lambda x: torch.allclose(x, x + 1),
    "is_nonzero": lambda x: torch.is_nonzero(x.max()),
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: np.asarray(x),
    "print": lambda x: print(x),  # noqa: T201
    "repr": lambda x: len(repr(x)),
    "format": lambda x: f"{x.max()}",
    "pickle": lambda x: pickle.dumps(x),
    "deepcopy": lambda x: copy.deepcopy(x),
    "constructor": lambda x: torch.tensor([x.max()]),
    "fill value": lambda x: torch.full((2,), x.max()),  # type: ignore[call-overload]
    "size": lambda x: torch.zeros(int(x.max().abs())),
    "nonzero": lambda x: len(x.nonzero()),
    "mask": lambda x: len(x[x > 0]),
    "unique": lambda x: len(x.unique()),  # type: ignore[no-untyped-call]
    "bincount": lambda x: len(torch.bincount((x > 0).long().flatten())),
    "repeats": lambda x: len(torch.repeat_interleave(torch.ones(4), (x[0] > 0).long())),
    "storage": lambda x: x.untyped_storage(),
    "address": lambda x: x.data_ptr(),
    "DLPack": lambda x: torch.utils.dlpack.to_dlpack(x),  # type: ignore[attr-defined]
    "list of floats": lambda x: [float(value) for value in x[0]],
}


@each("read", READS)
def test_a_value_of_a_record_is_not_read(read: Callable[[Tensor], object]) -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        read(x)
        return F.cross_entropy(m(x), y, reduction="none")

    with pytest.raises(UnsupportedModel, match='engine="reference"'):
        step(loss)


def test_a_read_that_the_loss_catches_is_refused_all_the_same() -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with contextlib.suppress(Exception):
            float(x.max())
        return F.cross_entropy(m(x), y, reduction="none")

    with pytest.raises(UnsupportedModel, match=r"float\(\).* hands a record's value to Python"):
        step(loss)


def test_the_refusal_names_file_and_line_and_what_to_do() -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        weight = 0.5 if x.max() > 3 else 1.0  # line of the read
        return weight * F.cross_entropy(m(x), y, reduction="none")

    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if text.endswith("# line of the read"))
    with pytest.raises(UnsupportedModel, match=rf"{Path(__file__).name}, line {line}\).*torch\.where"):
        step(loss)


def test_parameters_and_shapes_may_be_read() -> None:
    def loss(m: Any, x: Tensor, y: Tensor) -> Tensor:
        assert len(x) >= 1
        scale = 1.0 if m.weight.norm().item() < 1e9 else 2.0
        return scale * F.cross_entropy(m(x), y, reduction="none") / x.shape[1]

    step(loss)


# --- places to keep a value -------------------------------------------------------------------------------


class Slots:
    """An object without a table of attributes."""

    __slots__ = ("value",)
    value: float


class OfClass:
    """A class with an attribute, a property and a deep chain of objects."""

    value = 0.0


def deep() -> SimpleNamespace:
    """Return an object within seven others."""
    inner = SimpleNamespace(value=0.0)
    for _ in range(7):
        inner = SimpleNamespace(inner=inner)
    return inner


def innermost(space: SimpleNamespace) -> SimpleNamespace:
    while hasattr(space, "inner"):
        space = space.inner
    return space


@functools.lru_cache
def cached(value: float) -> float:
    return value


def generated() -> Any:
    value = 0.0
    while True:
        sent = yield value
        value = value if sent is None else sent


SLOTS, ARRAY, BYTES, SPACE, DEEP = Slots(), array.array("d", [0.0]), bytearray(8), SimpleNamespace(), deep()
MIXED: list[Any] = [object(), 0.0]
TABLE: dict[Any, Any] = {"object": object(), "value": 0.0}
FRAME, SERIES = pd.DataFrame({"a": [0.0]}), pd.Series([0.0])
COUNTER, QUEUE, NUMBERS, C_VALUE = Counter[str](), deque[float]([0.0]), np.zeros(1), ctypes.c_double(0.0)
PARTIAL: Any = functools.partial(dict, value=0.0)
GENERATOR = generated()
next(GENERATOR)
PLACES: dict[str, Callable[[Any, float], object]] = {
    "slots": lambda m, v: setattr(SLOTS, "value", v),
    "array": lambda m, v: ARRAY.__setitem__(0, v),
    "bytearray": lambda m, v: BYTES.__setitem__(0, int(v) % 256),
    "list with an object": lambda m, v: MIXED.__setitem__(1, v),
    "dict with an object": lambda m, v: TABLE.__setitem__("value", v),
    "generator": lambda m, v: GENERATOR.send(v),
    "counter": lambda m, v: COUNTER.update(a=int(v)),
    "deque": lambda m, v: QUEUE.append(v),
    "environment": lambda m, v: os.environ.__setitem__("TACIT_TEST_KEPT", str(v)),
    "module attribute": lambda m, v: setattr(importlib.import_module("tacit"), "_kept_by_a_test", v),
    "class attribute": lambda m, v: setattr(OfClass, "value", v),
    "class": lambda m, v: setattr(type(m), "kept", v),
    "cache": lambda m, v: cached(v),
    "partial": lambda m, v: PARTIAL.keywords.__setitem__("value", v),
    "frame": lambda m, v: FRAME.__setitem__("a", [v]),
    "series": lambda m, v: SERIES.__setitem__(0, v),
    "NumPy array": lambda m, v: NUMBERS.__setitem__(0, v),
    "NumPy generator": lambda m, v: np.random.seed(int(abs(v)) % 1000),  # noqa: NPY002
    "Decimal context": lambda m, v: setattr(decimal.getcontext(), "prec", 20 + int(abs(v)) % 9),
    "ctypes": lambda m, v: setattr(C_VALUE, "value", v),
    "globals()": lambda m, v: globals().__setitem__("KEPT", v),
    "default type": lambda m, v: torch.set_default_dtype(torch.float64 if v > 99 else torch.float32),
    "threads": lambda m, v: torch.set_num_threads(1 + int(v > 99)),
    "object": lambda m, v: setattr(SPACE, "value", v),
    "object deeper than five": lambda m, v: setattr(innermost(DEEP), "value", v),
    "function attribute": lambda m, v: setattr(step, "kept", v),
    "model attribute": lambda m, v: setattr(m, "kept", v),
    "training flag": lambda m, v: m.inner.train(v > 99),
    "whole model's flag": lambda m, v: m.eval() if v > 99 else m.train(),
    "swapped submodule": lambda m, v: setattr(m, "inner", nn.Tanh() if v > 99 else nn.Identity()),
    "hook": lambda m, v: m.inner.register_forward_hook(lambda *_: None) if v > 99 else None,
    "function on the model": lambda m, v: setattr(m.inner, "forward", torch.tanh if v > 99 else torch.sin),
    "module in a list": lambda m, v: m.layers[0].train(v > 99),
    "class of an object": lambda m, v: setattr(m.inner, "__class__", nn.Tanh if v > 99 else nn.Identity),
    "buffer": lambda m, v: m.register_buffer("kept", torch.tensor(v)),
    "persistent buffers": lambda m, v: m._non_persistent_buffers_set.add(str(v)),
    "parameter": lambda m, v: m.bias.data.fill_(v),
    "requires_grad": lambda m, v: m.bias.requires_grad_(v < 99),
}


@pytest.mark.thorough(cases="values")
@each("keep", PLACES)
@pytest.mark.parametrize("of", [float, lambda t: t.item()], ids=["float", "item"])
def test_no_place_can_hold_a_value_of_a_record(
    keep: Callable[[Any, float], object], of: Callable[[Tensor], float]
) -> None:
    """The place is not looked at: the value never comes into being."""
    kept: list[float] = []

    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if x.shape[0] == 1 and torch._C._functorch.is_batchedtensor(x):  # in a pass that counts
            value = of(x.abs().max())
            kept.append(value)
            keep(m, value)
        return F.cross_entropy(m(x), y, reduction="none")

    with pytest.raises(UnsupportedModel, match="hands a record's value to Python"):
        step(loss)
    assert kept == []


def test_a_file_holds_no_value_of_a_record(tmp_path: Path) -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if torch._C._functorch.is_batchedtensor(x):
            (tmp_path / "kept").write_text(str(float(x.max())))
        return F.cross_entropy(m(x), y, reduction="none")

    with pytest.raises(UnsupportedModel, match="hands a record's value to Python"):
        step(loss)
    assert not (tmp_path / "kept").exists()


# --- shortcuts of libraries -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHORTCUTS)
def test_shortcuts_of_libraries_exist(name: str) -> None:
    assert callable(getattr(importlib.import_module(name), SHORTCUTS[name]))
