"""Whose random numbers are.

Letters: B rows.

A row may have random numbers of its own: they are as likely beside any others.  Numbers that all records
have in common are another matter.  A large batch goes through the model in parts, each with numbers of its
own, and one record more moves others from part to part: what all of these leave would change with it.  The
same goes for numbers that are drawn together, such as a permutation of the rows, and for those that a seed
of the model's own gives each place of the batch.  So records meet in these.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.clipping.isolation.call import FREE, Call

__all__ = ["drawn", "is_draw"]

_UNTAGGED = frozenset({"random", "_sample_dirichlet", "binomial"})
"""Operations that draw, and that PyTorch does not mark as such."""
_IN_COMMON = "random numbers that all records have in common"


def is_draw(call: Call) -> bool:
    """Whether the result of an operation that is asked for hangs on random numbers."""
    if call.place > 1 and call.get("dropout_p") is not None:
        return False  # the state of a generator, which attention keeps for its backward pass
    if torch.Tag.nondeterministic_seeded not in call.func.tags and call.plain not in _UNTAGGED:
        return False
    rate = next((call.get(name) for name in ("dropout_p", "p") if call.get(name) is not None), None)
    return not (isinstance(rate, int | float) and rate in (0, 1)) and call.get("train") is not False


def drawn(call: Call, result: Tensor, owners: Tensor | None) -> Tensor:
    """The owners of random numbers: what no record owns by what was read, each row's record does.

    The rows are the first dimension of their number, or else of some times their number.
    """
    rows = len(call.rows)
    sizes = [size if size == rows or rows not in result.shape else 0 for size in result.shape]
    dim = next((dim for dim, size in enumerate(sizes) if size and size % rows == 0), None)
    if dim is None or _is_drawn_together(call, result, dim) or _is_seeded_anew(call, result):
        by_row = torch.tensor(call.mixer(_IN_COMMON), dtype=torch.int32, device=result.device)
    else:
        of_each = call.rows.to(result.device).repeat_interleave(result.shape[dim] // rows)
        by_row = of_each.view(-1, *[1] * (result.dim() - 1 - dim))
    if owners is None:
        return by_row.expand(result.shape)
    return torch.where(owners == FREE, by_row, owners)


def _is_seeded_anew(call: Call, result: Tensor) -> bool:
    """Whether the model chose a seed by itself, so that each place of the batch has numbers of its own."""
    on_device = torch.cuda.default_generators if result.is_cuda else [torch.default_generator]
    generator = call.get("generator") or on_device[result.device.index or 0]
    return bool(generator.initial_seed() != call.seed)


def _is_drawn_together(call: Call, result: Tensor, dim: int) -> bool:
    """Whether the numbers of one call hang on each other along the dimension of the rows."""
    if call.plain == "multinomial":
        return call["self"].dim() == 1 and not call.get("replacement")
    if call.plain == "_sample_dirichlet":
        return dim == result.dim() - 1  # they add up to one
    return call.plain == "randperm"
