"""The check that a statement's epsilon covers its event, and that its fields agree with each other.

A statement contains its event and its plan. The check accounts for the event again, and writes the statement
again from the plan. Only the ledger that the run was charged to shows that this is the event that was run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from tacit import __version__
from tacit.accounting import METHODS, PrivacyCurve, account
from tacit.errors import InvalidInput, TacitError, UnsupportedEvent, needed, reason_of
from tacit.events import Adjacency, Event, event_from_json
from tacit.ledger import Anchor, Ledger, Policy
from tacit.ledger.policy import Cost
from tacit.plan import Plan
from tacit.report.spending import spendings
from tacit.report.statement import FORMAT, limits_of, statement_data
from tacit.rounding import finite, pair, shown_epsilon
from tacit.serial import parse_json

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
    """Read a statement that a run has written."""
    data: Any = read_json(path, "statement", "the statement.json of a run, not its statement.txt")
    if not isinstance(data, dict) or data.get("statement") != "tacit privacy statement":
        raise InvalidInput(f"{path} is not a privacy statement of Tacit. Give the statement.json of a run.")
    statement: dict[str, Any] = data
    return statement


def check_fields(data: Mapping[str, Any]) -> None:
    """Check that ``data`` has the fields of a statement, each with the right type and in its range."""
    if data.get("format") != FORMAT:
        raise other_version("statement", _version(data), data.get("format"), FORMAT)
    for where, kinds in _KINDS.items():
        part = data[where] if where else data
        for name, kind in kinds.items():
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
            f"the statement's epsilon {guarantee['epsilon']} and delta {guarantee['delta']} are invalid. "
            "Epsilon must be at least 0, and delta in (0, 1). Get the statement again from its source."
        )


def _version(data: Mapping[str, Any]) -> str:
    """Return the version that the statement names, which may be anything."""
    accountant = data.get("accountant")
    return str(accountant.get("version") if isinstance(accountant, dict) else None)[:40]


def read_event(data: object) -> Event:
    """Read the event of a statement or a certificate."""
    try:
        return event_from_json(json.dumps(data))
    except (TacitError, RecursionError) as problem:
        raise InvalidInput(
            f"the field event, which describes the mechanism, cannot be read: {problem}"
        ) from None


ROUNDING = 1e-6  # relative tolerance: two computers may differ in the same computation
_POWERS = 1e-9  # relative tolerance: processors round powers differently
_NO_PROMISE = 500.0  # above this epsilon the check asks no other accountant


@dataclass(frozen=True)
class Opinion:
    """Another accountant's answer: an upper bound on the event's epsilon in nats, or why there is none."""

    source: str
    method: str
    epsilon: float | None
    why_not: str


Accountant: TypeAlias = Callable[[Event, Adjacency, float], Opinion]
"""A function from an event, an adjacency and a delta to an opinion."""


@dataclass(frozen=True)
class Verification:
    """The result of checking a statement.

    Attributes:
        epsilon: the epsilon that the statement claims, or infinity if it claims no finite one.
        delta, adjacency, unit: those that the statement claims.
        lower, upper: Tacit's bounds on the epsilon of the statement's event. ``upper`` is infinity if no
            bound is proven.
        method: the accounting method that gave the bounds.
        contradictions: one sentence per contradiction between fields of the statement.
        remarks: sentences for the reader that are not contradictions.
        opinions: the answers of other accountants.
        not_verified: the fields that could not be recomputed or confirmed.
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
    checked: str = (
        "Checked: the figures of the statement agree with each other. NOT checked: that they describe the "
        "real run. No file shows that; the ledger to which the run was charged does (--ledger)."
    )

    @property
    def enough(self) -> bool:
        """Whether the epsilon that the statement claims is at least the epsilon of its event."""
        return self.epsilon >= self.upper * (1.0 - ROUNDING)

    @property
    def agrees(self) -> bool:
        """Whether the statement's epsilon is enough and its fields agree with each other."""
        return self.enough and not self.contradictions

    @property
    def verdict(self) -> str:
        """In words: "agrees", "claims too little" or "contradicts itself"."""
        if not self.enough:
            return "claims too little"
        return "contradicts itself" if self.contradictions else "agrees"

    def as_data(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        fields = asdict(self)
        data = {"verdict": self.verdict, "agrees": self.agrees, "stated": fields.pop("epsilon"), **fields}
        return data | {"in_words": self.in_words()}

    def in_words(self) -> list[str]:
        """Return the findings as text, with one paragraph for each."""
        claim = pair({"epsilon": finite(self.epsilon), "delta": self.delta})
        return [
            f"The statement says {claim} for one {self.unit} ({self.adjacency}). Recomputed from its event: "
            f"{shown_epsilon(self.upper)} (tacit {__version__}, method {self.method}). {self._judgement()}",
            *(f"Contradiction: {text}" for text in self.contradictions),
            *(_compared(opinion, self.lower, self.upper, self.delta) for opinion in self.opinions),
            *self.remarks,
            self.checked,
            *([f"Not verified: {', '.join(self.not_verified)}."] if self.not_verified else []),
        ]

    def _judgement(self) -> str:
        if self.enough:
            return "The stated ε is enough."
        if math.isinf(self.upper):
            return "Nothing supports the stated ε."
        short = f"The stated ε is too small by {self.upper - self.epsilon:.3g}"
        if self.epsilon < self.lower * (1.0 - ROUNDING):
            return f"{short}. It is false, as it is below the least cost of the event."
        return f"{short}. It lies between the bounds, so it may be true, but it is not proven."


def _compared(opinion: Opinion, lower: float, upper: float, delta: float) -> str:
    """Write one or two sentences that compare Tacit's bounds with another accountant's answer."""
    if opinion.epsilon is None:
        return f"{opinion.source} gives no answer: {opinion.why_not}"
    says = f"{opinion.source} ({opinion.method}) says {shown_epsilon(opinion.epsilon)}"
    if math.isinf(upper) or upper == 0.0:
        return f"{says}."
    side = "above" if opinion.epsilon >= upper else "below"
    apart = f"{max(1e-4, 100 * abs(opinion.epsilon / upper - 1.0)):.2g} % {side} ours"
    if opinion.epsilon < lower * (1.0 - ROUNDING):
        return (
            f"{says}, {apart} and below our lower bound: the two do not agree. If "
            f"the number of steps times 1e-16 is near delta ({delta:g}), its rounding is known to bring it "
            "below the truth. Otherwise one of the two is wrong: please report it. The larger figure is the "
            "safe one."
        )
    if opinion.epsilon > 1.01 * upper:
        return f"{says}, {apart}: a looser bound, which does not contradict ours."
    return f"{says}, {apart}: the two agree."


def verify_statement(data: Mapping[str, Any], *, opinions: Sequence[Accountant] = ()) -> Verification:
    """Check a statement: account for its event again, rebuild its plan, and ask other accountants."""
    check_fields(data)
    if _version(data) != __version__:
        raise other_version("statement", _version(data), data.get("format"), FORMAT)

    guarantee = data["guarantee"]
    adjacency, delta = Adjacency.parse(guarantee["adjacency"]), float(guarantee["delta"])
    event = read_event(data["event"])
    epsilon = math.inf if guarantee["epsilon"] is None else float(guarantee["epsilon"])
    # Without a price there is no more to compare.
    curve = _price(event, adjacency, delta, data["accountant"].get("method"))
    if isinstance(curve, str):
        contradictions = [curve]
        lower, upper, method = 0.0, math.inf, "none"
    else:
        contradictions = [*_about_fields(data, curve), *_about_groups(guarantee, curve)]
        lower, upper = curve.epsilon_bounds(delta)
        method = curve.best_method(delta)
        claimed = guarantee["lower_bound_of_the_same_analysis"]
        if claimed > upper * (1.0 + ROUNDING):
            contradictions.append(f"its lower bound, {claimed:.7g}, is above the upper bound {upper:.7g}.")
    contradictions += _about_facts(data)
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


_FREE = ("data", "model", "public_data", "notes", "randomness", "versions")
"""The fields that the plan does not determine."""


def _about_fields(data: Mapping[str, Any], curve: PrivacyCurve) -> list[str]:
    """Write the statement again from its plan, and describe in a sentence each field that differs."""
    own, owner = limits_of(data["not_covered"])
    facts = {name: data[name] for name in (*_FREE, "private")}
    facts |= {"not_covered": own, "ledger": data.get("ledger")}
    try:
        plan = Plan.from_json(json.dumps(data["plan"]))
        due = statement_data(plan, data["mechanism"]["steps"], curve, facts, owner=owner)
    except (TacitError, RecursionError) as problem:
        return [f"the described mechanism is impossible: {problem}"]
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
    return (*names, *(["ledger"] if data.get("ledger", "none") != "none" else []))


def _differences(part: str, value: Any, due: Any, where: str = "form") -> list[str]:
    """Describe in a sentence each difference between a field of the statement and its value by the plan."""
    if isinstance(value, dict) and isinstance(due, dict) and set(value) == set(due):
        return [text for key in value for text in _differences(part, value[key], due[key], key)]
    if isinstance(value, list) and isinstance(due, list) and len(value) == len(due):
        return [text for both in zip(value, due, strict=True) for text in _differences(part, *both, where)]
    if value == due:
        return []
    if isinstance(value, float) and isinstance(due, float) and math.isclose(value, due, rel_tol=_POWERS):
        return []
    field = part if where == "form" and not isinstance(due, dict) else f"{part}'s {where}"
    return [f"the {field} is {json.dumps(value)[:200]}; by the plan it must be {json.dumps(due)[:200]}."]


def _about_facts(data: Mapping[str, Any]) -> list[str]:
    """Compare the key of the noise, and the steps charged to a ledger, with what the statement says."""
    contradictions = []
    if data["private"] and "FIXED TEST KEY" in data["randomness"]:
        contradictions.append(
            "it says that the run is private, and that its randomness came from a fixed test key."
        )
    ledger = data.get("ledger", "none")
    if ledger == "none":
        return contradictions

    charged = ledger.get("steps") if isinstance(ledger, dict) else None
    if not isinstance(charged, int) or isinstance(charged, bool):
        raise InvalidInput(
            f"the statement's field ledger cannot be read: {str(ledger)[:60]!r} does not give the number of "
            "charged steps. Get the statement again from its source."
        )
    steps = data["mechanism"]["steps"]
    if steps > charged:
        contradictions.append(
            f"it says that {steps} steps were taken, and that {charged} were charged to the ledger."
        )
    return contradictions


def _about_groups(guarantee: Mapping[str, Any], curve: PrivacyCurve) -> list[str]:
    """Check that each group's (epsilon, delta) follows from the curve of one record (PrivacyCurve.group)."""
    differences: list[str] = []
    for size, epsilon in guarantee["groups"].items():
        if not size.isdecimal() or int(size) < 1 or isinstance(epsilon, bool | str | list | dict):
            raise InvalidInput(
                f"the statement's epsilon for a group of {size!r} cannot be read: it is {epsilon!r}."
            )
        if epsilon is not None and curve.group(int(size)).delta(epsilon) > guarantee["delta"] * (1.0 + 1e-4):
            differences.append(
                f"a group of {size} has epsilon {epsilon:.7g} in the statement, which does not follow from "
                f"its event; {curve.group(int(size)).epsilon(guarantee['delta']):.7g} does."
            )
    return differences


_DEEPEST = 64


class OtherVersion(InvalidInput):
    """A statement or a certificate of another version of Tacit, which is not verified.

    Attributes:
        version: the version that wrote it.
    """

    version: str = ""


def other_version(what: str, version: str, form: object, due: int) -> OtherVersion:
    """Return the error for a paper in the format ``form``, where this version reads the format ``due``."""
    error = OtherVersion(
        f"the {what} was written by tacit {version} in format {str(form)[:20]}, and this is tacit "
        f"{__version__}, which reads format {due}. Verify it with the version that wrote it."
    )
    error.version = version
    return error


def read_json(path: Path | str, what: str, give: str) -> Any:
    """Read the plain data in a JSON file that another person wrote."""
    try:
        return parse_json(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidInput(f"there is no {what} at {path}. Check the path, and give {give}.") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(f"cannot read the {what} {path}: {reason_of(problem)}. Check the path.") from None
    except (ValueError, RecursionError) as problem:  # also a number with too many digits, or equal keys
        raise InvalidInput(f"{path} is not JSON: {problem}. Give {give}.") from None


def read_schema(name: str) -> dict[str, Any]:
    """Read a schema that the package includes, such as "certificate.schema.json"."""
    schema: dict[str, Any] = json.loads((resources.files("tacit.report") / name).read_text(encoding="utf-8"))
    return schema


def check_against(schema: Mapping[str, Any], data: object, *, what: str) -> None:
    """Check that ``data`` fit the schema. Numbers must be finite, and 1.0 does not count as an integer."""
    jsonschema = needed("jsonschema", "ledger", "a check of a certificate")
    base = jsonschema.Draft202012Validator
    kinds = base.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
            "number": lambda _, value: base.TYPE_CHECKER.is_type(value, "number") and math.isfinite(value),
        }
    )
    reader = jsonschema.validators.extend(base, type_checker=kinds)(schema)
    if _too_deep(data):
        finding = f": it is nested more than {_DEEPEST} deep"
    elif problem := next(reader.iter_errors(data), None):
        place = problem.json_path.removeprefix("$").removeprefix(".")
        finding = f"{f'{chr(39)}s {place}' if place else ''}: {problem.message[:300]}"
    else:
        return
    raise InvalidInput(f"{what}{finding}. This does not fit the schema. Ask the issuer for the file again.")


def _too_deep(data: object) -> bool:
    """Return whether data are nested so deeply that recursive code could exhaust the stack."""
    level = [data]
    for _ in range(_DEEPEST):
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [part for item in inner if isinstance(item, list | ValuesView) for part in item]
    return bool(level)


_CHARGED = {
    "type": "object",
    "required": ["ledger", "dataset", "run", "steps", "first_entry", "last_entry", "head"],
    "properties": {
        **{name: {"type": "string"} for name in ("ledger", "dataset", "run", "head")},
        **{name: {"type": "integer", "minimum": 0} for name in ("steps", "first_entry", "last_entry")},
    },
}


def against_its_ledger(data: Mapping[str, Any], ledger: Ledger) -> list[str]:
    """Describe each difference of a statement from its ledger in a sentence.

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
        if cost < least * (1.0 - ROUNDING):
            yield f"its event costs {least} units ({slot}); the ledger was charged {cost} for the run."
            return
