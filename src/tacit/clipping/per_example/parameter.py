"""The per-record gradients of one parameter, from all its uses in a batch.

Letters: n records; m records of a chunk.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, cast, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from tacit.clipping.isolation.reasons import OF_WEIGHT
from tacit.clipping.isolation.under_vmap import Pass
from tacit.clipping.per_example import linear
from tacit.clipping.per_example.embedding import Lookup, looked_up
from tacit.clipping.per_example.linear import Outer, Pair, settled
from tacit.clipping.per_example.use import (
    Kept,
    Late,
    Rearranged,
    Use,
    cancellation,
    chunks,
    form,
    row_squares,
    stackable,
    widened,
)
from tacit.clipping.per_example.weight_norm import NormedWeight, normed_weight
from tacit.errors import UnsupportedModel

# Merging several uses of one parameter, such as a layer applied twice or an embedding tied to the head.
#
# Letters: n records; V rows of the table; d their width; T positions that are looked up, with gradients
# e_t; U positions of the head, with inputs h_u and gradients l_u of its V outputs; i_t the number looked up
# at t.
#
# The gradient of a record is H + E, with H = sum_u l_u h_u^T of the head and E = sum_t 1_{i_t} e_t^T of the
# table, both (V, d). The norm of the sum needs their inner product too::
#
#     |H + E|^2 = |H|^2 + |E|^2 + 2 sum_{t,u} l_u[i_t] (e_t . h_u)
#
# This needs no tensor of size V d per record.


PRODUCTS = 2**20
"""The most entries of (T, U) products computed at once, so that they stay in the cache."""


def as_one_use(uses: Sequence[Use]) -> Use | None:
    """Return the uses of one parameter as one use, if there is a rule for the norm of its gradients."""
    if len(uses) == 1:
        return uses[0]
    lookups = [use for use in uses if isinstance(use, Lookup)]
    rest = [use for use in uses if not isinstance(use, Lookup)]
    if not lookups:
        return linear.merged(rest)
    table = Lookup(
        torch.cat([use.numbers for use in lookups], dim=1),
        torch.cat([use.g for use in lookups], dim=1),
        lookups[0].V,
    )
    if not rest:
        return table
    head = linear.merged(rest)
    head = head.at_positions() if isinstance(head, linear.Pair) else head
    return _Tied(head, table) if isinstance(head, Outer) else None


@final
class _Tied(Use):
    """The gradient H + E of a tied embedding."""

    def __init__(self, head: Outer, table: Lookup) -> None:
        self._head, self._table = head, table
        self.skips_zeros = head.skips_zeros and table.skips_zeros

    def squared_norms(self) -> Tensor:
        left, right, e = (widened(t) for t in (self._head.left, self._head.right, self._table.g))
        n, U = left.shape[:2]
        m = max(1, PRODUCTS // max(1, U * e.shape[1]))
        parts = [slice(start, start + m) for start in range(0, n, m)]
        cross = torch.cat([_cross(left[i], right[i], self._table.numbers[i], e[i]) for i in parts])
        squares = self._head.squared_norms() + self._table.squared_norms() + 2 * cross
        spread = (row_squares(left) * row_squares(right)).sqrt().sum(1) + row_squares(e).sqrt().sum(1)
        kappa = cancellation(left.dtype, max(left.shape[2], right.shape[2]))
        return squares.clamp(min=0.0) + kappa * spread.square()

    def gradients(self, start: int, stop: int) -> Tensor:
        return self._head.gradients(start, stop) + self._table.gradients(start, stop)

    def of(self, records: Tensor) -> _Tied:
        return _Tied(self._head.of(records), self._table.of(records))

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        self._head.add_weighted(accumulator, factors)
        self._table.add_weighted(accumulator, factors)


def _cross(left: Tensor, right: Tensor, numbers: Tensor, e: Tensor) -> Tensor:
    """Return sum_{t,u} l_u[i_t] (h_u . e_t), (m,), from (m, U, V), (m, U, d), (m, T) and (m, T, d)."""
    at_numbers = left.gather(2, numbers[:, None, :].expand(-1, left.shape[1], -1))  # (m, U, T)
    return (at_numbers * (right @ e.transpose(1, 2))).sum((1, 2))


SMALL = {"cpu": 2**11, "cuda": 2**16}
"""By device type, the most values of a parameter whose gradients are joined with those of others.

