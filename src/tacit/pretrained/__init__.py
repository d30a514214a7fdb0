"""Public models from local files that map texts or images to features, with frozen weights.

The submodules are imported at the first use of a name, so that a run file can be checked without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.pretrained.loading import load_pretrained

__all__ = ["load_pretrained"]

_HOMES = {"load_pretrained": "loading"}


if not TYPE_CHECKING:  # type checkers see the imports above, and so find misspelt names

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
