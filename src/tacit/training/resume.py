"""The resume state of a run, and digests of everything that affects what its steps release."""

# Resuming with another loss would add the same noise to another sum.  A digest covers code (without file
# names, line numbers, comments and docstrings) and the values that it reads, as these are when the session
# is made: the user's functions and classes in full, and those of libraries (all that is installed) by name
# and version. It differs if code, defaults, bound arguments, enclosing or global variables, or attributes
# of their objects and modules differ, as numbers, texts, types, tensors, arrays, functions or collections
# of them; and it is the same in another process.
#
# **Not covered**
#
# * Enclosing and global variables that a function writes itself, such as a count of its calls.
# * Most numbers of a very large tensor: at most 2^20 numbers are read, evenly spaced.  For lists,
#   dictionaries and sets of more than 4,096 items, only the number of items counts.
# * Attributes of objects that the code does not name.  The code of a library is not read, nor are the
#   attributes of its objects, except for modules and data classes.
# * Tensors of the trained model that are not parameters, because its first forward pass may have made them.
# * Compiled code (C, TorchScript), and values that a loss reads when it runs: files, environment, clocks,
#   and modules that it imports.

from __future__ import annotations

import ast
import dataclasses
import dis
import enum
import hashlib
import inspect
import io
import json
import pickle
import re
import sys
import sysconfig
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.files import write_atomically
from tacit.noise.generator import Generator
from tacit.training.part import Part
from tacit.training.records import Records

Piece: TypeAlias = str | bytes

