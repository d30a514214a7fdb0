"""A check on synthetic records, before any data are read: a record's loss must not depend on others.

Letters: n records; K views; B = n K rows.
"""

# Under vmap no record can reach another, whatever the model does. A model that mixes records would be trained
# as if each record were alone. That is private, but not what its user intends. So the losses of a batch are
# compared with those of each record alone. If they differ, the model or loss is refused.

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn, TypeAlias, final

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from tacit.clipping.isolation.model_checks import check_losses
from tacit.clipping.isolation.randomness import WithoutDraws, begin_at, devices_of, only_torch_draws
from tacit.clipping.isolation.reasons import KEPT_TENSOR
from tacit.errors import InvalidInput, PrivacyRefusal, TacitError, UnsupportedModel

# One record as a batch of one row, for loops over records.


def squeezed(rows: Tensor) -> Tensor:
    """Return ``rows.squeeze()``, but keep the first dimension, as in a batch of several rows.

    >>> squeezed(torch.zeros(1, 1, 3)).shape
    torch.Size([1, 3])
    """
    return rows.squeeze([dim for dim in range(1, rows.dim()) if rows.shape[dim] == 1])


@final
class OneRow(TorchFunctionMode):
    """Lets ``x.squeeze()`` keep the first dimension of tensors computed from a record's rows."""

    def __init__(self, rows: Iterable[Tensor]) -> None:
        super().__init__()
        self._of_record = {id(t): t for t in rows}  # with the tensors, so that no other gets their ids

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        of_record = any(id(value) in self._of_record for value in tree_leaves((args, kwargs)))
        whole = func in (torch.squeeze, Tensor.squeeze) and len(args) == 1 and not kwargs
        if whole and of_record and args[0].dim() > 0 and args[0].shape[0] == 1:
            result = squeezed(args[0])
        else:
            result = func(*args, **(kwargs or {}))
        if of_record:
            self._of_record |= {id(t): t for t in tree_leaves(result) if isinstance(t, Tensor)}
        return result


Losses: TypeAlias = Callable[..., Tensor]
Alone: TypeAlias = Callable[[tuple[Tensor, ...]], Tensor]
"""A function that returns the (B,) losses of rows."""
RECORDS = 8
"""The number of synthetic records: enough to detect mixing in groups of four, or beyond a small capacity."""
MIXES = (
    "a record's loss in a batch differs from its loss alone: the model or the loss mixes records, but a "
    "private step needs the gradient of each record alone. Look for batch statistics "
    "(x - x.mean(0), batch_norm in training), sums over the batch or divisors such as len(x) in the loss, "
    "arange(len(x)), unmasked padding to the longest record, and layers that take (T, B, d) but get "
    "(B, T, d) (batch_first=False)."
)
BY_CALLS = (
    "the losses of the same records differ from one call to the next: model or loss counts its calls, or "
    "stores something between them, but a step may take any number of calls. Set a schedule between steps, "
    "as in model.rate = rate(session.steps_done)."
)
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}
_NARROW = 2e-2


