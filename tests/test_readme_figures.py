"""Each figure of the README's three claims stands in a results file; timings are of the present version."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tacit import __version__

ROOT = Path(__file__).parent.parent
BENCHMARKS, EXPERIMENTS = ROOT / "benchmarks" / "results", ROOT / "experiments" / "results"
PEERS = ("Opacus", "Opake", "torch.func")
OTHER_MODELS = ("step_library", "step_common")
PLACES = 1  # decimals of a ratio


def results(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def timings(name: str) -> dict[str, dict[str, float]]:
    """The ratios to the plain step, by workload and engine, measured with the present version."""
    data = results(BENCHMARKS, name)
    assert data["versions"]["tacit"] == __version__, f"{name}.json is of another version: measure again"
    found: dict[str, dict[str, float]] = {}
    for row in data["timings"]:
        if row["ratio"] is not None:
            found.setdefault(row["workload"], {})[row["engine"]] = row["ratio"]
    return found


def spelt(iso: str) -> str:
    day = datetime.date.fromisoformat(iso)
    return f"{day.day} {day:%B %Y}"


def month() -> tuple[str]:
    """The month of the measurements on a CPU."""
    (found,) = {results(BENCHMARKS, name)["date"][:7] for name in ("step", *OTHER_MODELS)}
    return (f"{datetime.date.fromisoformat(f'{found}-01'):%B %Y}",)


def ends(values: Iterable[float]) -> tuple[str, str]:
    rounded = [f"{value:.{PLACES}f}" for value in values]
    return min(rounded, key=float), max(rounded, key=float)


def ours(*names: str) -> tuple[str, str]:
    """The least and the largest ratio of Tacit's step to the plain step."""
    return ends(engines["Tacit"] for name in names for engines in timings(name).values())


def others() -> tuple[str, str, str]:
    """The same on models of other libraries, and the number of these models."""
    return *ours(*OTHER_MODELS), str(sum(len(timings(name)) for name in OTHER_MODELS))


def peers() -> tuple[str, str]:
    """The ratio of the fastest peer's step to ours, the least and the largest of all workloads."""
    loads = [engines for name in ("step", *OTHER_MODELS) for engines in timings(name).values()]
    return ends(
        min(engines[name] for name in engines if name.startswith(PEERS)) / engines["Tacit"]
        for engines in loads
    )


def on_a_gpu() -> tuple[str, ...]:
    data = results(BENCHMARKS, "step_gpu")
    of = {row["workload"]: row["ratio"] for row in data["timings"] if row["engine"] == "Tacit"}
    versions = data["versions"]
    return (
        data["machine"]["gpu"].removeprefix("NVIDIA "), spelt(data["date"]), versions["tacit"],
        f"{of['GPT-2 small']:.1f}", f"{of['ResNet-50']:.1f}", f"{max(of.values()):.1f}",
    )  # fmt: skip


def mechanisms() -> tuple[str]:
    data = results(BENCHMARKS, "accounting_fuzz")
    assert data["wrong"] == 0
    return (f"{data['events']:,}",)


def digits() -> tuple[str]:
    rows = results(EXPERIMENTS, "scattering-mnist")["rows"]
    return (f"{100 * max(row['accuracy_mean'] for row in rows if row['epsilon'] <= 3):.1f}",)


def reviews() -> tuple[str, str]:
    rows = [row for row in results(EXPERIMENTS, "public-models")["rows"] if row["dataset"] == "imdb"]
    by = {row["epsilon"] and round(row["epsilon"]): 100 * row["accuracy_mean"] for row in rows}
    return f"{by[3]:.1f}", f"{by[None]:.1f}"


def tables() -> tuple[str, ...]:
    """On how many of the tables that DP boosting fits Tacit's mean score is above its score, at epsilon 3."""
    rows = [row for row in results(EXPERIMENTS, "tables")["rows"] if row["epsilon"] == 3]
    by = {(row["dataset"], row["model"]): row["accuracy_mean"] for row in rows}
    boosted = {name: mean for (name, model), mean in by.items() if model == "InterpretML, DP-EBM"}
    return f"{sum(by[name, 'Tacit, default'] > mean for name, mean in boosted.items())}", f"{len(boosted)}"


FIGURES: dict[str, Callable[[], tuple[str, ...]]] = {
    "On {} random combinations of": mechanisms,
    "{} to {} times as long as a plain PyTorch step on five": partial(ours, "step"),
    "{} to {} times on [{} common": others,
    "takes {} to {} times as long as Tacit": peers,
    "({}).": month,
    "On an {} GPU ({}, version {}), a private step takes {} times as long as a plain one for GPT-2 small, "
    "{} times for ResNet-50, and up to {} times with": on_a_gpu,
    "MNIST reaches {} %": digits,
    "classifies {} % of reviews correctly ({} % without privacy)": reviews,
    "on {} of {} [tables]": tables,
}
"""Words of the README around its figures, and what reads the figures from the results files."""
OTHERS = ("ε = 3", "GPT-2", "ResNet-50", "below 1 ")
"""Words with digits that are no results."""


def claims(text: str) -> str:
    """The three claims of the README in one line."""
    found = re.search(r"(?ms)^\* \*\*.*?\n\n", text)
    assert found, "the claims are bullets that begin with bold words"
    return re.sub(r"\s+", " ", found[0])


def missing(text: str) -> list[str]:
    """List what the text does not say as the results do, and digits that no results file explains."""
    said = [words.format(*read()) for words, read in FIGURES.items()]
    rest = text
    for words in (*said, *OTHERS):
        rest = rest.replace(words, "")
    rest = re.sub(r"\]\([^)]*\)", "", rest)
    return [words for words in said if words not in text] + re.findall(r"\S*\d\S*", rest)


def test_the_figures_stand_in_the_results_of_the_present_version() -> None:
    text = claims((ROOT / "README.md").read_text(encoding="utf-8"))
    assert missing(text) == []


@pytest.mark.parametrize("words", FIGURES)
def test_planted_wrong_figures_are_found(words: str) -> None:
    text = " ".join(words.format(*read()) for words, read in FIGURES.items())
    values = FIGURES[words]()
    for place, value in enumerate(values):
        planted = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), value, count=1)
        wrong = words.format(*values[:place], planted, *values[place + 1 :])
        assert missing(text.replace(words.format(*values), wrong))
    assert missing(text + " and 77 % of votes") == ["77"]
