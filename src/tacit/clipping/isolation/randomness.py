"""Random numbers that are the same for a few records alone and beside copies of themselves.

A loss that divides by the number of records is found by comparing both, which random numbers would hide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = [
    "DRAWS",
    "DROPOUTS",
    "DROPPING",
    "KEPT",
    "SLOPES",
    "RepeatedDraws",
    "begin_at",
    "devices_of",
    "draw_again",
    "drawn_so_far",
    "states_of",
]

DROPOUTS = frozenset(
    {torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout}
    | {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout}
)
DROPPING = frozenset(
    {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu, F.scaled_dot_product_attention}
    | {F.multi_head_attention_forward}
)
"""Operations that drop out beside what they do, at a rate that is their one fraction."""
SLOPES = frozenset({F.rrelu, torch.rrelu})
_OF_WEIGHTS = frozenset({torch.multinomial, Tensor.multinomial})
KEPT = {"dropout_p": 0.0, "dropout": 0.0, "training": False}
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


@final
class RepeatedDraws(TorchFunctionMode):
    """Within it nothing is dropped out, and what is drawn for some times ``rows`` is that for ``rows`` again.

    >>> with RepeatedDraws(3):
    ...     draws = torch.randn(6, 2)
    >>> torch.equal(draws[:3], draws[3:])
    True
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func in SLOPES:
            return F.rrelu(args[0], *args[1:3])
        if func in DROPPING:
            args = tuple(0.0 if isinstance(arg, float) else arg for arg in args)
            kwargs = {name: KEPT.get(name, value) for name, value in kwargs.items()}
        if func not in DRAWS or kwargs.get("generator") is not None:  # one's own may be seeded each time
            return func(*args, **kwargs)
        by_numbers = func in _BY_SIZES and isinstance(args[0] if args else None, int)
        sizes = [args] if by_numbers else [a for a in (*args, *kwargs.values()) if _size(a)]
        times = self._times(sizes[0]) if sizes else 1
        if times == 1 or (func in _OF_WEIGHTS and args and args[0].dim() == 1):
            return func(*args, **kwargs)
        if func in _IN_PLACE:
            drawn = self._drawn(func, (args[0].clone(), *args[1:]), kwargs, times)
            with torch.no_grad():
                return args[0].copy_(drawn)
        if by_numbers:
            return self._repeated(func(self._rows, *args[1:], **kwargs), times)
        return self._drawn(func, args, kwargs, times)

    def _drawn(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], times: int
    ) -> Tensor:
        """Draw for each block of rows from one state; once, where only sizes say what is drawn."""
        given = args[1:] if func in _IN_PLACE or func in _LIKE else (*args, *kwargs.values())
        devices = devices_of(a for a in (*args, *kwargs.values()) if isinstance(a, Tensor))
        states, parts = states_of(devices), []
        for block in range(times if any(isinstance(a, Tensor) for a in given) else 1):
            draw_again(states, devices)
            each = [self._block(arg, times, block) for arg in args]
            parts.append(func(*each, **{name: self._block(a, times, block) for name, a in kwargs.items()}))
        return torch.cat(parts) if len(parts) == times else self._repeated(parts[0], times)

    def _times(self, arg: Any) -> int:
        """How many times the rows this is for: a tensor, or the size of one; 1 for anything else."""
        size = _size(arg)
        return size[0] // self._rows if size and size[0] > 0 and size[0] % self._rows == 0 else 1

    def _block(self, arg: Any, times: int, block: int) -> Any:
        """The part of an argument that is for a block of rows; all of what is not for rows."""
        if self._times(arg) != times:
            return arg
        if not isinstance(arg, Tensor):
            return (self._rows, *arg[1:])
        return arg[block * self._rows : (block + 1) * self._rows]

    def _repeated(self, drawn: Tensor, times: int) -> Tensor:
        return drawn.repeat(times, *[1] * (drawn.dim() - 1))


def _size(arg: Any) -> Sequence[int]:
    """The sizes that a tensor has or is asked to have; none if this is neither."""
    size = arg.shape if isinstance(arg, Tensor) else arg
    return size if isinstance(size, (tuple, list)) and size and isinstance(size[0], int) else ()


def devices_of(tensors: Iterable[Tensor]) -> list[int]:
    """The numbers of the CUDA devices on which they are.

    >>> devices_of([torch.zeros(2)])
    []
    """
    return sorted({t.device.index or 0 for t in tensors if t.is_cuda})


def drawn_so_far(devices: Sequence[int]) -> Tensor:
    """The states of the generators: equal if as much was drawn since they had one seed.

    >>> torch.equal(drawn_so_far([]), drawn_so_far([]))
    True
    """
    return torch.cat(states_of(devices))


def begin_at(seed: int, devices: Sequence[int]) -> None:
    """Let the generators of the CPU and of these CUDA devices begin at a seed.

    As ``torch.manual_seed`` does, which where there is no device takes up to a millisecond each time, and
    keeps for ever what it would tell a device, with the stack it was called from.

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
    """The states of the generators of the CPU and of these CUDA devices."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]


def draw_again(states: Sequence[Tensor], devices: Sequence[int]) -> None:
    """Put generators back, such that they draw the same again.

    >>> states = states_of([])
    >>> first = torch.rand(3)
    >>> draw_again(states, [])
    >>> torch.equal(first, torch.rand(3))
    True
    """
    torch.set_rng_state(states[0])
    for device, state in zip(devices, states[1:], strict=True):
        torch.cuda.set_rng_state(state, device)