Each small operation takes some microseconds, and on CUDA devices these dominate the time of a step.
"""


@final
class Gradient:
    """The gradients g_i of n records from all uses of one parameter, including those of derived sources.

    If there are several uses, their gradients are formed, ``most`` bytes at once, and added. They may cancel,
    so norms and weighted sums must use the same numbers: forming them again gives bitwise the same result.
    """

    def __init__(
        self,
        parameter: nn.Parameter,
        own: list[Use],
        derived: list[tuple[Tensor, list[Use]]],
        most: int,
    ) -> None:
        self._parameter, self._most = parameter, most
        if len(own) > 1 or derived:
            own = [settled(use) for use in own]
        one = as_one_use(own)
        self._own = own if one is None else [one]
        self._derived = derived

    @property
    def used(self) -> bool:
        return bool(self._own or self._derived)

    @property
    def alone(self) -> Use | None:
        """The only use, which need not be formed; None if there are several."""
        return self._own[0] if len(self._own) == 1 and not self._derived else None

    @property
    def small(self) -> Kept | None:
        """The formed gradients if they are small and not shared with other uses, else None."""
        use = self.alone
        if not isinstance(use, Kept) or use.shared or use.rows.dtype != torch.float32:
            return None
        return use if self._parameter.numel() <= SMALL.get(self._parameter.device.type, 0) else None

    def settle(self) -> None:
        """Choose the form of a linear map's gradients, which are not stacked with those of others."""
        self._own = [settled(use) for use in self._own]

    def squared_norms(self, n: int) -> Tensor:
        """Return |g_i|^2, (n,); uses are summed before they are squared."""
        if self.alone is not None:
            return self.alone.squared_norms()
        return torch.cat([part.squared_norms() for _, _, part in self._formed(n)])

    def _formed(self, n: int) -> Iterator[tuple[int, int, Kept]]:
        """Yield g_i of the records start to stop - 1, with these two indices."""
        size = self._parameter.numel() * self._parameter.element_size()
        for start, stop in chunks(n, size, self._most):
            yield start, stop, Kept(widened(self.gradients(start, stop)))

    def gradients(self, start: int, stop: int) -> Tensor:
        """Return g_i of the records start to stop - 1, (m, *shape), for a parameter that is used."""
        total = sum(use.gradients(start, stop) for use in self._own)
        if self._derived:
            sources = [source for source, _ in self._derived]
            parts = [sum(use.gradients(start, stop) for use in uses) for _, uses in self._derived]
            total = total + _pulled(sources, self._parameter, cast(list[Tensor], parts))
        assert isinstance(total, Tensor)
        return total

    @property
    def skips_zeros(self) -> bool:
        """Whether a record whose factor is 0 adds nothing, even if its gradient is infinite or NaN."""
        return not self.used or (self.alone is not None and self.alone.skips_zeros)

    def of(self, records: Tensor) -> Gradient:
        """Return the gradients of some records, (n,) bool."""
        derived = [(source, [use.of(records) for use in uses]) for source, uses in self._derived]
        return Gradient(self._parameter, [use.of(records) for use in self._own], derived, self._most)

    def add_weighted(self, accumulator: Tensor, factors: Tensor) -> None:
        """Add sum_i factors_i g_i to the accumulator, in place."""
        factors = factors.to(accumulator.dtype)  # types differ in a model with parameters of several types
        if self.alone is not None:
            self.alone.add_weighted(accumulator, factors)
        else:
            for start, stop, part in self._formed(len(factors)):
                part.add_weighted(accumulator, factors[start:stop])


def gradients_of(parameters: Mapping[str, nn.Parameter], run: Pass) -> dict[str, Gradient]:
    """Remove all uses from the recorder, and return the gradients of each parameter, by name."""
    for late in filter(None, run.waiting.values()):
        form(late)
    run.waiting.clear()
    uses = {key: [_kept(use) for use in of_source] for key, of_source in run.uses.items()}
    run.uses.clear()
    derived = [
        (source, [settled(use) for use in uses[key]], _leaves(source))
        for key, source in run.sources.items()
        if key in uses and not source.is_leaf
    ]
    n, most = run.n, run.budget.chunk_bytes
    normed = {id(source): normed_weight(source, of_source, n, most) for source, of_source, _ in derived}
    return {
        name: _gradient_of(
            p,
            uses.get(id(p), []),
            [(source, of_source) for source, of_source, leaves in derived if id(p) in leaves],
            n,
            most,
            normed,
        )
        for name, p in parameters.items()
    }


