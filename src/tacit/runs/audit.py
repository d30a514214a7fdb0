"""The audit of a run: by its own slots, or by a rehearsal of its plan on made-up records."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tacit.audits import AuditResult, audit_slots, plan_with_room
from tacit.audits.claim import AUDIT_LEVEL
from tacit.audits.one_run import SlotAudit
from tacit.errors import InvalidInput, TacitError
from tacit.events import Adjacency
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.report.findings import FEWEST_TESTS, Planted, audits_found
from tacit.runs.checks import slot_files
from tacit.runs.config import Config, read_config
from tacit.runs.kinds import Progress, silent
from tacit.runs.plan import make_plan
from tacit.training import AuditSlots, PrivateSession
from tacit.training.audit_slots import SlotEvidence

PLANTED = 0.8 * AUDIT_LEVEL
"""The largest probability that an experiment with canaries rejects a true claim, over both stages."""
_USUAL = 1000  # slots of a planted experiment
_MORE = (8, 4, 2, 1)  # factors for the canaries of the second stage; the largest that is fast enough is used
_WIDTH = 8  # numbers in a made-up record
_MOST_WORK = 2e8  # limit of records times steps of a rehearsal, which takes about a minute


@dataclass(frozen=True, eq=False)
class FolderAudit:
    """The result of an audit by the run's own slots, or by a ``rehearsal`` of its plan.

    ``again`` describes the second stage's tests, if the first stage suspected a violation.

    **Guarantee**

    * A true claim is rejected with probability at most :data:`PLANTED`, over all results together.
    """

    audit: SlotAudit
    slots: int
    rehearsal: bool
    again: str = ""


def audit_folder(
    folder: Path | str,
    *,
    confidence: float = 0.95,
    slots: int = _USUAL,
    rng: np.random.Generator | None = None,
    progress: Callable[[str, int, int], None] = silent,
) -> FolderAudit:
    """Audit the run in ``folder`` by its own slots, or else by a rehearsal of its plan on made-up records.

    Args:
        folder: the folder of the run.
        confidence: the confidence of each bound.
        slots: the number of slots of a rehearsal.
        rng: draws halves of the slots, ties and simulations; it must be independent of the slots' coins.
        progress: called during long work, with (title, done, total).

    Raises:
        InvalidInput: there is no run, a run with slots is not finished, or a rehearsal would take too long.
        PrivacyRefusal: the plan cannot be audited by slots (:meth:`tacit.training.AuditSlots.check_plan`).
    """
    folder = Path(folder)
    config = read_config(folder / "config.toml")
    plan = make_plan(config)
    rng = np.random.default_rng() if rng is None else rng
    rehearsal = not config.audit.slots
    if not rehearsal:
        evidence = SlotEvidence.load(*slot_files(folder))
        slots = config.audit.slots
    else:
        if plan.adjacency is Adjacency.ADD_REMOVE:  # the rehearsal refuses any other adjacency
            plan = plan_with_room(plan, slots)
        evidence = rehearse_plan(plan, slots, progress=partial(progress, "planted experiment"))

    progress("what it proves", 0, 1)
    audit, again = audit_slots(evidence, plan, confidence=confidence, rng=rng), ""
    if suspects(audit):
        tell = partial(progress, "a second, larger experiment")
        audit, again = _second_stage(audit, evidence, plan, slots, rehearsal, tell, rng)
    progress("what it proves", 1, 1)
    return FolderAudit(audit, slots, rehearsal, again)


def _second_stage(
    audit: SlotAudit,
    evidence: SlotEvidence,
    plan: Plan,
    slots: int,
    rehearsal: bool,
    progress: Callable[[int, int], None],
    rng: np.random.Generator,
) -> tuple[SlotAudit, str]:
    """Test again with fresh canaries, at a significance level that holds whatever the first stage found.

    A run's own slots cannot be planted again, so they are tested at a smaller level.  If it does not take too
    long, the plan is also rehearsed with fresh canaries, since a bug in the code would show there, too.
    Returns the judged audit, and a description of the tests.
    """
    more = next(
        (times * slots for times in _MORE if _work(plan_with_room(plan, times * slots)) <= _MOST_WORK), 0
    )
    looks = (not rehearsal) + (more > 0)  # a rehearsal has more > 0, as its first stage was fast enough
    confirmed, tests = False, []
    if not rehearsal:
        confirmed = confirms(evidence, plan, level=PLANTED / looks, rng=rng)
        tests.append("its own slots, at a smaller error probability")
    if more and not confirmed:
        roomy = plan_with_room(plan, more)
        fresh = rehearse_plan(roomy, more, progress=progress)
        confirmed = confirms(fresh, roomy, level=PLANTED / looks, rng=rng)
        tests.append(f"{more:,} fresh canaries in a separate run of the same plan")
    return judged(audit, confirmed=confirmed), " and ".join(tests)


def results_of(audit: SlotAudit) -> tuple[AuditResult, AuditResult, AuditResult]:
    """Return the audit's three results, each of which tests the claim."""
    return audit.claim, audit.one_run, audit.one_run_by_tradeoff


