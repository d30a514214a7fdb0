"""What does a pass do? The execution trace: long, as recording, comparing and replaying are one format.

Letters: B rows of the batch.

Two batches with the same trace have the same operations done to them, in the same order, on the results of
the same operations, with the same sizes, names and slices.  A trace is recorded once, at two batch sizes: a
whole number that grows with B is then known from one that does not, and any other dependence on B is seen.
Later passes are compared with it, operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias, final
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn

__all__ = [
    "Kept",
    "NewTrace",
    "ReadsKept",
    "Recording",
    "Replay",
    "Step",
    "Trace",
    "Unseen",
    "combined",
    "tensors_in",
]

MOST_TRACES = 256
"""How many traces of batches of one kind are remembered."""
MOST_VALUES = 4096
"""How many values of a data-independent tensor are compared between two batch sizes."""
_UNKNOWN = -1
"""The number of a tensor that no operation made that is seen, such as a gradient."""
_TRUTH = {True: "True", False: "False"}  # Python takes 1 for equal to True
Atoms: TypeAlias = tuple[Any, ...]
Action: TypeAlias = Callable[..., Any]


class Unseen(Exception):
    """It cannot be shown that records are isolated; never leaves the fast engine."""


class ReadsKept(Exception):
    """A pass reads a tensor that was kept of an earlier one; never leaves the fast engine."""


class NewTrace(Exception):
    """A batch does something that no trace has; never leaves the fast engine."""


def tensors_in(args: Iterable[Any], kwargs: Mapping[str, Any] | None = None) -> list[Tensor]:
    """Return the tensors in nested arguments.

    >>> len(tensors_in([torch.zeros(2), [torch.zeros(2), 3]], {"x": {"y": torch.zeros(2)}}))
    3
    """
    found = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += tensors_in(value)
        elif isinstance(value, dict):
            found += tensors_in(value.values())
    return found


@dataclass(slots=True)
class Step:
    """One operation of a trace.

    Attributes:
        func: what is called.
        atoms: its arguments: tensors by number, whole numbers, names; a :class:`_PerRow` grows with B.
        differentiated: whether autograd watches.
        action: how the recorder carries it out; None as it is.
        laden: whether some record's numbers are in its results.
        numbers: of its results.
        free: what is in those of no record, as long as it is recorded: shape and values.
        decisions: what the rule found out by comparing shapes with B, which other sizes may equal by chance.
    """

    func: Any
    atoms: Atoms
    differentiated: bool
    action: Action | None = None
    laden: bool = False
    numbers: tuple[int, ...] = ()
    free: tuple[Any, ...] = ()
    decisions: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _PerRow:
    """A whole number that is ``times`` B + ``plus``."""

    times: int
    plus: int


@final
@dataclass(eq=False)
class Trace:
    """The steps of both passes, and what is known of batches that take them.

    Attributes:
        steps: the operations.
        floats: the numbers that are no whole ones which Python hands to them.
        rows: B of the only batch size for which this holds; None for all.
        per_record: why records that take it go one by one; None if they are isolated.
        failed: why it ends: records are not isolated in what follows.
        reads_values: whether Python reads values of records on it.
        counts_rows: whether tensors of no record number the rows, or count them.
        computes_with_rows: whether B is handed to operations otherwise than as a size.
        probed: numbers of records that were probed.
        up_to: batches of more records have to be probed; None for no bound.
    """

    steps: list[Step]
    floats: list[str]
    rows: int | None = None
    per_record: str | None = None
    failed: str | None = None
    reads_values: bool = False
    counts_rows: bool = False
    computes_with_rows: bool = True
    probed: set[int] = field(default_factory=set)
    up_to: int | None = 0
    _at: dict[int, list[Atoms]] = field(default_factory=dict)

    def at(self, rows: int) -> list[Atoms] | None:
        """The arguments of its steps in a batch of ``rows``; None if it does not hold there."""
        if self.rows is not None:
            return [step.atoms for step in self.steps] if rows == self.rows else None
        if rows not in self._at:
            if len(self._at) > MOST_TRACES:
                self._at.clear()
            self._at[rows] = [_filled_in(step.atoms, rows) for step in self.steps]
        return self._at[rows]


def combined(one: Recording, other: Recording) -> Trace | None:
    """One trace for all batch sizes from recordings at two; None if they did not do the same."""
    if len(one.steps) != len(other.steps):
        return None
    steps = []
    for a, b in zip(one.steps, other.steps, strict=True):
        same = a.func == b.func and a.action is b.action and a.decisions == b.decisions
        atoms = _solved(a.atoms, b.atoms, one.rows, other.rows)
        if not same or a.differentiated != b.differentiated or atoms is None:
            return None
        steps.append(
            Step(a.func, atoms, a.differentiated, a.action, a.laden or b.laden, decisions=a.decisions)
        )
    if one.floats != other.floats:
        return None
    return Trace(
        steps,
        one.floats,
        counts_rows=_counts_rows(one.steps, other.steps),
        computes_with_rows=_computes(steps),
    )


def _computes(steps: Iterable[Step]) -> bool:
    """Whether B is handed to operations otherwise than as a size."""
    return any(step.func not in _SIZED and _has_rows(step.atoms) for step in steps)


def _has_rows(atoms: Atoms) -> bool:
    return any(type(a) is _PerRow or (type(a) is tuple and _has_rows(a)) for a in atoms)


def free_of(tensors: Iterable[Tensor]) -> tuple[Any, ...]:
    """What tensors of no record hold: shape, whether rows are alike along two dimensions, values."""
    found = []
    for t in tensors:
        alike = [bool((t == t.narrow(d, 0, 1)).all()) for d in range(min(t.dim(), 2)) if t.shape[d] > 0]
        found.append((tuple(t.shape), alike, t.flatten()[:MOST_VALUES].tolist()))
    return tuple(found)


def _counts_rows(one: Sequence[Step], other: Sequence[Step]) -> bool:
    """Whether tensors of no record number the rows, or count them, beyond looking rows up in their order.

    They are known by what they hold at two batch sizes: another value, or more rows that are not all alike.
    """
    numbering: set[str] = set()
    repeating: set[str] = set()  # one row, as often as there are records
    for a, b in zip(one, other, strict=True):
        reads = bool(numbering & set(_numbers_in(a.atoms)))
        if reads and a.func not in _LOOKING_UP and a.func not in _REARRANGING:
            return True
        if reads and a.func in _REARRANGING:
            numbering.update(f"t{number}" for number in a.numbers)
        for x, y in zip(a.free, b.free, strict=False):
            if x == y:
                continue
            grown = [d for d in range(min(len(x[0]), len(y[0]), 2)) if x[0][d] != y[0][d]]
            copies = len(x[0]) == len(y[0]) and all(x[1][d] and y[1][d] for d in grown if d < len(x[1]))
            if grown and copies and (a.func not in _PART_OF or f"{a.atoms[0]}" in repeating):
                repeating.update(f"t{number}" for number in a.numbers)
                continue
            if a.func is not torch.arange and not reads:
                return True
            numbering.update(f"t{number}" for number in a.numbers)
    return False


def _numbers_in(atoms: Atoms) -> Iterator[str]:
    for atom in atoms:
        if isinstance(atom, tuple):
            yield from _numbers_in(atom)
        elif isinstance(atom, str):
            yield atom


_SIZED = frozenset(
    {
        Tensor.view,
        Tensor.reshape,
        torch.reshape,
        Tensor.expand,
        Tensor.repeat,
        torch.zeros,
        torch.ones,
        torch.empty,
    }
    | {Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, torch.arange, Tensor.unflatten, torch.unflatten}
    | {torch.rand, torch.randn, Tensor.split, Tensor.view_as}
)
"""Operations that take numbers as sizes."""
_LOOKING_UP = frozenset({Tensor.__getitem__, torch.index_select, Tensor.index_select})
_PART_OF = _LOOKING_UP | {torch.narrow, Tensor.narrow}
"""Operations that take rows out of a table, which need not be alike further down."""
_REARRANGING = frozenset(
    {Tensor.view, Tensor.reshape, torch.reshape, Tensor.unsqueeze, torch.unsqueeze, Tensor.to, Tensor.long}
    | {Tensor.expand, Tensor.shape.__get__, Tensor.dtype.__get__, Tensor.device.__get__, Tensor.size}  # type: ignore[attr-defined]
)
"""Operations by which numbered rows may be looked up in their order."""


def _solved(a: Atoms, b: Atoms, rows: int, other_rows: int) -> Atoms | None:
    if len(a) != len(b):
        return None
    found: list[Any] = []
    for x, y in zip(a, b, strict=True):
        if type(x) is tuple and type(y) is tuple:
            if (inner := _solved(x, y, rows, other_rows)) is None:
                return None
            found.append(inner)
        elif type(x) is int and type(y) is int and x != y:
            times, rest = divmod(y - x, other_rows - rows)
            if rest:
                return None
            found.append(_PerRow(times, x - times * rows))
        elif x != y:
            return None
        else:
            found.append(x)
    return tuple(found)


def _filled_in(atoms: Atoms, rows: int) -> Atoms:
    """The same with the numbers that grow with B."""
    return tuple(
        atom.times * rows + atom.plus
        if type(atom) is _PerRow
        else _filled_in(atom, rows)
        if type(atom) is tuple
        else atom
        for atom in atoms
    )


@final
class Kept:
    """Tensors of earlier passes that are still there: a loss keeps them, and must not read them again."""

    def __init__(self) -> None:
        self._there: dict[int, ref[Tensor]] = {}

    def add(self, tensors: Iterable[ref[Tensor]]) -> None:
        """Remember those that are still there."""
        if len(self._there) > MOST_TRACES:
            self._there = {key: one for key, one in self._there.items() if one() is not None}
        self._there.update((id(tensor), one) for one in tensors if (tensor := one()) is not None)

    def __contains__(self, tensor: Tensor) -> bool:
        found = self._there.get(id(tensor))
        return found is not None and found() is tensor


class _Log:
    """Numbers the tensors of a pass, and turns arguments into atoms."""

    def __init__(self, rows: int, given: Iterable[Tensor], kept: Kept) -> None:
        self.rows = rows
        self._kept = kept
        self.floats: list[str] = []
        self._given = {id(tensor): number for number, tensor in enumerate(given)}
        self._made: dict[int, tuple[ref[Tensor], int, bool]] = {}
        self._batch: list[ref[Tensor]] = []
        self._results = len(self._given)

    def give(self, batch: Iterable[Tensor]) -> None:
        """Know tensors that are there from the start."""
        for tensor in batch:
            self._given[id(tensor)] = self._results = self._results + 1
            self._batch.append(ref(tensor))

    def made(self, result: Any, *, laden: bool) -> tuple[int, ...]:
        """Know results again, in which there are some record's numbers, or not; return their numbers."""
        before = self._results
        for tensor in (result,) if isinstance(result, Tensor) else tensors_in((result,)):
            self._results += 1
            self._made[id(tensor)] = ref(tensor), self._results, laden
        return tuple(range(before + 1, self._results + 1))

    def knows(self, tensor: Tensor) -> bool:
        """Whether a tensor has a number."""
        return self._number(tensor) != _UNKNOWN

    def clear(self) -> None:
        """Forget what was made, but for what of the records is still there."""
        self._kept.add(self._batch)
        self._kept.add(one for one, _, laden in self._made.values() if laden)
        self._made.clear()
        self._given.clear()

    def _number(self, tensor: Tensor) -> int:
        made = self._made.get(id(tensor))
        if made is not None and made[0]() is tensor:
            return made[1]
        number = self._given.get(id(tensor), _UNKNOWN)
        if number == _UNKNOWN and tensor in self._kept:
            raise ReadsKept
        return number

    def _atoms(self, values: Iterable[Any]) -> Atoms:
        found: list[Any] = []
        for value in values:
            kind = type(value)
            if kind is Tensor or kind is nn.Parameter:
                found.append(f"t{self._number(value)}")
            elif kind is int or value is None or kind is str or kind is torch.dtype:
                found.append(value)
            elif kind is bool:
                found.append(_TRUTH[value])
            elif kind is float:
                found.append(self._float(value))
            else:
                found.append(self._atom(kind, value))
        return tuple(found)

    def _atom(self, kind: type, value: Any) -> Any:
        """An argument of a kind that is rare."""
        if isinstance(value, tuple | list):
            return self._atoms(value)
        if kind in (slice, range):
            return kind.__name__, *self._atoms((value.start, value.stop, value.step))
        if kind is dict:
            return tuple((str(name), self._atoms((inner,))) for name, inner in value.items())
        if isinstance(value, Tensor):
            return f"t{self._number(value)}"
        if isinstance(value, np.integer | int):
            return int(value)
        if isinstance(value, np.floating | float):
            return self._float(float(value))
        if isinstance(value, np.ndarray):
            return value.shape, value.dtype.str, value.tobytes()
        if value is ... or isinstance(value, complex | str | bytes | torch.device | np.generic):
            return repr(value)
        return kind.__name__ if not isinstance(value, Enum) else repr(value)

    def _float(self, value: float) -> str:
        """Its bits are compared by themselves, as schedules change them; 0 and 1 switch things off and on."""
        if value in (0.0, 1.0):
            return str(value)
        self.floats.append(value.hex())
        return "float"


