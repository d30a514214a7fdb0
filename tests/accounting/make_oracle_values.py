"""Write oracle_values.json: epsilon of some 280 settings by oracles that share no code with Tacit.

    python tests/accounting/make_oracle_values.py            # the truth: half an hour on one core
    python tests/accounting/make_oracle_values.py --peers    # oracle_peers.json: what other libraries say

Both go on where they were stopped; delete a file to write it anew.

Truth is, in this order: the closed form at 60 digits; quadrature at 24 digits (two sampled steps); the
inversion integral at 40 digits (mpmath) where that takes seconds; else in 80-bit arithmetic along two
different lines.  ``spread`` is the relative distance between the two values of a setting: mpmath and 80 bits,
or the two lines.  A setting whose two values differ by more than 1e-9 is left out, and said so on stderr.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
from oracle_inversion import (
    Direction,
    Extended,
    Part,
    TooDear,
    closed_form,
    multi_precision,
    two_steps,
)

__all__ = ["hand_picked", "main", "peers", "random_settings", "truth"]

FILE = Path(__file__).parent / "oracle_values.json"
PEERS = Path(__file__).parent / "oracle_peers.json"
MP_WORK = 3e4  # nodes times points that mpmath does in three seconds

# q, sigma, T, delta: the published runs and hard cases of the project's notes on accounting, and extremes
SINGLE: list[tuple[float, float, int, float]] = [
    (0.01, 4.0, 10_000, 1e-5),
    (0.01, 4.0, 40_000, 1e-5),
    (0.01, 8.0, 1000, 1e-5),
    (0.01, 8.0, 10_000, 1e-5),
    (0.01, 2.0, 10_000, 1e-5),
    (0.01, 2.0, 70_000, 1e-5),
    (0.04, 6.0, 10_000, 1e-5),
    (0.0010666666666666667, 1.1, 14_062, 1e-5),
    (0.004266666666666667, 1.12, 14_062, 1e-5),
    (0.004166666666666667, 1.3, 3600, 1e-5),
    (0.08192, 3.0, 875, 1e-5),
    (0.32768, 21.1, 250, 1e-5),
    (1.0, 1.0, 1, 1e-5),
    (1.0, 1.0, 1, 1e-12),
    (1.0, 10.0, 100, 1e-5),
    (1.0, 100.0, 10_000, 1e-6),
    (1.0, 0.4, 1, 1e-5),
    (1.0, 50.0, 1_000_000, 1e-5),
    (1e-5, 1.0, 1_000_000, 1e-8),
    (1e-5, 0.6, 100_000, 1e-10),
    (1e-5, 2.0, 1_000_000, 1e-12),
    (1e-5, 0.4, 1_000_000, 1e-8),
    (1e-4, 0.6, 1_000_000, 1e-9),
    (0.001, 0.6, 100_000, 1e-6),
    (0.001, 0.4, 10_000, 1e-5),
    (0.001, 0.8, 100_000, 1e-12),
    (0.001, 1.0, 1_000_000, 1e-7),
    (0.001, 1.0, 1_000_000, 1e-12),
    (0.001, 2.0, 100_000, 1e-6),
    (0.01, 0.4, 1000, 1e-5),
    (0.01, 0.5, 1000, 1e-5),
    (0.01, 0.7, 2000, 1e-5),
    (0.01, 1.0, 1, 1e-5),
    (0.01, 1.0, 2, 1e-5),
    (0.01, 1.0, 10, 1e-5),
    (0.01, 1.0, 100, 1e-5),
    (0.01, 1.0, 1000, 1e-5),
    (0.01, 1.0, 10_000, 1e-5),
    (0.01, 1.0, 10_000, 1e-9),
    (0.01, 1.0, 10_000, 1e-10),
    (0.01, 1.0, 10_000, 1e-11),
    (0.01, 1.0, 10_000, 1e-12),
    (0.01, 1.0, 1000, 1e-12),
    (0.01, 4.0, 10_000, 1e-9),
    (0.01, 4.0, 10_000, 1e-12),
    (0.01, 4.0, 10_000, 1e-15),
    (0.01, 20.0, 1_000_000, 1e-6),
    (0.1, 0.5, 1000, 1e-5),
    (0.1, 1.0, 2, 1e-5),
    (0.1, 1.0, 100, 1e-5),
    (0.1, 5.0, 1000, 1e-5),
    (0.2, 1.0, 10, 1e-5),
    (0.3, 0.8, 2, 1e-3),
    (0.5, 2.0, 50, 1e-5),
    (0.5, 100.0, 10_000, 1e-6),
    (0.5, 100.0, 1_000_000, 1e-6),
    (0.9, 3.0, 100, 1e-6),
    (0.999, 0.5, 10, 1e-3),
    (0.9999999, 2.0, 100, 1e-8),
    (1 / 3000, 4.0, 10_000, 1.13e-18),
    (1e-7, 0.3, 1, 1e-9),
    (1e-7, 0.3, 1, 1e-15),
    (1e-6, 0.5, 1, 1e-8),
    (1e-4, 100.0, 1_000_000, 1e-2),
    (1e-4, 1.0, 1_000_000, 1e-15),
    (1e-3, 100.0, 1_000_000, 1e-6),
    (0.02, 0.3, 500, 1e-4),
    (0.05, 0.3, 1_000_000, 1e-15),
    (0.25, 0.7, 3000, 1e-2),
]
SCHEDULE = [(round(0.005 * k, 3), 0.8 + 0.2 * k, 500) for k in range(1, 9)]
MIXED: list[tuple[list[Part], float]] = [
    ([(0.01, 1.0, 1000), (1.0, 20.0, 1)], 1e-6),
    ([(0.01, 4.0, 5000), (0.02, 3.0, 2000)], 1e-5),
    ([(0.005, 1.0, 500), (0.01, 1.2, 500), (0.02, 1.6, 500)], 1e-5),
    (SCHEDULE, 1e-5),
    ([(1e-4, 0.7, 10_000), (0.3, 10.0, 50)], 1e-7),
    ([(1.0, 5.0, 3), (0.5, 2.0, 20), (0.001, 0.6, 5000)], 1e-9),
]
REPLACED: list[tuple[float, float, int, float]] = [
    (1.0, 4.0, 1, 1e-5),
    (0.001, 0.6, 100_000, 1e-6),
    (0.1, 5.0, 1000, 1e-5),
    (0.01, 4.0, 10_000, 1e-12),
    (0.01, 4.0, 10_000, 1e-5),
    (0.01, 1.0, 1000, 1e-5),
    (0.5, 2.0, 50, 1e-6),
]

Setting = dict[str, Any]


def _setting(name: str, adjacency: str, parts: list[Part], delta: float) -> Setting:
    return {"id": name, "adjacency": adjacency, "parts": [list(part) for part in parts], "delta": delta}


def hand_picked() -> Iterator[Setting]:
    """The lists above."""
    for number, (q, sigma, count, delta) in enumerate(SINGLE):
        yield _setting(f"hand-{number:02d}", "add-remove", [(q, sigma, count)], delta)
    for number, (parts, delta) in enumerate(MIXED):
        yield _setting(f"mixed-{number:02d}", "add-remove", parts, delta)
    for number, (q, sigma, count, delta) in enumerate(REPLACED):
        yield _setting(f"replaced-{number:02d}", "replace-one", [(q, sigma, count)], delta)


def random_settings(seed: int = 20_16) -> Iterator[Setting]:
    """Endless: q in [1e-7, 1), sigma in [.3, 100], T in [1, 1e6], delta in [1e-15, 1e-2], all log-uniform."""
    rng = np.random.default_rng(seed)
    number = 0
    while True:
        count = int(rng.choice([1, 1, 1, 1, 1, 1, 2, 3]))
        parts: list[Part] = []
        for _ in range(count):
            q = (
                float(10 ** rng.uniform(-7, 0))
                if rng.random() < 0.75
                else 1 - float(10 ** rng.uniform(-5, -0.3))
            )
            q = 1.0 if rng.random() < 0.04 else q
            most = 1 if rng.random() < 0.08 else 2 if rng.random() < 0.05 else 10**6
            parts.append(
                (q, float(10 ** rng.uniform(-0.52, 2)), max(1, int(10 ** rng.uniform(0, math.log10(most)))))
            )
            if most == 2:
                parts[-1] = (*parts[-1][:2], 2)
        adjacency = "replace-one" if rng.random() < 0.12 else "add-remove"
        yield _setting(f"random-{number:04d}", adjacency, parts, float(10 ** rng.uniform(-15, -2)))
        number += 1


def _solve(parts: list[Part], way: Direction, delta: float, budget: float) -> tuple[Any, float, str]:
    """epsilon in one direction, spread, oracle."""
    if len(parts) == 1 and (parts[0][0] == 1.0 or (parts[0][2] == 1 and way == "remove")):
        return closed_form(parts[0], 2 if way == "replace" else 1, delta), 0.0, "closed form, mpmath"
    if len(parts) == 1 and parts[0][2] == 2 and way != "replace":
        return two_steps(parts[0], way, delta), 0.0, "quadrature, mpmath"
    first = Extended(parts, way, budget).solve(delta)
    if first.work < MP_WORK:
        value, name = multi_precision(parts, way, delta, first), "inversion, mpmath"
        with mp.workdps(40):
            spread = abs(value / mp.mpf(str(first.epsilon)) - 1)
    else:
        value, name = first.epsilon, "inversion, 80 bits"
        spread = abs(_on_another_line(parts, way, delta, budget) / value - 1)
    return value, float(spread), name


def _on_another_line(parts: list[Part], way: Direction, delta: float, budget: float) -> Any:
    for factor in (0.8, 0.9, 0.95, 1.1):
        try:
            return Extended(parts, way, budget).solve(delta, factor).epsilon
        except TooDear:
            continue
    raise TooDear


def truth(setting: Setting, budget: float) -> Setting | None:
    """The setting with its epsilon; None if an oracle is too dear or its two values do not agree."""
    parts: list[Part] = [tuple(part) for part in setting["parts"]]
    delta = setting["delta"]
    ways: tuple[Direction, ...] = ("replace",) if setting["adjacency"] == "replace-one" else ("remove", "add")
    found: dict[str, Any] = {}
    for way in ways:
        if way == "add" and parts[0][2] == 1 and len(parts) == 1:
            continue  # the closed form is that of the larger direction
        try:
            value, spread, name = _solve(parts, way, delta, budget)
        except (TooDear, ValueError, ZeroDivisionError):
            if way == "add" and Extended(parts, way).start(delta) < float(found["remove"]["epsilon"]):
                continue  # a bound on it is below the other direction
            return None
        text = mp.nstr(
            mp.mpf(str(value)) if isinstance(value, np.longdouble) else value, 19, strip_zeros=False
        )
        found[way] = {"epsilon": text, "spread": float(f"{spread:.1e}"), "oracle": name}
    top = max(found, key=lambda way: float(found[way]["epsilon"]))
    if found[top]["spread"] > 1e-9 or not float(found[top]["epsilon"]) > 1e-4:
        sys.stderr.write(f"left out: {setting} {found}\n")
        return None
    return setting | {"epsilon": found[top]["epsilon"], "way": top, "directions": found}


# --- the other libraries ---------------------------------------------------------------------------------


def _google(setting: Setting, interval: float, pessimistic: bool) -> float:
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.privacy_accountant import NeighboringRelation

    relation = {
        "add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace-one": NeighboringRelation.REPLACE_ONE,
    }[setting["adjacency"]]
    total = None
    for q, sigma, count in setting["parts"]:
        one = pld.from_gaussian_mechanism(
            sigma if q < 1 or setting["adjacency"] != "replace-one" else sigma / 2,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            value_discretization_interval=interval,
            sampling_prob=q,
            neighboring_relation=relation if q < 1 else NeighboringRelation.ADD_OR_REMOVE_ONE,
        ).self_compose(count)
        total = one if total is None else total.compose(one)
    assert total is not None
    return float(total.get_epsilon_for_delta(setting["delta"]))


def _prv(setting: Setting) -> tuple[float, float]:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    if setting["adjacency"] != "add-remove":
        raise ValueError("prv_accountant has add-remove only")
    accountant = PRVAccountant(
        [
            PoissonSubsampledGaussianMechanism(noise_multiplier=s, sampling_probability=q)
            for q, s, _ in setting["parts"]
        ],
        max_self_compositions=[count for *_, count in setting["parts"]],
        eps_error=0.1,
        delta_error=setting["delta"] / 1000,
    )
    low, _, high = accountant.compute_epsilon(setting["delta"], [count for *_, count in setting["parts"]])
    return float(low), float(high)


def _within(seconds: int, function: Callable[[], Any]) -> Any:
    """Return the result of the library, the name of its error, or 'more than ... s'."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function()
    except Exception as problem:  # noqa: BLE001 - whatever another library raises is its answer
        return f"{type(problem).__name__}: {problem}"[:120]
    finally:
        signal.alarm(0)


