"""The tensors of a model that a pass may change, and those of a pass that a model may keep."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from tacit.errors import UnsupportedModel

_OF_TORCH = frozenset(vars(nn.Module()))
"""The attributes of every module: its tables, and the flag ``training``."""
KEPT = (
    "the forward pass stores values of records in the model: {}. They would be released with the model, or "
    "reach later steps, without noise. Return them instead of storing them, and compute statistics of data "
    "before training, on public records."
)


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse a model in which a pass under vmap left a tensor of records, in an attribute or a list."""
    names = [
        f"{name}.{key}".lstrip(".")
        for name, module in model.named_modules()
        for table in (module._parameters, module._buffers, vars(module))
        for key, value in table.items()
        if key not in _OF_TORCH and _holds_wrapped(value)
    ]
    if names:
        raise UnsupportedModel(KEPT.format(", ".join(sorted(names))))


def _holds_wrapped(value: object) -> bool:
    if isinstance(value, Tensor):
        return is_functorch_wrapped_tensor(value)
    if isinstance(value, list | tuple | deque):
        return any(map(_holds_wrapped, value))
    return isinstance(value, dict) and any(map(_holds_wrapped, value.values()))


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal; NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def version_of(tensor: Tensor) -> int | None:
    """Return torch's count of writes to a tensor; None if torch does not count them."""
    return None if tensor.is_inference() else tensor._version


@final
class Writes:
    """Detects writes to ``parameters`` by torch's counters, or by value.

    Under vmap a pass can only write public values, such as weights that a model normalises. It may do so in
    each pass or in none: a model that sets its weights from its first batch would be set from zeros.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._allowed: Set[int] = set()

    def versions(self) -> list[int | None]:
        """Return torch's counts of writes."""
        return list(map(version_of, self._parameters))

    def since(self, versions: list[int | None]) -> set[int]:
        """Return the places of the parameters that were written since."""
        pairs = zip(versions, self.versions(), strict=True)
        return {place for place, (before, now) in enumerate(pairs) if before != now}

    def allow(self, model: nn.Module, first: Set[int], later: Set[int]) -> None:
        """Allow writes to the parameters that a first and a later pass of synthetic records write."""
        if first - later:
            raise UnsupportedModel(
                f"the first forward pass writes to the parameters {self._names(model, first - later)}, and "
                "no later one: they would be set from records of zeros, as no data may decide them without "
                "noise. Set them on public records before training."
            )
        self._allowed = later

    @contextmanager
    def refused(self, model: nn.Module, *, keep: bool) -> Iterator[None]:
        """Run a step of the ``model``.

        With ``keep``, compare values of parameters, and restore them; no write is allowed then.

        Raises:
            UnsupportedModel: the step wrote to a parameter, which the message names.
        """
        versions = self.versions()
        before = [parameter.detach().clone() for parameter in self._parameters] if keep else []
        try:
            yield
        except BaseException:
            self._put_back(before)
            raise
        if keep:
            pairs = zip(self._parameters, before, strict=True)
            changed = {place for place, (now, then) in enumerate(pairs) if not same(now, then)}
        else:
            changed = self.since(versions)
        changed -= set() if keep else self._allowed
        if not changed:
            return
        self._put_back(before)
        raise UnsupportedModel(
            f"the forward pass writes to the parameters {self._names(model, changed)}: the "
            "values may depend on the records, and would reach the released model without noise. Compute "
            "another tensor from them instead (torch.nn.utils.parametrize), or write between steps. Do not "
            "release what earlier steps trained."
        )

    def _names(self, model: nn.Module, places: Set[int]) -> list[str]:
        parameters = [self._parameters[place] for place in places]
        return [name for name, p in model.named_parameters() if any(p is each for each in parameters)]

    def _put_back(self, before: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for parameter, copy in zip(self._parameters, before, strict=False):
                if not same(parameter, copy):
                    parameter.copy_(copy)
