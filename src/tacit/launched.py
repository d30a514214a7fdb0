"""The place of this process among others, from the variables that torchrun or accelerate sets.

The variables of a batch system (SLURM) are not read: they name the resources that were allotted, not how
often this program was started.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """The launcher's variables: this is process ``rank`` of ``processes``, and process ``rank_here`` of the
    ``processes_here`` on this machine."""

    rank: int = 0
    processes: int = 1
    rank_here: int = 0
    processes_here: int = 1


def launched() -> Launch:
    """Read ``WORLD_SIZE``, ``RANK`` and their local twins; without one of the two there is one process.

    >>> launched()
    Launch(rank=0, processes=1, rank_here=0, processes_here=1)
    """
    processes, rank = _number("WORLD_SIZE"), _number("RANK")
    if processes is None or rank is None:
        return Launch()
    rank_here, processes_here = _number("LOCAL_RANK"), _number("LOCAL_WORLD_SIZE")
    return Launch(
        rank,
        processes,
        rank if rank_here is None else rank_here,
        processes if processes_here is None else processes_here,
    )


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None
