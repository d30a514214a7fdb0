"""How the operations of a new trace are carried out: the choice, from what is in their operands.

Letters: B rows of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Protocol, TypeAlias, final

import torch
from torch import Tensor

from tacit.clipping.isolation.control_flow import (
    ANSWERS,
    BELOW,
    BY_KEYS,
    CHECKING,
    DRAWING,
    LISTING,
    SILENT,
    UNIFORM,
)
from tacit.clipping.isolation.provenance import Provenance
from tacit.clipping.isolation.trace import Step, Unseen, tensors_in
from tacit.clipping.per_example.batch_second import rows_first
from tacit.clipping.per_example.pooling import FASTER
from tacit.errors import UnsupportedModel

__all__ = ["Classifier", "Handler", "name_of", "writes"]

Handler: TypeAlias = Callable[..., Any]
"""An operation that records, with the recorder before the operation's own arguments."""
_NOTHING: AbstractContextManager[None] = nullcontext()
_COPYING = frozenset(
    {Tensor.expand, torch.broadcast_to, Tensor.broadcast_to, Tensor.repeat, torch.tile, Tensor.tile}
    | {torch.repeat_interleave, Tensor.repeat_interleave}
)
"""Operations that may give each row a copy of what no row is in."""


class _Recorder(Protocol):
    """What carries the operations out."""

    rows: int
    sources: dict[int, Tensor]
    handlers: Mapping[Any, Handler]
    batch_second: bool

    @property
    def in_backward(self) -> bool:
        """Whether the backward pass has begun."""

    def owns(self, tensor: Tensor | None) -> bool:
        """Whether it is private."""

    def knows(self, tensor: Tensor) -> bool:
        """Whether an operation made it that was seen, or it was there from the start."""

    def fixed(self, tensor: Tensor) -> bool:
        """Whether it is a constant."""

    def derive(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Carry out what reads no record."""

    def without_rule(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Carry out what has no rule."""

    def read(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out an operation by which Python reads a value."""

    def within(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Take a gradient within the backward pass."""

    def hook(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Put a hook on what is private."""


@final
class Classifier:
    """Chooses the action of each operation in a pass with ``provenance``.

    Attributes:
        reads_values: whether Python reads values of records.
    """

    def __init__(self, provenance: Provenance) -> None:
        self._provenance = provenance
        self.reads_values = False
        self._uniform: dict[int, tuple[Tensor, int]] = {}
        self._random: dict[int, Tensor] = {}  # computed from random numbers and from no record

    def carry_out(
        self,
        recorder: _Recorder,
        step: Step,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Choose how an operation is carried out, and carry it out."""
        tensors = tensors_in(args, kwargs)
        if torch._C._functorch.maybe_current_level() is not None:
            if any(map(recorder.owns, tensors)):
                raise Unseen(f"operation {name_of(func)!r} takes place within torch.func.vmap or grad")
            return func(*args, **kwargs)  # provenance sees what is done inside
        for tensor in tensors if not recorder.in_backward else ():
            if not recorder.knows(tensor) and self._provenance.is_laden(tensor):
                met = self._provenance.why_not_one(tensor)
                raise Unseen(
                    met or "a tensor comes from code that the recorder does not see, such as torch.jit"
                )
        self._watch_silent(func, tensors, args)
        step.action = self._action(recorder, func, tensors, args, kwargs)
        if step.action is not None:
            return step.action(recorder, func, args, kwargs)
        checks = _only_checks(func, args, kwargs)
        with self._provenance.read_on_trace(only_checked=True) if checks else _NOTHING:
            result = FASTER.get(func, func)(*args, **kwargs)
        self._follow_draws(func, tensors, result)
        if func in UNIFORM:
            self._uniform[id(result)] = result, result._version
        elif func in BELOW and self._is_uniform(args[0]) and args[1] in (0, 1):
            self._provenance.own(result, None)  # the same whatever was drawn, as for a rate of nothing
        return result

    def _is_uniform(self, tensor: Any) -> bool:
        held, version = self._uniform.get(id(tensor), (None, 0))
        return held is tensor and held is not None and held._version == version

    def _follow_draws(self, func: Callable[..., Any], tensors: Sequence[Tensor], result: Any) -> None:
        of_draws = any(id(t) in self._random for t in tensors)
        if func in DRAWING or (
            of_draws and all(id(t) in self._random or not self._provenance.is_laden(t) for t in tensors)
        ):
            self._random.update((id(t), t) for t in tensors_in((result,)))

    def _action(
        self,
        recorder: _Recorder,
        func: Callable[..., Any],
        tensors: Sequence[Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Handler | None:
        if func in ANSWERS and any(map(self._provenance.is_laden, tensors)):
            if all(id(t) in self._random for t in tensors):
                raise Unseen("control flow is random")
            self.reads_values = True
            return _answer
        if func is torch.autograd.grad and recorder.in_backward:
            return _grad_within
        if recorder.sources.keys().isdisjoint(map(id, tensors)) or not torch.is_grad_enabled():
            return None
        _check_frozen(recorder, tensors)
        if func is Tensor.register_hook:
            return _register_hook
        if func in _COPYING and all(map(recorder.owns, tensors)):
            return _by_rule
        if all(recorder.owns(t) or recorder.fixed(t) for t in tensors):
            return _derived
        if func not in recorder.handlers or any(t.is_complex() for t in tensors):
            return _without_rule
        if recorder.batch_second and rows_first(recorder, func, _by_place(args, kwargs)[0]) is not None:
            return _rows_second
        return _by_rule

    def _watch_silent(
        self, func: Callable[..., Any], tensors: Sequence[Tensor], args: tuple[Any, ...]
    ) -> None:
        """Tell provenance of what Python or another tensor reads without an operation that it could see."""
        if func in BY_KEYS:  # lists of keys are read out of sight
            keys = args[1] if isinstance(args[1], tuple) else args[1:2]
            self._provenance.lose(tensors_in(key for key in keys if isinstance(key, list)), "a list of keys")
        elif func in SILENT and (func not in LISTING or any(isinstance(arg, (list, tuple)) for arg in args)):
            self._provenance.lose(tensors, f"what {name_of(func)} reads of a tensor")

    def clear(self) -> None:
        """Let go of all tensors."""
        self._random.clear()
        self._uniform.clear()


def _check_frozen(recorder: _Recorder, tensors: Sequence[Tensor]) -> None:
    if any(recorder.owns(t) and not t.requires_grad for t in tensors):
        raise UnsupportedModel(
            "requires_grad of a parameter is switched off while the model or the loss runs. Freeze it "
            "before the session is made; or keep gradients from passing by detach() of activations."
        )


def _answer(recorder: _Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return recorder.read(func, args, kwargs)


def _grad_within(recorder: _Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return recorder.within(func, args, kwargs)


def _register_hook(recorder: _Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return recorder.hook(func, args, kwargs)


def _by_rule(recorder: _Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args, kwargs = _by_place(args, kwargs) if kwargs and func not in _SELECTING else (args, kwargs)
    return recorder.handlers[func](recorder, *args, **kwargs)


def _rows_second(recorder: _Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args, kwargs = _by_place(args, kwargs)
    turned = rows_first(recorder, func, args)
    assert turned is not None
    return recorder.handlers[func](recorder, *turned, **kwargs).transpose(0, 1)


def _derived(recorder: _Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return recorder.derive(func, *args, **kwargs)


def _without_rule(recorder: _Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return recorder.without_rule(func, args, kwargs)


_SELECTING = frozenset({torch.where, Tensor.where})


def _by_place(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with those by place that the rules go by: the first one, and ``other``."""
    kwargs = dict(kwargs)
    if not args and "input" in kwargs:
        args = (kwargs.pop("input"),)
    if len(args) == 1 and "other" in kwargs:
        args = (*args, kwargs.pop("other"))
    return args, kwargs


def _only_checks(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation reads values only to raise an error for some."""
    classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    return func in CHECKING and (func is not torch.nn.functional.one_hot or classes >= 0)


@cache
def name_of(func: Callable[..., Any]) -> str:
    """What an operation is called.

    >>> name_of(torch.add)
    'add'
    """
    return str(getattr(func, "__name__", func))


def writes(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation of this name changes its operands.

    >>> writes("add_", {}), writes("__add__", {})
    (True, False)
    """
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name.startswith("__i") or name == "__setitem__" or kwargs.get("out") is not None
