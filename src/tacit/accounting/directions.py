"""In which directions do neighbours differ? A record is removed, added or replaced."""

from __future__ import annotations

from typing import Literal, TypeAlias

from tacit.events import Adjacency

Direction: TypeAlias = Literal["remove", "add", "replace"]


def directions(adjacency: Adjacency) -> tuple[Direction, ...]:
    """The dominating pairs that ``adjacency`` asks for; the larger price counts.

    Replacing is symmetric, so one direction does.  Zeroing out a contribution gives the pair of
    removing the record, and its reverse (Kairouz et al. 2021, 2103.00039, section 2).
    """
    return ("replace",) if adjacency is Adjacency.REPLACE_ONE else ("remove", "add")
