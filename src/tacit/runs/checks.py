"""What is wrong with a run? Long, a check for each section; before torch is imported or a record read.

A typing error thus answers at once.  What needs the model or the records is checked later, when the session
is made (:mod:`tacit.runs.build`).
"""

from __future__ import annotations

import importlib.util
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tacit import accounting
from tacit.columns import Encoder
from tacit.errors import Deprecated, InvalidInput, PrivacyRefusal, check_in, check_real
from tacit.events import Adjacency, Gaussian
from tacit.plan import Plan
from tacit.runs.canary_section import check_canaries, check_nothing_planted
from tacit.runs.catalogue import DATA_SETS, NETWORKS
from tacit.runs.config import (
    Config,
    DataSection,
    LedgerSection,
    ModelSection,
    OptimizerSection,
    differences,
    parse_config,
    read_config,
    read_text,
)
from tacit.runs.folder import check_empty, check_resumable, check_writable
from tacit.runs.language_section import check_language
from tacit.runs.plan import make_plan

_SOURCES = ("name", "table", "images", "text", "jsonl", "parquet")
_PATHS = (
    ("table", "table"), ("test_table", "table"), ("lines", "text"), ("test_text", "text"),
    ("jsonl", "file"), ("test_jsonl", "file"),
)  # fmt: skip
_WITH_MOMENTUM = ("sgd", "rmsprop")
_LESS_THAN_ALL = 5  # times the noise that a whole budget allows: 1/25 of it, as Gaussians compose
_LARGEST = 50.0  # beyond this epsilon, even less noise makes no difference


@dataclass(frozen=True)
class CheckedRun:
    """A run whose configuration is in order: its ``text``, ``folder``, ``plan``, and where it is charged."""

    config: Config
    text: str
    folder: Path
    plan: Plan
    ledger: LedgerSection
    resume: bool
    batches: Path | None = None
    continued: bool = False


@dataclass(frozen=True)
class FurtherDays:
    """What ``tacit train --continue`` says of a run by date: up to which day, and where the records are."""

    until: str | None = None
    data: Path | None = None

    def applied_to(self, config: Config, folder: Path) -> Config:
        """The configuration of the run in ``folder`` with these in place of its own."""
        if config.data.date is None:
            raise InvalidInput(
                f"the run in {folder} does not take its records by date, so there are no further days for "
                "it. An interrupted run goes on by --resume."
            )
        said: dict[str, str | None] = {"until": self.until}
        if self.data is not None:
            source = next(
                key for key in ("table", "jsonl", "parquet") if getattr(config.data, key) is not None
            )
            said[source] = str(self.data)
        return config.model_copy(update={"data": config.data.model_copy(update=said)})


def check_run(
    path: Path | str,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    ledger: LedgerSection | None = None,
    batches: Path | None = None,
    further: FurtherDays | None = None,
) -> CheckedRun:
    """Read a configuration and check all of it that can be checked without torch and without records.

    Args:
        path: the TOML file.
        out: the folder of the run; otherwise the configuration's, or ``runs/<name of the file>``.
        resume: whether the run in that folder is to go on.
        ledger: where the run is charged; the configuration gives what it leaves open.
        batches: the folder of batches that ``tacit batches`` wrote for this configuration.
        further: the run by date in that folder is to go on with these days.

    Raises:
        InvalidInput: a mistake in the configuration; a file that does not exist; a folder that holds a run.
        PrivacyRefusal: the plan has no guarantee, costs more than its budget, or is not that of the run that
            is to go on.
    """
    text = read_text(path)
    config = parse_config(text, str(path))
    folder = Path(out or config.run.out or Path("runs") / Path(path).stem)
    if further is not None:
        config = further.applied_to(config, folder)
    if resume:
        check_resumable(folder)
        _check_same(folder, config)
    else:
        check_empty(folder, text)
    check_writable(folder)
    if batches is not None and config.data.parquet is None:
        raise InvalidInput(
            f"--batches {batches} goes with [data] parquet, the corpus of which they were written. Train "
            "with the configuration that they were written for."
        )
    if batches is not None:
        check_nothing_planted(config)
    check_data(config.data)
    _check_table(config, str(path))
    check_model(config.model)
    check_language(config)
    _check_user(config)
    check_optimizer(config.optimizer)
    _check_training(config)
    check_canaries(config)
    plan = make_plan(config)
    charged = _merged(config.ledger, ledger)
    check_ledger(charged)
    check_scores(config, plan, charged=charged.url is not None)
    return CheckedRun(config, text, folder, plan, charged, resume, batches, further is not None)


