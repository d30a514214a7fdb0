"""The privacy statement: what is guaranteed, for whom, by which mechanism, and what is not covered.

A statement is made from the plan and from what was really run.  Where something is not known it says NOT
STATED rather than leaving the line out.
"""

from __future__ import annotations

import json
import math
import platform
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from tacit import __version__
from tacit.accounting import PrivacyCurve, account
from tacit.errors import InvalidInput, check_integer
from tacit.events import Adjacency, event_to_json
from tacit.plan import Plan

__all__ = ["Statement", "group_epsilon", "make_statement"]

_FORMAT = 1
_GROUPS = (2, 4)

_NEIGHBOURS = {
    Adjacency.ADD_REMOVE: "with and without any one {unit}; how many there are is kept secret",
    Adjacency.REPLACE_ONE: "that differ in any one {unit}; how many there are is public",
    Adjacency.ZERO_OUT: "in which any one {unit} contributes or is left blank; how many there are is public",
}

_COVERED = (
    "the final model, every model between, and averages of them",
    "the number of steps, the noise multiplier, all settings in this statement",
)
_NOT_COVERED = (
    "the test records: accuracy and loss on them are exact",
    "settings that were chosen by looking at results on these same records, in this run or an earlier one",
    "other runs and queries on the same records: their costs add up",
    "a person who has several records: see the group figures",
    "the resume state (folder 'private'), which holds the key of the noise and must not be released",
    "running time and other side channels",
    "floating-point arithmetic: noise and sums are floats, not the ideal real numbers of the proofs",
)


@dataclass(frozen=True)
class Statement:
    """A privacy statement; ``data`` is what :meth:`to_json` writes, in the order of reading."""

    data: dict[str, Any]

    def to_json(self) -> str:
        """The statement as JSON, with the event that the figures are computed from."""
        return json.dumps(self.data, indent=2) + "\n"

    def to_text(self) -> str:
        """The statement as one page of plain text."""
        return _text(self.data)

    @property
    def epsilon(self) -> float:
        """The epsilon stated."""
        return float(self.data["guarantee"]["epsilon"])


def group_epsilon(curve: PrivacyCurve, delta: float, size: int) -> float:
    """Epsilon of a group of ``size`` records at ``delta``, from the whole curve of one record.

    If one record is (e, d(e))-DP, a group of k is (k e, d(e) (e^{k e} - 1) / (e^e - 1))-DP (Vadhan, "The
    complexity of differential privacy", lemma 2.2); e is taken as small as that delta allows.
    """
    check_integer("size", size, low=1)

    def group_delta(epsilon: float) -> float:
        factor = size if epsilon == 0 else math.expm1(size * epsilon) / math.expm1(epsilon)
        return curve.delta(epsilon) * factor

    low, high = 0.0, max(1e-6, curve.epsilon(delta))
    while group_delta(high) > delta:
        low, high = high, 2 * high
        if size * high > 500:
            return math.inf
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if group_delta(middle) > delta else (low, middle)
    return size * high


