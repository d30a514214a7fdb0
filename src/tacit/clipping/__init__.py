"""Clipping: the rules that bound one record's influence, and the engines that apply them.

The rules are plain data, and do not import torch. :class:`tacit.clipping.reference.ReferenceEngine` follows
the definition literally.
:class:`tacit.clipping.fast.FastEngine` is the engine that a run uses.
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

if not TYPE_CHECKING:  # a type checker would otherwise accept every name of the module
    __getattr__ = _moved(
        __name__,
        {
            "next_threshold": "tacit.clipping.rules.next_threshold",
            "split_noise": "tacit.clipping.rules.split_noise",
        },
    )
