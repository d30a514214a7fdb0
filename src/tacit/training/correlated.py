"""Noise that is correlated across steps.

Letters: P numbers of a type in all parameters; b - 1 earlier steps whose noise is stored; K sums of J rows.
"""

# It is complete before the engine adds the first gradient, and the same however often a step is begun, also
# in a resumed run.  :func:`combine` adds rows entry by entry in their order, so the result does not depend
# on shards or threads, which a library's matrix product does not promise.

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, final

import torch
from torch import Tensor

from tacit import native
from tacit.correlation import Correlation
from tacit.correlation.forms import BLOCK
from tacit.noise.generator import Generator
from tacit.training.part import Part
from tacit.training.ranks import Sums


@final
class CorrelatedNoise(Part):
    """The correlated noise of a run's steps, as each rank draws it."""

    def __init__(self, correlation: Correlation) -> None:
        self._correlation = correlation
        self._step: int | None = -1  # the last step whose noise was made; None while one is being made
        # All parameters of one type form one row, so that operations are few.
        self._earlier: dict[torch.dtype, _Steps | _Buffers] = {}

    def load(self, state: Mapping[str, Any], generator: Generator) -> None:
        self._step = -1
        self._earlier.clear()  # this noise belongs to the old key

    def begin(self, step: int, draw: Callable[[int], Sums]) -> Sums:
        """Return the buffers of a step with its noise; ``draw(t)`` has independent noise t."""
        if self._correlation.feedback and (self._step is None or step not in (self._step, self._step + 1)):
            self._earlier.clear()
            for earlier in range(step):  # after a resume or an interrupt, all noise is drawn again
                self._noise_of(earlier, draw)
        return self._noise_of(step, draw)

    def _noise_of(self, step: int, draw: Callable[[int], Sums]) -> Sums:
        self._step = None
        (address, weight), *rest = self._correlation.terms(step)
        buffers = draw(address)
        noise = [*buffers.noise.values()]
        with torch.no_grad():
            if weight != 1.0:
                for part in noise:
                    part.mul_(weight)
            for address, weight in rest:
                for part, further in zip(noise, draw(address).noise.values(), strict=True):
                    part.add_(further, alpha=weight)
            if self._correlation.feedback:
                self._subtract_earlier(step, noise)
        self._step = step
        return buffers

    def _subtract_earlier(self, step: int, noise: list[Tensor]) -> None:
        for dtype in {part.dtype: None for part in noise}:
            parts = [part.view(-1) for part in noise if part.dtype == dtype]
            if dtype not in self._earlier:
                kind = _Buffers if self._correlation.kept_share else _Steps
                like = parts[0].new_empty(sum(part.numel() for part in parts))
                self._earlier[dtype] = kind(self._correlation, like)
            whole = self._earlier[dtype].less(step, parts)
            start = 0
            for part in parts:
                part.copy_(whole[start : start + part.numel()])
                start += part.numel()


@final
class _Steps:
    """The noise of the last b steps, including the current one; the noise of step t is in row t modulo b.

    Many rows form blocks: the sums of earlier blocks are computed at a block's beginning, reading each row
    once.
    """

    def __init__(self, correlation: Correlation, like: Tensor) -> None:
        self._feedback = correlation.feedback
        self._rows = [torch.empty_like(like) for _ in range(len(self._feedback) + 1)]
        self._ahead = (
            [torch.empty_like(like) for _ in range(BLOCK)] if len(self._feedback) > 2 * BLOCK else []
        )
        self._begun = -1  # the first step of the block

    def less(self, step: int, parts: list[Tensor]) -> Tensor:
        """Concatenate ``parts`` to (P,), subtract the step's share of earlier noise, and store the result."""
        noise = torch.cat(parts, out=self._rows[step % len(self._rows)])
        begun = step - step % BLOCK if self._ahead else max(0, step - len(self._feedback))
        if self._ahead and begun != self._begun:
            self._begin_block(begun)
        count = step - begun
        ahead = [self._ahead[count]] if self._ahead else []
        factors = [1.0] * len(ahead) + [-factor for factor in self._feedback[:count]]
        combine([noise], [1.0], [factors], ahead + self._before(step, count))
        return noise

    def _begin_block(self, begun: int) -> None:
        count = min(begun, len(self._feedback))
        reach = [-factor for factor in self._feedback] + [0.0] * BLOCK
        for row in self._ahead:
            row.zero_()
        factors = [reach[later : later + count] for later in range(BLOCK)]
        combine(self._ahead, [1.0] * BLOCK, factors, self._before(begun, count))
        self._begun = begun

    def _before(self, step: int, count: int) -> list[Tensor]:
        return [self._rows[(step - 1 - j) % len(self._rows)] for j in range(count)]


