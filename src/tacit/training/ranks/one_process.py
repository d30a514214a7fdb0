"""Does one process alone train this run? Several that start together would each train a separate model.

Each process would draw its own key, so the models drift apart, and each reports the cost of itself alone.
Two of them together, or their average, cost more than either reports.

**Guarantee**

* Where torch.distributed has a process group of two or more, or a launcher such as torchrun started two or
  more processes, no process reads a record or releases anything, unless its session was given ``ranks``.
"""

from __future__ import annotations

import torch

from tacit.errors import PrivacyRefusal
from tacit.launched import launched


def check_one_process() -> None:
    """Refuse to train in one of several processes.

    The check knows a launcher by the two variables that torch.distributed reads, ``WORLD_SIZE`` and ``RANK``:
    torchrun and accelerate set both, also where the script never makes a process group.

    Raises:
        PrivacyRefusal: this process is one of several.

    >>> check_one_process()
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        _refuse_several(
            torch.distributed.get_world_size(),
            "torch.distributed has a process group of {} processes here",
            "Give the session ranks=tacit.training.ProcessRanks(), and they train one model together. To "
            "train in one process, start the script once, with python, without init_process_group.",
        )
    launch = launched()
    _refuse_several(
        launch.processes,
        f"a launcher such as torchrun started this script in {{}} processes (WORLD_SIZE={launch.processes}, "
        f"RANK={launch.rank})",
        "To train one model in all of them, call torch.distributed.init_process_group() and give the "
        "session ranks=tacit.training.ProcessRanks(). To train in one, start the script once, with "
        "python. If no other process trains, give the session ranks=tacit.training.Alone().",
    )


def _refuse_several(count: int, what: str, way_out: str) -> None:
    if count > 1:
        raise PrivacyRefusal(
            f"{what.format(count)}, and the session was not told of the others. Each process would train a "
            "separate model with its own key, and whoever sees two of these models, or their average, learns "
            f"more than session.epsilon says. {way_out}"
        )
