"""If Triton is installed and does not work, PyTorch's operations replace it, and a warning says why."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tacit.clipping.per_example import linear, triton_outer
from tacit.native import cuda, trial
from tacit.noise import on_device

INTERPRETED = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
CPU = torch.device("cpu")
FAKED = torch.device("cuda", 5)
"""A device whose tensors lie on the CPU in these tests."""


class Kernel:
    """Does ``launched`` in place of the kernel, and counts how often."""

    def __init__(self, launched: Callable[[Tensor], object]) -> None:
        self.launched, self.count = launched, 0

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(result: Tensor, **kwargs: Any) -> None:
            self.count += 1
            self.launched(result)

        return launch


def broken(result: Tensor) -> None:
    raise RuntimeError("gcc: fatal error: cannot execute 'cc1'\nlong output")


def failing(error: BaseException) -> Callable[[Tensor], None]:
    def launched(result: Tensor) -> None:
        raise error

    return launched


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    for known in (cuda.runs_triton, cuda.works):
        known.cache_clear()
    yield
    for known in (cuda.runs_triton, cuda.works):
        known.cache_clear()


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all seem to be there for a device, on which tensors are those of the CPU."""
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *a, device, **k: zeros(*a, device=CPU, **k))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cuda, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setenv("CC", "gcc")


def ready(result: Tensor) -> None:
    result.fill_(trial.TILE**3)


@pytest.mark.parametrize(
    ("launched", "why"),
    [
        (broken, "RuntimeError: gcc: fatal error: cannot execute 'cc1' long output."),
        (lambda result: None, "a test kernel returned 0.0 instead of 4096"),
    ],
)
def test_kernels_that_do_not_run_are_reported_once_and_not_used(
    launched: Callable[[Tensor], object], why: str, faked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(launched)
    monkeypatch.setattr(trial, "trial", kernel)
    with pytest.warns(RuntimeWarning, match="do not run on cuda:5") as said:
        assert not cuda.runs_triton(FAKED, triton_outer.CAPABILITY)
    assert len(said) == 1
    assert why in str(said[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not cuda.runs_triton(FAKED, triton_outer.CAPABILITY)
        assert not cuda.runs_triton(FAKED, on_device.CAPABILITY)
    assert kernel.count == 1


def test_what_runs_is_taken_without_a_word(faked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "trial", Kernel(ready))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cuda.runs_triton(FAKED, triton_outer.CAPABILITY)


def test_an_old_device_is_not_tried(faked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(ready)
    monkeypatch.setattr(trial, "trial", kernel)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not cuda.runs_triton(FAKED, triton_outer.CAPABILITY)
    assert kernel.count == 0
    assert cuda.runs_triton(FAKED, on_device.CAPABILITY)


def test_without_triton_nothing_is_tried(faked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    monkeypatch.setattr(trial, "trial", Kernel(broken))
    assert not cuda.runs_triton(FAKED, on_device.CAPABILITY)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no"), KeyboardInterrupt()])
def test_what_says_nothing_of_triton_is_raised(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "trial", Kernel(failing(error)))
    with pytest.raises(type(error)):
        cuda.works(CPU)


def test_norms_and_sums_are_then_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the tensors lay on a device whose Triton is broken."""
    monkeypatch.setattr(trial, "trial", Kernel(broken))
    monkeypatch.setattr(triton_outer, "runs_triton", lambda device, capability: cuda.works(device))
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(3, 5, d, generator=generator).bfloat16() for d in (4, 6))
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda self: True))
    with pytest.warns(RuntimeWarning, match="uses PyTorch's operations"):
        assert not triton_outer.takes(left, right)
    use, total = linear.Outer(left, right, 0.0), torch.zeros(4, 6)
    assert not use.skips_zeros
    use.add_weighted(total, torch.ones(3))
    truth = torch.einsum("ntp,ntd->npd", left.double(), right.double())
    assert (use.squared_norms().double() >= truth.square().sum((1, 2))).all()
    torch.testing.assert_close(total.double(), truth.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()), reason="no CUDA device; not in the interpreter"
)
def test_the_kernel_computes_what_it_should() -> None:
    device = CPU if INTERPRETED else torch.device("cuda", torch.cuda.current_device())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cuda.works(device)
