"""The epsilon that audit slots prove for real runs, and the faults that they detect: ``make check-slots``.

The check of tightness has m = 1,000 slots, full batches, T = 30 and noise multiplier 4.  It measures the
proven share of the claimed epsilon, compared with one-run bounds and a black-box audit that uses the losses
of mislabelled records.  The check of power has T = 200, q = 0.1, noise multiplier 1 and m = 2,000.  It
measures how often the claim is rejected at level 0.01, if the noise is as claimed and if it is too small by a
factor of 1.25.  Every run is a normal session with a fresh key, with the sampler, engine, noise and divisor
of any run.  The checks take a night.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import results
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.audits import audit_one_run, audit_slots, plan_with_room
from tacit.noise.gaussian import StepNoise
from tacit.plan import Plan
from tacit.runs.attack import rehearse_plan
from tacit.training import PrivateSession
from tacit.training import ranks as replicas

COMMON: dict[str, Any] = {"delta": 1e-5, "clipping": 1.0, "adjacency": "add-remove", "unit": "row"}
FULL = Plan.with_noise(noise_multiplier=4.0, steps=30, records=5000, **COMMON)
SAMPLED = Plan.with_noise(noise_multiplier=1.0, steps=200, records=10_000, batch_size=1000, **COMMON)
WIDTH, CANARIES, POWER_CANARIES = 32, 1000, 2000
LEVEL, TOO_LITTLE = 0.01, 1.25


def main() -> int:
    """Run all checks, and write the results after each run; return 1 if an assumption of the tests fails."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=10, help="with too little noise; twice as many without")
    options.add_argument("--out", type=Path, default=results.FOLDER / "slots.json")
    given = options.parse_args()
    rng = np.random.default_rng()
    tight: list[dict[str, float]] = []
    power: dict[float, list[bool]] = {1.0: [], TOO_LITTLE: []}
    for _ in range(given.runs):
        tight.append(tightness(rng))
        for factor in (1.0, TOO_LITTLE, 1.0):
            power[factor].append(rejected(factor, rng))
        results.write(given.out, "slots", _content(tight, power))
    proven = statistics.mean(row["claim test"] for row in tight)
    counts = {factor: f"{sum(found)} of {len(found)}" for factor, found in power.items()}
    print(f"claimed {FULL.epsilon:.2f}, proven {proven:.2f} on average; rejected: {counts}")  # noqa: T201
    false, right = sum(power[1.0]), sum(power[TOO_LITTLE])
    return int(proven < 5.0 or false > 2 * LEVEL * given.runs or right < 0.9 * given.runs)


def _content(tight: list[dict[str, float]], power: dict[float, list[bool]]) -> dict[str, Any]:
    return {
        "setting": {"canaries": CANARIES, "canaries of the power": POWER_CANARIES, "level": LEVEL},
        "claimed": {"full batch": FULL.epsilon, "sampled": SAMPLED.epsilon},
        "tightness": tight,
        "power": [
            {"noise too small by": factor, "rejected": sum(found), "runs": len(found)}
            for factor, found in power.items()
        ],
    }


def tightness(rng: np.random.Generator) -> dict[str, float]:
    """Return the epsilon that each method proves with 95 % confidence, and the seconds."""
    start = time.perf_counter()
    plan = plan_with_room(FULL, CANARIES)
    found = audit_slots(rehearse_plan(plan, CANARIES), plan, confidence=0.95, rng=rng)
    seconds = time.perf_counter() - start
    return {
        "claim test": found.claim.eps_lower,
        "claim test, any mechanism": found.claim.eps_lower_any,
        "one run": found.one_run.eps_lower,
        "one run, trade-off curve": found.one_run_by_tradeoff.eps_lower,
        "black box, one run": black_box(rng),
        "seconds": seconds,
    }


def black_box(rng: np.random.Generator) -> float:
    """Return the epsilon that an audit proves from the final losses of mislabelled canaries."""
    x = torch.from_numpy(rng.standard_normal((FULL.records + CANARIES, WIDTH))).float()
    y = (x[:, 0] > 0).long()
    y[:CANARIES] = 1 - y[:CANARIES]
    coins = rng.random(CANARIES) < 0.5
    kept = torch.from_numpy(np.concatenate([coins, np.ones(FULL.records, dtype=np.bool_)]))
    net = nn.Sequential(nn.Linear(WIDTH, 128), nn.Tanh(), nn.Linear(128, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=2.0)
    run = PrivateSession(net, optimizer, (x[kept], y[kept]), FULL, loss=losses, physical_batch_size=4096)
    for batch in run.batches():
        run.step(batch)
    with torch.no_grad():
        scores = -losses(net, x[:CANARIES], y[:CANARIES]).double().numpy()
    return audit_one_run(scores, coins, delta=FULL.delta, confidence=0.95, rng=rng).eps_lower


def rejected(factor: float, rng: np.random.Generator) -> bool:
    """Return whether the claim is rejected at level 0.01 if the noise is too small by ``factor``."""

    def too_small(*address: Any, std: float, **more: Any) -> StepNoise:
        return StepNoise(*address, std=std / factor, **more)

    with mock.patch.object(replicas, "StepNoise", too_small):
        evidence = rehearse_plan(SAMPLED, POWER_CANARIES)
    return bool(audit_slots(evidence, SAMPLED, confidence=1.0 - LEVEL, rng=rng).claim.claim_rejected)


def losses(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each row."""
    return F.cross_entropy(model(inputs), targets, reduction="none")


if __name__ == "__main__":
    sys.exit(main())
