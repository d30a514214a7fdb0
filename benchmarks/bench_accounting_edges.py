"""Times of the accountant on extreme settings, with a limit for each: part of ``make bench-accounting``.

The settings are few steps with rare sampling, large epsilons, tiny deltas, replaced records, people with
several rows, and cut batches.  Times are medians of five rounds, also of dp_accounting.  Each round uses a
setting that differs in the seventh digit, so that no library can return a cached answer.  A row above its
limit fails the run.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from machine import machine, versions
from rich.console import Console
from rich.table import Table

from tacit.accounting import account, calibrate
from tacit.errors import TacitError
from tacit.events import (
    Event,
    ExponentialMechanism,
    Gaussian,
    GroupPrivacy,
    PoissonSampled,
    Repeat,
    TruncatedPoissonSampled,
)
from tacit.integrations.dp_accounting import to_dp_accounting

ROUNDS, PEER_SECONDS = 5, 120
AR, RO = "add-remove", "replace-one"


@dataclass(frozen=True)
class Row:
    """A call, the most seconds that it may take, and the same call of dp_accounting."""

    call: str
    limit: float
    seconds: float
    answer: float
    peer_seconds: float | None
    peer_answer: float | None


def sampled(q: float, sigma: float, steps: int) -> Event:
    """Return the event of DP-SGD."""
    return Repeat(PoissonSampled(q, Gaussian(sigma)), steps)


def cut(largest: int, sigma: float) -> Event:
    """Return the event of DP-SGD on 60,000 records with batches cut at ``largest``."""
    return Repeat(TruncatedPoissonSampled(0.01, 60_000, largest, Gaussian(sigma)), 10_000)


Family = Callable[[float], Event]
EPSILONS: list[tuple[str, float, Family, float, str, str]] = [
    ("(1e-4, 0.5, 100)", 0.5, lambda s: sampled(1e-4, 0.5 * s, 100), 1e-5, AR, "pld"),
    ("(1e-3, 0.2, 10)", 0.5, lambda s: sampled(1e-3, 0.2 * s, 10), 1e-5, AR, "pld"),
    ("(0.0042, 0.385, 5)", 0.5, lambda s: sampled(0.0042, 0.385 * s, 5), 1e-5, AR, "pld"),
    ("(0.2, 1, 10)", 0.5, lambda s: sampled(0.2, s, 10), 1e-5, AR, "pld"),
    ("(0.2, 0.3, 10)", 0.5, lambda s: sampled(0.2, 0.3 * s, 10), 1e-5, AR, "pld"),
    ("(0.01, 5, 100) at 1e-300", 1.0, lambda s: sampled(0.01, 5.0 * s, 100), 1e-300, AR, "best"),
    ("eight rows of a person", 1.0, lambda s: GroupPrivacy(sampled(0.01, s, 1000), 8), 1e-5, AR, "pld"),
    ("cut at 800", 0.1, lambda s: cut(800, 4.0 * s), 1e-5, AR, "pld"),
    ("cut at 660", 2.0, lambda s: cut(660, 4.0 * s), 1e-5, AR, "pld"),
    ("choices", 1.0, lambda s: Repeat(ExponentialMechanism(0.1 * s), 100), 1e-6, AR, "best"),
]
NOISES: list[tuple[str, float, Family, float, str]] = [
    ("3 steps at 1e-3, epsilon 3", 1.0, lambda s: sampled(1e-3, s, 3), 3.0, AR),
    ("10 steps at 1e-3, epsilon 3", 1.0, lambda s: sampled(1e-3, s, 10), 3.0, AR),
    ("replaced, epsilon 8", 0.5, lambda s: sampled(256 / 60_000, s, 14_062), 8.0, RO),
    ("replaced, epsilon 50", 0.5, lambda s: sampled(256 / 60_000, s, 14_062), 50.0, RO),
    ("epsilon 50", 0.5, lambda s: sampled(256 / 50_000, s, 585), 50.0, AR),
    ("cut at 700, epsilon 2", 2.0, lambda s: cut(700, s), 2.0, AR),
]


def _slowly(call: Callable[[float], float]) -> tuple[float, float]:
    """Return the median seconds and the last answer of some rounds."""
    seconds, answer = [], 0.0
    for round_ in range(ROUNDS):
        begun = time.perf_counter()
        answer = call(1.0 + 1e-7 * (round_ + 1))
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds), answer


def _peer(call: Callable[[], float]) -> tuple[float | None, float | None]:
    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(PEER_SECONDS)
    begun = time.perf_counter()
    try:
        answer = call()
    except TimeoutError:
        return float(PEER_SECONDS), None
    except (TacitError, ValueError, NotImplementedError, ArithmeticError):
        return None, None
    finally:
        signal.alarm(0)
    return time.perf_counter() - begun, answer


def _google(adjacency: str) -> Any:
    import dp_accounting as dp
    from dp_accounting import pld

    relations = dp.NeighboringRelation
    return pld.PLDAccountant(relations.ADD_OR_REMOVE_ONE if adjacency == AR else relations.REPLACE_ONE)


def _google_epsilon(event: Event, delta: float, adjacency: str) -> float:
    accountant = _google(adjacency)
    accountant.compose(to_dp_accounting(event))
    return float(accountant.get_epsilon(delta))


def _google_noise(family: Family, epsilon: float, adjacency: str) -> float:
    import dp_accounting as dp

    return float(
        dp.calibrate_dp_mechanism(
            lambda: _google(adjacency), lambda s: to_dp_accounting(family(s)), epsilon, 1e-5,
            dp.ExplicitBracketInterval(0.15, 20.0), tol=1e-3,
        )
    )  # fmt: skip


def rows(*, peers: bool) -> list[Row]:
    """Return all rows; with ``peers`` they include dp_accounting's calls."""
    found = []
    for name, limit, family, delta, adjacency, method in EPSILONS:

        def epsilon(s: float, family=family, delta=delta, adjacency=adjacency, method=method) -> float:  # type: ignore[no-untyped-def]
            return account(family(s), adjacency=adjacency, method=method).epsilon(delta)

        def theirs(family=family, delta=delta, adjacency=adjacency) -> float:  # type: ignore[no-untyped-def]
            return _google_epsilon(family(1.0), delta, adjacency)

        found.append(
            Row(f"epsilon, {name}", limit, *_slowly(epsilon), *(_peer(theirs) if peers else (None, None)))
        )
    for name, limit, family, target, adjacency in NOISES:

        def noise(s: float, family=family, target=target, adjacency=adjacency) -> float:  # type: ignore[no-untyped-def]
            return calibrate(family, epsilon=target * s, delta=1e-5, adjacency=adjacency)

        def their_noise(family=family, target=target, adjacency=adjacency) -> float:  # type: ignore[no-untyped-def]
            return _google_noise(family, target, adjacency)

        found.append(
            Row(f"noise, {name}", limit, *_slowly(noise), *(_peer(their_noise) if peers else (None, None)))
        )
    return found


def main() -> int:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--alone", action="store_true", help="without dp_accounting")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found = rows(peers=not options.alone)
    table = Table("call", "limit, s", "s", "answer", "dp_accounting, s", "its answer")
    for row in found:
        peer = ["-" if figure is None else f"{figure:.4g}" for figure in (row.peer_seconds, row.peer_answer)]
        table.add_row(row.call, f"{row.limit:g}", f"{row.seconds:.3f}", f"{row.answer:.6g}", *peer)
    Console(width=130).print(table)
    data = {
        "benchmark": "edges of the accountant", "date": date.today().isoformat(), "machine": machine(),
        "versions": versions() | {"dp-accounting": metadata.version("dp-accounting")},
        "rows": [asdict(row) for row in found],
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "accounting_edges.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return int(any(row.seconds > row.limit for row in found))


if __name__ == "__main__":
    sys.exit(main())
