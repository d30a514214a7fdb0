"""Checks of answers on Adult, of their accuracy and of their low bits: ``make check-queries``.

1. Intervals: for every kind of question, the rate at which the stated 95 % interval contains the exact
answer, over
   thousands of answers.  DuckDB counts once, and only the noise is drawn again, as the private table draws
   it.
2. Low bits: every kind of question on an empty table and on one with one row is audited for information in
the
   last digits of a released number.  The audit must detect a count with Laplace noise of ``numpy``.
3. Five questions at epsilon 1, compared with OpenDP and diffprivlib.  As diffprivlib needs an older
scikit-learn,
   ``--diffprivlib`` names the interpreter of an environment that has it.

``TACIT_DATA`` names the folder of ``adult.csv.gz``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import query_kinds as kinds
import query_questions as questions
import results
from rich.console import Console
from rich.table import Table
from scipy import stats

from tacit.ledger import PureBudget

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout, which contains the experiments
from experiments.laboratory.precision import audit_precision

CONFIDENCE = 0.9999
FALSE_ALARM = 1e-4  # the probability of a false alarm in all intervals together


def main() -> int:
    """Run all checks; return 1 if an interval holds too rarely, or an audit has a wrong result."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=2000)
    options.add_argument("--releases", type=int, default=10_000, help="of each of the two tables of an audit")
    options.add_argument("--diffprivlib", type=Path, help="an interpreter that can import diffprivlib")
    options.add_argument("--out", type=Path, default=results.FOLDER / "queries.json")
    given = options.parse_args()
    path = Path(os.environ.get("TACIT_DATA", ".")) / "adult.csv.gz"
    adult = questions.read(path)
    intervals = [interval_row(kind, given.runs) for kind in kinds.on_adult(adult)]
    audits = [audit_row(kind, given.releases) for kind in kinds.on_one_row()] + [planted(given.releases)]
    peers = beside(adult, path, given.runs, given.diffprivlib)
    content = {"intervals": intervals, "audits": audits, "questions": peers}
    results.write(given.out, "queries", content, packages=("duckdb", "sqlglot", "opendp"))
    show(content)
    too_rare = [row for row in intervals if row["p"] < FALSE_ALARM / len(intervals)]
    wrong = [row for row in audits if row["found"] != row["planted"]]
    return int(bool(too_rare or wrong))


# --- intervals --------------------------------------------------------------------------------------------


def interval_row(kind: kinds.Kind, runs: int) -> dict[str, Any]:
    """Return the rate at which the intervals of one kind of question hold, over all groups.

    ``p`` is the probability of such a low rate if the true rate is 95 %.
    """
    hits = [hit for _ in range(runs) for hit in kind.hits(kind.answer())]
    rate, p = float(np.mean(hits)), float(stats.binom.cdf(sum(hits), len(hits), 0.95))
    sys.stderr.write(f"{kind.name}, {kind.mechanism}: {rate:.4f}\n")
    head = {"kind": kind.name, "mechanism": kind.mechanism, "runs": runs}
    return head | {"intervals": len(hits), "rate": rate, "p": p}


# --- low bits ---------------------------------------------------------------------------------------------


def audit_row(kind: kinds.Pair, releases: int) -> dict[str, Any]:
    """Return the epsilon that the low bits of a kind of question prove."""
    here, there = ([kind.release(table) for _ in range(releases)] for table in (0, 1))
    claim = {"epsilon": kind.epsilon, "delta": kind.delta, "confidence": CONFIDENCE}
    found = audit_precision(here, there, **claim, rng=np.random.default_rng())
    sys.stderr.write(f"{kind.name}, {kind.mechanism}: {found.sentence()}\n")
    return audited(kind.name, kind.mechanism, releases, found, planted=False)


def planted(releases: int) -> dict[str, Any]:
    """Audit a count with Laplace noise of ``numpy``, which the audit must detect."""
    rng = np.random.default_rng()
    here, there = (count + rng.laplace(0.0, 1.0, releases) for count in (0, 1))
    found = audit_precision(here, there, epsilon=1.0, delta=0.0, confidence=CONFIDENCE, rng=rng)
    return audited("count, noise of numpy", "laplace", releases, found, planted=True)


def audited(name: str, mechanism: str, releases: int, found: Any, *, planted: bool) -> dict[str, Any]:
    """Return the row of one audit."""
    return {
        "kind": name,
        "mechanism": mechanism,
        "releases": 2 * releases,
        "claimed": found.claimed_eps,
        "delta": found.delta,
        "proved": found.eps_lower,
        "found": bool(found.claim_rejected),
        "planted": planted,
    }


# --- five questions ---------------------------------------------------------------------------------------


def beside(adult: pd.DataFrame, path: Path, runs: int, diffprivlib: Path | None) -> list[dict[str, Any]]:
    """Return the errors of Tacit and of the libraries, by question."""
    exact = questions.truth(adult)
    found = {"Tacit": tacit_errors(adult, exact, runs)}
    others = {"opendp": Path(sys.executable), "diffprivlib": diffprivlib}
    for library, interpreter in others.items():
        if interpreter is None or (library == "opendp" and not results.installed("opendp")):
            sys.stderr.write(f"{library} is left out: it is not installed.\n")
            continue
        script = Path(__file__).with_name("query_questions.py")
        done = subprocess.run(
            [str(interpreter), str(script), library, str(path), "--runs", str(runs)],
            check=True,
            capture_output=True,
            text=True,
        )
        told = json.loads(done.stdout)
        found[f"{library} {told['version']}"] = told["questions"]
    return [
        {"question": questions.QUESTIONS[name], "truth": exact[name], "library": library, **rows[name]}
        for name in questions.QUESTIONS
        for library, rows in found.items()
    ]


def tacit_errors(adult: pd.DataFrame, exact: dict[str, Any], runs: int) -> dict[str, Any]:
    """Return Tacit's errors over all runs."""
    table, policy = kinds.with_more_columns(adult), kinds.adult_policy(PureBudget(1.0))
    found = {}
    for name, (query, values) in kinds.questions_asked().items():
        once = kinds.counted(query, policy, table, epsilon=1.0)
        answers = questions.answers_of(lambda once=once, values=values: values(once.answer()), runs)
        found[name] = questions.summary(answers, exact[name])
    return found


# --- print ------------------------------------------------------------------------------------------------


def show(content: dict[str, Any]) -> None:
    """Print the three tables."""
    console = Console(width=120)
    for title, rows in content.items():
        table = Table(title=title)
        for name in rows[0]:
            table.add_column(name)
        for row in rows:
            table.add_row(*(f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()))
        console.print(table)


if __name__ == "__main__":
    sys.exit(main())
