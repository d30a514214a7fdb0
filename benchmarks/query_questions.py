"""Five questions on Adult, and the answers of other libraries at epsilon 1.

As a command, run by an interpreter that has the library, it prints the errors of many answers as JSON.
``check_queries.py`` compares them with Tacit's.  Each library is used as in its guide: OpenDP with a
transformation chained to a measurement, diffprivlib with its ``tools``.  All get the same public bounds,
candidates and keys, and epsilon 1 for each question.

OpenDP's answers, like Tacit's, are private under add-remove.  diffprivlib's mean assumes that the number of
rows is public, which is a weaker promise with less noise.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["AGES", "CAP", "HOURS", "OCCUPATIONS", "QUESTIONS", "answers_of", "read", "summary", "truth"]

HOURS, CAP = (0, 100), 10_000
AGES = tuple(range(17, 91))
OCCUPATIONS = [
    "Adm-clerical",
    "Armed-Forces",
    "Craft-repair",
    "Exec-managerial",
    "Farming-fishing",
    "Handlers-cleaners",
    "Machine-op-inspct",
    "Other-service",
    "Priv-house-serv",
    "Prof-specialty",
    "Protective-serv",
    "Sales",
    "Tech-support",
    "Transport-moving",
]
QUESTIONS = {
    "count": "How many over 65 earn more than 50,000 dollars?",
    "sum": "What are all capital gains together, each capped at 10,000 dollars?",
    "mean": "How many hours a week do women work on average?",
    "median": "What is the median age?",
    "groups": "How many people have each of the 14 occupations?",
}


def read(path: Path) -> pd.DataFrame:
    """Read the table as published."""
    return pd.read_csv(path)


def truth(adult: pd.DataFrame) -> dict[str, Any]:
    """Return the exact answers, by pandas."""
    counts = adult.occupation.value_counts()
    return {
        "count": int(((adult.age > 65) & (adult.income == ">50K")).sum()),
        "sum": int(adult.capital_gain.clip(0, CAP).sum()),
        "mean": float(adult.hr_per_week[adult.sex == "Female"].clip(*HOURS).mean()),
        "median": float(adult.age.median()),
        "groups": [int(counts[name]) for name in OCCUPATIONS],
    }


def summary(answers: NDArray[np.float64], exact: Any) -> dict[str, float]:
    """Return the root mean square, mean and 95 % quantile of the errors' sizes for (runs, groups) answers."""
    size = np.abs(answers - np.atleast_1d(exact))
    return {
        "rmse": float(np.sqrt((size**2).mean())),
        "mean": float(size.mean()),
        "95 %": float(np.quantile(size, 0.95)),
        "runs": len(answers),
    }


def answers_of(ask: Callable[[], Any], runs: int) -> NDArray[np.float64]:
    """Return ``runs`` answers, (runs, groups)."""
    return np.array([np.atleast_1d(ask()) for _ in range(runs)], np.float64)


# --- the libraries ----------------------------------------------------------------------------------------


def opendp_questions(adult: pd.DataFrame) -> dict[str, Callable[[], Any]]:
    """Return a measurement of each question, with epsilon 1 by its ``map``."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    integers = dp.vector_domain(dp.atom_domain(T="i64")), dp.symmetric_distance()
    texts = dp.vector_domain(dp.atom_domain(T=str)), dp.symmetric_distance()

    def at(epsilon: float, chain: Callable[[float], Any]) -> Any:
        return chain(dp.binary_search_param(chain, 1, epsilon, T=float))

    def total(bounds: tuple[int, int], epsilon: float) -> Any:
        clamped = dp.t.make_clamp(*integers, bounds=bounds)
        return at(epsilon, lambda scale: clamped >> dp.t.then_sum() >> dp.m.then_laplace(scale))

    def count(epsilon: float) -> Any:
        return at(epsilon, lambda scale: integers >> dp.t.then_count() >> dp.m.then_laplace(scale))

    score = dp.t.make_quantile_score_candidates(*integers, list(AGES), 0.5)
    measure = dp.max_divergence()
    best = at(1.0, lambda scale: score >> dp.m.then_noisy_max(measure, scale, negate=True))
    by = dp.t.make_count_by_categories(
        *texts, categories=OCCUPATIONS, null_category=False, MO=dp.L1Distance["i64"]
    )
    groups = at(1.0, lambda scale: by >> dp.m.then_laplace(scale))
    one, gains, hours, people = count(1.0), total((0, CAP), 1.0), total(HOURS, 0.5), count(0.5)
    rich = adult.age[(adult.age > 65) & (adult.income == ">50K")].tolist()
    women = adult.hr_per_week[adult.sex == "Female"].tolist()
    capital, age, job = adult.capital_gain.tolist(), adult.age.tolist(), adult.occupation.tolist()
    return {
        "count": lambda: one(rich),
        "sum": lambda: gains(capital),
        "mean": lambda: hours(women) / max(people(women), 1),
        "median": lambda: AGES[best(age)],
        "groups": lambda: groups(job),
    }


def diffprivlib_questions(adult: pd.DataFrame) -> dict[str, Callable[[], Any]]:
    """Return diffprivlib's ``tools`` for each question."""
    from diffprivlib import tools
    from diffprivlib.accountant import BudgetAccountant

    rich = ((adult.age > 65) & (adult.income == ">50K")).to_numpy()
    women = adult.hr_per_week[adult.sex == "Female"].to_numpy(np.float64)
    capital, age = adult.capital_gain.to_numpy(np.float64), adult.age.to_numpy(np.float64)
    job = adult.occupation.map(dict(zip(OCCUPATIONS, range(14), strict=True))).to_numpy(np.float64)
    ages, codes = (AGES[0], AGES[-1]), (-0.5, 13.5)

    def free() -> Any:  # its accountant composes all answers of the process, which is quadratic
        return BudgetAccountant()

    return {
        "count": lambda: tools.count_nonzero(rich, epsilon=1.0, accountant=free()),
        "sum": lambda: tools.sum(capital, epsilon=1.0, bounds=(0, CAP), accountant=free()),
        "mean": lambda: tools.mean(women, epsilon=1.0, bounds=HOURS, accountant=free()),
        "median": lambda: tools.median(age, epsilon=1.0, bounds=ages, accountant=free()),
        "groups": lambda: tools.histogram(job, epsilon=1.0, bins=14, range=codes, accountant=free())[0],
    }


LIBRARIES = {"opendp": opendp_questions, "diffprivlib": diffprivlib_questions}


def main() -> int:
    """Print the errors of one library as JSON."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("library", choices=sorted(LIBRARIES))
    options.add_argument("data", type=Path, help="adult.csv.gz")
    options.add_argument("--runs", type=int, default=500)
    given = options.parse_args()
    adult = read(given.data)
    exact = truth(adult)
    found = {
        name: summary(answers_of(ask, given.runs), exact[name])
        for name, ask in LIBRARIES[given.library](adult).items()
    }
    version = metadata.version(given.library)
    sys.stdout.write(json.dumps({"library": given.library, "version": version, "questions": found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
