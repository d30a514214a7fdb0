"""A pass of records under ``torch.func.vmap``, which isolates each record by construction.

Letters: n records; K views; B = n K rows.
"""

# The loss is called once and sees one record. The record's rows (K, ...) are *batched* tensors; the physical
# tensors (n, K, ...) behind them hold all records. No value of a batched tensor reaches Python, another
# thread, NumPy or a hook. So one record's contribution depends on no other.
#
# A :class:`Pass` is a scoped ``TorchFunctionMode`` around that call. It intercepts each operation and tracks
# *sources*: parameters, and tensors computed from parameters and constants alone, such as ``W.t()`` or a
# weight by weight norm. An operation on a source and a record reads the source in one of two ways:
#
# * *By rule* (``RULES``): linear maps, convolutions, embeddings and other layers with large weights. The rule
#   works on physical tensors, and keeps those that norms and sums need, such as inputs and output gradients.
# * *Lent*: as one copy for each record, which takes no memory. Autograd then computes the gradient of each
#   record, (n, \\*shape), for any operation: biases, scales, tied and shared weights need no rule.
#
# A tensor without records that the model made in this pass, such as ``torch.zeros(3)``, is one tensor for all
# records until an operation draws into it in place, or writes a record into it. Then each record gets a copy.

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import wraps
from typing import Any, final

import torch
from torch import Tensor, nn
from torch._C._functorch import (  # type: ignore[attr-defined]  # the internals of torch.func
    _add_batch_dim,
    _remove_batch_dim,
    _set_vmap_fallback_enabled,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_current_level,
    maybe_get_bdim,
    maybe_get_level,
)
from torch._functorch.autograd_function import custom_function_call, has_overridden_vmap_rule
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch._functorch.vmap import (  # type: ignore[attr-defined]
    lazy_load_decompositions,
    vmap_increment_nesting,
)
from torch._ops import OpOverload, OpOverloadPacket
from torch.autograd.graph import saved_tensors_hooks
from torch.func import vmap
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.checkpoint import _StopRecomputationError

from tacit.clipping.isolation.model_checks import version_of
from tacit.clipping.isolation.randomness import ATTENTION, COMPOSED, DRAWS, DROPOUTS, SLOPES, in_place
from tacit.clipping.isolation.reasons import (
    CHANGED,
    FROM_OUTSIDE,
    KEPT_TENSOR,
    MODE,
    OF_NO_RECORD,
    OF_WEIGHT,
    OWN_SEED,
    SHARED,
    STALE,
    SUBCLASS,
    UNSEEN,
    UNSEEN_OPERATION,
    NoRule,
    NotCarried,
    read_refused,
)
from tacit.clipping.memory import MemoryBudget
from tacit.errors import UnsupportedModel

# Functions of libraries that read values of a record only to take a shortcut or to warn.
#
# They skip this while a model is traced, so within a pass they are told that it is. A model that reads values
# otherwise is refused.


SHORTCUTS = {
    # skips a mask if no token is padded
    "transformers.masking_utils": "is_tracing",
    # warns of padded tokens without a mask
    "transformers.modeling_utils": "is_tracing",
}
"""By module, a function that returns True to skip the reads."""


_NOTHING: AbstractContextManager[None] = nullcontext()
_NO_DISPATCH = Tensor.__torch_dispatch__
_READS = frozenset(
    {Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__complex__, Tensor.__index__, Tensor.item}
    | {Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__repr__, Tensor.__format__}
    | {Tensor.__reduce_ex__, Tensor.__deepcopy__, torch.equal, Tensor.equal, torch.is_nonzero}
    | {torch.allclose, Tensor.allclose, Tensor.is_nonzero, Tensor.__contains__}
)
"""Functions by which Python reads values of a record."""
_DRAWS = DRAWS | DROPOUTS | SLOPES | ATTENTION | COMPOSED.keys()
"""Operations that may draw: each record has its own result, even if no argument contains a record."""


