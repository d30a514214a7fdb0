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

__all__ = ["RepeatedDraws", "devices_of", "draw_again", "drawn_so_far", "states_of"]

_DROPOUTS = frozenset(
    {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout}
)
_BY_SIZES = frozenset({torch.rand, torch.randn})
_IN_PLACE = frozenset(
    {Tensor.bernoulli_, Tensor.exponential_, Tensor.normal_, Tensor.random_, Tensor.uniform_}
    | {Tensor.cauchy_, Tensor.geometric_, Tensor.log_normal_}
)
_DRAWS = _BY_SIZES | frozenset(
    {torch.bernoulli, torch.multinomial, torch.normal, torch.poisson, torch.randint}
    | {torch.rand_like, torch.randint_like, torch.randn_like, Tensor.bernoulli, Tensor.multinomial}
)


@final
class RepeatedDraws(TorchFunctionMode):
    """Within it, dropouts return their input, and what is drawn for 2 ``rows`` is that for ``rows``, twice.

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
        if func in _DROPOUTS:
            return args[0]
        if func in _IN_PLACE and self._is_twice(args[0]):
            with torch.no_grad():
                func(args[0][: self._rows], *args[1:], **kwargs)
                args[0][self._rows :] = args[0][: self._rows]
            return args[0]
        by_numbers = func in _BY_SIZES and args[:1] == (2 * self._rows,)
        if func in _DRAWS and (by_numbers or any(map(self._is_twice, (*args, *kwargs.values())))):
            fewer = [self._rows, *args[1:]] if by_numbers else [self._once(arg) for arg in args]
            drawn = func(*fewer, **{name: self._once(arg) for name, arg in kwargs.items()})
            return torch.cat([drawn, drawn])
        return func(*args, **kwargs)

    def _is_twice(self, arg: Any) -> bool:
        """Whether this is a tensor, or the size of one, for twice the rows."""
        size = arg.shape if isinstance(arg, Tensor) else arg
        return isinstance(size, (tuple, list)) and len(size) > 0 and size[0] == 2 * self._rows

    def _once(self, arg: Any) -> Any:
        if not self._is_twice(arg):
            return arg
        return arg[: self._rows] if isinstance(arg, Tensor) else (self._rows, *arg[1:])


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
