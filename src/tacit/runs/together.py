"""Processes of a launcher such as torchrun: rendezvous, process group, and a single error message."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import final

import torch
from torch import distributed as dist

from tacit.errors import InvalidInput, Launch, ProcessLost
from tacit.runs.checks import CheckedRun
from tacit.training.ranks.processes import ProcessRanks, Ranks

_PATIENCE = timedelta(seconds=3)  # the time that a failed process waits for the first one's error


@final
class Meeting:
    """The rendezvous of this process with the other processes of ``launch``."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._ranks: ProcessRanks | None = None
        try:
            self._store, self._rank, self._processes = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        except (ValueError, RuntimeError) as problem:
            reason = str(problem).strip().partition("\n")[0].rstrip(".")
            raise InvalidInput(
                f"process {launch.rank} of {launch.processes} cannot reach the others: {reason}. Start all "
                "with torchrun, which tells each process where they meet."
            ) from None

    def join(self, device: str) -> ProcessRanks:
        """Form the process group for training on ``device``: gloo for a CPU, NCCL for CUDA."""
        kind, _, number = device.partition(":")
        if kind == "cuda":
            self._take_gpu(number)
        elif kind != "cpu":
            raise InvalidInput(
                f'[run] device = "{device}": several processes train on "cpu" or "cuda". Take one of '
                "these, or start one process."
            )
        dist.init_process_group(
            "nccl" if kind == "cuda" else "gloo",
            store=dist.PrefixStore("group", self._store),  # type: ignore[attr-defined]
            rank=self._rank,
            world_size=self._processes,
        )
        self._ranks = ProcessRanks()
        return self._ranks

    def _take_gpu(self, number: str) -> None:
        if number:
            raise InvalidInput(
                f'[run] device = "cuda:{number}" is one GPU: each process needs its own. Set device = '
                '"cuda": the first process of a machine takes the first GPU, and so on.'
            )
        here, gpus = self._launch.processes_here, torch.cuda.device_count()
        if here > gpus:
            raise InvalidInput(
                f'[run] device = "cuda": {here} processes were started on a machine with {gpus} GPUs, and '
                f"each needs its own. Start {gpus or 'none'} there, or train on the CPU."
            )
        torch.cuda.set_device(self._launch.rank_here)

    def leave(self) -> None:
        """Wait for all processes, since a launcher stops the others as soon as one ends with an error."""
        if self._ranks is not None:
            self._ranks.total(lambda: ())
            dist.destroy_process_group()

    def should_print(self, problem: BaseException) -> bool:
        """Return whether this process prints ``problem``.

        The first process always prints its error.  Others print theirs if it differs from that error, and is
        neither an interrupt nor the loss of a process.
        """
        text = str(problem)
        with contextlib.suppress(RuntimeError):  # the store is gone, or the first process had no error
            if self._rank == 0:
                self._store.set("error", text)
                return True
            self._store.wait(["error"], _PATIENCE)
            repeats = self._store.get("error").decode() == text
            return not (repeats or isinstance(problem, ProcessLost | KeyboardInterrupt))
        return True


def check_one_run(checked: CheckedRun, ranks: Ranks) -> None:
    """Refuse to begin if a rank was started with another configuration or another ``--resume``."""
    mine = (checked.text, checked.resume)
    first = ranks.from_first(lambda: mine)

    def check() -> None:
        if mine != first:
            raise InvalidInput(
                f"process {ranks.rank} differs from process 0 in its configuration or --resume: all "
                "processes train one run. Start them with the same file and the same options."
            )

    ranks.each(check)
