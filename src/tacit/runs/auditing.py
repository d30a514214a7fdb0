"""What do planted experiments prove about a finished run? Findings for its report."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.report.findings import Planted, audits_found
from tacit.runs.finished import FinishedRun
from tacit.runs.load import Progress
from tacit.runs.slots import FolderAudit, audit_folder, results_of


def audit_findings(
    run: FinishedRun,
    *,
    canaries: int,
    confidence: float,
    rng: np.random.Generator,
    progress: Progress | None = None,
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
