"""The plan that a configuration describes, and the size of its model, without torch or records."""

from __future__ import annotations

import json
import math
import struct
import tomllib
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from tacit.columns.encoder import Encoder, TextColumn
from tacit.correlation import BLT, Banded, BandedInverse, Correlation, Tree
from tacit.errors import InvalidInput, spelled
from tacit.plan import GroupScoreReport, LossReport, Plan, PlanSettings, ScoreReport
from tacit.plan.signal import Ranked, rank_tuning
from tacit.pretrained.finding import ModelFolder
from tacit.runs.config import Config, read_config, read_text
from tacit.runs.sections import LINEAR, PrivacySection, TrainingSection
from tacit.sampling import ByDate, CyclicPoissonSampling, FullBatch, Sampling, ShuffledBatches

_LEAST, _STEPS_PER_PASS = 256, 20  # for batch_size = "auto"
_KEYS = {
    section: tuple(kind.model_fields)
    for section, kind in (("privacy", PrivacySection), ("training", TrainingSection))
}
_KEY_OF = {  # keys that differ from the argument's name
    "norm": "clipping_norm", "bound": "loss_bound", "noise": "test_noise", "score_report": "test_noise",
    "epsilon_budget": "epsilon", "expected_batch_size": "batch_size",
}  # fmt: skip


def make_plan(config: Config) -> Plan:
    privacy, training = config.privacy, config.training
    if privacy.epsilon is None and privacy.noise_multiplier is None:
        raise InvalidInput(
            "[privacy] needs epsilon or noise_multiplier. Set one. If you set both, epsilon is the limit."
        )
    if (training.epochs is None) == (training.steps is None):
        got = "neither" if training.steps is None else "both"
        raise InvalidInput(f"[training] needs exactly one of epochs and steps; got {got}.")
    with spelled(in_keys):
        return _plan(config)


def check_comparable(name: str, config: Config) -> None:
    if config.data.database is not None:
        raise InvalidInput(
            f"{name}: tacit plan cannot compare [data] database, which has no batches or steps to choose. "
            "The run's statement gives its cost."
        )
    if config.data.draw == "rows":
        raise InvalidInput(
            f'{name}: tacit plan cannot compare [data] draw = "rows", whose cost covers all rows of a person '
            "(docs/how-to/people-and-sites.md). tacit train prints the cost before the first step."
        )
    special_price = {"sampling": config.privacy.sampling, "correlation": config.privacy.correlation}
    for key, value in special_price.items():
        if value not in ("poisson", "epochs", "full", "truncated-poisson", "independent"):
            raise InvalidInput(
                f'{name}: tacit plan cannot compare [privacy] {key} = "{value}", only Poisson sampling and '
                "full batches with independent noise. tacit train prints the cost before the first step."
            )


def batch_taken(path: Path) -> int | None:
    """Return the batch size that Tacit chooses for a run file; None if the file states one."""
    stated = tomllib.loads(read_text(path)).get("training", {}).get("batch_size", "auto")
    return round(make_plan(read_config(path)).expected_batch_size) if stated == "auto" else None


def with_poisson_samples(config: Config, plan: Plan) -> Plan:
    """Make the plan of a run file, but with Poisson samples of the mean size and number as in ``plan``."""
    privacy = config.privacy.model_copy(update={"sampling": "poisson"})
    alike = {"batch_size": round(plan.expected_batch_size), "steps": plan.steps, "epochs": None}
    training = config.training.model_copy(update=alike)
    return make_plan(config.model_copy(update={"privacy": privacy, "training": training}))


