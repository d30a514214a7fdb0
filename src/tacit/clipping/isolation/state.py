"""Changes that a forward pass makes: data of records may leave a step only with noise.

A forward pass may write to the model in addition to computing losses: activations for a plot, a running mean,
weights that are set from the first batch. Such data would be released with the model, or reach later steps,
without noise. Other writes depend on no record, like that of a counter or of a table created at its first
use. So two passes begin in the same state and see different records, and the states that they leave are
compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from tacit.clipping.isolation.variables import (
    OF_TORCH,
    Table,
    is_object,
    tables_around,
    tables_of,
    tables_of_code,
    tables_of_module,
)
from tacit.errors import UnsupportedModel

Place: TypeAlias = tuple[Hashable, str]
"""The identifier of a table, and a name in it."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_NEVER_WRAPPED = frozenset(_PLAIN)


@final
class Memory:
    """A copy of the parameters, buffers and plain attributes of ``model`` and ``loss``.

    Plain attributes are numbers, strings, tensors, arrays, and lists and dictionaries of them. Objects are
    searched for plain attributes; all other values are ignored. The loss's state includes the variables of
    the functions that it calls. With ``code``, the variables of the model's classes are copied too.
    """

    def __init__(self, model: nn.Module, loss: object = None, *, code: bool = False) -> None:
        self._model, self._loss, self._code = model, loss, code
        self._of_model: set[Hashable] = set()
        self._tables = self._all_tables()
        copies: dict[int, Any] = {}  # one copy for a value with several places, such as tied weights
        self._before: dict[Place, tuple[Any, Any]] = {}
        for place, value in _values(self._tables.items()):
            if id(value) not in copies:
                copies[id(value)] = _copy(value)
            self._before[place] = value, copies[id(value)]
        self._other_values = {
            place: value for place, value in _named(self._tables.items()) if place not in self._before
        }
        self.changed_ids: set[int] = set()
        """The ids of the values that the last :meth:`restore` reset, as they had been changed in place."""

    def _all_tables(self) -> dict[Hashable, MutableMapping[str, Any]]:
        tables = dict(tables_of_code(self._model)) if self._code else {}
        if self._loss is not None:
            tables |= tables_around(self._loss, self._model)
        of_model = dict(tables_of(self._model))
        self._of_model |= of_model.keys()
        return tables | of_model

    def restore(self) -> dict[Place, Any]:
        """Restore everything, and delete new values; leave the content of new objects as it is.

        Returns:
            Copies of the values that had changed, by place; None for deleted values and for objects.
        """
        now = dict(_values(self._all_tables().items()))
        changed: dict[Place, Any] = dict.fromkeys(self._before.keys() - now.keys())
        for place, value in now.items():
            if place not in self._before or not _equal(value, self._before[place][1]):
                changed[place] = None if is_object(value) else _copy(value)  # its attributes have places
        self._put_back(now, changed)
        return changed

    def _put_back(self, now: Mapping[Place, Any], changed: Mapping[Place, Any]) -> None:
        self.changed_ids = set()
        for place, value in list(_named(self._tables.items())):
            if place in self._before or not _is_kept(value):
                continue
            number, key = place
            if place in self._other_values:  # a value of another kind was there, which was not copied
                self._tables[number][key] = self._other_values[place]
            else:  # new, or left by a pass under vmap and unreadable
                del self._tables[number][key]
        for place, (value, copy) in self._before.items():
            number, key = place
            if place in changed if now.get(place) is value else not _equal(value, copy):
                self.changed_ids.add(id(value))
                _write_back(value, copy)
            table = self._tables[number]
            if key not in table or table[key] is not value:
                table[key] = value

    def in_model(self, changed: Mapping[Place, Any]) -> dict[Place, Any]:
        """Return the changes that are in the model."""
        return {place: value for place, value in changed.items() if place[0] in self._of_model}

    def counts(self, changed: Mapping[Place, Any]) -> bool:
        """Return whether any change is in the model, or in a counter of the loss."""
        return any(number in self._of_model or _is_count(value) for (number, _), value in changed.items())

    def names(self, places: set[Place]) -> list[str]:
        """Return the names of places in the model, as a user would write them."""
        prefixes: dict[Hashable, str] = {}
        for name, module in self._model.named_modules():
            for number, _ in tables_of_module(module):
                prefixes[number] = f"{name}.{number[1]}" if isinstance(number, tuple) else name
        return sorted(f"{prefixes.get(number, '')}.{key}".lstrip(".") for number, key in places)


