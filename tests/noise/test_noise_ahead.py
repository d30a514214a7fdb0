"""Noise drawn in the background is the noise of the address, and is handed out once."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import Tensor

from tacit.errors import InvalidInput
from tacit.noise.gaussian import NoiseAhead, gaussian
from tacit.noise.generator import Generator

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
    ),
]


def parameters(device: str) -> dict[str, Tensor]:
    return {
        "weight": torch.zeros(300, 70, device=device),
        "half": torch.zeros(33, dtype=torch.bfloat16, device=device),
        "double": torch.zeros(5, 4, dtype=torch.float64, device=device),
    }


@pytest.mark.parametrize("device", DEVICES)
def test_it_is_the_noise_of_the_address(device: str) -> None:
    generator, like = Generator.from_os(), parameters(device)
    ahead = NoiseAhead(generator, like, rank=1, ranks=4)
    for step, std in ((0, 1.0), (1, 2.5), (7, 0.0)):
        ahead.start(step=step, std=std)
        for index, (name, tensor) in enumerate(like.items()):
            dtype = torch.float64 if name == "double" else torch.float32
            want = gaussian(
                generator, tuple(tensor.shape), std=std, step=step, index=index, rank=1, ranks=4, dtype=dtype
            )
            got = ahead.take(name)
            assert got.device == tensor.device
            assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("device", DEVICES)
def test_many_steps_never_mix(device: str) -> None:
    """A buffer must not be drawn into anew while its copy is still on the way."""
    generator, like = Generator.from_os(), {"weight": torch.zeros(1 << 20, device=device)}
    ahead = NoiseAhead(generator, like)
    taken = []
    for step in range(12):
        ahead.start(step=step, std=1.0)
        taken.append(ahead.take("weight"))
    for step, got in enumerate(taken):
        assert torch.equal(got.cpu(), gaussian(generator, (1 << 20,), std=1.0, step=step))


def test_it_is_handed_out_once() -> None:
    ahead = NoiseAhead(Generator.from_os(), parameters("cpu"))
    with pytest.raises(InvalidInput, match="never drawn"):
        ahead.take("weight")
    ahead.start(step=0, std=1.0)
    ahead.take("weight")
    with pytest.raises(InvalidInput, match="the noise of 'weight' was already used"):
        ahead.take("weight")
    with pytest.raises(InvalidInput, match="bias"):
        ahead.take("bias")


def test_a_new_step_drops_what_is_left_of_the_last() -> None:
    generator, like = Generator.from_os(), {str(i): torch.zeros(200_000) for i in range(30)}
    ahead = NoiseAhead(generator, like)
    ahead.start(step=0, std=1.0)
    ahead.start(step=1, std=1.0)
    assert torch.equal(ahead.take("3"), gaussian(generator, (200_000,), std=1.0, step=1, index=3))


def test_errors_of_the_thread_reach_the_caller() -> None:
    ahead = NoiseAhead(Generator.from_os(), parameters("cpu"))
    ahead.start(step=1 << 40, std=1.0)
    with pytest.raises(InvalidInput, match="step"):
        ahead.take("weight")


def test_the_thread_ends_with_its_owner() -> None:
    before = set(threading.enumerate())
    ahead = NoiseAhead(Generator.from_os(), parameters("cpu"))
    ahead.start(step=0, std=1.0)
    (thread,) = set(threading.enumerate()) - before
    del ahead
    gc.collect()
    thread.join(timeout=300)
    assert not thread.is_alive()
