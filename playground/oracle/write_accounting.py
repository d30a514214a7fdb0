"""Which epsilons must the page show?  Writes tests/expected/accounting.json by ``tacit.account``.

Run it with ``make playground-expected``.
The settings fill the range that the page answers in (a low-discrepancy sequence) and sit on its corners.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np

from tacit.accounting import PrivacyCurve, account
from tacit.events import Event, Gaussian, PoissonSampled, Repeat

OUT = Path(__file__).parent.parent / "tests" / "expected" / "accounting.json"
RANGE: dict[str, list[float]] = {  # what src/accounting/range.ts says, too
    "samplingRate": [0.02, 1.0],
    "noiseMultiplier": [0.5, 50.0],
    "steps": [1, 10000],
    "delta": [1e-8, 0.1],
    "epsilon": [0.005, 500.0],
}
WANTED = 600
RATES = [1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9, 0.99]
EPSILONS = [0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0]


def event(rate: float, sigma: float, steps: int) -> Event:
    """One run of the page."""
    step = Gaussian(sigma) if rate == 1.0 else PoissonSampled(rate, Gaussian(sigma))
    return Repeat(step, steps)


def curve(rate: float, sigma: float, steps: int, method: str) -> PrivacyCurve:
    return account(event(rate, sigma, steps), adjacency="add-remove", method=method)


def between(ends: list[float], share: float) -> float:
    """A point of a range on the scale of logarithms, with few digits."""
    low, high = map(math.log, ends)
    return float(f"{math.exp(low + share * (high - low)):.4g}")


def candidates() -> list[tuple[float, float, int, float]]:
    """(q, sigma, T, delta): the corners, full batches, few steps, and a sequence that fills the range."""
    ends = [RANGE[name] for name in ("samplingRate", "noiseMultiplier", "steps", "delta")]
    found = [(q, s, int(t), d) for q, s, t, d in itertools.product(*ends)]
    few = itertools.product([0.02, 0.1, 0.4, 0.95, 1.0], [0.5, 0.8, 1.5, 4.0], [1, 2, 3, 5, 8, 9, 16], [1e-3])
    found += list(few)
    root = 1.0
    for _ in range(40):
        root = (1.0 + root) ** (1.0 / 5.0)  # the generalised golden ratio in four dimensions
    for k in range(4000):
        shares = [(0.5 + (k + 1) / root ** (j + 1)) % 1.0 for j in range(4)]
        q, s, t, d = (between(e, share) for e, share in zip(ends, shares, strict=True))
        found.append((1.0 if k % 12 == 0 else q, s, max(1, round(t)), d))
    return found


def setting(q: float, s: float, t: int, d: float) -> dict[str, object] | None:
    """What four accountants say of one setting; None outside the range of epsilon."""
    pld = curve(q, s, t, "pld")
    low, high = pld.epsilon_bounds(d)
    if not RANGE["epsilon"][0] <= high <= RANGE["epsilon"][1]:
        return None
    row: dict[str, object] = {"q": q, "sigma": s, "T": t, "delta": d, "lower": low, "pld": high}
    for method in ("basic", "strong", "moments"):
        cost = curve(q, s, t, method).epsilon(d)
        row[method] = cost if math.isfinite(cost) else None
    return row


def profile(q: float, s: float, t: int) -> dict[str, object]:
    """The trade-off curve and delta as a function of epsilon, of one event."""
    pld = curve(q, s, t, "pld")
    return {
        "q": q,
        "sigma": s,
        "T": t,
        "falsePositives": RATES,
        "falseNegatives": pld.false_negative_rate(np.array(RATES)).tolist(),
        "epsilons": EPSILONS,
        "deltas": pld.delta(np.array(EPSILONS)).tolist(),
    }


def main() -> None:
    rows: list[dict[str, object]] = []
    for candidate in candidates():
        row = setting(*candidate)
        if row is not None:
            rows.append(row)
        if len(rows) == WANTED:
            break
    profiles = [
        profile(q, s, t)
        for q, s, t in [
            (0.1, 1.0, 300), (0.05, 0.7, 100), (0.2, 4.0, 1000), (1.0, 10.0, 200), (0.02, 0.5, 40),
            (0.3, 2.0, 1), (0.5, 6.0, 3), (0.08, 1.5, 2000), (0.9, 30.0, 500), (0.1, 20.0, 300),
        ]
    ]  # fmt: skip
    lines = ",\n".join(json.dumps(row) for row in rows)
    shapes = ",\n".join(json.dumps(row) for row in profiles)
    OUT.write_text(
        f'{{"range": {json.dumps(RANGE)},\n"settings": [\n{lines}\n],\n"profiles": [\n{shapes}\n]}}\n',
        encoding="utf-8",
    )
    print(f"{len(rows)} settings, {len(profiles)} profiles")  # noqa: T201


if __name__ == "__main__":
    main()
