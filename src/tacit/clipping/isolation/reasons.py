"""Reasons why vmap cannot run a model or why it cannot be trained, and warnings about slow or broken ones.

Other people may read a log with warnings. So warnings are based on made-up records alone.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._functorch.autograd_function import custom_function_call, has_overridden_vmap_rule
from torch._ops import OpOverload, OpOverloadPacket

from tacit.errors import LossWarning, SlowModel

OWN_SEED = (
    "model or loss sets a seed or uses a separate generator: a record's random numbers would depend on the "
    "number of records before it, and would be the same in each step. Draw with torch's global generator: "
    "torch.rand(len(x))."
)
UNSEEN = (
    "a gradient reaches a parameter unseen by the engine: it cannot be clipped. Read parameters in the "
    "forward pass of this batch, in Python, and pass modules that are not scripted or traced (torch.jit)."
)
STALE = (
    "the loss or the model reads a tensor from before this batch: it was computed from parameters, and its "
    "gradient would reach them without clipping. Compute it in the forward pass."
)
MODE = (
    "a step runs under the mode {}: a TorchDispatchMode or TorchFunctionMode sees the tensors of all "
    "records, and could carry a value of one into later steps. Take the step outside of it, and use it on "
    "a plain pass over public or synthetic records."
)
OF_WEIGHT = (
    "user code in the backward pass of a weight that is computed from parameters (a hook, or a "
    "torch.autograd.Function in Python): it would see the gradients of several records, and may compute "
    "others for the norm than for the sum. Use torch's own operations: W + (quantised(W) - W).detach() "
    "passes the gradient straight through, and a factor of the gradient can stand in the loss."
)
OTHERS_TRAINABLE = "the trainable parameters changed since private training began"
GRADUALLY = (
    "A session trains the parameters that are trainable when it is made. Restore requires_grad, for example "
    "after a backward pass for which the model was frozen. To unfreeze layers step by step in one session, "
    "make all of them trainable from the start, with one optimizer group for each stage, and set "
    'group["lr"] = 0 until the stage begins. Or make a new session for each stage, with its own plan; the '
    "costs of the plans add up."
)


class NotCarried(Exception):
    """An operation cannot run under vmap, so a loop over records runs the model."""


class KeptTensor(NotCarried):
    """Model or loss reads a tensor of an earlier pass."""


class FirstRead(Exception):
    """Python reads a value of a record for the first time, or for the first time after random draws."""


class Answers(Exception):
    """Python reads different values from the records of a pass; ``groups`` (n,) is equal for equal values."""

    def __init__(self, groups: Tensor) -> None:
        super().__init__()
        self.groups = groups


CHANGED = "a tensor that is computed from parameters is changed in place after its use"
UNSEEN_OPERATION = (
    "records go through operations that Python does not see, such as torch.jit, or through a transform of "
    "torch.func within the model"
)
_READS = frozenset({Tensor.__repr__, Tensor.__format__, Tensor.__reduce_ex__, Tensor.__deepcopy__})
"""Methods that would show Python the values of all records at once."""
_OF_TORCH = ("aten", "prims")


def refuse_what_sees_all(func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Refuse functions that would see all records at once, such as ``print`` and user-defined vmap rules."""
    if func in _READS:
        raise NotCarried("Python reads the values of records, as print(x) does")
    if func is custom_function_call and has_overridden_vmap_rule(args[0]):
        raise NotCarried(f"{args[0].__name__}, a torch.autograd.Function, has a vmap rule of its own")
    if isinstance(func, OpOverload | OpOverloadPacket) and str(func).partition(".")[0] not in _OF_TORCH:
        raise NotCarried(f"the operator {func} is not one of torch's own")


_SIZES = re.compile(r"dynamic shape\. Attempt\w+ to \w+ over (?:aten::)?(.*?)\.")


def describe(reason: BaseException) -> str:
    """Return why vmap cannot run a model, and the fix if one is known."""
    text = str(reason).partition("\n")[0]
    if "dynamic shape" in text:
        match = _SIZES.search(text)
        name = match[1] if match else "an index"
        return (
            f"the size of the result of {name} depends on values of a record. Multiply by a mask, or use "
            "torch.where with three arguments"
        )
    return f"{type(reason).__name__}: {text}"[:200]


def warn_of(reason: str | None) -> None:
    """Warn why the engine uses the record loop, if there is a reason."""
    if reason is not None:
        text = (
            f"this model trains many times slower than it could: {reason}. The engine computes each record's "
            "gradient separately, with the same result. docs/engine-refusals.md lists the supported "
            "operations. To see losses, set loss_report in Plan, which releases a private mean."
        )
        warnings.warn(text, SlowModel, stacklevel=3)


def warn_of_losses() -> None:
    """Warn that made-up records have no finite loss, so that real records may have none either."""
    warnings.warn(
        "the losses are NaN or infinite on made-up records: on zeros, and on numbers between 0 and 1. The "
        "model runs on them once before the first step. A record whose gradient is NaN or infinite adds "
        "nothing to a step, and no report counts such records, so the model may learn from noise alone. "
        "Look for a division, log or sqrt of zero or less in model and loss, and try both on records that "
        "you make up.",
        LossWarning,
        stacklevel=3,
    )
