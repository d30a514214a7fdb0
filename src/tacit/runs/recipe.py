"""Settings that a run file leaves out: recipes, and sections for several columns."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.columns import Dialect, Encoder
from tacit.columns.column import parse_columns
from tacit.columns.sections import matching
from tacit.columns.tables import names_of_file
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.pretrained.finding import ModelFolder
from tacit.recipes import (
    BINS,
    LORA_RANK,
    Recipe,
    additive_pays,
    full_recipe,
    linear_recipe,
    lora_recipe,
    lora_targets,
)
from tacit.runs.sections import LINEAR


def with_each_column(run_file: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the sections with a ``*`` by one for each column of the table that they match.

    A column's own section takes precedence.  The columns of people, days and texts are not matched.

    **Guarantee**

    * The result depends only on the run file and on the names of the table's columns.

    Args:
        run_file: the content of the run file.
    """
    declared, data = run_file.get("columns", {}), run_file.get("data", {})
    if not isinstance(declared, Mapping) or not isinstance(data, Mapping):
        return dict(run_file)
    path = next((data[key] for key in ("table", "jsonl") if isinstance(data.get(key), str)), None)
    if path is None or not any("*" in name for name in declared):
        return dict(run_file)

    names = names_of_file(Path(path), Dialect.from_data(run_file.get("table", {}), "[table]"))
    user = data.get("user")
    unused = [data.get("date"), data.get("text"), *(user if isinstance(user, list) else [user])]
    patterns = [name for name in declared if "*" in name and name not in names]
    matched: dict[str, str] = {}
    for pattern in patterns:
        own = [name for name in matching(pattern, names) if name not in declared and name not in unused]
        if not own:
            raise InvalidInput(
                f'[columns."{pattern}"] matches no column of {path} that has no section of its own. Correct '
                "the pattern, in which * stands for any characters, or remove the section."
            )
        if twice := [name for name in own if name in matched]:
            raise InvalidInput(
                f'[columns."{pattern}"] and [columns."{matched[twice[0]]}"] both match the column '
                f"{twice[0]!r}. Give it a section of its own, or change a pattern."
            )
        matched |= dict.fromkeys(own, pattern)

    columns: dict[str, Any] = {}
    for name, facts in declared.items():
        if name in patterns:
            columns |= {each: facts for each in names if matched.get(each) == name}
        else:
            columns[name] = facts
    return {**run_file, "columns": columns}


_BYTES = 4  # per weight
_AT_ONCE = 32  # records, if a body is trained; more records take memory and save no time on a CPU
_FEW_WEIGHTS = 50_000  # assumed for the user's own LoRA settings; the recipe hardly depends on this number
_USUAL = 3.0  # epsilon for the recipe, if the file states the noise instead
_ANY = 1000  # records, if the file does not state their number


def with_recipe(run_file: Mapping[str, Any], tune: str | None = None) -> dict[str, Any]:
    """Fill in the training settings of a linear model of a table, or of a public model that learns a target.

    Stated settings are kept.  If the file lacks a setting that a recipe needs, a later check reports it.

    Args:
        run_file: the content of the run file.
        tune: the part of a public model to train, in place of the file's ``tune``.
    """
    model, data, privacy = (run_file.get(name, {}) for name in ("model", "data", "privacy"))
    if not all(isinstance(section, dict) for section in (model, data, privacy)):
        return dict(run_file)
    records, epsilon = privacy.get("records"), privacy.get("epsilon", _USUAL)
    if isinstance(records, bool) or not isinstance(records, int) or records < 1:
        records = _ANY  # a later check reports the wrong value
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not epsilon > 0:
        epsilon = _USUAL
    public = model.get("huggingface") or model.get("encoder")
    documents = "target" not in data and ("jsonl" in data or "parquet" in data)
    if isinstance(public, str) and not documents:
        return _of_public_model(run_file, tune, records, float(epsilon))
    if model.get("name") in ("auto", *LINEAR) and "table" in data:
        return _of_table(run_file, records, float(epsilon))
    return dict(run_file)


