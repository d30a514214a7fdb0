"""Random nested events against other accountants and Monte Carlo: a bounded run is a test.

A long run by hand: ``make fuzz-accounting`` writes what it finds, and the slowest.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import machine, versions
from tacit.accounting import account
from tacit.accounting.flatten import flatten
from tacit.errors import TacitError, UnsupportedEvent
from tacit.events import (
    ApproximateDP,
    BallsInBins,
    Compose,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    GroupPrivacy,
    Laplace,
    MatrixFactorization,
    Partitioned,
    PoissonSampled,
    PrivateSelection,
    RandomizedResponse,
    Repeat,
    Shuffled,
    ShuffledReports,
    SparseVector,
    TreeAggregation,
    TruncatedPoissonSampled,
    WithoutReplacement,
    WithReplacement,
    ZeroConcentratedDP,
)

SECONDS = 5.0
PEER_SECONDS = 20
_DRAWS = 200_000


@dataclass(frozen=True)
class Finding:
    """The settings and results of one event."""

    event: Event
    adjacency: str
    delta: float
    seconds: float
    lower: float
    upper: float
    road: str
    peer: float | None
    wrong: str


def _log(random_: random.Random, low: float, high: float) -> float:
    return math.exp(random_.uniform(math.log(low), math.log(high)))


def _noise(r: random.Random) -> Event:
    kinds = (
        lambda: Gaussian(_log(r, 0.1, 100.0)),
        lambda: Gaussian(_log(r, 0.5, 5.0)),
        lambda: Laplace(_log(r, 0.1, 50.0)),
        lambda: DiscreteGaussian(_log(r, 0.3, 30.0), r.choice([1, 1, 2, 5])),
        lambda: DiscreteLaplace(_log(r, 0.3, 30.0), r.choice([1, 1, 3])),
    )
    return r.choice(kinds)()


def _alone(r: random.Random) -> Event:
    kinds = (
        lambda: RandomizedResponse(r.uniform(0.05, 0.95), r.choice([2, 3, 10])),
        lambda: ShuffledReports(round(_log(r, 1.0, 1e6)), _log(r, 0.01, 8.0), r.choice([None, 2, 10])),
        lambda: ApproximateDP(_log(r, 1e-3, 3.0), r.choice([0.0, _log(r, 1e-12, 1e-4)])),
        lambda: ZeroConcentratedDP(_log(r, 1e-5, 1.0)),
        lambda: ExponentialMechanism(_log(r, 1e-3, 3.0)),
        lambda: SparseVector(_log(r, 0.01, 1.0), _log(r, 0.01, 1.0), r.choice([1, 5]), r.random() < 0.5),
        lambda: TreeAggregation(_log(r, 0.5, 50.0), r.choice([1, 7, 100])),
        lambda: MatrixFactorization(_log(r, 0.5, 50.0), (1.0, 0.5, 0.25), r.choice([3, 50])),
        lambda: GaussianMixture(_log(r, 0.3, 10.0), (0.0, 1.0, 2.5), (0.9, 0.07, 0.03)),
    )
    return r.choice(kinds)()


def _sampled(r: random.Random) -> Event:
    q, records = r.choice([_log(r, 1e-6, 0.9), _log(r, 1e-3, 0.2), 0.9999]), r.choice([100, 5000, 10**6])
    batch = max(1, round(records * min(q, 0.5)))
    gaussian, more = Gaussian(_log(r, 0.1, 20.0)), r.uniform(0.8, 1.5)
    kinds = (
        lambda: PoissonSampled(q, gaussian),
        lambda: PoissonSampled(q, gaussian),
        lambda: PoissonSampled(q, _noise(r)),
        lambda: GroupPrivacy(PoissonSampled(q, gaussian), r.choice([2, 8, 20])),
        lambda: WithoutReplacement(records, batch, _noise(r)),
        lambda: WithReplacement(records, batch, _noise(r)),
        lambda: TruncatedPoissonSampled(q, records, max(1, round(records * q * more)), gaussian),
        lambda: BallsInBins(r.choice([2, 30, 300]), Gaussian(_log(r, 0.9, 10.0))),
        lambda: Partitioned(r.choice([2, 10]), _noise(r)),
        lambda: Shuffled(r.choice([2, 10]), _noise(r)),
    )
    return r.choice(kinds)()


def random_event(r: random.Random, depth: int = 0) -> Event:
    """An event of any kind, nested up to three deep; counts from 1 to 1e5."""
    simple = r.choice((_noise, _alone, _sampled, _sampled))
    nested = r.choice((_repeated, _repeated, _composed, _selected))
    return nested(r, depth) if depth < 3 and r.random() < 0.5 else simple(r)


def _repeated(r: random.Random, depth: int) -> Event:
    return Repeat(random_event(r, depth + 1), r.choice([1, 2, 3, 10, round(_log(r, 1.0, 1e5))]))


def _composed(r: random.Random, depth: int) -> Event:
    return Compose(tuple(random_event(r, depth + 1) for _ in range(r.choice([1, 2, 3]))))


def _selected(r: random.Random, depth: int) -> Event:
    inner = random_event(r, depth + 2)
    mean = 1.0 + _log(r, 0.1, 100.0)
    if r.random() < 0.5:
        return PrivateSelection(inner, distribution="poisson", mean=mean)
    return PrivateSelection(inner, distribution="negative-binomial", mean=mean, shape=r.choice([0.0, 1.0]))


@contextmanager
def _limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _peer(event: Event, delta: float) -> float | None:
    """dp_accounting's PLD, or its RDP; None where it has none or takes too long."""
    from dp_accounting import pld, rdp

    from tacit.integrations.dp_accounting import to_dp_accounting

    best = math.inf
    for accountant in (pld.PLDAccountant, rdp.RdpAccountant):
        try:
            with _limit(PEER_SECONDS):
                made: Any = accountant()
                made.compose(to_dp_accounting(event))
                best = min(best, float(made.get_epsilon(delta)))
        except (TacitError, TimeoutError, NotImplementedError, ValueError, ArithmeticError, MemoryError):
            continue
        except Exception as problem:  # UnsupportedEventError of their own module
            if "Unsupported" not in type(problem).__name__:
                raise
    return best if best < math.inf else None


