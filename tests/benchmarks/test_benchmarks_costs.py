"""The cost of a private step of library models over a plain one, without a clock and a GPU."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tacit.clipping.per_example import embedding, parameter

KERNELS, OPERATIONS, BYTES, BYTES_OF_ADAPTERS = 1.25, 1.35, 1.25, 1.1
MODELS = ("BERT", "GPT-2", "ViT", "Llama", "Llama, LoRA")
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("peft") is None or importlib.util.find_spec("transformers") is None,
    reason="transformers or peft is not installed",
)


@pytest.fixture
def costs(part: Any) -> Iterator[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield part("costs")
    torch.set_num_threads(threads)


@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize("name", MODELS)
def test_a_private_step_costs_little_more_than_a_plain_one(costs: Any, name: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # its own, to itself
        plain, private = costs.of_model(name)
    assert private.kernels <= KERNELS * plain.kernels
    assert private.operations <= OPERATIONS * plain.operations
    assert private.bytes <= (BYTES_OF_ADAPTERS if "LoRA" in name else BYTES) * plain.bytes
    assert private.waits <= plain.waits  # a model's own


def test_layers_that_are_not_taken_together_are_found(costs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter, "_stacks", lambda gradients, names: [])
    plain, private = costs.of_model("BERT")
    assert private.kernels > KERNELS * plain.kernels


def test_a_wait_is_found(costs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = embedding._pairs

    def waiting(numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert len(numbers.unique()) > 0  # type: ignore[no-untyped-call]
        return real(numbers)

    monkeypatch.setattr(embedding, "_pairs", waiting)
    plain, private = costs.of_model("BERT")
    assert private.waits > plain.waits


def test_what_a_mode_counts(costs: Any) -> None:
    x = torch.ones(4, 3)

    def step() -> Tensor:
        y = x.t()[1:]  # views
        total = torch.zeros(2, 2).addmm_(y, x[:, :2])
        return total[total > 0] if total.sum().item() else total

    found = costs.costs(step)
    assert found.kernels == 5  # zeros, a product, a sum, a comparison, and what it selects
    assert found.operations == 2 * 2 * 4 * 2
    assert found.waits == 2  # item, and a selection by bools
    assert found.bytes >= 2 * 2 * 4