def reasons(text: str) -> list[str]:
    """Return a line with value and reason for each setting that a linear model's run file left out.

    Args:
        text: the text of the run file.
    """
    run_file = with_each_column(tomllib.loads(text))
    filled = with_recipe(run_file)
    model, privacy = filled["model"], filled["privacy"]
    if model.get("name") not in LINEAR or "table" not in filled["data"]:
        return []
    usual = "" if "epsilon" in privacy else f", at a usual epsilon of {_USUAL:g}"
    bins = "fewer than 230 + 300 / epsilon records for each number: bins could cost more than they explain"
    if model["name"] == "additive":
        bins = "at least 230 + 300 / epsilon records for each number, so bins for numbers pay off"
    values = {
        "model name": (model["name"], f"{bins}{usual}"),
        "training steps": (filled["training"].get("steps"), "more steps did not help on twenty tables"),
        "training batch_size": (
            filled["training"].get("batch_size"),
            "fewer records in a step would mean more noise",
        ),
        "optimizer learning_rate": (
            filled["optimizer"].get("learning_rate"),
            "it grows with the number of records and with epsilon",
        ),
        "privacy clipping_norm": (
            privacy["clipping_norm"],
            "the norm of the longest row that the columns allow",
        ),
    }
    lines = []
    for place, (value, why) in values.items():
        section, key = place.split()
        current = run_file.get(section, {}).get(key)
        if value not in (None, "auto") and current in (None, "auto"):
            lines.append(f"[{section}] {key} = {json.dumps(value)}: {why}")
    return lines


def _of_table(run_file: Mapping[str, Any], records: int, epsilon: float) -> dict[str, Any]:
    """Fill in the settings of a linear model of a table by its recipe, with bins for numbers if they help."""
    name, target = run_file["model"]["name"], run_file["data"].get("target")
    columns, recipe = run_file.get("columns", {}), linear_recipe(records, epsilon)
    with suppress(InvalidInput, PrivacyRefusal):  # a later check reports it
        declared = parse_columns(columns)
        encoder = Encoder(declared, target)
        wide = {key: column.with_bins(BINS) for key, column in declared.items()}
        wide = {key: column for key, column in wide.items() if key not in encoder.target_names}
        if name == "auto":
            numbers = sum(column != declared[key] for key, column in wide.items())
            name = "additive" if additive_pays(records, epsilon, numbers) else "linear"
        if name == "additive":
            declared |= wide
            encoder = Encoder(declared, target)
        classes = 1 if encoder.target_bounds else max(2, len(encoder.classes))
        recipe = linear_recipe(records, epsilon, classes=classes, longest=encoder.longest)
        columns = {key: column.to_data() for key, column in declared.items()}
    if name == "auto":  # the columns are wrong
        name = "linear"
    training = _training(recipe, _section(run_file, "training"))
    if "date" in run_file["data"] or run_file["privacy"].get("sampling", "poisson") not in (
        "poisson",
        "full",
    ):
        training["batch_size"] = _section(run_file, "training").get(
            "batch_size", "auto"
        )  # a step takes a part of the records
    return {
        **run_file,
        "model": {**run_file["model"], "name": name},
        "columns": columns,
        "optimizer": _optimizer(recipe, _section(run_file, "optimizer")),
        "training": training,
        "privacy": {"clipping_norm": recipe.clipping_norm, **run_file["privacy"]},
    }


