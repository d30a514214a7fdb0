"""The privacy statement of a run: its data, and its text.

The data follow from the plan and the steps that were really taken, and the text from the data. No line is
left out. A line with unknown content says NOT STATED.
"""

from __future__ import annotations

import json
import math
import platform
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any, cast

from tacit import __version__
from tacit.accounting import PrivacyCurve, account
from tacit.errors import InvalidInput, weakness
from tacit.events import Adjacency, event_to_json
from tacit.notebook import facts
from tacit.plan import GroupScoreReport, Plan
from tacit.rounding import round_up, shown_epsilon

if TYPE_CHECKING:
    from tacit.training import PrivateAggregation, PrivateSession
    from tacit.training.ranks import Ranks


FORMAT = 2
"""Format 1 described the plan in words, and format 2 contains it as an object."""
_GROUPS = (2, 4)
_LARGEST = 500.0  # an epsilon beyond this promises nothing

_COVERED = (
    "the final model, every model between, and averages of them",
    "the number of steps, the noise multiplier, all settings in this statement",
)
_OTHERS = "other runs and queries on the same records: their costs add up"
_OTHERS_CHARGED = (
    "other runs and queries on the same records: the ledger has their cost, and its certificate the total; "
    "the cost of anything that is not charged to the ledger is added to that"
)
_TEST = "the test records: accuracy, loss and all other figures on them are exact"
_TEST_CHARGED = (
    "the test records, which are assumed not to belong to the data set of this budget: accuracy, loss and "
    "all other figures on them are exact"
)
_TEST_SCORED = "all else that is computed from the test records, such as the reports of attacks on the model"
_SEVERAL = "a person who has several records: see the group figures"
_REFERENCE = (
    "what the loss or the model keeps of a record in Python: the run used the reference engine, in which "
    "Python may read records, and which assumes that the code keeps nothing of them"
)
_SERVER = (
    "the server, which sees the update of each client before it is clipped: the clients trust it, and "
    "everyone who can read what they send"
)
_WHO_TAKES_PART = "who takes part in a round: epsilon assumes that only the server and the client itself know"
_NOT_COVERED = (
    _TEST,
    "settings that were chosen by looking at results on these same records, in this run or an earlier one",
    _OTHERS,
    _SEVERAL,
    "the resume state (folder 'private'), which holds the key of the noise and must not be released",
    "one resume state from which two different runs continued, if it cannot distinguish them: with other "
    "files that the loss reads, or another schedule of the learning rate",
    "running time and other side channels",
    "floating-point arithmetic: noise and sums are floats, not the ideal real numbers of the proofs",
)
_SEVERAL_VALUES = "a person who has two values of {owner}: see the group figures"


@dataclass(frozen=True)
class Statement:
    """The privacy statement of a run: the guarantee, the mechanism that gives it, and its limits.

    :func:`make_statement` makes it. ``data`` contains the fields in order. An infinite epsilon is None there,
    and null in JSON.

    >>> import torch
    >>> from tacit import PrivateSession, train
    >>> plan = Plan.with_noise(noise_multiplier=4.0, steps=1, records=64, clipping=1.0, delta=1e-5,
    ...                        adjacency="add-remove", unit="row")
    >>> model = torch.nn.Linear(2, 2)
    >>> records = torch.randn(64, 2), torch.zeros(64, dtype=torch.long)
    >>> session = PrivateSession(model, torch.optim.SGD(model.parameters(), lr=0.1), records, plan,
    ...                          loss=torch.nn.CrossEntropyLoss())
    >>> _ = train(session)
    >>> statement = make_statement(session)
    >>> statement.epsilon <= plan.epsilon, statement.data["guarantee"]["unit"]
    (True, 'row')
    """

    data: dict[str, Any]

    def to_json(self) -> str:
        """Return the statement as JSON, with the mechanism from which epsilon is computed."""
        return json.dumps(self.data, indent=2, allow_nan=False) + "\n"

    def to_text(self) -> str:
        """Write the statement as one page of plain text."""
        return text_of(self.data)

    def _repr_html_(self) -> str:
        guarantee, mechanism = self.data["guarantee"], self.data["mechanism"]
        headline, *plain = promise(self.data)
        unit = guarantee["unit"]
        rows = [
            ("Private", "yes" if self.data["private"] else NOT_PRIVATE),
            ("Epsilon", f"{shown_epsilon(guarantee['epsilon'])} at delta {guarantee['delta']:.15g}"),
            ("Protected", f"one {unit}, adjacency {guarantee['adjacency']}"),
            ("Steps", f"{mechanism['steps']}, {mechanism['sampler']}"),
            ("Noise multiplier", f"{mechanism['noise_multiplier']:.6g}"),
            ("Data", self.data["data"]),
            ("Model", self.data["model"]),
        ]
        return facts("Privacy statement", rows, [headline, *plain], self.to_text())

    @property
    def epsilon(self) -> float:
        """The epsilon that the statement gives for the run."""
        epsilon = self.data["guarantee"]["epsilon"]
        return math.inf if epsilon is None else float(epsilon)


