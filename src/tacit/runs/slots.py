"""How is a run's folder audited? By the slots that it was trained with, or by a rehearsal of its plan.

A run without slots can still be audited.  The same code performs its plan once more, with the same sampler,
clipping rule and noise, on made-up records with slots among them; it reads no real record.  What it finds is
a property of the code and the settings, not of the one model that was released.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.audits import AuditResult, audit_slots, plan_with_room
from tacit.audits.result import AUDIT_LEVEL
from tacit.audits.slots import SlotAudit
from tacit.errors import InvalidInput
from tacit.events import Adjacency
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.report.findings import Planted, audits_found
from tacit.runs.checks import slot_files
from tacit.runs.config import read_config
from tacit.runs.finished import FinishedRun
from tacit.runs.kinds import Progress, silent
from tacit.runs.plan import make_plan
from tacit.training import AuditSlots, PrivateSession
from tacit.training.parts.audit_slots import SlotEvidence

PLANTED = 0.8 * AUDIT_LEVEL
"""The probability with which a planted experiment contradicts a kept promise, at most, by both stages."""
_MORE = (8, 4, 2, 1)  # times as many canaries in the second stage, the most for which there is time
_WIDTH = 8  # of made-up records
_MOST_WORK = 2e8  # records times steps of a rehearsal, about a minute


@dataclass(frozen=True, eq=False)
class FolderAudit:
    """What the audit found, and whether by the run's slots or by a ``rehearsal`` of its plan.

    **Guarantee**

    * A claim that is true is rejected with probability at most :data:`PLANTED`, by all results together.
    """

    audit: SlotAudit
    slots: int
    rehearsal: bool
    again: str = ""
    """Where the first stage suspected something: what the second one looked at."""


def audit_folder(
    folder: Path | str,
    *,
    confidence: float = 0.95,
    slots: int = 1000,
    rng: np.random.Generator | None = None,
    progress: Callable[[str, int, int], None] = silent,
) -> FolderAudit:
    """Audit the run in ``folder`` by its slots; without any, by a rehearsal with ``slots`` of them.

    ``progress(title, done, total)`` is called during long work.

    Raises:
        InvalidInput: there is no run, or it has slots and is not finished.
        PrivacyRefusal: its plan cannot be audited by slots (:meth:`tacit.training.AuditSlots.check_plan`).
    """
    folder = Path(folder)
    config = read_config(folder / "config.toml")
    plan = make_plan(config)
    rng = np.random.default_rng() if rng is None else rng
    if config.audit.slots:
        evidence, rehearsal = SlotEvidence.load(*slot_files(folder)), False
        slots = config.audit.slots
    else:
        if plan.adjacency is Adjacency.ADD_REMOVE:  # the rehearsal refuses any other
            plan = plan_with_room(plan, slots)
        tell = partial(progress, "planted experiment")
        evidence, rehearsal = rehearse_plan(plan, slots, progress=tell), True
    progress("what it proves", 0, 1)
    found, again = audit_slots(evidence, plan, confidence=confidence, rng=rng), ""
    if suspects(found):
        tell = partial(progress, "a second, larger experiment")
        found, again = _second_stage(found, evidence, plan, slots, rehearsal, tell, rng)
    progress("what it proves", 1, 1)
    return FolderAudit(found, slots, rehearsal, again)


def suspects(found: SlotAudit) -> bool:
    """Whether one of its results rejects the claim."""
    return any(result.claim_rejected for result in results_of(found))


def results_of(found: SlotAudit) -> tuple[AuditResult, AuditResult, AuditResult]:
    """The three results, each of which tests the claim."""
    return found.claim, found.one_run, found.one_run_by_tradeoff


def confirms(evidence: SlotEvidence, plan: Plan, *, level: float, rng: np.random.Generator) -> bool:
    """Whether evidence contradicts the claim by one of three tests, at this level for all three together."""
    return suspects(audit_slots(evidence, plan, confidence=1.0 - level / 3.0, rng=rng))


def judged(found: SlotAudit, *, confirmed: bool) -> SlotAudit:
    """The audit with the verdict of both stages on each result that the first one suspected."""
    claim, one_run, by_tradeoff = (
        replace(one, suspected=one.claim_rejected, claim_rejected=bool(one.claim_rejected and confirmed))
        for one in results_of(found)
    )
    return replace(found, claim=claim, one_run=one_run, one_run_by_tradeoff=by_tradeoff)


def _second_stage(
    found: SlotAudit,
    evidence: SlotEvidence,
    plan: Plan,
    slots: int,
    rehearsal: bool,
    progress: Callable[[int, int], None],
    rng: np.random.Generator,
) -> tuple[SlotAudit, str]:
    """Test once more, at a level that holds by itself, whatever the first stage saw: with fresh canaries.

    A run's own slots cannot be planted anew.  What they show is held against a smaller level, and its plan is
    performed again, if that does not take too long: a fault of the code shows in both.
    """
    more = next(
        (times * slots for times in _MORE if _work(plan_with_room(plan, times * slots)) <= _MOST_WORK), 0
    )
    looks = (not rehearsal) + (more > 0)  # of a rehearsal as large as the first there is time
    confirmed, said = False, []
    if not rehearsal:
        confirmed = confirms(evidence, plan, level=PLANTED / looks, rng=rng)
        said.append("its own slots, at a smaller error probability")
    if more and not confirmed:
        roomy = plan_with_room(plan, more)
        fresh = rehearse_plan(roomy, more, progress=progress)
        confirmed = confirms(fresh, roomy, level=PLANTED / looks, rng=rng)
        said.append(f"{more:,} fresh canaries in a separate run of the same plan")
    return judged(found, confirmed=confirmed), " and ".join(said)


def _work(plan: Plan) -> float:
    """Records times steps."""
    return plan.steps * plan.expected_batch_size


def rehearse_plan(
    plan: Plan,
    slots: int,
    *,
    generator: Generator | None = None,
    progress: Callable[[int, int], None] = silent,
) -> SlotEvidence:
    """Perform ``plan`` on ``plan.records`` made-up records, with ``slots`` among them.

    Args:
        plan: with room for the slots (:func:`tacit.audits.plan_with_room`).
        generator: only for tests.
        progress: called with the steps that are done, and the number of all.

    Raises:
        InvalidInput: that would take too long.
    """
    plan = replace(plan, views=1)
    if _work(plan) > _MOST_WORK:
        raise InvalidInput(
            f"to perform the plan again takes {plan.steps} steps of {plan.expected_batch_size:g} records, "
            "which is too long for an audit. Train with [audit] slots = 1000 in the configuration instead: "
            "the run then leaves what its audit needs."
        )
    with torch.random.fork_rng(devices=[]):
        records = torch.randn(plan.records, _WIDTH)
        net = nn.Linear(_WIDTH, 2)
    targets = (records.sum(1) > 0).long()
    session = PrivateSession(
        net,
        torch.optim.SGD(net.parameters(), lr=0.1),
        (records, targets),
        plan,
        loss=_loss,
        physical_batch_size=max(1, math.ceil(plan.expected_batch_size / 2)),  # so that sums are accumulated
        audit=AuditSlots(slots),
        generator=generator,
    )
    for batch in session.batches():
        session.step(batch)
        progress(session.steps_done, plan.steps)
    return session.slot_evidence()


def _loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), targets, reduction="none")


def audit_findings(
    run: FinishedRun,
    *,
    canaries: int,
    confidence: float,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> list[dict[str, Any]]:
    """What canaries prove about the run, at least: its own, or those of a separate run of its plan.

    :param canaries: how many to plant in a separate run, if this one has none.
    :param confidence: of each bound by itself.
    :param rng: for halves, ties and rehearsals; it must be independent of the coins.
    :raises PrivacyRefusal: if the plan cannot be audited by slots.
    :raises InvalidInput: if the run's evidence is damaged, or a separate run would take too long.
    """
    found = audit_folder(run.folder, confidence=confidence, slots=canaries, rng=rng, progress=progress)
    where = _where(run, found)
    if found.again:
        where += f" One test suspected something, so all were made again, on {found.again}."
    return audits_found([Planted(where, results_of(found.audit))])


def _where(run: FinishedRun, found: FolderAudit) -> str:
    if not found.rehearsal:
        return (
            f"{found.slots:,} canaries were planted in this very run; a secret coin put in about half of "
            "them."
        )
    return (
        f"{found.slots:,} canaries, about half of them put in by a secret coin, were planted in a separate "
        f"run of the same plan on made-up records: the same code, sampler, clip and noise, "
        f"{run.plan.steps} steps. To have them in a run itself, put [audit] slots = 1000 into its "
        "configuration."
    )