def suspects(audit: SlotAudit) -> bool:
    """Return whether one of the audit's results rejects the claim."""
    return any(result.claim_rejected for result in results_of(audit))


def confirms(evidence: SlotEvidence, plan: Plan, *, level: float, rng: np.random.Generator) -> bool:
    """Return whether one of three tests rejects the claim; ``level`` is their total error probability."""
    return suspects(audit_slots(evidence, plan, confidence=1.0 - level / 3.0, rng=rng))


def judged(audit: SlotAudit, *, confirmed: bool) -> SlotAudit:
    """Return the audit, in which a suspicion of the first stage rejects the claim only if ``confirmed``."""
    claim, one_run, by_tradeoff = (
        replace(one, suspected=one.claim_rejected, claim_rejected=bool(one.claim_rejected and confirmed))
        for one in results_of(audit)
    )
    return replace(audit, claim=claim, one_run=one_run, one_run_by_tradeoff=by_tradeoff)


def _work(plan: Plan) -> float:
    """Return the expected number of records in all steps together, as a measure of computing time."""
    return plan.steps * plan.expected_batch_size


def rehearse_plan(
    plan: Plan,
    slots: int,
    *,
    generator: Generator | None = None,
    progress: Callable[[int, int], None] = silent,
) -> SlotEvidence:
    """Perform ``plan`` on ``plan.records`` made-up records, with audit slots among them.

    The plan needs room for the slots (:func:`tacit.audits.plan_with_room`).  ``generator`` is only for tests.
    """
    plan = replace(plan, views=1)
    if _work(plan) > _MOST_WORK:
        raise InvalidInput(
            f"a rehearsal of the plan takes too long: it has {plan.steps} steps of "
            f"{plan.expected_batch_size:g} records. Train with [audit] slots = 1000 in the configuration "
            "instead; the run then stores what its audit needs."
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
        loss=lambda model, x, y: F.cross_entropy(model(x), y, reduction="none"),
        physical_batch_size=max(1, math.ceil(plan.expected_batch_size / 2)),  # exercises accumulation, too
        audit=AuditSlots(slots),
        generator=generator,
    )
    for batch in session.batches():
        session.step(batch)
        progress(session.steps_done, plan.steps)
    return session.slot_evidence()


def audit_findings(
    folder: Path,
    *,
    canaries: int,
    confidence: float,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> list[dict[str, Any]]:
    """Audit the run as :func:`audit_folder` does, and return the results as plain data, with their words."""
    found = audit_folder(folder, confidence=confidence, slots=canaries, rng=rng, progress=progress)
    where = f"{found.slots:,} canaries were planted in this run; a secret coin included about half of them."
    if found.rehearsal:
        steps = make_plan(read_config(folder / "config.toml")).steps
        where = (
            f"{found.slots:,} canaries, about half of them included by a secret coin, were planted in a "
            "separate run of the same plan on made-up records: the same code, sampler, clipping and noise, "
            f"{steps} steps. To plant them in a run itself, set [audit] slots = 1000 in its configuration."
        )
    if found.again:
        where += f" One test suspected a violation, so all tests were repeated on {found.again}."
    return audits_found([Planted(where, results_of(found.audit))])


def how_to_test(config: Config, plan: Plan, folder: Path, test_records: int) -> str:
    """Return the command that tests a finished run, or the reason why none does."""
    run = shlex.quote(str(folder))
    if config.data.date is not None:
        return "No command tests a run by date: attacks train on random halves of the records."
    refusal = ""
    try:
        AuditSlots(1).check_plan(plan)
        if not config.audit.slots and _work(plan_with_room(plan, _USUAL)) > _MOST_WORK:
            refusal = "a planted experiment would take too long without [audit] slots."
    except TacitError as problem:
        refusal = str(problem)

    if config.data.rows_per_user is None:
        if test_records < FEWEST_TESTS:
            return f"No command tests it: an attack needs at least {FEWEST_TESTS} test records."
        return f"To test it:\n  tacit {'attack' if refusal else 'audit'} {run}"
    if refusal:
        return f"No command tests it: attacks test single rows, and {refusal}"
    return f"To test it, with made-up people, since attacks test single rows:\n  tacit audit {run}"
