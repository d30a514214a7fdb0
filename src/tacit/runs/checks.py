"""Checks of a run before torch is imported and before any record is read."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from tacit import accounting
from tacit.errors import InvalidInput, PrivacyRefusal, reason_of
from tacit.events import Adjacency, Gaussian
from tacit.plan import Plan
from tacit.runs.canaries import check_canaries, check_nothing_planted
from tacit.runs.config import Config, differences, parse_config, read_config, read_text
from tacit.runs.kinds import check_data
from tacit.runs.kinds.texts import BASE
from tacit.runs.plan import make_plan
from tacit.runs.sections import (
    BEGAN,
    FEATURES,
    LedgerSection,
)

_LESS_THAN_ALL = 5  # times the noise of the whole budget costs 1/25 of it, as Gaussian costs add as 1/noise²
_LARGEST = 50.0  # a larger epsilon is treated as this one, since its noise would be too small to matter


@dataclass(frozen=True)
class CheckedRun:
    config: Config
    text: str
    folder: Path
    plan: Plan
    ledger: LedgerSection
    resume: bool
    batches: Path | None = None


def check_run(
    path: Path | str,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    ledger: LedgerSection | None = None,
    batches: Path | None = None,
) -> CheckedRun:
    """Read a configuration, and make all checks that need neither torch nor records."""
    text = read_text(path)
    config = parse_config(text, str(path))
    folder = Path(out or config.run.out or Path("runs") / Path(path).stem)
    if resume:
        check_resumable(folder)
        changes = differences(read_config(folder / "config.toml"), config)
        if changes:
            raise PrivacyRefusal(
                f"the run file differs from that of the run in {folder}: {'; '.join(changes)}. Resuming "
                "would add the same noise to different gradients, whose difference has no noise. Restore "
                "the old settings, or start a new run with --out."
            )
    else:
        check_empty(folder, text)
    check_writable(folder)
    if batches is not None and config.data.parquet is None:
        raise InvalidInput(
            f"--batches {batches} needs [data] parquet. Train with the run file for which the batches were "
            "written."
        )
    if batches is not None:
        check_nothing_planted(config)
    check_data(config)
    if config.model.factory is not None:
        _check_factory(config.model.factory)
    check_canaries(config)
    plan = make_plan(config)
    overrides = {name: value for name, value in ledger or () if value not in (None, False, "")}
    charged = config.ledger.model_copy(update=overrides)
    check_ledger(charged)
    check_scores(config, plan, charged=charged.url is not None)
    return CheckedRun(config, text, folder, plan, charged, resume, batches)


def _check_factory(reference: str) -> None:
    """Find the module of a factory without importing it, since most imports take seconds."""
    top = reference.partition(":")[0].partition(".")[0]
    try:
        with importing_from_here():
            spec = importlib.util.find_spec(top) if top else None
    except (ImportError, ValueError):  # a module without a spec is loaded already
        return
    if spec is None:
        raise InvalidInput(
            f'[model] factory = "{reference}" cannot be imported: No module named {top!r}. It must be '
            '"module:function", with the module in the current folder or installed.'
        )


@contextmanager
def importing_from_here() -> Iterator[None]:
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path.pop(0)


def check_ledger(section: LedgerSection) -> None:
    if section.url is None:
        settings = [name for name, value in section if value not in (None, False, "")]
        if settings:
            raise InvalidInput(
                f"[ledger] {', '.join(settings)} needs url, the address of the ledger. Set url = "
                '"budget.db", or --ledger budget.db.'
            )
    elif section.dataset is None:
        raise InvalidInput(
            "[ledger] dataset is missing. Set it here or with --dataset; `tacit ledger datasets` lists the "
            "names."
        )


def check_scores(config: Config, plan: Plan, *, charged: bool) -> None:
    """Refuse a charged run that would score its held-out records exactly."""
    if config.privacy.test_baseline is not None and plan.score_report is None:
        raise InvalidInput(
            f"[privacy] test_baseline = {config.privacy.test_baseline:g} applies only with test_noise; "
            "otherwise, the test records give the baseline. Remove test_baseline."
        )
    if not charged:
        if plan.score_report is not None:
            raise InvalidInput(
                "[privacy] test_noise needs a ledger, which limits a run to one test score. Set [ledger], or "
                "remove test_noise."
            )
        return
    if config.data.test_fraction is None or plan.score_report is not None:
        return
    another = "Or test on records of another data set, from a separate file."
    exact = (
        "[data] test_fraction tests on records of the charged data set, and their exact scores would be "
        "released without a charge"
    )
    if config.data.time is not None:
        raise PrivacyRefusal(
            f"{exact}. A survival model has no noisy score. Keep some people out of the ledger's data set, "
            "and test on their file, [data] test_table: their scores are exact and not private."
        )
    if plan.adjacency is not Adjacency.ADD_REMOVE:
        raise PrivacyRefusal(
            f'{exact}. A noisy score has no guarantee under {plan.adjacency}. Set adjacency = "add-remove" '
            f"and [privacy] test_noise. {another}"
        )
    raise PrivacyRefusal(
        f"{exact}. Set [privacy] test_noise = {_advised(plan):g} (standard deviation, in records) for one "
        f"noisy score at the end. The noise of training, or epsilon, then grows by about 2 %. {another}"
    )


def _advised(plan: Plan) -> float:
    """Return the noise with which a score costs about 1/25 of the plan's budget, rounded to two digits."""
    whole = accounting.calibrate(
        Gaussian, epsilon=min(plan.epsilon, _LARGEST), delta=plan.delta, adjacency=plan.adjacency
    )
    noise = _LESS_THAN_ALL * whole
    digit = 10.0 ** (math.floor(math.log10(noise)) - 1)
    return math.ceil(noise / digit) * digit