@final
class _Buffers:
    """Decaying sums of earlier noise; a step's noise is added to them when the next step begins."""

    def __init__(self, correlation: Correlation, like: Tensor) -> None:
        self._taken, self._shares = [-factor for factor in correlation.feedback], correlation.kept_share
        self._rows = [torch.zeros_like(like) for _ in self._shares]
        self._last, self._step = torch.zeros_like(like), -1

    def less(self, step: int, parts: list[Tensor]) -> Tensor:
        if step != self._step:
            combine(self._rows, self._shares, [[1.0]] * len(self._rows), [self._last])
            self._step = step
        noise = torch.cat(parts, out=self._last)
        combine([noise], [1.0], [self._taken], self._rows)
        return noise


_C_TYPES = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


def combine(
    outs: Sequence[Tensor],
    scales: Sequence[float],
    factors: Sequence[Sequence[float]],
    rows: Sequence[Tensor],
) -> None:
    """Multiply each of the K ``outs`` by its scale in place, and add the J ``rows`` times its J factors.

    All are (P,), contiguous, of one type and device, and in ``outs`` or ``rows`` only
    (``native/combine.cpp``).
    """
    library = native.library()
    level = 0 if library is None or not outs[0].is_cpu else _level(library)
    if library is None or level == 0:
        for out, scale, of_out in zip(outs, scales, factors, strict=True):
            if scale != 1.0:
                out.mul_(scale)
            for row, factor in zip(rows, of_out, strict=True):
                out.add_(row, alpha=factor)
        return
    _call(library, level, outs, scales, factors, rows)


@cache
def _level(library: ctypes.CDLL) -> int:
    """Test the kernel on this machine, and return its instruction level, or 0 if it fails."""
    level: int = library.tacit_combine_level()
    if level == 0:
        return 0
    sample = (torch.arange(12 * 600, dtype=torch.float64).view(12, 600) * 0.7).sin()
    scales, factors = [1.0, 0.5, *[-1.0] * 7], sample[:9, :3].tolist()
    expected = torch.tensor(scales, dtype=torch.float64)[:, None] * sample[:9] + sample[:9, :3] @ sample[9:]
    for dtype in _C_TYPES:
        rows = [row.to(dtype) for row in sample]
        _call(library, level, rows[:9], scales, factors, rows[9:])
        if not torch.allclose(
            torch.stack(rows[:9]).double(), expected, rtol=0, atol=16 * torch.finfo(dtype).eps
        ):
            return 0
    return level


def _call(
    library: ctypes.CDLL,
    level: int,
    outs: Sequence[Tensor],
    scales: Sequence[float],
    factors: Sequence[Sequence[float]],
    rows: Sequence[Tensor],
) -> None:
    number = _C_TYPES[outs[0].dtype]
    flat = [factor for of_out in factors for factor in of_out]
    library.tacit_combine(
        _pointers(outs),
        (number * len(outs))(*scales),
        len(outs),
        (number * len(flat))(*flat),
        _pointers(rows),
        len(rows),
        outs[0].numel(),
        number is ctypes.c_double,
        torch.get_num_threads(),
        level,
    )


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
