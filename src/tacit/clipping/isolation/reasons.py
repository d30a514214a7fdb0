"""Why vmap does not carry a model, in plain words."""

from __future__ import annotations

import re

_SIZES = re.compile(r"dynamic shape\. Attempt\w+ to \w+ over (?:aten::)?(.*?)\.")


def said(reason: BaseException) -> str:
    """Return why vmap does not carry a model, and what would make it fast where that is known."""
    text = str(reason).partition("\n")[0]
    if "dynamic shape" in text:
        found = _SIZES.search(text)
        name = found[1] if found else "an index"
        return (
            f"how large the result of {name} is depends on a record's numbers. Multiply by a mask, or use "
            "torch.where of three arguments"
        )
    return f"{type(reason).__name__}: {text}"[:200]