def _of_public_model(
    run_file: Mapping[str, Any], tune: str | None, records: int, epsilon: float
) -> dict[str, Any]:
    model, privacy = run_file["model"], run_file["privacy"]
    if tune is not None:  # [lora] belongs to the file's choice
        run_file = {name: section for name, section in run_file.items() if name != "lora" or tune == "lora"}
    tune = tune or model.get("tune", "auto")
    tune = "head" if tune == "auto" else tune
    recipe, lora = _recipe(
        str(tune), model, _section(run_file, "lora"), records, epsilon, _classes_of(run_file)
    )
    return {
        **run_file,
        **({"lora": lora} if lora else {}),
        "model": {**model, "tune": tune},
        "optimizer": _optimizer(recipe, _section(run_file, "optimizer")),
        "training": _training(recipe, _section(run_file, "training")),
        "privacy": {"clipping_norm": recipe.clipping_norm, **privacy},
    }


def _classes_of(run_file: Mapping[str, Any]) -> int:
    data, target = run_file["data"], run_file["data"].get("target")
    column = run_file.get("columns", {}).get(target) if isinstance(target, str) else None
    if isinstance(column, dict) and column.get("kind") in ("number", "integer") and "values" not in column:
        return 1
    values = column.get("values") if isinstance(column, dict) else data.get("classes")
    return (
        len(values)
        if isinstance(values, list) and len(values) > 1
        else 10
        if data.get("name") == "digits"
        else 2
    )


def _recipe(
    tune: str, model: Mapping[str, Any], lora: dict[str, Any], records: int, epsilon: float, classes: int
) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe for the part that is trained, and ``[lora]``, filled in if it is missing."""
    if tune not in ("lora", "full"):
        recipe = linear_recipe(records, epsilon, classes=classes)
        if classes == 1:  # a head learns no spread, and its squared error has a curvature of up to 4
            recipe = replace(recipe, learning_rate=min(recipe.learning_rate, 0.5), clipping_norm=1.0)
        return recipe, lora
    folder = None if model.get("huggingface") is None else ModelFolder.check(model["huggingface"])
    if tune == "full":
        sizes = [] if folder is None else [file.stat().st_size for file in folder.weight_files]
        return full_recipe(records, epsilon, max(1, sum(sizes) // _BYTES)), lora
    if lora:
        return lora_recipe(records, epsilon, _FEW_WEIGHTS), lora
    if folder is None:
        raise InvalidInput(
            '[model] tune = "lora" needs [lora] rank and targets: for a file of weights, the layers to '
            "correct are not known. Set both in [lora]."
        )
    targets = lora_targets(str(folder.config["model_type"]))
    width, blocks = (int(folder.config.get(key, 0)) for key in ("hidden_size", "num_hidden_layers"))
    upper = [*range(blocks // 2, blocks)]  # leaving the lower blocks unchanged costs little
    weights = 2 * width * LORA_RANK * len(targets) * len(upper)
    recipe = lora_recipe(records, epsilon, max(1, weights))
    return recipe, {"rank": recipe.rank, "alpha": recipe.alpha, "targets": [*targets], "blocks": upper}


def _section(run_file: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = run_file.get(name, {})
    return dict(section) if isinstance(section, dict) else {"": section}


def _optimizer(recipe: Recipe, section: dict[str, Any]) -> dict[str, Any]:
    """Return ``[optimizer]`` with the recipe's rates and momentum, unless it names another optimizer."""
    if section.get("name", recipe.optimizer) != recipe.optimizer:
        return section
    settings: dict[str, Any] = {"name": recipe.optimizer, "learning_rate": recipe.learning_rate}
    more = {name: getattr(recipe, name) for name in ("momentum", "head_learning_rate", "falling")}
    return {**settings, **{key: value for key, value in more.items() if value}, **section}


def _training(recipe: Recipe, section: Mapping[str, Any]) -> dict[str, Any]:
    length = {} if {"steps", "epochs"} & section.keys() else {"steps": recipe.steps}
    batch = "full" if recipe.batch_size is None else recipe.batch_size
    average = {} if recipe.ema_decay is None else {"ema_decay": recipe.ema_decay}
    memory = {"physical_batch_size": _AT_ONCE} if recipe.head_learning_rate is not None else {}
    return {"batch_size": batch, **length, **average, **memory, **section}
