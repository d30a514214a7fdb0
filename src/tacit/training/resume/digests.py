"""Digests of functions, objects and modules, which cover everything that affects their results.

:mod:`tacit.training.resume.state` lists what a digest covers and what not.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import hashlib
import inspect
import sys
import sysconfig
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn

Part: TypeAlias = str | bytes

_SAMPLED = 2**20  # the most numbers of a tensor that are read
_LONG = 4096  # the most items of a list, dictionary or set that are read
_MAKING = frozenset({"__init__", "__new__", "__post_init__", "__set_name__"})
"""Methods that have run when an object exists; they also name attributes that no other code reads."""
_SHOWING = frozenset(
    {"__repr__", "__str__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__del__"}
    | {"__getstate__", "__setstate__", "__reduce__", "__init_subclass__", "__class_getitem__"}
)
"""Methods that may name all attributes but are not called to compute a loss."""
_ALL = frozenset({"vars", "__dict__", "asdict", "astuple"})
"""Names with which code may read attributes without naming them."""
_OF_TORCH = frozenset(vars(nn.Module()))
_OF_SHARDING = "__composable_api_state_key"  # prefix of attributes that ``fully_shard`` sets
_OF_FILE = frozenset({"__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__"})
_PLAIN = (types.NoneType, bool, int, float, complex, str, bytes, types.EllipsisType, slice, range)
_KINDS = (torch.dtype, torch.layout, torch.memory_format, np.dtype)
_STDLIB = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
_WRITES = ("STORE_GLOBAL", "STORE_DEREF")
_KIND_OF_FUNCTION = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR
_KIND_OF_FUNCTION |= inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_HAS_DOCSTRING = 0x4000000  # a flag of code objects, from Python 3.13 on


@final
class Reader:
    """One walk through a value, which reads the attributes of objects whose names are in ``names``."""

    def __init__(
        self, names: frozenset[str], model: nn.Module | None, tensors: dict[int, tuple[object, bytes]]
    ) -> None:
        self.names_read: set[str] = set()
        self.versions = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
        self._names, self._tensors = names, tensors
        moving: list[object] = []
        if model is not None:
            moving = [*model.modules(), *model.parameters(), *model.buffers()]
        self._moving = {id(part) for part in moving}
        self._open: list[int] = []
        self._done: dict[int, tuple[object, bytes]] = {}  # keeps the values alive, so that ids stay unique

    def of(self, value: object) -> bytes:
        """Return the digest of any value."""
        number = id(value)
        if number in self._done:
            return self._done[number][1]
        if number in self._open:
            return _digest(["around", str(len(self._open) - self._open.index(number))])
        self._open.append(number)
        digest = _digest(self._parts(value))
        self._open.pop()
        self._done[number] = value, digest
        return digest

    def _parts(self, value: Any) -> Iterable[Part]:
        kind: type[Any] = type(value)
        if kind in weakref.ProxyTypes or (id(value) in self._moving and isinstance(value, Tensor)):
            return [kind.__name__]
        match value:
            case enum.Enum():
                return [*self._class(kind, exists=True), str(value.name), self.of(value.value)]
            case _ if isinstance(value, (*_PLAIN, *_KINDS)):
                return [kind.__name__, repr(value)]
            case np.generic() | np.ndarray() | Tensor():
                return [kind.__name__, self._tensor(value)]
            case list() | tuple() | deque() | set() | frozenset() | dict():
                return [kind.__name__, str(len(value)), *(self._items(value) if len(value) <= _LONG else ())]
            case type():
                return self._class(value, exists=False)
            case types.ModuleType():
                return self._module(value)
            case nn.Module():
                return self._network(value)
            case _:
                return self._callable(value)

    def _items(self, values: Any) -> Iterable[bytes]:
        if isinstance(values, dict):
            keys = sorted(values, key=self.of)
            return [self.of(part) for key in keys for part in (key, values[key])]
        digests = map(self.of, values)
        return sorted(digests) if isinstance(values, set | frozenset) else digests

    def _callable(self, value: Any) -> Iterable[Part]:
        match value:
            case types.CodeType():
                return self._code(value)
            case types.FunctionType():
                return self._function(value)
            case types.MethodType():
                return ["method", self.of(value.__func__), self.of(value.__self__)]
            case partial():
                return ["partial", *map(self.of, (value.func, value.args, value.keywords))]
            case types.BuiltinFunctionType():
                return [self._named(value.__module__, value.__qualname__), self._receiver(value.__self__)]
            case staticmethod() | classmethod():
                return ["function of a class", self.of(value.__func__)]
            case property():
                return ["property", *map(self.of, (value.fget, value.fset))]
            case cached_property():
                return ["property", self.of(value.func)]
            case _:
                return self._object(value)

    def _tensor(self, value: Any) -> bytes:
        if id(value) not in self._tensors:
            self._tensors[id(value)] = value, _digest(_numbers(value))
        return self._tensors[id(value)][1]

    def _code(self, code: types.CodeType) -> Iterator[Part]:
        constants = _constants(code)
        self.names_read.update(code.co_names, (c for c in constants if isinstance(c, str)))
        arguments = (code.co_posonlyargcount, code.co_argcount, code.co_kwonlyargcount)
        yield from (code.co_code, code.co_exceptiontable)
        variables = code.co_varnames[: sum(arguments[1:])]
        yield repr((*arguments, code.co_flags & _KIND_OF_FUNCTION, variables, code.co_names))
        yield from (self.of(constant) for constant in constants)

    def _function(self, function: types.FunctionType) -> Iterator[Part]:
        code = function.__code__
        own = _assigned(code)  # variables that the function writes are state, such as a count of calls
        around = zip(code.co_freevars, function.__closure__ or (), strict=True)
        cells = [(name, cell) for name, cell in around if name not in own]
        if _is_installed(code.co_filename):  # a library's function may wrap one of the user's functions
            yield self._named(function.__module__, function.__qualname__)
            yield from (self._cell(name, cell) for name, cell in cells)
            return
        yield from map(self.of, (code, function.__defaults__, function.__kwdefaults__))
        yield from (self._cell(name, cell) for name, cell in cells)
        for name in sorted(_globals(code) - own):
            yield name
            yield self.of(function.__globals__[name]) if name in function.__globals__ else "builtin"
        yield from self._attributes(vars(function))

    def _cell(self, name: str, cell: types.CellType) -> Part:
        if name == "__class__":  # for ``super()``; the walk finds the class by its object
            return name
        try:
            return self.of(cell.cell_contents)
        except ValueError:  # the cell is still empty
            return "empty"

    def _receiver(self, value: object) -> bytes:
        return b"" if isinstance(value, types.ModuleType | type) else self.of(value)

    def _class(self, kind: type[Any], *, exists: bool, every: bool = False) -> Iterator[Part]:
        """Yield the code of a class.

        ``every`` adds methods that no code names, because a library may call them.  ``exists`` says that an
        object of the class already exists, so that its constructor no longer matters.
        """
        for base in kind.__mro__:
            if _is_library(base.__module__):
                yield self._named(base.__module__, base.__qualname__)
                continue
            yield base.__name__
            for name, member in sorted(vars(base).items()):
                implicit = every or name == "forward" or name.startswith("__")
                unread = name in _SHOWING or (exists and name in _MAKING)
                runs = implicit and not unread and isinstance(member, types.FunctionType)
                if name in self._names or runs:
                    yield name
                    yield self.of(member)

    def _module(self, module: types.ModuleType) -> Iterator[Part]:
        if _is_library(module.__name__):
            yield self._named(module.__name__, "")
        else:
            yield from self._attributes(vars(module))

    def _network(self, network: nn.Module) -> Iterator[Part]:
        kind = type(network)
        if kind.__name__ == "OptimizedModule":  # torch.compile numbers the modules that it wraps
            yield self.of(network._modules["_orig_mod"])
            return
        above = [base for base in kind.__mro__ if issubclass(base, nn.Module) and base is not nn.Module]
        every = any(_is_library(base.__module__) for base in above)
        yield from self._class(kind, exists=True, every=every)
        if id(network) not in self._moving:
            yield str(network.training)
            for name, tensor in (*network._parameters.items(), *network._buffers.items()):
                yield name
                yield self.of(tensor)
        for hook in (*network._forward_pre_hooks.values(), *network._forward_hooks.values()):
            yield self.of(hook)
        for name, child in network._modules.items():
            yield name
            yield self.of(child)
        entries = (
            (name, value) for name, value in vars(network).items() if not name.startswith(_OF_SHARDING)
        )
        own = {name: value for name, value in entries if name not in _OF_TORCH}
        if id(network) in self._moving:  # the first forward pass may make such tensors
            own = {n: value for n, value in own.items() if not isinstance(value, Tensor | types.NoneType)}
        yield from self._attributes(own, every=every)

    def _object(self, value: object) -> Iterator[Part]:
        kind = type(value)
        yield from self._class(kind, exists=True)
        if kind.__module__.startswith("torch.distributed"):  # its attributes differ between processes
            return
        library = _is_library(kind.__module__)
        if library:  # the object may be a function, as in NumPy
            yield str(getattr(value, "__name__", ""))
        yield from self._attributes(_attributes_of(value), every=library and dataclasses.is_dataclass(kind))

    def _attributes(self, table: Mapping[str, Any], *, every: bool = False) -> Iterator[Part]:
        every = every or not _ALL.isdisjoint(self._names)
        for name in sorted(table) if every else sorted(table.keys() & (self._names | {"__wrapped__"})):
            yield name
            yield self.of(table[name])

    def _named(self, module: str | None, name: str) -> str:
        """Return the full name of an object of a library, and record the library's version."""
        top = (module or "").partition(".")[0]
        version = getattr(sys.modules.get(top), "__version__", None)
        if isinstance(version, str):
            self.versions[top] = str(version)
        return f"{module}.{name}"


