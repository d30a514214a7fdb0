"""The text of a privacy statement. It gives the guarantee as a definition and in plain words."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping
from typing import Any

from tacit.events import Adjacency
from tacit.rounding import round_up
from tacit.strength import weakness

NOT_PRIVATE = (
    "NOT PRIVATE: the randomness of this run came from a fixed test key. Anyone who knows the key can "
    "subtract the noise, so nothing below holds. It is the promise of a run with a key from the operating "
    "system."
)

_WITHOUT = {
    Adjacency.ADD_REMOVE: "if any one {unit} had been left out of the training data, or put into it",
    Adjacency.REPLACE_ONE: "if any one {unit} in the training data had been another",
    Adjacency.ZERO_OUT: "if any one {unit} in the training data had been blank",
}
# If each row is a record and rows may belong to several people, neighbours have the same rows with other
# content. So the number of rows and the rows of each person are public ("fixed-graph" differential privacy,
# Ganesh et al., 2503.03622).
_ROWS = {
    Adjacency.REPLACE_ONE: "if all training rows in which any one {unit} has a part had held something else",
    Adjacency.ZERO_OUT: "if all training rows in which any one {unit} has a part had been blank",
}
_FIXED = (
    "The content of these rows is protected. It is taken to be public which rows one {unit} has a part in, "
    "and with whom, and how many rows there are."
)
_COUNT = {
    Adjacency.ADD_REMOVE: "secret too",
    Adjacency.REPLACE_ONE: "taken to be public",
    Adjacency.ZERO_OUT: "taken to be public",
}


def text_of(data: Mapping[str, Any]) -> str:
    """Write the statement as one page of plain text."""
    lines = ["PRIVACY STATEMENT", ""]
    if not data["private"]:
        lines += [*_wrap(NOT_PRIVATE), ""]
    for paragraph in promise(data):
        lines += [*_wrap(paragraph), ""]
    lines.append("For those who check:")
    for name, value in _details(data):
        lines += _wrap(value, first=f"  {name:<18} ", rest=" " * 21)
    for title, items in (
        ("Covered", data["covered"]),
        ("Not covered", data["not_covered"]),
        ("Notes", data["notes"]),
    ):
        if items:
            lines += ["", f"{title}:"]
            for item in items:
                lines += _wrap(item, first="  * ", rest="    ")
    return "\n".join(lines) + "\n"


def promise(data: Mapping[str, Any]) -> list[str]:
    """Write the guarantee of a statement as a definition, and again in plain words."""
    guarantee, of_rows = data["guarantee"], "rows_per_unit" in data["mechanism"]
    unit, adjacency = guarantee["unit"], Adjacency.parse(guarantee["adjacency"])
    epsilon, delta = guarantee["epsilon"], guarantee["delta"]
    headline = (
        f"This model was trained with ({shown(epsilon)}, {delta:.15g})-differential privacy. The unit of "
        f"privacy is one {unit} (adjacency {adjacency})."
    )
    fixed = of_rows and adjacency is not Adjacency.ADD_REMOVE
    count = _FIXED.format(unit=unit) if fixed else f"How many of them there are is {_COUNT[adjacency]}."
    if epsilon is None:
        return [headline, f"No finite epsilon is proven at this delta, so nothing is promised. {count}"]
    without = (_ROWS if fixed else _WITHOUT)[adjacency].format(unit=unit)
    weak = weakness(epsilon)
    return [
        headline,
        *([] if weak is None else [f"THIS PROMISE IS WEAK: {weak}"]),
        f"In plain words: take anything that anyone may conclude or do after seeing the model. It is at "
        f"most {_factor(epsilon)} times as probable (e to the power epsilon), plus {delta:.15g} (delta), as "
        f"it would be {without}. The smaller the two numbers, the less the model can tell about any one "
        f"{unit}; with two zeros it could tell nothing. {count}",
    ]


def _details(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    guarantee, mechanism = data["guarantee"], data["mechanism"]
    groups = "; ".join(f"{size} of them: {shown(value)}" for size, value in guarantee["groups"].items())
    preparation = [item if isinstance(item, str) else json.dumps(item) for item in mechanism["preparation"]]
    return [
        ("Unit of privacy", f"one {guarantee['unit']}"),
        ("Adjacency", guarantee["adjacency"]),
        ("Epsilon", shown(guarantee["epsilon"], 6)),
        ("Delta", f"{guarantee['delta']:.15g}"),
        ("Groups", f"epsilon at the same delta for {groups}"),
        ("Mechanism", mechanism["name"]),
        ("Steps", str(mechanism["steps"])),
        ("Sampler", mechanism["sampler"]),
        ("Divisor of sums", f"{mechanism['expected_batch_size']:g}, public"),
        ("Clipping", mechanism["clipping"]),
        ("Noise multiplier", f"{mechanism['noise_multiplier']:.6g}"),
        ("Gradient noise", f"multiplier {mechanism['noise_multiplier_of_the_gradients']:.6g}"),
        ("Views per record", str(mechanism["views_per_record"])),
        *(
            [("Rows of one unit", f"at most {mechanism['rows_per_unit']}, each a record")]
            if "rows_per_unit" in mechanism
            else []
        ),
        ("Loss report", mechanism["loss_report"]),
        ("Score report", mechanism.get("score_report", "none")),
        ("Preparation", ", ".join(preparation)),
        ("Accountant", "{name} {version}, method {method}".format(**data["accountant"])),
        ("Data", data["data"]),
        ("Public data", ", ".join(data["public_data"])),
        ("Ledger", _ledger_line(data.get("ledger", "none"))),
        ("Model", data["model"]),
        ("Randomness", data["randomness"]),
        ("Versions", ", ".join(f"{name} {version}" for name, version in data["versions"].items())),
    ]


def _ledger_line(ledger: str | Mapping[str, Any]) -> str:
    if isinstance(ledger, str):
        return ledger
    line = (
        f"{ledger['ledger']}, data set {ledger['dataset']}, run {ledger['run']}: {ledger['steps']} steps "
        f"charged in entries {ledger['first_entry']} to {ledger['last_entry']}; head {ledger['head']}"
    )
    return line if ledger["stopped"] is None else f"{line}. It ended the run: {ledger['stopped']}"


def _wrap(text: str, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(text, 79, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def shown(epsilon: float | None, digits: int = 4) -> str:
    """Write an epsilon, rounded up to ``digits`` digits."""
    return "no finite bound" if epsilon is None else round_up(epsilon, digits)


def _factor(epsilon: float) -> str:
    """Write e^epsilon, rounded up to three digits or to a whole number."""
    if epsilon > 20:
        return f"e^{round_up(epsilon)}"
    factor = math.exp(epsilon)
    return round_up(factor, 3) if factor < 100 else f"{math.ceil(factor):,}"
