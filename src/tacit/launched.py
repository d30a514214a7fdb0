"""The rank of this process, from the environment variables that torchrun or accelerate sets.

The variables of a batch system such as SLURM are not read, because they describe the allocated resources and
not the number of processes that run this program.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """The rank of this process among all processes of the run, and among those on this machine."""

    rank: int = 0
    processes: int = 1
    rank_here: int = 0
    processes_here: int = 1


def launched() -> Launch:
    """Read ``WORLD_SIZE``, ``RANK``, ``LOCAL_WORLD_SIZE`` and ``LOCAL_RANK``."""
    # If one of the first two is not set, there is one process.
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
