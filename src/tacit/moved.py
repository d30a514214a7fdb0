"""Warnings for public names that moved to another module; the old name works for one more version."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping

from tacit.errors import Deprecated


def moved(face: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a ``__getattr__`` that finds former names of a module, with a warning.

    Args:
        face: the name of the module.
        homes: the current ``"module.name"`` of each former name.

    >>> former = moved("tacit.planner", {"noise_for": "tacit.plan.Plan"})
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     former("noise_for").__name__, str(caught[0].message)
    ('Plan', 'tacit.planner.noise_for is now tacit.plan.Plan; the next version removes the old name.')
    >>> former("other")
    Traceback (most recent call last):
    AttributeError: module 'tacit.planner' has no attribute 'other'
    """

    def former(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        module, _, now = homes[name].rpartition(".")
        message = f"{face}.{name} is now {homes[name]}; the next version removes the old name."
        warnings.warn(message, Deprecated, stacklevel=2)
        return getattr(importlib.import_module(module), now)

    return former
