"""Functions of libraries that read values of a record only to take a shortcut or to warn.

They skip this while a model is traced, so within a pass they are told that it is. A model that reads values
otherwise is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

SHORTCUTS = {
    # skips a mask if no token is padded
    "transformers.masking_utils": "is_tracing",
    # warns of padded tokens without a mask
    "transformers.modeling_utils": "is_tracing",
}
"""By module, the name of a function whose answer True leaves the reads out."""

_WITHIN: ContextVar[bool] = ContextVar("_WITHIN", default=False)


@contextmanager
def without_shortcuts() -> Iterator[None]:
    """Run a pass of this thread without shortcuts that read values of records."""
    for name, function in SHORTCUTS.items():
        module = sys.modules.get(name)
        if module is not None and not hasattr(getattr(module, function), "of_tacit"):
            setattr(module, function, _true_within(getattr(module, function)))
    token = _WITHIN.set(True)
    try:
        yield
    finally:
        _WITHIN.reset(token)


def _true_within(function: Callable[..., bool]) -> Callable[..., bool]:
    """Return ``function``, whose answer is True within a pass of the calling thread."""

    @wraps(function)
    def answer(*args: Any, **kwargs: Any) -> bool:
        return _WITHIN.get() or function(*args, **kwargs)

    answer.of_tacit = True  # type: ignore[attr-defined]
    return answer
