"""A run file: its sections together, recipes for what it leaves out, and sections for several columns."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from pydantic import Field, ValidationError, model_validator

from tacit.columns import Column, Dialect, Encoder
from tacit.columns.column import parse_columns
from tacit.columns.examples import FIELDS
from tacit.columns.sections import matching, refuse_blanks
from tacit.columns.tables import names_of_file
from tacit.errors import InvalidInput, PrivacyRefusal, reason_of
from tacit.pretrained.finding import ModelFolder
from tacit.recipes import (
    BINS,
    LORA_RANK,
    Recipe,
    additive_pays,
    full_recipe,
    hazard_recipe,
    linear_recipe,
    lora_recipe,
    lora_targets,
)
from tacit.report.checklist import check_card
from tacit.runs.sections import (
    LEAST_SQUARES,
    LINEAR,
    AuditSection,
    CanariesSection,
    DataSection,
    EvaluationSection,
    LedgerSection,
    LoraSection,
    ModelSection,
    OptimizerSection,
    PrivacySection,
    RunSection,
    Section,
    TrainingSection,
)

# The settings of a run on a database, by section, and those of its one release of all records.
_OF_DATABASE: dict[str, tuple[str, ...]] = {
    "data": ("database", "table", "test_table", "target", "user"),
    "model": ("name",),
    "privacy": ("epsilon", "noise_multiplier", "delta", "unit", "adjacency", "records", "allow_large_delta"),
    "run": ("out",),
    "ledger": ("url", "dataset", "block", "by", "one_record_per_unit"),
}
_ONE_RELEASE: dict[str, dict[str, Any]] = {
    "optimizer": {"learning_rate": 1.0},
    "training": {"batch_size": "full", "steps": 1},
    "privacy": {"sampling": "full", "report_loss": False},
}
_PASSWORD = re.compile(r"://[^@]*:[^@]*@|password\s*=", re.IGNORECASE)


def refuse_passwords(run_file: Mapping[str, Any]) -> None:
    """Refuse an address with a password, since the run file is copied to the run's folder."""
    for section, key in (("data", "database"), ("ledger", "url")):
        if _PASSWORD.search(unquote(str(_section(run_file, section).get(key)))):
            raise InvalidInput(
                f"[{section}] {key} contains a password, but the run file is copied to the model's folder. "
                "Put it in ~/.pgpass or the variable PGPASSWORD instead."
            )


def of_database(run_file: Mapping[str, Any]) -> dict[str, Any]:
    """Check a run file whose data are a table in a database, and fill in the settings of its one release."""
    data, columns = _section(run_file, "data"), _section(run_file, "columns")
    if ("database" in data) != (_section(run_file, "model").get("name") == LEAST_SQUARES):
        raise InvalidInput(
            f'[data] database works only with [model] name = "{LEAST_SQUARES}", and this model only with '
            "[data] database. Set both, or neither."
        )
    if "database" not in data:
        return dict(run_file)
    for key in ("target", "user"):
        if not isinstance(data.get(key, ""), str):
            raise InvalidInput(f"[data] {key} = {data[key]!r} must be one column of the database. Name one.")
    for name, model in Config.model_fields.items():
        section = _section(run_file, name)
        settings = section if name == "table" else getattr(model.annotation, "model_fields", ())
        for key in [key for key in section if key in settings and key not in _OF_DATABASE.get(name, ())]:
            raise InvalidInput(
                f"[{name}] {key} does not apply to [data] database: that linear model is computed at once, "
                f"from noisy sums over all rows. Remove {key}."
            )
    for name in columns:
        if "*" in name or name == data.get("user"):
            raise InvalidInput(
                f'[columns."{name}"] is neither an input nor the target of the database. Remove it.'
            )
    filled = {name: _section(run_file, name) | settings for name, settings in _ONE_RELEASE.items()}
    return {**run_file, **filled}


