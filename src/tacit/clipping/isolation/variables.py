"""Places where a model or a loss may keep values: its attributes, and the variables of functions it calls."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, MutableMapping
from functools import lru_cache, partial
from types import CellType, FunctionType, MethodType
from typing import Any, TypeAlias

from torch import nn

Table: TypeAlias = tuple[Hashable, MutableMapping[str, Any]]
"""The identifier of a table, and its values by name."""
_DEEP = 5
"""The most references that are followed from a loss to a variable."""
_DEEP_IN_CODE = 2
"""The most references that are followed from the ``forward`` of a module to a variable."""
_LIBRARIES = ("torch", "numpy", "tacit", "builtins", "collections", "logging", "threading", "io", "os")
OF_TORCH = frozenset(vars(nn.Module()))
"""The attributes of every module: its tables, and the flag ``training``."""


def modules_of(model: nn.Module) -> list[nn.Module]:
    """Return each module once, before its submodules."""
    modules: dict[int, nn.Module] = {}
    left = [model]
    while left:
        module = left.pop()
        if id(module) not in modules:
            modules[id(module)] = module
            left += [child for child in reversed(module._modules.values()) if child is not None]
    return list(modules.values())


def tables_of(model: nn.Module) -> Iterator[Table]:
    """Yield the tables that hold the values of all modules of a model."""
    visited: set[int] = set()
    for module in modules_of(model):
        yield from tables_of_module(module, visited)


def tables_of_module(module: nn.Module, visited: set[int] | None = None) -> Iterator[Table]:
    """Yield the tables of a module: its parameters, buffers and other attributes, and objects among these.

    ``visited``: the ids of objects to leave out, such as a configuration that several modules share. The ids
    of the objects that this function yields are added.
    """
    visited, of = set() if visited is None else visited, vars(module)
    for table in (module._parameters, module._buffers, of):
        yield id(table), table
    for name in of.keys() - OF_TORCH:
        value = of[name]
        if is_object(value) and id(value) not in visited:
            visited.add(id(value))
            yield (id(of), name), vars(value)


def values_around(loss: object, model: nn.Module) -> Iterator[Any]:
    """Yield the attributes of a loss, and the variables of the loss and of functions that it calls.

    The values of the ``model`` are left out.

    >>> first = []
    >>> def loss(model, x):
    ...     return first
    >>> any(value is first for value in values_around(loss, nn.Linear(2, 3)))
    True
    """
    for _, table in tables_around(loss, model):
        yield from table.values()


def tables_around(loss: object, model: nn.Module) -> Iterator[Table]:
    """Yield the tables of variables in which a loss may store values, except those of the ``model``."""
    return _around(loss, set(map(id, modules_of(model))), _DEEP)


def tables_of_code(model: nn.Module) -> Iterator[Table]:
    """Yield the tables of module classes: class attributes, and variables to which ``forward`` refers."""
    visited = set(map(id, modules_of(model)))
    for kind in dict.fromkeys(kind for each in modules_of(model) for kind in type(each).__mro__):
        if not _is_of_library(kind):
            yield id(kind), _OfClass(kind)
            yield from _around(vars(kind).get("forward"), visited, _DEEP_IN_CODE)


def _around(thing: object, visited: set[int], deep: int) -> Iterator[Table]:
    if id(thing) in visited or deep == 0:
        return
    visited.add(id(thing))
    for number, table in _tables_in(thing):
        yield number, table
        if not isinstance(thing, nn.Module):
            for value in list(table.values()):
                yield from _around(value, visited, deep - 1)


def _tables_in(thing: object) -> Iterator[Table]:
    """Yield the tables of the variables that an object holds directly."""
    if isinstance(thing, partial):
        yield id(thing), _numbered([thing.func, *thing.args, *thing.keywords.values()])
    elif isinstance(thing, MethodType):
        yield id(thing), _numbered([thing.__self__, thing.__func__])
    elif isinstance(thing, FunctionType):
        yield id(thing), _Globals(thing)
        yield (id(thing), "attributes"), vars(thing)
        defaults = (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values())
        yield (id(thing), "defaults"), _numbered(defaults)
        for cell in thing.__closure__ or ():
            yield id(cell), _Cell(cell)
    elif isinstance(thing, nn.Module):
        yield from tables_of(thing)
    elif is_object(thing):
        yield id(vars(thing)), vars(thing)
        yield id(type(thing)), _OfClass(type(thing))
        if callable(thing):
            yield id(thing), {"__call__": type(thing).__call__}
    elif isinstance(thing, list | tuple | dict):  # such as terms of a loss; tensors have no variables
        values = thing.values() if isinstance(thing, dict) else thing
        yield id(thing), _numbered(value for value in values if callable(value) or is_object(value))


def _numbered(values: Iterable[Any]) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(values)}


class _Live(MutableMapping[str, Any]):
    """Variables by name, read and written in place: a copy would not show new assignments or undo them."""

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Return the names that are bound now."""

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.names()))

    def __len__(self) -> int:
        return len(list(self.names()))


class _Cell(_Live):
    """A variable of an enclosing function, as a table with one value, or with none while it is unbound."""

    def __init__(self, cell: CellType) -> None:
        self._cell = cell

    def names(self) -> Iterable[str]:
        try:
            self._cell.cell_contents  # noqa: B018 (raises if unbound)
        except ValueError:
            return ()
        return ("value",)

    def __getitem__(self, key: str) -> Any:
        return self._cell.cell_contents

    def __setitem__(self, key: str, value: Any) -> None:
        self._cell.cell_contents = value

    def __delitem__(self, key: str) -> None:
        del self._cell.cell_contents


class _Globals(_Live):
    """The global variables to which a function refers."""

    def __init__(self, function: FunctionType) -> None:
        self._names, self._globals = function.__code__.co_names, function.__globals__

    def names(self) -> Iterable[str]:
        return (name for name in self._names if name in self._globals)

    def __getitem__(self, key: str) -> Any:
        return self._globals[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._globals[key] = value

    def __delitem__(self, key: str) -> None:
        del self._globals[key]


class _OfClass(_Live):
    """The attributes of a class, except methods and properties."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def names(self) -> Iterable[str]:
        of = vars(self._kind)
        return (name for name in of if not (name.startswith("__") or hasattr(of[name], "__get__")))

    def __getitem__(self, key: str) -> Any:
        return vars(self._kind)[key]

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self._kind, key, value)

    def __delitem__(self, key: str) -> None:
        delattr(self._kind, key)


def is_object(value: object) -> bool:
    """Return whether a value is an instance of a user's class, with attributes.

    >>> from types import SimpleNamespace
    >>> is_object(SimpleNamespace()), is_object([])
    (True, False)
    """
    kind: Any = type(value)  # mypy does not accept a class as hashable
    return _is_own(kind) and hasattr(value, "__dict__")


@lru_cache(maxsize=1024)
def _is_own(kind: type[Any]) -> bool:
    return not _is_of_library(kind) and not issubclass(kind, type | nn.Module)


def _is_of_library(kind: type[Any]) -> bool:
    return kind.__module__ != "types" and kind.__module__.partition(".")[0] in _LIBRARIES
