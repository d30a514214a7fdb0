"""What does a session read and release? A recorder, which does not depend on the session's inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from tacit.errors import InvalidInput
from tacit.sampling import Indices
from tacit.training import PrivateSession
from tacit.training.data.records import Records


@final
class Recorder(torch.optim.Optimizer):
    """An optimizer that records the gradients it gets and changes nothing.

    As the weights stay, every step is a function of the same weights, and differs from the same step of
    another run by the records alone.
    """

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.steps: list[list[Tensor | None]] = []

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Record the gradients; ``closure`` is refused."""
        if closure is not None:
            raise InvalidInput("a recorder cannot use a closure. Call step() without one.")
        given = [p.grad for group in self.param_groups for p in group["params"]]
        self.steps.append([None if g is None else g.detach().double().cpu().clone() for g in given])


@final
class NotedRows(Records):
    """Tensors whose row i is record i, in any state, NaN included; ``taken`` records what a step reads."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self.tensors = tensors
        self.taken: list[int] = []

    def __len__(self) -> int:
        return len(self.tensors[0])

    @property
    def template(self) -> tuple[int, ...]:
        return tuple(range(len(self.tensors)))

    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        self.taken += indices.tolist()
        return tuple(tensor[torch.from_numpy(indices)] for tensor in self.tensors)

    def fingerprint(self, key: bytes) -> str:
        return ""

    def content(self) -> None:
        return None


@dataclass(frozen=True, eq=False)
class Release:
    """One step: mean gradients as the optimizer got them, the next thresholds, the loss, who took part."""

    gradients: tuple[Tensor | None, ...]
    thresholds: tuple[float, ...]
    loss: float | None
    taken: tuple[int, ...]


def perform(session: PrivateSession, rows: NotedRows, steps: int | None = None) -> list[Release]:
    """Take the steps that are left, or so many of them; gives one release for each step of the optimizer.

    :raises InvalidInput: if the session's optimizer is not a :class:`Recorder`.
    """
    optimizer = session.optimizer
    if not isinstance(optimizer, Recorder):
        raise InvalidInput(
            f"make the session with a Recorder for an optimizer; got {type(optimizer).__name__}."
        )
    found: list[Release] = []
    for batch in session.batches():
        before = len(optimizer.steps)
        rows.taken.clear()
        report = session.step(batch)
        found += [
            Release(tuple(gradients), session.thresholds, report.loss, tuple(rows.taken))
            for gradients in optimizer.steps[before:]
        ]
        if steps is not None and session.steps_done >= steps:
            break
    return found