def check_data(section: DataSection) -> None:
    """Refuse a section that names no data, or data that do not exist.

    Raises:
        InvalidInput: several sources or none; a name that does not exist; a file that is missing; a source
            without the facts that it needs.
    """
    given = [name for name in _SOURCES if getattr(section, name) is not None]
    if section.corpus is not None and "text" in given:
        given.remove("text")  # the name of a field
    if len(given) != 1:
        raise InvalidInput(
            f"[data] needs exactly one of {', '.join(_SOURCES)}; got {', '.join(given) or 'none of them'}."
        )
    if section.name is not None:
        check_in("[data] name", section.name, DATA_SETS)
    for key, kind in _PATHS:
        path = getattr(section, key)
        if path is not None and not Path(path).is_file():
            key = "text" if key == "lines" else key
            raise InvalidInput(f"[data] {key}: there is no {kind} at {path}. {_ABOUT_PATHS}")
    for key in ("parquet", "test_parquet"):
        if (path := getattr(section, key)) is not None and not Path(path).exists():
            raise InvalidInput(f"[data] {key}: there is no file or folder at {path}. {_ABOUT_PATHS}")
    if section.images is not None and not Path(section.images).is_dir():
        raise InvalidInput(f"[data] images: there is no folder at {section.images}. {_ABOUT_PATHS}")
    if section.table is not None and section.target is None:
        raise InvalidInput("[data] target is missing: the column to be predicted.")
    if section.images is not None and len(section.size) != 2:
        raise InvalidInput("[data] size = [height, width] is needed for images, in pixels.")
    if section.lines is not None and (section.alphabet is None or section.longest is None):
        raise InvalidInput(
            "[data] text needs alphabet, every character that a line may hold, and longest, the most "
            "characters of a line. Declare what is known without the data."
        )


def _check_user(config: Config) -> None:
    """Refuse people in data that do not say whose a row is, or a promise of which they are not the unit."""
    data, unit, several = config.data, config.privacy.unit, config.data.rows_per_user is not None
    if several and data.user is None:
        raise InvalidInput(
            "[data] rows_per_user is how many rows a step reads of one person, and nothing says whose a row "
            "is. Name the column or field by [data] user."
        )
    if data.draw == "rows" and not several:
        raise InvalidInput(
            '[data] draw = "rows" is for people with several rows. Say user and rows_per_user, the most rows '
            "of one person that the run keeps; or leave draw out."
        )
    if data.user is None:
        return
    if isinstance(data.user, list):
        _check_several_users(config)
    if data.table is None and data.corpus is None:
        raise InvalidInput(
            "[data] user names a column of a table, or a field of documents, and this run reads neither. "
            "Leave it out."
        )
    if several and unit in ("row", "record", "sequence", "document"):
        raise PrivacyRefusal(
            f"with [data] rows_per_user a record is a person with all rows, and the unit of privacy is one "
            f'{unit}. Say what a person is, such as unit = "user", and count people in records and '
            "batch_size."
        )
    if several and config.canaries.count:
        raise InvalidInput("[canaries] are lines of their own, and records are people here. Leave them out.")


def _check_several_users(config: Config) -> None:
    """Refuse rows of several people where nothing bounds them, or the promise is not proven for them."""
    data, privacy = config.data, config.privacy
    if not data.user:
        raise InvalidInput(
            '[data] user is an empty list. Name a column, such as user = ["sender", "receiver"].'
        )
    if data.rows_per_user is None or data.draw != "rows":
        raise InvalidInput(
            f"[data] user is a list of columns ({', '.join(data.user)}), so that a row has several owners, "
            "and counts against each of them. Say rows_per_user, the most rows in which one has a part, and "
            'draw = "rows".'
        )
    if privacy.adjacency == "add-remove":
        raise PrivacyRefusal(
            "where rows have several owners, without one of them the others would keep other rows, without a "
            "bound, so that adjacency add-remove is not proven. What all rows hold in which one has a part "
            'can be hidden: [privacy] adjacency = "zero-out" or "replace-one"; who has a part in which row '
            "is then taken to be public."
        )


