"""Passes captured as CUDA graphs, which replay all kernels of a pass with one launch.

A pass is thousands of small operations, and a fast device waits for Python to launch them.
``TACIT_CUDA_GRAPHS=1`` in the environment turns graphs on.

**Guarantee**

* All batches are padded with records of zeros to a few sizes, even those that run without a graph: dropout
  draws for a whole batch, and a step repeated after a crash must give the same release. Padding is not
  ``present`` and gets infinite norms, so that it adds nothing, whatever its values are.
* All memory that a graph reads is held. Its addresses, and all state that Python branches on, are compared
  before each replay (:func:`_facts`). If they changed, all graphs are dropped.
* The third pass of each shape runs plainly and is then captured. Its step uses the plain result. If a replay
  does not reproduce that result, no graphs are used, and ``route`` says why.
* A replay draws the same random numbers as a plain pass, as both begin with one seed. No graph draws noise.
* After a replay, all data of records in its graph are set to zero. If a replay is interrupted, all graphs are
  dropped, so that no sum is added twice.

While graphs exist, they hold the activations of the largest pass in a separate memory pool, and a buffer for
each trainable parameter. Sums are computed in these buffers, and then added to the noise.

Letters: n records of a batch; N records of the padded batch; K views; G groups of parameters.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tacit.clipping.engine import GradientEngine
from tacit.clipping.isolation.randomness import begin_at, devices_of, draw_again, states_of
from tacit.clipping.isolation.reasons import describe
from tacit.clipping.isolation.variables import tables_around, tables_of_module
from tacit.clipping.per_example.use import widened_type

FROM, MOST, LONG = 3, 12, 64
"""Which pass of a shape is captured; the most graphs; the longest list or dict compared item by item."""


@final
@dataclass(frozen=True)
class Call:
    """The inputs of a padded pass: rows (N K, ...), ``present`` (N,) bool, thresholds (G,), and the scale."""

    batch: tuple[Tensor, ...]
    present: Tensor
    thresholds: Tensor
    scale: float


Results: TypeAlias = tuple[Tensor, Tensor]
"""Norms (n, G) and losses (n,)."""
Sums: TypeAlias = Mapping[str, Tensor]
Go: TypeAlias = Callable[[Call, Sums], Results]
"""A function that runs a pass and adds to sums."""


class Recorded(Protocol):
    """A recorded pass that can be replayed in the same memory."""

    def replay(self) -> None: ...


class _NotCaptured(RuntimeError):
    """The reason why a pass is not captured."""


def record(body: Callable[[], None], device: torch.device, pool: list[Any]) -> Recorded:
    """Capture ``body``: record its kernels without running them.

    If capture fails, torch leaves its own stream as the current one, which does not wait for earlier work,
    and a generator that cannot draw. So both are restored. All graphs share the memory ``pool``, which is
    created if the list is empty. The results of each graph are held, so that it can be replayed at any time.
    """
    generator = torch.cuda.default_generators[device.index or 0]
    graph, spare = torch.cuda.CUDAGraph(), generator.clone_state()
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
        pool[:] = pool or [torch.cuda.graph_pool_handle()]
        try:
            with torch.cuda.graph(graph, pool=pool[0], capture_error_mode="thread_local"):
                body()
        except BaseException:
            generator.graphsafe_set_state(spare)
            raise
    return graph


def device_for(parameters: Iterable[Tensor]) -> torch.device | None:
    """Return the CUDA device of the parameters, if there is only one and graphs are turned on."""
    devices = {p.device for p in parameters}
    enabled = os.environ.get("TACIT_CUDA_GRAPHS") == "1" and len(devices) == 1
    return next((device for device in devices if enabled and device.type == "cuda"), None)


def padded_size(n: int) -> int:
    """Round n up to one of eight sizes per power of two, which adds at most an eighth.

    >>> [padded_size(n) for n in (3, 15, 17, 250, 260)]
    [3, 15, 18, 256, 288]
    """
    return n + -n % (1 << max(n.bit_length() - 4, 0))


@final
class CapturedPasses:
    """Runs the padded passes of an engine: plainly with ``go``, or as graphs, whose sums ``adds`` adds."""

    def __init__(self, engine: GradientEngine, go: Go, adds: Callable[[Sums, Sums], None]) -> None:
        self._engine, self._go, self._adds = engine, go, adds
        self.device = device_for(engine.parameters.values())
        self._why_not = "" if self.device else "switched off since the run began"
        self._facts: list[Any] = []
        self._forget()

    def _forget(self) -> None:
        self.graphs: dict[Any, _Graph] = {}
        self._counts: dict[Any, int] = {}
        self._sums, self._pool = SumsApart(self._engine.parameters), list[Any]()

    @property
    def route(self) -> str:
        """The part of the engine's route about CUDA graphs."""
        if self._why_not:
            return f"without CUDA graphs: {self._why_not}"
        return "by CUDA graphs" if self.graphs else "by CUDA graphs from the third pass of a shape on"

    def take(
        self, accumulator: Sums, batch: tuple[Tensor, ...], thresholds: Tensor, scale: float, seed: int
    ) -> Results:
        """Add the clipped sum of a pass whose generators begin with ``seed``."""
        n = len(batch[0]) // self._engine.views
        size = padded_size(n)
        shape = (size, scale, thresholds.dtype, *((t.shape[1:], t.dtype, t.device) for t in batch))
        captures = self._captures()
        graph = self.graphs.get(shape) if captures else None
        if graph is not None and (results := self._replay(graph, accumulator, batch, thresholds, seed)):
            return results
        missing = (size - n) * self._engine.views
        rows = tuple(torch.cat([t, t.new_zeros(missing, *t.shape[1:])]) if missing else t for t in batch)
        call = Call(rows, torch.arange(size, device=thresholds.device) < n, thresholds, scale)
        self._counts[shape] = self._counts.get(shape, 0) + 1
        if captures and graph is None and self._counts[shape] >= FROM and len(self.graphs) < MOST:
            norms, losses = self._capture(shape, call, accumulator, seed)
        else:
            self._begin(seed)
            norms, losses = self._go(call, accumulator)
        return norms[:n], losses[:n]

    def _begin(self, seed: int) -> None:
        begin_at(seed, devices_of(self._engine.parameters.values()))

    def _give_up(self, why: RuntimeError) -> None:
        self._why_not = str(why) if isinstance(why, _NotCaptured) else describe(why)
        self._forget()

    def _captures(self) -> bool:
        """Return whether graphs may run this pass; drop graphs that are out of date."""
        if self.device is None or self._why_not:
            return False
        objects: list[Any] = []
        facts = _facts(self._engine, self.device, objects)
        if facts != self._facts:
            self._forget()
            self._facts, self._objects = facts, objects
            if facts[0]:
                self._give_up(_NotCaptured("a module has hooks, which a graph would not call"))
        return not self._why_not

    def _replay(
        self, graph: _Graph, accumulator: Sums, batch: tuple[Tensor, ...], thresholds: Tensor, seed: int
    ) -> Results | None:
        """Replay a graph and add its sums; return None if the device refuses the replay."""
        try:
            n = graph.fill(batch, thresholds, self._engine.views)
            self._begin(seed)
            try:
                graph.recorded.replay()
            except RuntimeError as error:
                self._give_up(error)
                return None
            results = graph.results[0][:n].clone(), graph.results[1][:n].clone()
            self._adds(accumulator, self._sums)
            graph.clear(self._sums)
        except BaseException:
            self._forget()
            raise
        return results

    def _capture(self, shape: Any, call: Call, accumulator: Sums, seed: int) -> Results:
        """Run the pass plainly, and try to capture it before anything is added."""
        assert self.device is not None
        batch = tuple(t.clone() for t in call.batch)
        call = Call(batch, call.present.clone(), call.thresholds.clone(), call.scale)
        watch, sums = _Watch(self.device), SumsApart(self._engine.parameters)
        self._begin(seed)
        with watch:
            results = self._go(call, sums)
        devices = devices_of(self._engine.parameters.values())
        states = states_of(devices)
        try:
            watch.check(results=[*results, *sums.values()])
            self.graphs[shape] = self._graph(call, seed, results, sums)
        except RuntimeError as error:
            self._give_up(error)
        except BaseException:
            self._forget()
            raise
        draw_again(states, devices)
        self._adds(accumulator, sums)
        return results

    def _graph(self, call: Call, seed: int, plain: Results, sums: Sums) -> _Graph:
        """Return a graph whose replay reproduces the plain pass."""
        assert self.device is not None
        for name in sums:
            self._sums[name]  # allocated before the capture, which allocates from the graph's pool
        watch, outputs, names = _Watch(self.device), list[Results](), set(self._sums)

        def body() -> None:
            with watch:
                outputs.append(self._go(call, self._sums))

        self._begin(seed)
        recorded = record(body, self.device, self._pool)
        watch.check()
        graph = _Graph(call, recorded, outputs.pop(), watch.read)
        for total in self._sums.values():
            total.zero_()
        self._begin(seed)
        recorded.replay()
        least = call.scale * float(call.thresholds.max())
        pairs = [*zip(graph.results, plain, strict=True), *((self._sums[name], sums[name]) for name in sums)]
        same = names == self._sums.keys() and all(_agree(*pair, watch.eps, least) for pair in pairs)
        graph.clear(self._sums)
        if not same:
            raise _NotCaptured("a replay of the pass gives other results than the pass itself")
        return graph