def _monte_carlo(event: Event, epsilon: float) -> tuple[float, float] | None:
    """delta and its standard error for a record removed, from samples of up to three losses."""
    steps = flatten(event)
    if sum(count for _, count in steps) > 3:
        return None
    rng, loss = np.random.default_rng(1), np.zeros(_DRAWS)
    for base, count in steps:
        for _ in range(count):
            match base:
                case Gaussian(sigma):
                    q = 1.0
                case PoissonSampled(q, Gaussian(sigma)):
                    pass
                case _:
                    return None
            x = rng.normal(0.0, sigma, _DRAWS) + (rng.random(_DRAWS) < q)
            y = (2.0 * x - 1.0) / (2.0 * sigma**2)
            loss += y if q == 1.0 else np.logaddexp(math.log1p(-q), math.log(q) + y)
    gains = -np.expm1(np.minimum(epsilon - loss, 0.0))
    return float(gains.mean()), float(gains.std()) / math.sqrt(_DRAWS)


def check(event: Event, adjacency: str, delta: float, *, peers: bool) -> Finding | None:
    """Price one event every way; None where all accountants refuse it, by name."""
    begun = time.process_time()
    try:
        curve = account(event, adjacency=adjacency, method="best")
        lower, upper = curve.epsilon_bounds(delta)
        road = curve.best_method(delta)
    except UnsupportedEvent:
        return None
    seconds, wrong = time.process_time() - begun, []
    if not 0.0 <= lower <= upper:
        wrong.append(f"bracket {lower} {upper}")
    for method in ("pld", "rdp", "optimal"):
        try:
            least, most = account(event, adjacency=adjacency, method=method).epsilon_bounds(delta)
        except UnsupportedEvent:
            continue
        digits = 2e-6 if method != "optimal" or road != "pld" else 1e-3  # it is not asked where pld answers
        if upper > most * (1 + digits) + 1e-12:
            wrong.append(f"{method} proves {most}")
        if lower > most * (1 + 1e-9) + 1e-12 or (method != "pld" and least > upper * (1 + 1e-9) + 1e-12):
            wrong.append(f"{method} contradicts: {least} {most}")
    peer = _peer(event, delta) if peers and adjacency == "add-remove" else None
    if peer is not None and upper > 1.02 * peer + 1e-6 and peer >= lower:
        wrong.append(f"dp_accounting says {peer}")
    if adjacency == "add-remove" and math.isfinite(upper):
        drawn = _monte_carlo(event, upper)
        if drawn is not None and drawn[0] - 6.0 * drawn[1] > delta:
            wrong.append(f"Monte Carlo says {drawn}")
    return Finding(event, adjacency, delta, seconds, lower, upper, road, peer, "; ".join(wrong))


