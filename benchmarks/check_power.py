"""The rates at which one-stage and two-stage audits detect faults, on simulated scores.

The old audit contradicted a promise if one of three tests of 1,000 canaries did so, each at level 0.05.  The
current audit also requires that 8,000 fresh canaries confirm it, at a level of 1 in 1,250 for all three tests
together.  The old level for attacks above their limit was 0.05 for all attacks and rates together; the
current level is 1 in 10,000.  The faults are noise of the plan times a factor, and a clipping bound of twice
the plan's. ``--real`` also performs the plan by sessions with faulty noise, in place of simulated scores.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import results

from tacit.accounting import PrivacyCurve, account
from tacit.audits import Scores, audit_slots, clopper_pearson, plan_with_room
from tacit.events import Compose, Gaussian
from tacit.noise.gaussian import StepNoise
from tacit.plan import Plan
from tacit.report import findings
from tacit.runs import attack as slots
from tacit.training import ranks as replicas
from tacit.training.audit_slots import SlotEvidence

COMMON: dict[str, Any] = {"delta": 1e-5, "clipping": 1.0, "adjacency": "add-remove", "unit": "row"}
PLANS = {
    "1 step, noise 1": Plan.with_noise(
        noise_multiplier=1.0, steps=1, records=5000, allow_large_delta=True, **COMMON
    ),
    "30 steps, noise 8": Plan.with_noise(noise_multiplier=8.0, steps=30, records=5000, **COMMON),
}
CANARIES, RECORDS, OTHERS, ATTACKS = 1000, 1437, 360, 5
LEVEL_BEFORE = 0.05


@dataclass(frozen=True)
class Fault:
    """A fault: noise of ``noise`` times the plan's, and records of ``bound`` times the clipping bound."""

    name: str
    noise: float = 1.0
    bound: float = 1.0


FAULTS = (
    Fault("none"),
    Fault("noise 0.9 of the plan", 0.9),
    Fault("noise 0.8 of the plan", 0.8),
    Fault("noise halved", 0.5),
    Fault("no noise", 0.0),
    Fault("clipping forgotten: twice the bound", bound=2.0),
)


def main() -> None:
    """Write the results, and print them."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=100, help="of each plan and fault, simulated")
    options.add_argument("--real", type=int, default=5, help="of each fault of the noise, performed")
    options.add_argument("--out", type=Path, default=results.FOLDER / "power.json")
    given = options.parse_args()
    rng = np.random.default_rng(1)
    content: dict[str, Any] = {
        "setting": {"canaries": CANARIES, "second stage": slots._MORE[0] * CANARIES, "level": slots.PLANTED,
                    "members": RECORDS, "others": OTHERS, "attacks": ATTACKS,
                    "attack level": findings.ATTACKS},
        "planted": [], "attack": [], "real": [],
    }  # fmt: skip
    for name, plan in PLANS.items():
        for fault in FAULTS:
            row = {"plan": name, "epsilon": plan.epsilon, "fault": fault.name, "runs": given.runs}
            content["planted"].append(row | counted([planted(plan, fault, rng) for _ in range(given.runs)]))
            content["attack"].append(row | counted([attacked(plan, fault, rng) for _ in range(given.runs)]))
            results.write(given.out, "power", content)
    name, plan = "30 steps, noise 8", PLANS["30 steps, noise 8"]
    for fault in FAULTS[:4] if given.real else ():
        row = {"plan": name, "epsilon": plan.epsilon, "fault": fault.name, "runs": given.real}
        content["real"].append(row | counted([performed(plan, fault, rng) for _ in range(given.real)]))
        results.write(given.out, "power", content)
    for kind in ("planted", "attack", "real"):
        for row in content[kind]:
            print(kind, row, file=sys.stdout)  # noqa: T201


def counted(found: list[tuple[bool, bool]]) -> dict[str, int]:
    """Return the number of detections by the old and by the current audit."""
    before, now = (sum(column) for column in zip(*found, strict=True))
    return {"before": before, "now": now}


def evidence(plan: Plan, fault: Fault, canaries: int, rng: np.random.Generator) -> SlotEvidence:
    """Return simulated evidence of audit slots from a run of full batches."""
    coins = rng.random(canaries) < 0.5
    noise = fault.noise * plan.gradient_noise_multiplier * rng.standard_normal((plan.steps, canaries))
    return SlotEvidence((fault.bound * coins + noise).astype(np.float32), coins)


def verdicts(first: SlotEvidence, fresh: Any, plan: Plan, rng: np.random.Generator) -> tuple[bool, bool]:
    """Return whether the first stage contradicts the promise, and whether both stages do."""
    if not slots.suspects(audit_slots(first, plan, confidence=1.0 - LEVEL_BEFORE, rng=rng)):
        return False, False
    return True, slots.confirms(fresh(), plan, level=slots.PLANTED, rng=rng)


def planted(plan: Plan, fault: Fault, rng: np.random.Generator) -> tuple[bool, bool]:
    """Return the verdicts of a simulated audit of a plan by canaries."""
    more = slots._MORE[0] * CANARIES
    return verdicts(evidence(plan, fault, CANARIES, rng), lambda: evidence(plan, fault, more, rng), plan, rng)


def attacked(plan: Plan, fault: Fault, rng: np.random.Generator) -> tuple[bool, bool]:
    """Return whether the strongest possible attack exceeds its limit at the old and the current level."""
    steps, sigma = plan.steps, plan.gradient_noise_multiplier
    shift = np.sqrt(steps) * fault.bound / (sigma * fault.noise) if fault.noise else 40.0
    scores = Scores(rng.normal(shift, 1.0, RECORDS), rng.normal(0.0, 1.0, OTHERS))
    rates = findings.default_rates(OTHERS)
    limit, shared = findings._limit(curve_of(plan)), ATTACKS * len(rates)
    return (
        any(above_by_halves(scores, rate, limit, LEVEL_BEFORE / shared, rng) for rate in rates),
        any(findings._above(scores, rate, limit, findings.ATTACKS / shared) for rate in rates),
    )


def above_by_halves(scores: Scores, rate: float, limit: Any, level: float, rng: np.random.Generator) -> bool:
    """Return the result of the old test, with a threshold from one half that is tested on the other."""
    choosing, judging = scores.split(rng)
    roc = choosing.roc()
    threshold = roc.thresholds[roc.false_positive_rates <= rate][-1]
    false, found = (
        clopper_pearson(int((part >= threshold).sum()), part.size, confidence=1.0 - level)
        for part in (judging.non_members, judging.members)
    )
    return bool(found.low > limit(np.array([false.high]))[0])


def curve_of(plan: Plan) -> PrivacyCurve:
    """Return the privacy curve of the plan's full batches."""
    event = Compose((Gaussian(plan.gradient_noise_multiplier),) * plan.steps)
    return account(event, adjacency=plan.adjacency)


def performed(plan: Plan, fault: Fault, rng: np.random.Generator) -> tuple[bool, bool]:
    """Return the verdicts of an audit of real sessions with faulty noise."""

    def faulty(*address: Any, std: float, **more: Any) -> StepNoise:
        return StepNoise(*address, std=std * fault.noise, **more)

    def run(canaries: int) -> SlotEvidence:
        with mock.patch.object(replicas, "StepNoise", faulty):
            return slots.rehearse_plan(plan_with_room(plan, canaries), canaries)

    return verdicts(run(CANARIES), lambda: run(slots._MORE[0] * CANARIES), plan, rng)


if __name__ == "__main__":
    main()
