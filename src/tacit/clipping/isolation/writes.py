"""What forward passes write to parameters, which reaches the released model without noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from tacit.clipping.isolation.state import same
from tacit.errors import UnsupportedModel

__all__ = ["Writes"]


@final
class Writes:
    """Sees writes to ``parameters``.

    Those that change in a pass of zeros may be written, as what that writes hangs on no record: a model may
    normalise its weights.  No others may.  Torch counts writes, but for those through ``.data``; where a pass
    writes, if only what is there, or is slow anyway, values are compared instead.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._rewritten: set[int] = set()
        self._writes = False

    @contextmanager
    def of_no_record(self) -> Iterator[None]:
        """The scope of a pass of zeros."""
        versions, before = self._versions(), self._copies()
        yield
        self._writes = versions != self._versions()
        self._rewritten = {
            id(p) for p, copy in zip(self._parameters, before, strict=True) if not same(p, copy)
        }

    @contextmanager
    def refused(self, model: nn.Module, *, keep: bool) -> Iterator[None]:
        """The scope of a step of the ``model``.  ``keep``: compare values, and put them back.

        Raises:
            UnsupportedModel: which parameters were written.
        """
        keep |= self._writes
        versions, before = self._versions(), self._copies() if keep else []
        try:
            yield
        except BaseException:
            self._put_back(before)
            raise
        if keep:
            changed = [not same(p, copy) for p, copy in zip(self._parameters, before, strict=True)]
        else:
            changed = [now != then for now, then in zip(self._versions(), versions, strict=True)]
        written = [
            p
            for p, is_changed in zip(self._parameters, changed, strict=True)
            if is_changed and id(p) not in self._rewritten
        ]
        if not written:
            return
        self._put_back(before)
        of = [name for name, parameter in model.named_parameters() if any(parameter is p for p in written)]
        raise UnsupportedModel(
            f"the forward pass writes to the parameters {of}: what it writes may hang on the records, and "
            "reaches the released model without noise. Compute another tensor from them instead "
            "(torch.nn.utils.parametrize), or write between steps. Do not release what earlier steps trained."
        )

    def _put_back(self, before: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for parameter, copy in zip(self._parameters, before, strict=False):
                if not same(parameter, copy):
                    parameter.copy_(copy)

    def _versions(self) -> list[int | None]:
        return [None if parameter.is_inference() else parameter._version for parameter in self._parameters]

    def _copies(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters]
