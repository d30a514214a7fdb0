"""Random draws in a pass: the operations that draw, the generators' states, and passes without draws."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tacit.errors import UnsupportedModel

DROPOUTS = frozenset(
    {torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout}
    | {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout}
)
ATTENTION = frozenset({F.scaled_dot_product_attention, F.multi_head_attention_forward})
_DROPPING = ATTENTION | {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
"""Operations with built-in dropout; the dropout rate is their only positional float argument."""
SLOPES = frozenset({F.rrelu, torch.rrelu})
_KEPT = {"dropout_p": 0.0, "dropout": 0.0, "training": False}
_BY_SIZES = frozenset({torch.rand, torch.randn})
_IN_PLACE = frozenset(
    {Tensor.bernoulli_, Tensor.exponential_, Tensor.normal_, Tensor.random_, Tensor.uniform_}
    | {Tensor.cauchy_, Tensor.geometric_, Tensor.log_normal_}
)
_LIKE = frozenset({torch.rand_like, torch.randint_like, torch.randn_like})
DRAWS = _BY_SIZES | _IN_PLACE | _LIKE | {torch.bernoulli, torch.multinomial, torch.normal, torch.poisson}
DRAWS |= {
    torch.randint,
    Tensor.bernoulli,
    Tensor.multinomial,
    torch._standard_gamma,
    torch._sample_dirichlet,
}


def _gumbel_softmax(
    logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    del eps  # torch does not read it either
    soft = ((logits - torch.empty_like(logits).exponential_().log()) / tau).softmax(dim)
    if not hard:
        return soft
    largest = torch.zeros_like(soft).scatter_(dim, soft.max(dim, keepdim=True)[1], 1.0)
    return largest - soft.detach() + soft


COMPOSED: dict[Any, Callable[..., Any]] = {F.gumbel_softmax: _gumbel_softmax}
"""Functions of torch that draw among other operations, rewritten so that a mode sees each operation."""


_ORDERS = frozenset({"randperm"})
_CHOICES = frozenset({"multinomial"})
_DRAWN = {
    **dict.fromkeys(("rand", "rand_like", "uniform_"), 0.5),
    **dict.fromkeys(("randn", "randn_like", "normal", "normal_"), 0),
    **dict.fromkeys(("bernoulli", "bernoulli_", "poisson", "geometric_", "exponential_"), 1),
    **dict.fromkeys(("cauchy_", "log_normal_", "_standard_gamma", "_sample_dirichlet"), 1),
}
"""The fixed value that replaces the draws of each operation, by its name; the operation could draw it."""
_WHOLE = frozenset({"randint", "randint_like", "random_"})


@final
class WithoutDraws(TorchFunctionMode):
    """Replaces random draws by fixed values, and turns dropout off."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in COMPOSED:
            with self:
                return COMPOSED[func](*args, **kwargs)
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func in SLOPES:
            return F.rrelu(args[0], *args[1:3])
        if func in _DROPPING:
            args = tuple(0.0 if isinstance(arg, float) else arg for arg in args)
            kwargs = {name: _KEPT.get(name, value) for name, value in kwargs.items()}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _ORDERS:
            return torch.arange(len(result) - 1, -1, -1, device=result.device).to(result)
        if name in _CHOICES:
            return args[0].topk(result.shape[-1]).indices
        if name in _WHOLE:  # the largest integer replaces the draws
            limits = [value for value in (*args, *kwargs.values()) if type(value) is int]
            return result.fill_(max(limits, default=2) - 1)
        if name in _DRAWN:
            return result.fill_(_DRAWN[name]) if name.endswith("_") else torch.full_like(result, _DRAWN[name])
        return result


@contextmanager
def only_torch_draws() -> Iterator[None]:
    """Refuse a pass that draws random numbers with Python's ``random`` or NumPy."""

    def state() -> tuple[object, ...]:
        # NumPy's global one, from which models may draw
        generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
        if type(generator) is np.random.MT19937:
            # 624 words and a place; NumPy's own function takes 25 us
            numbers: object = ctypes.string_at(generator.ctypes.state_address, 2500)
        else:
            numbers = repr(generator.state)
        return random.getstate(), numbers

    before = state()
    yield
    if state() != before:
        raise UnsupportedModel(
            "the model or the loss draws random numbers from Python or NumPy. All records would share them, "
            "and a repeated step would draw others. Draw with torch for each record: torch.rand(len(x))."
        )


def devices_of(tensors: Iterable[Tensor]) -> list[int]:
    """Return the numbers of the tensors' CUDA devices.

    >>> devices_of([torch.zeros(2)])
    []
    """
    return sorted({t.device.index or 0 for t in tensors if t.is_cuda})


def begin_at(seed: int, devices: Sequence[int]) -> None:
    """Seed the generators of the CPU and of these CUDA devices.

    Without a CUDA device, ``torch.manual_seed`` would take up to a millisecond per call, and store each
    deferred CUDA call with its stack trace for ever.

    >>> begin_at(3, [])
    >>> first = torch.rand(2)
    >>> _ = torch.manual_seed(3)
    >>> torch.equal(first, torch.rand(2))
    True
    """
    torch.default_generator.manual_seed(seed)
    for device in devices:
        torch.cuda.default_generators[device].manual_seed(seed)


def states_of(devices: Sequence[int]) -> list[Tensor]:
    """Return the states of the generators of the CPU and of these CUDA devices."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]


def draw_again(states: Sequence[Tensor], devices: Sequence[int]) -> None:
    """Restore the states of generators, so that they draw the same numbers again.

    >>> states = states_of([])
    >>> first = torch.rand(3)
    >>> draw_again(states, [])
    >>> torch.equal(first, torch.rand(3))
    True
    """
    torch.set_rng_state(states[0])
    for device, state in zip(devices, states[1:], strict=True):
        torch.cuda.set_rng_state(state, device)


_ASSIGNMENTS = frozenset({"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__"})
_BY_FLAG = DROPOUTS | SLOPES


def in_place(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call changes its first argument: ``x.bernoulli_()``, ``x[0] = y``, ``x += y``."""
    name, flag = getattr(func, "__name__", ""), 3 if func in DROPOUTS else 4
    if name in _ASSIGNMENTS:
        return True
    by_flag = func in _BY_FLAG and (kwargs.get("inplace") or args[flag : flag + 1] == (True,))
    return bool(by_flag or (name.endswith("_") and not name.endswith("__")))
