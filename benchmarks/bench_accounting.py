"""A comparison of accountants at q = 0.01, T = 10,000, delta = 1e-5: ``make bench-accounting``.

The three tasks are epsilon (Tacit also computes a lower bound), the noise for a target epsilon, and epsilon
after each step of a run.  All libraries run in one process, warmed up, and take turns in rounds.  Each round
uses a setting that differs in the seventh digit, so that no library can return a cached answer.  The table
shows medians and quartiles of CPU times, and the relative errors of the answers.  The true values come from
inversion with 19 digits (``tests/accounting/oracle_inversion.py``).

Opake's accountant needs Python 3.12 or newer.  It runs in a worker (``opake_accountant.py``) of the
interpreter that the environment variable TACIT_OPAKE names, and takes turns with the others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from alternate import Worker
from machine import machine, versions
from rich.console import Console
from rich.table import Table

from tacit.accounting import account, calibrate, epsilon_schedule
from tacit.events import Event, Gaussian, PoissonSampled, Repeat

Q, T, DELTA = 0.01, 10_000, 1e-5
EPSILON = {1.0: 6.187712389971539199, 4.0: 0.9468668007643804649}  # the true epsilon, by sigma
SIGMA = {8.0: 0.8825284902764448, 2.0: 2.1273754347141445, 0.5: 7.083521808530993}  # true sigma by epsilon
STEPS = 12  # numbers of steps at which other libraries compute epsilon along a run
SECONDS = 40.0  # the time after which a library skips the remaining rounds of a task

ELSEWHERE = {"seconds": 0.0}  # CPU time of the worker
Answer = tuple[float | None, float]  # the lower bound, if there is one, and the answer


def clock() -> float:
    """Return the CPU time of this process and the worker, which other work on the machine hardly changes."""
    return time.process_time() + ELSEWHERE["seconds"]


def ours(sigma: float, steps: int = T) -> Event:
    """Return the run as an event."""
    return Repeat(PoissonSampled(Q, Gaussian(sigma)), steps)


def google_event(sigma: float, steps: int = T) -> Any:
    """Return the run as an event of dp_accounting."""
    import dp_accounting as dp

    return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(Q, dp.GaussianDpEvent(sigma)), steps)


def google_accountant(kind: str) -> Any:
    """Return an accountant of dp_accounting with its defaults."""
    from dp_accounting import pld, rdp

    return pld.PLDAccountant() if kind == "pld" else rdp.RdpAccountant()


def prv(sigma: float) -> Any:
    """Return prv_accountant's accountant with its default error of 0.1 in epsilon."""
    from prv_accountant.dpsgd import DPSGDAccountant

    return DPSGDAccountant(
        noise_multiplier=sigma, sampling_probability=Q, max_steps=T, eps_error=0.1, delta_error=1e-9
    )


def opacus(sigma: float, steps: int, kind: str) -> float:
    """Return Opacus' epsilon, for a history that stores equal steps as one entry."""
    from opacus.accountants import create_accountant

    accountant = create_accountant(kind)
    accountant.history = [(sigma, Q, steps)]
    return float(accountant.get_epsilon(delta=DELTA))


def autodp(sigma: float, steps: int) -> Any:
    """Return autodp's Poisson-sampled Gaussian."""
    from autodp.mechanism_zoo import SubsampleGaussianMechanism

    return SubsampleGaussianMechanism({"prob": Q, "sigma": sigma, "coeff": steps})


# --- (a) epsilon -----------------------------------------------------------------------------------------


def _tacit_epsilon(sigma: float) -> Answer:
    return account(ours(sigma), adjacency="add-remove").epsilon_bounds(DELTA)


def _prv_epsilon(sigma: float) -> Answer:
    low, _, high = prv(sigma).compute_epsilon(delta=DELTA, num_steps=T)
    return float(low), float(high)


def _google_epsilon(kind: str) -> Callable[[float], Answer]:
    return lambda sigma: (
        None,
        float(google_accountant(kind).compose(google_event(sigma)).get_epsilon(DELTA)),
    )


EPSILONS: dict[str, Callable[[float], Answer]] = {
    "Tacit": _tacit_epsilon,
    "dp_accounting PLD": _google_epsilon("pld"),
    "dp_accounting RDP": _google_epsilon("rdp"),
    "prv_accountant": _prv_epsilon,
    "Opacus RDP": lambda sigma: (None, opacus(sigma, T, "rdp")),
    "Opacus PRV": lambda sigma: (None, opacus(sigma, T, "prv")),
    "autodp RDP": lambda sigma: (None, float(autodp(sigma, T).get_approxDP(DELTA))),
}

