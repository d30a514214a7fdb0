"""The recorder: sees every operation of a pass. Long: one class, which all rules talk to.

Letters: B = n K rows of a batch, n records of K views; T positions of a record.

A recorder is a scoped ``TorchFunctionMode``; the model is not touched.  An operation is carried out in one of
these ways, its *action*:

* *As it is*, if it reads no parameter.
* *By rule* (``registry.py``): linear, convolution, and so on.  The output is computed from detached
  parameters, so autograd never forms their gradients, and passes through ``hooks.Tap``, which hands the
  output's gradient to the rule of the layer family in the backward pass.
* *Derived*: an operation that reads nothing but private parameters and constants of the model, such as
  ``W.t()``, weight normalisation or a penalty.  Its output is a source of its own, which other operations
  may read; per-record gradients are pulled back through it one by one.
* *Fallback*: it is carried out on the batch and, for its gradients, once more on the rows of each record
  (``vmap_fallback.py``).  If that cannot be, :class:`Unseen` is raised.

The first pass of a trace chooses the actions, with provenance switched on: it shows for each operand which
records are in it.  Later passes replay the trace and its actions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import _StopRecomputationError

from tacit.clipping.isolation.control_flow import Answers
from tacit.clipping.isolation.provenance import Provenance
from tacit.clipping.isolation.trace import (
    Kept,
    NewTrace,
    ReadsKept,
    Recording,
    Replay,
    Step,
    Trace,
    Unseen,
    free_of,
    tensors_in,
)
from tacit.clipping.memory import FAST, MemoryBudget
from tacit.clipping.per_example.actions import Classifier, Handler, name_of, writes
from tacit.clipping.per_example.hooks import Backward, Forward, Function, Tap, Uses
from tacit.clipping.per_example.pooling import FASTER
from tacit.clipping.per_example.use import Use
from tacit.errors import TacitError

__all__ = ["Handler", "Recorder", "Unseen"]

T = TypeVar("T")
_NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass
class _State:
    """What the views of one recorder share: the pass it is in, and what was seen in it."""

    in_backward: bool = False
    hooked: bool = False
    own_backward: bool = False
    unknown: bool = False
    disagreement: Tensor | None = None
    within: bool = False
    in_16_bits: bool = False
    failure: BaseException | None = None
    step: Step | None = None
    decisions: Iterator[Any] | None = None
    deciding: bool = False


class Recorder(TorchFunctionMode):
    """Records the uses of ``parameters`` in operations on batches of ``rows`` = n ``views`` rows.

    Args:
        parameters: the private ones.
        constants: other, data-independent tensors of the model and the loss.
        handlers: the rules, by operation.
        rows: B.
        views: K.
        kept: tensors of earlier passes, which must not be read again.
        known: traces of which the pass takes one, or :class:`NewTrace` is raised.
        provenance: follows which record each number comes from; then ``known`` is not read, and the trace
            is recorded.
        exact: whether norms must be those of formed gradients: see :attr:`exact`.
        batch_second: whether rows may be in the second dimension, (T, B, ...).
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        constants: Iterable[Tensor],
        handlers: Mapping[Any, Handler],
        *,
        rows: int,
        views: int,
        kept: Kept,
        known: Sequence[Trace] = (),
        provenance: Provenance | None = None,
        budget: MemoryBudget = FAST,
        fallback: Handler | None = None,
        batch_second: bool = False,
        exact: bool = False,
    ) -> None:
        super().__init__()
        self.provenance = provenance
        self.rows, self.views, self.budget = rows, views, budget
        self.sources: dict[int, Tensor] = {id(p): p for p in parameters}
        self.uses: dict[int, list[Use]] = {}
        self.anchor = torch.empty(0, requires_grad=True)
        """Makes a tapped output require a gradient, and gets none."""
        self._state = _State()
        self._alone = rows == views  # all rows are one record's: their order says nothing
        self._constants = list(constants)  # held, so that no other tensors come to have their ids
        self._constant_ids = frozenset(map(id, self._constants))
        self.handlers, self.batch_second = handlers, batch_second
        self._fallback, self._exact = fallback, exact
        self._answers = Answers(rows // views, self._by_row)
        self._classifier = None if provenance is None else Classifier(provenance)
        given = chain(self.sources.values(), self._constants)
        taken = (trace for trace in known if trace.failed is None or not self._alone)
        self._log = (
            Recording(rows, given, kept) if provenance is not None else Replay(rows, given, kept, taken)
        )
        self._asks = provenance is not None or any(trace.reads_values for trace in known)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        try:
            step = self._log.next(func, args, kwargs)
            if self._classifier is not None:
                self._state.step = step
                result = self._classifier.carry_out(self, step, func, args, kwargs)
            elif step.action is None:
                result = FASTER.get(func, func)(*args, **kwargs)
            else:
                self._state.decisions = iter(step.decisions)
                result = step.action(self, func, args, kwargs)
        except _StopRecomputationError:
            raise  # a checkpoint has all that it wants
        except Exception as error:
            self._state.failure = self._state.failure or error
            raise
        found = list(result) if func is Tensor.__iter__ else result
        if self.provenance is not None:
            with torch._C.DisableTorchFunction(), self.provenance.paused():
                results = tensors_in((found,))
                laden = [self.provenance.is_laden(t) for t in results]
                step.laden = any(laden)
                free = (t for t, one in zip(results, laden, strict=True) if not one and _is_plain(t))
                step.free = free_of(free)
        numbers = self._log.made(found, laden=step.laden)
        if self.provenance is not None:
            step.numbers = numbers
        result = iter(found) if func is Tensor.__iter__ else result
        if self._asks and not self._alone:
            with torch._C.DisableTorchFunction(), self._unfollowed():
                self._answers.note(func, args, kwargs, result)
        return result

    def returns(self, losses: object) -> None:
        """End the forward pass: which tensor it returns is part of the trace."""
        self._log.next("return", (losses,), {})
        if self.provenance is not None and isinstance(losses, Tensor):
            self._state.own_backward = _has_own_backward(losses) or any(
                step.func is Tensor.register_hook for step in self.recording.steps
            )

    def give(self, batch: Iterable[Tensor]) -> None:
        """Tell it which tensors are the batch."""
        self._log.give(batch)

    def without_rule(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Carry out an operation on rows and parameters once more for each record, if that can be."""
        if self._fallback is None or writes(name_of(func), kwargs):
            raise Unseen(f"operation {name_of(func)!r} has no per-example rule")
        return self._fallback(self, func, name_of(func), args, kwargs)

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
        if isinstance(self._state.failure, Unseen | TacitError | NewTrace | ReadsKept):
            raise self._state.failure
        if self._state.failure is not None and not self._alone:
            self._state.unknown = True

    @property
    def reads_values(self) -> bool:
        """Whether Python reads values of records; known of a pass with provenance."""
        return self._classifier is not None and self._classifier.reads_values

    @property
    def own_backward(self) -> bool:
        """Whether there are hooks, or backward passes that are not torch's: see :meth:`returns`."""
        return self._state.own_backward

    @property
    def reads_batch(self) -> bool:
        """Whether Python read a value of which it is not known what each record alone would give."""
        return self._state.unknown

    @property
    def disagreeing(self) -> list[int]:
        """Numbers of records that alone would have given Python another value."""
        disagreement = self._state.disagreement
        return [] if disagreement is None else disagreement.nonzero().flatten().tolist()

    @property
    def recording(self) -> Recording:
        """What was recorded of a new trace."""
        assert isinstance(self._log, Recording)
        return self._log

    def ended(self) -> Trace:
        """The known trace that the pass took."""
        assert isinstance(self._log, Replay)
        return self._log.end()

    @property
    def floats(self) -> list[str]:
        """Numbers that are no whole ones, which Python handed to operations."""
        return self._log.floats

    @property
    def exact(self) -> int:
        """Bytes of gradients that are formed at once for norms that must be those of formed gradients; or 0.

        Norms that are rounded up, for want of these, are larger.  If lengths, or which operations there are,
        depend on what is in the records, one record can be what decides between the two for all others.
        """
        return self.budget.chunk_bytes if self._exact else 0

    def decided(self, decide: Callable[[], T]) -> T:
        """What a rule finds out by comparing shapes with B; in a replay, what it found when it was recorded.

        Other sizes may equal B by chance, which those of the recording do not.
        """
        state = self._state
        if self.provenance is None:
            assert state.decisions is not None
            found: T = next(state.decisions)
            return found
        outer, state.deciding = state.deciding, True
        try:
            found = decide()
        finally:
            state.deciding = outer
        if not outer and state.step is not None and state.step.action is not None:
            state.step.decisions.append(found)
        return found

    def fixed(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is a constant, or a number, such that no record's row is in it.

        What no record is in may still have a row for each: initial states, for instance.
        """
        return self.decided(lambda: self._is_fixed(tensor))

    def _is_fixed(self, tensor: Tensor) -> bool:
        if tensor.requires_grad:
            return False
        if tensor.dim() == 0:
            return True
        assert self.provenance is not None
        known = self._alone or id(tensor) in self._constant_ids or len(tensor) != self.rows
        return known and not self.provenance.is_laden(tensor)

    def knows(self, tensor: Tensor) -> bool:
        """Whether an operation made it that was seen, or it was there from the start."""
        return self._log.knows(tensor)

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
        tensors = tensors_in(args, kwargs)
        self._check_free(name_of(func), tensors)
        versions = [t._version for t in tensors]
        # Not as a checkpoint around would have it: gradients are pulled back through the result later, out of
        # the recorder, where the model would be computed anew as it is without one.
        with saved_tensors_hooks(_as_it_is, _as_it_is):
            result = func(*args, **kwargs)
        if [t._version for t in tensors] != versions:
            raise Unseen(f"operation {name_of(func)!r} changes a parameter in place")
        for tensor in tensors_in((result,)):
            if tensor.requires_grad and not self.owns(tensor):
                if torch.promote_types(tensor.dtype, torch.float32) != tensor.dtype:
                    raise Unseen(f"operation {name_of(func)!r} makes a weight of {tensor.dtype}")
                self.sources[id(tensor)] = tensor
        return result

    def read(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out an operation by which Python reads a value; keep what each record alone would give."""
        with self._on_trace():
            answer = func(*args, **kwargs)
            if self._alone:
                return answer
            found = self._answers.disagree(func, args, answer)
        if found is None:
            self._state.unknown = True
        else:
            before = self._state.disagreement
            self._state.disagreement = found if before is None else found | before
        return answer

    def within(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``torch.autograd.grad`` in the backward pass: what it passes through is not of the losses."""
        self._state.within = True
        try:
            return func(*args, **kwargs)
        finally:
            self._state.within = False

    def hook(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A hook on what is derived from parameters."""
        if args[0].is_leaf:
            raise Unseen("the model puts a hook on a parameter")
        self._state.hooked = True
        return func(*args, **kwargs)

    def _on_trace(self) -> AbstractContextManager[None]:
        """Where what an operation reads out of a tensor decides the trace, or is an error."""
        return nullcontext() if self.provenance is None else self.provenance.read_on_trace()

    def _unfollowed(self) -> AbstractContextManager[None]:
        return _NOTHING if self.provenance is None else self.provenance.paused()

    def of_rows(self, operation: str, input: Tensor, dimensions: int) -> Recorder:  # noqa: A002
        """Return the recorder for an input whose first dimension counts the rows, or all their positions.

        In the second case, (B T, ...), the rows are taken for T times as many views of each record.
        """
        length = input.shape[0] if input.dim() else 0
        positions = self.decided(lambda: length // self.rows)
        if self.owns(input) or input.dim() < dimensions or length != positions * self.rows or length == 0:
            raise Unseen(
                f"operation {operation!r} reads an input of shape {tuple(input.shape)}, whose first "
                f"dimension is not the {self.rows} rows of the batch"
            )
        if positions == 1:
            return self
        flat = copy.copy(self)
        flat.rows, flat.views = length, self.views * length // self.rows
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
        self._check_plain(operation, sources)
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
        self._check_plain(operation, sources)
        anchor = self.anchor if any(self.owns(source) for source in sources) else None
        result: Tensor = Function.apply(  # type: ignore[no-untyped-call]
            self, forward, backward, anchor, *inputs
        )
        return result

    def _by_row(self, tensor: Tensor) -> bool:
        """Whether the rows of a tensor are those of the records in their order, if that is followed."""
        views = self.views * len(tensor) // self.rows
        return self.provenance is None or self.provenance.why_not_by_row(tensor, views) is None

    def _check_free(self, operation: str, sources: Iterable[Tensor | None]) -> None:
        """Raise if records are in what is taken for a layer's own: weights and biases, private or not."""
        if self.provenance is None or self._alone:
            return
        for source in sources:
            if source is not None and self.provenance.is_laden(source):
                met = self.provenance.why_not_one(source)
                raise Unseen(met or f"operation {operation!r} reads a weight that depends on the batch")

    def _check_plain(self, operation: str, sources: Iterable[Tensor | None]) -> None:
        """Raise within a transform of functions, and for weights that are not a layer's own."""
        if torch._C._functorch.maybe_current_level() is not None:
            raise Unseen(f"operation {operation!r} takes place within torch.func.vmap or grad")
        if forward_ad._current_level >= 0:
            raise Unseen(f"operation {operation!r} takes place within forward-mode differentiation")
        self._check_free(operation, sources)

    def all_uses(self) -> Iterator[Use]:
        """Yield the uses of all sources, in an order that depends on the trace alone."""
        return chain.from_iterable(self.uses.values())

    def by_row(self, *tensors: Tensor) -> AbstractContextManager[None]:
        """The scope of a rule, which goes by rows: if followed, each must come from its record alone."""
        if self.provenance is None:
            return _NOTHING
        for tensor in tensors if not self._alone else ():
            if (why := self.provenance.why_not_by_row(tensor, self.views)) is not None:
                raise Unseen(why)
        return self.provenance.paused()

    def owners(self, tensors: Iterable[Tensor]) -> list[Tensor | None]:
        """The provenance of tensors, if followed: for :meth:`check_owners`, later."""
        return [] if self.provenance is None else [self.provenance.owners(tensor) for tensor in tensors]

    def check_owners(self, tensors: Sequence[Tensor], before: Sequence[Tensor | None]) -> None:
        """Raise unless whoever kept ``tensors`` kept them as they were."""
        for tensor, owners in zip(tensors, before, strict=False):
            if self.provenance is not None and not self.provenance.is_owned_by(tensor, owners):
                raise Unseen(self.provenance.why_not_one(tensor) or "tensors are kept in another order")

    def mark(self, *tensors: Tensor | None) -> None:
        """What a rule of the engine made of the rows: each row comes from its record."""
        if self.provenance is not None:
            for tensor in tensors:
                if tensor is not None:
                    self.provenance.mark(tensor, self.views)

    def following(self) -> AbstractContextManager[Any]:
        """Follow which record each number comes from, if asked to."""
        return nullcontext() if self.provenance is None else self.provenance

    @property
    def in_backward(self) -> bool:
        """Whether the backward pass has begun."""
        return self._state.in_backward

    def start_backward(self) -> None:
        """From here on, gradients are those of the losses."""
        self._state.in_backward = True

    def clear(self) -> None:
        """Let go of everything recorded.

        Must be called in the end: records hold activations, whose graph holds this recorder, and neither
        reference counts nor Python's collector see through that circle.
        """
        self.uses.clear()
        self.sources.clear()
        self._constants.clear()
        if self._classifier is not None:
            self._classifier.clear()
        self._answers.clear()
        self._log.clear()

    def record(self, uses: Iterable[tuple[Tensor, Use]], g: Tensor) -> None:
        """Keep the uses of the backward pass under their source; they are not differentiated again."""
        self._state.in_16_bits |= g.dtype == torch.bfloat16 or g.dtype == torch.float16
        if not self._state.in_backward or torch.is_grad_enabled():
            raise Unseen("a gradient is taken within the forward pass")
        if self._state.within:
            raise Unseen("a gradient by parameters' layers is taken within the backward pass")
        for source, use in uses:
            self.uses.setdefault(id(source), []).append(use)


def _has_own_backward(losses: Tensor) -> bool:
    """Whether some backward pass is in Python, and neither torch's nor the engine's."""
    ahead, seen = [losses.grad_fn], set[Any]()
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        function = getattr(type(node), "_forward_cls", None)
        if function is not None and not function.__module__.startswith(("torch.", "tacit.")):
            return True
        ahead += [before for before, _ in node.next_functions]
    return False


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _is_plain(tensor: Tensor) -> bool:
    """Whether its values are not those of parameters, and can be read."""
    plain = tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta)
    return plain and type(tensor) is Tensor and not tensor.requires_grad and not tensor.is_cuda
