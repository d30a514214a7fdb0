"""The structure of a record: its tensors in a fixed order, and a template that rebuilds the record from them.

A template is the record with the numbers 0, 1, ... in place of its tensors, such as ``{"x": 0, "y": (1,
2)}``.  The engines see only the tensors.  The loss gets the record, as positional or as keyword arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from torch import Tensor, nn

from tacit.clipping.engine import PerExampleLoss
from tacit.errors import InvalidInput

Template: TypeAlias = int | tuple[Any, ...] | dict[str, Any]
Path: TypeAlias = tuple[str | int, ...]
"""The keys and positions that lead from a record to one of its parts."""


def flatten(record: Any, *, lists: bool = True) -> tuple[Template, dict[Path, Any]]:
    """Return the template of a record, and its leaves by their paths.

    Mappings, tuples and lists are containers, but a list of numbers is a leaf.  With ``lists=False`` every
    list is a leaf.

    Raises:
        InvalidInput: a mapping has a key that is not text.

    >>> flatten({"x": [0.5, 2.0], "pair": (1, 2)})
    ({'x': 0, 'pair': (1, 2)}, {('x',): [0.5, 2.0], ('pair', 0): 1, ('pair', 1): 2})
    """
    leaves: dict[Path, Any] = {}

    def template_of(value: Any, path: Path) -> Template:
        if isinstance(value, Mapping):
            for key in value:
                _check_key(key, path)
            return {key: template_of(part, (*path, key)) for key, part in value.items()}
        if isinstance(value, tuple) or (lists and isinstance(value, list) and not _holds_numbers(value)):
            parts = [template_of(part, (*path, position)) for position, part in enumerate(value)]
            return _rebuilt_like(value, parts)
        leaves[path] = value
        return len(leaves) - 1

    template: Template = template_of(record, ())
    return template, leaves


def leaves_by(template: Template, record: Any) -> list[Any]:
    """Return the leaves of a record in the order of a template.

    Raises:
        InvalidInput: keys or number of parts differ from the template; the message does not show them.

    >>> leaves_by({"x": 0, "y": 1}, {"y": 3, "x": 2})
    [2, 3]
    """
    if is_positional(template) and isinstance(record, tuple | list) and len(record) == len(template):
        return list(record)
    paths, leaves = paths_of(template), flatten(record)[1]
    if len(leaves) != len(paths) or any(path not in leaves for path in paths):
        raise InvalidInput(
            "the records differ in structure. Each must have the same keys and the same number of parts. "
            "Let each item of the data set be a tuple of tensors and numbers, or a mapping of them, with "
            "the same structure."
        )
    return [leaves[path] for path in paths]


def rebuild(template: Template, leaves: Sequence[Any]) -> Any:
    """Rebuild a record from its leaves.

    >>> rebuild({"x": 0, "y": (1, 2)}, "abc")
    {'x': 'a', 'y': ('b', 'c')}
    """
    match template:
        case int():
            return leaves[template]
        case dict():
            return {key: rebuild(part, leaves) for key, part in template.items()}
        case _:
            return _rebuilt_like(template, [rebuild(part, leaves) for part in template])


def name_of(path: Path) -> str:
    """Name a part of a record, for errors.

    >>> name_of((1, "labels"))
    "part 1, key 'labels'"
    """
    words = [f"key {step!r}" if isinstance(step, str) else f"part {step}" for step in path]
    return ", ".join(words) or "the record"


def paths_of(template: Template) -> list[Path]:
    """Return the paths of a record's parts."""
    return list(flatten(template)[1])


def is_positional(template: Template) -> TypeGuard[tuple[int, ...]]:
    """Return whether records are flat tuples, whose tensors the loss gets as positional arguments."""
    return isinstance(template, tuple) and all(type(part) is int for part in template)


def with_record(loss: PerExampleLoss, template: Callable[[], Template]) -> PerExampleLoss:
    """Wrap ``loss`` so that it can be called with tensors; the wrapper rebuilds the record for it.

    Args:
        template: returns the template.  It is called when the loss is called, because the first item of a
            data set determines the template.

    >>> loss = with_record(lambda model, *, x, y: (x, y), lambda: {"x": 0, "y": (1, 2)})
    >>> loss(None, "a", "b", "c")
    ('a', ('b', 'c'))
    """

    def of_record(model: nn.Module, *tensors: Tensor) -> Tensor:
        parts, keywords = _arguments(template(), tensors)
        return loss(model, *parts, **keywords)

    return of_record


def check_loss_takes(loss: Callable[..., object], template: Template) -> None:
    """Refuse a loss that cannot be called with the model and a record of this template.

    Raises:
        InvalidInput: the parameters of the loss do not fit; the message names them and describes a record.

    >>> check_loss_takes(lambda model, x, y: x, (0, 1))
    >>> check_loss_takes(lambda model, x, y: x, {"x": 0})
    Traceback (most recent call last):
    tacit.errors.InvalidInput: the loss takes (model, x, y), and a record is a mapping. The loss is called \
with the model and 1 keyword, the record's key. Give a loss with these parameters, such as \
def loss(model, **record).
    """
    try:
        signature = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except (TypeError, ValueError):  # compiled code has no signature
        return
    parts, keywords = _arguments(template, range(len(paths_of(template))))
    try:
        signature.bind(None, *parts, **keywords)
    except TypeError:
        count = len(parts) + len(keywords)
        plural = "s" if count > 1 else ""
        if keywords:
            record, arguments = "a mapping", f"{count} keyword{plural}, the record's key{plural}"
            fix = "def loss(model, **record)"
        else:
            record, arguments = f"{count} part{plural}", f"{count} tensor{plural}"
            letters = ", ".join("xyzuvw"[:count])
            fix = f"def loss(model, {letters})" if count <= 6 else "def loss(model, *parts)"
        raise InvalidInput(
            f"the loss takes ({', '.join(_names(signature))}), and a record is {record}. The loss is called "
            f"with the model and {arguments}. Give a loss with these parameters, such as {fix}."
        ) from None


def _arguments(template: Template, leaves: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    record = rebuild(template, leaves)
    if isinstance(template, dict):
        return (), record
    return (record,) if isinstance(template, int) else record, {}


def _names(signature: inspect.Signature) -> Iterator[str]:
    for name, parameter in signature.parameters.items():
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        yield ("**" if parameter.kind is parameter.VAR_KEYWORD else star) + name


def _rebuilt_like(like: Any, parts: list[Any]) -> tuple[Any, ...]:
    """Return a tuple of these parts, of the class of ``like`` if that is a named tuple."""
    record: tuple[Any, ...] = type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    return record


def _holds_numbers(values: Any) -> bool:
    """Return whether a list holds numbers, such as tokens, as far as its first item shows."""
    while isinstance(values, list) and len(values) > 0:
        values = values[0]
    return isinstance(values, list | Number | np.generic)


def _check_key(key: object, path: Path) -> None:
    if not isinstance(key, str):
        raise InvalidInput(
            f"{name_of(path)} is a mapping with a key of type {type(key).__name__}. Keys must be texts, "
            "because the loss gets them as keywords. Rename the keys."
        )
