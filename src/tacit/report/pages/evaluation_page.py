"""How good is the model of a run? One HTML page that needs no network, of :mod:`tacit.report.evaluated`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.report.evaluated import constant_score
from tacit.report.pages.document import page


def evaluation_page(data: Mapping[str, Any], *, title: str) -> str:
    """The whole page, as HTML.

    Args:
        data: of :func:`tacit.report.evaluated.evaluation_data`.
        title: the name of the run.
    """
    constant = constant_score(data["baseline"])
    return page("evaluation.html", f"How good {title} is", **data, run=title, constant=constant)
