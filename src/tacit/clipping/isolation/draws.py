"""Random numbers if Python reads different values from records, such as the coin tosses of layer dropout.

Records are grouped by the values that Python reads, and each group repeats the pass. If a repeated pass drew
new numbers, records whose coins agree by chance would keep their coins, and all others would toss again. The
coins would have the wrong distribution, and one record's coin would depend on other records. So a record
draws the same numbers in each repeated pass:

* Numbers are drawn for all n records of the batch, and a group uses the rows of its records. (Kernels with
  built-in draws, such as those of attention, draw for the group alone if Python reads no value after them.)
* After each value that Python reads, the generators restart from a seed computed from their next draw and
  that value. So groups that split draw different numbers.

Hence a record's numbers depend on the generators' state, on its position among the n records, and on the
values that Python read from it.

Letters: n records of a batch; m records of a group.
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
        """Return the tensor of all records behind a batched tensor."""

    def batched(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """Return a batched tensor from a tensor of all records."""


@final
class Group:
    """Records from which Python read the same values, and their random draws.

    Args:
        places: the (m,) positions of these records in the batch.
        n: the number of records in the batch.
        seed: the generators' seed at the start of each pass.
        devices: the numbers of the CUDA devices that draw.
        exact: whether Python reads values after draws, so that no rule may draw for this group alone.
    """

    def __init__(self, places: Tensor, n: int, seed: int, devices: Sequence[int], exact: bool) -> None:
        self.places, self.n, self.seed, self._devices, self.exact = places, n, seed, devices, exact
        self._whole = len(places) == n
        self._rows = torch.zeros(n, dtype=torch.long, device=places.device)
        """(n,): for each record of the group, its row in the group; 0 for all other records."""
        self._rows[places] = torch.arange(len(places), device=places.device)

    def part(self, among: Tensor) -> Group:
        """Return the group of the records in ``among``, (m,) bool."""
        return Group(self.places[among], self.n, self.seed, self._devices, self.exact)

    def begin(self) -> None:
        """Seed the generators as at the start of each pass over this batch."""
        begin_at(self.seed, self._devices)

    def go_on(self, answer: object) -> int:
        """Seed the generators from their next draw and the value that Python reads; return the seed."""
        seed = _seed(int(torch.randint(2**62, ())), answer)
        begin_at(seed, self._devices)
        return seed

    def run(self, of: _Pass, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation; if it draws random numbers, draw them for all n records."""
        if self._whole:
            return func(*args, **kwargs)
        if func in DROPOUTS | SLOPES:  # they may change their argument in place, so must not run twice
            return self._for_all(of, func, args, kwargs)
        before = states_of(self._devices)
        result = func(*args, **kwargs)
        if all(map(torch.equal, before, states_of(self._devices))):
            return result
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
            arguments = list(values)
            for i, row in zip(batched, rows, strict=True):
                arguments[i] = row
            own_args, own_kwargs = tree_unflatten(arguments, form)
            return func(*own_args, **own_kwargs)

        with temporarily_pop_interpreter_stack():
            whole = [of.physical(values[i])[self._rows] for i in batched]
            result = vmap(one, randomness="different")(torch.arange(self.n), *whole)
            result = tree_map(lambda each: each[self.places], result)
        result = tree_map(of.batched, result)
        return args[0].copy_(result) if _in_place(func, args, kwargs) else result


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
    """Compute attention with dropout as a separate operation, which draws for all records of a batch."""
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        hidden = mask == 0 if mask.dtype == torch.bool else mask == -torch.inf
        dead = hidden.all(-1, keepdim=True)  # positions that attend to nothing get zeros
        scores = scores.masked_fill(hidden, -torch.inf) if mask.dtype == torch.bool else scores + mask
        weights = scores.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)
    else:
        weights = scores.softmax(-1)
    return F.dropout(weights, dropout) @ v


def whole_batch(n: int, devices: Sequence[int], exact: bool) -> Group:
    """Return the group of all n records of a batch, with a drawn seed."""
    device = torch.device("cuda", devices[0]) if devices else torch.device("cpu")
    return Group(
        torch.arange(n, device=device), n, _seed(int(torch.randint(2**62, ())), None), devices, exact
    )


def _in_place(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call changes its first argument: ``x.bernoulli_()``, dropout with ``inplace=True``."""
    name, flag = getattr(func, "__name__", ""), 3 if func in DROPOUTS else 4
    by_flag = func in DROPOUTS | SLOPES and (kwargs.get("inplace") or args[flag : flag + 1] == (True,))
    return bool(by_flag or (name.endswith("_") and not name.endswith("__")))


def _seed(draw: int, answer: object) -> int:
    return int.from_bytes(blake2b(f"{draw} {answer!r}".encode(), digest_size=7).digest())


def alike(values: Tensor) -> Tensor:
    """Return group numbers (n,), equal for equal values; floats are compared bit by bit."""
    if values.dtype.is_floating_point:
        values = values.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()])
    groups: Tensor = values.unique(return_inverse=True)[1]  # type: ignore[no-untyped-call]
    return groups
