"""Where does the state of a private run lie while a Trainer writes checkpoints? In a folder apart from them.

A Trainer's checkpoints are uploaded, shared and kept for long.  The state of a session holds the secret key
of the noise, and whoever has it can subtract the noise from the model.  So it lies in a folder of its own,
one file for each checkpoint, and goes when its checkpoint goes.

**Guarantee**

* The folder lies in none of those that the Trainer writes to, by whatever name or link.
* A run that is not resumed overwrites no state of another run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import final

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.training import PrivateSession

_NAME = re.compile(r"step-(\d+)\.session")


@final
class SessionStates:
    """The states of one run in ``folder``, by the number of steps done.

    Args:
        written: folders that the Trainer writes to, by their name in its settings.

    Raises:
        PrivacyRefusal: ``folder`` is one of them, or lies in one.
    """

    def __init__(self, folder: Path | str, written: Mapping[str, Path | str]) -> None:
        self.folder = Path(folder)
        self._own: set[int] = set()
        for name, other in written.items():
            if self.folder.resolve().is_relative_to(Path(other).resolve()):
                raise PrivacyRefusal(
                    f"state_folder={str(folder)!r} lies in {name} ({other}), whose content is made to be "
                    "shared or uploaded, and the state of the session holds the secret key of the noise. "
                    "Choose a folder outside it, which only you can read."
                )

    def path(self, steps: int) -> Path:
        """The file of the state after so many steps."""
        return self.folder / f"step-{steps}.session"

    def steps(self) -> list[int]:
        """Of which steps there are states, in order."""
        found = (_NAME.fullmatch(path.name) for path in self.folder.glob("step-*.session"))
        return sorted(int(match[1]) for match in found if match)

    def check_fresh(self, way_on: str) -> None:
        """Refuse to begin a run where the states of another one lie.

        Raises:
            InvalidInput: there are some; ``way_on`` tells how to resume.
        """
        if steps := self.steps():
            raise InvalidInput(
                f"{self.folder} holds the states of a run after {_some(steps)} steps, and this is a new run. "
                f"{way_on} For a new run give another state_folder, or remove the old states."
            )

    def save(self, session: PrivateSession) -> None:
        """Write the state of now."""
        session.save(self.path(session.steps_done))
        self._own.add(session.steps_done)

    def load(self, session: PrivateSession, steps: int) -> None:
        """Go on from the state after so many steps.

        Raises:
            InvalidInput: there is no such state.
            PrivacyRefusal: it belongs to another run.
        """
        if steps not in self.steps():
            raise InvalidInput(
                f"the checkpoint is of step {steps}, and {self.folder} holds states of {_some(self.steps())} "
                "steps. A checkpoint alone lacks the position and the key of the run: resume from a "
                "checkpoint whose state is there, or give the state_folder of that run."
            )
        session.load(self.path(steps))

    def keep(self, checkpoints: Collection[int]) -> None:
        """Remove states whose checkpoints are gone, of those that were ever seen with one.

        Args:
            checkpoints: the steps of the checkpoints that are there.
        """
        present = set(checkpoints)
        for steps in self._own - present:
            self.path(steps).unlink(missing_ok=True)
        self._own = (self._own & present) | (present & set(self.steps()))

    def keep_last(self, count: int) -> None:
        """Remove all but the last ``count`` states: all in the folder are of this run."""
        for steps in self.steps()[:-count]:
            self.path(steps).unlink(missing_ok=True)


def _some(steps: list[int]) -> str:
    return ", ".join(map(str, steps[-5:])) if steps else "no"