@final
class Pass(TorchFunctionMode):
    """A pass of n records, with the recorded uses of each source.

    Args:
        parameters: the parameters that are trained privately.
        n: the number of records.
        views: K, the number of rows per record.
        make_use: makes a use from the gradients of all records, (n, *shape).
        rules: a ``rule(pass, *args, **kwargs)`` for each operation that has one. It raises ``NoRule`` for
            arguments that it does not support.
        budget: limits on memory.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        n: int,
        views: int,
        rules: Mapping[Any, Callable[..., Any]],
        make_use: Callable[[Tensor], Any],
        budget: MemoryBudget,
    ) -> None:
        super().__init__()
        self.n, self.views, self.rows, self.budget = n, views, n * views, budget
        self.sources: dict[int, Tensor] = {id(p): p for p in parameters}
        self.uses: dict[int, list[Any]] = {}
        self.anchor = torch.empty(0, requires_grad=True)
        """An input of every rule, so that the rule's output requires a gradient; it gets none itself."""
        self.level: int | None = None
        """The vmap level of the records, once ``vmap`` has begun."""
        self.seed = torch.initial_seed()
        """The generator's seed when the pass began."""
        self.shared = self.seed
        """The seed of the numbers that all records share, the same in all passes of a step."""
        self.coins: torch.Generator | None = None
        """The generator of these numbers, once there are any."""
        self.failed: BaseException | None = None
        """The first error raised, which the model may have caught."""
        self.checkpointed = False
        self.cast: tuple[Tensor, int | None, Tensor] | None = None
        """The last tensor that a layer cast to a narrower type: the tensor, its version and the copy."""
        self.waiting: dict[Any, list[Any]] = {}
        """Uses that a rule defers, to be computed together with similar ones."""
        self._rules, self._make_use, self._in_backward = rules, make_use, False
        self._modes: int = torch._C._len_torch_dispatch_stack()
        self._lent: dict[int, tuple[Tensor, Tensor]] = {}
        self._made: set[int] = set()
        """The ids of tensors without records that operations of this pass made."""
        self._read: dict[int, int | None] = {}
        """The versions of sources at the time when they were combined with records."""

    def returns(self, losses: object) -> None:
        """Check that losses come from operations seen in this pass; raise any error that the model caught."""
        if self.failed is not None:
            raise self.failed
        if torch.initial_seed() != self.seed:
            raise UnsupportedModel(OWN_SEED)
        self._refuse_modes()
        if isinstance(losses, Tensor):
            self._status(losses)

    def _refuse_modes(self) -> None:
        """Refuse a dispatch mode that the loss entered: below vmap, it sees the tensors of all records."""
        if torch._C._len_torch_dispatch_stack() != self._modes:
            mode = _get_current_dispatch_mode_stack()[-1]
            raise UnsupportedModel(MODE.format(type(mode).__name__))

    def of_each(
        self, one: Callable[..., Tensor], records: Iterable[Tensor], randomness: str = "different"
    ) -> Tensor:
        """Return ``vmap(one, randomness=randomness)(*records)``, without 0.1 ms for nested arguments."""
        lazy_load_decompositions()
        with vmap_increment_nesting(self.n, randomness) as self.level:
            rows = [self.mark(self.batched(of_all)) for of_all in records]
            result: Tensor = _remove_batch_dim(one(*rows), self.level, self.n, 0)
            return result

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        try:
            if name == "__set__" or (name == "__get__" and getattr(func, "__self__", None) not in _VIEWS):
                return self._property(func, args)
            result = self.mark(self._carry_out(func, args, kwargs))
            if _is_plain(result) and not any(result is each for each in (*args, *kwargs.values())):
                self._made.add(id(result))
            return result
        except _StopRecomputationError:
            raise  # a checkpoint has all that it needs
        except BaseException as error:
            self.failed = self.failed or error
            raise

    def _property(self, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Read or write a property; refuse tensors that an earlier pass left."""
        value = func(*args)
        for tensor in (*args, value):
            if _is_wrapped(tensor) and getattr(tensor, "_tacit_pass", self) is not self:
                raise UnsupportedModel(KEPT_TENSOR)
        of = getattr(func, "__self__", None)
        if of is Tensor.requires_grad and self.is_batched(args[0]):
            return get_unwrapped(args[0]).requires_grad  # vmap does not report it, and hooks depend on it
        if of in (Tensor.grad_fn, Tensor.is_leaf) and self.is_batched(args[0]):
            raise NotCarried("Python reads the autograd graph of tensors computed from records")
        if of is Tensor.grad_fn and value is not None and self.owns(args[0]):
            raise UnsupportedModel(OF_WEIGHT)  # a hook on a node of the graph could follow
        return value

    def _carry_out(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation: plainly, from sources alone, by a rule, or with lent sources."""
        self._refuse_modes()
        sources, batched, untrained = self._contents(args, kwargs)
        formatted = batched and kwargs.pop("memory_format", None) is not None  # has no effect on values
        if formatted and func is Tensor.to and len(args) == 1 and not kwargs:
            return args[0]
        if batched and func is Tensor.requires_grad_ and args[1:] != (False,) and not kwargs:
            return args[0]  # hooks on embeddings call this, for checkpoints; using such a gradient fails
        if kwargs.get("generator") is not None or torch.initial_seed() != self.seed:
            raise UnsupportedModel(OWN_SEED)
        if not batched and func not in _DRAWS:  # each record draws for F.dropout(W)
            with torch.no_grad() if untrained and not sources else _NOTHING:
                value = self.derive(func, args, kwargs) if sources else func(*args, **kwargs)
            if not sources or not any(map(_is_wrapped, tree_leaves(value))):
                return value
            args, kwargs = tree_map(self.lent, (args, kwargs))
            return func(*args, **kwargs)  # func drew for each record
        if func in _READS:
            raise read_refused(func)
        if func is Tensor.register_hook and self.is_batched(args[0]):
            return self._hook(*args, **kwargs)
        self._note_read(sources)
        _refuse_what_sees_all(func, args)
        self._check_hooks()
        if maybe_current_level() == self.level:
            self._separate(func, args, kwargs)
            if (rule := self._rules.get(func)) is not None:
                with suppress(NoRule):
                    return rule(self, *args, **kwargs)
        if sources:
            args, kwargs = tree_map(self.lent, (args, kwargs))
        return func(*args, **kwargs)

    def _separate(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Turn a tensor of no record into one copy for each record, if ``func`` writes into it in place."""
        if not (args and _is_plain(args[0]) and in_place(func, args, kwargs)):
            return
        tensor = args[0]
        storage = tensor.untyped_storage()
        owners = torch._C._storage_Use_Count(storage._cdata)  # 2: the tensor, and this call
        if owners > 2 or tensor._use_count() > 1 or not storage.resizable():  # resizable: NumPy has no view
            raise NotCarried(SHARED.format(func.__name__))
        if id(tensor) not in self._made:
            raise NotCarried(FROM_OUTSIDE.format(func.__name__))

        with torch.enable_grad():
            of_all = self.lent(tensor) if self.owns(tensor) else self.batched(self.physical(tensor.detach()))
            copies = of_all.clone(memory_format=torch.contiguous_format)
        # the model's own object now has a copy for each record
        torch.utils.swap_tensors(tensor, copies)  # type: ignore[no-untyped-call]
        self.mark(tensor)

        if self.owns(tensor):  # the other object is the source now
            self.sources[id(copies)] = copies
            del self.sources[id(tensor)]
            self._lent[id(copies)] = self._lent.pop(id(tensor))
            self._read[id(copies)] = self._read.pop(id(tensor))

    def _hook(self, tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Any:
        """Call a hook on the gradient of each record alone."""
        at = maybe_get_bdim(tensor)

        def one(g: Tensor) -> Tensor:
            with self:
                replacement = hook(self.mark(g))
                return g if replacement is None else replacement

        def whole(g: Tensor) -> Tensor:
            with temporarily_pop_interpreter_stack() if maybe_current_level() else _NOTHING:
                result: Tensor = vmap(one, at, at, randomness="different")(g)
                return result

        return get_unwrapped(tensor).register_hook(whole)  # type: ignore[no-untyped-call]

    def _check_hooks(self) -> None:
        """Refuse hooks on tensors that autograd saves, as they would see all records; allow checkpoints."""
        hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
        if hooks is None:
            return
        if getattr(hooks[0], "__module__", "") != "torch.utils.checkpoint":
            raise NotCarried("hooks on saved tensors (torch.autograd.graph.saved_tensors_hooks)")
        self.checkpointed = True

    def _contents(self, args: Any, kwargs: dict[str, Any]) -> tuple[list[Tensor], bool, bool]:
        """Return the arguments' sources, and whether these include a batched tensor, and an untrained leaf.

        Tensors of other passes are refused.
        """
        sources: list[Tensor] = []
        batched = untrained = False
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, Tensor):
                tensors = [value]
            elif isinstance(value, list | tuple | dict):
                tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
            else:
                continue
            for tensor in tensors:
                is_source, is_batched = self._status(tensor)
                if is_source:
                    sources.append(tensor)
                batched |= is_batched
                untrained |= not (is_source or is_batched) and tensor.requires_grad
        return sources, batched, untrained

    def _status(self, tensor: Tensor) -> tuple[bool, bool]:
        """Return whether a tensor is a source, and whether it is batched."""
        kind = type(tensor)
        if kind is not Tensor and kind is not nn.Parameter and kind.__torch_dispatch__ is not _NO_DISPATCH:
            raise UnsupportedModel(SUBCLASS.format(kind.__name__))
        if is_functorch_wrapped_tensor(tensor):
            of = getattr(tensor, "_tacit_pass", None)
            if of is None:
                raise NotCarried(UNSEEN_OPERATION)
            if of is not self:
                raise UnsupportedModel(KEPT_TENSOR)
            return False, True
        if tensor.requires_grad and id(tensor) not in self.sources and tensor.grad_fn is not None:
            raise UnsupportedModel(STALE)
        return id(tensor) in self.sources, False

    def mark(self, result: Any) -> Any:
        """Mark batched tensors as tensors of this pass, also in containers and iterators."""
        if isinstance(result, Tensor):
            if is_functorch_wrapped_tensor(result):
                result._tacit_pass = self  # type: ignore[attr-defined]
        elif isinstance(result, list | tuple | dict):
            for tensor in tree_leaves(result):
                if isinstance(tensor, Tensor) and is_functorch_wrapped_tensor(tensor):
                    tensor._tacit_pass = self  # type: ignore[attr-defined]
        elif isinstance(result, Iterator):
            return iter([self.mark(each) for each in result])
        return result

    def _note_read(self, sources: Iterable[Tensor]) -> None:
        """Record the versions of sources combined with records: they must not change before ``backward``."""
        for source in sources:
            version = version_of(source)
            if self._read.setdefault(id(source), version) != version:
                raise NotCarried(CHANGED)

    def owns(self, tensor: Tensor | None) -> bool:
        return id(tensor) in self.sources

    def derive(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation on parameters and constants alone, and make its results sources."""
        if func is Tensor.register_hook:
            if args[0].is_leaf:
                raise NotCarried("the model puts a hook on a parameter")
            raise UnsupportedModel(OF_WEIGHT)
        with saved_tensors_hooks(_as_it_is, _as_it_is):  # this graph outlives a surrounding checkpoint
            result = func(*args, **kwargs)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                self.sources[id(tensor)] = tensor
        return result

    def lent(self, value: Any) -> Any:
        """Return a source as one copy for each record; return other values as they are."""
        if not isinstance(value, Tensor) or not self.owns(value):
            return value
        if id(value) not in self._lent:
            with temporarily_pop_interpreter_stack():
                leaf = value.detach().expand(self.n, *value.shape).requires_grad_()
            self._lent[id(value)] = leaf, self.mark(self.batched(leaf))
        return self._lent[id(value)][1]

    def physical(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """Return the tensor of all records, with n as dimension ``dim``; expand a constant to all records."""
        if not is_batchedtensor(tensor):
            return tensor.expand(self.n, *tensor.shape).movedim(0, dim)
        whole = get_unwrapped(tensor)
        at = maybe_get_bdim(tensor)
        return whole if at == dim else whole.movedim(at, dim)

    def batched(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """Return a physical tensor, with n as dimension ``dim``, as a batched one."""
        assert self.level is not None
        result: Tensor = _add_batch_dim(tensor, dim, self.level)
        return result

    def is_batched(self, tensor: Tensor) -> bool:
        """Return whether it is batched at the level of the pass, with no transform in between."""
        level = self.level
        return is_batchedtensor(tensor) and maybe_get_level(tensor) == level == maybe_current_level()

    def backward(self, losses: Tensor) -> None:
        """Run the backward pass of the sum of (n,) losses; rules and lent sources record their uses."""
        if not self._in_backward and losses.requires_grad:
            self._run_backward(losses)

    def backward_within(self, losses: Tensor) -> None:
        """Run the backward pass of a batched loss (1,) within vmap, where checkpoints can be recomputed."""
        whole = self.physical(losses)
        if whole.requires_grad:
            self._run_backward(whole, self)

    def _run_backward(self, losses: Tensor, within: AbstractContextManager[Any] = _NOTHING) -> None:
        """Call autograd's engine directly, as ``torch.autograd.grad`` would leave the mode ``within``."""
        self._in_backward, self.cast = True, None
        for key, version in self._read.items():
            if not self.sources[key].is_leaf and version_of(self.sources[key]) != version:
                raise NotCarried(CHANGED)
        leaves = {key: leaf for key, (leaf, _) in self._lent.items()}
        own = [s for s in self.sources.values() if s.is_leaf]
        inputs = (*own, *leaves.values(), self.anchor)
        ones = torch.ones_like(losses)
        with within:
            gradients: tuple[Tensor | None, ...] = torch.autograd.Variable._execution_engine.run_backward(
                (losses,), (ones,), False, False, inputs, True, False
            )
        if any(g is not None for g in gradients[: len(own)]):
            raise UnsupportedModel(UNSEEN)
        for key, g in zip(leaves, gradients[len(own) : -1], strict=True):
            if g is not None:
                self.uses.setdefault(key, []).append(self._make_use(g))
        self._lent.clear()

    def record(self, uses: Iterable[tuple[Tensor, Any]]) -> None:
        """Keep the uses that a rule computed in the backward pass."""
        if not self._in_backward:
            raise NotCarried("a gradient is taken within the forward pass")
        for source, use in uses:
            self.uses.setdefault(id(source), []).append(use)

    def clear(self) -> None:
        """Free all tensors and break reference cycles: activations hold the graph, which holds this pass."""
        self.uses.clear()
        self.waiting.clear()
        self.sources.clear()
        self._lent.clear()


_OF_TORCH = ("aten", "prims")


def _refuse_what_sees_all(func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Refuse functions that would see all records at once, such as user-defined vmap rules."""
    if func is custom_function_call and has_overridden_vmap_rule(args[0]):
        raise NotCarried(f"{args[0].__name__}, a torch.autograd.Function, has a vmap rule of its own")
    if isinstance(func, OpOverload | OpOverloadPacket) and str(func).partition(".")[0] not in _OF_TORCH:
        raise NotCarried(f"the operator {func} is not one of torch's own")


def _is_wrapped(value: Any) -> bool:
    return isinstance(value, Tensor) and is_functorch_wrapped_tensor(value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and not is_functorch_wrapped_tensor(value)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


_VIEWS: tuple[Any, ...] = (Tensor.T, Tensor.mT, Tensor.H, Tensor.mH, Tensor.real, Tensor.imag)
"""Properties that are views of the same values."""


# User-defined ``torch.autograd.Function`` classes with ``forward(ctx, ...)``, run under vmap.
#
# Torch refuses such a function within ``vmap``, as it cannot see what ``forward`` leaves in ``ctx``. Here
# ``forward`` and ``backward`` each run in a vmap, and so see one record. Between these two calls, the content
# of ``ctx`` is kept for all records.


_PASS: ContextVar[Pass | None] = ContextVar("_PASS", default=None)
_APPLY: Any = vars(torch.autograd.Function)["apply"]


@contextmanager
def isolated(of: Pass) -> Iterator[None]:
    """Run the pass ``of``: user-defined functions as part of it, and no read of a record's value.

    Other threads are not affected.
    """
    for name, function in SHORTCUTS.items():
        module = sys.modules.get(name)
        if module is not None and not hasattr(getattr(module, function), "of_tacit"):
            setattr(module, function, _true_in_passes(getattr(module, function)))

    token = _PASS.set(of)
    torch.autograd.Function.apply = classmethod(_apply)  # type: ignore[assignment,method-assign]
    # torch's fallback for operations without a batching rule is a loop over records, in which the sizes of
    # results may depend on values
    _set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        _set_vmap_fallback_enabled(True)
        torch.autograd.Function.apply = _APPLY  # type: ignore[method-assign]
        _PASS.reset(token)


def _true_in_passes(function: Callable[..., bool]) -> Callable[..., bool]:
    """Return ``function``, whose answer is True within a pass of the calling thread."""

    @wraps(function)
    def answer(*args: Any, **kwargs: Any) -> bool:
        return _PASS.get() is not None or function(*args, **kwargs)

    answer.of_tacit = True  # type: ignore[attr-defined]
    return answer


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
