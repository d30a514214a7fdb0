"""Tables and searches: rows of every kind on made-up records, and tries that are not made twice."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from experiments import tables
from experiments.base import Request
from experiments.cached_rows import cached_rows
from experiments.registry import reproduce
from experiments.suite import TABLES, Table
from experiments.tries import Tries
from tacit.errors import InvalidInput


def a_table(regression: bool) -> Table:
    """Made-up rows: a number and a category decide the target."""

    def rows() -> pd.DataFrame:
        random = np.random.default_rng(0)
        x, kind = random.uniform(-1, 1, 1200), random.choice(["a", "b"], 1200)
        y = x + (kind == "a") + random.normal(0, 0.1, 1200)
        return pd.DataFrame({"x": x, "kind": kind, "y": y if regression else np.where(y > 0.5, "yes", "no")})

    bounds = {"x": (-1.0, 1.0)} | ({"y": (-10.0, 10.0)} if regression else {})
    return Table("numbers" if regression else "classes", rows, "y", bounds)


@pytest.fixture
def two_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TABLES", (a_table(True), a_table(False)))
    for name in ("TACIT_DIFFPRIVLIB", "TACIT_INTERPRET"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("two_tables")
def test_rows_of_every_kind_are_not_computed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = reproduce("tables", Request(tmp_path, epsilons=(3.0,), seeds=1))
    assert [row.model for row in rows] == [tables.PLAIN, tables.PLAIN_BOOSTED, tables.OURS] * 2
    assert {row.details["figure"] for row in rows} == {"R²", "AUC"}
    assert all(row.accuracy_mean is not None and row.accuracy_mean > 0.8 for row in rows)
    assert (tmp_path / "tables.png").exists()
    monkeypatch.setattr(tables, "ours", lambda *_: 1 / 0)
    again = reproduce("tables", Request(tmp_path, epsilons=(3.0,), seeds=1))
    assert [row.accuracy_mean for row in again] == [row.accuracy_mean for row in rows]


def stand_in(folder: Path, scores: str) -> str:
    """A stand-in for a peer's interpreter, which gives these ``scores`` of the rows d["t"]."""
    script = folder / "python"
    script.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'import sys, numpy as np; "
        f'd = np.load(sys.argv[3]); np.save(sys.argv[3] + ".npy", {scores})\' "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize("regression", [True, False])
def test_a_peer_in_another_interpreter_gets_the_same_rows(
    regression: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer returns the first column that it gets, which is the number."""
    split = tables.Split.of(a_table(regression))
    wanted = split.score(split.x(split.test)[:, 0])
    monkeypatch.setenv("TACIT_INTERPRET", stand_in(tmp_path, 'd["t"].T[:1]'))
    assert tables.boosted(split, 1.0, 1) == pytest.approx([wanted])
    longest = 1.0 if regression else np.sqrt(3)
    monkeypatch.setenv("TACIT_DIFFPRIVLIB", stand_in(tmp_path, 'np.stack([d["t"][:, 0]] * 2)'))
    scores = [split.score(split.x(split.test)[:, 0] / longest)] * 2
    assert tables.linear_peer(split, 1.0, 2) == pytest.approx(scores)


def test_about_the_rule_are_models_with_other_rates() -> None:
    split = tables.Split.of(a_table(False))
    usual, none = (tables.ours(split, 8.0, 1, ("additive", rate, 1.0))[0] for rate in (1.0, 1e-9))
    assert usual > 0.9
    assert none < usual


def test_tables_that_are_reserved_are_not_among_those_that_decide() -> None:
    sources = [str(table.source).lower() for table in TABLES]
    for name in ("fair", "randhie", "doctorcontacts", "medexp", "anes96"):
        assert not any(name in source for source in sources)
    assert len(TABLES) >= 14
    assert 0.4 <= sum(table.regression for table in TABLES) / len(TABLES) <= 0.6


def test_a_search_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    tries, made = Tries(tmp_path / "a" / "tries.jsonl"), []

    def measure() -> list[float]:
        made.append(1)
        return [0.25, 0.75]

    assert tries.make({"rate": 1.0}, measure) == 0.5
    with tries.path.open("a") as file:
        file.write('{"settings": {"rate": 2.0}, "sco')  # cut off
    again = Tries(tries.path)
    assert again.make({"rate": 1.0}, measure) == 0.5
    assert len(made) == 1
    with pytest.raises(InvalidInput, match="no try"):
        again.best({"rate": 2.0})
    again.make({"rate": 2.0}, lambda: [0.9])
    assert Tries(tries.path).best({}) == {"rate": 2.0}


def test_features_are_computed_once_for_these_pictures(tmp_path: Path) -> None:
    one, other, made = torch.zeros(2, 1, 8, 8), torch.ones(2, 1, 8, 8), []

    def rows(pictures: torch.Tensor) -> torch.Tensor:
        made.append(1)
        return pictures.flatten(1)

    for pictures in (one, other, one, other):
        assert cached_rows("pixels", pictures, lambda: rows(pictures), tmp_path).equal(pictures.flatten(1))  # noqa: B023
    assert len(made) == 2
    cached_rows("others", one, lambda: rows(one), tmp_path)
    assert len(made) == 3