# --- (b) the noise for a target --------------------------------------------------------------------------


def _google_calibrate(kind: str) -> Callable[[float], Answer]:
    def solve(target: float) -> Answer:
        import dp_accounting as dp

        bracket = dp.ExplicitBracketInterval(0.3, 20.0)
        return None, float(
            dp.calibrate_dp_mechanism(
                lambda: google_accountant(kind), google_event, target, DELTA, bracket, tol=1e-3
            )
        )

    return solve


def _opacus_calibrate(kind: str) -> Callable[[float], Answer]:
    def solve(target: float) -> Answer:
        from opacus.accountants.utils import get_noise_multiplier

        return None, float(
            get_noise_multiplier(
                target_epsilon=target, target_delta=DELTA, sample_rate=Q, steps=T, accountant=kind
            )
        )

    return solve


def _prv_calibrate(target: float) -> Answer:
    from prv_accountant.dpsgd import find_noise_multiplier

    return None, float(
        find_noise_multiplier(
            sampling_probability=Q, num_steps=T, target_epsilon=target, target_delta=DELTA, eps_error=0.1
        )
    )


def _autodp_calibrate(target: float) -> Answer:
    from autodp.calibrator_zoo import eps_delta_calibrator

    def build(sigma: float) -> Any:
        return autodp(float(sigma), T)

    found = eps_delta_calibrator().calibrate(build, target, DELTA, (0.3, 20.0))
    return None, float(found.params["sigma"])


CALIBRATIONS: dict[str, Callable[[float], Answer]] = {
    "Tacit": lambda target: (
        None,
        calibrate(ours, epsilon=target, delta=DELTA, adjacency="add-remove"),
    ),
    "dp_accounting PLD": _google_calibrate("pld"),
    "dp_accounting RDP": _google_calibrate("rdp"),
    "prv_accountant": _prv_calibrate,
    "Opacus RDP": _opacus_calibrate("rdp"),
    "Opacus PRV": _opacus_calibrate("prv"),
    "autodp RDP": _autodp_calibrate,
}

# --- (c) epsilon along a run -----------------------------------------------------------------------------


def _each(query: Callable[[float], Callable[[int], float]]) -> Callable[[float], tuple[float, Answer]]:
    """Time queries at several steps of a run; return seconds per query, and the last answer."""

    def run(sigma: float) -> tuple[float, Answer]:
        start = clock()
        epsilon = query(sigma)
        answers = [epsilon(round(T * (k + 1) / STEPS)) for k in range(STEPS)]
        return (clock() - start) / STEPS, (None, answers[-1])

    return run


def _tacit_loop(sigma: float) -> tuple[float, Answer]:
    """Time the epsilon after each of 10,000 steps."""
    start = clock()
    schedule = epsilon_schedule(
        lambda steps: ours(sigma, steps), range(1, T + 1), delta=DELTA, adjacency="add-remove"
    )
    return (clock() - start) / T, (None, schedule[-1])


def _google_loop(kind: str) -> Callable[[float], Callable[[int], float]]:
    return lambda sigma: (
        lambda steps: float(google_accountant(kind).compose(google_event(sigma, steps)).get_epsilon(DELTA))
    )


def _prv_loop(sigma: float) -> Callable[[int], float]:
    accountant = prv(sigma)
    return lambda steps: float(accountant.compute_epsilon(delta=DELTA, num_steps=steps)[2])


LOOPS: dict[str, Callable[[float], tuple[float, Answer]]] = {
    "Tacit": _tacit_loop,
    "dp_accounting PLD": _each(_google_loop("pld")),
    "dp_accounting RDP": _each(_google_loop("rdp")),
    "prv_accountant": _each(_prv_loop),
    "Opacus RDP": _each(lambda sigma: lambda steps: opacus(sigma, steps, "rdp")),
    "Opacus PRV": _each(lambda sigma: lambda steps: opacus(sigma, steps, "prv")),
    "autodp RDP": _each(lambda sigma: lambda steps: float(autodp(sigma, steps).get_approxDP(DELTA))),
}


def add_opake(worker: Worker) -> None:
    """Add Opake's accountant to all tasks."""
    run: dict[str, Any] = {"rate": Q, "delta": DELTA}

    def asked(what: str, **how: float) -> float:
        found = worker.ask(what, **how, **run)
        ELSEWHERE["seconds"] += found["seconds"]
        return float(found["answer"])

    def epsilon(sigma: float, steps: int = T) -> float:
        return asked("epsilon", sigma=sigma, steps=steps)

    EPSILONS["Opake PLD"] = lambda sigma: (None, epsilon(sigma))
    CALIBRATIONS["Opake PLD"] = lambda target: (
        None,
        asked("noise", target=target, steps=T),
    )
    LOOPS["Opake PLD"] = _each(lambda sigma: lambda steps: epsilon(sigma, steps))


