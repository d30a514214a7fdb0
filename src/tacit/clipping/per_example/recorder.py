"""The tape: sees every operation that reads a private parameter, and records how it is used.

Letters: B = n K rows of a batch, n records of K views; T positions of a record.

A tape is a scoped ``TorchFunctionMode``; the model is not touched.  Operations fall in three classes:

* *Known* (``handlers``): linear, convolution, and so on.  The output is computed from detached parameters,
  so autograd never forms their gradients, and passes through ``hooks.Tap``, which
  hands the output's gradient to the rule of the layer family in the backward pass.
* *Derived*: an operation that reads nothing but private parameters and constants of the model, such as
  ``W.t()``, weight normalisation or a penalty.  Its output is a source of its own, which known operations
  may read; per-record gradients are pulled back through it one by one.
* *Others* are carried out on the batch and, for their gradients, once more on the rows of each record
  (``vmap_fallback.py``).  If that cannot be, :class:`Unseen` is raised, and the records go
  one by one, or to the reference engine.

The rows of an operation's input are found by their number: B of them, or B T if positions were flattened
into the first dimension.  That they are in the order of the batch is proven by the engine on a few records,
and ``order.py`` watches what could make it untrue for others.  In a batch of one record
all rows are its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import _StopRecomputationError

from tacit.clipping.isolation.control_flow import Answers
from tacit.clipping.isolation.provenance import Flow
from tacit.clipping.isolation.trace import Path, tensors_in
from tacit.clipping.memory import FAST, MemoryBudget
from tacit.clipping.per_example.batch_second import rows_first
from tacit.clipping.per_example.hooks import Backward, Forward, Function, Tap, Uses
from tacit.clipping.per_example.order import (
    ANSWERS,
    BY_KEYS,
    CONTENT,
    LISTING,
    MOVED,
    REFUSING,
    SILENT,
    WATCHED,
    follows_content,
    moves_second,
)
from tacit.clipping.per_example.pooling import FASTER
from tacit.clipping.per_example.recordless import Recordless, name_of, writes
from tacit.clipping.per_example.unseen import Unseen
from tacit.clipping.per_example.use import Use
from tacit.errors import TacitError, UnsupportedModel

__all__ = ["ANSWERED", "Handler", "Tape", "Unseen"]

Handler: TypeAlias = Callable[..., Any]
"""An operation that records, with the tape before the operation's own arguments."""
ANSWERED = "answered "
"""How a site begins that is no operation on parameters, but what Python was told of a tensor."""


_NOTHING: AbstractContextManager[None] = nullcontext()
_COPYING = frozenset(
    {Tensor.expand, torch.broadcast_to, Tensor.broadcast_to, Tensor.repeat, torch.tile, Tensor.tile}
    | {torch.repeat_interleave, Tensor.repeat_interleave}
)
"""Operations that may give each row a copy of what no row is in."""


@dataclass
class _State:
    """What the views of one tape share: the pass it is in, and why rows may not be where they were."""

    in_backward: bool = False
    disorder: str | None = None
    exact: bool = False
    hooked: bool = False
    unknown: bool = False
    dissent: Tensor | None = None
    within: bool = False
    in_16_bits: bool = False
    failure: Exception | None = None


