"""How operations hand on the records that numbers come from: where they move, or look numbers up.

By other numbers only if no record is in these; else all meet that may."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tacit.clipping.isolation.call import FREE, MOST, Call, is_mask
from tacit.clipping.isolation.op_rules import but_last, pointwise, whole

__all__ = [
    "bag",
    "copied",
    "gathered",
    "index_put",
    "indexed",
    "joined",
    "moved",
    "padded",
    "put_back",
    "scattered",
    "searched",
    "selected",
    "unfolded",
]


def copied(call: Call, result: Tensor) -> Tensor | None:
    """What is overwritten by another."""
    del result
    return call.of(call["src"])


def _filled(call: Call, tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """Owners that may be handed to the operation itself."""
    owners = call.of(tensor)
    like = tensor if like is None else like
    return torch.full(tensor.shape, FREE, dtype=torch.int32, device=like.device) if owners is None else owners


def moved(call: Call, result: Tensor) -> Tensor | None:
    """What moves numbers, without looking at them, moves their owners in the same way."""
    del result
    args = {
        name: _filled(call, value) if isinstance(value, Tensor) else value
        for name, value in call.args.items()
    }
    names = [a.name for a in call.declared if not a.kwarg_only and a.name in args]
    owners: Tensor = call.func(*(args[name] for name in names))
    return owners


def padded(call: Call, result: Tensor) -> Tensor | None:
    """What comes beside is free."""
    del result
    longer: Tensor = torch.ops.aten.constant_pad_nd(_filled(call, call["self"]), call["pad"], FREE)
    return longer


def joined(call: Call, result: Tensor) -> Tensor | None:
    """Side by side, or one after the other."""
    tensors = call["tensors"]
    together: Tensor = call.func([_filled(call, t, result) for t in tensors], call.get("dim"))
    return together


def selected(call: Call, result: Tensor) -> Tensor | None:
    """Looked up along one dimension, by numbers in a vector."""
    dim, index = call["dim"], call["index"]
    of_index, owners = call.of(index), call.of(call["self"])
    if of_index is None and owners is not None:
        return owners.index_select(dim, index)
    shape = [1] * result.dim()
    shape[dim] = len(index)
    return call.together([call.over(owners, [dim]), None if of_index is None else of_index.view(shape)])


def gathered(call: Call, result: Tensor) -> Tensor | None:
    """Looked up along one dimension, number by number."""
    dim, index = call["dim"], call["index"]
    of_index, owners = call.of(index), call.of(call["self"])
    if owners is None:
        return of_index
    if of_index is None:
        return owners.gather(dim, index)
    owners = call.over(owners, [dim])
    assert owners is not None
    shape = tuple(min(a, b) for a, b in zip(owners.shape, result.shape, strict=True))
    return call.together([owners[tuple(map(slice, shape))], of_index])


def scattered(call: Call, result: Tensor) -> Tensor | None:
    """All meet along the dimension."""
    given = [call["self"], call["index"]] + [
        call[name] for name in ("src", "value", "source") if name in call.args
    ]
    tensors = [t for t in given if isinstance(t, Tensor) and call.of(t) is not None]
    dim = call["dim"] % max(1, result.dim())
    owners = [call.over(call.of(t), [dim]) for t in tensors if t.dim() == result.dim()]
    kept = [size for d, size in enumerate(result.shape) if d != dim]
    if len(owners) < len(tensors) or any(
        [size for d, size in enumerate(one.shape) if d != dim] != kept for one in owners if one is not None
    ):
        return whole(call, result)
    return call.together([call.of(call["self"]), *owners])


def indexed(call: Call, result: Tensor) -> Tensor | None:
    """``x[a, :, b]``: along dimensions in which records are looked up by a record, all meet."""
    found = _looked_up(call, call["self"], call["indices"])
    if found is None:
        return whole(call, result)
    places, owners, of_indices = found
    if owners is None:
        return of_indices
    looked_up = torch.ops.aten.index(owners, places)
    return looked_up if of_indices is None else call.together([looked_up, of_indices])


def _looked_up(
    call: Call, tensor: Tensor, indices: Sequence[Tensor | None]
) -> tuple[list[Tensor | None], Tensor | None, Tensor | None] | None:
    """Numbers that no record is in, owners of the tensor to look up by these, and those of the result."""
    given = [index for index in indices if index is not None]
    laden = [index for index in given if call.of(index) is not None]
    if any(map(is_mask, laden)):
        return None
    if any(map(is_mask, given)):
        return (list(indices), call.of(tensor), None) if not laden else None
    dims = [dim for dim, index in enumerate(indices) if index is not None and call.of(index) is not None]
    places = [torch.zeros_like(i) if d in dims and i is not None else i for d, i in enumerate(indices)]
    owners = call.over(call.of(tensor), dims) if dims else call.of(tensor)
    if not laden:
        return places, owners, None
    of_indices = call.together(call.of(index) for index in laden)
    assert of_indices is not None
    numbers = [dim for dim, index in enumerate(indices) if index is not None]
    shape = torch.broadcast_shapes(*(index.shape for index in given))  # type: ignore[no-untyped-call]
    apart = any(b - a > 1 for a, b in pairwise(numbers))
    after = tensor.dim() - (len(numbers) if apart else 1 + numbers[-1])
    return places, owners, of_indices.expand(shape).view(*shape, *[1] * after)


def index_put(call: Call, result: Tensor) -> Tensor | None:
    """``x[a, :, b] = values``, or added to what is there."""
    found = _looked_up(call, call["self"], call["indices"])
    if found is None:
        return whole(call, result)
    places, _, of_indices = found
    dims = [d for d, i in enumerate(call["indices"]) if i is not None and call.of(i) is not None]
    shape = [1 if dim in dims else size for dim, size in enumerate(result.shape)]
    flat = torch.arange(math.prod(shape), device=result.device).view(shape)
    target = torch.ops.aten.index(flat, places)
    owners = call.together([call.of(call["values"]), of_indices])
    put = None
    if owners is not None and target.numel():
        owners = owners.expand(target.shape).reshape(-1)
        most = owners.new_full((flat.numel(),), FREE).scatter_reduce(0, target.reshape(-1), owners, "amax")
        low = torch.where(owners < 0, MOST, owners)
        least = owners.new_full((flat.numel(),), MOST).scatter_reduce(0, target.reshape(-1), low, "amin")
        put = call._mixed(most, least).view(shape)
    return call.together([call.of(call["self"]), put])


def put_back(call: Call, result: Tensor) -> Tensor | None:
    """What puts numbers where they were taken from: zeros elsewhere."""
    del result
    first, *others = [call.args[a.name] for a in call.declared if a.name in call.args]
    found: Tensor = call.func(_filled(call, first) + 1, *others)  # beside zeros, which are free
    return found - 1


def unfolded(call: Call, result: Tensor) -> Tensor | None:
    """Windows along a dimension, with their numbers in the last one, added up."""
    del result
    windows = call["grad_in"]
    dim = call["dim"] % (windows.dim() - 1)
    owners = call.over(call.of(windows), [dim, -1])
    return None if owners is None else owners.squeeze(-1)


def bag(call: Call, result: Tensor) -> Tensor | None:
    """Bags that begin where no record says."""
    offsets = call["offsets"]
    if call.of(offsets) is not None or call.of(call["weight"]) is not None or len(result) == 0:
        return whole(call, result)
    numbers = call.together([call.of(call["indices"]), call.of(call.get("per_sample_weights"))])
    if numbers is None:
        return None
    ends = [*map(int, offsets), len(numbers)][: len(result) + 1]
    owners = [call.over(numbers[a:b], [0]) for a, b in pairwise(ends)]
    kept = [numbers.new_full((1,), FREE) if one is None else one for one in owners]
    if len(kept) != len(result):
        return whole(call, result)
    return torch.cat(kept).view(-1, *[1] * (result.dim() - 1))


def searched(call: Call, result: Tensor) -> Tensor | None:
    """Where numbers lie in a table."""
    table = call.args.get("boundaries", call.args.get("sorted_sequence"))
    if call.laden.keys() != {"self"}:
        in_rows = isinstance(table, Tensor) and table.dim() > 1
        return but_last(1)(call, result) if in_rows else whole(call, result)
    return pointwise(call, result)