def group_epsilon(curve: PrivacyCurve, delta: float, size: int) -> float:
    """Return the epsilon, at ``delta``, that protects a group of ``size`` records together.

    Above 500, the result is infinity, because such an epsilon protects nothing. See
    :meth:`PrivacyCurve.group`.

    >>> from tacit.events import Gaussian
    >>> curve = account(Gaussian(4.0), adjacency="add-remove")
    >>> round(group_epsilon(curve, 1e-5, 1), 2), round(group_epsilon(curve, 1e-5, 2), 2)
    (0.93, 1.99)
    """
    epsilon = curve.group(size).epsilon(delta)
    return epsilon if epsilon <= _LARGEST else math.inf


def make_statement(
    session: PrivateSession | PrivateAggregation[Any],
    *,
    data_source: str = "NOT STATED",
    model: str = "NOT STATED",
    public_data: Sequence[str] = (),
    not_covered: Sequence[str] = (),
    notes: Sequence[str] = (),
    owned_by: str | None = None,
) -> Statement:
    """Make the privacy statement of a run.

    All figures come from the session: its plan, its steps and its charges to a ledger. You cannot pass them.

    Args:
        session: the session that trained the model; in federated learning, the
            :class:`~tacit.training.PrivateAggregation`. If the process of the run has ended, make the session
            again and ``load`` its resume state.
        data_source: where the training data come from.
        model: a description of the model.
        public_data: the data that the run used without protection, for example for pre-training. Empty means
            none.
        not_covered: limits of this run's guarantee, beyond those that every statement lists.
        notes: further lines, such as where the settings come from.
        owned_by: if each record is a person with several rows: the column that names the person of a row.

    >>> import torch
    >>> from tacit import PrivateSession, train
    >>> plan = Plan.with_noise(noise_multiplier=4.0, steps=3, records=64, clipping=1.0, delta=1e-5,
    ...                        adjacency="add-remove", unit="row")
    >>> model = torch.nn.Linear(2, 2)
    >>> records = torch.randn(64, 2), torch.zeros(64, dtype=torch.long)
    >>> session = PrivateSession(model, torch.optim.SGD(model.parameters(), lr=0.1), records, plan,
    ...                          loss=torch.nn.CrossEntropyLoss())
    >>> _ = train(session)
    >>> statement = make_statement(session, model="linear")
    >>> print(statement.to_text().splitlines()[0], statement.data["mechanism"]["steps"])
    PRIVACY STATEMENT 3
    """
    if isinstance(session, Plan):
        raise InvalidInput(
            "make_statement needs the session that trained, because a plan does not know how many steps were "
            "taken. After a run, make the session again, and call session.load(path) with its state."
        )
    if not hasattr(session, "steps_done"):
        raise InvalidInput(
            f"session must be the one that trained the model; got {type(session).__name__}. Pass it."
        )
    plan, steps_done = session.plan, session.steps_done
    ledger = None if session.charges is None else session.charges.so_far()
    curve = account(plan.event_after(steps_done), adjacency=plan.adjacency, method="best")
    limits = {"reference": [_REFERENCE], "clients": [_SERVER]}.get(session.route, [])
    if session.route == "clients" and plan.sampling_rate < 1.0:
        limits = [*limits, _WHO_TAKES_PART]
    remarks: list[str] = []
    if session.route != "clients":
        trained = cast("PrivateSession", session)
        remarks = [*_of_processes(trained.ranks), *filter(None, [trained.falling.said()])]
    facts = {
        "private": session.private,
        "data": data_source,
        "ledger": "none" if ledger is None else ledger.to_data() | {"stopped": session.stopped},
        "public_data": list(public_data) or ["none"],
        "model": model,
        "randomness": session.randomness,
        "not_covered": [*not_covered, *limits],
        "notes": [*notes, *remarks],
        "versions": _versions(),
    }
    return Statement(statement_data(plan, steps_done, curve, facts, owner=owned_by and repr(owned_by)))


def _of_processes(ranks: Ranks) -> list[str]:
    if ranks.ranks == 1:
        return []
    own = ", each with records of its own that no other process reads," if ranks.own_records else ""
    return [
        f"{ranks.ranks} processes that trust each other{own} took each step together and released it once"
    ]


