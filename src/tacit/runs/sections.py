"""The sections of a configuration file, with the rules that concern a single section."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from tacit.clipping.rules import (
    AdaptiveClipping,
    AutomaticClipping,
    ClippingRule,
    FlatClipping,
    PerLayerClipping,
)
from tacit.columns.examples import FIELDS, Names
from tacit.errors import InvalidInput, MissingExtra, check_in, check_lengths, check_shares, launched

try:
    from pydantic import BaseModel, ConfigDict, Field, model_validator
except ImportError:
    raise MissingExtra("pydantic", "cli", "reading a configuration file") from None


_Count = Annotated[int, Field(ge=1)]
_Rate = Annotated[float, Field(allow_inf_nan=False, gt=0, le=1e30)]
_Finite = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e30)]  # torch takes a float32
_SOURCES = ("name", "table", "images", "text", "jsonl", "parquet", "database")
_WITH_MOMENTUM = ("sgd", "rmsprop")

DATA_SETS = (
    "digits", "breast-cancer", "wine", "iris", "diabetes", "names",
)  # fmt: skip
"""The names that :func:`tacit.datasets.load` knows."""

NAMES_ALPHABET, NAMES_LONGEST = " abcdefghijklmnopqrstuvwxyz0123456789", 15
"""The characters of a line of the data set names, and its largest length."""


class Section(BaseModel):
    """A section that refuses unknown settings and is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataSection(Section):
    """The data set of the run, named by exactly one key.

    ``name`` is a standard data set, ``table`` a table, ``images`` a folder of images, ``text`` a file of
    lines.  ``jsonl`` and ``parquet`` hold documents for a language model.

    A table needs a ``target`` and ``[columns.NAME]``, its public schema.  If ``target`` is a list of boolean
    columns, they are labels, of which any number may be true; a list of numbers is predicted together.
    In place of ``target``, ``time`` and ``event`` name the columns of a survival model: how long a person was
    observed, a number with declared bounds and bins, and whether the event happened then, a boolean.
    ``text`` names a table's text column; a pretrained model reads its first ``sequence_length`` tokens.
    ``jsonl`` with a ``target`` is such a table, with one JSON object per line.  Images need ``size`` (height,
    width) and ``classes``.  A text file has one record per line, and needs its ``alphabet`` and ``longest``,
    the maximum number of characters in a line.

    ``user`` names the column or field that identifies the person of each row or document.  Each person may
    have only one row, unless ``rows_per_user`` is set.  Each person is then one record, and a step reads at
    most ``rows_per_user`` of the person's rows.  With ``draw = "rows"`` a step draws rows instead, the run
    uses at most ``rows_per_user`` rows per person, and ``records`` and ``batch_size`` count rows.  If a row
    belongs to several people, ``user`` is a list of columns, or a field that contains a list.  Each row then
    counts for all of them, and steps draw rows.

    ``date`` names the column with the day on which a row arrived, for ``sampling = "dates"``.  A step takes
    the rows of ``days_per_step`` days, and the first step begins at ``first_day``.  The data are complete for
    all days before ``until``, by default today.  If a person would take part too often, the run is refused,
    or with ``too_often = "skip"``, the excess rows are skipped.

    ``jsonl`` has one document per line, ``parquet`` one per row; ``text`` names the field with its text.
    ``sequence_length`` is in tokens.  ``documents = "first"`` trains on the first sequence of each document,
    ``"split"`` on all its sequences.  In place of ``text``, other keys name the fields of examples, one per
    line: ``prompt`` and ``completion``; ``messages``, a chat, of which the assistant's turns are learned; or
    ``chosen`` and ``rejected``, two answers to one ``prompt``, or two chats with the same beginning.  If
    ``prompt`` is a list, such as ["instruction", "input"], an empty line separates the texts of its fields,
    and all but the first may be empty.  Messages have role and content, or from and value as in ShareGPT.

    ``lengths``, in place of ``sequence_length``, are several lengths in ascending order, such as [64, 128,
    256, 512]: each record is padded to the smallest that fits.  ``shares`` are the expected fractions of
    records per length, from public knowledge; by default equal.  They affect only time and memory.

    With ``own_records``, each process reads its own table: ``{process}`` in ``table`` is the process's
    number, from 0.  All rows of a person must be in the same table.  ``[privacy] records`` is then a public
    bound for all tables together.

    ``database`` is a table that is summed in place: a PostgreSQL address without a password or a DuckDB file,
    each with a ``table``; or a folder of Parquet files.

    Declare bounds and classes; never read them from the data, since that leaks information about records.
    Paths are relative to the current folder.
    """

    name: str | None = None
    folder: str | None = None
    database: str | None = None
    table: str | None = None
    test_table: str | None = None
    target: str | list[str] | None = None
    time: str | None = None
    event: str | None = None
    images: str | None = None
    size: list[int] = Field(default_factory=list, max_length=2)
    classes: list[str] = Field(default_factory=list)
    colours: int = 3
    text: str | None = None
    prompt: str | Annotated[list[str], Field(min_length=1)] | None = None
    completion: str | None = None
    messages: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    test_text: str | None = None
    alphabet: str | None = None
    longest: _Count | None = None
    jsonl: str | None = None
    test_jsonl: str | None = None
    parquet: str | None = None
    test_parquet: str | None = None
    own_records: bool = False
    user: str | list[str] | None = None
    rows_per_user: _Count | None = None
    date: str | None = None
    first_day: str | None = None
    until: str | None = None
    days_per_step: _Count = 1
    too_often: Literal["refuse", "skip"] = "refuse"
    draw: Literal["users", "rows"] = "users"
    sequence_length: Annotated[int, Field(ge=2)] | None = None
    lengths: list[int] = Field(default_factory=list)
    shares: list[float] | None = None
    documents: Literal["first", "split"] | None = None
    test_fraction: float | None = None
    features: Literal["raw", "scattering", "pictures"] = "raw"

    @property
    def source(self) -> str:
        """The key that names the data.

        With a table or documents, ``text`` is the name of a field, not of the data; so is ``table`` in a
        database.
        """
        return self._source_keys()[0]

    def _source_keys(self) -> list[str]:
        keys = [name for name in _SOURCES if getattr(self, name) is not None]
        others = [self.has_fields and "text", self.database is not None and "table"]
        return [name for name in keys if name not in others]

    @property
    def predicted(self) -> str | list[str] | None:
        """The columns to predict: the target, or the time and the event of a survival model."""
        if self.time is None or self.event is None:
            return self.target
        return [self.time, self.event]

    @property
    def has_fields(self) -> bool:
        """Whether a record has columns or fields."""
        return (self.database or self.table or self.corpus) is not None

    @model_validator(mode="before")
    @classmethod
    def _convert_json_lines(cls, data: Any) -> Any:
        """Convert JSON lines with a target to a table; without one, they are documents."""
        if not isinstance(data, dict) or (data.get("target") is None and data.get("time") is None):
            return data
        names = {"jsonl": "table", "test_jsonl": "test_table"}
        return {names.get(name, name): value for name, value in data.items()}

    @model_validator(mode="before")
    @classmethod
    def _take_last_length(cls, data: Any) -> Any:
        """Let the last of several lengths be the length of a record."""
        lengths = data.get("lengths") if isinstance(data, dict) else None
        return {"sequence_length": lengths[-1], **data} if isinstance(lengths, list) and lengths else data

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if not self.lengths:
            if self.shares is not None:
                raise InvalidInput("[data] shares need [data] lengths. Set lengths, or remove shares.")
            return self
        check_lengths("[data] lengths", self.lengths)
        check_shares("[data] shares", self.shares, len(self.lengths))
        if self.corpus is None:
            raise InvalidInput("[data] lengths apply only to documents (jsonl or parquet). Remove them.")
        if self.sequence_length != self.lengths[-1]:
            raise InvalidInput(
                f"[data] sequence_length = {self.sequence_length} contradicts lengths, whose last value is "
                f"{self.lengths[-1]}. Remove sequence_length."
            )
        return self

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if len(keys := self._source_keys()) != 1:
            raise InvalidInput(
                f"[data] needs exactly one of {', '.join(_SOURCES)}; got {', '.join(keys) or 'none of them'}."
            )
        for key, about in (("user", "of the people"), ("date", "of the days")):
            if getattr(self, key) is not None and not self.has_fields:
                raise InvalidInput(
                    f"[data] {key} names the column or field {about}, so it needs a table or documents. "
                    f"Remove {key}."
                )
        return self

    @model_validator(mode="before")
    @classmethod
    def _take_own_table(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("own_records") is not True:
            return data
        names = {name: data[name] for name in ("table", "jsonl") if isinstance(data.get(name), str)}
        rank = str(launched().rank)
        return data | {name: path.replace("{process}", rank) for name, path in names.items()}

    @model_validator(mode="after")
    def _check_own_table(self) -> Self:
        if self.own_records and (self.table is None or self.text is not None or self.date is not None):
            raise InvalidInput(
                "[data] own_records = true needs [data] table, one per process, without text and date. "
                "Remove own_records to let all processes read the same records."
            )
        return self

    @model_validator(mode="after")
    def _check_survival(self) -> Self:
        if (self.time is None) != (self.event is None):
            raise InvalidInput(
                "[data] time (how long a person was observed) and event (whether the event then happened) "
                "go together. Set both, or neither."
            )
        if self.time is not None and (self.target is not None or self.table is None):
            raise InvalidInput(
                "[data] time and event are the targets of a survival model on a table. Set table, and "
                "remove target."
            )
        return self

    @model_validator(mode="after")
    def _check_people(self) -> Self:
        """Refuse rows_per_user without a column of people, and rows of several people without a bound."""
        several = self.rows_per_user is not None
        if several and self.user is None:
            raise InvalidInput(
                "[data] rows_per_user needs [data] user. Set user to the column or field that identifies "
                "the person."
            )
        if self.draw == "rows" and not several:
            raise InvalidInput(
                '[data] draw = "rows" needs user (the column that identifies people) and rows_per_user (the '
                "most rows per person). Set both, or remove draw."
            )
        if self.user == []:
            raise InvalidInput(
                '[data] user is an empty list. Name a column, such as user = ["sender", "receiver"].'
            )
        if isinstance(self.user, list) and (not several or self.draw != "rows"):
            raise InvalidInput(
                f"[data] user is a list of columns ({', '.join(self.user)}): each row belongs to several "
                'people. Set rows_per_user (the most rows per person) and draw = "rows".'
            )
        return self

    @property
    def fields(self) -> dict[str, Names]:
        """The fields of an example of a language model, by key."""
        given = {key: getattr(self, key) for key in FIELDS}
        return {
            key: tuple(names) if isinstance(names, list) else names
            for key, names in given.items()
            if names is not None
        }

    @property
    def corpus(self) -> str | None:
        """The path of the documents or JSON lines."""
        return self.parquet if self.jsonl is None else self.jsonl

    @property
    def test_corpus(self) -> str | None:
        """The path of separate test documents."""
        return self.test_parquet if self.test_jsonl is None else self.test_jsonl


class PrivacySection(Section):
    """The guarantee, and the mechanism that provides it.  The meaning of the guarantee has no default.

    ``test_noise`` is the standard deviation, in records, of the noise on the run's only test score; it is
    required if the test records belong to the charged data set.  The budget includes its cost.
    ``test_baseline`` is the publicly known score of the majority class or the mean, by default one over the
    number of classes.  ``reference_score`` is the score of the same model without DP on similar public data.

    With ``sampling = "epochs"`` each epoch randomly splits the records into ``records / batch_size`` batches
    (rounded), and ``[training]`` states epochs, or steps that make whole epochs.  With ``sampling =
    "cyclic"`` each record is in one of ``cycle`` parts, and steps use the parts in turn.  Batches are samples
    of a part, or whole parts.  With ``sampling = "dates"`` a step takes the records of its days.  A person
    takes part in at most ``participations`` steps, at least ``separation`` steps apart.  ``correlation`` is
    the kind of correlation between the noise of steps.  "banded" and "inverse" need the number of ``bands``,
    "blt" the number of ``buffers``.  A "tree" restarts every ``restart_every`` steps, by default never.

    ``one_record_per_unit`` states that no unit has two training rows.  It is needed if a column, such as
    ``patient_id`` for the unit "patient", seems to identify the units and has repeated values.
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float
    unit: str
    one_record_per_unit: bool = False
    adjacency: Literal["add-remove", "replace-one", "zero-out"]
    records: int
    sampling: Literal["poisson", "epochs", "full", "shuffled", "truncated-poisson", "cyclic", "dates"] = (
        "poisson"
    )
    cycle: _Count | None = None
    participations: _Count = 1
    separation: _Count = 1
    correlation: Literal["independent", "banded", "inverse", "blt", "tree"] = "independent"
    bands: _Count | None = None
    buffers: _Count | None = None
    restart_every: _Count | None = None
    clipping: Literal["flat", "per-layer", "automatic", "adaptive"] = "flat"
    clipping_norm: float = 1.0
    quantile: float = 0.5
    count_noise: float | None = None
    report_loss: bool = True
    loss_bound: float = 5.0
    test_noise: float | None = None
    test_baseline: Annotated[float, Field(allow_inf_nan=False, ge=0, le=1)] | None = None
    reference_score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    allow_large_delta: bool = False

    def rule(self) -> ClippingRule:
        """Return the clipping rule that the section names."""
        match self.clipping:
            case "flat":
                return FlatClipping(self.clipping_norm)
            case "per-layer":
                return PerLayerClipping(self.clipping_norm)
            case "automatic":
                return AutomaticClipping(self.clipping_norm)
            case "adaptive":
                return AdaptiveClipping(
                    self.clipping_norm, quantile=self.quantile, count_noise=self.count_noise
                )


class OptimizerSection(Section):
    """An optimizer of torch by name, with the usual settings.

    ``head_learning_rate`` is the learning rate of a public model's head, if its body is trained, too.
    ``falling`` decreases the learning rates linearly to 0 over the second half of the steps.
    """

    name: Literal["sgd", "adam", "adamw", "nadam", "rmsprop", "adagrad", "adafactor"] = "sgd"
    learning_rate: _Rate
    head_learning_rate: _Rate | None = None
    falling: bool = False
    momentum: _Finite = 0.0
    weight_decay: _Finite = 0.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.momentum and self.name not in _WITH_MOMENTUM:
            raise InvalidInput(f"[optimizer] {self.name} has no momentum. Remove it, or use sgd or rmsprop.")
        return self


class TrainingSection(Section):
    """The length and the details of training.

    ``batch_size`` is the expected batch size: a number, "full" for all records in each step, or "auto" for a
    twentieth of ``records`` but at least 256.
    ``largest_batch`` is the maximum batch size of ``sampling = "truncated-poisson"``.
    ``loss`` is by default "classification" for classes, "multilabel" for labels, "regression" for numbers,
    "survival" (the likelihood of the bins at risk) for a time and an event,
    -log p of a whole record for text, and "preference" (DPO) for pairs of answers.  "causal" is the mean of
    -log p per character, or per token for language models.
    ``physical_batch_size`` is the maximum number of records in memory at once; "auto" finds the largest that
    fits a GPU.
    ``class_weights`` multiply the losses of the named classes before clipping; other classes have weight 1.
    They are public, so declare them and never compute them from the data.
    ``beta`` is for preferences: the larger it is, the closer the model stays to the public one.
    """

    batch_size: int | Literal["full", "auto"]
    largest_batch: _Count | None = None
    epochs: float | None = None
    steps: int | None = None
    engine: Literal["fast", "reference"] = "fast"
    physical_batch_size: _Count | Literal["auto"] = 512
    loss: Literal["classification", "multilabel", "regression", "survival", "causal", "preference"] | None = (
        None
    )
    class_weights: dict[str, _Finite] = Field(default_factory=dict)
    beta: _Rate = 0.1
    views: _Count = 1
    crop_padding: Annotated[int, Field(ge=0)] = 4
    ema_decay: Annotated[float, Field(ge=0, lt=1)] | None = None


class EvaluationSection(Section):
    """The groups of test records for which the evaluation shows metrics.

    ``by`` are columns of the table that the model reads.  The groups of a column are its declared values; for
    a number they lie between its ``bands``, such as ``bands.age = [30, 50]``.
    """

    by: list[str] = Field(default_factory=list)
    bands: dict[str, list[float]] = Field(default_factory=dict)


class AuditSection(Section):
    """The number of audit slots to plant; 0 for none."""

    slots: Annotated[int, Field(ge=0)] = 0


class CanariesSection(Section):
    """Lines with random secrets, planted in text to test later whether the model remembers them.

    There are ``count[i]`` canaries of ``copies[i]`` copies each.  A secret coin for each canary decides
    whether it is planted.  A canary is ``prefix``, in which a random tag replaces "{name}", and then
    ``length`` random characters of ``alphabet``.
    """

    count: list[_Count] = Field(default_factory=list, max_length=3)
    copies: list[_Count] = Field(default=[1, 4, 16], max_length=3)
    prefix: str = "pin {name} "
    alphabet: str = "0123456789"
    length: _Count = 5


class LedgerSection(Section):
    """The ledger that the run is charged to, and the name of the data set in it; by default no ledger.

    ``chunk`` is the number of steps in a charge.  ``block`` is a part of the data set that shares no person
    with other parts.  ``by`` is the name of the spender in the ledger, by default the user of the system.
    ``one_record_per_unit`` states that no unit has two training records, nor two test records if
    ``test_noise`` is set.  It is needed if the data set's policy does not state this.
    """

    url: str | None = None
    dataset: str | None = None
    chunk: _Count | None = None
    block: str | None = None
    by: str = ""
    one_record_per_unit: bool = False


class RunSection(Section):
    """The output of the run, and how often it is written.

    ``prompts`` are up to ten public prompts. The evaluation shows how the trained and the public language
    model complete them.
    """

    out: str | None = None
    rows: _Count = 20
    checkpoint_every: _Count | None = None
    tensorboard: bool = False
    mlflow: bool = False
    wandb: bool = False
    device: str = "cpu"
    prompts: list[str] = Field(default_factory=list, max_length=10)


_MODELS = ("name", "factory", "huggingface", "encoder")
BEGAN, FEATURES = "public_model.json", "features"
"""The file with the digest of a run's public model, and the folder in private/ for cached features."""
_OF_PRETRAINED = ("tune", "architecture", "image_size")

LINEAR = ("linear", "additive")
"""Linear models of a table, without and with bins for numbers."""
LEAST_SQUARES = "least-squares"
"""The linear model of a table in its database."""
NETWORKS: dict[str, tuple[str, ...]] = {
    "linear": (),
    "additive": (),
    "logistic": ("normalise",),
    "mlp": ("hidden", "activation", "temper"),
    "papernot-mnist-cnn": ("activation", "temper"),
    "papernot-cifar-cnn": ("activation", "temper"),
    "scattering-linear": ("groups",),
    "scattering-cnn": ("groups", "activation", "temper"),
    "window": ("hidden",),
    "abadi-mnist-mlp": (),
    "abadi-cifar-cnn": (),
}
"""The networks that :func:`tacit.models.build` knows, and the options of each."""


def in_run_file(name: str, value: str | None) -> str:
    """Return the run file's key for an argument of the functions that load public models."""
    key = "[data] sequence_length" if name == "length" else f"[model] {name}"
    return key if value is None else f"{key} = {value}"


class ModelSection(Section):
    """The model of a run, named by exactly one of four keys.

    - ``name``: a network of ``tacit.models``.
    - ``factory``: "module:function", the user's own function.  It gets the shape of one record and the number
      of outputs, and returns a torch module.
    - ``huggingface``: a folder in the layout of the Hugging Face hub, with config.json, tokenizer.json and
      model.safetensors.  Without the last file, a causal language model starts from random weights.
    - ``encoder``: a file with an image network: either weights (.pth, .safetensors) of the named
      ``architecture``, or a frozen network (.pt2, .onnx).

    The last two are public models.  Nothing is downloaded.  ``image_size`` is the side length, in pixels, to
    which images are resized.  ``tune`` chooses what is trained: "head", a linear layer on frozen features;
    "lora", low-rank adapters and the head; "full", all weights; or "auto", the choice expected to score best.
    """

    name: str | None = None
    factory: str | None = None
    huggingface: str | None = None
    encoder: str | None = None
    architecture: str | None = None
    image_size: Annotated[int, Field(ge=8)] | None = None
    tune: Literal["head", "lora", "full", "auto"] | None = None
    activation: str | None = None
    temper: list[float] | None = None
    hidden: list[int] | None = None
    groups: int | None = None
    normalise: bool | None = None
    make_private_ready: bool = False

    @property
    def public(self) -> str | None:
        """The folder or file of a public model."""
        return self.huggingface or self.encoder

    @property
    def public_key(self) -> str:
        """The key that names the public model."""
        return f"[model] {'encoder' if self.huggingface is None else 'huggingface'}"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(sources := [kind for kind in _MODELS if getattr(self, kind) is not None]) != 1:
            got = " and ".join(sources) or "none of them"
            raise InvalidInput(f"[model] needs exactly one of {', '.join(_MODELS)}; got {got}.")
        options = ("activation", "temper", "hidden", "groups", "normalise")
        settings = [name for name in options if getattr(self, name) is not None]
        public = [name for name in _OF_PRETRAINED if getattr(self, name) is not None]
        if public and self.public is None:
            raise InvalidInput(
                f"[model] {public[0]} needs a public model (huggingface or encoder), not "
                f"{self.name or self.factory}. Remove {public[0]}."
            )
        if self.architecture is not None and self.encoder is None:
            raise InvalidInput(
                "[model] architecture is only for [model] encoder; a model's folder has its architecture in "
                "config.json. Remove architecture."
            )
        if self.name == LEAST_SQUARES:
            return self
        if self.name is not None:
            allowed = NETWORKS[check_in("[model] name", self.name, tuple(NETWORKS))]
            if unknown := [name for name in settings if name not in allowed]:
                raise InvalidInput(
                    f"[model] name = {self.name!r} has no option {unknown[0]!r}; it has "
                    f"{', '.join(allowed) or 'none'}. Remove {unknown[0]}, or take another network."
                )
            return self
        if self.public is not None and self.make_private_ready:
            settings.append("make_private_ready")
        target = f"the model in {self.public}" if self.factory is None else f"the factory {self.factory}"
        where = "Remove them" if self.factory is None else "Set them inside the function"
        if settings:
            raise InvalidInput(
                f"[model] {', '.join(settings)} cannot be set for {target}: they apply only to Tacit's own "
                f"networks. {where}."
            )
        return self


class LoraSection(Section):
    """Low-rank adaptation (LoRA) of a public model, of this ``rank`` for each layer in ``targets``.

    The layers are named as in the model, such as "c_attn" in GPT-2.  The adapter is scaled by ``alpha /
    rank``, by default 1.  All other weights are frozen.  ``blocks`` are the numbers, from 0, of the model's
    blocks to adapt; by default all.
    """

    rank: _Count | None = None
    alpha: _Count | None = None
    targets: list[str] = Field(default_factory=list)
    blocks: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.model_fields_set and self.rank is None:
            raise InvalidInput("[lora] rank is missing. Set it to the rank of the adapters, such as 8.")
        if self.rank is not None and not self.targets:
            raise InvalidInput(
                '[lora] targets is missing. Name the layers to adapt, such as ["c_attn"] for GPT-2 and '
                '["q_proj", "v_proj"] for Llama.'
            )
        return self
