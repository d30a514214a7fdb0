"""The configuration of a run: a TOML file of public facts, checked before any data is touched."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, Literal

from tacit.clipping.rules import (
    AdaptiveClipping,
    AutomaticClipping,
    ClippingRule,
    FlatClipping,
    PerLayerClipping,
)
from tacit.errors import InvalidInput, MissingExtra

try:
    from pydantic import BaseModel, ConfigDict, Field, ValidationError
except ImportError:
    raise MissingExtra("pydantic", "cli", "reading a configuration file") from None

__all__ = [
    "Config",
    "DataSection",
    "ModelSection",
    "OptimizerSection",
    "PrivacySection",
    "RunSection",
    "TrainingSection",
    "read_config",
]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataSection(_Section):
    """Where the records come from: a data set by ``name``, a ``table``, or a folder of ``images``.

    A table needs ``columns``, its public schema; pictures need ``size`` (height, width) and ``classes``.
    Bounds and classes are declared, never read from the data: what is read from it leaks.
    """

    name: str | None = None
    folder: str | None = None
    download: bool = False
    table: str | None = None
    test_table: str | None = None
    target: str | None = None
    columns: dict[str, Any] = Field(default_factory=dict)
    missing: Literal["refuse", "constant"] = "refuse"
    images: str | None = None
    size: list[int] = Field(default_factory=list, max_length=2)
    classes: list[str] = Field(default_factory=list)
    colours: int = 3
    test_fraction: float | None = None
    features: Literal["raw", "scattering"] = "raw"


class ModelSection(_Section):
    """A network of ``tacit.models`` by name, or ``factory = "module:function"`` of the user's own."""

    name: str | None = None
    factory: str | None = None
    activation: str | None = None
    temper: list[float] | None = None
    hidden: list[int] | None = None
    groups: int | None = None
    normalise: bool | None = None
    make_private_ready: bool = False


class PrivacySection(_Section):
    """The promise: none of these has a default, because each changes what the promise means."""

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float
    unit: str
    adjacency: Literal["add-remove", "replace-one", "zero-out"]
    records: int
    sampling: Literal["poisson", "full", "shuffled"] = "poisson"
    clipping: Literal["flat", "per-layer", "automatic", "adaptive"] = "flat"
    clipping_norm: float = 1.0
    quantile: float = 0.5
    report_loss: bool = True
    loss_bound: float = 5.0
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
                return AdaptiveClipping(self.clipping_norm, quantile=self.quantile)


class OptimizerSection(_Section):
    """An optimizer of torch by name, with the usual settings."""

    name: Literal["sgd", "adam", "adamw", "nadam", "rmsprop", "adagrad"] = "sgd"
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0


class TrainingSection(_Section):
    """How long and how: ``batch_size`` is the expected one, "full" for all records in each step."""

    batch_size: int | Literal["full"]
    epochs: float | None = None
    steps: int | None = None
    engine: Literal["fast", "reference"] = "fast"
    physical_batch_size: int = 512
    views: int = 1
    crop_padding: int = 4
    ema_decay: float | None = None


class RunSection(_Section):
    """What is written, and how often."""

    out: str | None = None
    rows: int = 20
    checkpoint_every: int | None = None
    tensorboard: bool = False
    device: str = "cpu"


class Config(_Section):
    """A whole run."""

    data: DataSection
    model: ModelSection
    privacy: PrivacySection
    optimizer: OptimizerSection
    training: TrainingSection
    run: RunSection = RunSection()
    notes: list[str] = Field(default_factory=list)


def read_config(path: Path | str) -> Config:
    """Read a configuration; every mistake is named with its place, and misspelt names with a guess.

    Raises:
        InvalidInput: the file is not there, is not TOML, or does not say what a run needs.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(f"cannot read the configuration {path}: {problem}") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise InvalidInput(f"{path} is not valid TOML: {problem}") from None
    try:
        return Config.model_validate(data)
    except ValidationError as problem:
        raise InvalidInput(f"{path}: " + " ".join(_complaint(item) for item in problem.errors())) from None


def _complaint(item: Any) -> str:
    place = [str(part) for part in item["loc"]]
    where = f"[{place[0]}] {'.'.join(place[1:])}".strip() if len(place) > 1 else f"[{place[0]}]"
    if item["type"] == "extra_forbidden":
        guess = difflib.get_close_matches(place[-1], _field_names(place[:-1]), n=1)
        hint = f"; did you mean {guess[0]!r}?" if guess else "."
        return f"{where} is not a setting{hint}"
    if item["type"] == "missing":
        return f"{where} is missing and has no default."
    return f"{where} = {item['input']!r}: {item['msg']}."


def _field_names(sections: list[str]) -> list[str]:
    kind: Any = Config
    for section in sections:
        kind = kind.model_fields[section].annotation
    return list(kind.model_fields)
