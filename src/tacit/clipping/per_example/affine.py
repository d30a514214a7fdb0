"""Parameters that act element by element: scales and biases, alone or after a normalisation.

Letters: n records; B = n K rows; s... the other dimensions of an activation; C channels (dimension 1).

If y = f(x, w) with w broadcast over x, the gradient of a row is g * df/dw, summed over the dimensions that
w was broadcast along.  It has the shape of the parameter, so it is formed and kept.  A normalisation layer
is its normalisation without parameters, which autograd differentiates, followed by a scale and a bias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.clipping.per_example.recorder import Handler, Recorder, Unseen
from tacit.clipping.per_example.use import Kept, Use, over_positions, over_views, widened

__all__ = [
    "add",
    "add_in_place",
    "batch_norm",
    "broadcast_to",
    "expand",
    "expand_as",
    "layer_norm",
    "masked_fill",
    "mul",
    "mul_in_place",
    "prelu",
    "repeat",
    "repeat_interleave",
    "rms_norm",
    "rsub",
    "sub",
    "sub_in_place",
    "tile",
    "to",
    "where",
    "where_of",
]


def layer_norm(
    recorder: Recorder,
    input: Tensor,  # noqa: A002
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """``F.layer_norm``: its own backward pass gives the input's gradient, and z again for the scale's."""
    shape = list(normalized_shape)
    recorder = recorder.of_rows("layer_norm", input, len(shape) + 1)
    if widened(input) is not input:  # in narrow types z is kept as it was used
        return _affine(recorder, "layer_norm", F.layer_norm(input, shape, eps=eps), weight, bias)
    scale, shift = recorder.plain(weight), recorder.plain(bias)

    def forward(x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        y, mean, rstd = torch.native_layer_norm(x, shape, scale, shift, eps)
        return y, (x, mean, rstd)

    def backward(
        g: Tensor, needed: Sequence[bool], x: Tensor, mean: Tensor, rstd: Tensor
    ) -> tuple[tuple[Tensor | None], list[tuple[Tensor, Use]]]:
        found = torch.ops.aten.native_layer_norm_backward(
            g, x, shape, mean, rstd, scale, shift, [needed[0], False, False]
        )
        return (found[0],), list(uses(g, x, mean, rstd))

    def uses(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> Iterator[tuple[Tensor, Use]]:
        if weight is not None and recorder.owns(weight):
            yield weight, _kept(recorder, (x - mean).mul_(rstd).mul_(g), weight.shape, weight)
        if bias is not None and recorder.owns(bias):
            yield bias, _kept(recorder, g, bias.shape, bias)

    return recorder.function("layer_norm", forward, backward, inputs=(input,), sources=(weight, bias))


def rms_norm(
    recorder: Recorder,
    input: Tensor,  # noqa: A002
    normalized_shape: list[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """``F.rms_norm``."""
    recorder = recorder.of_rows("rms_norm", input, len(normalized_shape) + 1)
    return _affine(recorder, "rms_norm", F.rms_norm(input, normalized_shape, eps=eps), weight, None)


def batch_norm(
    recorder: Recorder,
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``F.batch_norm`` with fixed statistics; in training it mixes rows, which the mixing probe refuses."""
    if training:
        raise Unseen("operation 'batch_norm' mixes the rows of the batch in training")
    recorder = recorder.of_rows("batch_norm", input, 2)
    normal = F.batch_norm(input, running_mean, running_var, None, None, training, momentum, eps)
    return _affine(recorder, "batch_norm", normal, weight, bias, channels=True)


def _affine(
    recorder: Recorder,
    operation: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    channels: bool = False,
) -> Tensor:
    """Return x * weight + bias, (B, s...); the parameters are (C,), or of the last dimensions' shape."""

    def spread(parameter: Tensor | None) -> Tensor | None:
        if parameter is None:
            return None
        plain = recorder.plain(parameter)
        return plain.view(-1, *[1] * (x.dim() - 2)) if channels else plain

    scale, shift = spread(weight), spread(bias)
    y = x * scale if scale is not None else x.clone()
    if shift is not None:
        y = y + shift

    def uses(g: Tensor, x: Tensor) -> Iterator[tuple[Tensor, Use]]:
        if weight is not None and scale is not None and recorder.owns(weight):
            yield weight, _kept(recorder, g * x, scale.shape, weight)
        if bias is not None and shift is not None and recorder.owns(bias):
            yield bias, _kept(recorder, g, shift.shape, bias)

    return recorder.tap(operation, y, uses, saved=(x,), sources=(weight, bias))


