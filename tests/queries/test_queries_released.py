"""Releases of every kind of question: intervals that hold, and low bits that reveal nothing."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from query_oracles import fix_bits
from scipy import stats

from experiments.laboratory.precision import audit_precision

fixed_bits = pytest.fixture(autouse=True)(fix_bits)

ROOT = Path(__file__).parents[2]
ADULT = Path(os.environ.get("TACIT_DATA", "nowhere")) / "adult.csv.gz"
ALMOST_NEVER = 1e-7


@pytest.fixture(scope="module")
def kinds() -> Iterator[Any]:
    """The questions that ``make check-queries`` asks, thousands of times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("query_kinds")


@pytest.mark.untraced
@pytest.mark.skipif(not ADULT.is_file(), reason="adult.csv.gz is not in the folder that TACIT_DATA names")
def test_intervals_hold_as_often_as_they_say(kinds: Any) -> None:
    """All kinds on Adult, 25 answers each: too few to see 94 %, enough to see what is wrong."""
    rates = {}
    for kind in kinds.on_adult(pd.read_csv(ADULT)):
        hits = [hit for _ in range(25) for hit in kind.hits(kind.answer())]
        if stats.binom.cdf(sum(hits), len(hits), 0.95) < ALMOST_NEVER:
            rates[f"{kind.name}, {kind.mechanism}"] = float(np.mean(hits))
    assert rates == {}


@pytest.mark.skipif(not ADULT.is_file(), reason="adult.csv.gz is not in the folder that TACIT_DATA names")
def test_an_interval_of_the_wrong_noise_is_found(kinds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of twice the scale that the interval knows."""
    draw = importlib.import_module("tacit.queries.plan").discrete_laplace
    monkeypatch.setattr("tacit.queries.plan.discrete_laplace", lambda scale, size: draw(2 * scale, size))
    policy = kinds.adult_policy(kinds.PureBudget(1.0))
    adult = kinds.with_more_columns(pd.read_csv(ADULT))
    once = kinds.counted(kinds.Query((kinds.Count(),)), policy, adult, epsilon=0.1)
    wrong = kinds.Kind(once.compiled, once.raw, "count", "laplace", kinds.number(len(adult)))
    hits = [hit for _ in range(200) for hit in wrong.hits(wrong.answer())]
    assert stats.binom.cdf(sum(hits), len(hits), 0.95) < ALMOST_NEVER


@pytest.mark.untraced
def test_low_bits_give_nothing_away(kinds: Any) -> None:
    """Every kind of question on a table of no row and on one of one row.

    That Gaussian noise costs more than its epsilon of 5, so few answers cannot show.
    """
    found = {}
    for pair in (pair for pair in kinds.on_one_row() if pair.mechanism == "laplace"):
        here, there = ([pair.release(table) for _ in range(200)] for table in (0, 1))
        audit = audit_precision(
            here,
            there,
            epsilon=pair.epsilon,
            delta=pair.delta,
            confidence=1.0 - ALMOST_NEVER,
            rng=np.random.default_rng(5),
        )
        if audit.claim_rejected:
            found[f"{pair.name}, {pair.mechanism}"] = audit.eps_lower
    assert found == {}


def test_low_bits_of_naive_noise_are_found(kinds: Any) -> None:
    """The sum of a column, as a float, with Laplace noise of numpy."""
    pair = next(pair for pair in kinds.on_one_row() if pair.name == "sum")
    rng = np.random.default_rng(3)
    here, there = (
        np.array([float(raw) for _ in range(2000)]) + rng.laplace(0.0, 1.0, 2000) for raw in (0.0, 1.0)
    )
    claim = {"epsilon": pair.epsilon, "delta": pair.delta, "confidence": 0.999}
    assert audit_precision(here, there, **claim, rng=rng).claim_rejected
    exact = [[pair.release(table) for _ in range(2000)] for table in (0, 1)]
    assert not audit_precision(*exact, **claim, rng=rng).claim_rejected