def random_setting(r: random.Random) -> tuple[Event, str, float]:
    """An event, an adjacency and a delta."""
    adjacency = r.choice(["add-remove", "add-remove", "replace-one", "zero-out"])
    return random_event(r), adjacency, r.choice([1e-5, 1e-5, 10.0 ** r.uniform(-14.0, -1.0), 1e-100])


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass
class _Run:
    """The findings of a long run so far."""

    findings: list[Finding] = field(default_factory=list)
    refused: int = 0
    raised: int = 0
    against_peers: int = 0

    def add(self, index: int, seed: int) -> None:
        event, adjacency, delta = random_setting(random.Random(f"{seed} {index}"))
        try:
            with _limit(180):
                found = check(event, adjacency, delta, peers=index % 4 == 0)
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is to be seen
            _say(f"RAISED {type(problem).__name__}: {problem}\n  {event!r} {adjacency} {delta}")
            self.raised += 1
            return
        if found is None:
            self.refused += 1
            return
        self.findings.append(found)
        self.against_peers += found.peer is not None
        if found.wrong or found.seconds > SECONDS:
            _say(f"{found.seconds:.1f} s {found.wrong}\n  {event!r} {adjacency} {delta}")

    def as_data(self, seed: int, done: int) -> dict[str, Any]:
        times = sorted(finding.seconds for finding in self.findings)
        slowest = sorted(self.findings, key=lambda finding: -finding.seconds)[:20]
        return {
            "benchmark": "fuzz of the accountant", "date": date.today().isoformat(), "machine": machine(),
            "versions": versions() | {"dp-accounting": metadata.version("dp-accounting")},
            "seed": seed, "events": done, "refused": self.refused, "raised": self.raised,
            "wrong": sum(bool(finding.wrong) for finding in self.findings),
            "beside_dp_accounting": self.against_peers,
            "seconds": {f"{x:g}": times[int(x * (len(times) - 1))] for x in (0.5, 0.9, 0.99, 1.0)},
            "slowest": [
                {
                    "seconds": finding.seconds, "event": repr(finding.event), "adjacency": finding.adjacency,
                    "delta": finding.delta, "epsilon": finding.upper, "road": finding.road,
                }
                for finding in slowest
            ],
        }  # fmt: skip


def main() -> None:
    """Check ``events`` events from a seed, and write the findings every 25 events."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("events", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/accounting_fuzz.json"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    run = _Run()
    for index in range(options.events):
        run.add(index, options.seed)
        if (index + 1) % 25 == 0 or index + 1 == options.events:
            data = run.as_data(options.seed, index + 1)
            options.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
            _say(f"{index + 1} events, {run.refused} refused, {run.raised} raised, {data['wrong']} wrong")


if __name__ == "__main__":
    main()
