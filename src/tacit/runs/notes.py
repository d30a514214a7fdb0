"""What does the statement of a run say beside its mechanism? Public facts, a line each."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.attacks.memorisation import Canary
from tacit.datasets import Dataset
from tacit.runs.config import Config
from tacit.runs.owners import owners_line
from tacit.runs.stream import dates_line
from tacit.training.ranks.processes import Ranks
from tacit.training.session import PrivateSession


def notes_on(
    config: Config, data: Dataset, session: PrivateSession, canaries: Sequence[Canary]
) -> tuple[str, ...]:
    """The lines on a run's owners, dates, slots, canaries and processes."""
    return (
        *owners_line(config, data),
        *dates_line(config, session.plan, session.steps_done),
        *_slots_line(config),
        *_canaries_line(canaries),
        *_processes_line(session.ranks),
    )


def _slots_line(config: Config) -> tuple[str, ...]:
    """That there were canaries is a public fact: they belong to no person."""
    if not config.audit.slots:
        return ()
    return (f"{config.audit.slots} audit slots: canary records without data were planted for half of them",)


def _canaries_line(canaries: Sequence[Canary]) -> tuple[str, ...]:
    """The same for the canaries in text; it does not say which of them took part."""
    if not canaries:
        return ()
    return (f"{len(canaries)} made-up lines with random secrets were planted, each by a secret coin",)


def _processes_line(ranks: Ranks) -> tuple[str, ...]:
    if ranks.ranks == 1:
        return ()
    return (f"{ranks.ranks} processes that trust each other took each step together and released it once",)