def _kept(recorder: Recorder, elementwise: Tensor, shape: torch.Size, parameter: Tensor) -> Kept:
    """Return gradients of a parameter broadcast from ``shape`` over (B, s...), summed to its own shape."""
    per_row = _summed_to(elementwise, shape).reshape(-1, *parameter.shape)
    return Kept(over_views(per_row, recorder.views))


def _summed_to(elementwise: Tensor, shape: torch.Size) -> Tensor:
    """Sum (B, s...) over the dimensions but the first along which ``shape`` was broadcast; widened."""
    new = elementwise.dim() - len(shape)
    if new > 1 and shape and 1 not in shape:  # what layers do: the last dimensions alone have parameters
        kept = elementwise.shape[new:]
        return over_positions(elementwise.flatten(new).flatten(1, new - 1)).view(-1, *kept)
    repeated = [new + i for i, size in enumerate(shape) if size == 1 and new + i > 0]
    over = [*range(1, new), *repeated]
    wide = widened(elementwise)
    return wide.sum(over) if over else wide


def _binary(operation: str, compute: Callable[..., Tensor], sign: int | None) -> Handler:
    """Return the recording form of ``compute(x, w)``, x the operand with the rows, w the private one.

    The gradient of w, element by element, is ``sign`` g, or g x if ``sign`` is None.
    """

    def binary(recorder: Recorder, a: Any, b: Any, *, alpha: float = 1, **options: Any) -> Tensor:
        if alpha != 1:
            b = recorder.derive(torch.mul, b, alpha) if recorder.owns(b) else b * alpha
        w, x = (a, b) if recorder.owns(a) else (b, a)
        if options or recorder.owns(x):
            raise Unseen(f"operation {operation!r} with two private operands or options")
        recorder = recorder.of_rows(operation, x, 1)
        y = compute(x, recorder.plain(w))
        if y.dim() != x.dim() or (w.dim() == y.dim() and len(w) != 1):
            raise Unseen(f"operation {operation!r} reads a parameter along the rows of the batch")

        def uses(g: Tensor, *saved: Tensor) -> Iterator[tuple[Tensor, Use]]:
            yield w, _kept(recorder, g * saved[0] if sign is None else sign * g, w.shape, w)

        return recorder.tap(operation, y, uses, saved=(x,) if sign is None else (), sources=(w,))

    return binary


add = _binary("add", torch.add, 1)
mul = _binary("mul", torch.mul, None)
_minus = _binary("sub", torch.sub, -1)
_from = _binary("sub", torch.rsub, 1)


def sub(recorder: Recorder, a: Any, b: Any, **options: Any) -> Tensor:
    """``a - b``."""
    result: Tensor = (_from if recorder.owns(a) else _minus)(recorder, a, b, **options)
    return result


def rsub(recorder: Recorder, a: Any, b: Any, **options: Any) -> Tensor:
    """``b - a``."""
    return sub(recorder, b, a, **options)


def _in_place(operation: str, compute: Callable[..., Tensor]) -> Handler:
    """Return the recording form of ``compute(x, w)``, which changes x: by a copy of w for each row."""

    def in_place(recorder: Recorder, x: Tensor, w: Tensor, **options: Any) -> Tensor:
        if options or recorder.owns(x) or not recorder.owns(w):
            raise Unseen(f"operation {operation!r} changes a parameter in place, or has options")
        recorder = recorder.of_rows(operation, x, 1)
        if w.dim() > x.dim() or (w.dim() == x.dim() and len(w) != 1):
            raise Unseen(f"operation {operation!r} reads a parameter along the rows of the batch")

        def uses(g: Tensor) -> Iterator[tuple[Tensor, Use]]:
            yield w, _kept(recorder, g, w.shape, w)

        copies = recorder.plain(w).expand(x.shape).clone()
        return compute(x, recorder.tap(operation, copies, uses, saved=(), sources=(w,)))

    return in_place


add_in_place = _in_place("add_", Tensor.add_)
mul_in_place = _in_place("mul_", Tensor.mul_)
sub_in_place = _in_place("sub_", Tensor.sub_)


