"""The warning about a model that trains as it should, and many times slower than it could.

A warning may come into a log that others see.  So it is given for what was seen on records of zeros alone.
"""

from __future__ import annotations

import warnings

from tacit.errors import SlowModel

__all__ = ["warn_of"]


def warn_of(reason: str | None) -> None:
    """Say why the records of a model go one by one, if there is a reason."""
    if reason is not None:
        text = (
            f"this model trains many times slower than it could: {reason}. The engine computes each record's "
            "gradient by itself, with the same result. docs/engine-refusals.md has what is covered; to see "
            "losses, Plan's loss_report gives a private mean."
        )
        warnings.warn(text, SlowModel, stacklevel=3)