def _correlation(config: Config, sampling: Sampling | None, batch: int | None) -> Correlation | None:
    """Return the noise correlation with the best coefficients for the run's steps and participations."""
    privacy, training = config.privacy, config.training
    kinds: dict[str, type[Banded] | type[BandedInverse] | type[BLT]] = {
        "banded": Banded,
        "inverse": BandedInverse,
        "blt": BLT,
    }
    size = privacy.buffers if privacy.correlation == "blt" else privacy.bands
    if privacy.correlation not in kinds or size is None:
        return Tree(privacy.restart_every) if privacy.correlation == "tree" else None
    share = 1.0 if batch is None else batch / privacy.records
    steps = training.steps or max(1, math.ceil((training.epochs or 1.0) / share - 1e-9))
    times, apart = 1, 1
    if sampling is not None and not _sampled(sampling):
        times, apart = sampling.participations_in(steps) or (1, 1)
    size = min(size, steps)
    return kinds[privacy.correlation].optimised(size, steps, participations=times, separation=apart)


def _sampled(sampling: Sampling) -> bool:
    """Return whether batches are random samples of cyclic parts, rather than whole parts."""
    return isinstance(sampling, CyclicPoissonSampling) and sampling.sampling_rate < 1.0


def _batch_size(size: int | str, records: int) -> int | None:
    """Return the expected batch size, or None for all records.

    "auto" depends on the public number of records.  Batches of a twentieth of them, in a few hundred steps,
    are close to the best choice on tables of 500 to 100,000 rows.  With fewer than 256 records in a batch,
    noise dominates.
    """
    if size == "auto":
        size = max(_LEAST, records // _STEPS_PER_PASS)
        return size if size < records else None
    return None if isinstance(size, str) else size


def _plan(config: Config) -> Plan:
    privacy, training = config.privacy, config.training
    batch = _batch_size(training.batch_size, privacy.records)
    if privacy.sampling == "dates" and training.batch_size == "auto":
        batch = max(1, round(privacy.records * privacy.participations / (training.steps or 1)))
    sampling: Sampling | None = None
    if privacy.sampling == "shuffled" and batch is not None:
        sampling = ShuffledBatches(batch, privacy.records)
    elif privacy.sampling == "full" or privacy.sampling == "shuffled":
        sampling, batch = FullBatch(), None
    elif privacy.sampling == "cyclic" and privacy.cycle is not None:
        part = privacy.records / privacy.cycle
        rate = 1.0 if batch is None or batch > part - 0.5 else batch / part
        sampling = CyclicPoissonSampling(rate, privacy.cycle)
    elif privacy.sampling == "dates":
        sampling = ByDate(privacy.participations, privacy.separation)
    # Keys with the same name and meaning as a setting of a plan.
    alike = PlanSettings.__annotations__.keys() - {"clipping", "batch_size", "sampling", "correlation"}
    common = privacy.model_dump(include=alike) | training.model_dump(include=alike)
    common |= {
        "clipping": privacy.rule(),
        "batch_size": batch,
        "sampling": "epochs" if privacy.sampling == "epochs" else sampling,
        "correlation": _correlation(config, sampling, batch),
        "rows_per_user": config.data.rows_per_user if config.data.draw == "rows" else None,
        "loss_report": LossReport(privacy.loss_bound) if privacy.report_loss else None,
        "score_report": None
        if (noise := privacy.test_noise) is None
        else GroupScoreReport(noise, tuple(by))
        if (by := config.evaluation.by)
        else ScoreReport(noise),
    }
    if privacy.noise_multiplier is not None:
        return Plan.with_noise(
            noise_multiplier=privacy.noise_multiplier, epsilon_budget=privacy.epsilon, **common
        )
    return Plan.calibrate(epsilon=cast(float, privacy.epsilon), **common)


def in_keys(argument: str, value: str | None) -> str:
    key = _KEY_OF.get(argument, argument)
    section = next((name for name, keys in _KEYS.items() if key in keys), None)
    if section is None:
        return argument if value is None else f"{argument}={value}"
    suffix = "" if value is None else f" = {value.lower() if value in ('True', 'False') else value}"
    return f"[{section}] {key}{suffix}"


_LARGEST_HEADER = 100 * 2**20  # bytes, the limit of the safetensors format
_TABLES: dict[str, tuple[int, ...]] = {
    "linear": (),
    "additive": (),
    "logistic": (),
    "mlp": (128,),
}  # default widths of the hidden layers


def trained_weights(config: Config) -> int | None:
    """Return the number of weights that the model of a run file trains; None if it is not known.

    The number is known for a linear model or a multilayer perceptron on a table with declared columns, and
    for a public model in a folder with weights.  That can be a language model, trained as a whole or with
    LoRA, or a text model that is tuned to a target.
    """
    model = config.model
    if config.pretrained:
        return _of_public_model(config, str(model.tune))
    if model.huggingface is not None:
        path = Path(model.huggingface) / "model.safetensors"
        return _of_folder(config, tensor_shapes(path)) if path.exists() else None
    if config.data.table is None or config.data.predicted is None or model.name not in _TABLES:
        return None
    encoder = Encoder(config.read_columns(), config.data.predicted, config.read_dialect())
    bins = max(0, len(encoder.time_edges) - 1)
    if bins and model.name in LINEAR:
        return len(encoder.features) + 1 + 2 * bins
    outputs = bins or len(encoder.classes) or len(encoder.labels) or len(encoder.target_bounds)
    hidden = _TABLES[model.name] if model.hidden is None else model.hidden
    widths = (len(encoder.features), *hidden, outputs)
    counts: list[int] = [(before + 1) * after for before, after in pairwise(widths)]
    return sum(counts)


def ranked_ways(path: Path) -> list[Ranked]:
    """Rank "head", "lora" and "full" as ``tune`` for the public model of a run file, each with its recipe.

    A choice is left out if the public model does not support it, or if its number of weights is unknown.
    """
    ways = {}
    for tune in ("head", "lora", "full"):
        with suppress(InvalidInput):  # such as LoRA for a model with unknown layers
            ways[tune] = read_config(path, tune=tune)
    counts = {tune: trained_weights(config) for tune, config in ways.items()}
    weights = {tune: count for tune, count in counts.items() if count is not None}
    return rank_tuning(weights, lambda tune: make_plan(ways[tune]))


def _of_public_model(config: Config, tune: str) -> int | None:
    folder, data = Path(str(config.model.huggingface)), config.data
    path = folder / "model.safetensors"
    if config.model.huggingface is None or data.target is None or not path.is_file():
        return None
    width = ModelFolder.check(folder).config.get("hidden_size")
    if not isinstance(width, int) or data.text is None:
        return None
    encoder = Encoder(config.read_columns(), data.target, config.read_dialect(), TextColumn(data.text, 1))
    outputs = len(encoder.classes) or len(encoder.labels) or len(encoder.target_bounds)
    head = (width + len(encoder.features)) * outputs  # the text's one feature stands for the bias
    return head if tune == "head" else head + _of_folder(config, tensor_shapes(path))


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header: dict[str, Any] = json.loads(file.read(min(length, _LARGEST_HEADER)))
        return {name: tuple(one["shape"]) for name, one in header.items() if name != "__metadata__"}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        raise InvalidInput(
            f"{path} is not a valid safetensors file. Save it again with model.save_pretrained(folder)."
        ) from None


def _of_folder(config: Config, shapes: dict[str, tuple[int, ...]]) -> int:
    """Return the number of all weights, or with LoRA, rank times (inputs + outputs), summed over targets."""
    rank, targets, blocks = config.lora.rank, config.lora.targets, config.lora.blocks
    if rank is None:
        return sum(math.prod(shape) for shape in shapes.values())
    shapes = {
        name: shape
        for name, shape in shapes.items()
        if not blocks or any(f".{block}." in name for block in blocks)
    }
    modules = {name.removesuffix(".weight"): shape for name, shape in shapes.items() if len(shape) == 2}
    of_targets = [
        shape for name, shape in modules.items() if any(f".{name}".endswith(f".{t}") for t in targets)
    ]
    return rank * sum(sum(shape) for shape in of_targets)
