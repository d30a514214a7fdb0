"""The records themselves, held by loss or model: a loss of one record must not read the others.

Under vmap a record reaches no other, but a loss may also read a tensor of all records from outside: features
of a whole graph, stored neighbours, a mean over the data. Then each record's gradient depends on all records,
and clipping bounds nothing. So the first pass, on records of zeros, looks at each tensor that enters an
operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from tacit.errors import PrivacyRefusal


@final
class HeldRecords(TorchFunctionMode):
    """Refuses operations on tensors that share memory with ``sources``, or that are copies of one of them.

    ``sources`` are the tensors (N, ...) in which the session holds its records.
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
                "the loss or the model reads the session's records besides its arguments: a tensor of shape "
                f"{tuple(tensor.shape)}. Each record's gradient then depends on other records, and "
                "clipping does not bound what one record changes. Read only the loss's arguments; take a "
                "public figure in place of a mean, and public examples as neighbours. Of graphs, make each "
                "whole graph a record (docs/graphs.md)."
            )


def _has_memory(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not (
        tensor.is_nested or tensor.is_meta or is_functorch_wrapped_tensor(tensor)
    )


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Return whether the addresses from first to last value of two tensors have any in common."""
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