def made_up(batch: Sequence[Tensor], views: int, integers: int = 2) -> tuple[Tensor, ...]:
    """Return synthetic records: normally distributed floats, and integers from 0 to ``integers`` - 1.

    They have the shapes and types of the batch, and its number of records within 2 and 8.
    """
    generator = torch.Generator().manual_seed(0)
    rows = min(RECORDS, max(2, len(batch[0]) // views)) * views

    def like(t: Tensor) -> Tensor:
        shape = rows, *t.shape[1:]
        if t.is_floating_point():
            return torch.randn(shape, generator=generator).to(t)
        return torch.randint(integers, shape, generator=generator).to(t)

    return tuple(map(like, batch))


def check_records(
    model: nn.Module, per_example_loss: Losses, batch: tuple[Tensor, ...], views: int, alone: Alone
) -> None:
    """Refuse a model or loss that mixes records.

    Args:
        model: the model.
        per_example_loss: a function that returns the losses of the rows of a batch.
        batch: (B, ...) rows; only their shapes and types are read.
        views: K, the number of rows per record.
        alone: a function that computes the loss of each record alone.
    """
    types, devices = _Types(), devices_of(batch)

    def together(rows: tuple[Tensor, ...]) -> Tensor:
        with only_torch_draws(), torch.enable_grad(), types:
            result = per_example_loss(model, *rows)
        return check_losses(result, len(rows[0])).detach()

    def one_by_one(rows: tuple[Tensor, ...]) -> Tensor:
        with warnings.catch_warnings(action="ignore"):  # such as that of std of a single value
            return alone(rows).detach()

    def losses_of(losses: Alone, rows: tuple[Tensor, ...], draws: bool) -> Tensor:
        with torch.random.fork_rng(devices=devices), nullcontext() if draws else WithoutDraws():
            begin_at(0, devices)
            return losses(rows)

    def same(draws: bool, integers: int = 2) -> bool:
        rows = made_up(batch, views, integers)
        one, other = (losses_of(losses, rows, draws) for losses in (together, one_by_one))
        return is_same_loss(one, other, narrow=types.narrow)

    try:
        is_same = same(draws=False)
    except TacitError:
        raise
    except Exception:  # noqa: BLE001 (the user's own code may fail on integers above 0)
        is_same = same(draws=False, integers=1)
    if is_same or same(draws=True):  # some models need real draws, such as a permutation
        return
    rows = made_up(batch, views)
    again = [losses_of(together, rows, draws=False) for _ in "12"]
    raise UnsupportedModel(MIXES if torch.equal(*again) else BY_CALLS)


def each_alone(model: nn.Module, per_example_loss: Losses, views: int, rows: tuple[Tensor, ...]) -> Tensor:
    """Return the losses (B,) of synthetic records, each computed alone."""
    losses = []
    for start in range(0, len(rows[0]), views):
        try:
            record = [t[start : start + views] for t in rows]
            with torch.enable_grad(), OneRow(record):
                one = per_example_loss(model, *record)
        except Exception as reason:
            error = f"{type(reason).__name__}: {reason}".partition("\n")[0]
            raise UnsupportedModel(f"{MIXES} Model or loss fails on one record alone: {error}.") from reason
        losses.append(check_losses(one, views).detach())
    return torch.cat(losses)


def never_finite(
    model: nn.Module, per_example_loss: Losses, of_zeros: object, zeros: tuple[Tensor, ...]
) -> bool:
    """Return whether losses are infinite or NaN for zeros and also for random numbers in (0, 1).

    Zeros alone prove nothing: the losses of some correct models are not finite for zeros.
    """
    if not _is_nan(of_zeros):
        return False
    rows = [torch.rand_like(t) if t.is_floating_point() else torch.ones_like(t) for t in zeros]
    try:
        return _is_nan(per_example_loss(model, *rows))
    except Exception:  # noqa: BLE001 (failures of the user's own code on made-up records do not matter here)
        return False


def _is_nan(losses: object) -> bool:
    return isinstance(losses, Tensor) and not bool(losses.detach().isfinite().all())


def refuse_zeros(
    model: nn.Module, per_example_loss: Losses, rows: tuple[Tensor, ...], reason: Exception
) -> NoReturn:
    """Refuse a model or loss that fails on zeros; ``rows``, synthetic too, show whether only zeros fail."""
    error = f"{type(reason).__name__}: {str(reason).strip().partition(chr(10))[0].rstrip('.')}"
    try:
        with torch.enable_grad():
            per_example_loss(model, *rows)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001 (the error of zeros is the one to show)
        shapes = ", ".join(
            f"{str(t.dtype).removeprefix('torch.')} of shape {tuple(t.shape[1:])}" for t in rows
        )
        raise InvalidInput(
            f"loss(model, ...) fails on dummy records of zeros, shaped like yours ({shapes}): {error}. Make "
            "it accept these arguments, for example with x.float() or y.long()."
        ) from reason
    raise UnsupportedModel(
        "the model or the loss fails on dummy records of zeros, which Tacit tries before the first step: "
        f"{error}. Make it accept any record of the right shape; a length of 0 needs lengths.clamp(min=1)."
    ) from reason


def refuse_constant(losses: Tensor) -> None:
    """Refuse losses that depend on no parameter: each step would be noise alone."""
    if not losses.requires_grad:
        raise InvalidInput(
            "the losses depend on no trainable parameter, so they have no gradient. Compute them from the "
            "model's output without detach(), torch.no_grad(), argmax or NumPy."
        )


@final
class _Types(TorchFunctionMode):
    """Detects results of narrow types, as under autocast, and refuses tensors that a pass left."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        values = tree_leaves((args, kwargs))
        if any(isinstance(value, Tensor) and hasattr(value, "_tacit_pass") for value in values):
            raise UnsupportedModel(KEPT_TENSOR)
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_floating_point():
            self.narrow |= result.dtype not in _ROUNDING or torch.is_autocast_enabled(result.device.type)
        return result


def is_same_loss(a: Tensor, b: Tensor, *, narrow: bool = False) -> bool:
    """Return whether two tensors are equal up to rounding; non-finite values must agree exactly."""
    most = _NARROW if narrow else _ROUNDING.get(a.dtype, _NARROW)
    return torch.allclose(a.double(), b.double(), rtol=most, atol=most * _scale(a), equal_nan=True)


def _scale(a: Tensor) -> float:
    finite = a[a.isfinite()].abs()
    return float(finite.max()) if len(finite) else 1.0


# The records themselves, held by loss or model: a loss of one record must not read the others.
#
# Under vmap a record reaches no other, but a loss may also read a tensor of all records from outside:
# features of a whole graph, stored neighbours, a mean over the data. Then each record's gradient depends on
# all records, and clipping bounds nothing. So the first pass, on records of zeros, looks at each tensor
# that enters an operation.


@final
class HeldRecords(TorchFunctionMode):
    """Refuses operations on tensors that share memory with ``sources``, or that are copies of one of them.

    ``sources`` are the session's tensors (N, ...) of all records.
    """

    def __init__(self, sources: Sequence[Tensor]) -> None:
        super().__init__()
        self._sources = [source for source in sources if source.numel() > 0]
        self._seen: set[tuple[int, torch.Size]] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.__name__ == "__get__" and not isinstance(result, Tensor):
            return result  # a shape or a device shows no value
        with torch._C.DisableTorchFunction():
            for value in tree_leaves((args, kwargs)):
                if isinstance(value, Tensor) and _has_memory(value):
                    self._check(value)
        return result

    def _check(self, tensor: Tensor) -> None:
        key = tensor.data_ptr(), tensor.shape
        if key in self._seen or tensor.numel() == 0:
            return
        self._seen.add(key)
        if any(_overlap(tensor, source) or _is_copy(tensor, source) for source in self._sources):
            raise PrivacyRefusal(
                "the loss or the model reads private records that are not its arguments (a tensor of shape "
                f"{tuple(tensor.shape)}). One record could then change the gradients of others, and clipping "
                "would not bound its effect. Use only the loss's arguments; take means and neighbours from "
                "public data. For graphs, make each whole graph a record (docs/how-to/train.md#graphs)."
            )


def _has_memory(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not (
        tensor.is_nested or tensor.is_meta or is_functorch_wrapped_tensor(tensor)
    )


def _overlap(a: Tensor, b: Tensor) -> bool:
    if a.device != b.device:
        return False
    (low_a, high_a), (low_b, high_b) = _span(a), _span(b)
    return low_a < high_b and low_b < high_a


def _span(tensor: Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def _is_copy(tensor: Tensor, source: Tensor) -> bool:
    """Return whether a tensor has the values of the source, which are not all the same."""
    if tensor.shape != source.shape or tensor.is_complex() or source.is_complex():
        return False
    values = source.to(tensor.device, tensor.dtype)
    return torch.equal(tensor, values) and bool((values != values.flatten()[0]).any())