_SAMPLED = 2**20  # the most numbers of a tensor that are read
_LONG = 4096  # the most items of a list, dictionary or set that are read
_MAKING = frozenset({"__init__", "__new__", "__post_init__", "__set_name__"})
"""Constructors, which have run when an object exists and name attributes that no other code reads."""
_SHOWING = frozenset(
    {"__repr__", "__str__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__del__"}
    | {"__getstate__", "__setstate__", "__reduce__", "__init_subclass__", "__class_getitem__"}
)
"""Methods that may name all attributes but are not called to compute a loss."""
_ALL = frozenset({"vars", "__dict__", "asdict", "astuple"})
"""Functions that read attributes without naming them."""
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
    """One walk through a value that reads the attributes in ``names``."""

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

    def _parts(self, value: Any) -> Iterable[Piece]:
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

    def _callable(self, value: Any) -> Iterable[Piece]:
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
                bound = value.__self__
                receiver = b"" if isinstance(bound, types.ModuleType | type) else self.of(bound)
                return [self._named(value.__module__, value.__qualname__), receiver]
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

    def _code(self, code: types.CodeType) -> Iterator[Piece]:
        constants = _constants(code)
        self.names_read.update(code.co_names, (c for c in constants if isinstance(c, str)))
        arguments = (code.co_posonlyargcount, code.co_argcount, code.co_kwonlyargcount)
        yield from (code.co_code, code.co_exceptiontable)
        variables = code.co_varnames[: sum(arguments[1:])]
        yield repr((*arguments, code.co_flags & _KIND_OF_FUNCTION, variables, code.co_names))
        yield from (self.of(constant) for constant in constants)

    def _function(self, function: types.FunctionType) -> Iterator[Piece]:
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

    def _cell(self, name: str, cell: types.CellType) -> Piece:
        if name == "__class__":  # for ``super()``; the walk finds the class by its object
            return name
        try:
            return self.of(cell.cell_contents)
        except ValueError:  # the cell is still empty
            return "empty"

    def _class(self, kind: type[Any], *, exists: bool, every: bool = False) -> Iterator[Piece]:
        """Yield the code of a class.

        ``every`` adds methods that no code names; with ``exists`` its constructor no longer matters.
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

    def _module(self, module: types.ModuleType) -> Iterator[Piece]:
        if _is_library(module.__name__):
            yield self._named(module.__name__, "")
        else:
            yield from self._attributes(vars(module))

    def _network(self, network: nn.Module) -> Iterator[Piece]:
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

    def _object(self, value: object) -> Iterator[Piece]:
        kind = type(value)
        yield from self._class(kind, exists=True)
        if kind.__module__.startswith("torch.distributed"):  # its attributes differ between processes
            return
        library = _is_library(kind.__module__)
        if library:  # the object may be a function, as in NumPy
            yield str(getattr(value, "__name__", ""))
        yield from self._attributes(_attributes_of(value), every=library and dataclasses.is_dataclass(kind))

    def _attributes(self, table: Mapping[str, Any], *, every: bool = False) -> Iterator[Piece]:
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


def _digest(parts: Iterable[Piece]) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        content = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.digest()


def _numbers(value: Any) -> Iterator[Piece]:
    """Yield type, shape and numbers of a tensor or array; for a large one, a sample of the numbers."""
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


@final
class Identity:
    """The digest of the code of ``thing``: ``__call__``, and the methods in ``calls``.

    ``thing`` may read the trained ``model``, without its weights, which change.

    >>> def loss(model, x, scale=2.0):
    ...     return scale * model(x).square().sum(1)
    >>> def again(model, x, scale=2.0):
    ...     # with a comment
    ...     return scale * model(x).square().sum(1)
    >>> key = bytes(16)
    >>> Identity(loss).under(key) == Identity(again).under(key)
    True
    >>> again.__defaults__ = (3.0,)
    >>> Identity(loss).under(key) == Identity(again).under(key)
    False
    """

    def __init__(self, thing: object, model: nn.Module | None = None, *, calls: Iterable[str] = ()) -> None:
        names = frozenset(calls)
        tensors: dict[int, tuple[object, bytes]] = {}
        while True:  # a walk may read code that names more attributes, which the next walk then reads
            reader = Reader(names, model, tensors)
            self._digest = reader.of(thing)
            if reader.names_read <= names:
                break
            names |= reader.names_read
        self.versions: dict[str, str] = reader.versions
        """The versions of Python and of the libraries that ``thing`` uses."""

    def under(self, key: bytes) -> str:
        """Return the digest under a key; without the key it cannot confirm a guess about a value."""
        return hashlib.blake2b(self._digest, key=key, digest_size=16).hexdigest()


@final
class Code(Part):
    """The digests of loss, model, augmentation and collate function before their first call."""

    def __init__(self, model: nn.Module, loss: object, augmentation: object, collate: object) -> None:
        self._code = {
            "loss": Identity(loss, model),
            "code": Identity(model, model),
            "augmentation": Identity(augmentation, calls=("draws", "views")),
        }
        if collate is not None:
            self._code["collate"] = Identity(collate)

    def facts(self, key: bytes) -> dict[str, Any]:
        codes: dict[str, Any] = {name: identity.under(key) for name, identity in self._code.items()}
        versions = {k: v for identity in self._code.values() for k, v in identity.versions.items()}
        return {**codes, "versions": versions}


_RECORDS = "the records (compared by a keyed digest: their number, order, types or values)"
_WORDS = {
    "plan": "the plan",
    "event": "the plan",
    "records": _RECORDS,
    "dates": _RECORDS,
    "parameters": "the model",
    "model": "the model",
    "code": "the code or the settings of the model",
    "loss": "the loss (its code, or a value that it reads)",
    "optimizer": "the optimizer",
    "engine": "the engine",
    "physical": "physical_batch_size",
    "augmentation": "the augmentation",
    "collate": "the collate function",
    "structure": "the structure of the records",
    "ema": "ema_decay",
    "slots": "the audit slots",
    "noise": "the device that draws the noise",
    "ranks": "the number of processes",
    "layout": "how the model is sharded",
    "done": "the number of steps taken",
}
_OF_CODE = ("code", "loss", "augmentation", "collate")
_DIGESTS = (*_OF_CODE, "records", "dates", "event", "parameters", "model", "plan")
_LONGEST = 120  # characters of a model that a message shows


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe the facts of a run that differ from before, with both values unless they are digests.

    >>> before, now = {"loss": "1f", "versions": {"python": "3.11"}}, {"python": "3.12"}
    >>> differences(before, {"loss": "2e", "versions": now})  # each version compiles differently
    ['the version of python (3.11, now 3.12)']
    """
    then, today = before["versions"], now["versions"]
    changed = [name for name in then if name in today and then[name] != today[name]]
    lines = [f"the version of {name} ({then[name]}, now {today[name]})" for name in changed]
    changes: dict[str, list[str]] = {}
    for fact in sorted((before.keys() | now.keys()) - {"versions"}):
        comparable = fact not in _OF_CODE or "python" not in changed
        if comparable and before.get(fact) != now.get(fact):
            change = _change_of(fact, before.get(fact), now.get(fact))
            changes.setdefault(_WORDS.get(fact, fact), []).extend([change] if change else [])
    return lines + [
        f"{words} ({'; '.join(change)})" if change else words for words, change in changes.items()
    ]


