"""The AUC of the linear and the additive model, without and with bins of numbers, on a grid of shapes.

``python -m experiments.which_model`` adds one line to ``searches/which-model.jsonl`` for each shape, kind of
data, epsilon and model, and resumes after an interruption.  The steps are those of ``PrivateClassifier`` with
its default settings: full batches, the same rate, momentum, clipping and noise multiplier, and no intercept
phase, which changes no AUC.  They are written out here so that all epsilons share one pass over the rows.

The columns are normal with declared bounds (-4, 4).  Kinds: two informative columns ("few"), all of them
("many"), and two whose effect is a parabola ("curved").
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import machine, versions
from experiments.tries import Tries
from tacit.models.additive import Binned
from tacit.plan import Plan
from tacit.recipes import BINS, additive_pays, linear_recipe

OUT = Path(__file__).parent / "searches" / "which-model.jsonl"
EPSILONS = (1.0, 3.0, 8.0)
KINDS = ("few", "many", "curved")
GRID = [
    *((rows, columns) for rows in (1_000, 1_600, 4_000) for columns in (5, 20, 100, 500)),
    *((10_000, columns) for columns in (5, 20, 50, 100)),
    (25_000, 5),
]
HELDOUT = [(2_500, 10), (2_500, 50), (6_000, 30), (20_000, 40)]
_RUNS, _TEST = 3, 10_000
_MOST_CURVED = 100  # with more columns, no parabolas


def data(rows: int, columns: int, kind: str, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return (n, d) columns scaled to [-1, 1], and (n,) classes."""
    x = torch.randn(rows, columns, generator=random).clamp(-4, 4)
    match kind:
        case "few":
            log_odds = 1.13 * (x[:, 0] + x[:, 1])
        case "many":
            log_odds = 1.6 * x.mean(1) * math.sqrt(columns)
        case _:
            log_odds = 0.8 * (x[:, 0].square() + x[:, 1].square() - 2)
    return x / 4, (torch.rand(rows, generator=random) < torch.sigmoid(log_odds)).long()


def fits(x: Tensor, y: Tensor, longest: float, random: torch.Generator) -> Tensor:
    """Return (f + 1, epsilons, 2) weights of private fits, one for each epsilon."""
    n = len(x)
    x = torch.cat([x, torch.ones(n, 1)], 1)
    lengths = x.norm(dim=1)[:, None]
    recipes = [linear_recipe(n, epsilon, longest=longest) for epsilon in EPSILONS]
    noise = torch.tensor([_noise(n, epsilon, recipes[0].steps) for epsilon in EPSILONS])[:, None]
    rates = torch.tensor([recipe.learning_rate for recipe in recipes])[:, None]
    norm = recipes[0].clipping_norm
    weights = torch.zeros(x.shape[1], len(EPSILONS), 2)
    moved = torch.zeros_like(weights)
    truth = torch.nn.functional.one_hot(y, 2)[:, None]
    for _ in range(recipes[0].steps):
        errors = (x @ weights.flatten(1)).view(n, -1, 2).softmax(-1) - truth
        factors = (norm / (errors.norm(dim=-1) * lengths).clamp_min(1e-12)).clamp_max(1.0)
        gradient = (x.T @ (errors * factors[..., None]).flatten(1)).view_as(weights)
        gradient += noise * norm * torch.randn(weights.shape, generator=random)
        moved = recipes[0].momentum * moved + gradient / n
        weights = weights - rates * moved
    return weights


def _noise(records: int, epsilon: float, steps: int) -> float:
    return Plan.calibrate(
        epsilon=epsilon, delta=1e-5, records=records, steps=steps, clipping=1.0, adjacency="add-remove",
        unit="row",
    ).noise_multiplier  # fmt: skip


def measure(rows: int, columns: int, kind: str, model: str) -> list[list[float]]:
    """Return the AUC of each run, for each epsilon."""
    from sklearn.metrics import roc_auc_score

    found: list[list[float]] = [[] for _ in EPSILONS]
    for run in range(_RUNS):
        random = torch.Generator().manual_seed(1000 * run + rows + columns)
        x, y = data(rows, columns, kind, random)
        t, truth = data(_TEST, columns, kind, random)
        front = Binned(BINS) if model == "additive" else torch.nn.Identity()
        longest = math.sqrt(1 + columns * (2 if model == "additive" else 1))
        weights = fits(front(x), y, longest, random)
        scores = (torch.cat([front(t), torch.ones(_TEST, 1)], 1) @ weights.flatten(1)).view(_TEST, -1, 2)
        for place in range(len(EPSILONS)):
            found[place].append(float(roc_auc_score(truth, scores[:, place, 1] - scores[:, place, 0])))
    return found


def table(shapes: list[tuple[int, int]], tries: Tries) -> list[dict[str, Any]]:
    """Return a row with both AUCs for each shape, kind and epsilon."""
    found = []
    for rows, columns in shapes:
        for kind in KINDS if columns <= _MOST_CURVED else KINDS[:2]:
            scores: dict[str, list[list[float]]] = {}
            for model in ("linear", "additive"):
                settings = {"rows": rows, "columns": columns, "kind": kind, "model": model}
                flat = tries.scores(settings, lambda s=settings: [*chain(*measure(**s))])  # type: ignore[misc]
                scores[model] = [flat[_RUNS * i : _RUNS * (i + 1)] for i in range(len(EPSILONS))]
            for place, epsilon in enumerate(EPSILONS):
                aucs = {model: statistics.mean(scores[model][place]) for model in scores}
                found.append({"rows": rows, "columns": columns, "kind": kind, "epsilon": epsilon, **aucs})
    return found


def losses(rows: list[dict[str, Any]]) -> list[float]:
    """Return how far the AUC of the rule's model is below the better one, for each row of linear effects."""
    found = []
    for row in rows:
        if row["kind"] != "curved":
            chosen = "additive" if additive_pays(row["rows"], row["epsilon"], row["columns"]) else "linear"
            found.append(max(row["linear"], row["additive"]) - row[chosen])
    return found


def main() -> None:
    """Measure what is not in the file yet, and print how far the rule is below the better model."""
    torch.set_num_threads(1)
    facts = {"date": date.today().isoformat(), "machine": machine(), "versions": versions()}
    for name, shapes in {"held out": HELDOUT, "grid": GRID}.items():
        below = losses(table(shapes, Tries(OUT)))
        sys.stdout.write(f"{name}: {len(shapes)} shapes, at most {max(below):.4f} below the better model\n")
    OUT.with_suffix(".about.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
