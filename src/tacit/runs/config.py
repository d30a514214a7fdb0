"""What may a configuration file say? A long list of public facts in TOML, checked before data is read."""

from __future__ import annotations

import difflib
import tomllib
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

from tacit.clipping.rules import (
    AdaptiveClipping,
    AutomaticClipping,
    ClippingRule,
    FlatClipping,
    PerLayerClipping,
)
from tacit.columns import Column, Dialect, parse_columns
from tacit.columns.sections import refuse_blanks
from tacit.errors import Deprecated, InvalidInput, MissingExtra, reason_of
from tacit.report.certificate.statements import check_card

try:
    from pydantic import BaseModel, ConfigDict, Field, ValidationError
except ImportError:
    raise MissingExtra("pydantic", "cli", "reading a configuration file") from None

_Count = Annotated[int, Field(ge=1)]
_Finite = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e30)]  # torch takes a float32
# What may change between a run and its resumption: no result depends on it.  The resume state recognises the
# records by a keyed digest, not by their path; it also holds where the run is charged.
_FREE = (
    "notes", "run.out", "run.rows", "run.checkpoint_every", "run.tensorboard",
    "run.mlflow", "run.wandb",
    "data.folder", "data.download", "data.table", "data.test_table", "data.images",
    "data.text", "data.test_text", "data.jsonl", "data.test_jsonl", "data.parquet", "data.test_parquet",
    "data.until",
    "ledger.url", "ledger.dataset", "ledger.chunk", "ledger.block", "ledger.by", "ledger.one_record_per_unit",
    "privacy.test_baseline",
)  # fmt: skip
# Settings of several types: pydantic reports one error for each type.
_ALTERNATIVES = {"batch_size": 'a whole number, "full" or "auto"'}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataSection(_Section):
    """Where the records come from: a data set by ``name``, a ``table``, a folder of ``images``, a ``text``,
    or documents for a language model, ``jsonl`` or ``parquet``.

    A table needs a ``target`` and ``[columns.NAME]``, its public schema; pictures need ``size`` (height,
    width) and ``classes``; a text, one record a line, its ``alphabet`` and the ``longest`` line's characters.

    ``user`` names the column or field of the person whom a row or document is of, who may have one; with
    ``rows_per_user`` a record is a person with all rows, and a step reads so many of it.  With
    ``draw = "rows"`` a step draws rows, of which each person keeps so many; ``records`` and ``batch_size``
    count rows then.  Where rows are of several people, ``user`` is a list of columns, or a field that holds a
    list; each row counts against all of them, and steps draw rows.

    ``date`` names the column of a table that says on which day a row arrived, for ``sampling = "dates"``: a
    step takes the rows of ``days_per_step`` days, the first those from ``first_day`` on.  Days before
    ``until``, by default today, are there in full.  Where people would take part too often, the data are
    refused, or, with ``too_often = "skip"``, these rows skipped.

    ``jsonl`` has one document a line, ``parquet`` one a row; ``text`` names its field.  ``sequence_length``
    is in tokens.  ``documents`` says what becomes of a document: "first", its first sequence, or "split",
    each of them.

    What is read from the data leaks: declare bounds and classes.  Paths are relative to the current folder.
    """

    name: str | None = None
    folder: str | None = None
    download: bool = False
    table: str | None = None
    test_table: str | None = None
    target: str | None = None
    columns: dict[str, Any] = Field(default_factory=dict)  # the old place
    missing: Literal["refuse", "constant"] = "refuse"  # an old form: now said by column
    images: str | None = None
    size: list[int] = Field(default_factory=list, max_length=2)
    classes: list[str] = Field(default_factory=list)
    colours: int = 3
    text: str | None = None
    test_text: str | None = None
    alphabet: str | None = None
    longest: _Count | None = None
    jsonl: str | None = None
    test_jsonl: str | None = None
    parquet: str | None = None
    test_parquet: str | None = None
    user: str | list[str] | None = None
    rows_per_user: _Count | None = None
    date: str | None = None
    first_day: str | None = None
    until: str | None = None
    days_per_step: _Count = 1
    too_often: Literal["refuse", "skip"] = "refuse"
    draw: Literal["users", "rows"] = "users"
    sequence_length: Annotated[int, Field(ge=2)] | None = None
    documents: Literal["first", "split"] | None = None
    test_fraction: float | None = None
    features: Literal["raw", "scattering", "pictures"] = "raw"

    @property
    def lines(self) -> str | None:
        """The path of a text with one record a line; of documents, ``text`` is the name of a field."""
        return self.text if self.corpus is None else None

    @property
    def corpus(self) -> str | None:
        """The path of the documents for a language model."""
        return self.parquet if self.jsonl is None else self.jsonl

    @property
    def test_corpus(self) -> str | None:
        """The path of the test documents, where they are apart."""
        return self.test_parquet if self.test_jsonl is None else self.test_jsonl