def timed(function: Callable[[float], Answer]) -> Callable[[float], tuple[float, Answer]]:
    """Return a function that also returns the seconds of a call."""

    def run(value: float) -> tuple[float, Answer]:
        start = clock()
        answer = function(value)
        return clock() - start, answer

    return run


@dataclass(frozen=True)
class Timing:
    """Milliseconds (median and quartiles), the answer for the exact setting, and its relative error.

    ``lower_error`` is the relative error of the lower bound, if the library computes one.  ``failure`` is the
    error of a library that did not answer.
    """

    task: str
    contestant: str
    milliseconds: float | None
    low: float | None
    high: float | None
    rounds: int
    answer: float | None
    error: float | None
    lower_error: float | None
    failure: str | None = None


def measure(
    task: str,
    contestants: dict[str, Callable[[float], tuple[float, Answer]]],
    value: float,
    truth: float,
    rounds: int,
) -> Iterator[Timing]:
    """Time all libraries on one task, in turns; round 0 warms up and uses the exact setting."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    answers: dict[str, Answer] = {}
    failures: dict[str, str] = {}
    for number in range(rounds + 1):
        for name, contestant in contestants.items():
            if name in failures or (number > 1 and sum(times[name]) > SECONDS):
                continue
            try:
                seconds, answer = contestant(value * (1.0 + 1e-7 * number))
            except Exception as problem:  # any exception of another library is its result
                if name == "Tacit":
                    raise
                failures[name] = f"{type(problem).__name__}: {problem}"[:100]
                continue
            if number == 0:
                answers[name] = answer
            else:
                times[name].append(seconds)
        Console(stderr=True).print(f"{task}: round {number} of {rounds}", end="\r")
    for name, values in times.items():
        if name in failures:
            yield Timing(task, name, None, None, None, 0, None, None, None, failures[name])
            continue
        low, middle, high = statistics.quantiles(values * 2 if len(values) == 1 else values, n=4)
        lower, answer_value = answers[name]
        yield Timing(
            task, name, 1e3 * middle, 1e3 * low, 1e3 * high, len(values), answer_value,
            answer_value / truth - 1.0, None if lower is None else lower / truth - 1.0,
        )  # fmt: skip


def _all(rounds: int) -> Iterator[Timing]:
    for sigma, truth in EPSILON.items():
        yield from measure(
            f"epsilon, sigma = {sigma:g}", {n: timed(f) for n, f in EPSILONS.items()}, sigma, truth, rounds
        )
    for target, truth in SIGMA.items():
        yield from measure(
            f"noise for epsilon = {target:g}",
            {n: timed(f) for n, f in CALIBRATIONS.items()},
            target,
            truth,
            max(1, rounds // 3),
        )
    for sigma, truth in EPSILON.items():
        yield from measure(f"epsilon per step, sigma = {sigma:g}", LOOPS, sigma, truth, max(1, rounds // 3))


def main() -> int:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    more = {}
    if (python := os.environ.get("TACIT_OPAKE")) is None:
        timings = list(_all(options.rounds))
    else:
        with Worker("Opake", Path(__file__).with_name("opake_accountant.py"), [], {}, python) as worker:
            more["opake"] = worker.ask("ready")["version"]
            add_opake(worker)
            timings = list(_all(options.rounds))
    table = Table("task", "accountant", "ms", "quartiles", "answer", "error")
    for t in timings:
        if t.failure is not None:
            table.add_row(t.task, t.contestant, "-", "-", "-", t.failure)
            continue
        table.add_row(
            t.task, t.contestant, f"{t.milliseconds:.3g}", f"{t.low:.3g}-{t.high:.3g}",
            f"{t.answer:.7g}", f"{t.error:+.1e}",
        )  # fmt: skip
    Console().print(table)
    packages = ("dp-accounting", "prv-accountant", "opacus", "autodp")
    data = {
        "benchmark": "accountants", "date": date.today().isoformat(), "machine": machine(),
        "versions": versions() | {name: metadata.version(name) for name in packages} | more,
        "setting": {"sampling_rate": Q, "steps": T, "delta": DELTA, "adjacency": "add-remove"},
        "timings": [asdict(t) for t in timings],
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "accounting.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
