"""What does a run file of a public model leave out? Settings of tacit.recipes, by public figures.

**Guarantee**

* What is filled in is a function of the run file and of the public model's own files, never of a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.errors import InvalidInput
from tacit.pretrained.folder import ModelFolder
from tacit.recipes import LORA_RANK, Recipe, full_recipe, head_recipe, lora_recipe, lora_targets

_BYTES = 4  # of a weight
_AT_ONCE = 32  # records of a body that is trained: more take memory and no less time on a CPU
_FEW_WEIGHTS = 50_000  # of corrections that the user chose: their number hardly counts
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
    if tune is not None:  # [lora] is of what the file says
        said = {name: section for name, section in said.items() if name != "lora" or tune == "lora"}
    tune = tune or model.get("tune", "auto")
    tune = "head" if tune == "auto" else tune
    recipe, lora = _recipe(str(tune), model, _section(said, "lora"), records, float(epsilon))
    return {
        **said,
        **({"lora": lora} if lora else {}),
        "model": {**model, "tune": tune},
        "optimizer": _optimizer(recipe, _section(said, "optimizer")),
        "training": _training(recipe, _section(said, "training")),
        "privacy": {"clipping_norm": recipe.clipping_norm, **privacy},
    }


def _recipe(
    tune: str, model: Mapping[str, Any], lora: dict[str, Any], records: int, epsilon: float
) -> tuple[Recipe, dict[str, Any]]:
    """The recipe of what is trained, and ``[lora]``, with that of the recipe where LoRA lacks it."""
    if tune not in ("lora", "full"):
        return head_recipe(records, epsilon), lora
    folder = None if model.get("huggingface") is None else ModelFolder.check(model["huggingface"])
    if tune == "full":
        sizes = [] if folder is None else [file.stat().st_size for file in folder.weight_files]
        return full_recipe(records, epsilon, max(1, sum(sizes) // _BYTES)), lora
    if lora:
        return lora_recipe(records, epsilon, _FEW_WEIGHTS), lora
    if folder is None:
        raise InvalidInput(
            '[model] tune = "lora" corrects layers, and of weights in a file nothing says which. Name '
            "them in [lora], rank and targets."
        )
    targets = lora_targets(str(folder.config["model_type"]))
    width, blocks = (int(folder.config.get(key, 0)) for key in ("hidden_size", "num_hidden_layers"))
    upper = [*range(blocks // 2, blocks)]  # lower ones are cheap to leave as they are
    weights = 2 * width * LORA_RANK * len(targets) * len(upper)
    recipe = lora_recipe(records, epsilon, max(1, weights))
    return recipe, {"rank": recipe.rank, "alpha": recipe.alpha, "targets": [*targets], "blocks": upper}


def _section(said: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = said.get(name, {})
    return dict(section) if isinstance(section, dict) else {"": section}


def _optimizer(recipe: Recipe, said: dict[str, Any]) -> dict[str, Any]:
    """With the recipe's rate and momentum, which are none for another optimizer than its own."""
    if said.get("name", recipe.optimizer) != recipe.optimizer:
        return said
    found: dict[str, Any] = {"name": recipe.optimizer, "learning_rate": recipe.learning_rate}
    more = {name: getattr(recipe, name) for name in ("momentum", "head_learning_rate", "falling")}
    return {**found, **{key: value for key, value in more.items() if value}, **said}


def _training(recipe: Recipe, said: Mapping[str, Any]) -> dict[str, Any]:
    length = {} if {"steps", "epochs"} & said.keys() else {"steps": recipe.steps}
    batch = "full" if recipe.batch_size is None else recipe.batch_size
    average = {} if recipe.ema_decay is None else {"ema_decay": recipe.ema_decay}
    memory = {"physical_batch_size": _AT_ONCE} if recipe.head_learning_rate is not None else {}
    return {"batch_size": batch, **length, **average, **memory, **said}
