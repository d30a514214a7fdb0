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
from tacit.report.statement.words import promise
from tacit.report.yaml_text import yaml_lines
from tacit.rounding import round_up

_PIPELINES = {
    ("table", "classes"): "tabular-classification",
    ("table", "numbers"): "tabular-regression",
    ("pictures", "classes"): "image-classification",
    ("text", "text"): "text-generation",
}
"""What hubs call a kind of records and what is predicted of them."""
_ASKED = ("curator", "contact", "description", "intended_use", "published", "data_domain", "why_budget")
"""The statements without which a card says that they are missing: those that regulators ask of a model."""


@dataclass(frozen=True)
class CardFacts:
    """What the card says beside the statement: public facts about the model's use.

    Attributes:
        kind: of the records: "table", "pictures", "text" or "arrays".
        task: what is predicted: "classes", "numbers" or "text".
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
    parts = [
        "\n".join(["---", *yaml_lines(front), *_to_add(facts), "---", ""]),
        f"# Model trained with differential privacy\n\n{_first_words(statement)}",
        f"## Guarantee\n\n{_guarantee(statement)}",
        f"## Not covered\n\n{_bullets(statement['not_covered'])}",
        f"## Model and data\n\n{_model(statement, facts)}",
        f"## Publication\n\n{_publication(facts)}",
        f"## Test score\n\n{_score(figures)}",
        f"## Use\n\n{_use(facts)}",
    ]
    card = "\n".join(parts)
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
        "epsilon": guarantee["epsilon"],
        "delta": guarantee["delta"],
        "unit": guarantee["unit"],
        "adjacency": guarantee["adjacency"],
        "accountant": "{name} {version}, method {method}".format(**accountant),
        "mechanism": mechanism["name"],
        "noise_multiplier": mechanism["noise_multiplier"],
        "clipping": mechanism["clipping"],
        "steps": mechanism["steps"],
        "sampler": mechanism["sampler"],
    }
    return found


def _to_add(facts: CardFacts) -> list[str]:
    """What hubs show and nobody can know but whoever releases the model."""
    if LICENSE in facts.stated:
        return []
    return ["# license: add the one under which you release the model, or state it in [card]"]


def _first_words(statement: Mapping[str, Any]) -> str:
    if not statement["private"]:
        return (
            "**NOT PRIVATE**: the random numbers of this run came from a fixed test key, and whoever knows "
            "it can take the noise off. Nothing below is promised. Do not release this model.\n"
        )
    return "\n\n".join(promise(statement)) + "\n"


def _guarantee(statement: Mapping[str, Any]) -> str:
    guarantee, mechanism = statement["guarantee"], statement["mechanism"]
    groups = "; ".join(f"{size} of them: {_shown(value)}" for size, value in guarantee["groups"].items())
    lines = [
        f"Epsilon: {_shown(guarantee['epsilon'])} at delta {guarantee['delta']:.15g}",
        f"Unit of privacy: one {guarantee['unit']}; adjacency {guarantee['adjacency']}",
        f"Epsilon of groups, at the same delta: {groups}",
        f"Mechanism: {mechanism['name']}",
        f"Clipping: {mechanism['clipping']}; noise multiplier {mechanism['noise_multiplier']:.6g}",
        f"Steps: {mechanism['steps']}; {mechanism['sampler']}",
        "Accountant: {name} {version}, method {method}".format(**statement["accountant"]),
        f"Random numbers: {statement['randomness']}",
    ]
    ledger = statement.get("ledger", "none")
    if ledger != "none":
        lines.append(
            f"Charged to the ledger {ledger['ledger']}, data set {ledger['dataset']}, run {ledger['run']}"
        )
    text = _bullets(lines) + "\nCovered are:\n\n" + _bullets(statement["covered"])
    return (
        f"{text}\nThe whole statement is in `statement.txt` and `statement.json`; `tacit verify "
        "statement.json` checks that its epsilon is enough.\n"
    )


def _model(statement: Mapping[str, Any], facts: CardFacts) -> str:
    lines = [
        f"Model: {statement['model']}",
        f"Trained on: {statement['data']}",
        f"Public data used: {', '.join(statement['public_data'])}",
        f"Takes: {facts.records}",
    ]
    if facts.classes:
        lines.append(f"Tells apart: {', '.join(map(_code, facts.classes))}")
    text = _bullets([*lines, *statement["notes"]])
    if facts.columns:
        text += f"\nThe columns, with what is declared of them:\n\n{_bullets(facts.columns)}"
    return text


def _publication(facts: CardFacts) -> str:
    told = [f"{_named(key)}: {text}" for key, text in facts.stated.items() if key in STATEMENTS]
    text = "Stated by whoever publishes the model, and not checked:\n\n" + _bullets(told) if told else ""
    if missing := [_named(key) for key in _ASKED if key not in facts.stated]:
        text += ("\n" if text else "") + f"NOT STATED: {', '.join(missing)}.\n"
    return text


def _named(key: str) -> str:
    return STATEMENTS[key][1].format(unit="unit")


def _score(figures: Mapping[str, Any]) -> str:
    line = score_line(figures)
    parts = [figures["verdict"], f"{line[0].upper()}{line[1:]}."]
    if figures["interval"] is None:
        parts[1] += " The figures are exact ones of the test records, which the guarantee does not cover."
    else:
        parts[1] += (
            f" It is of the model after {figures['steps']} steps and has noise, whose price is part of "
            "epsilon; the interval holds the score without noise in 95 % of all runs."
        )
    if text := evaluation_text(figures):
        parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def _use(facts: CardFacts) -> str:
    if facts.use:
        return f"{facts.use}\n{_COSTS_NOTHING}"
    own = "" if facts.factory is None else f', factory="{facts.factory}"'
    option = "" if facts.factory is None else f" --factory {facts.factory}"
    then = "predict" if facts.task == "numbers" else "predict_proba"
    note = (
        ""
        if facts.factory is None
        else f"\nThe code of the model is not in this folder: `{facts.factory}`.\n"
    )
    return f"""\
```sh
pip install 'tacit-dp[cli]'
tacit predict . {facts.example} --out predictions.csv{option}
```

```python
import tacit

predictor = tacit.load("."{own})
print(predictor.{then}("{facts.example}"))
network = predictor.model  # a plain torch module, in evaluation mode
```
{note}
{_COSTS_NOTHING}"""


_COSTS_NOTHING = """\
Predictions are for the records that people give. They cost no further privacy of those that the model was
trained on.
"""


def _bullets(lines: Sequence[str]) -> str:
    return "".join(f"* {' '.join(line.split())}\n" for line in lines)


def _code(name: str) -> str:
    return f"`{name}`" if "`" not in name else name


def _shown(epsilon: float | None) -> str:
    return "no finite bound" if epsilon is None else round_up(epsilon, 6)