def _check_table(config: Config, path: str) -> None:
    """Refuse columns of which not enough is declared to train on them."""
    if config.data.table is None:
        return
    with warnings.catch_warnings():  # of old forms, of which the reader of the records warns
        warnings.simplefilter("ignore", Deprecated)
        columns = config.read_columns(f"{path}: ")
    encoder = Encoder(columns, config.data.target, config.read_dialect(f"{path}: "))
    check_loss(config.training.loss, "classes" if encoder.classes else "numbers")
    check_class_weights(config.training.class_weights, encoder.classes)


def check_loss(name: str | None, targets: str) -> None:
    """Refuse a loss that is of other targets: characters, tokens, classes or numbers.

    Raises:
        InvalidInput: the loss of that name does not fit them.
    """
    fits = {"characters": "causal", "tokens": "causal", "classes": "classification", "numbers": "regression"}[
        targets
    ]
    if name not in (None, fits):
        raise InvalidInput(
            f'[training] loss = "{name}" does not fit the data, whose targets are {targets}. Take '
            f'loss = "{fits}", or leave the key out.'
        )


def check_class_weights(weights: Mapping[str, float], classes: Sequence[str]) -> None:
    """Refuse weights of what is no class.

    Raises:
        InvalidInput: the data have no classes, or no class of that name; or all weights are 0.
    """
    if weights and not classes:
        raise InvalidInput(
            "[training] class_weights are for classes, and the targets of this run are none. Leave the key "
            "out."
        )
    for name in weights:
        if name not in classes:
            raise InvalidInput(
                f"[training] class_weights: {name!r} is not among the classes, {', '.join(classes)}. Name "
                "each class as it is declared."
            )
    if weights and all(weights.get(name, 1.0) == 0.0 for name in classes):
        raise InvalidInput(
            "[training] class_weights are all 0, so that nothing is learnt. Give those that are to count a "
            "weight above 0."
        )


_ABOUT_PATHS = "Check the path; it is relative to the folder in which the command is called."


def check_model(section: ModelSection) -> None:
    """Refuse a section that names no model, or settings that the model does not have.

    Raises:
        InvalidInput: both a name and a factory or neither; an unknown name; an option that does not reach
            the model; a factory that cannot be found.
    """
    kinds = ("name", "factory", "huggingface")
    if len(named := [kind for kind in kinds if getattr(section, kind) is not None]) != 1:
        got = " and ".join(named) or "none of them"
        raise InvalidInput(f"[model] needs exactly one of {', '.join(kinds)}; got {got}.")
    options = ("activation", "temper", "hidden", "groups", "normalise")
    given = [name for name in options if getattr(section, name) is not None]
    if section.huggingface is not None:
        given += ["make_private_ready"] if section.make_private_ready else []
        if given:
            raise InvalidInput(
                f"[model] {', '.join(given)} would not reach the language model in {section.huggingface}: "
                "such settings are for models by name. Its config.json says what it is."
            )
        return
    if section.factory is not None:
        if given:
            raise InvalidInput(
                f"[model] {', '.join(given)} would not reach the factory {section.factory}: such settings "
                "are for models by name. Set them inside the function."
            )
        _check_factory(section.factory)
        return
    known = NETWORKS[check_in("[model] name", section.name, tuple(NETWORKS))]
    if unknown := [name for name in given if name not in known]:
        raise InvalidInput(
            f"[model] name = {section.name!r} has no option {unknown[0]!r}; it has "
            f"{', '.join(known) or 'none'}. Remove {unknown[0]}, or take another network."
        )


def _check_factory(reference: str) -> None:
    """Find the module of a factory without importing it: the import of most such modules takes seconds."""
    top = reference.partition(":")[0].partition(".")[0]
    try:
        with importing_from_here():
            found = importlib.util.find_spec(top) if top else None
    except (ImportError, ValueError):  # a module without a spec is loaded already
        return
    if found is None:
        raise InvalidInput(
            f'[model] factory = "{reference}" cannot be imported: No module named {top!r}. It must be '
            '"module:function", with the module in the current folder or installed.'
        )


