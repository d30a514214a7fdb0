"""The check that a statement's epsilon covers its event, and that its fields agree with each other.

A statement contains its event and its plan. The check accounts for the event again, and writes the statement
again from the plan. Only the ledger that the run was charged to shows that this is the event that was run.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from tacit import __version__
from tacit.accounting import METHODS, PrivacyCurve, account
from tacit.errors import InvalidInput, TacitError, UnsupportedEvent
from tacit.events import Adjacency, Event, event_from_json, event_to_json
from tacit.ledger import Anchor, Ledger, Policy
from tacit.ledger.budgets import Cost
from tacit.plan import LossReport, Plan, ScoreReport
from tacit.plan.facts import CORRELATIONS, RULES
from tacit.report.schema import check_against, read_json
from tacit.report.spending import spendings
from tacit.report.statement import FORMAT, limits_of, mechanism_of, statement_data
from tacit.sampling import (
    ByDate,
    CyclicPoissonSampling,
    FullBatch,
    PoissonSampling,
    Sampling,
    ShuffledBatches,
    TruncatedPoissonSampling,
)

_LARGEST_NUMBER = 1e300
_KINDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "": {
        "private": bool, "guarantee": dict, "mechanism": dict, "accountant": dict, "event": dict,
        "plan": dict, "randomness": str, "data": str, "model": str, "public_data": list, "covered": list,
        "not_covered": list, "notes": list, "versions": dict,
    },
    "guarantee": {
        "unit": str, "adjacency": str, "epsilon": (int, float, type(None)), "delta": (int, float),
        "groups": dict, "lower_bound_of_the_same_analysis": (int, float),
    },
    "mechanism": {
        "steps": int, "sampler": str, "expected_batch_size": (int, float), "clipping": str,
        "public_figure_for_the_number_of_records": int, "noise_multiplier": (int, float),
        "noise_multiplier_of_the_gradients": (int, float), "views_per_record": int, "loss_report": str,
        "preparation": list,
    },
}  # fmt: skip


def read_statement(path: Path | str) -> dict[str, Any]:
    """Read a statement that a run has written.

    Raises:
        InvalidInput: the file cannot be read, is not JSON, or is not a privacy statement.
    """
    data: Any = read_json(path, "statement", "the statement.json of a run, not its statement.txt")
    if not isinstance(data, dict) or data.get("statement") != "tacit privacy statement":
        raise InvalidInput(
            f"{path} is not a privacy statement of Tacit: it does not begin by saying so. Give the "
            "statement.json of a run."
        )
    statement: dict[str, Any] = data
    return statement


def check_fields(data: Mapping[str, Any]) -> None:
    """Check that ``data`` has the fields of a statement, each with the right type and in its range.

    Raises:
        InvalidInput: a field is missing, has another type, or is out of range.
    """
    if data.get("format") not in (1, FORMAT):
        raise InvalidInput(
            f"the statement has format {data.get('format')!r}; this version of Tacit reads formats 1 and "
            f"{FORMAT}. Use the version that wrote it."
        )
    for where, kinds in _KINDS.items():
        part = data[where] if where else data
        for name, kind in kinds.items():
            if name == "plan" and data["format"] == 1:
                continue
            value = part.get(name, ...)
            wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
            endless = isinstance(value, int | float) and not abs(value) < _LARGEST_NUMBER
            if wrong or endless:
                state = "it is missing" if value is ... else f"it is {json.dumps(value)[:60]}"
                raise InvalidInput(
                    f"the statement's {f'{where}.{name}' if where else name} cannot be read: {state}. Get "
                    "the statement again from its source."
                )
    guarantee = data["guarantee"]
    if not 0.0 < guarantee["delta"] < 1.0 or (guarantee["epsilon"] or 0.0) < 0.0:
        raise InvalidInput(
            f"the statement's epsilon {guarantee['epsilon']} and delta {guarantee['delta']} are impossible. "
            "Epsilon must be at least 0, and delta in (0, 1)."
        )


def read_event(data: object) -> Event:
    """Read the event of a statement or a certificate.

    Raises:
        InvalidInput: there is no such event.
    """
    try:
        return event_from_json(json.dumps(data))
    except (TacitError, RecursionError) as problem:
        raise InvalidInput(f"the field event cannot be read: {problem}") from None


def read_plan(data: Mapping[str, Any]) -> Plan:
    """Read the plan that a statement contains. A statement by Tacit 0.2.0 describes it in words instead.

    Raises:
        TacitError: there is no such plan, or Tacit refuses to run it.
    """
    if data["format"] == 1:
        return plan_of_0_2(data)
    return Plan.from_json(json.dumps(data.get("plan")))


def plan_of_0_2(data: Mapping[str, Any]) -> Plan:
    """Rebuild the plan that the fields of a statement by Tacit 0.2.0 describe.

    Raises:
        TacitError: there is no such plan, or Tacit refuses to run it.
    """
    mechanism, guarantee = data["mechanism"], data["guarantee"]
    preparation = [] if mechanism["preparation"] == ["none"] else mechanism["preparation"]
    if mechanism["steps"] < 0:
        raise InvalidInput(f"the number of steps must be at least 0; got {mechanism['steps']}.")
    return Plan(
        unit=guarantee["unit"],
        adjacency=Adjacency.parse(guarantee["adjacency"]),
        delta=guarantee["delta"],
        records=mechanism["public_figure_for_the_number_of_records"],
        sampling=_sampling(mechanism, data["event"]),
        clipping=_made(mechanism["clipping"], RULES),
        steps=max(1, mechanism["steps"]),
        noise_multiplier=mechanism["noise_multiplier"],
        expected_batch_size=mechanism["expected_batch_size"],
        preparation=tuple(event_from_json(json.dumps(item)) for item in preparation),
        views=mechanism["views_per_record"],
        rows_per_user=mechanism.get("rows_per_unit"),
        correlation=_made(mechanism.get("noise_in_time", "none"), CORRELATIONS),
        loss_report=_made(mechanism["loss_report"], (LossReport,)),
        score_report=_made(mechanism.get("score_report", "none"), (ScoreReport,)),
        allow_large_delta=True,
    )


def _sampling(mechanism: Mapping[str, Any], event: object) -> Sampling:
    """Find the sampler that the statement describes in words. The exact sampling rate is in the event."""
    words, batch = mechanism["sampler"], mechanism["expected_batch_size"]
    records = mechanism["public_figure_for_the_number_of_records"]
    makes: list[Callable[[], Sampling]] = [FullBatch, partial(ShuffledBatches, round(batch), records)]
    times = re.search(r"at most (\d{1,18}) times?(?:, (\d{1,18}) steps apart)?", words)
    if times:
        makes.append(partial(ByDate, int(times[1]), int(times[2] or 1)))
    cut, cycle = (re.search(pattern, words) for pattern in (r"at most (\d{1,18}) of", r"of (\d{1,18}) parts"))
    parts = int(cycle[1]) if cycle else 1
    for rate in (*_rates(event), 1.0, batch * parts / max(1, records)):
        makes.append(partial(PoissonSampling, rate))
        if cut:
            makes.append(partial(TruncatedPoissonSampling, rate, records, int(cut[1])))
        if cycle:
            makes.append(partial(CyclicPoissonSampling, rate, parts))
    for make in makes:
        with suppress(InvalidInput):
            if (sampling := make()).describe() == words:
                return sampling
    raise InvalidInput(
        f"the sampler cannot be read from {words!r}. It fits neither the event nor batches of {batch:g} of "
        f"{records} records."
    )


def _rates(event: object) -> Iterator[float]:
    """Yield the sampling rates in the JSON of an event."""
    if isinstance(event, list):
        for item in event:
            yield from _rates(item)
    elif isinstance(event, dict):
        yield from (value for key, value in event.items() if key == "sampling_rate")
        yield from _rates(event.get("of"))


def _made(text: str, kinds: tuple[type, ...]) -> Any:
    """Make an object of one of the dataclasses ``kinds`` from its repr, or return None for "none"."""
    if text == "none":
        return None
    try:
        tree = ast.parse(text, mode="eval").body
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
            raise ValueError
        kind = next(kind for kind in kinds if kind.__name__ == tree.func.id)
        return kind(**{str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords})
    except InvalidInput:
        raise  # the message of the class names the wrong value
    except (ValueError, SyntaxError, TypeError, StopIteration, RecursionError, MemoryError):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise InvalidInput(f"{text[:80]!r} is not the repr of any of {names}.") from None


_ROUNDING = 1e-6  # relative tolerance: two computers may differ in the same computation
_POWERS = 1e-9  # relative tolerance: processors round powers differently
_NO_PROMISE = 500.0  # above this epsilon the check asks no other accountant


@dataclass(frozen=True)
class Opinion:
    """Another accountant's answer for the same event.

    Attributes:
        source: the name and version of the accountant.
        method: the method of the accountant.
        epsilon: its upper bound on epsilon in nats, or None if it has no answer.
        why_not: the reason why it has no answer, or "".
    """

    source: str
    method: str
    epsilon: float | None
    why_not: str


Accountant: TypeAlias = Callable[[Event, Adjacency, float], Opinion]
"""A function from an event, an adjacency and a delta to an opinion."""


@dataclass(frozen=True)
class Verification:
    """The findings of the check of a statement.

    Attributes:
        epsilon: the epsilon that the statement claims, or infinity if it claims no finite one.
        delta, adjacency, unit: those that the statement claims.
        lower, upper: Tacit's bounds on the epsilon of the statement's event. ``upper`` is infinity if no
            bound is proven.
        method: the accounting method that gave the bounds.
        contradictions: one sentence on each contradiction between fields of the statement.
        remarks: sentences for the reader that are not contradictions.
        opinions: the answers of other accountants.
        not_verified: the fields that no other field determines, and that nothing has confirmed.
        other_version: the version of Tacit that wrote the statement, if it is another one; else "".
        checked: a sentence on the scope of the verdict.

    **Guarantee**

    * ``enough`` is True only if the claimed epsilon is at least ``upper``, up to one part in a million.
    * ``agrees`` is True only if ``enough`` is True, and every field that is not in ``not_verified`` is as
      this version of Tacit writes it from the plan.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    unit: str
    lower: float
    upper: float
    method: str
    contradictions: tuple[str, ...]
    remarks: tuple[str, ...]
    opinions: tuple[Opinion, ...]
    not_verified: tuple[str, ...] = ()
    other_version: str = ""
    checked: str = (
        "Checked: the figures of the statement agree with each other. NOT checked: that they describe the "
        "real run. No file shows that; the ledger to which the run was charged does (--ledger)."
    )

    @property
    def enough(self) -> bool:
        """Whether the epsilon that the statement claims is at least the epsilon of its event."""
        return self.epsilon >= self.upper * (1.0 - _ROUNDING)

    @property
    def agrees(self) -> bool:
        """Whether the statement's epsilon is enough and its fields agree with each other."""
        return self.enough and not self.contradictions and not self.other_version

    @property
    def verdict(self) -> str:
        """In words: "agrees", "claims too little", "contradicts itself" or "not verified"."""
        if self.agrees:
            return "agrees"
        if not self.enough:
            return "claims too little"
        return "contradicts itself" if self.contradictions else "not verified"

    def as_data(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        fields = asdict(self)
        data = {"verdict": self.verdict, "agrees": self.agrees, "stated": fields.pop("epsilon"), **fields}
        return data | {"in_words": self.in_words()}

    def in_words(self) -> list[str]:
        """Return the findings as text, with one paragraph for each."""
        claim = "no finite epsilon" if math.isinf(self.epsilon) else f"epsilon {self.epsilon:.7g}"
        recomputed = (
            "no finite bound is proven"
            if math.isinf(self.upper)
            else f"it is between {self.lower:.7g} and {self.upper:.7g}"
        )
        return [
            f"The statement says {claim} at delta {self.delta:g} for one {self.unit} ({self.adjacency}). "
            f"Recomputed from its event, {recomputed} (tacit {__version__}, method {self.method}). "
            f"{self._judgement()}",
            *(f"Contradiction: {text}" for text in self.contradictions),
            *(_compared(opinion, self.lower, self.upper, self.delta) for opinion in self.opinions),
            *self.remarks,
            *([of_other_version("statement", self.other_version)] if self.other_version else []),
            self.checked,
            *([f"Not verified: {', '.join(self.not_verified)}."] if self.not_verified else []),
        ]

    def _judgement(self) -> str:
        if self.enough:
            return "The stated epsilon is enough."
        if math.isinf(self.upper):
            return "Nothing supports the stated epsilon."
        short = f"The stated epsilon is too small by {self.upper - self.epsilon:.3g}"
        if self.epsilon < self.lower * (1.0 - _ROUNDING):
            return f"{short}. It is false, as it is below the least cost of the event."
        return f"{short}. It lies between the bounds, so it may be true, but it is not proven."


def of_other_version(what: str, version: str) -> str:
    """Write why a paper of another version is not verified."""
    return (
        f"The {what} was written by tacit {version}; this is {__version__}. Its figures were computed again, "
        f"but its words were not compared, so it is not verified. Verify it with the version that wrote it."
    )


def _compared(opinion: Opinion, lower: float, upper: float, delta: float) -> str:
    """Write one or two sentences that compare Tacit's bounds with another accountant's answer."""
    who = f"{opinion.source} ({opinion.method})"
    if opinion.epsilon is None:
        return f"{opinion.source} gives no answer: {opinion.why_not}"
    if math.isinf(upper) or upper == 0.0:
        return f"{who} says {opinion.epsilon:.7g}."
    side = "above" if opinion.epsilon >= upper else "below"
    apart = f"{max(1e-4, 100 * abs(opinion.epsilon / upper - 1.0)):.2g} % {side} ours"
    if opinion.epsilon < lower * (1.0 - _ROUNDING):
        return (
            f"{who} says {opinion.epsilon:.7g}, {apart} and below our lower bound: the two do not agree. If "
            f"the number of steps times 1e-16 is near delta ({delta:g}), its rounding is known to bring it "
            "below the truth. Otherwise one of the two is wrong: please report it. The larger figure is the "
            "safe one."
        )
    if opinion.epsilon > 1.01 * upper:
        return f"{who} says {opinion.epsilon:.7g}, {apart}: a looser bound, which does not contradict ours."
    return f"{who} says {opinion.epsilon:.7g}, {apart}: the two agree."


def verify_statement(data: Mapping[str, Any], *, opinions: Sequence[Accountant] = ()) -> Verification:
    """Check a statement: account for its event again, rebuild its plan, and ask other accountants.

    Args:
        data: the result of :func:`~tacit.report.verification.read_statement`, or the ``data`` of a
            :class:`Statement`.
        opinions: accountants to ask, such as :func:`tacit.integrations.dp_accounting.google_epsilon`.

    Raises:
        InvalidInput: a field is missing or has a wrong value, or the event is unknown.

    >>> import torch
    >>> from tacit import Plan, PrivateSession, make_statement, train
    >>> plan = Plan.with_noise(noise_multiplier=2.0, delta=1e-4, records=1000, batch_size=100, steps=20,
    ...     clipping=1.0, adjacency="add-remove", unit="patient")
    >>> model = torch.nn.Linear(2, 2)
    >>> records = torch.randn(1000, 2), torch.zeros(1000, dtype=torch.long)
    >>> session = PrivateSession(model, torch.optim.SGD(model.parameters(), lr=0.1), records, plan,
    ...     loss=torch.nn.CrossEntropyLoss())
    >>> _ = train(session)
    >>> statement = make_statement(session)
    >>> verify_statement(statement.data).verdict
    'agrees'
    >>> statement.data["guarantee"]["epsilon"] /= 2
    >>> verify_statement(statement.data).verdict
    'claims too little'
    """
    check_fields(data)
    guarantee = data["guarantee"]
    adjacency, delta = Adjacency.parse(guarantee["adjacency"]), float(guarantee["delta"])
    event = read_event(data["event"])
    epsilon = math.inf if guarantee["epsilon"] is None else float(guarantee["epsilon"])
    other_version = _other_version(data)
    contradictions = [
        *_about_plan(data, event),
        *_about_randomness(data),
        *_about_ledger(data),
    ]
    curve = _price(event, adjacency, delta, data["accountant"].get("method"))
    if isinstance(curve, str):
        contradictions.append(curve)
        lower, upper, method = 0.0, math.inf, "none"
    else:
        lower, upper = curve.epsilon_bounds(delta)
        method = curve.best_method(delta)
        contradictions += _about_groups(guarantee, curve)
        if not other_version and not contradictions:  # a plan that contradicts the event determines nothing
            contradictions += _about_fields(data, curve)
        claimed = guarantee["lower_bound_of_the_same_analysis"]
        if claimed > upper * (1.0 + _ROUNDING):
            contradictions.append(f"its lower bound, {claimed:.7g}, is above the upper bound {upper:.7g}.")
    accountants = opinions if upper <= _NO_PROMISE else ()
    answers = tuple(ask(event, adjacency, delta) for ask in accountants)
    return Verification(
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        unit=guarantee["unit"],
        lower=lower,
        upper=upper,
        method=method,
        contradictions=tuple(contradictions),
        remarks=_remarks(data),
        opinions=answers,
        not_verified=_not_verified(data),
        other_version=other_version,
    )


def _price(event: Event, adjacency: Adjacency, delta: float, method: object) -> PrivacyCurve | str:
    """Return the curve of the tightest method, else that of the stated one, else the reason for no curve."""
    reasons: list[str] = []
    methods = [method] if isinstance(method, str) and method in METHODS else []
    for name in dict.fromkeys(["best", *methods]):
        try:
            curve = account(event, adjacency=adjacency, method=name)
            curve.epsilon(delta)
        except UnsupportedEvent as problem:
            reasons.append(str(problem))
        else:
            return curve
    return f"no epsilon is proven for the statement's event: {reasons[0]}"


def _remarks(data: Mapping[str, Any]) -> tuple[str, ...]:
    remarks: list[str] = []
    guarantee, records = data["guarantee"], data["mechanism"]["public_figure_for_the_number_of_records"]
    if not data["private"]:
        remarks.append(
            "NOT PRIVATE: the statement says that a fixed test key was used, so it promises nothing."
        )
    if guarantee["delta"] * records >= 1.0:
        remarks.append(
            f"Delta {guarantee['delta']:g} is not below one over the number of records ({records}): "
            f"publishing one {guarantee['unit']} in full would satisfy it."
        )
    return tuple(remarks)


def _other_version(data: Mapping[str, Any]) -> str:
    """Return the version that wrote the statement if its words may differ from this one's, else ""."""
    version = str(data["accountant"].get("version"))[:40]
    if data["format"] != FORMAT:
        return f"{version} in format {data['format']}"
    return "" if version == __version__ else version


_FREE = ("data", "model", "public_data", "notes", "randomness", "versions")
"""The fields that the plan does not determine."""


def _about_fields(data: Mapping[str, Any], curve: PrivacyCurve) -> list[str]:
    """Write the statement again, and describe in a sentence each field that differs."""
    own, owner = limits_of(data["not_covered"])
    facts = {name: data[name] for name in (*_FREE, "private")}
    facts |= {"not_covered": own, "ledger": data.get("ledger")}
    due = statement_data(read_plan(data), data["mechanism"]["steps"], curve, facts, owner=owner)
    if data["versions"].get("tacit") != __version__:
        due["versions"] = data["versions"] | {"tacit": __version__}
    # Epsilon and the groups' may be larger, and the lower bound smaller: a weaker claim is no contradiction.
    guarantee, claims = due["guarantee"], data["guarantee"]
    guarantee["groups"] |= {
        size: claims["groups"].get(size, due) for size, due in guarantee["groups"].items()
    }
    for name in ("epsilon", "lower_bound_of_the_same_analysis"):
        guarantee[name] = claims[name]
    return [
        *(f"it has the unknown field {name!r:.60}." for name in data if name not in due),
        *(f"it lacks the field {name!r}." for name in due if name not in data),
        *(text for name in due if name in data for text in _differences(name, data[name], due[name])),
    ]


def _not_verified(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the fields that no other field determines."""
    own, _ = limits_of(data["not_covered"])
    lines = "the first line of not_covered" if len(own) == 1 else f"the first {len(own)} lines of not_covered"
    names = [*_FREE, *([lines] if own else [])]
    if _other_version(data):
        names = [*_FREE, "covered", "not_covered"]
    return (*names, *(["ledger"] if data.get("ledger", "none") != "none" else []))


def _about_plan(data: Mapping[str, Any], event: Event) -> list[str]:
    """Describe in a sentence each way in which event, mechanism or guarantee differs from the plan."""
    steps, guarantee = data["mechanism"]["steps"], data["guarantee"]
    try:
        plan = read_plan(data)
        due = plan.event_after(steps)
        mechanism = mechanism_of(plan, steps)
    except (TacitError, RecursionError) as problem:
        return [f"the described mechanism is impossible: {problem}"]
    described = data["mechanism"]
    if data["format"] == 1:  # an older version may say less
        mechanism = {name: value for name, value in mechanism.items() if name in described}
    promised = {"unit": plan.unit, "adjacency": str(plan.adjacency), "delta": plan.delta}
    return [
        *_differences("event", json.loads(event_to_json(event)), json.loads(event_to_json(due))),
        *_differences("mechanism", described, mechanism),
        *_differences("guarantee", {name: guarantee[name] for name in promised}, promised),
    ]


def _differences(part: str, value: Any, due: Any, where: str = "form") -> list[str]:
    """Describe in a sentence each difference between a field of the statement and its value by the plan."""
    if isinstance(value, dict) and isinstance(due, dict) and set(value) == set(due):
        return [text for key in value for text in _differences(part, value[key], due[key], key)]
    if isinstance(value, list) and isinstance(due, list) and len(value) == len(due):
        return [text for pair in zip(value, due, strict=True) for text in _differences(part, *pair, where)]
    if value == due:
        return []
    if isinstance(value, float) and isinstance(due, float) and math.isclose(value, due, rel_tol=_POWERS):
        return []
    field = part if where == "form" and not isinstance(due, dict) else f"{part}'s {where}"
    return [f"the {field} is {json.dumps(value)[:200]}; by the plan it must be {json.dumps(due)[:200]}."]


def _about_randomness(data: Mapping[str, Any]) -> list[str]:
    if data["private"] and "FIXED TEST KEY" in data["randomness"]:
        return ["it says that the run is private, and that its randomness came from a fixed test key."]
    return []


def _about_ledger(data: Mapping[str, Any]) -> list[str]:
    """Check that every step was charged to the ledger. Older statements have no field on the ledger."""
    ledger = data.get("ledger", "none")
    if ledger == "none":
        return []
    charged = ledger.get("steps") if isinstance(ledger, dict) else None
    if not isinstance(charged, int) or isinstance(charged, bool):
        raise InvalidInput(
            f"the statement's ledger cannot be read: {str(ledger)[:60]!r} does not say how many steps were "
            "charged. Get the statement again from its source."
        )
    steps = data["mechanism"]["steps"]
    if steps > charged:
        return [f"it says that {steps} steps were taken, and that {charged} were charged to the ledger."]
    return []


def _about_groups(guarantee: Mapping[str, Any], curve: PrivacyCurve) -> list[str]:
    """Check that each group's (epsilon, delta) follows from the curve of one record (PrivacyCurve.group)."""
    differences: list[str] = []
    for size, epsilon in guarantee["groups"].items():
        if not size.isdecimal() or int(size) < 1 or isinstance(epsilon, bool | str | list | dict):
            raise InvalidInput(
                f"the statement's group figure for {size!r} cannot be read: it is {epsilon!r}."
            )
        if epsilon is not None and curve.group(int(size)).delta(epsilon) > guarantee["delta"] * (1.0 + 1e-4):
            differences.append(
                f"a group of {size} has epsilon {epsilon:.7g} in the statement, which does not follow from "
                f"its event; {curve.group(int(size)).epsilon(guarantee['delta']):.7g} does."
            )
    return differences


_CHARGED = {
    "type": "object",
    "required": ["ledger", "dataset", "run", "steps", "first_entry", "last_entry", "head"],
    "properties": {
        **{name: {"type": "string"} for name in ("ledger", "dataset", "run", "head")},
        **{name: {"type": "integer", "minimum": 0} for name in ("steps", "first_entry", "last_entry")},
    },
}
_ROUNDING = 1e-6  # relative tolerance: two computers may differ in the same computation


def against_its_ledger(data: Mapping[str, Any], ledger: Ledger) -> list[str]:
    """Describe each difference of a statement from its ledger in a sentence.

    Args:
        data: a statement that :func:`tacit.report.verification.verify_statement` has checked.
        ledger: the ledger that the run was charged to.

    Raises:
        InvalidInput: the statement's ``ledger`` field cannot be read.

    **Guarantee**

    * The result is empty only if the charges of the run, up to the entry that the statement names, cover the
      cost of its event in every slot of the budget. In (epsilon, delta) mode, they only have to pay for its
      steps.
    * The result is empty only if the ledger's hash chain is unbroken and contains the statement's anchor.
    """
    charged = data.get("ledger", "none")
    if charged == "none":
        return ["it says that the run was not charged to a ledger."]
    check_against(_CHARGED, charged, what="the statement's part on its ledger")
    return list(_problems(data, charged, ledger))


def _problems(data: Mapping[str, Any], charged: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    dataset, run = charged["dataset"], charged["run"]
    if charged["ledger"] != ledger.uuid:
        yield f"its run was charged to ledger {charged['ledger']}; the given one is {ledger.uuid}."
        return
    anchor = Anchor.parse(charged["head"])
    yield from (f"the ledger: {text}." for text in ledger.verify(dataset, anchor=anchor).problems)
    policy, guarantee = ledger.policy(dataset), data["guarantee"]
    if Adjacency.parse(guarantee["adjacency"]) is not policy.relation:
        yield f"its adjacency is {guarantee['adjacency']}; that of the data set is {policy.relation}."
    if guarantee["unit"] != policy.unit:
        yield f"its unit is one {guarantee['unit']}; that of the data set is one {policy.unit}."
    charges = [
        spent
        for spent in spendings(ledger.history(dataset)[: anchor.seq + 1])
        if spent.run == run and spent.dataset == dataset
    ]
    if not charges:
        yield f"the ledger has no charge of the run {run!r} on {dataset!r} up to entry {anchor.seq}."
        return
    steps = data["mechanism"]["steps"]
    if charged["steps"] < steps:
        yield f"{steps} steps were taken, and {charged['steps']} were charged."
    paid = tuple(map(sum, zip(*(spent.cost for spent in charges), strict=True)))
    yield from _underpaid(data, policy, paid)


def _underpaid(data: Mapping[str, Any], policy: Policy, paid: Cost) -> Iterator[str]:
    """Describe the first slot of the budget in which the charges are below the cost of the event.

    In (epsilon, delta) mode there is no such comparison, as the costs of steps do not add up to the event's.
    """
    if policy.budget.mode == "approximate":
        return
    due = policy.budget.price(read_event(data["event"]), policy.relation)
    for slot, cost, least in zip(policy.budget.slots, paid, due, strict=True):
        if cost < least * (1.0 - _ROUNDING):
            yield f"its event costs {least} units ({slot}); the ledger was charged {cost} for the run."
            return