@final
class Recording(_Log):
    """Writes the steps of a pass down."""

    def __init__(self, rows: int, given: Iterable[Tensor], kept: Kept) -> None:
        super().__init__(rows, given, kept)
        self.steps: list[Step] = []

    def next(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Step:
        """The step that an operation is."""
        atoms = self._atoms((*args, *kwargs.items())) if kwargs else self._atoms(args)
        self.steps.append(Step(func, atoms, torch.is_grad_enabled()))
        return self.steps[-1]

    def trace(self) -> Trace:
        """That of this batch size alone."""
        return Trace(self.steps, self.floats, self.rows)


@final
class Replay(_Log):
    """Finds each operation of a pass in one of the ``known`` traces."""

    def __init__(self, rows: int, given: Iterable[Tensor], kept: Kept, known: Iterable[Trace]) -> None:
        super().__init__(rows, given, kept)
        self._left = list(known)
        self._atoms_of: list[Atoms] = []
        self._number_of_steps = 0
        self.trace = Trace([], [])

    def next(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Step:
        """The step that an operation is.

        Raises:
            NewTrace: no trace has it here.
        """
        at = self._number_of_steps
        atoms = self._atoms((*args, *kwargs.items())) if kwargs else self._atoms(args)
        watched = torch.is_grad_enabled()
        if at < len(self._atoms_of) and self._is(
            self.trace.steps[at], self._atoms_of[at], func, atoms, watched
        ):
            self._number_of_steps = at + 1
            return self.trace.steps[at]
        if at == len(self._atoms_of) and self.trace.failed is not None:
            raise Unseen(self.trace.failed)
        before, expected = self.trace.steps[:at], self._atoms_of[:at]

        def fits(trace: Trace, own: list[Atoms]) -> bool:
            same = own[:at] == expected
            same = same and all(a.func == b.func for a, b in zip(trace.steps, before, strict=False))
            if same and len(trace.steps) == at and trace.failed is not None:
                raise Unseen(trace.failed)
            return same and len(trace.steps) > at and self._is(trace.steps[at], own[at], func, atoms, watched)

        self.trace = self._follow(fits)
        self._number_of_steps = at + 1
        return self.trace.steps[at]

    @staticmethod
    def _is(step: Step, expected: Atoms, func: Any, atoms: Atoms, watched: bool) -> bool:
        same: bool = atoms == expected and step.func == func and step.differentiated == watched
        return same

    def _follow(self, fits: Callable[[Trace, list[Atoms]], bool]) -> Trace:
        """Go on by one of the traces that were not ruled out yet."""
        while self._left:
            trace = self._left.pop()
            atoms = trace.at(self.rows)
            if atoms is not None and fits(trace, atoms):
                self._atoms_of = atoms
                return trace
        raise NewTrace

    def end(self) -> Trace:
        """The trace that the pass took.

        Raises:
            NewTrace: all of them go on.
        """
        at = self._number_of_steps
        if at < len(self._atoms_of):
            before, expected = self.trace.steps[:at], self._atoms_of[:at]

            def ends(trace: Trace, own: list[Atoms]) -> bool:
                return own == expected and all(
                    a.func == b.func for a, b in zip(trace.steps, before, strict=True)
                )

            self.trace = self._follow(ends)
        return self.trace
