"""Buffers made on demand, the memory budget, and operations with a backward pass of their own."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from oracles import Kind, Of, Sums, both, equals_a_loop, squares, step
from torch import Tensor, nn

from tacit.clipping import FAST, LEAN, FlatClipping, MemoryBudget
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation.under_vmap import Pass
from tacit.clipping.per_example import parameter
from tacit.clipping.per_example.parameter import Gradient
from tacit.clipping.per_example.use import Use
from tacit.errors import InvalidInput


class OnDemand(Mapping[str, Tensor]):
    """Buffers that are made when they are first asked for."""

    def __init__(self, make: Callable[[str], Tensor], names: list[str]) -> None:
        self.make, self.names = make, names
        self.made: Sums = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.made:
            self.made[name] = self.make(name)
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def partly() -> nn.Module:
    """A model with a layer that no loss reaches."""
    return Of(lambda m, x: m.used(x), used=nn.Linear(4, 3), unused=nn.Linear(2, 2))


def add(engine: GradientEngine, buffers: Mapping[str, Tensor], x: Tensor) -> None:
    step(engine, x, into=buffers)


@both
def test_buffers_are_made_when_they_are_needed(kind: Kind) -> None:
    model, x = partly(), torch.randn(5, 4)
    engine = kind(model, squares, FlatClipping(1.0))
    at_once = {name: torch.ones_like(p) for name, p in engine.parameters.items()}
    add(engine, at_once, x)
    lazy = OnDemand(lambda name: torch.ones_like(engine.parameters[name]), engine.names)
    add(engine, lazy, x[:0])
    assert not lazy.made
    add(engine, lazy, x)
    for name in engine.names:
        torch.testing.assert_close(lazy[name], at_once[name])


def test_buffers_of_unused_parameters_are_not_made() -> None:
    engine = FastEngine(partly(), squares, FlatClipping(1.0))
    lazy = OnDemand(lambda name: torch.zeros_like(engine.parameters[name]), engine.names)
    add(engine, lazy, torch.randn(5, 4))
    assert list(lazy.made) == ["used.bias", "used.weight"]  # the smaller one first


@both
def test_buffers_that_do_not_fit_are_refused(kind: Kind) -> None:
    engine = kind(partly(), squares, FlatClipping(1.0))
    with pytest.raises(InvalidInput, match=r"lacks a buffer for \['unused.bias', 'unused.weight'\]"):
        add(engine, OnDemand(lambda _: torch.zeros(3), ["used.weight", "used.bias"]), torch.randn(5, 4))
    with pytest.raises(InvalidInput, match=r"must have shape \(3,( 4)?\); got \(7,\)"):
        add(engine, OnDemand(lambda _: torch.zeros(7), engine.names), torch.randn(5, 4))
    half = OnDemand(lambda name: torch.zeros_like(engine.parameters[name]).half(), engine.names)
    with pytest.raises(InvalidInput, match="float32 or wider"):
        add(engine, half, torch.randn(5, 4))


def test_what_a_sum_needs_is_let_go_before_the_next_buffer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Use]] = []
    counts = []

    def watched(run: Pass, uses: Iterator[tuple[Tensor, Use]]) -> None:
        found = list(uses)
        alive.extend(weakref.ref(use) for _, use in found)
        record(run, found)

    def make(name: str) -> Tensor:
        gc.collect()
        counts.append(sum(use() is not None for use in alive))
        return torch.zeros_like(engine.parameters[name])

    record = Pass.record
    monkeypatch.setattr(Pass, "record", watched)
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
    engine = FastEngine(model, squares, FlatClipping(1.0))
    add(engine, {name: torch.zeros_like(p) for name, p in engine.parameters.items()}, torch.randn(5, 4))
    alive.clear()
    add(engine, OnDemand(make, engine.names), torch.randn(5, 4))
    assert counts == [3, 2, 1]


def test_small_gradients_that_are_joined_are_let_go_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = parameter._Joined
    alive: list[weakref.ref[parameter._Joined]] = []
    counts = {}

    def watched(names: Sequence[str], rows: Sequence[Tensor]) -> parameter._Joined:
        found = joined(names, rows)
        alive.append(weakref.ref(found))
        return found

    def make(name: str) -> Tensor:
        counts[name] = sum(one() is not None for one in alive)
        return torch.zeros_like(engine.parameters[name])

    monkeypatch.setattr(parameter, "_Joined", watched)
    model = nn.Sequential(nn.Linear(4, 600), nn.Linear(600, 4))
    engine = FastEngine(model, squares, FlatClipping(1.0))
    buffers = OnDemand(make, engine.names)
    add(engine, buffers, torch.randn(5, 6, 4))
    alive.clear()
    buffers.made.clear()
    add(engine, buffers, torch.randn(5, 6, 4))
    assert counts == {"0.bias": 1, "1.bias": 1, "0.weight": 0, "1.weight": 0}


def test_copies_of_weights_in_16_bits_end_with_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CUDA device, where a rule makes them once for both passes; each goes with its layer."""
    alive: list[weakref.ref[Tensor]] = []
    left: list[int] = []

    def narrowed(x: Tensor) -> Tensor:
        found = x.bfloat16()
        if x.shape == (4, 4):
            alive.append(weakref.ref(found))
        return found

    def watched(run: Pass, uses: Iterator[tuple[Tensor, Use]]) -> None:
        record(run, list(uses))
        left.append(sum(one() is not None for one in alive))

    def make(name: str) -> Tensor:
        assert all(one() is None for one in alive)
        return torch.zeros_like(engine.parameters[name])

    record = Pass.record
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
    engine = FastEngine(model, squares, FlatClipping(1.0))
    buffers = OnDemand(lambda name: torch.zeros_like(engine.parameters[name]), engine.names)
    add(engine, buffers, torch.randn(5, 4))
    buffers.made.clear()
    buffers.make = make
    for file in ("linear", "use"):
        monkeypatch.setattr(f"tacit.clipping.per_example.{file}.narrowed", narrowed)
    monkeypatch.setattr(Pass, "record", watched)
    add(engine, buffers, torch.randn(5, 4))
    assert len(buffers.made) == 3
    assert left == sorted(left, reverse=True)
    assert left[-1] < left[0]


