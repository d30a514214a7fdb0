"""How are figures shown to people? Rounded up: a page never shows less than was computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.rounding import round_up


def pair(figures: Mapping[str, Any], digits: int = 4) -> str:
    """An epsilon with its delta, rounded up; there is no epsilon without one.

    >>> pair({"epsilon": 1.00001, "delta": 1e-6})
    'ε = 1.001 at δ = 1e-06'
    """
    delta = f"{float(round_up(figures['delta'], 6)):.6g}" if figures["delta"] else "0"
    if figures["epsilon"] is None:
        return f"no finite ε at δ = {delta}"
    return f"ε = {round_up(figures['epsilon'], digits)} at δ = {delta}"