def _named(tables: Iterable[Table]) -> Iterator[tuple[Place, Any]]:
    for number, table in tables:
        for key in set(table.keys()) - OF_TORCH:
            yield (number, key), table[key]


def _values(tables: Iterable[Table]) -> Iterator[tuple[Place, Any]]:
    return ((place, value) for place, value in _named(tables) if _is_plain(value) or is_object(value))


def _is_kept(value: object) -> bool:
    """Return whether a value may contain data of a record."""
    return _is_plain(value) or is_object(value) or _holds_wrapped(value)


def _is_count(value: object) -> bool:
    """Return whether a value contains no tensors, like a count of calls of the loss."""
    return value is not None and not any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse a model in which a pass under vmap left a tensor of records."""
    leaks = [
        table[key]
        for _, table in tables_of(model)
        for key in set(table.keys()) - OF_TORCH
        if type(table[key]) not in _NEVER_WRAPPED and _holds_wrapped(table[key])
    ]
    if not leaks:
        return
    names = {
        f"{name}.{key}".lstrip(".")
        for name, module in model.named_modules()
        for _, table in tables_of_module(module)
        for key, value in table.items()
        if key not in OF_TORCH and any(value is each for each in leaks)
    }
    raise UnsupportedModel(KEPT.format(", ".join(sorted(names))))


def _holds_wrapped(value: object) -> bool:
    if isinstance(value, Tensor):
        return is_functorch_wrapped_tensor(value)
    if isinstance(value, list | tuple | deque):
        return any(map(_holds_wrapped, value))
    return isinstance(value, dict) and any(map(_holds_wrapped, value.values()))


def refuse_kept(memory: Memory, after_zeros: Mapping[Place, Any], after_records: Mapping[Place, Any]) -> None:
    """Refuse a model if a pass of records leaves it in another state than a pass of zeros."""
    if names := memory.names(differing(after_zeros, after_records)):
        raise UnsupportedModel(KEPT.format(", ".join(names)))


READS_KEPT = (
    "the loss or the model reads a stored tensor of an earlier batch: later steps would depend on earlier "
    "records without noise. Compute stored values before training, on public records. To see losses, set "
    "loss_report in Plan, which releases a private mean."
)


@contextmanager
def naming_kept() -> Iterator[None]:
    """Explain torch's error about reading a tensor of an earlier vmap pass."""
    try:
        yield
    except RuntimeError as error:
        if "may have escaped" in str(error) or "under vmap transform" in str(error):
            raise UnsupportedModel(READS_KEPT) from error
        raise


KEPT = (
    "the forward pass stores values of records in the model: {}. They would be released with the model, or "
    "reach later steps, without noise. Return them instead of storing them, and compute statistics of data "
    "before training, on public records."
)


def differing(one: Mapping[Place, Any], other: Mapping[Place, Any]) -> set[Place]:
    """Return the places where two passes left different values."""
    both = one.keys() & other.keys()
    return {place for place in both if not _equal(one[place], other[place])} | (one.keys() ^ other.keys())


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal; NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def version_of(tensor: Tensor) -> int | None:
    """Return torch's count of writes to a tensor; None if torch does not count them."""
    return None if tensor.is_inference() else tensor._version