def where(recorder: Recorder, condition: Tensor, input: Any = None, other: Any = None) -> Tensor:  # noqa: A002
    """``torch.where`` with one private operand, such as biases of positions that a mask of the rows hides.

    The other operand and the condition have the rows, or are constants.
    """
    w, x, chosen = (input, other, True) if recorder.owns(input) else (other, input, False)
    operands = [t for t in (condition, x) if isinstance(t, Tensor) and not recorder.fixed(t)]
    if recorder.owns(x) or not operands or condition.dtype != torch.bool:
        return _without_rule(recorder, condition, input, other)
    recorder = recorder.of_rows("where", operands[0], 1)
    y = torch.where(condition, recorder.plain(input), recorder.plain(other))
    if any(t.dim() != y.dim() or len(t) != recorder.rows for t in operands) or (
        w.dim() == y.dim() and len(w) != 1
    ):
        return _without_rule(recorder, condition, input, other)
    by_row = operands[0] is condition

    def uses(g: Tensor, *saved: Tensor) -> Iterator[tuple[Tensor, Use]]:
        here = saved[0] if by_row else condition
        yield w, _kept(recorder, torch.where(here if chosen else ~here, g, 0.0), w.shape, w)

    return recorder.tap("where", y, uses, saved=(condition,) if by_row else (), sources=(w,))


def _without_rule(recorder: Recorder, *operands: Any) -> Tensor:
    result: Tensor = recorder.without_rule(torch.where, operands, {})
    return result


def where_of(recorder: Recorder, input: Any, condition: Tensor, other: Any) -> Tensor:  # noqa: A002
    """``Tensor.where``, which names its first choice first."""
    return where(recorder, condition, input, other)


def masked_fill(recorder: Recorder, input: Tensor, mask: Tensor, value: Any) -> Tensor:  # noqa: A002
    """``input.masked_fill(mask, value)``."""
    return where(recorder, mask, value, input)


def prelu(recorder: Recorder, input: Tensor, weight: Tensor) -> Tensor:  # noqa: A002
    """``F.prelu`` with one slope, (1,), or one per channel, (C,)."""
    recorder = recorder.of_rows("prelu", input, 2)
    y = F.prelu(input, recorder.plain(weight))
    shape = torch.Size([len(weight), *[1] * (input.dim() - 2)])

    def uses(g: Tensor, x: Tensor) -> Iterator[tuple[Tensor, Use]]:
        yield weight, _kept(recorder, g * x.clamp(max=0.0), shape, weight)

    return recorder.tap("prelu", y, uses, saved=(input,), sources=(weight,))


def _copies(operation: str, compute: Callable[..., Tensor]) -> Handler:
    """Return the recording form of ``compute(w, ...)``, which makes copies of a parameter.

    One copy for each row, as of a class token (B, 1, d) or a learned state (layers, B, H), is recorded where
    it is made; other copies are derived sources.
    """

    def copies(recorder: Recorder, input: Tensor, *args: Any, **options: Any) -> Tensor:  # noqa: A002
        if not recorder.owns(input):
            raise Unseen(f"operation {operation!r} of a parameter by another tensor")
        y = compute(recorder.plain(input), *args, **options)
        rows = recorder.decided(lambda: _dimension_of_rows(input.shape, y.shape, recorder.rows))
        if rows is None:
            derived: Tensor = recorder.derive(compute, input, *args, **options)
            return derived
        new = y.dim() - input.dim()
        shape = torch.Size([size for i, size in enumerate(input.shape) if new + i != rows])

        def uses(g: Tensor) -> Iterator[tuple[Tensor, Use]]:
            yield input, _kept(recorder, g.movedim(rows, 0), shape, input)

        operation_ = f"{operation} along {rows}"
        return recorder.tap(operation_, y.clone(), uses, saved=(), sources=(input,), rows=rows)

    return copies


def _dimension_of_rows(shape: torch.Size, broadcast: torch.Size, rows: int) -> int | None:
    """Return the first dimension along which ``shape`` is broadcast to the rows, None if it is not that."""
    new = len(broadcast) - len(shape)
    single = [True] * new + [size == 1 for size in shape]
    if any(not one and broadcast[i] != shape[i - new] for i, one in enumerate(single)):
        return None  # such as copies of several rows one after the other
    return next((i for i, one in enumerate(single) if one and broadcast[i] == rows), None)


expand = _copies("expand", Tensor.expand)
expand_as = _copies("expand", Tensor.expand_as)
broadcast_to = _copies("expand", torch.broadcast_to)
repeat = _copies("repeat", Tensor.repeat)
tile = _copies("repeat", Tensor.tile)
repeat_interleave = _copies("repeat", torch.repeat_interleave)


def to(recorder: Recorder, input: Tensor, other: Tensor, *args: Any, **options: Any) -> Tensor:  # noqa: A002
    """``input.to(other)`` and ``input.type_as(other)``, which read no more than the type and the device."""
    like = torch.empty(0, dtype=other.dtype, device=other.device)
    if recorder.owns(input):
        derived: Tensor = recorder.derive(Tensor.to, input, like, *args, **options)
        return derived
    return input.to(like, *args, **options)