_PRIVATE = "private"


def resume_state(folder: Path) -> Path:
    return folder / _PRIVATE / "resume.pt"


def slot_files(folder: Path) -> tuple[Path, Path]:
    return folder / "slots.npy", folder / _PRIVATE / "coins.npy"


def declarations_file(folder: Path) -> Path:
    return folder / _PRIVATE / "declarations.txt"


def canary_file(folder: Path) -> Path:
    return folder / _PRIVATE / "canaries.json"


def check_resumable(folder: Path) -> None:
    if not (state := resume_state(folder)).exists():
        raise InvalidInput(
            f"there is no run to resume in {folder}: {state} does not exist. Start it without --resume, or "
            "name its folder with --out."
        )
    if not (config := folder / "config.toml").exists():
        raise InvalidInput(
            f"{config} is missing, so the run's settings are unknown. Restore the file, or start a new run."
        )


def check_empty(folder: Path, config_text: str) -> None:
    """Refuse a folder that holds anything except the files of a run that was killed before it saved."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file; choose another folder with --out.")
    state = resume_state(folder)
    if state.exists():
        raise InvalidInput(
            f"{folder} already contains a run. Resume it with --resume, or choose another folder with --out."
        )
    for entry in [*folder.glob("*"), *state.parent.glob("*")]:
        harmless = (
            entry == state.parent
            or entry == state.parent / "lock"
            or entry in (folder / BASE, folder / BEGAN)  # files of a public model, written before the state
            or entry == state.parent / FEATURES  # cached features, reused only for the same records
            or entry.name.endswith(".tmp")
            or (entry == folder / "config.toml" and entry.read_text(encoding="utf-8") == config_text)
        )
        if not harmless:
            raise InvalidInput(
                f"the folder {folder} is not empty: it contains {entry.name}. Choose another folder "
                "with --out."
            )


def check_writable(folder: Path) -> None:
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    effective = os.access in os.supports_effective_ids
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK, effective_ids=effective):
        raise InvalidInput(
            f"nothing can be written to {folder}: {nearest} is "
            f"{'read-only' if nearest.is_dir() else 'a file'}. Choose another folder with --out."
        )


@contextmanager
def sole_user(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system releases when the process ends."""
    path = folder / _PRIVATE / "lock"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(path, timeout=0, mode=0o600)
    try:
        lock.acquire()
    except Timeout:
        raise InvalidInput(
            f"another process is training in {folder}. Wait for it, or choose another folder with --out."
        ) from None
    except (OSError, NotImplementedError) as problem:
        raise InvalidInput(
            f"{path} cannot be locked: {reason_of(problem)}. Without a lock, two processes could reuse the "
            "same noise. Choose a folder on another disk with --out."
        ) from None
    try:
        yield
    finally:
        lock.release()
