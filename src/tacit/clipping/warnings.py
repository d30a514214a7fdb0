"""What a user is told of a model that trains as it should, and takes many times as long as it could.

A warning may come into a log that others see.  So it is judged on records of zeros, and never by the way that
batches go; of the data only the first records count, by whether a loss is rounded otherwise beside others.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from tacit.clipping.per_example.recorder import ANSWERED
from tacit.errors import SlowModel

__all__ = ["ALWAYS_ANOTHER", "numbers_told", "warn_of"]

ALWAYS_ANOTHER = "an if, float() or item() has another answer for each batch"
"""Why records go one by one."""
_TRUTHS = {f"{ANSWERED}{truth}" for truth in (True, False)}


def numbers_told(sites: Iterable[str]) -> bool:
    """Whether Python was told a number of the batch on this way, and not only whether something is so.

    >>> numbers_told(["linear", "answered True"]), numbers_told(["linear", "answered 0.25"])
    (False, True)
    """
    return any(site.startswith(ANSWERED) and site not in _TRUTHS for site in sites)


def warn_of(reason: str | None, *, told: bool) -> None:
    """Say why a model, or one that tells Python numbers, goes another way than through the fast engine."""
    if reason is not None:
        text = (
            f"this model takes many times as long as it could: {reason}. Each record's gradient is formed by "
            "itself, which is just as right. docs/engine-refusals.md has what is covered."
        )
    elif told:
        text = (
            "the loss or the model tells Python a number of the batch, by item(), float(), if or the like. "
            "Where that is another number for each batch, or is computed of all records together, each "
            "record goes through the model alone, which takes many times as long. Take it out; Plan's "
            "loss_report gives a private mean of the losses."
        )
    else:
        return
    warnings.warn(text, SlowModel, stacklevel=3)
