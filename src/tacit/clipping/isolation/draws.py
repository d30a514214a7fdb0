"""Random numbers of records that give Python several numbers, such as the coin of layer dropout.

Such records are grouped by what they give, and each group begins anew.  If it drew anew too, records whose
coins agree by chance would keep them and all others toss theirs again: coins would be another than they
should, and one record's would depend on those beside it.  So a record draws the same in each pass:

* All n records of the batch draw, and a group takes its own rows.  (Kernels that draw themselves, as those of
  attention do, draw for the group alone, as long as Python is given no number after them.)
* After each number that Python is given, the generators begin at a seed that follows from what they would
  draw next and from that number: groups that went apart draw apart.

Hence what a record draws follows from the generators' state, from its place among the n, and from the numbers
that it gave itself.

Letters: n records of a batch; m of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Protocol, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tacit.clipping.isolation.randomness import DROPOUTS, SLOPES, begin_at, draw_again, states_of


class _Pass(Protocol):
    """A pass under vmap."""

    def physical(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """Return what holds all records of a batched tensor."""

    def batched(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """Return a batched tensor of what holds all records."""


@final
class Group:
    """Records that gave Python the same numbers, and what they draw.

    Args:
        chosen: (m,) places of these records among the n.
        n: records of the batch.
        seed: where the generators begin in each pass.
        devices: numbers of the CUDA devices that draw.
        exact: whether Python is given numbers after draws, so that no rule may draw for this group alone.
    """

    def __init__(self, chosen: Tensor, n: int, seed: int, devices: Sequence[int], exact: bool) -> None:
        self.chosen, self.n, self.seed, self._devices, self.exact = chosen, n, seed, devices, exact
        self._whole = len(chosen) == n
        self._rows = torch.zeros(n, dtype=torch.long, device=chosen.device)
        """(n,), of each record of the batch its row in the group; of others any row."""
        self._rows[chosen] = torch.arange(len(chosen), device=chosen.device)

    def part(self, among: Tensor) -> Group:
        """Return those of its records that are ``among``, (m,) bool."""
        return Group(self.chosen[among], self.n, self.seed, self._devices, self.exact)

    def begin(self) -> None:
        """Let the generators begin as in each pass of this batch."""
        begin_at(self.seed, self._devices)

    def go_on(self, answer: object) -> int:
        """Let the generators begin at the seed that follows from this answer; return it."""
        seed = _seed(int(torch.randint(2**62, ())), answer)
        begin_at(seed, self._devices)
        return seed

    def carry_out(
        self, of: _Pass, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Carry out an operation; what draws random numbers draws them for all n records."""
        if self._whole:
            return func(*args, **kwargs)
        if func in DROPOUTS | SLOPES:  # which may change their argument, and twice is once too often
            return self._for_all(of, func, args, kwargs)
        before = states_of(self._devices)
        found = func(*args, **kwargs)
        if all(map(torch.equal, before, states_of(self._devices))):
            return found
        draw_again(before, self._devices)
        return self._for_all(of, func, args, kwargs)

    def _for_all(
        self, of: _Pass, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        values, form = tree_flatten((args, kwargs))
        batched = [
            i for i, value in enumerate(values) if isinstance(value, Tensor) and is_batchedtensor(value)
        ]

        def one(_: Tensor, *rows: Tensor) -> Any:
            given = list(values)
            for i, row in zip(batched, rows, strict=True):
                given[i] = row
            own_args, own_kwargs = tree_unflatten(given, form)
            return func(*own_args, **own_kwargs)

        with temporarily_pop_interpreter_stack():
            whole = [of.physical(values[i])[self._rows] for i in batched]
            found = vmap(one, randomness="different")(torch.arange(self.n), *whole)
            found = tree_map(lambda each: each[self.chosen], found)
        found = tree_map(of.batched, found)
        return args[0].copy_(found) if _in_place(func, args, kwargs) else found


def attended_by_parts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention whose dropout is an operation of its own, which draws for all records of a batch."""
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        hidden = mask == 0 if mask.dtype == torch.bool else mask == -torch.inf
        dead = hidden.all(-1, keepdim=True)  # which look at nothing, and get zeros
        scores = scores.masked_fill(hidden, -torch.inf) if mask.dtype == torch.bool else scores + mask
        weights = scores.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)
    else:
        weights = scores.softmax(-1)
    return F.dropout(weights, dropout) @ v


def drawn_once(n: int, devices: Sequence[int], exact: bool) -> Group:
    """Return the group of all n records of a batch, whose seed is drawn."""
    device = torch.device("cuda", devices[0]) if devices else torch.device("cpu")
    return Group(
        torch.arange(n, device=device), n, _seed(int(torch.randint(2**62, ())), None), devices, exact
    )


def _in_place(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it changes its first argument: ``x.bernoulli_()``, and dropout with ``inplace=True``."""
    name, flag = getattr(func, "__name__", ""), 3 if func in DROPOUTS else 4
    by_flag = func in DROPOUTS | SLOPES and (kwargs.get("inplace") or args[flag : flag + 1] == (True,))
    return bool(by_flag or (name.endswith("_") and not name.endswith("__")))


def _seed(drawn: int, answer: object) -> int:
    return int.from_bytes(blake2b(f"{drawn} {answer!r}".encode(), digest_size=7).digest())


def alike(values: Tensor) -> Tensor:
    """The groups (n,) of values that are the same, of fractions to the last bit."""
    if values.dtype.is_floating_point:
        values = values.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()])
    groups: Tensor = values.unique(return_inverse=True)[1]  # type: ignore[no-untyped-call]
    return groups
