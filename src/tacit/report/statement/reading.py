"""Do the fields of a privacy statement describe its event? They are read back and compared.

The check rebuilds the plan from what the statement says of sampler, clipping, noise and steps; the event that
this plan performs must be the one in the statement.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.clipping.rules import (
    AdaptiveClipping,
    AutomaticClipping,
    ClippingRule,
    FlatClipping,
    PerLayerClipping,
)
from tacit.correlation import BLT, Banded, BandedInverse, Correlation, Tree
from tacit.errors import InvalidInput, PrivacyRefusal, TacitError, reason_of
from tacit.events import (
    Adjacency,
    Compose,
    CyclicPoissonSampled,
    Event,
    GroupPrivacy,
    PoissonSampled,
    Repeat,
    TruncatedPoissonSampled,
    event_from_json,
    event_to_json,
)
from tacit.plan import LossReport, Plan, ScoreReport
from tacit.sampling import (
    ByDate,
    CyclicPoissonSampling,
    FullBatch,
    PoissonSampling,
    Sampling,
    ShuffledBatches,
    TruncatedPoissonSampling,
)

_FORMAT = 1
_LARGEST = 1e300
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "private": bool, "guarantee": dict, "mechanism": dict, "accountant": dict, "event": dict,
    "randomness": str,
}  # fmt: skip
_GUARANTEE: dict[str, type | tuple[type, ...]] = {
    "unit": str, "adjacency": str, "epsilon": (int, float, type(None)), "delta": (int, float), "groups": dict,
    "lower_bound_of_the_same_analysis": (int, float),
}  # fmt: skip
_MECHANISM: dict[str, type | tuple[type, ...]] = {
    "steps": int, "sampler": str, "expected_batch_size": (int, float), "clipping": str,
    "public_figure_for_the_number_of_records": int, "noise_multiplier": (int, float),
    "noise_multiplier_of_the_gradients": (int, float), "views_per_record": int, "loss_report": str,
    "preparation": list,
}  # fmt: skip


def read_statement(path: Path | str) -> dict[str, Any]:
    """Read a statement that a run has written.

    :raises InvalidInput: if there is none, it is not JSON, or it lacks a part of a statement.
    """
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidInput(
            f"there is no statement at {path}. A run leaves it as statement.json in its folder; check the "
            "path."
        ) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(
            f"cannot read the statement {path}: {reason_of(problem)}. Check the path."
        ) from None
    except (ValueError, RecursionError) as problem:  # a number may be too long even to be read
        raise InvalidInput(
            f"{path} is not JSON: {problem}. Give the statement.json of a run, not its statement.txt."
        ) from None
    if not isinstance(data, dict) or data.get("statement") != "tacit privacy statement":
        raise InvalidInput(
            f"{path} is not a privacy statement of Tacit: it does not begin by saying so. Give the "
            "statement.json of a run."
        )
    return data


def check_fields(data: Mapping[str, Any]) -> None:
    """Raise InvalidInput unless ``data`` has the fields of a statement, each of its kind and in its range."""
    if data.get("format") != _FORMAT:
        raise InvalidInput(
            f"the statement has format {data.get('format')!r}; this version of Tacit reads format {_FORMAT}. "
            "Use the version that wrote it."
        )
    for where, fields in (("", _FIELDS), ("guarantee", _GUARANTEE), ("mechanism", _MECHANISM)):
        part = data[where] if where else data
        for name, kind in fields.items():
            value = part.get(name, ...)
            wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
            endless = isinstance(value, int | float) and not abs(value) < _LARGEST
            if wrong or endless:
                given = "it is missing" if value is ... else f"it is {json.dumps(value)[:60]}"
                raise InvalidInput(
                    f"the statement's {f'{where}.{name}' if where else name} cannot be read: {given}. A "
                    "statement that a run has left is whole; get it again from where it comes from."
                )
    guarantee = data["guarantee"]
    if not 0.0 < guarantee["delta"] < 1.0 or (guarantee["epsilon"] or 0.0) < 0.0:
        raise InvalidInput(
            f"the statement's epsilon ({guarantee['epsilon']}) must be at least 0 and its delta "
            f"({guarantee['delta']}) in (0, 1); no mechanism has others."
        )


def read_event(data: object) -> Event:
    """The event that a statement holds; InvalidInput if there is no such event."""
    try:
        return event_from_json(json.dumps(data))
    except (TacitError, RecursionError) as problem:
        raise InvalidInput(f"the statement's event cannot be read: {problem}") from None


def against_the_plan(data: Mapping[str, Any], event: Event, adjacency: Adjacency) -> list[str]:
    """Where the statement's event differs from that of the mechanism it describes, each in a sentence."""
    mechanism = data["mechanism"]
    try:
        plan = _plan(data, event, adjacency)
        described = plan.event_after(mechanism["steps"])
    except (InvalidInput, PrivacyRefusal) as problem:
        return [f"the mechanism described cannot be: {problem}"]
    found = _differences(json.loads(event_to_json(event)), json.loads(event_to_json(described)))
    true, stated = plan.gradient_noise_multiplier, mechanism["noise_multiplier_of_the_gradients"]
    if not math.isclose(true, stated, rel_tol=1e-9):
        found.append(
            f"the noise multiplier of the gradients is {stated:.7g}; with the releases beside them it must "
            f"be {true:.7g}."
        )
    return found


