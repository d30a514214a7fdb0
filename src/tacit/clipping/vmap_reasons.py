"""What vmap does not carry, or not in a way that is known to keep records apart, and how that is said."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch._functorch.autograd_function import custom_function_call
from torch._ops import OpOverload, OpOverloadPacket

__all__ = ["own_rule", "said"]

_OF_TORCH = frozenset({"aten", "prims"})
_ASKABLE = (OpOverload, OpOverloadPacket)
_SIZES = re.compile(r"dynamic shape\. Attempt\w+ to \w+ over (?:aten::)?(.*?)\.")


def own_rule(func: Any, args: tuple[Any, ...]) -> str | None:
    """Return what has a rule of the user's own for vmap, if an operation has one: it sees all records."""
    if func is custom_function_call:
        function: Any = args[0]
        return None if function.vmap is torch.autograd.Function.vmap else f"{function.__name__}.vmap"
    if not isinstance(func, _ASKABLE):
        return None
    each = [func] if isinstance(func, OpOverload) else [getattr(func, name) for name in func.overloads()]
    for overload in each:
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        if overload.namespace not in _OF_TORCH and has(overload.name(), "FuncTorchBatched"):
            return f"torch.library.register_vmap of {overload.name()}"
    return None


def said(reason: BaseException) -> str:
    """Return why vmap does not carry a model, and what would make it fast where that is known."""
    text = str(reason).partition("\n")[0]
    if "must override the setup_context staticmethod" in text:
        return (
            "a torch.autograd.Function that vmap cannot carry. Give it a setup_context, so that forward is "
            "without ctx, and generate_vmap_rule = True"
        )
    if "dynamic shape" in text:
        found = _SIZES.search(text)
        name = found[1] if found else "an index"
        return (
            f"how large the result of {name} is depends on a record's numbers. Multiply by a mask, or use "
            "torch.where of three arguments"
        )
    return f"{type(reason).__name__}: {text}"[:200]
