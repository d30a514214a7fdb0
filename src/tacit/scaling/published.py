"""Which figures were published? The law of McKenna et al. and its runs, as data with sources.

``published.json`` holds them; each entry names its source, and says if it was read second-hand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from tacit.scaling.law import Law, Run


@dataclass(frozen=True)
class PublishedFacts:
    """The content of ``published.json``."""

    data: dict[str, Any]

    def value(self, name: str) -> float:
        """One number of the rule for training without privacy."""
        return float(self.data["non_private"][name]["value"])


@cache
def published_facts() -> PublishedFacts:
    """All published figures that a plan uses, with their sources."""
    text = resources.files("tacit.scaling").joinpath("published.json").read_text(encoding="utf-8")
    return PublishedFacts(json.loads(text))


def published_runs() -> tuple[Run, ...]:
    """The 20 configurations of table 2 of McKenna et al., with the loss that they state for each.

    The noise-batch ratio follows from their privacy budget by Tacit's accountant.

    >>> len(published_runs())
    20
    """
    return tuple(
        Run(
            model_size=row["model_size"],
            steps=row["steps"],
            noise_batch_ratio=row["noise_batch_ratio"],
            loss=row["loss"],
            source=row["source"],
        )
        for row in published_facts().data["runs"]
    )


@cache
def published_law() -> Law:
    """The law that :meth:`Law.fit` finds for :func:`published_runs`.

    >>> published_law().sequence_length
    512
    """
    return Law.from_data(published_facts().data["law"])