class Tape(TorchFunctionMode):
    """Records the uses of ``parameters`` in operations on batches of ``rows`` = n ``views`` rows."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        constants: Iterable[Tensor],
        handlers: Mapping[Any, Handler],
        *,
        rows: int,
        views: int,
        budget: MemoryBudget = FAST,
        other: Handler | None = None,
        time_first: bool = False,
        exact: bool = False,
        flow: Flow | None = None,
    ) -> None:
        super().__init__()
        self.flow = flow
        self.rows, self.views, self.budget = rows, views, budget
        self.sources: dict[int, Tensor] = {id(p): p for p in parameters}
        self.uses: dict[int, list[Use]] = {}
        self.anchor = torch.empty(0, requires_grad=True)
        """Makes a tapped output require a gradient, and gets none."""
        self.sites: list[str] = []
        self._state = _State(exact=exact)
        self._flattened = False
        self._alone = rows == views  # all rows are one record's: their order says nothing
        self._recordless = Recordless(constants, 0 if self._alone else rows, self._is_source)
        self._answers = Answers(rows // views, self._by_row)
        self._path = Path(rows, chain(self.sources.values(), self._recordless.held))
        self._mixed: set[int] = set()  # derived from more than tables
        self._handlers, self._other, self._time_first = handlers, other, time_first

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        tensors = tensors_in(args, kwargs)
        self._path.add(func, tensors, args, kwargs)
        try:
            result = self._seen(func, tensors, args, kwargs)
        except _StopRecomputationError:
            raise  # a checkpoint has all that it wants
        except Exception as error:
            self._state.failure = self._state.failure or error
            raise
        if func is Tensor.__iter__:
            result = iter(rows := list(result))
            self._path.made(rows)
        else:
            self._path.made((result,) if isinstance(result, Tensor) else tensors_in((result,)))
        return result

    def give(self, batch: Iterable[Tensor]) -> None:
        """Tell it which tensors are the batch; a loss may have the same among what it keeps."""
        batch = list(batch)
        self._recordless.has_records(batch)
        self._path.give(batch)

    def _seen(
        self, func: Callable[..., Any], tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if kwargs and (func in self._handlers or func in WATCHED):
            args, kwargs = _by_place(func, args, kwargs)
            tensors = tensors_in(args, kwargs)
        if func in CONTENT:
            self._look_at_content(func, tensors, args, kwargs)
        if (func in WATCHED or func in ANSWERS) and not self._alone:
            self._watch(func, tensors, args, kwargs)
            if func in ANSWERS and not all(map(self._recordless.is_recordless, tensors)):
                return self._answer(func, args, kwargs)
        return self._carried_out(func, tensors, args, kwargs)

    def _carried_out(
        self, func: Callable[..., Any], tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Carry out an operation by what it reads."""
        if func is torch.autograd.grad and self._state.in_backward:
            return self._grad_within(args, kwargs)
        if self.sources.keys().isdisjoint(map(id, tensors)) or not torch.is_grad_enabled():
            return self._without_parameters(func, tensors, args, kwargs)
        self._check_operands(func, tensors)
        if func in _COPYING and all(map(self.owns, tensors)):
            return self._handlers[func](self, *args, **kwargs)
        if all(self.owns(t) or self.fixed(t) for t in tensors):
            return self.derive(func, *args, **kwargs)
        handler = None if any(t.is_complex() for t in tensors) else self._handlers.get(func)
        if handler is not None:
            if self._time_first and (turned := rows_first(self, func, args)) is not None:
                self.sites.append("rows second")
                return handler(self, *turned, **kwargs).transpose(0, 1)
            return handler(self, *args, **kwargs)
        return self.without_rule(func, args, kwargs)

    def without_rule(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Carry out an operation on rows and parameters once more for each record, if that can be."""
        if self._other is None or writes(name_of(func), kwargs):
            raise Unseen(f"operation {name_of(func)!r} has no per-example rule")
        return self._other(self, func, name_of(func), args, kwargs)

    def _without_parameters(
        self, func: Callable[..., Any], tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with self._told() if func in REFUSING and not follows_content(func, args, kwargs) else _NOTHING:
            result = FASTER.get(func, func)(*args, **kwargs)
        if self._recordless.is_certain(func, args):
            self._recordless.hold(result, constant=False)
            if self.flow is not None:
                self.flow.own(result, None)
        self._recordless.follow(func, tensors, kwargs, result)
        if not self._alone:
            with torch._C.DisableTorchFunction(), _NOTHING if self.flow is None else self.flow.paused():
                self._answers.note(func, args, kwargs, result)
        return result

    def _look_at_content(
        self,
        func: Callable[..., Any],
        tensors: Sequence[Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        if not self._state.exact and follows_content(func, args, kwargs):
            self._state.exact = not all(map(self._recordless.is_recordless, tensors))
        if self.flow is None:
            return
        if func in BY_KEYS:  # lists of keys are read out of sight
            keys = args[1] if isinstance(args[1], tuple) else args[1:2]
            self.flow.lose(tensors_in(key for key in keys if isinstance(key, list)), "a list of keys")
        elif func in SILENT and (func not in LISTING or any(isinstance(arg, (list, tuple)) for arg in args)):
            self.flow.lose(tensors, f"what {name_of(func)} tells of a tensor")

    def _check_operands(self, func: Callable[..., Any], tensors: Sequence[Tensor]) -> None:
        if func is Tensor.register_hook:
            if tensors[0].is_leaf:
                raise Unseen("the model puts a hook on a parameter")
            self._state.hooked = True
        if any(self.owns(t) and not t.requires_grad for t in tensors):
            raise UnsupportedModel(
                "requires_grad of a parameter is switched off while the model or the loss runs. Freeze it "
                "before the session is made; or keep gradients from passing by detach() of activations."
            )

    def _grad_within(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """``torch.autograd.grad`` in the backward pass: what it passes through is not of the losses."""
        self._state.within = True
        try:
            return torch.autograd.grad(*args, **kwargs)
        finally:
            self._state.within = False

    @property
    def hooked(self) -> bool:
        """Whether a hook is on what is computed from parameters, which may do something else each time."""
        return self._state.hooked

    @property
    def in_16_bits(self) -> bool:
        """Whether some gradients came in 16 bits, which round by four thousandths."""
        return self._state.in_16_bits

    def raise_caught(self) -> None:
        """Raise what was raised, if the model went on all the same.

        That an operation fails, as for a matrix without an inverse, may be for one record, and tells of all.
        """
        if isinstance(self._state.failure, Unseen | TacitError):
            raise self._state.failure
        if self._state.failure is not None and not self._alone:
            self._state.unknown = True

    @property
    def follows_batch(self) -> bool:
        """Whether Python was told what only the whole batch says."""
        return self._state.unknown

    @property
    def dissenting(self) -> list[int]:
        """Numbers of records that alone would have told Python something else."""
        dissent = self._state.dissent
        return [] if dissent is None else dissent.nonzero().flatten().tolist()

    @property
    def path(self) -> int:
        """All operations of both passes and what they are told by Python, as one number of this process."""
        return hash(self._path)

    @property
    def in_order(self) -> bool:
        """Whether nothing was seen by which rows may be elsewhere."""
        return self._state.disorder is None

    @property
    def exact(self) -> int:
        """Bytes of gradients that are formed at once for norms that must be those of formed gradients; or 0.

        Norms that are rounded up, for want of these, are larger.  If lengths, or which operations there are,
        follow what is in the records, one record can be what decides between the two for all others.
        """
        return self.budget.chunk_bytes if self._state.exact else 0

    def fixed(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is a constant of the model, or a number, such that no record's row is in it."""
        return not tensor.requires_grad and (self._recordless.is_constant(tensor) or tensor.dim() == 0)

    def owns(self, tensor: Tensor | None) -> bool:
        """Whether ``tensor`` is a private parameter or derived from private parameters alone."""
        return id(tensor) in self.sources

    @overload
    def plain(self, tensor: Tensor) -> Tensor: ...
    @overload
    def plain(self, tensor: Tensor | None) -> Tensor | None: ...
    def plain(self, tensor: Tensor | None) -> Tensor | None:
        """Return the tensor's value if it is private: what autograd must not differentiate by itself."""
        return tensor.detach() if tensor is not None and self.owns(tensor) else tensor

    def derive(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run ``func``, which reads no record, and make what it returns sources of their own."""
        self._check_free(name_of(func), tensors_in(args, kwargs))
        versions = {id(t): t._version for t in tensors_in(args, kwargs)}
        # Not as a checkpoint around would have it: gradients are pulled back through the result later, out of
        # the tape, where the model would be computed anew as it is without one.
        with saved_tensors_hooks(_as_it_is, _as_it_is):
            result = func(*args, **kwargs)
        if any(t._version != versions[id(t)] for t in tensors_in(args, kwargs)):
            raise Unseen(f"operation {name_of(func)!r} changes a parameter in place")
        pure = all(map(self._recordless.is_table, tensors_in(args, kwargs)))
        if pure:
            self._recordless.hold(result)
        for tensor in tensors_in((result,)):
            if tensor.requires_grad and not self.owns(tensor):
                if not pure:
                    self._mixed.add(id(tensor))
                if torch.promote_types(tensor.dtype, torch.float32) != tensor.dtype:
                    raise Unseen(f"operation {name_of(func)!r} makes a weight of {tensor.dtype}")
                self.sources[id(tensor)] = tensor
                self.sites.append(f"derived by {name_of(func)}")
        return result

    def _watch(
        self,
        func: Callable[..., Any],
        tensors: Sequence[Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Note why rows may be elsewhere after this operation."""
        looked_at = tensors[:1]
        if (
            self._state.disorder is None
            and func in WATCHED
            and not any(map(self._recordless.is_table, looked_at))
        ):
            with _NOTHING if self.flow is None else self.flow.paused():
                self._state.disorder = WATCHED[func](self.rows, *args, **kwargs)
            if self._time_first and moves_second(self.rows, func, args, kwargs):
                self._state.disorder = MOVED

    def _answer(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out an operation that tells Python what is in a tensor, as the way may go by it."""
        drawn = all(map(self._recordless.is_drawn, tensors_in(args)))
        with _NOTHING if drawn else self._told():
            answer = func(*args, **kwargs)
        if not drawn:
            with self._told():
                found = self._answers.dissent(func, args, answer)
            self._path.note(found is None)  # what is known of other batches on this way is known of this one
            if found is None:
                self._state.unknown = True
            else:
                before = self._state.dissent
                self._state.dissent = found if before is None else found | before
        self.sites.append(f"{ANSWERED}{answer}")
        return answer

    def _is_source(self, tensor: Tensor) -> bool:
        return self.owns(tensor) and id(tensor) not in self._mixed

    def _told(self) -> AbstractContextManager[None]:
        """Where what an operation reads out of a tensor is known: it is part of the way, or an error."""
        return nullcontext() if self.flow is None else self.flow.told()

    def of_rows(self, operation: str, input: Tensor, dimensions: int) -> Tape:  # noqa: A002
        """Return the tape for an input whose first dimension counts the rows, or all their positions.

        In the second case, (B T, ...), the rows are taken for T times as many views of each record.
        """
        if self._state.disorder is not None:
            raise Unseen(f"operation {operation!r} comes after {self._state.disorder}")
        length = input.shape[0] if input.dim() else 0
        if self.owns(input) or input.dim() < dimensions or length % self.rows or length == 0:
            raise Unseen(
                f"operation {operation!r} reads an input of shape {tuple(input.shape)}, whose first "
                f"dimension is not the {self.rows} rows of the batch"
            )
        if length == self.rows:
            return self
        flat = copy.copy(self)
        flat.rows, flat.views = length, self.views * length // self.rows
        flat._flattened = True
        return flat

    def positions(self, tensor: Tensor) -> Tensor:
        """Return (B, ..., d) as (n, K ..., d): all positions of a record, views included, on one axis."""
        return tensor.reshape(self.rows // self.views, -1, tensor.shape[-1])

    def tap(
        self,
        operation: str,
        output: Tensor,
        uses: Uses,
        *,
        saved: tuple[Tensor, ...],
        sources: tuple[Tensor | None, ...],
        rows: int = 0,
    ) -> Tensor:
        """Return ``output`` such that its gradient g reaches ``uses(g, *saved)``, and nothing the sources.

        ``rows``: the dimension of g that counts the rows.
        """
        self._note(operation)
        self._check_free(operation, sources)
        if not any(self.owns(source) for source in sources):
            return output
        result: Tensor = Tap.apply(  # type: ignore[no-untyped-call]
            output, self, uses, rows, self.anchor, *saved
        )
        return result

    def function(
        self,
        operation: str,
        forward: Forward,
        backward: Backward,
        *,
        inputs: tuple[Tensor, ...],
        sources: tuple[Tensor | None, ...],
    ) -> Tensor:
        """Return an output with a backward pass of its own, which finds input gradients and uses at once.

        ``inputs`` are what autograd differentiates by; private values reach ``forward`` by closure.
        """
        if any(source is not None and source.requires_grad and not self.owns(source) for source in sources):
            raise Unseen(f"operation {operation!r} reads a weight that depends on the batch")
        self._check_free(operation, sources)
        self._note(operation)
        anchor = self.anchor if any(self.owns(source) for source in sources) else None
        result: Tensor = Function.apply(  # type: ignore[no-untyped-call]
            self, forward, backward, anchor, *inputs
        )
        return result

    def _by_row(self, tensor: Tensor) -> bool:
        """Whether the rows of a tensor are those of the records in their order, if that is followed."""
        views = self.views * len(tensor) // self.rows
        return self.flow is None or self.flow.why_not_by_row(tensor, views) is None

    def _check_free(self, operation: str, sources: Iterable[Tensor | None]) -> None:
        """Raise if records are in what is taken for a layer's own: weights and biases, private or not."""
        for source in sources if self.flow is not None else ():
            if source is not None and self.flow is not None and self.flow.is_laden(source):
                met = self.flow.why_not_one(source)
                raise Unseen(met or f"operation {operation!r} reads a weight that depends on the batch")

    def _note(self, operation: str) -> None:
        if torch._C._functorch.maybe_current_level() is not None:
            raise Unseen(f"operation {operation!r} takes place within torch.func.vmap or grad")
        if forward_ad._current_level >= 0:
            raise Unseen(f"operation {operation!r} takes place within forward-mode differentiation")
        self.sites.append(f"{operation} of {self.views} positions" if self._flattened else operation)

    def all_uses(self) -> Iterator[Use]:
        """Yield the uses of all sources, in an order that depends on the sites alone."""
        return chain.from_iterable(self.uses.values())

    def by_row(self, *tensors: Tensor) -> AbstractContextManager[None]:
        """The scope of a rule, which goes by rows: if followed, each must come from its record alone."""
        if self.flow is None:
            return _NOTHING
        for tensor in tensors:
            if (why := self.flow.why_not_by_row(tensor, self.views)) is not None:
                raise Unseen(why)
        return self.flow.paused()

    def owners(self, tensors: Iterable[Tensor]) -> list[Tensor | None]:
        """Whose the numbers of tensors are, if followed: for :meth:`check_owners`, later."""
        return [] if self.flow is None else [self.flow.owners(tensor) for tensor in tensors]

    def check_owners(self, tensors: Sequence[Tensor], before: Sequence[Tensor | None]) -> None:
        """Raise unless whoever kept ``tensors`` kept them as they were."""
        for tensor, owners in zip(tensors, before, strict=False):
            if self.flow is not None and not self.flow.is_owned_by(tensor, owners):
                raise Unseen(self.flow.why_not_one(tensor) or "tensors are kept in another order")

    def mark(self, *tensors: Tensor | None) -> None:
        """What a rule of the engine made of the rows: each row comes from its record."""
        if self.flow is not None:
            for tensor in tensors:
                if tensor is not None:
                    self.flow.mark(tensor, self.views)

    def following(self) -> AbstractContextManager[Any]:
        """Follow what is computed from which record, if asked to."""
        return nullcontext() if self.flow is None else self.flow

    def start_backward(self) -> None:
        """From here on, gradients are those of the losses."""
        self._state.in_backward = True

    def clear(self) -> None:
        """Let go of everything recorded.

        Must be called in the end: records hold activations, whose graph holds this tape, and neither
        reference counts nor Python's collector see through that circle.
        """
        self.uses.clear()
        self.sources.clear()
        self._recordless.clear()
        self._answers.clear()
        self._path.clear()

    def record(self, uses: Iterable[tuple[Tensor, Use]], g: Tensor) -> None:
        """Keep the uses of the backward pass under their source; they are not differentiated again."""
        self._state.in_16_bits |= g.dtype == torch.bfloat16 or g.dtype == torch.float16
        if not self._state.in_backward or torch.is_grad_enabled():
            raise Unseen("a gradient is taken within the forward pass")
        if self._state.within:
            raise Unseen("a gradient by parameters' layers is taken within the backward pass")
        for source, use in uses:
            self.uses.setdefault(id(source), []).append(use)


def _by_place(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with those by place that the rules go by: the first one, and ``other``."""
    kwargs = dict(kwargs)
    if func in (torch.where, Tensor.where):
        return args, kwargs
    if not args and "input" in kwargs:
        args = (kwargs.pop("input"),)
    if len(args) == 1 and "other" in kwargs:
        args = (*args, kwargs.pop("other"))
    return args, kwargs


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
