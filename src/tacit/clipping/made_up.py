"""Is a record's loss the same beside others?  Asked once, on made-up records, before any data are read.

Under vmap no record can reach another, whatever the model does: a model that mixes records would be trained
as if each record were alone.  That is private, and not what its user means.  So the losses of a batch are
compared with those of its records, each alone, and a model or loss for which they differ is refused.

Letters: n records; K views; B = n K rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tacit.clipping.isolation.randomness import DROPOUTS, DROPPING, KEPT, SLOPES, begin_at, devices_of
from tacit.errors import UnsupportedModel

__all__ = ["RECORDS", "WithoutDraws", "made_up", "refuse_if_mixed"]

RECORDS = 8
"""How many are made up: mixing in groups of four, or above a capacity of a few, is seen."""
MIXES = (
    "a record's loss in a batch is another than that of the record alone: the model or the loss mixes "
    "records, and a private step takes the gradient of each record by itself. Look for batch statistics "
    "(x - x.mean(0), batch_norm in training), for sums over the batch in the loss and divisors such as "
    "len(x), for arange(len(x)), and for layers that take (T, B, d) and are given (B, T, d) "
    "(batch_first=False)."
)
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}


def made_up(batch: tuple[Tensor, ...], views: int, integers: int = 2) -> tuple[Tensor, ...]:
    """Return records of normal numbers, and of the whole numbers from 0 to below ``integers``."""
    generator = torch.Generator().manual_seed(0)
    rows = RECORDS * views

    def like(t: Tensor) -> Tensor:
        shape = rows, *t.shape[1:]
        if t.is_floating_point():
            return torch.randn(shape, generator=generator).to(t)
        return torch.randint(integers, shape, generator=generator).to(t)

    return tuple(map(like, batch))


def refuse_if_mixed(
    together: Callable[[], Tensor], alone: Callable[[], Tensor], batch: Sequence[Tensor]
) -> None:
    """Refuse a model whose losses of a batch, (B,), are not those of its records alone."""
    if _same(*_both(together, alone, batch)):
        return
    with WithoutDraws():  # random numbers that records have in common, each draws for itself when alone
        if _same(*_both(together, alone, batch)):
            return
    raise UnsupportedModel(MIXES)


def _both(
    together: Callable[[], Tensor], alone: Callable[[], Tensor], batch: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    devices, found = devices_of(batch), []
    for losses in (together, alone):
        with torch.random.fork_rng(devices=devices):
            begin_at(0, devices)
            found.append(losses().detach())
    return found[0], found[1]


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding; what is not finite, to the last bit."""
    most = _ROUNDING.get(a.dtype, 2e-2)
    return torch.allclose(a.double(), b.double(), rtol=most, atol=most * _scale(a), equal_nan=True)


def _scale(a: Tensor) -> float:
    finite = a[a.isfinite()].abs()
    return float(finite.max()) if len(finite) else 1.0


@final
class WithoutDraws(TorchFunctionMode):
    """Within it nothing is dropped out, and what is drawn is no random number."""

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
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _ORDERS:
            return torch.arange(len(result) - 1, -1, -1, device=result.device).to(result)
        if name in _CHOICES:
            return args[0].topk(result.shape[-1]).indices
        if name in _DRAWN:
            return result.fill_(_DRAWN[name]) if name.endswith("_") else torch.full_like(result, _DRAWN[name])
        return result


_ORDERS = frozenset({"randperm"})
_CHOICES = frozenset({"multinomial"})
_DRAWN = {
    **dict.fromkeys(("rand", "rand_like", "uniform_"), 0.5),
    **dict.fromkeys(("randn", "randn_like", "normal", "normal_", "randint", "randint_like", "random_"), 0),
    **dict.fromkeys(("bernoulli", "bernoulli_", "poisson", "geometric_", "exponential_"), 1),
    **dict.fromkeys(("cauchy_", "log_normal_", "_standard_gamma", "_sample_dirichlet"), 1),
}
"""What is drawn, by the name of the operation: a number of its range."""
