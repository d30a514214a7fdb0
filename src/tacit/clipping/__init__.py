"""Bounding one record's influence: rules as data, and engines that carry them out.

The rules import no torch.  The engines are :class:`tacit.clipping.reference.ReferenceEngine`, which reads
as the definition, and :class:`tacit.clipping.fast.FastEngine`, which is what a run uses.
"""

from tacit.clipping.memory import FAST, LEAN, MemoryBudget
from tacit.clipping.rules import (
    AdaptiveClipping,
    AutomaticClipping,
    ClippingRule,
    FlatClipping,
    PerLayerClipping,
    next_threshold,
    split_noise,
)

__all__ = [
    "FAST",
    "LEAN",
    "AdaptiveClipping",
    "AutomaticClipping",
    "ClippingRule",
    "FlatClipping",
    "MemoryBudget",
    "PerLayerClipping",
    "next_threshold",
    "split_noise",
]
