"""Where models and losses may keep things: attributes of modules and objects, variables of functions."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, MutableMapping
from functools import lru_cache, partial
from types import CellType, FunctionType, MethodType
from typing import Any, TypeAlias, final

from torch import nn

__all__ = ["Table", "is_object", "tables_around", "tables_of", "tables_of_module"]

Table: TypeAlias = tuple[Hashable, MutableMapping[str, Any]]
"""A number that says which it is, or that of another and a name in it; and what is in it by name."""
_DEEP = 4
"""How many steps away from a loss it is looked."""
_LIBRARIES = ("torch", "numpy", "tacit", "builtins", "collections", "logging", "threading", "io", "os")


def tables_of(model: nn.Module) -> Iterator[Table]:
    """Those of all modules.

    >>> [sorted(table) for _, table in tables_of(nn.Linear(2, 3))][0]
    ['bias', 'weight']
    """
    for module in model.modules():
        yield from tables_of_module(module)


def tables_of_module(module: nn.Module) -> Iterator[Table]:
    """Where a module has its values: parameters and buffers, all others, and objects among these.

    >>> [len(table) > 0 for _, table in tables_of_module(nn.Linear(2, 3))]
    [True, False, True]
    """
    for table in (module._parameters, module._buffers, vars(module)):
        yield id(table), table
    for name, value in list(vars(module).items()):
        if is_object(value):
            yield (id(vars(module)), name), vars(value)


def tables_around(loss: object, model: nn.Module) -> Iterator[Table]:
    """What a loss has: attributes, the variables around it, and those of what it calls; not the ``model``.

    >>> first = []
    >>> def loss(model, x):
    ...     return first
    >>> any("first" in table for _, table in tables_around(loss, nn.Linear(2, 3)))
    True
    """
    seen = {id(module) for module in model.modules()}
    return _around(loss, seen, _DEEP)


def _around(thing: object, seen: set[int], deep: int) -> Iterator[Table]:
    if id(thing) in seen or deep == 0:
        return
    seen.add(id(thing))
    inside: list[object] = []
    if isinstance(thing, partial):
        inside = [thing.func, *thing.args, *thing.keywords.values()]
    elif isinstance(thing, MethodType):
        inside = [thing.__self__, thing.__func__]
    elif isinstance(thing, FunctionType):
        named = {name for name in thing.__code__.co_names if name in thing.__globals__}
        of_module = _Some(thing.__globals__, named)
        yield id(thing), of_module
        cells = thing.__closure__ or ()
        yield from ((id(cell), _Cell(cell)) for cell in cells)
        inside = [*of_module.values(), *(value for cell in cells for value in _Cell(cell).values())]
    elif isinstance(thing, nn.Module):
        yield from tables_of(thing)
    elif is_object(thing):
        yield id(vars(thing)), vars(thing)
        inside = [*vars(thing).values(), type(thing).__call__] if callable(thing) else [*vars(thing).values()]
    for value in inside:
        yield from _around(value, seen, deep - 1)


def is_object(value: object) -> bool:
    """Whether it is of a class of the user's own, and has attributes.

    >>> from types import SimpleNamespace
    >>> is_object(SimpleNamespace()), is_object([])
    (True, False)
    """
    kind: Any = type(value)  # mypy takes no class for hashable
    return _is_own(kind) and hasattr(value, "__dict__")


@lru_cache(maxsize=1024)
def _is_own(kind: type[Any]) -> bool:
    library = kind.__module__.partition(".")[0] in _LIBRARIES
    return (kind.__module__ == "types" or not library) and not issubclass(kind, type | nn.Module)


class _Cell(MutableMapping[str, Any]):
    """The one variable in a cell."""

    def __init__(self, cell: CellType) -> None:
        self._cell = cell

    def __getitem__(self, key: str) -> Any:
        try:
            return self._cell.cell_contents
        except ValueError:  # there is nothing in it yet
            raise KeyError(key) from None

    def __setitem__(self, key: str, value: Any) -> None:
        self._cell.cell_contents = value

    def __delitem__(self, key: str) -> None:
        del self._cell.cell_contents

    def __iter__(self) -> Iterator[str]:
        try:
            self._cell.cell_contents  # noqa: B018 (which raises)
        except ValueError:
            return
        yield "cell_contents"

    def __len__(self) -> int:
        return sum(1 for _ in self)


@final
class _Some(MutableMapping[str, Any]):
    """The variables of a module that a function names."""

    def __init__(self, variables: dict[str, Any], names: set[str]) -> None:
        self._variables, self._names = variables, names

    def __getitem__(self, key: str) -> Any:
        return self._variables[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._variables[key] = value

    def __delitem__(self, key: str) -> None:
        del self._variables[key]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name in self._variables)

    def __len__(self) -> int:
        return sum(1 for _ in self)