@final
@dataclass(frozen=True)
class _Graph:
    """A recorded pass, its inputs and outputs, and all other tensors that it reads."""

    call: Call
    recorded: Recorded
    results: Results
    storages: Mapping[int, torch.UntypedStorage]

    def fill(self, batch: tuple[Tensor, ...], thresholds: Tensor, views: int) -> int:
        """Copy these rows into the graph's inputs; return n."""
        for static, rows in zip(self.call.batch, batch, strict=True):
            static[: len(rows)].copy_(rows)
            static[len(rows) :].zero_()
        n = len(batch[0]) // views
        self.call.present.copy_(torch.arange(len(self.call.present), device=thresholds.device) < n)
        self.call.thresholds.copy_(thresholds)
        return n

    def clear(self, sums: Sums) -> None:
        """Zero all data of records."""
        torch._foreach_zero_([*self.call.batch, *self.results, *sums.values()])


@final
class SumsApart(dict[str, Tensor]):
    """Sums by parameter name: zeros at the first look-up, in ``dtype`` or the parameter's widened type."""

    def __init__(self, parameters: Sums, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self._parameters, self._dtype = parameters, dtype

    def __missing__(self, name: str) -> Tensor:
        like = self._parameters[name].detach()
        self[name] = torch.zeros_like(like, dtype=self._dtype or widened_type(like.dtype))
        return self[name]


@final
class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the memory that a pass ``read`` from outside, tensors that it leaves, and unsupported calls.

    ``eps`` is the machine epsilon of the narrowest floating type in the pass.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device, self._why, self.eps = device, "", 0.0
        self.read: dict[int, torch.UntypedStorage] = {}
        self._outputs: dict[int, Any] = {}

    def check(self, *, results: Iterable[Tensor] | None = None) -> None:
        """Refuse a pass that cannot be captured, or that left tensors in addition to its ``results``."""
        if results is not None and not self._why:
            outputs = {key: ref for key, ref in self._outputs.items() if not ref.expired()}
            left = outputs.keys() - {t.untyped_storage()._cdata for t in results}
            if left:
                gc.collect()  # frees reference cycles
            if not all(outputs[key].expired() for key in left):
                self._why = "the model or the loss keeps tensors that a pass makes"
        if self._why:
            raise _NotCaptured(self._why)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        outputs = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        self._why = self._why or self._judge(func, inputs, outputs)
        for storage in (t.untyped_storage() for t in inputs):
            if storage._cdata not in self._outputs:
                self.read.setdefault(storage._cdata, storage)
        for storage in (t.untyped_storage() for t in outputs):
            if storage._cdata not in self.read:
                self._outputs[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.eps = max([self.eps, *(torch.finfo(t.dtype).eps for t in outputs if t.is_floating_point())])
        return out

    def _judge(self, func: Any, inputs: list[Tensor], outputs: list[Tensor]) -> str:
        """Return why an operation cannot be captured, or an empty string if it can."""
        name, here = func.name(), self._device
        masks = any(t.dtype in (torch.bool, torch.uint8) for t in inputs[1:]) and "index" in name
        asks = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)
        if masks or (asks and name != "aten::index.Tensor"):
            return f"the processor waits for a number ({name})"
        apart = [t for t in inputs if t.device != here and t.numel()]
        if any(t.dim() or t.untyped_storage()._cdata not in self._outputs for t in apart):
            return f"a pass reads a tensor that is not on {here} ({name})"
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if (draws or "copy" in name) and any(t.device != here for t in (*apart, *outputs)):
            return f"a pass draws or copies a number that is not on {here} ({name})"
        return ""


def _agree(one: Tensor, other: Tensor, eps: float, least: float) -> bool:
    """Return whether two results agree within rounding errors, relative to the largest value or ``least``."""
    if not torch.equal(one.isfinite(), other.isfinite()):
        return False
    one, other = (t.double().nan_to_num(0.0, 0.0, 0.0).flatten() for t in (one, other))
    far, largest = (float(t.norm(torch.inf)) for t in (one - other, other))
    return far <= min(64 * eps, 1 / 32) * max(largest, least)


def _facts(engine: GradientEngine, device: torch.device, objects: list[Any]) -> list[Any]:
    """Return the state that a captured pass depends on, except inputs and values in tensors.

    A replay reads those again. The state consists of addresses of tensors, flags, plain attributes of model
    and loss, autocast and other settings of torch. Other objects are compared by identity. They are added to
    ``objects``, so that their ids are not reused.
    """
    cuda: Any = torch.backends.cuda
    cudnn, modes = torch.backends.cudnn, torch._C
    facts: list[Any] = [
        _has_any_global_hook() or any(map(_has_hooks, engine._survey.modules)),  # type: ignore[no-untyped-call]
        engine._survey,
        *(torch.get_default_dtype(), torch.get_autocast_dtype(device.type)),
        *(torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()),
        *(cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic, cuda.math_sdp_enabled()),
        *(cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled()),
        *(modes._len_torch_dispatch_stack(), modes._len_torch_function_stack()),
    ]
    tables = [table for module in engine._survey.modules for table in tables_of_module(module)]
    tables += tables_around(engine.per_example_loss, engine.model)
    of_torch = vars(nn.Module())  # the tables of every module, which are listed separately
    for table in {id(table): table for _, table in tables}.values():
        facts += [(key, _plain(value, objects)) for key, value in table.items() if key not in of_torch]
    return facts


def _plain(value: Any, objects: list[Any]) -> Any:
    match value:
        case Tensor() if value.layout is torch.strided:
            where = value.data_ptr(), value.device, value.requires_grad
            return *where, value.shape, value.stride(), value.dtype
        case bool() | int() | str() | bytes() | None:
            return type(value), value
        case float() | complex():
            return repr(value)  # so that NaN equals itself
        case list() | tuple() | set() if len(value) <= LONG:
            return type(value), *(_plain(item, objects) for item in value)
        case dict() if len(value) <= LONG:
            return dict, *(_plain(pair, objects) for pair in value.items())
    objects.append(value)
    return id(value)


def _has_hooks(module: nn.Module) -> bool:
    forward = module._forward_pre_hooks or module._forward_hooks
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)