def statement_data(
    plan: Plan, steps_done: int, curve: PrivacyCurve, facts: Mapping[str, Any], *, owner: str | None
) -> dict[str, Any]:
    """Write the data of a statement. All follows from the arguments, so a verifier can write it again.

    ``curve`` is that of the plan's event after these steps. ``facts`` are the fields that do not follow from
    the plan. ``owner`` is the repr of the column with each row's person, if a record was a person.
    """
    event = plan.event_after(steps_done)
    lower, epsilon = curve.epsilon_bounds(plan.delta)
    groups = {str(size): group_epsilon(curve, plan.delta, size) for size in _GROUPS}
    covered = [*_COVERED]
    if plan.loss_report is not None:
        covered.append("the noisy training loss of each step, whose noise is part of the step's")
    if plan.score_report is not None:
        covered.append(
            "one score on test records, whose noise has a standard deviation of "
            f"{plan.score_report.noise:g} records: its privacy cost is part of epsilon"
        )
    if isinstance(plan.score_report, GroupScoreReport):
        covered.append(
            f"figures of the test records by {', '.join(plan.score_report.by)}, with noise of the same cost"
        )
    replaced = {} if facts["ledger"] == "none" else {_OTHERS: _OTHERS_CHARGED, _TEST: _TEST_CHARGED}
    if plan.score_report is not None:
        replaced[_TEST] = _TEST_SCORED
    if owner is not None:
        replaced[_SEVERAL] = _SEVERAL_VALUES.format(owner=owner)
    return {
        "statement": "tacit privacy statement",
        "format": FORMAT,
        "private": facts["private"],
        "guarantee": {
            "unit": plan.unit,
            "adjacency": str(plan.adjacency),
            "epsilon": None if math.isinf(epsilon) else epsilon,
            "delta": plan.delta,
            "lower_bound_of_the_same_analysis": lower,
            "groups": {size: None if math.isinf(most) else most for size, most in groups.items()},
        },
        "mechanism": mechanism_of(plan, steps_done, of_clients=_SERVER in facts["not_covered"]),
        "plan": json.loads(replace(plan, epsilon_budget=None).to_json()),
        "accountant": {"name": "tacit", "method": curve.best_method(plan.delta), "version": __version__},
        "event": json.loads(event_to_json(event)),
        "data": facts["data"],
        "ledger": facts["ledger"],
        "public_data": facts["public_data"],
        "model": facts["model"],
        "randomness": facts["randomness"],
        "covered": covered,
        "not_covered": [*facts["not_covered"], *(replaced.get(line, line) for line in _NOT_COVERED)],
        "notes": facts["notes"],
        "versions": facts["versions"],
    }


def limits_of(not_covered: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the run's own limits among the lines of a statement, and the owner that one line names."""
    own, usual = not_covered[: -len(_NOT_COVERED)], not_covered[-len(_NOT_COVERED) :]
    start, end = _SEVERAL_VALUES.split("{owner}")
    owners = [line[len(start) : -len(end)] for line in usual if line.startswith(start) and line.endswith(end)]
    return [*own], owners[0] if owners else None


_NAME = "DP-SGD: clipped per-example gradients, Gaussian noise"
_OF_CLIENTS = "DP-FedAvg: clipped updates of clients, Gaussian noise"
_CORRELATED = "DP-FTRL: clipped per-example gradients, Gaussian noise that is correlated in time"


def mechanism_of(plan: Plan, steps_done: int, *, of_clients: bool) -> dict[str, Any]:
    """Describe the mechanism of a plan after ``steps_done`` steps, with values that people can read."""
    independent = _OF_CLIENTS if of_clients else _NAME
    return {
        "name": independent if plan.correlation is None else _CORRELATED,
        "steps": steps_done,
        "sampler": plan.sampling.describe(),
        "expected_batch_size": plan.expected_batch_size,
        "public_figure_for_the_number_of_records": plan.records,
        "clipping": repr(plan.clipping),
        "noise_multiplier": plan.noise_multiplier,
        "noise_multiplier_of_the_gradients": plan.gradient_noise_multiplier,
        "views_per_record": plan.views,
        **({} if plan.rows_per_user is None else {"rows_per_unit": plan.rows_per_user}),
        **({} if plan.correlation is None else {"noise_in_time": repr(plan.correlation)}),
        "loss_report": "none" if plan.loss_report is None else repr(plan.loss_report),
        "score_report": "none" if plan.score_report is None else repr(plan.score_report),
        "preparation": [json.loads(event_to_json(event)) for event in plan.preparation] or ["none"],
    }


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "tacit": __version__}
    for package in ("torch", "numpy", "scipy", "cryptography"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


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
        f"This model was trained with ({shown_epsilon(epsilon)}, {delta:.15g})-differential privacy. The "
        f"unit of privacy is one {unit} (adjacency {adjacency})."
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
    groups = "; ".join(
        f"{size} of them: {shown_epsilon(value)}" for size, value in guarantee["groups"].items()
    )
    preparation = [item if isinstance(item, str) else json.dumps(item) for item in mechanism["preparation"]]
    return [
        ("Unit of privacy", f"one {guarantee['unit']}"),
        ("Adjacency", guarantee["adjacency"]),
        ("Epsilon", shown_epsilon(guarantee["epsilon"])),
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


def _factor(epsilon: float) -> str:
    """Write e^epsilon, rounded up to three digits or to a whole number."""
    if epsilon > 20:
        return f"e^{shown_epsilon(epsilon)}"
    factor = math.exp(epsilon)
    return round_up(factor, 3) if factor < 100 else f"{math.ceil(factor):,}"
