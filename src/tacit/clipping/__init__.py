"""Bounding one record's influence: rules as data, and engines that carry them out.

The rules import no torch.  The engines are :class:`tacit.clipping.reference.ReferenceEngine`, which reads
as the definition, and :class:`tacit.clipping.fast.FastEngine`, which is what a run uses.
"""

from typing import TYPE_CHECKING

from tacit.clipping.memory import FAST, LEAN, MemoryBudget
from tacit.clipping.rules import (
    AdaptiveClipping,
    AutomaticClipping,
    ClippingRule,
    FlatClipping,
    PerLayerClipping,
)
from tacit.moved import moved as _moved

__all__ = [
    "FAST",
    "LEAN",
    "AdaptiveClipping",
    "AutomaticClipping",
    "ClippingRule",
    "FlatClipping",
    "MemoryBudget",
    "PerLayerClipping",
]

if not TYPE_CHECKING:  # else every name would be one of the module
    __getattr__ = _moved(
        __name__,
        {
            "next_threshold": "tacit.clipping.rules.next_threshold",
            "split_noise": "tacit.clipping.rules.split_noise",
        },
    )
