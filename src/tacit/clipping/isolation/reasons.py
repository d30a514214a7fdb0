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
    "the model or the loss chooses a seed by itself, or draws from a random number generator of its own: "
    "which numbers a record gets would depend on how many records are before it, and they would be the same "
    "in each step. Draw by torch's own generator: torch.rand(len(x))."
)
UNSEEN = (
    "a gradient reaches a parameter by a way that is not seen, so it cannot be clipped. Parameters must be "
    "read in the forward pass of this batch, in Python: pass modules that are not scripted or traced "
    "(torch.jit)."
)
STALE = (
    "the loss or the model reads a tensor that was computed from parameters before this batch: its gradient "
    "reaches them past the engine, and cannot be clipped. Compute it in the forward pass."
)
OTHERS_TRAINABLE = "the trainable parameters are no longer those with which private training began"
GRADUALLY = (
    "A session clips, adds noise to and steps with the parameters that are trainable when it is made. Set "
    "requires_grad back to what it was, as after a backward pass for which the model was frozen. To "
    "unfreeze layers step by step, in one session: let all of them be trainable from the start, with a "
    'group of the optimizer for each stage, and keep group["lr"] = 0 until its turn comes. Or '
    "make a new session for each stage, with a plan of its own: what the plans cost then adds up."
)


class NotCarried(Exception):
    """An operation that cannot run under vmap: the model takes the loop over records, for this reason."""


class KeptTensor(NotCarried):
    """A tensor of an earlier pass is read."""


class FirstAnswer(Exception):
    """Python reads a value of a record for the first time, or for the first time after draws."""


class Answers(Exception):
    """The records of a pass give Python different values; ``groups``: (n,), equal for equal values."""

    def __init__(self, groups: Tensor) -> None:
        super().__init__()
        self.groups = groups


CHANGED = "what is computed from parameters is changed in place after it was used"
UNSEEN_OPERATION = (
    "records go through operations that Python does not see, as of torch.jit, or through a transform of "
    "torch.func within the model"
)
_READS = frozenset({Tensor.__repr__, Tensor.__format__, Tensor.__reduce_ex__, Tensor.__deepcopy__})
"""Methods by which Python would get the values of all records together."""
_OF_TORCH = ("aten", "prims")


def refuse_what_sees_all(func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Refuse functions that would get all records together: Python reads and user-defined vmap rules."""
    if func in _READS:
        raise NotCarried("Python reads the numbers of records, as print(x) does")
    if func is custom_function_call and has_overridden_vmap_rule(args[0]):
        raise NotCarried(f"{args[0].__name__}, a torch.autograd.Function, has a vmap rule of its own")
    if isinstance(func, OpOverload | OpOverloadPacket) and str(func).partition(".")[0] not in _OF_TORCH:
        raise NotCarried(f"the operator {func} is not one of torch's own")


_SIZES = re.compile(r"dynamic shape\. Attempt\w+ to \w+ over (?:aten::)?(.*?)\.")


def said(reason: BaseException) -> str:
    """Return why vmap cannot run a model, and what would make it fast where that is known."""
    text = str(reason).partition("\n")[0]
    if "dynamic shape" in text:
        found = _SIZES.search(text)
        name = found[1] if found else "an index"
        return (
            f"how large the result of {name} is depends on a record's numbers. Multiply by a mask, or use "
            "torch.where of three arguments"
        )
    return f"{type(reason).__name__}: {text}"[:200]


def warn_of(reason: str | None) -> None:
    """Warn why the engine uses the record loop, if there is a reason."""
    if reason is not None:
        text = (
            f"this model trains many times slower than it could: {reason}. The engine computes each record's "
            "gradient by itself, with the same result. docs/engine-refusals.md has what is covered; to see "
            "losses, Plan's loss_report gives a private mean."
        )
        warnings.warn(text, SlowModel, stacklevel=3)


def warn_of_losses() -> None:
    """Warn that made-up records have no finite loss: others may have none either."""
    warnings.warn(
        "the losses are NaN or infinite, for records of zeros and for made-up ones of numbers between 0 and "
        "1, on which the model is tried before the first step. A record whose gradient is NaN or infinite "
        "adds nothing to a step, and which ones these are is not said, so the model may learn from noise "
        "alone. Look for a division, log or sqrt in model and loss that meets zero or less, and try both on "
        "records of your own making.",
        LossWarning,
        stacklevel=3,
    )
