"""Reasons why vmap cannot run a model or why it cannot be trained, and warnings about slow or broken ones.

Warnings are based on synthetic records alone, because logs are not private.
"""

from __future__ import annotations

import os
import re
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tacit.errors import LossWarning, TacitError, UnsupportedModel, of_device

OWN_SEED = (
    "model or loss sets a seed or uses its own generator: a record's random numbers would depend on the "
    "number of records before it, and repeat in each step. Draw with torch's global generator: "
    "torch.rand(len(x))."
)
UNSEEN = (
    "a gradient reaches a parameter unseen by the engine, so it cannot be clipped. Read parameters in the "
    "forward pass of this batch, in Python, and pass modules that are not scripted or traced (torch.jit)."
)
STALE = (
    "the loss or the model reads a tensor that was computed from parameters before this batch, so its "
    "gradient would reach them without clipping. Compute it in the forward pass."
)
MODE = (
    "a step runs under the mode {}. A TorchDispatchMode or TorchFunctionMode sees the tensors of all "
    "records, and could store values for later steps. Take the step outside of it, and use the mode on a "
    "non-private pass over public or synthetic records."
)
SUBCLASS = (
    "a tensor has the class {} with its own __torch_dispatch__, which PyTorch would call with the tensors of "
    "all records. Use plain tensors, such as weight.dequantize() of a quantised weight."
)
OF_WEIGHT = (
    "a weight computed from parameters has user code in its backward pass (a hook, or a "
    "torch.autograd.Function in Python), which would see gradients of several records, and may change them "
    "between norm and sum. Use torch's own operations: W + (quantised(W) - W).detach() passes the gradient "
    "straight through, and a factor of the gradient can be a factor of the loss."
)
OTHERS_TRAINABLE = "the trainable parameters changed since private training began"
GRADUALLY = (
    "A session trains the parameters that are trainable when it is made. Restore requires_grad. To unfreeze "
    "layers gradually in one session, make all of them trainable from the start, with one optimizer group "
    'for each stage, and set group["lr"] = 0 until the stage begins. Or make a new session for each stage, '
    "with its own plan; the costs of the plans add up."
)


class NoRule(Exception):
    """A rule does not support these arguments, so the operation gets one copy of sources per record."""


class NotCarried(Exception):
    """An operation cannot run under vmap, for the reason in its text."""


FAILURES = (NotCarried, RuntimeError, TypeError, ValueError, LookupError)
"""The errors of a pass that vmap cannot run, or of the user's own code in it."""


KEPT_TENSOR = (
    "the loss or the model reads a stored tensor of an earlier batch, so later steps would depend on earlier "
    "records without noise. Compute stored values before training, on public records. To see losses, set "
    "loss_report in Plan, which releases a private mean."
)
CHANGED = "a tensor that is computed from parameters is changed in place after its use"
OF_NO_RECORD = (
    "{}, a torch.autograd.Function, is called without a tensor of a record, and has no setup_context. Define "
    "setup_context and set generate_vmap_rule = True, or pass a tensor with a row for each record: "
    "t.expand(len(x), -1) + 0 * x"
)
FROM_OUTSIDE = (
    "{} writes in place into a tensor from outside this forward pass, which all records would share. Write "
    "into a new tensor: torch.empty_like(t).normal_(), or t.clone()"
)
SHARED = (
    "{} writes in place into a view, or into a tensor of which a view or the gradient is still needed. "
    "Assign to the part before anything else reads the tensor: t[0] = t[0] + x, or t[0] = torch.randn(3)"
)
UNSEEN_OPERATION = (
    "records pass through operations that Python does not see, such as torch.jit, or a transform of "
    "torch.func within the model"
)
_RULE = re.compile(
    r"(?:not implemented for )?(aten::[a-zA-Z_0-9.]+)(?: hit the vmap fallback|\. We could not)"
)
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
    if match := _RULE.search(text):
        return f"torch has no batching rule for {match[1]}"
    if "inplace randomness" in text:
        return "a function such as nn.init.normal_ draws in place into a shared tensor. Use torch.randn"
    return textwrap.shorten(f"{type(reason).__name__}: {text}", 200, placeholder=" ...")


def unsupported(reason: BaseException) -> UnsupportedModel:
    """Return the error of a model that vmap cannot run."""
    cause = str(reason) if isinstance(reason, NotCarried) else describe(reason)
    return UnsupportedModel(
        f"torch.func.vmap cannot run this model on each record alone: {cause}. "
        f"docs/how-to/troubleshooting.md lists what it supports. {BY_REFERENCE}"
    )


@contextmanager
def refusing_failures() -> Iterator[None]:
    """Refuse a model that vmap cannot run, or whose code fails on synthetic records."""
    try:
        yield
    except TacitError:
        raise
    except FAILURES as reason:
        if of_device(reason):
            raise
        raise unsupported(reason) from None


BY_REFERENCE = (
    'Or make the session with engine="reference", a loop over records that is many times slower. It assumes '
    "that model and loss store nothing of a record in Python."
)


def read_refused(func: Callable[..., Any]) -> UnsupportedModel:
    """Return the error of code in which Python reads a value of a record, with file and line."""
    name = getattr(func, "__name__", str(func)).strip("_")
    outside = [
        frame for frame in traceback.extract_stack() if not any(part in frame.filename for part in _OWN)
    ]
    place = f" ({outside[-1].filename}, line {outside[-1].lineno})" if outside else ""
    return UnsupportedModel(
        f"{name}(){place} hands a record's value to Python, so the code could store it and change how other "
        "records are clipped. Replace if statements by a mask or by torch.where with three arguments; "
        f"remove logging and printing. {BY_REFERENCE}"
    )


_OWN = (f"{os.sep}tacit{os.sep}clipping{os.sep}", f"{os.sep}torch{os.sep}")


def warn_of_losses() -> None:
    """Warn that synthetic records have no finite loss, so real records may have none either."""
    warnings.warn(
        "the losses are NaN or infinite on synthetic records: on zeros, and on numbers between 0 and 1. "
        "Records with NaN or infinite gradients add nothing to a step, so the model may learn from noise "
        "alone. Look for a division, log or sqrt of zero or less in model and loss, and try both on dummy "
        "records.",
        LossWarning,
        stacklevel=3,
    )