def _kept(use: Use | Late) -> Use:
    """Return a use, with the gradients of one that waited for others."""
    if not isinstance(use, Late):
        return use
    assert use.result is not None
    return use.result


def _gradient_of(
    parameter: nn.Parameter,
    own: list[Use],
    derived: list[tuple[Tensor, list[Use]]],
    n: int,
    most: int,
    normed: Mapping[int, NormedWeight | None],
) -> Gradient:
    """Return the gradients of one parameter; uses of its views become uses of the parameter."""
    indirect: list[tuple[Tensor, list[Use]]] = []
    for source, uses in derived:
        if _is_view_of(source, parameter):
            one = as_one_use(uses)
            own = own + [_rearranged(use, source, parameter) for use in (uses if one is None else [one])]
        elif (rows := looked_up(source, parameter, uses, n)) is not None:
            own = [*own, rows]
        else:
            indirect.append((source, uses))
    if len(indirect) == 1 and not own:
        weight = normed.get(id(indirect[0][0]))
        by_norm = None if weight is None else weight.use_by(parameter)
        if by_norm is not None:
            return Gradient(parameter, [by_norm], [], most)
    return Gradient(parameter, own, indirect, most)


def _rearranged(use: Use, source: Tensor, parameter: nn.Parameter) -> Use:
    """Return the use of a view as a use of the parameter; one of ``W.T`` can then be merged with others."""
    transposed = parameter.dim() == 2 and source.shape == parameter.shape[::-1] and source.stride(0) == 1
    if transposed and isinstance(use, Outer | Pair):
        return use.turned()
    return Rearranged(use, source, parameter)


def _is_view_of(source: Tensor, parameter: nn.Parameter) -> bool:
    """Return whether a source is a view of all values, so that its gradient is only rearranged."""
    same = source._base is parameter and source.numel() == parameter.numel() and parameter.is_contiguous()
    ordered = sorted(range(source.dim()), key=source.stride, reverse=True)
    if not same or not source.permute(ordered).is_contiguous() or source._backward_hooks:
        return False
    node = source.grad_fn
    while node is not None and type(node).__name__ in _VIEWS:
        node = node.next_functions[0][0]
    return getattr(node, "variable", None) is parameter


_VIEWS = frozenset(
    {"AliasBackward0", "PermuteBackward0", "ReshapeAliasBackward0", "TBackward0", "TransposeBackward0"}
    | {"SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2", "UnsqueezeBackward0"}
    | {"UnsafeViewBackward0", "ViewBackward0"}
)
"""Graph nodes of views of all values, which only change the shape or the order of a gradient."""


def _leaves(source: Tensor) -> set[int]:
    """Return the ids of the parameters from which a source is derived, according to its graph.

    A node of the user's own code is refused: it could compute another gradient for the sum than for the norm.
    """
    leaves: set[int] = set()
    visited: set[Node] = set()
    todo = [source.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        kind: type = type(node)  # of a class that Python defines, for a torch.autograd.Function
        if issubclass(kind, torch.autograd.function.BackwardCFunction):
            raise UnsupportedModel(OF_WEIGHT)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            leaves.add(id(leaf))
        todo += [before for before, _ in node.next_functions]
    return leaves


def _pulled(sources: list[Tensor], parameter: nn.Parameter, parts: list[Tensor]) -> Tensor:
    """Return a parameter's gradients through derived sources, summed over the sources, for m records.

    ``parts``: the (m, *shape) gradients of each source. Autograd takes all records through the graph at once,
    or one by one if the graph has an operation that cannot be batched.
    """
    parts = [part.to(source.dtype) for source, part in zip(sources, parts, strict=True)]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            return _gradient(sources, parameter, parts, batched=True)
    except RuntimeError:
        return torch.stack([_gradient(sources, parameter, one) for one in zip(*parts, strict=True)])


def _gradient(
    sources: Sequence[Tensor], parameter: nn.Parameter, parts: Sequence[Tensor], *, batched: bool = False
) -> Tensor:
    gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
        sources, parameter, parts, retain_graph=True, allow_unused=True, is_grads_batched=batched
    )
    if gradients[0] is not None:
        return gradients[0]
    leading = parts[0].shape[:1] if batched else ()
    return parameter.new_zeros(*leading, *parameter.shape)  # the sources do not depend on it after all


