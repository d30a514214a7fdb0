"""Private steps in another library's training loop, and storage of a session's states."""

# The loop of a Trainer reads a batch, computes gradients and calls its optimizer's step. In a private run
# the loop reads the number of the next step, a ticket, instead of a batch (ticket_loader), and the session
# takes that step. The Trainer's optimizer (SteppedBySession) then has nothing left to do. No record and no
# gradient passes through the Trainer's loop.
#
# A Trainer's checkpoints are uploaded, shared and kept for a long time. The state of a session contains the
# secret key of the noise, and with it anyone can subtract the noise from the model. So the states are
# stored in a separate folder (SessionStates), one file for each checkpoint, and each is deleted with its
# checkpoint.
#
# Guarantee:
# * A loader returns a ticket only if the session has a step left for which the ledger was charged.
# * Each step of the Trainer's optimizer belongs to exactly one private step: the optimizer raises an error
#   otherwise.
# * The folder of the states is inside no folder that the Trainer writes to, even through symbolic links.
# * A new run overwrites no state of an earlier run.

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.training import PrivateSession, StepTicket

_KEY = "ticket"
_NAME = re.compile(r"step-(\d+)\.session")


def ticket_loader(session: PrivateSession, *, ended: Callable[[], None]) -> DataLoader[Any]:
    """Return a loader of the step tickets of one epoch: dictionaries of one tensor (1,), the step number.

    A loop can treat a ticket like a batch, for instance move it to a device. The loader has no workers and
    does not prefetch. If a run resumes within an epoch, the loop skips the tickets of the steps taken.
    """
    length = _steps_of_a_pass(session)
    return DataLoader(
        range(length),  # type: ignore[arg-type]  # positions within a pass
        sampler=_ChargedSteps(session, length, ended),
        collate_fn=lambda _: _ticket(session),
    )


@final
class Tickets:
    """The remaining tickets of an epoch, for loops that resume in the middle of it.

    The session knows its position, so the two state methods of this loader do nothing.
    """

    def __init__(self, session: PrivateSession, *, ended: Callable[[], None]) -> None:
        self._session, self._ended = session, ended

    def __len__(self) -> int:
        return _steps_of_a_pass(self._session)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        begun = self._session.steps_done % len(self)
        for _ in _charged(self._session, range(begun, len(self)), self._ended):
            yield _ticket(self._session)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def _steps_of_a_pass(session: PrivateSession) -> int:
    if session.steps_there < session.plan.steps:
        raise InvalidInput(
            f"the data have days for only {session.steps_there} of the plan's {session.plan.steps} steps, "
            "but this loop needs all. Give the days of the whole plan; or use session.batches() or tacit "
            "train, which continue when later days arrive."
        )
    return min(session.plan.steps_per_epoch, session.plan.steps)


def _ticket(session: PrivateSession) -> dict[str, Tensor]:
    return {_KEY: torch.tensor([session.steps_done])}


def ticket_of(session: PrivateSession, batch: object) -> StepTicket:
    number = batch.get(_KEY) if isinstance(batch, dict) else None
    if not isinstance(number, Tensor) or number.shape != (1,):
        raise PrivacyRefusal(
            f"the batch must come from the private loader; got a {type(batch).__name__} from elsewhere. A "
            f"private step samples its own records, so do not replace its loader. {session.steps_done} steps "
            "of the plan are done."
        )
    return StepTicket(int(number))


@final
class SteppedBySession:
    """A stand-in for the session's optimizer in a Trainer.  The session takes the steps."""

    def __init__(self, session: PrivateSession) -> None:
        self._session = session
        self._seen = session.steps_done

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._session.optimizer.param_groups

    @property
    def defaults(self) -> dict[str, Any]:
        return self._session.optimizer.defaults

    @property
    def state(self) -> Any:
        return self._session.optimizer.state

    def step(self, closure: Callable[[], object] | None = None) -> None:
        """Check that the session has taken one step since the last call; change no weights."""
        del closure
        count, self._seen = self._session.steps_done - self._seen, self._session.steps_done
        if count != 1:
            raise PrivacyRefusal(
                f"the session took {count} private steps for one optimizer step. Take one private step for "
                "each batch of the loop, and leave gradients and steps to the session."
            )

    def follow(self) -> None:
        """Count steps from the session's current one.  Call this after loading a state."""
        self._seen = self._session.steps_done

    def zero_grad(self, set_to_none: bool = True) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"state": {}, "param_groups": []}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@final
class _ChargedSteps(Sampler[int]):
    """The positions of an epoch's steps, until the ledger refuses."""

    def __init__(self, session: PrivateSession, length: int, ended: Callable[[], None]) -> None:
        self._session, self._length, self._ended = session, length, ended

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        begun = self._session.steps_done % self._length
        yield from range(begun)  # steps taken before the run was resumed, which the loop skips
        yield from _charged(self._session, range(begun, self._length), self._ended)


def _charged(session: PrivateSession, positions: range, ended: Callable[[], None]) -> Iterator[int]:
    """Yield positions of an epoch, until the session has no charged steps left."""
    tickets = session.batches()
    for position in positions:
        if next(tickets, None) is None:
            if session.stopped is not None:
                ended()
            return
        yield position


@final
class SessionStates:
    """The saved session states of one run in ``folder``, by number of steps."""

    def __init__(self, folder: Path | str, outputs: Mapping[str, Path | str]) -> None:
        self.folder = Path(folder)
        self._own: set[int] = set()
        for name, output in outputs.items():
            if self.folder.resolve().is_relative_to(Path(output).resolve()):
                raise PrivacyRefusal(
                    f"state_folder={str(folder)!r} is inside {name} ({output}), which may be shared or "
                    "uploaded, but the session's state contains the secret key of the noise. Choose a folder "
                    "outside it that only you can read."
                )

    def path(self, steps: int) -> Path:
        return self.folder / f"step-{steps}.session"

    def steps(self) -> list[int]:
        matches = (_NAME.fullmatch(path.name) for path in self.folder.glob("step-*.session"))
        return sorted(int(match[1]) for match in matches if match)

    def check_fresh(self, way_on: str) -> None:
        if steps := self.steps():
            raise InvalidInput(
                f"{self.folder} contains saved states of another run (steps {_last(steps)}). {way_on} For a "
                "new run choose another state_folder, or remove the old states."
            )

    def save(self, session: PrivateSession) -> None:
        session.save(self.path(session.steps_done))
        self._own.add(session.steps_done)

    def load(self, session: PrivateSession, steps: int) -> None:
        """Restore the state after ``steps`` steps.

        Raises:
            InvalidInput: if no such state was saved.
            PrivacyRefusal: if it belongs to another run.
        """
        if steps not in self.steps():
            raise InvalidInput(
                f"{self.folder} has no state of step {steps}; it has states of {_last(self.steps())} steps. "
                "Resume from a checkpoint of such a step, or give the state_folder of that run."
            )
        session.load(self.path(steps))

    def keep(self, checkpoints: Collection[int]) -> None:
        present = set(checkpoints)
        for steps in self._own - present:
            self.path(steps).unlink(missing_ok=True)
        self._own = (self._own & present) | (present & set(self.steps()))

    def keep_last(self, count: int) -> None:
        """Remove all but the last ``count`` states.  All states in the folder belong to this run."""
        for steps in self.steps()[:-count]:
            self.path(steps).unlink(missing_ok=True)


def _last(steps: list[int]) -> str:
    return ", ".join(map(str, steps[-5:])) if steps else "no"
