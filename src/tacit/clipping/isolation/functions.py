"""User-defined ``torch.autograd.Function`` classes with ``forward(ctx, ...)``, run under vmap.

Torch refuses such a function within ``vmap``, as it cannot see what ``forward`` leaves in ``ctx``. Here
``forward`` and ``backward`` each run in a vmap, and so see one record. Between these two calls, the content
of ``ctx`` is kept for all records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import (  # type: ignore[attr-defined]
    _set_vmap_fallback_enabled,
    is_batchedtensor,
    maybe_current_level,
)
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.func import vmap
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tacit.clipping.isolation.reasons import OF_NO_RECORD, OF_WEIGHT, NotCarried
from tacit.clipping.isolation.shortcuts import without_shortcuts
from tacit.clipping.isolation.under_vmap import Pass
from tacit.errors import UnsupportedModel

_PASS: ContextVar[Pass | None] = ContextVar("_PASS", default=None)
_APPLY: Any = vars(torch.autograd.Function)["apply"]


@contextmanager
def functions_carried(of: Pass) -> Iterator[None]:
    """Run user-defined functions as part of the pass ``of``, without affecting other threads."""
    token = _PASS.set(of)
    torch.autograd.Function.apply = classmethod(_apply)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.autograd.Function.apply = _APPLY  # type: ignore[method-assign]
        _PASS.reset(token)


@contextmanager
def isolated(of: Pass) -> Iterator[None]:
    """Run the pass ``of``: user-defined functions as part of it, and no read of a record's value.

    Torch's fallback for operations without a batching rule, a loop over records, is off: sizes of its results
    may depend on values.
    """
    _set_vmap_fallback_enabled(False)
    try:
        with without_shortcuts(), functions_carried(of):
            yield
    finally:
        _set_vmap_fallback_enabled(True)


def _apply(function: Any, *args: Any, **kwargs: Any) -> Any:
    of, own = _PASS.get(), torch.autograd.Function.setup_context
    by_torch = of is None or kwargs or function.setup_context is not own or maybe_current_level() != of.level
    tensors = [a for a in args if isinstance(a, Tensor)]
    batched = any(map(is_batchedtensor, tensors))
    if of is not None and not batched and any(map(of.owns, tensors)):
        raise UnsupportedModel(OF_WEIGHT)
    if of is None or by_torch:
        return _APPLY.__func__(function, *args, **kwargs)
    if not batched:
        raise NotCarried(OF_NO_RECORD.format(function.__name__))
    return _carried(of, function, tree_map(of.lent, args))


class _Context:
    """The ``ctx`` of a function: values that ``forward`` leaves for ``backward``."""

    saved_tensors: tuple[Tensor | None, ...] = ()

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        raise NotCarried("a torch.autograd.Function changes its input in place")

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        raise NotCarried("a torch.autograd.Function has an output without a gradient")

    def set_materialize_grads(self, value: bool) -> None:
        """Do nothing: gradients are always materialized."""


def _carried(of: Pass, function: Any, args: Sequence[Any]) -> Any:
    places = [i for i, arg in enumerate(args) if isinstance(arg, Tensor) and of.is_batched(arg)]
    with torch._C.DisableTorchFunction(), temporarily_pop_interpreter_stack():
        inputs = [of.physical(args[i]) for i in places]
    needs = dict(zip(places, (t.requires_grad for t in inputs), strict=True))
    ctx = _Context(tuple(needs.get(i, False) for i in range(len(args))))
    with torch.no_grad():
        output = function.forward(ctx, *args)
    outputs, form = tree_flatten(output)
    if not all(isinstance(t, Tensor) and of.is_batched(t) for t in outputs):
        raise NotCarried("a torch.autograd.Function has an output that is not a tensor of a record")
    state, form_of_state = tree_flatten(vars(ctx))
    flags = [isinstance(value, Tensor) and is_batchedtensor(value) for value in state]
    with torch._C.DisableTorchFunction(), temporarily_pop_interpreter_stack():
        batched_state = [
            of.physical(value).detach() for value, is_batched in zip(state, flags, strict=True) if is_batched
        ]
        values = [of.physical(t).detach() for t in outputs]

    def backward(gradients: Sequence[Tensor]) -> tuple[Tensor, ...]:
        def one(*tensors: Tensor) -> tuple[Tensor, ...]:
            of.mark(tensors)
            own = iter(tensors[len(gradients) :])
            again = _Context(())
            vars(again).update(
                tree_unflatten(
                    [
                        next(own) if is_batched else value
                        for value, is_batched in zip(state, flags, strict=True)
                    ],
                    form_of_state,
                )
            )
            is_active = of in _get_current_function_mode_stack()  # type: ignore[no-untyped-call]  # while a checkpoint is recomputed
            with nullcontext() if is_active else of, torch.no_grad():
                grads = function.backward(again, *tensors[: len(gradients)])
                grads = grads if isinstance(grads, tuple) else (grads,)
                return tuple(t.new_zeros(t.shape[1:]) if grads[i] is None else grads[i] for i, t in pairs)

        with temporarily_pop_interpreter_stack() if maybe_current_level() else nullcontext():
            result: tuple[Tensor, ...] = vmap(one, randomness="different")(*gradients, *batched_state)
            return result

    pairs = list(zip(places, inputs, strict=True))
    with torch._C.DisableTorchFunction(), temporarily_pop_interpreter_stack():
        carried: Any = _Carried.apply(values, backward, *inputs)  # type: ignore[no-untyped-call]
        output = [of.batched(t) for t in carried]
    return of.mark(tree_unflatten(output, form))


class _Carried(torch.autograd.Function):
    """An operation that returns given outputs, and computes gradients with a given function."""

    @staticmethod
    def forward(
        ctx: Any, values: Sequence[Tensor], backward: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        del inputs
        ctx.backward_of_all = backward
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.backward_of_all(gradients))