# Joining of equal layers, so that one call computes norms or sums of several parameters' gradients.
#
# In a model with many small layers, calls take more time than the arithmetic. So tensors of uses with equal
# shapes are stacked, and each call serves all of them. Large tensors stay separate, as copying them takes
# more time than it saves (:func:`tacit.clipping.per_example.use.stackable`).
#
# Letters: n records; L layers; P numbers of a parameter.


def batch_layers(gradients: dict[str, Gradient], names: Sequence[str]) -> list[LayerBatch]:
    """Join the gradients of equal or small parameters with these names; remove them from ``gradients``.

    For unformed gradients that have no equal, choose the form that they have alone.
    """
    several: list[LayerBatch] = list(_stacks(gradients, names))
    for name in names:
        if name in gradients:
            gradients[name].settle()
    small = _joined(gradients, names)
    return several if small is None else [*several, small]


def _stacks(gradients: dict[str, Gradient], names: Sequence[str]) -> Iterator[_Stack]:
    """Stack equal linear maps, a limited number at a time, and free the tensors that a stack copies."""
    for alike in _alike(gradients, names):
        most = stackable(alike[0][1].left, alike[0][1].right)
        while min(most, len(alike)) > 1:
            of, uses = zip(*alike[:most], strict=True)
            del alike[:most]
            left, right = torch.cat([use.left for use in uses]), torch.cat([use.right for use in uses])
            stack = Outer(left, right, uses[0].slack)
            for name in of:
                del gradients[name]
            del uses
            yield _Stack(of, stack.settled())


def _alike(gradients: Mapping[str, Gradient], names: Sequence[str]) -> list[list[tuple[str, Outer]]]:
    groups: dict[object, list[tuple[str, Outer]]] = {}
    for name in names:
        use = gradients[name].alone if name in gradients else None
        if isinstance(use, Outer):
            left, right = use.left, use.right
            key = left.shape, right.shape, left.dtype, right.dtype, left.device, use.slack
            groups.setdefault(key, []).append((name, use))
    return list(groups.values())


@final
class _Stack:
    """Gradients of L parameters of one shape, as a use of L n records."""

    def __init__(self, names: Sequence[str], use: Kept | Outer) -> None:
        self._names, self._use = names, use
        self.skips_zeros = use.skips_zeros

    def squared_norms(self) -> Tensor:
        return self._use.squared_norms().view(len(self._names), -1).sum(0)

    def of(self, records: Tensor) -> _Stack:
        return _Stack(self._names, self._use.of(records.repeat(len(self._names))))

    def add_weighted(self, buffer: Callable[[str], Tensor], factors: Tensor) -> None:
        buffers = [buffer(name) for name in self._names]
        self._use.add_weighted_each(buffers, factors.to(buffers[0].dtype))


@final
class _Joined:
    """Small gradients of several parameters side by side, (n, P)."""

    def __init__(self, names: Sequence[str], rows: Sequence[Tensor]) -> None:
        self._names, self._sizes = names, [part.shape[1] for part in rows]
        self._kept = Kept(torch.cat(list(rows), 1))
        self.skips_zeros = self._kept.skips_zeros

    def squared_norms(self) -> Tensor:
        return self._kept.squared_norms()

    def of(self, records: Tensor) -> _Joined:
        return _Joined(self._names, self._kept.rows[records].split_with_sizes(self._sizes, 1))

    def add_weighted(self, buffer: Callable[[str], Tensor], factors: Tensor) -> None:
        """Join the buffers, which contain noise, add the sum, and copy back."""
        buffers = [buffer(name) for name in self._names]
        total = torch.cat([b.reshape(-1) for b in buffers])
        self._kept.add_weighted(total, factors.to(total.dtype))
        parts = zip(total.split_with_sizes(self._sizes), buffers, strict=True)
        torch._foreach_copy_(buffers, [part if b.dim() == 1 else part.view_as(b) for part, b in parts])


def _joined(gradients: dict[str, Gradient], names: Sequence[str]) -> _Joined | None:
    """Join the small gradients of those names if there are two or more; remove them from ``gradients``."""
    small = {name: use for name in names if name in gradients and (use := gradients[name].small) is not None}
    if len(small) < 2:
        return None
    for name in small:
        del gradients[name]
    return _Joined(list(small), [use.rows for use in small.values()])


LayerBatch: TypeAlias = _Stack | _Joined
"""Gradients of several parameters of one group, with joint norms and sums."""