def _plan(data: Mapping[str, Any], event: Event, adjacency: Adjacency) -> Plan:
    """The plan that the fields of the statement describe."""
    mechanism, guarantee = data["mechanism"], data["guarantee"]
    reported, scored = mechanism["loss_report"], mechanism.get("score_report", "none")  # older ones have none
    preparation = [] if mechanism["preparation"] == ["none"] else mechanism["preparation"]
    if mechanism["steps"] < 0:
        raise InvalidInput(f"{mechanism['steps']} steps were taken.")
    plan = Plan(
        unit=guarantee["unit"],
        adjacency=adjacency,
        delta=guarantee["delta"],
        records=mechanism["public_figure_for_the_number_of_records"],
        sampling=_sampling(mechanism, event),
        clipping=_rule(mechanism["clipping"]),
        steps=max(1, mechanism["steps"]),
        noise_multiplier=mechanism["noise_multiplier"],
        expected_batch_size=mechanism["expected_batch_size"],
        preparation=tuple(read_event(item) for item in preparation),
        views=mechanism["views_per_record"],
        rows_per_user=mechanism.get("rows_per_unit"),  # statements of single records have none
        correlation=_correlation(mechanism),
        loss_report=None if reported == "none" else _call(reported, (LossReport,)),
        score_report=None if scored == "none" else _call(scored, (ScoreReport,)),
        allow_large_delta=True,
    )
    by_date = isinstance(plan.sampling, ByDate)  # whose batch size is a figure by itself
    if not by_date and abs(_expected(plan.sampling, plan.records) - plan.expected_batch_size) > 0.5:
        raise InvalidInput(
            f"the sampler draws {_expected(plan.sampling, plan.records):g} of {plan.records} records a step, "
            f"and the expected batch size is {plan.expected_batch_size:g}."
        )
    return plan


def _correlation(mechanism: Mapping[str, Any]) -> Correlation | None:
    """That of a statement; those of independent noise have none."""
    if "noise_in_time" not in mechanism:
        return None
    correlation: Correlation = _call(mechanism["noise_in_time"], (Banded, BandedInverse, BLT, Tree))
    return correlation


def _expected(sampling: Sampling, records: int) -> float:
    match sampling:
        case PoissonSampling(rate) | TruncatedPoissonSampling(rate):
            return rate * records
        case CyclicPoissonSampling():
            return sampling.expected_batch(records)
        case ShuffledBatches(size, _):
            return float(size)
    return float(records)


