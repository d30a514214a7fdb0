"""The accuracies with correlated noise in the docs are those of the committed results."""

from __future__ import annotations

import json
import re

from pages import ROOT, text_of

MODELS = ("independent, a stream", "inverse of 4 bands, a stream", "independent, Poisson samples")


def test_the_table_is_that_of_the_results() -> None:
    rows = json.loads((ROOT / "experiments/results/correlated-noise.json").read_text())["rows"]
    _, _, section = text_of("plan-and-account.md").partition("### When it pays\n")
    table = [line for line in section.splitlines() if re.search(r"\| \d\d\.\d \|", line)]
    for line, model in zip(table, MODELS, strict=True):
        found = [row["accuracy_mean"] for row in rows if row["model"] == f"logistic, {model}"]
        assert re.findall(r"\d\d\.\d", line) == [f"{100 * accuracy:.1f}" for accuracy in found]
