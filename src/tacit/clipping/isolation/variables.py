"""Where may a model or a loss keep something?  In its attributes, and in the variables of what it calls."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, MutableMapping
from functools import lru_cache, partial
from types import CellType, FunctionType, MethodType
from typing import Any, TypeAlias

from torch import nn

Table: TypeAlias = tuple[Hashable, MutableMapping[str, Any]]
"""Which one it is, and what is in it by name."""
_DEEP = 5
"""How many steps away from a loss its variables are looked up."""
_LIBRARIES = ("torch", "numpy", "tacit", "builtins", "collections", "logging", "threading", "io", "os")


def tables_of(model: nn.Module) -> Iterator[Table]:
    """Where all modules of a model have their values."""
    for module in model.modules():
        yield from tables_of_module(module)


def tables_of_module(module: nn.Module) -> Iterator[Table]:
    """Where a module has its values: parameters and buffers, all others, and objects among these."""
    for table in (module._parameters, module._buffers, vars(module)):
        yield id(table), table
    for name, value in list(vars(module).items()):
        if is_object(value):
            yield (id(vars(module)), name), vars(value)


def values_around(loss: object, model: nn.Module) -> Iterator[Any]:
    """Attributes of a loss, the variables around it, and those of what it calls; not of the ``model``.

    >>> first = []
    >>> def loss(model, x):
    ...     return first
    >>> any(value is first for value in values_around(loss, nn.Linear(2, 3)))
    True
    """
    for _, table in tables_around(loss, model):
        yield from table.values()


def tables_around(loss: object, model: nn.Module) -> Iterator[Table]:
    """Where the variables are that a loss may keep something in; not those of the ``model``."""
    return _around(loss, {id(module) for module in model.modules()}, _DEEP)


def _around(thing: object, seen: set[int], deep: int) -> Iterator[Table]:
    if id(thing) in seen or deep == 0:
        return
    seen.add(id(thing))
    for number, table in _tables_in(thing):
        yield number, table
        if not isinstance(thing, nn.Module):
            for value in list(table.values()):
                yield from _around(value, seen, deep - 1)


def _tables_in(thing: object) -> Iterator[Table]:
    """The variables of the thing itself."""
    if isinstance(thing, partial):
        yield id(thing), _numbered([thing.func, *thing.args, *thing.keywords.values()])
    elif isinstance(thing, MethodType):
        yield id(thing), _numbered([thing.__self__, thing.__func__])
    elif isinstance(thing, FunctionType):
        yield id(thing), _Names(thing)
        for cell in thing.__closure__ or ():
            if _is_filled(cell):
                yield id(cell), _Cell(cell)
    elif isinstance(thing, nn.Module):
        yield from tables_of(thing)
    elif is_object(thing):
        yield id(vars(thing)), vars(thing)
        if callable(thing):
            yield id(thing), {"__call__": type(thing).__call__}
    elif isinstance(thing, list | tuple | dict):  # of the terms of a loss; tensors and numbers keep nothing
        values = thing.values() if isinstance(thing, dict) else thing
        yield id(thing), _numbered(value for value in values if callable(value) or is_object(value))


def _numbered(values: Iterable[Any]) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(values)}


class _Cell(dict[str, Any]):
    """A variable of an enclosing function, as a table of one value."""

    def __init__(self, cell: CellType) -> None:
        super().__init__(value=cell.cell_contents)
        self._cell = cell

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self._cell.cell_contents = value


class _Names(dict[str, Any]):
    """The variables of a module that a function reads."""

    def __init__(self, function: FunctionType) -> None:
        names = [n for n in function.__code__.co_names if n in function.__globals__]
        super().__init__({n: function.__globals__[n] for n in names})
        self._globals = function.__globals__

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self._globals[key] = value


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (which raises)
    except ValueError:
        return False
    return True


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