def _digest(parts: Iterable[Part]) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        content = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.digest()


def _numbers(value: Any) -> Iterator[Part]:
    """Yield type, shape and numbers of a tensor or an array; of a large one, only some of the numbers."""
    if isinstance(value, Tensor) and (value.is_nested or value.is_quantized):
        yield f"{value.dtype}"
        return
    yield f"{tuple(value.shape)} {value.dtype}"
    if isinstance(value, np.ndarray | np.generic):
        if not value.dtype.hasobject:
            yield np.ascontiguousarray(value.reshape(-1)[:: value.size // _SAMPLED + 1]).tobytes()
    elif value.layout is torch.strided and not value.is_meta:
        flat = value.detach().reshape(-1)[:: value.numel() // _SAMPLED + 1].cpu()
        yield flat.resolve_conj().resolve_neg().contiguous().view(torch.uint8).numpy().tobytes()


def _constants(code: types.CodeType) -> tuple[Any, ...]:
    """Return the constants of a code object, without its docstring."""
    constants = code.co_consts
    if sys.version_info >= (3, 13):
        documented = bool(code.co_flags & _HAS_DOCSTRING)
    else:  # the first constant of a function is its docstring or None
        documented = bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")
    return (None, *constants[1:]) if documented and constants and isinstance(constants[0], str) else constants


@lru_cache(maxsize=4096)
def _globals(code: types.CodeType) -> frozenset[str]:
    """Return the global variables that the code and its inner functions read, except ``_OF_FILE``."""
    names = {
        step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    inside = (_globals(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(name for name in names.union(*inside) if name not in _OF_FILE)


@lru_cache(maxsize=4096)
def _assigned(code: types.CodeType) -> frozenset[str]:
    """Return the global and enclosing variables that the code or its inner functions write."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in _WRITES}
    inside = (_assigned(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(names.union(*inside).difference(code.co_cellvars))


@lru_cache(maxsize=4096)
def _is_installed(file: str) -> bool:
    path = Path(file)
    return (
        file.startswith("<frozen")
        or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
        or any(path.is_relative_to(folder) for folder in _STDLIB)
    )


def _is_library(module: str) -> bool:
    """Return whether a module belongs to the standard library or is installed."""
    top = module.partition(".")[0]
    for name in (module, top):
        file = vars(sys.modules[name]).get("__file__") if name in sys.modules else None
        if file is not None:
            return _is_installed(file)
    return top in sys.stdlib_module_names


def _attributes_of(value: object) -> dict[str, Any]:
    attributes = dict(vars(value)) if hasattr(value, "__dict__") else {}
    for base in type(value).__mro__:
        for name, member in vars(base).items() if "__slots__" in vars(base) else ():
            if isinstance(member, types.MemberDescriptorType) and hasattr(value, name):
                attributes[name] = getattr(value, name)
    return attributes
