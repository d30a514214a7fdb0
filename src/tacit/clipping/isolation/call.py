"""One operation of PyTorch, and from which records what it reads comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

__all__ = ["FREE", "MOST", "Call", "is_mask"]

FREE = -1
"""The owner of what comes from no record."""
MOST = 2**31 - 1
"""Above every owner."""
_SHAPED_BY_ARGUMENTS = frozenset({"index", "index_put", "_ctc_loss", "linalg_lstsq"})
"""Operations that PyTorch says may return any shape, where it follows no number that matters here."""
_OVERWRITING = frozenset(
    {
        "copy",
        "bernoulli",
        "fill",
        "zero",
        "normal",
        "uniform",
        "random",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
    }
)
"""Operations that change a tensor whatever was in it."""

_TELLING = frozenset({"_local_scalar_dense", "is_nonzero", "equal"})
"""Operations that tell Python, or another operation, what is in a tensor."""

_OF_PYTHON = frozenset({"float", "bool", "int", "Scalar", "number", "str", "complex"})
"""What operations return to Python; whole numbers of PyTorch's own are sizes and the like."""

_EITHER_WAY = frozenset({"ProdBackward0", "ProdBackward1", "CumprodBackward0"})
"""Gradients by one formula, or by another that gives the same: which, they ask for themselves."""


@final
class Call:
    """One operation, its arguments by name, and whose what it reads is."""

    def __init__(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        read: Mapping[int, Tensor | None],
        memories: Set[int],
        rows: Tensor,
        n: int,
        mixer: Callable[[str], int],
        seed: int,
    ) -> None:
        self.func = func
        space, _, self.name = str(func._schema.name).partition("::")
        plain = self.name if self.name.startswith("__") else self.name.rstrip("_")
        self.plain = plain if space == "aten" else f"{space}::{plain}"
        self.declared = func._schema.arguments
        self.args = {a.name: value for a, value in zip(self.declared, args, strict=False)} | dict(kwargs)
        self._read, self._n, self.mixer = read, n, mixer
        self.rows = rows
        """(B,): the record of each row of the batch."""
        self.memories = memories
        """Those of all tensors that it is given: results in these are views."""
        self.seed = seed
        """Of the generators, where the model did not choose another."""
        self.place = 0
        """Which of the results is asked for; -1 for an argument that is changed."""

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The argument of this name, as given or as is usual."""
        if name in self.args:
            return self.args[name]
        return next((a.default_value for a in self.declared if a.name == name), default)

    def written(self) -> list[Tensor]:
        """Arguments that it changes."""
        names = [a.name for a in self.declared if a.alias_info is not None and a.alias_info.is_write]
        return _tensors(self.args[name] for name in names if self.args.get(name) is not None)

    @cached_property
    def laden(self) -> dict[str, list[Tensor]]:
        """Arguments in which records are, by name; not those that are overwritten."""
        lost = {
            a.name
            for a in self.declared
            if a.alias_info is not None
            and a.alias_info.is_write
            and (a.kwarg_only or self.plain in _OVERWRITING)
        }
        given = {name: _tensors([value]) for name, value in self.args.items() if name not in lost}
        found = {name: [t for t in ts if self._read[id(t)] is not None] for name, ts in given.items()}
        return {name: tensors for name, tensors in found.items() if tensors}

    def reads(self) -> list[Tensor]:
        """Tensors in which records are."""
        return [t for tensors in self.laden.values() for t in tensors]

    def tensors(self) -> list[Tensor]:
        """All tensors that it is given."""
        return _tensors(self.args.values())

    def tells(self) -> str | None:
        """What whoever called the operation is told of the numbers in a tensor, if anything."""
        masks = self.args.get("indices", ()) if self.plain in ("index", "index_put") else ()
        shaped = torch.Tag.dynamic_output_shape in self.func.tags and self.plain not in _SHAPED_BY_ARGUMENTS
        if shaped or any(is_mask(i) and self.of(i) is not None for i in masks):
            return f"the shape of what {self.name} returns"
        others = {str(one.type) for one in self.func._schema.returns} & _OF_PYTHON
        if self.plain not in _TELLING and not (others and "::" in self.plain):
            return None
        node: torch.autograd.graph.Node | None = torch._C._current_autograd_node()
        chosen = node is not None and node.name() in _EITHER_WAY
        return None if chosen else "a number that is read out of a tensor"

    def of(self, tensor: Tensor | None) -> Tensor | None:
        """Owners, of the tensor's shape."""
        return None if tensor is None else self._read[id(tensor)]

    def together(self, owners: Iterable[Tensor | None]) -> Tensor | None:
        """Owners of what is computed element by element, broadcast."""
        found: Tensor | None = None
        for one in owners:
            if one is not None:
                found = one if found is None else self._both(found, one)
        return found

    def _both(self, a: Tensor, b: Tensor) -> Tensor:
        most = torch.maximum(a, b)
        least = torch.minimum(torch.where(a < 0, MOST, a), torch.where(b < 0, MOST, b))
        return self._mixed(most, least)

    def _mixed(self, most: Tensor, least: Tensor) -> Tensor:
        """The one owner, or several: what mixed them first is kept."""
        new = (least < most) & (most < self._n)
        return torch.where(new, self.mixer(self.name), most) if bool(new.any()) else most

    def over(self, owners: Tensor | None, dims: Iterable[int]) -> Tensor | None:
        """Owners of what is computed from all numbers along ``dims``, which keep the size 1."""
        if owners is None:
            return None
        dims = sorted({dim % owners.dim() for dim in dims}) if owners.dim() else []
        if not dims:
            return owners
        shape = [1 if dim in dims else size for dim, size in enumerate(owners.shape)]
        if owners.numel() == 0:
            return owners.new_full(shape, FREE)
        most = owners.amax(dims, keepdim=True)
        return self._mixed(most, torch.where(owners < 0, MOST, owners).amin(dims, keepdim=True))

    def whole(self) -> Tensor | None:
        """The owner of what is computed from everything, ()."""
        flat = (self.of(t) for t in self.reads())
        return self.together(self.over(owners.reshape(-1), [0]) for owners in flat if owners is not None)


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def is_mask(index: Any) -> bool:
    """Whether an index chooses by truth, not by number."""
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
