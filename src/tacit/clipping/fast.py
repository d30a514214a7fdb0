"""The fast engine: one call of the loss under vmap, which isolates each record.

Letters: n records; K views; B = n K rows; G groups of parameters.
"""

# Python sees no value of a record: it may read shapes, parameters and the number of passes, and all of them
# are public. So nothing that a loss or a model keeps in Python can depend on a record, and nothing is put
# back.

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tacit.clipping.engine import GradientEngine, PerExampleLoss, full_precision
from tacit.clipping.isolation import model_checks
from tacit.clipping.isolation.model_checks import refuse_wrapped, same
from tacit.clipping.isolation.randomness import begin_at, devices_of, only_torch_draws, states_of
from tacit.clipping.isolation.reasons import FAILURES, refusing_failures
from tacit.clipping.isolation.synthetic import BY_CALLS
from tacit.clipping.isolation.under_vmap import Pass, isolated
from tacit.clipping.memory import FAST, MemoryBudget
from tacit.clipping.per_example.parameter import Gradient, LayerBatch, batch_layers, gradients_of
from tacit.clipping.per_example.registry import RULES
from tacit.clipping.per_example.use import Kept
from tacit.clipping.rules import ClippingRule
from tacit.errors import TacitError, UnsupportedModel, of_device


@final
class FastEngine(GradientEngine):
    """Computes sum_i factor_i g_i in one forward and one backward pass, mostly without per-record gradients.

    ``budget``: limits on memory, such as :data:`tacit.clipping.FAST` or :data:`tacit.clipping.LEAN`.
    """

    kind = "FastEngine under vmap"
    route = "fast"
    by_value = False

    def __init__(
        self,
        model: nn.Module,
        per_example_loss: PerExampleLoss,
        rule: ClippingRule,
        *,
        views: int = 1,
        budget: MemoryBudget = FAST,
    ) -> None:
        super().__init__(model, per_example_loss, rule, views=views)
        self.draws = False  # until a pass draws
        self._seeds: list[int] = []
        self._shared: int | None = None
        self.budget = budget
        keep_memory(budget.pass_bytes)
        self._small_first = sorted(self.names, key=lambda name: self.parameters[name].numel())
        parameter_bytes = sum(p.numel() * p.element_size() for p in self.parameters.values())
        self._cuts = Microbatches(budget.pass_bytes, parameter_bytes, views, self.measured)

    @property
    def _flags(self) -> str:
        """The training flags, on which activations depend in addition to the shapes of rows."""
        return "".join(str(int(flag)) for flag in self._survey.flags)

    def _first_pass(self, zeros: tuple[Tensor, ...]) -> Tensor:
        """Return the losses of zeros, and measure the memory of a record."""
        if self._devices:
            return super()._first_pass(zeros)
        losses: list[Tensor] = []
        self._cuts.measure(
            zeros, lambda rows: losses.append(self.per_example_loss(self.model, *rows)), self._flags
        )
        return losses[0]

    def _microbatches(self, batch: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        def forward(rows: tuple[Tensor, ...]) -> None:
            self.per_example_loss(self.model, *(torch.zeros_like(t) for t in rows))

        one_pass = bool(self._devices)
        parts = [batch] if one_pass else self._cuts.cut(batch, forward, self._flags, self.expected)

        # Drawn before the first pass: afterwards the generator's state shows how many records have drawn.
        self._seeds = torch.randint(2**62, (len(parts),)).tolist()
        self._shared = self._seeds[0] if self.shared_seed is None else self.shared_seed
        return parts

    def _losses_alone(self, rows: tuple[Tensor, ...]) -> Tensor:
        """Return (B,) losses of a pass that adds nothing to the sum; refuse a model that vmap cannot run."""
        run = self._open(rows)
        try:
            with refusing_failures(), isolated(run):
                losses, means = self._forward(run, rows)
                run.backward(means)
        finally:
            run.clear()
        refuse_wrapped(self.model)
        return losses.detach().flatten()

    def _add(
        self, accumulator: Mapping[str, Tensor], batch: tuple[Tensor, ...], thresholds: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        try:
            with only_torch_draws():
                results = self._add_pass(accumulator, batch, thresholds, scale)
        except TacitError:
            raise
        except FAILURES as reason:
            if of_device(reason):
                raise
            # a model that vmap cannot run fails on zeros too, and is refused for that
            self._losses_alone(tuple(t.new_zeros(2 * self.views, *t.shape[1:]) for t in batch))
            if "out of bounds" in str(reason) or "out of range" in str(reason):
                raise  # the session names it without the number
            raise UnsupportedModel(
                f"the model or the loss raises {type(reason).__name__} for some records, so one record could "
                "change how others are clipped. Avoid the error, or make the session with "
                'engine="reference".'
            ) from None
        refuse_wrapped(self.model)
        return results

    def _add_pass(
        self, accumulator: Mapping[str, Tensor], batch: tuple[Tensor, ...], thresholds: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Add the clipped sum of one pass; return its (n, G) norms and (n,) losses."""
        run = self._open(batch)
        begun = states_of(self._devices)
        try:
            with isolated(run):
                losses = self._forward(run, batch)[1]
                run.backward(losses)
            losses = losses.detach()  # frees the graph
            with full_precision():
                return self._add_from(run, accumulator, run.n, thresholds, scale), losses
        finally:
            run.clear()
            self.draws |= not all(map(torch.equal, begun, states_of(self._devices)))

    def _open(self, rows: tuple[Tensor, ...]) -> Pass:
        """Return a pass of these rows; seed the generators with a number that no model sets by chance."""
        seed = self._seeds.pop(0) if self._seeds else int(torch.randint(2**62, ()))
        begin_at(seed, self._devices)
        n = len(rows[0]) // self.views
        run = Pass(self.parameters.values(), n, self.views, RULES, Kept, self.budget)
        if self._shared is not None:
            run.shared = self._shared
        return run

    def _forward(self, run: Pass, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return the (n, K) losses of the records under vmap, and their (n,) means."""
        records = tuple(t.reshape(run.n, self.views, *t.shape[1:]) for t in batch)

        def one(*rows: Tensor) -> Tensor:
            with run:
                losses = self.per_example_loss(self.model, *rows)
            run.returns(losses)
            losses = model_checks.check_losses(losses, self.views)
            if run.checkpointed:
                run.backward_within(losses if self.views == 1 else losses.mean(0, keepdim=True))
            return losses

        with torch.enable_grad():
            losses = run.of_each(one, records)
            return losses, losses[:, 0] if self.views == 1 else losses.mean(1)

    def _add_from(
        self,
        run: Pass,
        accumulator: Mapping[str, Tensor],
        n: int,
        thresholds: Tensor,
        scale: float,
    ) -> Tensor:
        """Add the clipped sum of n records from the recorded uses of a pass; return the (n, G) norms.

        Records whose norms are not finite are left out, as 0 * inf is NaN. The pass is not repeated without
        them: it would draw new dropout masks, under which other records may be finite.

        The tensors that a parameter's sum needs are freed before the next buffer is looked up, and small
        parameters come first. Buffers that are created on demand thus reuse the memory of the activations.
        """
        gradients = gradients_of(self.parameters, run)
        several = [batch_layers(gradients, group) for group in self.groups]
        norms = self._norms(gradients, several, n, thresholds)
        finite_norms = norms
        if _skip_zeros([*gradients.values(), *chain.from_iterable(several)]):
            # nothing waits for the device
            finite_norms = norms = norms.where(_finite(norms)[:, None], torch.inf)
        elif not (float(norms.sum()) < torch.inf or bool(_finite(norms).all())):  # the sum takes less time
            finite = _finite(norms)
            finite_norms, norms[~finite] = norms[finite], torch.inf
            if len(finite_norms) == 0:
                return norms
            gradients = {name: gradients.pop(name).of(finite) for name in list(gradients)}
            several = [[one.of(finite) for one in of_group] for of_group in several]
        factors = self._factors(finite_norms, thresholds, scale).unbind(1)
        self._add_each(gradients, several, accumulator, factors)
        return norms

    def _add_each(
        self,
        gradients: dict[str, Gradient],
        several: list[list[LayerBatch]],
        accumulator: Mapping[str, Tensor],
        factors: Sequence[Tensor],
    ) -> None:
        """Add the sums, weighted by each group's (n,) ``factors``; empty ``gradients`` and ``several``."""
        number = {name: number for number, group in enumerate(self.groups) for name in group}
        for some, of_group in zip(several, factors, strict=True):
            while some:
                some.pop().add_weighted(partial(self._buffer, accumulator), of_group)
        for name in self._small_first:
            gradient = gradients.pop(name, None)
            if gradient is not None and gradient.used:
                gradient.add_weighted(self._buffer(accumulator, name), factors[number[name]])

    def _norms(
        self,
        gradients: Mapping[str, Gradient],
        several: Sequence[list[LayerBatch]],
        n: int,
        thresholds: Tensor,
    ) -> Tensor:
        """Return the (n, G) norms in the data type of the thresholds."""
        squares = []
        for group, some in zip(self.groups, several, strict=True):
            used = [one.squared_norms() for one in some]
            apart = [gradients[name] for name in group if name in gradients]
            used += [gradient.squared_norms(n) for gradient in apart if gradient.used]
            total = torch.stack(used).sum(0, dtype=thresholds.dtype) if used else thresholds.new_zeros(n)
            squares.append(total)
        return torch.stack(squares, 1).sqrt_()


def _skip_zeros(gradients: Iterable[Gradient | LayerBatch]) -> bool:
    return all(one.skips_zeros for one in gradients)


def _finite(norms: Tensor) -> Tensor:
    """Return (n,) bool: whether all of a record's (n, G) norms, which are never negative, are finite."""
    return (norms < torch.inf).all(1)


# Splitting a batch into passes: several passes over parts of a batch are often faster than one pass.
#
# The activations of a large batch are blocks of tens of MiB. The system allocates them anew in each step,
# page by page, and touching fresh pages may take longer than computing their content. A small pass reuses
# the memory of the pass before. But each pass has fixed costs, namely its calls and one read and write of
# all sums, so it must not be too small. :func:`keep_memory` tells the allocator to keep freed blocks of
# tens of MiB.
#
# Letters: n records; K views; B = n K rows.


_TRIED = 2
"""The number of records in the pass that measures the memory of activations."""
_TIMES_PARAMETERS = 8
"""A pass may always take this many times the bytes of the parameters, as it reads and writes their sums."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_LARGEST_BLOCK = 32 * 2**20  # the largest value that glibc allows for M_MMAP_THRESHOLD
_REQUESTS: set[int] = set()  # sizes already requested


def keep_memory(most: int) -> None:
    """Let malloc keep up to ``most`` bytes of freed memory, at least 32 MiB, for the next step.

    By default, glibc keeps free memory at the end of its heap only up to twice the largest block that was
    ever freed, and at most 64 MiB. It returns the rest to the system, and blocks above 32 MiB immediately.
    Steps then touch tens of thousands of fresh pages, at 1.3 us each: up to a third of the time of a
    convolutional net. If a process calls this several times, the largest ``most`` counts. With other C
    libraries nothing happens. The user's ``MALLOC_TRIM_THRESHOLD_`` and ``MALLOC_MMAP_THRESHOLD_`` take
    precedence.

    >>> keep_memory(64 * 2**20)
    """
    size = min(max(most, _LARGEST_BLOCK), 2**31 - 1)
    settings = os.environ.keys() & {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}
    if size <= max(_REQUESTS, default=0) or settings or platform.libc_ver()[0] != "glibc":
        return
    _REQUESTS.add(size)
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_TRIM_THRESHOLD, size)
    mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)


def cut(batch: tuple[Tensor, ...], parts: int, views: int) -> list[tuple[Tensor, ...]]:
    """Split the batch (B, ...) into ``parts`` parts of nearly equal size, without splitting a record.

    >>> [len(rows) for (rows,) in cut((torch.zeros(10, 3),), 2, views=2)]
    [4, 6]
    """
    n = len(batch[0]) // views
    edges = [n * i // parts * views for i in range(parts + 1)]
    return [tuple(t[a:b] for t in batch) for a, b in pairwise(edges)]


@final
class Microbatches:
    """Splits batches into passes with a limited amount of activations.

    The limit is ``most`` bytes, or 8 times the bytes of the parameters if that is more. The memory of a
    record is measured once per shape, and stored in ``measured``.
    """

    def __init__(self, most: int, parameter_bytes: int, views: int, measured: dict[str, int]) -> None:
        self._most = max(most, _TIMES_PARAMETERS * parameter_bytes)
        self._views = views
        self._measured = measured

    def cut(
        self,
        batch: tuple[Tensor, ...],
        forward: Callable[[tuple[Tensor, ...]], object],
        kind: str,
        expected: int | None = None,
    ) -> list[tuple[Tensor, ...]]:
        """Split the batch (B, ...) into nearly equal parts, without splitting a record.

        The number of parts follows from ``expected``, a public number of records, so that a loss that counts
        its calls learns nothing. Parts may be empty.

        Args:
            batch: the rows.
            forward: a function that computes the losses of some rows.
            kind: all else that the size of activations depends on, in addition to the shapes of the rows.
            expected: the public number of records; None: that of the batch.
        """
        n = len(batch[0]) // self._views if expected is None else expected
        bytes_of_one = self._bytes_of_one(batch, forward, kind)
        passes = min(n, -(-n * bytes_of_one // self._most))
        if passes <= 1:
            return [batch]
        return cut(batch, passes, self._views)

    def _bytes_of_one(
        self, batch: tuple[Tensor, ...], forward: Callable[[tuple[Tensor, ...]], object], kind: str
    ) -> int:
        key = _key(batch, kind)
        if key not in self._measured:
            rows = min(len(batch[0]), _TRIED * self._views)
            self.measure(tuple(t[:rows] for t in batch), forward, kind)
        return self._measured[key]

    def measure(
        self, rows: tuple[Tensor, ...], forward: Callable[[tuple[Tensor, ...]], object], kind: str
    ) -> None:
        """Run ``forward`` on rows, and measure the memory of a record if it is not known yet."""
        if _key(rows, kind) in self._measured:
            forward(rows)
            return
        size = forward_bytes(forward, rows)
        self._measured[_key(rows, kind)] = -(-size * self._views // len(rows[0]))


def _key(batch: tuple[Tensor, ...], kind: str) -> str:
    shapes = " ".join(f"{tuple(t.shape[1:])} {t.dtype}" for t in batch)
    return f"{shapes} {kind}"


def forward_bytes(forward: Callable[[tuple[Tensor, ...]], object], batch: tuple[Tensor, ...]) -> int:
    """Return the bytes of all results computed from the batch; leave random generators unchanged.

    Results computed from parameters alone, such as the weight of weight_norm, do not count, as they do not
    grow with the batch.

    >>> forward_bytes(lambda batch: batch[0].double().tanh(), (torch.zeros(3, dtype=torch.float32),))
    48
    >>> weight = torch.ones(500)
    >>> forward_bytes(lambda batch: batch[0] * weight.square().sum(), (torch.zeros(3),))
    12
    """
    counting = _Counting(batch)
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), counting:
        torch.default_generator.manual_seed(0)
        forward(batch)
    return counting.total


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the memory of results computed from the batch, except views and in-place changes."""

    supports_higher_order_operators = True

    def __init__(self, batch: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self._of_batch = {t.untyped_storage()._cdata: t for t in batch}
        """The tensors by the address of their storage, held so that no address is reused."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        if inputs.isdisjoint(self._of_batch):
            return result
        for tensor in tree_leaves(result):
            if not isinstance(tensor, Tensor):
                continue
            if (storage := tensor.untyped_storage())._cdata not in inputs:
                self.total += storage.nbytes()
            self._of_batch.setdefault(storage._cdata, tensor)
        return result


def outputs_alone(
    model: nn.Module, output_of: Callable[[Tensor], Tensor], rows: Iterable[Tensor]
) -> Iterator[Tensor]:
    """Yield ``output_of(row)`` (1, ...) for rows (1, ...), each with the same random numbers.

    Each record has its own pass under vmap, in which no value of a record reaches Python, so the model can
    store nothing of a record for another. A model is refused if vmap cannot run it, if it reads a value or a
    tensor of another record, or if it returns another output for the same record in its next call.
    """
    devices = devices_of(model.parameters())

    def output(row: Tensor) -> Tensor:
        begin_at(0, devices)
        run = Pass(model.parameters(), 1, 1, RULES, Kept, FAST)

        def one(record: Tensor) -> Tensor:
            with run:
                result = output_of(record)
            run.returns(result)
            return result

        try:
            with torch.enable_grad(), refusing_failures(), isolated(run):
                outputs = run.of_each(one, [row[None]])
        finally:
            run.clear()
        refuse_wrapped(model)
        return outputs[0].detach()

    checked = False
    with torch.random.fork_rng(devices=devices), only_torch_draws():
        for row in rows:
            if not checked:
                zeros = torch.zeros_like(row)
                if not same(output(zeros), output(zeros)):
                    raise UnsupportedModel(BY_CALLS)
                checked = True

            yield output(row)