class ModelSection(_Section):
    """A network of ``tacit.models`` by name, ``factory = "module:function"`` of the user's own, or a language
    model, ``huggingface = "folder"``.

    The function gets the shape of one record and the number of outputs, and returns a torch module.  The
    folder holds files as the Hugging Face hub lays them out: config.json, tokenizer.json and
    model.safetensors; without the last the weights are random.  Nothing is downloaded.
    """

    name: str | None = None
    factory: str | None = None
    huggingface: str | None = None
    activation: str | None = None
    temper: list[float] | None = None
    hidden: list[int] | None = None
    groups: int | None = None
    normalise: bool | None = None
    make_private_ready: bool = False


class LoraSection(_Section):
    """Low-rank adaptation of a language model: of each layer in ``targets``, a correction of this ``rank``.

    The layers are named as in the model, such as "c_attn" of GPT-2.  The correction counts ``alpha / rank``
    times, by default once.  All other weights stay as they are.
    """

    rank: _Count | None = None
    alpha: _Count | None = None
    targets: list[str] = Field(default_factory=list)


class PrivacySection(_Section):
    """The promise: its meaning has no default.

    ``test_noise`` is for test records of the data set that the run is charged to: the standard deviation, in
    records, of the noise on the run's only test score, which is part of the budget.  ``test_baseline`` is the
    score of a constant answer that this score is held against, known without these records; by default one
    over the number of classes.

    With ``sampling = "cyclic"`` each record is in one of ``cycle`` parts, which take turns; batches are
    samples of them, or the parts themselves.  With ``sampling = "dates"`` a step takes the records of its
    days; a person takes part in at most so many steps (``participations``), so many steps apart
    (``separation``).  ``correlation`` of the noise in time has so many ``bands``, or ``buffers``; a
    "tree" begins anew every so many steps (``restart_every``), or never.
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float
    unit: str
    adjacency: Literal["add-remove", "replace-one", "zero-out"]
    records: int
    sampling: Literal["poisson", "full", "shuffled", "truncated-poisson", "cyclic", "dates"] = "poisson"
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
    allow_large_delta: bool = False

    def rule(self) -> ClippingRule:
        """The clipping rule that the section names."""
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


class OptimizerSection(_Section):
    """An optimizer of torch by name, with the usual settings."""

    name: Literal["sgd", "adam", "adamw", "nadam", "rmsprop", "adagrad"] = "sgd"
    learning_rate: Annotated[float, Field(allow_inf_nan=False, gt=0, le=1e30)]
    momentum: _Finite = 0.0
    weight_decay: _Finite = 0.0


class TrainingSection(_Section):
    """How long and how: ``batch_size`` is the expected one.

    It may be "full", all records in each step, or "auto", a twentieth of ``records`` but at least 256.
    ``largest_batch`` goes with ``sampling = "truncated-poisson"``: larger samples are cut to it.
    ``loss`` is that of the data by default: "classification" for classes, "regression" for numbers, and for
    text -log p of a whole record; "causal" is its mean per character, and that of language models per token.
    ``class_weights`` multiply the loss of records of the classes that they name, before clipping; others have
    the weight 1.  They are public: declare them, never count them from the data.
    """

    batch_size: int | Literal["full", "auto"]
    largest_batch: _Count | None = None
    epochs: float | None = None
    steps: int | None = None
    engine: Literal["fast", "reference"] = "fast"
    physical_batch_size: _Count = 512
    loss: Literal["classification", "regression", "causal"] | None = None
    class_weights: dict[str, _Finite] = Field(default_factory=dict)
    views: _Count = 1
    crop_padding: Annotated[int, Field(ge=0)] = 4
    ema_decay: float | None = None


class AuditSection(_Section):
    """How many audit slots are planted; 0 for none."""

    slots: Annotated[int, Field(ge=0)] = 0


class CanariesSection(_Section):
    """Lines with random secrets, planted in text to see afterwards what the model remembers of them.

    ``count[i]`` canaries in ``copies[i]`` copies each; a secret coin for each decides whether it is planted.
    One reads ``prefix``, in which a random tag replaces "{name}", and then ``length`` characters of
    ``alphabet``, drawn at random.
    """

    count: list[_Count] = Field(default_factory=list, max_length=3)
    copies: list[_Count] = Field(default=[1, 4, 16], max_length=3)
    prefix: str = "pin {name} "
    alphabet: str = "0123456789"
    length: _Count = 5


class LedgerSection(_Section):
    """The ledger that the run is charged to, and the name of the data set in it; none by default.

    ``chunk`` is the number of steps in a charge, ``block`` a person-disjoint part of the data set, ``by`` the
    name of the spender in the ledger (by default the user of the system).
    ``one_record_per_unit`` states that no unit has two of the training records, nor two of the test records
    where ``test_noise`` is set; needed where the data set's policy does not say so.
    """

    url: str | None = None
    dataset: str | None = None
    chunk: _Count | None = None
    block: str | None = None
    by: str = ""
    one_record_per_unit: bool = False


class RunSection(_Section):
    """What the run writes, and how often."""

    out: str | None = None
    rows: _Count = 20
    checkpoint_every: _Count | None = None
    tensorboard: bool = False
    mlflow: bool = False
    wandb: bool = False
    device: str = "cpu"


class Config(_Section):
    """A whole run; ``columns`` and ``table`` describe a table, as in a ledger's policy.

    ``card`` is what the model card says beside the run: a ``license``, and statements as those of a
    certificate.

    >>> import tacit.runs
    >>> demo = Path(tacit.runs.__file__).with_name("demo.toml")
    >>> config = read_config(demo)
    >>> config.data.name, config.training.steps
    ('digits', 30)
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
    audit: AuditSection = AuditSection()
    canaries: CanariesSection = CanariesSection()
    ledger: LedgerSection = LedgerSection()
    notes: list[str] = Field(default_factory=list)
    card: dict[str, Any] = Field(default_factory=dict)

    def read_columns(self, source: str = "") -> dict[str, Column]:
        """The public facts about the columns of the table.

        Raises:
            InvalidInput, PrivacyRefusal: naming the column and what is wrong with it.
        """
        if not self.data.columns:
            return parse_columns(self.columns, source=source)
        if self.columns:
            raise InvalidInput(
                f"{source}columns are declared in [columns] and in [data.columns], its old place. Move all "
                "to [columns.NAME]."
            )
        return parse_columns(self.data.columns, "data.columns", source=source)

    def read_dialect(self, source: str = "") -> Dialect:
        """How the CSV files of the table are written.

        Raises:
            InvalidInput: naming the setting of [table] that is unknown or impossible.
        """
        return Dialect.from_data(self.table, f"{source}[table]")