def _sampling(mechanism: Mapping[str, Any], event: Event) -> Sampling:
    """The sampler that the statement describes in words; the exact rate is the event's."""
    described, batch = mechanism["sampler"], mechanism["expected_batch_size"]
    records = mechanism["public_figure_for_the_number_of_records"]
    candidates: list[Sampling] = [FullBatch()]
    candidates += _samplings(event)
    if 1 <= round(batch) <= records:
        candidates.append(ShuffledBatches(round(batch), records))
        candidates.append(PoissonSampling(min(1.0, batch / records)))
        cut = re.search(r"at most (\d{1,18}) of", described)
        if cut and 1 <= int(cut[1]) <= records:
            candidates.append(TruncatedPoissonSampling(min(1.0, batch / records), records, int(cut[1])))
    if found := re.search(r"one of (\d{1,18}) parts", described):
        cycle = int(found[1])
        exact = [rate for rate in _cyclic_rates(event) if rate > 0.0]
        rates = (1.0, *exact, min(1.0, cycle * batch / records))
        candidates += [CyclicPoissonSampling(rate, cycle) for rate in rates]
    if found := re.search(r"at most (\d{1,18}) times?(?:, (\d{1,18}) steps apart)?", described):
        candidates.append(ByDate(int(found[1]), int(found[2] or 1)))
    for sampling in candidates:
        if sampling.describe() == described:
            return sampling
    raise InvalidInput(
        f"the sampler is described as {described!r}, which is neither what the event says nor what "
        f"{batch:g} of {records} records come to."
    )


def _cyclic_rates(event: Event) -> list[float]:
    match event:
        case CyclicPoissonSampled(rate, _, _):
            return [rate]
        case Compose(events):
            return [rate for inner in events for rate in _cyclic_rates(inner)]
    return []


def _samplings(event: Event) -> list[Sampling]:
    match event:
        case PoissonSampled(rate, _) if rate > 0.0:
            return [PoissonSampling(rate)]
        case TruncatedPoissonSampled(rate, records, largest, _) if rate > 0.0 and largest <= records:
            return [TruncatedPoissonSampling(rate, records, largest)]
        case Repeat(inner, _) | GroupPrivacy(inner, _):
            return _samplings(inner)
        case Compose(events):
            return [sampling for inner in reversed(events) for sampling in _samplings(inner)]
    return []


def _rule(text: str) -> ClippingRule:
    rule: ClippingRule = _call(text, (FlatClipping, PerLayerClipping, AutomaticClipping, AdaptiveClipping))
    return rule


def _call(text: str, known: tuple[type, ...]) -> Any:
    """The object that ``text``, its repr, describes; only one of the ``known`` frozen dataclasses."""
    try:
        tree = ast.parse(text, mode="eval").body
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
            raise ValueError
        kind = next(kind for kind in known if kind.__name__ == tree.func.id)
        return kind(**{str(given.arg): ast.literal_eval(given.value) for given in tree.keywords})
    except InvalidInput:
        raise  # the class itself says what is wrong with a value
    except (ValueError, SyntaxError, TypeError, StopIteration, RecursionError, MemoryError):
        names = ", ".join(kind.__name__ for kind in known)
        raise InvalidInput(f"{text[:80]!r} describes none of {names} as their text forms do.") from None


def _differences(event: Any, described: Any, where: str = "") -> list[str]:
    """Where the event and that of the described mechanism differ, each in a sentence."""
    if isinstance(event, dict) and isinstance(described, dict) and set(event) == set(described):
        return [text for key in event for text in _differences(event[key], described[key], key)]
    if isinstance(event, list) and isinstance(described, list) and len(event) == len(described):
        return [text for pair in zip(event, described, strict=True) for text in _differences(*pair, where)]
    if event == described:
        return []
    return [
        f"the event's {where or 'form'} is {_short(event)}; by the mechanism described it must be "
        f"{_short(described)}."
    ]


def _short(value: Any) -> str:
    return f"{value!r}" if isinstance(value, int | float) else json.dumps(value)[:200]