@final
class Writes:
    """Detects writes to ``parameters``.

    Only parameters that a pass of zeros changes may be written, as such a write depends on no record. For
    example, a model may normalise its weights. Writes are detected by torch's counters, which miss those
    through ``.data``. Values are compared instead if a pass of zeros writes to a parameter, even the same
    values, or if the engine uses the record loop.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._rewritten: set[int] = set()
        self._writes = False

    @contextmanager
    def of_no_record(self) -> Iterator[None]:
        """Run a pass of zeros, and note whether it writes to parameters."""
        versions = self._versions()
        yield
        self._writes = versions != self._versions()

    def allow(self, ids: Set[int]) -> None:
        """Allow later passes to write to the parameters with these ids."""
        self._rewritten = {id(p) for p in self._parameters} & ids

    @contextmanager
    def refused(self, model: nn.Module, *, keep: bool) -> Iterator[None]:
        """Run a step of the ``model``; with ``keep``, compare values of parameters and restore them.

        Raises:
            UnsupportedModel: the step wrote to a parameter, which the message names.
        """
        keep |= self._writes
        versions, before = self._versions(), self._copies() if keep else []
        try:
            yield
        except BaseException:
            self._put_back(before)
            raise
        if keep:
            changed = [not same(p, copy) for p, copy in zip(self._parameters, before, strict=True)]
        else:
            changed = [now != then for now, then in zip(self._versions(), versions, strict=True)]
        parameters = [
            p
            for p, is_changed in zip(self._parameters, changed, strict=True)
            if is_changed and id(p) not in self._rewritten
        ]
        if not parameters:
            return
        self._put_back(before)
        of = [name for name, parameter in model.named_parameters() if any(parameter is p for p in parameters)]
        raise UnsupportedModel(
            f"the forward pass writes to the parameters {of}: the values may depend on the records, and "
            "would reach the released model without noise. Compute another tensor from them instead "
            "(torch.nn.utils.parametrize), or write between steps. Do not release what earlier steps trained."
        )

    def _put_back(self, before: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for parameter, copy in zip(self._parameters, before, strict=False):
                if not same(parameter, copy):
                    parameter.copy_(copy)

    def _versions(self) -> list[int | None]:
        return list(map(version_of, self._parameters))

    def _copies(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters]


def _is_plain(value: object) -> bool:
    if isinstance(value, _PLAIN):
        return True
    match value:
        case Tensor():
            lacks = is_lazy(value) or value.is_nested or value.is_meta
            return value.layout is torch.strided and not (lacks or is_functorch_wrapped_tensor(value))
        case list() | tuple() | deque() | set():
            return all(_is_plain(item) and not isinstance(item, nn.Parameter) for item in value)
        case dict():
            return all(map(_is_plain, value.values()))
        case _:
            return isinstance(value, np.ndarray | np.generic)


def _copy(value: Any) -> Any:
    match value:
        case Tensor():
            return value.detach().clone()
        case np.ndarray():
            return value.copy()
        case list() | tuple() | deque():
            return [_copy(item) for item in value]
        case dict():
            return {key: _copy(item) for key, item in value.items()}
        case set():
            return set(value)
        case _:
            return value


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    match a, b:
        case Tensor(), Tensor():
            return _is_plain(a) and _is_plain(b) and same(a, b)
        case np.ndarray(), np.ndarray():
            return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        case (list() | tuple() | deque(), list() | tuple() | deque()):
            return len(a) == len(b) and all(map(_equal, a, b))
        case dict(), dict():
            return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
        case _:  # objects are compared by identity, as their attributes have places
            comparable = type(a) is type(b) and isinstance(a, (*_PLAIN, np.generic, set))
            return comparable and bool(a == b or (a != a and b != b))


def _write_back(value: Any, copy: Any) -> None:
    """Restore ``value``, which was changed in place."""
    match value:
        case Tensor():
            with torch.no_grad():
                value.set_(copy) if value.shape != copy.shape else value.copy_(copy)
        case np.ndarray():
            value[...] = copy
        case list():
            value[:] = copy
        case deque():
            value.clear()
            value.extend(copy)
        case dict() | set():
            value.clear()
            value.update(copy)
        case tuple():  # its items were changed in place
            for item, old in zip(value, copy, strict=True):
                _write_back(item, old)
