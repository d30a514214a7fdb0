"""How does a command speak with one voice, where a launcher such as torchrun started several processes?

The first prints.  The others print only an error of their own that the first does not have.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

from tacit.cli.show import console, messages
from tacit.launched import launched

if TYPE_CHECKING:
    from tacit.training.ranks.processes import Ranks

Join: TypeAlias = "Callable[[str], Ranks | None]"
"""The processes that train on the device of that name; None where this is the only process."""


@contextlib.contextmanager
def one_voice() -> Iterator[Join]:
    """Meet the other processes of this command, if there are any, and let the first alone be heard.

    A launcher sends SIGTERM to all as soon as one ends with a code that is not 0: until the command is known
    to have failed it counts as a Ctrl-C, afterwards it would only cut the message.
    """
    launch = launched()
    if launch.processes == 1:
        yield _alone
        return
    from tacit.runs.together import Meeting  # imports torch

    console.quiet = messages.quiet = launch.rank > 0
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        meeting = Meeting(launch)
        with warnings.catch_warnings():
            if launch.rank > 0:
                warnings.simplefilter("ignore")  # the first has the same
            try:
                yield meeting.join
            except BaseException as problem:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                messages.quiet = not meeting.heard(problem)
                raise
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        meeting.leave()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def torchrun() -> list[str]:
    """The words before ``tacit``'s own by which this process was started; on one machine, all of them."""
    launch = launched()
    if launch.processes == 1:
        return ["tacit"]
    machines = -(-launch.processes // launch.processes_here)
    where = [] if machines == 1 else ["--nnodes", str(machines), "..."]
    return ["torchrun", *where, "--nproc-per-node", str(launch.processes_here), "-m", "tacit"]


def _alone(device: str) -> None:
    """No other process."""


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
