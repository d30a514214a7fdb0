"""The findings on a finished run whose records are people with several rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tacit.accounting import account
from tacit.report.findings import risk_found
from tacit.report.risk import risk_sheet
from tacit.report.verification import read_event
from tacit.runs.finished import finished_files


def people_findings(folder: Path) -> dict[str, Any]:
    """Return the proven limits of a run whose records are people, to which attacks on rows do not apply."""
    _, plan, statement = finished_files(folder)
    curve = account(read_event(statement["event"]), adjacency=plan.adjacency)
    return {
        "run": {
            "name": folder.name,
            "unit": plan.unit,
            "data": statement["data"],
            "model": statement["model"],
            "private": statement["private"],
        },
        "risk": risk_found(risk_sheet(curve, delta=plan.delta, unit=plan.unit)),
    }
