"""The model card of a released model: its guarantee as stated, its limits, and how to use the model.

If the run gave a noisy test score, the card shows that score and no other figure of the test records. The
publisher's own statements are marked as such, and the card names those that are missing.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.errors import InvalidInput
from tacit.report.checklist import LICENSE, STATEMENTS
from tacit.report.document import render, yaml_text
from tacit.report.evaluation import evaluation_text, score_line
from tacit.report.statement import promise

_PIPELINES = {
    ("table", "classes"): "tabular-classification",
    ("table", "labels"): "tabular-classification",
    ("table", "numbers"): "tabular-regression",
    ("pictures", "classes"): "image-classification",
    ("text", "text"): "text-generation",
    ("text", "classes"): "text-classification",
    ("text", "labels"): "text-classification",
}
"""The pipeline tags of model hubs, by kind of records and task."""
_FOR_REGULATORS = (
    "curator",
    "contact",
    "description",
    "intended_use",
    "published",
    "data_domain",
    "why_budget",
)
"""The statements that regulators ask for. The card says which of them are missing."""


@dataclass(frozen=True)
class CardFacts:
    """Public facts about the use of a model, for its card.

    ``kind`` is "table", "pictures" (images), "text" or "arrays", and ``task`` "classes", "labels", "numbers"
    or "text". ``records`` is a sentence on the data that the model takes; ``columns`` has each column that it
    reads, and its declaration in words. ``factory``, "module:function", makes a model of the user's own.
    ``example`` is an input file for the example commands. ``library`` is the loading library's name on model
    hubs.
    """

    kind: str
    task: str
    classes: Sequence[str]
    records: str
    columns: Sequence[tuple[str, str]] = ()
    factory: str | None = None
    example: str = "new.csv"
    library: str = "tacit"
    use: str = ""
    statements: Mapping[str, str] = field(default_factory=dict)


def model_card(statement: Mapping[str, Any], facts: CardFacts, figures: Mapping[str, Any]) -> str:
    """Write the card of a model."""
    front = _front_matter(statement, facts)
    card = render(
        "card.md",
        **{"ledger": "none", **statement},
        front=yaml_text(front),
        facts=facts,
        figures=figures,
        promise=promise(statement) if statement["private"] else [],
        stated=[(_title_of(key), text) for key, text in facts.statements.items() if key in STATEMENTS],
        missing=[_title_of(key) for key in _FOR_REGULATORS if key not in facts.statements],
        score=score_line(figures) if figures else "",
        table=evaluation_text(figures) if figures else "",
    )
    _check_by_hub(card, front)
    return card


def _check_by_hub(card: str, front: Mapping[str, Any]) -> None:
    """Check that huggingface_hub, if it is installed, reads from the card the data that were written."""
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        return
    read = hub.ModelCard(card).data.to_dict()
    if read != front:
        wrong = sorted(name for name in {*read, *front} if read.get(name) != front.get(name))
        raise InvalidInput(
            f"huggingface_hub {hub.__version__} reads other values of {', '.join(wrong)} from the model card "
            "than Tacit wrote. Change these values in [card], or the unit's name."
        )


def _front_matter(statement: Mapping[str, Any], facts: CardFacts) -> dict[str, Any]:
    guarantee, accountant = statement["guarantee"], statement["accountant"]
    mechanism = statement["mechanism"]
    front: dict[str, Any] = {"library_name": facts.library}
    if statement["private"]:
        front["tags"] = ["differential_privacy", "dp-sgd"]
    if pipeline := _PIPELINES.get((facts.kind, facts.task)):
        front["pipeline_tag"] = pipeline
    if LICENSE in facts.statements:
        front[LICENSE] = facts.statements[LICENSE]
    front["differential_privacy"] = {
        "private": statement["private"],
        **{name: guarantee[name] for name in ("epsilon", "delta", "unit", "adjacency")},
        "accountant": "{name} {version}, method {method}".format(**accountant),
        "mechanism": mechanism["name"],
        **{name: mechanism[name] for name in ("noise_multiplier", "clipping", "steps", "sampler")},
    }
    return front


def _title_of(key: str) -> str:
    return STATEMENTS[key][1].format(unit="unit")
