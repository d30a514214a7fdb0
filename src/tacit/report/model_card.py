"""What should lie beside a released model? A card: its guarantee, what is not covered, and how to use it.

The card is a page of Markdown that begins with YAML, as hubs for models read it.  Every figure of the
guarantee comes from the privacy statement of the run.

**Guarantee**

* The card says of the training records what the statement says, and nothing else.
* A test score is exact where the run gave an exact one, and is said to be outside of the guarantee; where it
  gave a noisy one, the card has that and its interval, and no other figure of the test records.
* What whoever publishes the model states is said to be that, and what was not stated is named.
* Where huggingface_hub is installed, its reader must find in the card what was written.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.errors import InvalidInput
from tacit.report.certificate.statements import LICENSE, STATEMENTS
from tacit.report.evaluated import evaluation_text, score_line
from tacit.report.pages.document import render, yaml_text
from tacit.report.statement.words import promise

_PIPELINES = {
    ("table", "classes"): "tabular-classification",
    ("table", "labels"): "tabular-classification",
    ("table", "numbers"): "tabular-regression",
    ("pictures", "classes"): "image-classification",
    ("text", "text"): "text-generation",
    ("text", "classes"): "text-classification",
    ("text", "labels"): "text-classification",
}
"""What hubs call a kind of records and what is predicted of them."""
_ASKED = ("curator", "contact", "description", "intended_use", "published", "data_domain", "why_budget")
"""The statements without which a card says that they are missing: those that regulators ask of a model."""


@dataclass(frozen=True)
class CardFacts:
    """What the card says beside the statement: public facts about the model's use.

    Attributes:
        kind: of the records: "table", "pictures", "text" or "arrays".
        task: what is predicted: "classes", "labels", "numbers" or "text".
        classes: their names.
        records: one sentence on the data that the model takes.
        columns: of a table, a line on each column that it reads.
        factory: of a model of the user's own, "module:function".
        example: the name of a file with such data, for the commands.
        library: that loads the model, as hubs name it.
        use: how to use the model; by default with Tacit.
        stated: what whoever publishes the model states, by
            :func:`~tacit.report.certificate.statements.check_card`.
    """

    kind: str
    task: str
    classes: Sequence[str]
    records: str
    columns: Sequence[str] = ()
    factory: str | None = None
    example: str = "new.csv"
    library: str = "tacit"
    use: str = ""
    stated: Mapping[str, str] = field(default_factory=dict)


def model_card(statement: Mapping[str, Any], facts: CardFacts, figures: Mapping[str, Any]) -> str:
    """The card of a model as text.

    Args:
        statement: the data of the run's privacy statement.
        figures: what the run says of its test records, by
            :func:`tacit.report.evaluated.evaluation_data`.

    Raises:
        InvalidInput: the hub's own reader takes the card for something else.
    """
    front = _front_matter(statement, facts)
    card = render(
        "card.md",
        **{"ledger": "none", **statement},
        front=yaml_text(front),
        facts=facts,
        figures=figures,
        promise=promise(statement) if statement["private"] else [],
        stated=[(_named(key), text) for key, text in facts.stated.items() if key in STATEMENTS],
        missing=[_named(key) for key in _ASKED if key not in facts.stated],
        score=score_line(figures),
        table=evaluation_text(figures),
    )
    _check_by_hub(card, front)
    return card


def _check_by_hub(card: str, front: Mapping[str, Any]) -> None:
    """Have the hub's own class read the card, where it is installed; its data must be those written."""
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        return
    read = hub.ModelCard(card).data.to_dict()
    if read != front:
        wrong = sorted(name for name in {*read, *front} if read.get(name) != front.get(name))
        raise InvalidInput(
            f"huggingface_hub {hub.__version__} reads {', '.join(wrong)} of the model card as something else "
            "than was written. Change that text in [card], or the unit's name."
        )


def _front_matter(statement: Mapping[str, Any], facts: CardFacts) -> dict[str, Any]:
    guarantee, accountant = statement["guarantee"], statement["accountant"]
    mechanism = statement["mechanism"]
    found: dict[str, Any] = {"library_name": facts.library}
    if statement["private"]:
        found["tags"] = ["differential_privacy", "dp-sgd"]
    if pipeline := _PIPELINES.get((facts.kind, facts.task)):
        found["pipeline_tag"] = pipeline
    if LICENSE in facts.stated:
        found[LICENSE] = facts.stated[LICENSE]
    found["differential_privacy"] = {
        "private": statement["private"],
        **{name: guarantee[name] for name in ("epsilon", "delta", "unit", "adjacency")},
        "accountant": "{name} {version}, method {method}".format(**accountant),
        "mechanism": mechanism["name"],
        **{name: mechanism[name] for name in ("noise_multiplier", "clipping", "steps", "sampler")},
    }
    return found


def _named(key: str) -> str:
    return STATEMENTS[key][1].format(unit="unit")
