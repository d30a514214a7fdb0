"""Clipping: the rules that bound one record's influence, and the engines that apply them.

The rules are plain data, and do not import torch. :class:`tacit.clipping.reference.ReferenceEngine` is the
definition, a loop over records. :class:`tacit.clipping.fast.FastEngine` is the default engine.
"""

from tacit.clipping.memory import FAST, LEAN, MemoryBudget
from tacit.clipping.rules import (
    AdaptiveClipping,
    AutomaticClipping,
    ClippingRule,
    FlatClipping,
    PerLayerClipping,
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
]