def with_each_column(run_file: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the sections with a ``*`` by one for each column of the table that they match.

    A column's own section takes precedence.  The user, date and text columns are not matched.

    **Guarantee**

    * The result depends only on the run file and on the names of the table's columns.
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
                f'[columns."{pattern}"] matches no undeclared column of {path}. Correct the pattern (* '
                "matches any characters), or remove the section."
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
    """Fill in the training settings of a linear model of a table or a public model that is fine-tuned to a
    target.

    Stated settings are kept.  If the file lacks a setting that a recipe needs, a later check reports it.
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
    documents = not {"target", "time"} & data.keys() and ("jsonl" in data or "parquet" in data)
    if isinstance(public, str) and not documents:
        return _of_public_model(run_file, tune, records, float(epsilon))
    if model.get("name") in ("auto", *LINEAR) and {"table", "time"} & data.keys():
        return _of_table(run_file, records, float(epsilon))
    return dict(run_file)


def reasons(text: str) -> list[str]:
    run_file = with_each_column(tomllib.loads(text))
    filled = with_recipe(run_file)
    model, privacy = filled["model"], filled["privacy"]
    if model.get("name") not in LINEAR or "table" not in filled["data"]:
        return []
    usual = "" if "epsilon" in privacy else f", at a usual epsilon of {_USUAL:g}"
    bins = "fewer than 230 + 300 / epsilon records per number: the noise on bins could outweigh their gain"
    if model["name"] == "additive":
        bins = "at least 230 + 300 / epsilon records per number, so binning numbers pays off"
    elif "time" in filled["data"]:
        bins = "binning numbers did not help survival models on three tables"
    values = {
        "model name": (model["name"], f"{bins}{usual}"),
        "training steps": (filled["training"].get("steps"), "more steps did not help on twenty tables"),
        "training batch_size": (
            filled["training"].get("batch_size"),
            "smaller batches would mean more noise",
        ),
        "optimizer learning_rate": (
            filled["optimizer"].get("learning_rate"),
            "it grows with the number of records and with epsilon",
        ),
        "privacy clipping_norm": (
            privacy["clipping_norm"],
            "the largest row norm that the columns allow",
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
    name, data = run_file["model"]["name"], run_file["data"]
    target = [data["time"], data.get("event")] if "time" in data else data.get("target")
    columns, recipe = run_file.get("columns", {}), linear_recipe(records, epsilon)
    with suppress(InvalidInput, PrivacyRefusal):  # a later check reports it
        declared = parse_columns(columns)
        encoder = Encoder(declared, target)
        wide = {key: column.with_bins(BINS) for key, column in declared.items()}
        wide = {key: column for key, column in wide.items() if key not in encoder.target_names}
        if name == "auto":
            numbers = sum(column != declared[key] for key, column in wide.items())
            pays = additive_pays(records, epsilon, numbers) and not encoder.time_edges
            name = "additive" if pays else "linear"
        if name == "additive":
            declared |= wide
            encoder = Encoder(declared, target)
        classes = 1 if encoder.target_bounds else max(2, len(encoder.classes))
        recipe = linear_recipe(records, epsilon, classes=classes, longest=encoder.longest)
        if encoder.time_edges:
            recipe = hazard_recipe(records, epsilon, longest=encoder.longest)
        columns = {key: column.to_data() for key, column in declared.items()}
    if name == "auto":  # the columns are wrong
        name = "linear"
    model = {**run_file["model"], "name": name}
    filled = _filled({**run_file, "model": model, "columns": columns}, recipe)
    poisson = run_file["privacy"].get("sampling", "poisson") in ("poisson", "full")
    if "date" in run_file["data"] or not poisson:  # a step takes a part of the records
        filled["training"]["batch_size"] = _section(run_file, "training").get("batch_size", "auto")
    return filled


def _of_public_model(
    run_file: Mapping[str, Any], tune: str | None, records: int, epsilon: float
) -> dict[str, Any]:
    model = run_file["model"]
    if tune is not None:  # [lora] belongs to the file's choice
        run_file = {name: section for name, section in run_file.items() if name != "lora" or tune == "lora"}
    tune = tune or model.get("tune", "auto")
    tune = "head" if tune == "auto" else tune
    classes = _classes_of(run_file)
    recipe, lora = _recipe(str(tune), model, _section(run_file, "lora"), records, epsilon, classes)
    filled = _filled({**run_file, "model": {**model, "tune": tune}}, recipe)
    return filled | {"lora": lora} if lora else filled


def _classes_of(run_file: Mapping[str, Any]) -> int:
    data, target = run_file["data"], run_file["data"].get("target")
    column = run_file.get("columns", {}).get(target) if isinstance(target, str) else None
    if isinstance(column, dict) and column.get("kind") in ("number", "integer") and "values" not in column:
        return 1
    values = column.get("values") if isinstance(column, dict) else data.get("classes")
    if isinstance(values, list) and len(values) > 1:
        return len(values)
    return 10 if data.get("name") == "digits" else 2


def _recipe(
    tune: str, model: Mapping[str, Any], lora: dict[str, Any], records: int, epsilon: float, classes: int
) -> tuple[Recipe, dict[str, Any]]:
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
            '[model] tune = "lora" has no default layers to adapt in a file of weights. Set [lora] rank and '
            "targets."
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


def _filled(run_file: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Fill in the recipe's settings that are not stated, unless another optimizer is named."""
    optimizer, training = _section(run_file, "optimizer"), _section(run_file, "training")
    if optimizer.get("name", recipe.optimizer) == recipe.optimizer:
        more = {name: getattr(recipe, name) for name in ("momentum", "head_learning_rate", "falling")}
        rates = {key: value for key, value in more.items() if value}
        usual = {"name": recipe.optimizer, "learning_rate": recipe.learning_rate}
        optimizer = {**usual, **rates, **optimizer}

    length: dict[str, Any] = {"batch_size": "full" if recipe.batch_size is None else recipe.batch_size}
    if run_file["privacy"].get("sampling") == "epochs":  # the file states how many
        length["batch_size"] = "auto"
    elif not {"steps", "epochs"} & training.keys():
        length["steps"] = recipe.steps
    if recipe.ema_decay is not None:
        length["ema_decay"] = recipe.ema_decay
    if recipe.head_learning_rate is not None:
        length["physical_batch_size"] = _AT_ONCE
    privacy = {"clipping_norm": recipe.clipping_norm, **run_file["privacy"]}
    return {**run_file, "optimizer": optimizer, "training": {**length, **training}, "privacy": privacy}


_NO_PICTURES = ("names", "breast-cancer", "wine", "iris", "diabetes")
_ONLY_DOCUMENTS = ("test_jsonl", "test_parquet", "documents", *(key for key in FIELDS if key != "text"))
# Settings that may change when a run is resumed, since no result depends on them.  Records and a public model
# are recognised by digests, not by their paths, and the resume state holds the ledger.
_FREE = (
    "notes", "run.out", "run.rows", "run.checkpoint_every", "run.tensorboard",
    "run.mlflow", "run.wandb", "run.prompts",
    "data.folder", "data.table", "data.test_table", "data.images",
    "data.text", "data.test_text", "data.jsonl", "data.test_jsonl", "data.parquet", "data.test_parquet",
    "data.until", "model.huggingface", "model.encoder",
    "ledger.url", "ledger.dataset", "ledger.chunk", "ledger.block", "ledger.by", "ledger.one_record_per_unit",
    "evaluation.by", "evaluation.bands",
    "privacy.test_baseline", "privacy.reference_score", "privacy.one_record_per_unit",
)  # fmt: skip
# Settings that accept several types, since pydantic reports one error for each type.
_ALTERNATIVES = {"batch_size": 'a whole number, "full" or "auto"'}


class Config(Section):
    """The configuration of a run.

    ``columns`` and ``table`` describe a table, as in a ledger's policy.  ``card`` adds to the model card
    a ``license`` and statements, as in a certificate.
    """

    data: DataSection
    columns: dict[str, Any] = Field(default_factory=dict)
    table: dict[str, Any] = Field(default_factory=dict)
    model: ModelSection
    lora: LoraSection = LoraSection()
    privacy: PrivacySection
    optimizer: OptimizerSection
    training: TrainingSection
    run: RunSection = RunSection()
    evaluation: EvaluationSection = EvaluationSection()
    audit: AuditSection = AuditSection()
    canaries: CanariesSection = CanariesSection()
    ledger: LedgerSection = LedgerSection()
    notes: list[str] = Field(default_factory=list)
    card: dict[str, Any] = Field(default_factory=dict)

    @property
    def pretrained(self) -> bool:
        """Whether the run fine-tunes a public model to a target, not a language model on documents."""
        return self.model.public is not None and self.data.corpus is None

    @property
    def public_settings(self) -> dict[str, Any]:
        model = self.model
        return {
            "architecture": model.architecture,
            "length": self.data.sequence_length,
            "image_size": model.image_size,
        }

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        privacy, data = self.privacy, self.data
        pairs: list[tuple[str, bool, str, object]] = [
            (f'[privacy] {key} = "{words}"', getattr(privacy, key) in words.split('" or "'), other, value)
            for key, words, other, value in (
                ("sampling", "truncated-poisson", "[training] largest_batch", self.training.largest_batch),
                ("sampling", "cyclic", "[privacy] cycle (the number of parts)", privacy.cycle),
                ("sampling", "dates", "[data] date (the column with each row's day)", data.date),
                ("correlation", 'banded" or "inverse', "[privacy] bands (their number)", privacy.bands),
                ("correlation", "blt", "[privacy] buffers (3 are enough for most runs)", privacy.buffers),
            )
        ]
        documents = f"[data] {'jsonl or parquet' if data.corpus is None else data.source} (documents)"
        model = "[model] huggingface (a language model with its tokenizer)"
        of_language = None if self.pretrained else self.model.huggingface
        pairs.append((documents, data.corpus is not None, model, of_language))
        for setting, is_set, other, value in pairs:
            if is_set != (value is not None):
                raise InvalidInput(f"{setting} and {other} go together: set both, or neither.")
        return self

    @model_validator(mode="after")
    def _check_noise_in_time(self) -> Self:
        privacy = self.privacy
        if privacy.restart_every is not None and privacy.correlation != "tree":
            raise InvalidInput(
                '[privacy] restart_every (steps until a tree restarts) applies only to correlation = "tree". '
                "Remove it."
            )
        if privacy.correlation != "independent" and privacy.report_loss:
            raise InvalidInput(
                "[privacy] report_loss has no proven privacy cost with correlated noise. Set report_loss = "
                "false, and use the test metrics."
            )
        if privacy.cycle is not None and self.training.batch_size == "full":
            raise InvalidInput(
                '[training] batch_size = "full" does not fit [privacy] cycle: a step uses only one of '
                f"{privacy.cycle} parts of the records. Set batch_size to at most "
                f"{max(1, round(privacy.records / privacy.cycle))}, one part."
            )
        return self

    @model_validator(mode="after")
    def _check_dates(self) -> Self:
        data, privacy, training = self.data, self.privacy, self.training
        if data.date is None:
            return self
        if self.canaries.count:
            raise InvalidInput(
                "[canaries] cannot be used with [data] date: a canary has no day. Remove [canaries]."
            )
        if data.first_day is None:
            raise InvalidInput(
                '[data] first_day is missing. Set it to the first day of the stream, such as "2026-01-01".'
            )
        if training.steps is None or training.batch_size == "full":
            raise InvalidInput(
                "[training] needs steps and batch_size in a run by date. Set steps for the whole stream, and "
                'batch_size to the average rows or people per step, or to "auto" (records / steps). "full" '
                "is not supported."
            )
        if data.user is not None and data.rows_per_user is None:
            raise InvalidInput(
                f"[data] user = {data.user!r} needs rows_per_user in a run by date: the same person may "
                "appear in the next file. Set it, and limit how often a person takes part with [privacy] "
                "participations and separation."
            )
        if data.user is None and (privacy.participations, privacy.separation) != (1, 1):
            raise InvalidInput(
                "[privacy] participations and separation limit how often a person takes part, so they need "
                "[data] user. Set user and rows_per_user, or remove them."
            )
        return self

    @model_validator(mode="after")
    def _check_people(self) -> Self:
        """Refuse rows_per_user if people are not the unit of privacy, or if no guarantee is proven."""
        data, unit = self.data, self.privacy.unit
        if data.rows_per_user is None:
            return self
        if isinstance(data.user, list) and self.privacy.adjacency == "add-remove":
            raise PrivacyRefusal(
                '[privacy] adjacency = "add-remove" has no proven bound if a row belongs to several people: '
                "removing one person could change without limit which rows of the others are selected. Set "
                'adjacency = "zero-out" or "replace-one". They protect the content of a person\'s rows, and '
                "take the people of each row as public."
            )
        if unit in ("row", "record", "sequence", "document"):
            raise PrivacyRefusal(
                f'[privacy] unit = "{unit}" does not fit [data] rows_per_user, with which each record is a '
                'whole person. Set unit to what a person is, such as "user". Count people in records and '
                "batch_size."
            )
        if self.canaries.count:
            raise InvalidInput(
                "[canaries] cannot be used if records are people: a canary is a line of text. Remove "
                "[canaries]."
            )
        return self

    @model_validator(mode="after")
    def _check_language(self) -> Self:
        keys = [f"[data] {name}" for name in _ONLY_DOCUMENTS if getattr(self.data, name) is not None]
        if not self.pretrained:
            keys += ["[data] sequence_length"] if self.data.sequence_length is not None else []
            keys += ["[lora]"] if self.lora.model_fields_set else []
        keys += ["[run] prompts"] if self.run.prompts else []
        if keys and self.data.corpus is None:
            raise InvalidInput(
                f"{keys[0]} is only for language models, with [model] huggingface and [data] jsonl or "
                "parquet. Remove it."
            )
        if "beta" in self.training.model_fields_set and self.data.chosen is None:
            raise InvalidInput(
                "[training] beta is only for preferences ([data] chosen and rejected). Remove beta."
            )
        if not self.pretrained and self.model.tune is not None:
            raise InvalidInput(
                "[model] tune needs [data] target. Set target, or remove tune: a language model without a "
                "target trains all weights, or those of [lora]."
            )
        return self

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        by, data = self.evaluation.by, self.data
        if by and (data.source != "table" or self.pretrained or data.time is not None):
            raise InvalidInput(
                "[evaluation] by needs a table with a target and declared input columns. Text, images and "
                "survival models have no metrics by group. Remove it."
            )
        if set(self.evaluation.bands) - set(by):
            raise InvalidInput(
                f"[evaluation] bands must be for columns in by ({', '.join(by)}); got "
                f"{', '.join(self.evaluation.bands)}."
            )
        return self

    @model_validator(mode="after")
    def _check_public_model(self) -> Self:
        """Refuse data that a public model cannot read, and text without a model that reads it."""
        data, model = self.data, self.model
        if self.optimizer.head_learning_rate is not None and (not self.pretrained or model.tune == "head"):
            raise InvalidInput(
                "[optimizer] head_learning_rate is for the last layer if others are trained too, with "
                '[model] tune = "lora" or "full". Remove it; learning_rate applies to all weights.'
            )
        if data.table is not None and data.text is not None and model.huggingface is None:
            raise InvalidInput(
                f"[data] text = {data.text!r} needs a public model to read that column. Set [model] "
                "huggingface to its folder, or remove text to train on the other columns."
            )
        if not self.pretrained:
            return self
        if data.table is not None and data.text is None:
            raise InvalidInput(
                f"[model] {model.public} needs text or images. Set [data] text to the text column, or "
                "[data] images to a folder of images."
            )
        if data.source == "text" or data.features != "raw" or data.name in _NO_PICTURES:
            source = "a file of lines" if data.source == "text" else f'features = "{data.features}"'
            source = source if data.name not in _NO_PICTURES else f'name = "{data.name}"'
            raise InvalidInput(
                f"[data] {source} cannot be used with a public model ({model.public}). Give a table with a "
                "text column and a target, or images without [data] features."
            )
        if model.tune in ("head", "full") and self.lora.model_fields_set:
            raise InvalidInput(
                f'[lora] applies only to [model] tune = "lora"; got "{model.tune}". Set tune = "lora", or '
                "remove [lora]."
            )
        return self

    def read_columns(self, source: str = "") -> dict[str, Column]:
        return parse_columns(self.columns, source=source)

    def groups(self, encoder: Any, inputs: Any) -> dict[str, tuple[tuple[str, ...], Any]]:
        """Return the groups of each column of ``[evaluation] by``, for which there is an :class:`Encoder`."""
        bands = self.evaluation.bands
        return {by: encoder.groups(inputs, by, bands.get(by, ())) for by in self.evaluation.by}

    def read_dialect(self, source: str = "") -> Dialect:
        return Dialect.from_data(self.table, f"{source}[table]")


def read_config(path: Path | str, *, tune: str | None = None) -> Config:
    """Read a configuration file and check it.

    One error lists all mistakes, with suggestions.

    Args:
        path: the TOML file.
        tune: the part of a public model to train, instead of ``tune`` in the file.

    Raises:
        InvalidInput: if the file does not exist, is not TOML, or lacks something that a run needs.

    >>> import tacit.runs
    >>> demo = Path(tacit.runs.__file__).with_name("demo.toml")
    >>> read_config(demo).privacy.epsilon
    3.0
    """
    return parse_config(read_text(path), str(path), tune=tune)


def read_text(path: Path | str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInput(f"there is no run file at {path}. Check the path.") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(
            f"cannot read the run file {path}: {reason_of(problem)}. Check the path."
        ) from None


def parse_config(text: str, origin: str, *, tune: str | None = None) -> Config:
    refuse_blanks(text, origin)
    try:
        run_file = tomllib.loads(text)
        refuse_passwords(run_file)
        data = with_recipe(with_each_column(of_database(run_file)), tune)
    except tomllib.TOMLDecodeError as problem:
        raise InvalidInput(f"{origin} is not valid TOML: {problem}.") from None
    try:
        config = Config.model_validate(data)
    except ValidationError as problem:
        complaints = dict.fromkeys(_complaint(item) for item in problem.errors())
        raise InvalidInput(f"{origin}: {' '.join(complaints)}") from None
    if config.data.source not in ("table", "database") and (config.columns or config.table):
        raise InvalidInput(
            f"{origin}: [columns] and [table] describe a table, so they need [data] table. Set it, or "
            "remove them."
        )
    config.read_columns(f"{origin}: ")
    config.read_dialect(f"{origin}: ")
    try:
        check_card(config.card)
    except InvalidInput as problem:
        raise InvalidInput(f"{origin}: [card]: {problem}") from None
    return config


def differences(old: Config, new: Config) -> list[str]:
    """Return the settings in which two configurations differ, except those that change no result."""
    before, after = _flat(old), _flat(new)
    return [
        f"{name} was {before.get(name)!r} and is {after.get(name)!r}"
        for name in dict.fromkeys([*before, *after])
        if name not in _FREE and not name.startswith("card.") and before.get(name) != after.get(name)
    ]


def _flat(config: Config) -> dict[str, Any]:
    flat: dict[str, Any] = {"notes": config.notes}
    for section in (name for name in Config.model_fields if name != "notes"):
        settings = getattr(config, section)
        items = settings.items() if isinstance(settings, dict) else settings
        flat |= {f"{section}.{name}": value for name, value in items}
    return flat


def _complaint(item: Any) -> str:
    if isinstance(own := item.get("ctx", {}).get("error"), InvalidInput):  # raised by a validator above
        return str(own)
    place = [str(part) for part in item["loc"]]
    if len(place) < 2:
        name = place[0]
        if name in Config.model_fields:
            problem = "is missing" if item["type"] == "missing" else "must be a section, written [name]"
            return f"[{name}] {problem}."
        return f"[{name}] is not a section{_guess(name, list(Config.model_fields))}"
    section, setting = place[:2]
    where = f"[{section}] {setting}"
    fields = Config.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
    match item["type"]:
        case "extra_forbidden":
            return f"{where} is not a setting{_guess(setting, list(fields))}"
        case "missing":
            return f"{where} is missing and has no default."
    if setting in _ALTERNATIVES:
        return f"{where} must be {_ALTERNATIVES[setting]}; got {item['input']!r}."
    return f"{where} = {item['input']!r}: {item['msg'][0].lower()}{item['msg'][1:]}."


def _guess(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}."