def read_config(path: Path | str) -> Config:
    """Read a configuration; the error names every mistake with its place, and guesses at misspelt names.

    Raises:
        InvalidInput: the file does not exist, is not TOML, or lacks something that a run needs.

    >>> import tacit.runs
    >>> demo = Path(tacit.runs.__file__).with_name("demo.toml")
    >>> read_config(demo).privacy.epsilon
    3.0
    """
    return parse_config(read_text(path), str(path))


def read_text(path: Path | str) -> str:
    """The text of a configuration file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInput(f"there is no configuration at {path}. Check the path.") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(
            f"cannot read the configuration {path}: {reason_of(problem)}. Check the path."
        ) from None


def parse_config(text: str, origin: str) -> Config:
    """The configuration that ``text`` holds; errors name ``origin``, where the text comes from."""
    refuse_blanks(text, origin)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise InvalidInput(f"{origin} is not valid TOML: {problem}.") from None
    try:
        config = Config.model_validate(data)
    except ValidationError as problem:
        complaints = dict.fromkeys(_complaint(item) for item in problem.errors())
        raise InvalidInput(f"{origin}: {' '.join(complaints)}") from None
    if config.data.table is None and (config.columns or config.table):
        raise InvalidInput(f"{origin}: [columns] and [table] describe a table, and [data] table names none.")
    with warnings.catch_warnings():  # old forms are said when the table is read
        warnings.simplefilter("ignore", Deprecated)
        config.read_columns(f"{origin}: ")
    config.read_dialect(f"{origin}: ")
    try:
        check_card(config.card)
    except InvalidInput as problem:
        raise InvalidInput(f"{origin}: [card]: {problem}") from None
    return config


def differences(old: Config, new: Config) -> list[str]:
    """The settings in which two configurations differ, without those that change no result."""
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
        named = settings.items() if isinstance(settings, dict) else settings
        flat |= {f"{section}.{name}": value for name, value in named}
    return flat


def _complaint(item: Any) -> str:
    place = [str(part) for part in item["loc"]]
    if len(place) < 2:
        return _about_section(place[0], item["type"])
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


def _about_section(name: str, kind: str) -> str:
    if name in Config.model_fields:
        problem = "is missing" if kind == "missing" else "must be a section, written [name]"
        return f"[{name}] {problem}."
    return f"[{name}] is not a section{_guess(name, list(Config.model_fields))}"


def _guess(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}."