def test_budgets() -> None:
    assert FastEngine(partly(), squares, FlatClipping(1.0)).budget == FAST == MemoryBudget()
    assert FastEngine(partly(), squares, FlatClipping(1.0), budget=LEAN).budget == LEAN
    for field in ("linear_slack", "convolution_slack", "small_bytes", "chunk_bytes"):
        with pytest.raises(InvalidInput, match=field):
            replace(FAST, **{field: -1})


@pytest.mark.parametrize(("chunk_bytes", "sizes"), [(1, {1}), (2 * 16 * 4, {2, 1}), (2**20, {5})])
def test_gradients_that_are_not_kept_are_formed_in_chunks_of_the_budget(
    chunk_bytes: int, sizes: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    formed: list[int] = []
    real = Gradient.gradients

    def watched(gradient: Gradient, start: int, stop: int) -> Tensor:
        formed.append(stop - start)
        return real(gradient, start, stop)

    monkeypatch.setattr(Gradient, "gradients", watched)
    # one weight, used as it is and turned round: its gradients are formed
    model = Of(
        lambda m, x: x @ m.weight + torch.sin(x @ (2 * m.weight.t())), weight=nn.Parameter(torch.randn(4, 4))
    )
    budget = replace(FAST, chunk_bytes=chunk_bytes)
    engine = FastEngine(model, squares, FlatClipping(1.0), budget=budget)
    equals_a_loop(engine, torch.randn(5, 4), rtol=1e-4, atol=1e-5)
    assert set(formed) == sizes
