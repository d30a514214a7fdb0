"""The plan that a configuration describes, made without torch; errors name the keys of the file."""

from __future__ import annotations

import math
from typing import cast

from tacit.correlation import BLT, Banded, BandedInverse, Correlation, Tree
from tacit.errors import InvalidInput, spelled
from tacit.plan import LossReport, Plan, PlanSettings, ScoreReport
from tacit.runs.config import Config
from tacit.runs.sections import PrivacySection, TrainingSection
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
    """Make the plan that the configuration describes."""
    privacy, training = config.privacy, config.training
    if privacy.epsilon is None and privacy.noise_multiplier is None:
        raise InvalidInput(
            "[privacy] needs epsilon, noise_multiplier or both; with both, epsilon is the limit."
        )
    if (training.epochs is None) == (training.steps is None):
        got = "neither" if training.steps is None else "both"
        raise InvalidInput(f"[training] needs exactly one of epochs and steps; got {got}.")
    with spelled(in_keys):
        return _plan(config)


def check_comparable(name: str, config: Config) -> None:
    """Refuse a run file with batches or noise that the planner does not account for."""
    if config.data.draw == "rows":
        raise InvalidInput(
            f'{name}: [data] draw = "rows" cannot be compared: its price is that of all rows of a person. '
            "docs/people.md compares it with drawing people; tacit train prints the price of this run "
            "before its first step."
        )
    special_price = {"sampling": config.privacy.sampling, "correlation": config.privacy.correlation}
    for key, value in special_price.items():
        if value not in ("poisson", "full", "truncated-poisson", "independent"):
            raise InvalidInput(
                f'{name}: [privacy] {key} = "{value}" cannot be compared: tacit plan compares Poisson '
                "samples and the full batch, with independent noise. tacit train prints the price of this "
                "run before its first step."
            )


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
        "sampling": sampling,
        "correlation": _correlation(config, sampling, batch),
        "rows_per_user": config.data.rows_per_user if config.data.draw == "rows" else None,
        "loss_report": LossReport(privacy.loss_bound) if privacy.report_loss else None,
        "score_report": None if privacy.test_noise is None else ScoreReport(privacy.test_noise),
    }
    if privacy.noise_multiplier is not None:
        return Plan.with_noise(
            noise_multiplier=privacy.noise_multiplier, epsilon_budget=privacy.epsilon, **common
        )
    return Plan.calibrate(epsilon=cast(float, privacy.epsilon), **common)


def in_keys(argument: str, value: str | None) -> str:
    """Return the run file's key for an argument of a plan.

    >>> in_keys("delta", None), in_keys("allow_large_delta", "True")
    ('[privacy] delta', '[privacy] allow_large_delta = true')
    """
    key = _KEY_OF.get(argument, argument)
    section = next((name for name, keys in _KEYS.items() if key in keys), None)
    if section is None:
        return argument if value is None else f"{argument}={value}"
    suffix = "" if value is None else f" = {value.lower() if value in ('True', 'False') else value}"
    return f"[{section}] {key}{suffix}"
