"""What does a run file of a public model leave out? Settings of tacit.recipes, by public figures.

**Guarantee**

* What is filled in is a function of the run file and of the public model's own files, never of a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.recipes import Recipe, head_recipe

_USUAL = 3.0  # epsilon for the recipe, where the file states the noise instead


def with_recipe(said: Mapping[str, Any], tune: str | None = None) -> dict[str, Any]:
    """Fill in tune, ``[lora]``, ``[optimizer]`` and ``[training]`` where a public model is to learn a target.

    What the file says is kept.  Where it lacks what a recipe needs, it is left for the check to name.

    Args:
        said: what the file says.
        tune: what to train in place of what it says.
    """
    model, data, privacy = (said.get(name, {}) for name in ("model", "data", "privacy"))
    if not all(isinstance(section, dict) for section in (model, data, privacy)):
        return dict(said)
    public = model.get("huggingface") or model.get("encoder")
    documents = "target" not in data and ("jsonl" in data or "parquet" in data)
    records, epsilon = privacy.get("records"), privacy.get("epsilon", _USUAL)
    if not isinstance(public, str) or documents or not isinstance(records, int) or records < 1:
        return dict(said)
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not epsilon > 0:
        return dict(said)
    tune = tune or model.get("tune", "auto")
    tune = "head" if tune == "auto" else tune
    recipe = head_recipe(records, float(epsilon))
    return {
        **said,
        "model": {**model, "tune": tune},
        "optimizer": _optimizer(recipe, _section(said, "optimizer")),
        "training": _training(recipe, _section(said, "training")),
        "privacy": {"clipping_norm": recipe.clipping_norm, **privacy},
    }


def _section(said: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = said.get(name, {})
    return dict(section) if isinstance(section, dict) else {"": section}


def _optimizer(recipe: Recipe, said: dict[str, Any]) -> dict[str, Any]:
    """With the recipe's rate and momentum, which are none for another optimizer than its own."""
    if said.get("name", recipe.optimizer) != recipe.optimizer:
        return said
    found: dict[str, Any] = {"name": recipe.optimizer, "learning_rate": recipe.learning_rate}
    return {**found, **({"momentum": recipe.momentum} if recipe.momentum else {}), **said}


def _training(recipe: Recipe, said: Mapping[str, Any]) -> dict[str, Any]:
    length = {} if {"steps", "epochs"} & said.keys() else {"steps": recipe.steps}
    batch = "full" if recipe.batch_size is None else recipe.batch_size
    average = {} if recipe.ema_decay is None else {"ema_decay": recipe.ema_decay}
    return {"batch_size": batch, **length, **average, **said}