def peers(setting: Setting) -> Setting:
    """Return the results of dp_accounting (defaults; both estimates) and prv_accountant (eps_error 0.1)."""
    says = {"google": _within(20, lambda: _google(setting, 1e-4, pessimistic=True))}
    if setting["delta"] >= 1e-6:
        says["google_optimistic"] = _within(20, lambda: _google(setting, 1e-4, pessimistic=False))
        says["prv"] = _within(20, lambda: _prv(setting))
    return says


def _versions() -> dict[str, str]:
    packages = ("numpy", "scipy", "mpmath", "dp-accounting", "prv-accountant")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in packages}


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"settings": []}


def _write(file: Path, settings: list[Setting]) -> None:
    lines = ",\n".join(json.dumps(setting) for setting in settings)
    text = f'{{"versions": {json.dumps(_versions())},\n"settings": [\n{lines}\n]}}\n'
    file.write_text(text, encoding="utf-8")


def _add_peers() -> None:
    known = _read(PEERS)["settings"]
    for setting in _read(FILE)["settings"]:
        if setting["id"] not in {entry["id"] for entry in known}:
            known.append({"id": setting["id"]} | peers(setting))
            _write(PEERS, known)


def _add_truth(wanted: int) -> None:
    known = _read(FILE)["settings"]
    done = {setting["id"] for setting in known}

    def add(setting: Setting, budget: float) -> None:
        answer = truth(setting, budget)
        if answer is not None:
            known.append(answer)
            _write(FILE, known)
        sys.stderr.write(f"{setting['id']}: {answer and answer['epsilon']}\n")

    for setting in hand_picked():
        if setting["id"] not in done:
            add(setting, 1.5e8)
    for setting in random_settings():
        if sum(entry["id"].startswith("random") for entry in known) >= wanted:
            return
        parts: list[Part] = [tuple(part) for part in setting["parts"]]
        way: Direction = "replace" if setting["adjacency"] == "replace-one" else "remove"
        bound = Extended(parts, way).start(setting["delta"])
        if setting["id"] not in done and 1e-3 < bound < 300:  # something to protect, and something left of it
            add(setting, 4e6)


def main() -> int:
    """Add to the files what they lack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--random", type=int, default=210)
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    if options.peers:
        _add_peers()
    else:
        _add_truth(options.random)
    return 0


if __name__ == "__main__":
    sys.exit(main())
