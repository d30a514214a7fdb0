"""The experiment on records that a model's own file holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.base import Request
from experiments.registry import reproduce
from tacit.errors import InvalidInput

RESULTS = Path(__file__).parents[2] / "experiments" / "results" / "stored-rows.json"


def test_kernel_machines_store_records_and_the_private_model_does_not(tmp_path: Path) -> None:
    request = Request(tmp_path, dataset="breast-cancer", epsilons=(8.0,), seeds=1)
    *machines, private = reproduce("stored-rows", request)
    shares = [next(iter(row.details["attacked"].values())) for row in (*machines, private)]
    assert shares[0] > shares[1] > 0.02
    assert shares[2:] == [1.0, 0.0], "neighbours keep all"
    assert max(row.details["largest_error"] for row in machines) < 1e-6
    assert private.epsilon <= 8.0
    assert float(private.accuracy_mean or 0.0) > 0.8
    assert (tmp_path / "stored-rows.png").stat().st_size > 5_000
    with pytest.raises(InvalidInput, match="runs on digits, breast-cancer"):
        reproduce("stored-rows", Request(tmp_path, dataset="mnist"))


def test_the_committed_results_say_the_same() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    found = {(row["dataset"], row["model"]): next(iter(row["details"]["attacked"].values())) for row in rows}
    assert found["digits", "support vectors, rbf"] > 0.4
    assert found["breast-cancer", "support vectors, rbf"] > 0.15
    assert found["digits", "random Fourier features, ε = 8"] == 0.0
