"""The warnings about a model that trains many times slower than it could, and about a loss that is NaN.

A warning may come into a log that others see.  So it is given for what was seen on made-up records alone.
"""

from __future__ import annotations

import warnings

from tacit.errors import LossWarning, SlowModel


def warn_of(reason: str | None) -> None:
    """Say why the records of a model go one by one, if there is a reason."""
    if reason is not None:
        text = (
            f"this model trains many times slower than it could: {reason}. The engine computes each record's "
            "gradient by itself, with the same result. docs/engine-refusals.md has what is covered; to see "
            "losses, Plan's loss_report gives a private mean."
        )
        warnings.warn(text, SlowModel, stacklevel=3)


def warn_of_losses() -> None:
    """Say that made-up records have no finite loss: others may have none either."""
    warnings.warn(
        "the losses are NaN or infinite, for records of zeros and for made-up ones of numbers between 0 and "
        "1, on which the model is tried before the first step. A record whose gradient is NaN or infinite "
        "adds nothing to a step, and which ones these are is not said, so the model may learn from noise "
        "alone. Look for a division, log or sqrt in model and loss that meets zero or less, and try both on "
        "records of your own making.",
        LossWarning,
        stacklevel=3,
    )