def _change_of(fact: str, before: Any, now: Any) -> str:
    match fact:
        case "plan":
            return _changes(_arguments(before), _arguments(now))
        case "records" if len(then := before.split()) > 1 and len(then) == len(today := now.split()):
            # one digest for each process that has records of its own
            others = [str(rank) for rank in range(len(then)) if then[rank] != today[rank]]
            return f"those of process{'es' * (len(others) > 1)} {', '.join(others)}"
        case "ranks":
            return f"was {before or 1}, is {now or 1}"
        case "parameters":
            return _changes(*(dict(ast.literal_eval(shapes)) for shapes in (before, now)))
        case "model":
            lines = zip_longest(before.splitlines(), now.splitlines(), fillvalue="nothing")
            old, new = next(pair for pair in lines if pair[0] != pair[1])
            return f"was {old.strip()[:_LONGEST]}, is {new.strip()[:_LONGEST]}"
    return "" if fact in _DIGESTS else f"was {before}, is {now}"


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return "; ".join(
        f"{name} was {before.get(name, 'not there')}, is {now.get(name, 'gone')}" for name in names
    )


def _arguments(call: str) -> dict[str, str]:
    """Read the arguments from the ``repr`` of a plan, by name."""
    plain = re.sub(r"<\w+\.\w+: ('[^']*')>", r"\1", call)  # the repr of an adjacency
    tree = ast.parse(plain, mode="eval").body
    keywords = tree.keywords if isinstance(tree, ast.Call) else []
    return {str(keyword.arg): ast.unparse(keyword.value) for keyword in keywords}


_FORMAT = 7  # since 0.3


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Save a resume state, readable only by its owner, because it contains the key of the noise."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    buffer = io.BytesIO()  # torch would hide an error of the file system, such as a full disk
    torch.save({"format": _FORMAT, **state}, buffer)
    write_atomically(path, lambda file: file.write(buffer.getbuffer()), mode=0o600)


def add_to_state(path: Path, key: bytes, facts: Mapping[str, Any]) -> None:
    if path.exists() and (state := load_state(path))["key"] == key:
        save_state(path, {**state, **facts})


def load_state(path: Path) -> dict[str, Any]:
    """Load a resume state, without executing anything in it."""
    try:
        content = io.BytesIO(path.read_bytes())  # errors from here on come from the content
    except FileNotFoundError:
        raise InvalidInput(f"there is no resume state at {path}. Pass the path of session.save.") from None
    except OSError as problem:
        raise InvalidInput(
            f"the resume state {path} cannot be read: {problem.strerror}. Pass the path of session.save, and "
            "let this user read the file."
        ) from None
    try:
        state = torch.load(content, weights_only=True, map_location="cpu")
    except (RuntimeError, EOFError, OSError, LookupError, TypeError, ValueError, pickle.UnpicklingError):
        raise InvalidInput(
            f"{path} cannot be read as a resume state: it is damaged, or another program wrote it. Restore "
            "it from a copy, or start a new run."
        ) from None
    version = state.get("format") if isinstance(state, dict) else None
    if not isinstance(state, dict) or version != _FORMAT:
        raise InvalidInput(
            f"{path} is not a resume state of Tacit 0.3 (its format is {version}, not {_FORMAT}). Finish the "
            "run with the version that wrote it, or start a new run."
        )
    return state


def check_same_run(path: Path | str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if differing := differences(before, now):
        raise PrivacyRefusal(
            f"the resume state {path} belongs to another run. Different: {', '.join(differing)}. Resuming "
            "would add the same noise to different sums, whose difference has no noise. Restore the "
            "settings of that run, or start a new run."
        )


def is_trained_on(path: Path, records: Records) -> bool:
    state = load_state(path)
    return bool(json.loads(state["run"])["records"] == records.fingerprint(state["key"]))


def saved_generator(path: Path | str) -> Generator:
    state = load_state(Path(path))
    return Generator(state["key"], secure=state["secure"])