@contextmanager
def importing_from_here() -> Iterator[None]:
    """Find modules in the current folder first, as ``python -m`` does."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path.pop(0)


def check_optimizer(section: OptimizerSection) -> None:
    """Refuse a setting that the optimizer does not have.

    Raises:
        InvalidInput: momentum for an optimizer without it.
    """
    if section.momentum and section.name not in _WITH_MOMENTUM:
        raise InvalidInput(f"[optimizer] {section.name} has no momentum; it goes with sgd and rmsprop.")


def _check_training(config: Config) -> None:
    training, data = config.training, config.data
    if training.ema_decay is not None:
        check_real("[training] ema_decay", training.ema_decay, low=0.0, high=1.0, open_high=True)
    kind = next((kind for kind in ("table", "text") if getattr(data, kind) is not None), None)
    if data.text is not None or data.name == "names":
        check_loss(training.loss, "characters" if data.corpus is None else "tokens")
    if data.images is not None:
        check_loss(training.loss, "classes")
    if kind is not None and training.views > 1:
        raise InvalidInput(
            f"[training] views = {training.views} makes flipped and shifted copies, which needs pictures; "
            f"the records are of a {kind}. Take views = 1."
        )
    if kind is not None and data.features != "raw":
        raise InvalidInput(
            f'[data] features = "{data.features}" needs pictures; the records are of a {kind}. Take '
            'features = "raw", or leave it out.'
        )


def _check_same(folder: Path, config: Config) -> None:
    changed = differences(read_config(folder / "config.toml"), config)
    if changed:
        raise PrivacyRefusal(
            f"the configuration is not the one that the run in {folder} was started with: "
            f"{'; '.join(changed)}. Going on would add the same noise to different sums, and their "
            "difference would have no noise. Go on with the old settings, or start a new run with --out."
        )


def _merged(configured: LedgerSection, given: LedgerSection | None) -> LedgerSection:
    """The configured section, with the given settings in place of its own."""
    changes = (
        {} if given is None else {name: value for name, value in given if value not in (None, False, "")}
    )
    return configured.model_copy(update=changes)


def check_ledger(section: LedgerSection) -> None:
    """Refuse a section by which nothing would be charged, though the user means to.

    Raises:
        InvalidInput: it has settings and no ledger, or no data set.
    """
    if section.url is None:
        given = [name for name, value in section if value not in (None, False, "")]
        if given:
            raise InvalidInput(
                f"[ledger] {', '.join(given)} is given without url, so nothing would be charged. Name the "
                'ledger: url = "budget.db", or --ledger budget.db.'
            )
    elif section.dataset is None:
        raise InvalidInput(
            "[ledger] dataset is missing: the name under which the ledger keeps the budget of these records "
            "(--dataset on the command line). `tacit ledger datasets` lists the names."
        )


def check_scores(config: Config, plan: Plan, *, charged: bool) -> None:
    """Refuse a charged run that would score its held-out records exactly; see :mod:`tacit.training.scoring`.

    Raises:
        InvalidInput: the configuration has noise for a score, and no ledger; or a baseline and no such noise.
        PrivacyRefusal: records of the ledger's data set would be scored exactly.
    """
    if config.privacy.test_baseline is not None and plan.score_report is None:
        raise InvalidInput(
            f"[privacy] test_baseline = {config.privacy.test_baseline:g} is the score of a constant answer, "
            "for a noisy score to be held against. This run has no test_noise: it counts the score of a "
            "constant answer from its test records. Leave test_baseline out."
        )
    if not charged:
        if plan.score_report is not None:
            raise InvalidInput(
                "[privacy] test_noise is for a run that is charged to a ledger, which makes sure that there "
                "is one score. Name the ledger, or leave test_noise out."
            )
        return
    if config.data.test_fraction is None or plan.score_report is not None:
        return
    another = "or test on records of another data set, from a separate file"
    if plan.adjacency is not Adjacency.ADD_REMOVE:
        raise PrivacyRefusal(
            "[data] test_fraction holds out records of the data set that this run is charged to, so exact "
            "scores of them would be released and not charged; and a noisy score has no guarantee under "
            f'{plan.adjacency}. Plan with adjacency = "add-remove" and [privacy] test_noise, {another}.'
        )
    raise PrivacyRefusal(
        "[data] test_fraction holds out records of the data set that this run is charged to, so exact scores "
        f"of them would be released and not charged. Say [privacy] test_noise = {_advised(plan):g}, for one "
        "score at the end with noise of that many records (standard deviation), for which "
        f"training's noise, or epsilon, grows by about 2 %; {another}."
    )


def _advised(plan: Plan) -> float:
    """Noise for a score at a 25th of what the plan costs, to two digits."""
    whole = accounting.calibrate(
        Gaussian, epsilon=min(plan.epsilon, _LARGEST), delta=plan.delta, adjacency=plan.adjacency
    )
    noise = _LESS_THAN_ALL * whole
    digit = 10.0 ** (math.floor(math.log10(noise)) - 1)
    return math.ceil(noise / digit) * digit
