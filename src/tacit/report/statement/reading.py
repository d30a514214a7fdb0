"""Reading of privacy statements: their fields are checked, and the event and the plan become objects.

A statement by Tacit 0.2.0 describes its plan in words and reprs. Later statements contain the plan as JSON.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tacit.errors import InvalidInput, TacitError
from tacit.events import Adjacency, Event, event_from_json
from tacit.plan import LossReport, Plan, ScoreReport
from tacit.plan.facts import CORRELATIONS, RULES
from tacit.report.schema import read_json
from tacit.report.statement.statement import FORMAT
from tacit.sampling import (
    ByDate,
    CyclicPoissonSampling,
    FullBatch,
    PoissonSampling,
    Sampling,
    ShuffledBatches,
    TruncatedPoissonSampling,
)

_LARGEST = 1e300
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
            endless = isinstance(value, int | float) and not abs(value) < _LARGEST
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