def make_statement(
    plan: Plan,
    *,
    steps_done: int,
    randomness: str,
    private: bool,
    data_source: str = "NOT STATED",
    model: str = "NOT STATED",
    public_data: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Statement:
    """The statement of a run of ``plan`` in which ``steps_done`` steps were taken.

    Args:
        randomness, private: from the session.
        public_data: data that was used and is not protected; empty means that none was used.
        notes: further lines, such as where the settings come from.
    """
    if not 0 <= steps_done <= plan.steps:
        raise InvalidInput(f"steps_done must be in [0, {plan.steps}]; got {steps_done}.")
    event = plan.event_after(steps_done)
    curve = account(event, adjacency=plan.adjacency)
    lower, epsilon = curve.epsilon_bounds(plan.delta)
    covered = [*_COVERED]
    if plan.loss_report is not None:
        covered.append("the noisy training loss of each step, whose noise is part of the step's")
    return Statement(
        {
            "statement": "tacit privacy statement",
            "format": _FORMAT,
            "private": private,
            "guarantee": {
                "unit": plan.unit,
                "adjacency": str(plan.adjacency),
                "epsilon": epsilon,
                "delta": plan.delta,
                "lower_bound_of_the_same_analysis": lower,
                "groups": {str(size): group_epsilon(curve, plan.delta, size) for size in _GROUPS},
            },
            "mechanism": _mechanism(plan, steps_done),
            "accountant": {"name": "tacit", "method": curve.method, "version": __version__},
            "event": json.loads(event_to_json(event)),
            "data": data_source,
            "public_data": list(public_data) or ["none"],
            "model": model,
            "randomness": randomness,
            "covered": covered,
            "not_covered": [*_NOT_COVERED],
            "notes": list(notes),
            "versions": _versions(),
        }
    )


def _mechanism(plan: Plan, steps_done: int) -> dict[str, Any]:
    return {
        "name": "DP-SGD: clipped per-example gradients, Gaussian noise",
        "steps": steps_done,
        "sampler": plan.sampling.describe(),
        "expected_batch_size": plan.expected_batch_size,
        "public_figure_for_the_number_of_records": plan.records,
        "clipping": repr(plan.clipping),
        "noise_multiplier": plan.noise_multiplier,
        "noise_multiplier_of_the_gradients": plan.gradient_noise_multiplier,
        "views_per_record": plan.views,
        "loss_report": repr(plan.loss_report),
        "preparation": [json.loads(event_to_json(event)) for event in plan.preparation] or ["none"],
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "tacit": __version__}
    for package in ("torch", "numpy", "scipy", "cryptography"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _text(data: dict[str, Any]) -> str:
    guarantee, mechanism = data["guarantee"], data["mechanism"]
    unit, adjacency = guarantee["unit"], Adjacency.parse(guarantee["adjacency"])
    groups = ", ".join(f"{size} {unit}s: {_number(value)}" for size, value in guarantee["groups"].items())
    lines = ["PRIVACY STATEMENT", ""]
    if not data["private"]:
        lines += ["NOT PRIVATE: the randomness of this run came from a fixed test key.", ""]
    lines += _wrap(
        f"This model was trained with ({guarantee['epsilon']:.4g}, {guarantee['delta']:g})-differential "
        f"privacy. The unit of privacy is one {unit} (adjacency {adjacency}): nobody who sees the model can "
        f"tell well between two data sets {_NEIGHBOURS[adjacency].format(unit=unit)}."
    )
    rows = [
        ("Unit of privacy", unit),
        ("Adjacency", str(adjacency)),
        ("Epsilon", f"{guarantee['epsilon']:.6g}"),
        ("Delta", f"{guarantee['delta']:g}"),
        ("Groups of records", f"epsilon at the same delta for {groups}"),
        ("Mechanism", mechanism["name"]),
        ("Steps", str(mechanism["steps"])),
        ("Sampler", mechanism["sampler"]),
        ("Divisor of the sums", f"{mechanism['expected_batch_size']:g} (public)"),
        ("Clipping", mechanism["clipping"]),
        ("Noise multiplier", f"{mechanism['noise_multiplier']:.6g}"),
        ("of the gradients", f"{mechanism['noise_multiplier_of_the_gradients']:.6g}"),
        ("Views per record", str(mechanism["views_per_record"])),
        ("Loss report", mechanism["loss_report"]),
        ("Preparation", ", ".join(str(item) for item in mechanism["preparation"])),
        ("Accountant", "{name} {version}, method {method}".format(**data["accountant"])),
        ("Data", data["data"]),
        ("Public data", ", ".join(data["public_data"])),
        ("Model", data["model"]),
        ("Randomness", data["randomness"]),
        ("Versions", ", ".join(f"{name} {version}" for name, version in data["versions"].items())),
    ]
    lines.append("")
    for name, value in rows:
        lines += _wrap(value, first=f"{name:<20} ", rest=" " * 21)
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


def _wrap(text: str, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(text, 79, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _number(value: float) -> str:
    return "no finite bound" if math.isinf(value) else f"{value:.4g}"
