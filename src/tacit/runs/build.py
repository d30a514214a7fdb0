"""The training session of a configuration: its records, model, charges to a ledger, and notes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.audits import plan_with_room
from tacit.audits.attacks import Canary
from tacit.collate import Pad
from tacit.datasets import Dataset
from tacit.datasets.text import PADDING, check_users
from tacit.errors import InvalidInput, PrivacyRefusal, TacitError, check_shares
from tacit.ledger import Ledger
from tacit.models.additive import InPhases
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.report.findings import FEWEST_TESTS
from tacit.runs.canaries import draw_canaries, with_canaries
from tacit.runs.checks import check_ledger
from tacit.runs.config import Config
from tacit.runs.kinds import Progress, prepared_data, silent
from tacit.runs.kinds.texts import tokens_of
from tacit.runs.learners import learner_of, new_model
from tacit.runs.model import device_of, in_training, new_optimizer, training_loss
from tacit.runs.plan import make_plan
from tacit.runs.sections import LedgerSection, TrainingSection
from tacit.training.audit_slots import AuditSlots
from tacit.training.by_record import FlipAndCrop
from tacit.training.charges import StepCharges, register
from tacit.training.lengths import Lengths
from tacit.training.own_records import check_apart
from tacit.training.ranks import Alone, Ranks
from tacit.training.records import Data, Records, as_records
from tacit.training.session import PrivateSession
from tacit.training.users import DatedRecords, UserRecords, day_of, numbered

if TYPE_CHECKING:
    from tacit.training.streamed import StreamedBatches

USUAL_SLOTS = 1000  # slots of a planted experiment
MOST_WORK = 2e8  # limit of records times steps of a rehearsal, which takes about a minute


def make_session(
    config: Config,
    *,
    plan: Plan | None = None,
    charges: StepCharges | None = None,
    generator: Generator | None = None,
    ranks: Ranks | None = None,
    batches: StreamedBatches | None = None,
    private: Path | None = None,
    progress: Progress = silent,
) -> tuple[Dataset, PrivateSession]:
    """Make the data and the session that a configuration describes.

    With several ranks, each rank reads the records, or its own.  All ranks draw batches with the key of the
    first rank, and only the first rank charges the ledger.  ``private`` is the run's folder for cached
    features.
    """
    plan = make_plan(config) if plan is None else plan
    device_of(config.run.device)
    together = Alone() if ranks is None else ranks
    check_own_records(config, together)
    generator = together.share_secret(_generator(generator, charges))
    canaries = draw_canaries(config, generator)
    if batches is not None:
        from tacit.runs.batches import data_of_batches  # imports pyarrow

        data = together.each(lambda: data_of_batches(config, batches))
    else:
        # The first rank computes features of a public model, and the others read them from its cache.
        first = None
        if config.pretrained:
            first = together.only_first(lambda: prepared_data(config, progress, private))
        data = together.each(lambda: prepared_data(config, progress, private) if first is None else first)

    def check() -> None:
        if canaries and charges is not None:  # the ledger would not recognise data with canaries
            charges.recognise(as_records(data.train).content)
        if charges is not None:
            check_test_records(data, plan, charges)

    together.only_first(check)
    trained_on = with_canaries(data, canaries)
    session = session_on(
        config, trained_on, plan, charges=charges, generator=generator, ranks=ranks, records=batches
    )
    return data, session


def check_own_records(config: Config, ranks: Ranks) -> None:
    own = config.data.own_records
    if own and not ranks.own_records:
        raise InvalidInput(
            "[data] own_records = true needs several processes, each with its own table. Use torchrun -m "
            "tacit train, or pass ranks=ProcessRanks(own_records=True). No other command supports it."
        )
    if ranks.own_records and not own:
        raise InvalidInput(
            "the processes have own_records=True, but the run file does not. Set [data] own_records = true, "
            "or remove own_records from ProcessRanks."
        )


def _generator(generator: Generator | None, charges: StepCharges | None) -> Generator:
    if generator is not None:
        return generator
    return Generator.from_os() if charges is None else charges.generator


def session_on(
    config: Config,
    data: Dataset,
    plan: Plan,
    *,
    charges: StepCharges | None = None,
    generator: Generator | None = None,
    ranks: Ranks | None = None,
    records: Records | None = None,
) -> PrivateSession:
    """Make a session with the configuration's model and settings on ``records``, else on ``data.train``."""
    noise = _generator(generator, charges)
    together = Alone() if ranks is None else ranks
    model = together.each(lambda: in_training(config, data, new_model(config, data, noise)))
    if isinstance(model, InPhases):
        model.for_plan(plan)
    session = PrivateSession(
        model,
        new_optimizer(config, model),
        in_order_of_dates(config, data, records_of(config, data, together)) if records is None else records,
        plan,
        loss=training_loss(config, model, data),
        collate=_of_several_lengths(config),
        engine=config.training.engine,
        physical_batch_size=config.training.physical_batch_size,
        augmentation=_augmentation(config.training, data.input_shape),
        ema_decay=config.training.ema_decay,
        audit=AuditSlots(config.audit.slots) if config.audit.slots else None,
        charges=charges,
        ranks=ranks,
        generator=noise,
    )
    learner_of(config, data).check(model)
    if config.pretrained and data.classes:
        session.falling.start = math.log(len(data.classes))  # the loss of a head that starts at zero
    return session


def _of_several_lengths(config: Config) -> Pad | None:
    """Return the lengths of records that are padded already, in inputs and targets; None if there is one."""
    section = config.data
    if not section.lengths:
        return None
    padding = tokens_of(str(config.model.huggingface)).padding
    lengths = dict.fromkeys((0, 1), tuple(section.lengths))
    shares = check_shares("[data] shares", section.shares, len(section.lengths))
    return Pad({}, {}, Lengths(lengths, {0: padding, 1: PADDING}, shares, axis=-1))


def _augmentation(training: TrainingSection, shape: tuple[int, ...]) -> FlipAndCrop | None:
    if training.views == 1:
        return None
    if len(shape) != 3:
        raise InvalidInput(
            f"[training] views = {training.views} needs images (channels, height, width); the records have "
            f"shape {shape}. Set views = 1."
        )
    if training.crop_padding >= min(shape[1:]):
        raise InvalidInput(
            f"[training] crop_padding = {training.crop_padding} must be below the images' height and width: "
            f"{shape[1]} and {shape[2]}. Lower it."
        )
    return FlipAndCrop(training.crop_padding)


def opened_batches(batches: Path | None) -> StreamedBatches | None:
    if batches is None:
        return None
    from tacit.training.streamed import StreamedBatches  # imports pyarrow

    return StreamedBatches(batches)


def make_charges(
    section: LedgerSection,
    plan: Plan,
    generator: Generator,
    ranks: Ranks | None = None,
    *,
    owned_by: str | None = None,
) -> StepCharges | None:
    """Return the charges of a run to the ledger that ``section`` names; None if it names no ledger.

    With several ``ranks``, only the first rank calls this.
    """
    check_ledger(section)
    if section.url is None or section.dataset is None:
        return None
    return StepCharges(
        Ledger.open(section.url),
        section.dataset,
        plan,
        chunk=section.chunk,
        block=section.block,
        one_record_per_unit=section.one_record_per_unit,
        owned_by=owned_by,
        by=section.by,
        ranks=ranks,
        generator=generator,
    )


def check_test_records(data: Dataset, plan: Plan, charges: StepCharges) -> None:
    """Register test records that are scored with noise, and refuse exact scores of records in the ledger."""
    ledger = charges.ledger
    content = as_records(data.test).content
    if plan.score_report is not None:
        register(ledger, charges.dataset, content(), block=charges.block)
        return
    test_content, train_content = content(), as_records(data.train).content()
    if test_content is None or train_content is None:
        return
    fingerprint = ledger.fingerprint(test_content)
    names = [
        status.name
        for status in ledger.datasets()
        for entry in ledger.history(status.name)
        if entry.kind == "content" and entry.body["fingerprint"] == fingerprint
    ]
    if fingerprint == ledger.fingerprint(train_content):
        names = [charges.dataset]
    if names:
        raise PrivacyRefusal(
            f"the test records belong to the ledger's data set {names[0]!r}, so exact scores would release "
            "them without a charge. Test on other records, or (except for survival models) set [privacy] "
            "test_noise for one noisy score within the budget."
        )


def records_of(config: Config, data: Dataset, ranks: Ranks) -> Data | Records | UserRecords:
    # padded already, so that the session's collate function need not read them one by one
    train = as_records(data.train) if config.data.lengths else data.train
    if data.owners is None:
        return train
    if config.data.rows_per_user is None:
        for owners, name in ((data.owners, "training"), (data.test_owners, "testing")):
            numbered(owners)  # raises if a row names no person
            check_users(owners or (), name, table=config.data.table is not None)
        if ranks.own_records:
            check_apart(lambda: numbered(data.owners)[1], config.privacy.unit, ranks)
        return train
    return UserRecords(train, data.owners, rows_per_user=config.data.rows_per_user)


def owned_by(config: Config) -> str | None:
    user = config.data.user
    if config.data.rows_per_user is None or user is None:
        return None
    return user if isinstance(user, str) else " or ".join(user)


def owners_line(config: Config, data: Dataset) -> tuple[str, ...]:
    unit, user, most = config.privacy.unit, config.data.user, config.data.rows_per_user
    if user is None:
        return ()
    if isinstance(data.owners, list) and any(isinstance(owner, tuple) for owner in data.owners):
        return (
            f"steps draw rows, which may belong to several people; each {unit}, a value of "
            f"{owned_by(config)!r}, has a part in at most {most} of the rows that are kept, and the choice "
            "of these rows depends on nothing that rows hold; each row is clipped separately, and the price "
            f"is that of all rows of a {unit}",
        )
    if most is None:
        return (f"each {unit}, a value of {user!r}, has one training record, as was checked",)
    if config.data.draw == "rows":
        return (
            f"steps draw rows, of which each {unit}, a value of {user!r}, keeps at most {most}; each row is "
            f"clipped separately, and the price is that of all rows of a {unit}",
        )
    return (
        f"one record is one {unit}, all rows with one value of {user!r}; a step draws records, reads {most} "
        "rows of each, and clips the mean of their gradients",
    )


def in_order_of_dates(
    config: Config, data: Dataset, records: Data | Records | UserRecords
) -> Data | Records | UserRecords | DatedRecords:
    section = config.data
    if data.dates is None:
        return records
    return DatedRecords(
        records,
        data.dates,
        first=str(section.first_day),
        until=section.until,
        days=section.days_per_step,
        too_often=section.too_often,
    )


def dates_line(config: Config, plan: Plan, steps_done: int) -> tuple[str, ...]:
    section = config.data
    if section.date is None:
        return ()
    first, days = day_of("first_day", section.first_day), section.days_per_step
    each = "one day" if days == 1 else f"{days} days"
    return (
        f"a step takes the rows of {each} by the column {section.date!r}, the first step those from {first} "
        f"on; the days before {first + steps_done * days} were trained on, {steps_done} of {plan.steps} "
        "steps",
    )


def days_left(config: Config, plan: Plan, steps_done: int) -> str:
    """Return a sentence on the days that a run on dated records needs next.

    The sentence is empty if the run is complete or of another kind.
    """
    if config.data.date is None or steps_done >= plan.steps:
        return ""
    first, days = day_of("first_day", config.data.first_day), config.data.days_per_step
    begin = first + steps_done * days
    return (
        f"Trained up to {begin} (excluded), {steps_done} of {plan.steps} steps. The next step needs "
        f"complete data before {begin + days}."
    )


def check_days(config: Config, data: Dataset, session: PrivateSession) -> None:
    """Refuse to train on days without records, since such steps would add nothing but noise."""
    dated = in_order_of_dates(config, data, data.train)
    if not isinstance(dated, DatedRecords):
        return
    steps_done, steps_there = session.steps_done, session.steps_there
    first, days = dated.first, dated.days
    if steps_there > steps_done:
        rows = (dated.step_of >= steps_done) & (dated.step_of < steps_there)
        if not rows.any():
            raise InvalidInput(
                f"{config.data.table or config.data.corpus} has no records from {first + steps_done * days} "
                f"to {first + steps_there * days - 1}, so these steps would add only noise. Name the file "
                "with these days, or set an earlier [data] until."
            )


def notes_on(
    config: Config, data: Dataset, session: PrivateSession, canaries: Sequence[Canary]
) -> tuple[str, ...]:
    """Return the lines of a run's statement about public facts that are not in its mechanism.

    It is public that canaries were planted, since they belong to no person.  It is secret which of them took
    part.
    """
    slots = config.audit.slots
    lines = [*owners_line(config, data), *dates_line(config, session.plan, session.steps_done)]
    if config.data.lengths:
        lengths = ", ".join(map(str, config.data.lengths))
        lines.append(
            f"records are padded to the smallest of {lengths} tokens that holds them; how many passes a step "
            "takes for each is public, by declared shares"
        )
    if slots:
        lines.append(f"{slots} audit slots: canary records without data were planted for half of them")
    if canaries:
        planted = f"{len(canaries)} synthetic lines with random secrets were planted"
        lines.append(f"{planted}, each by a secret coin")
    return tuple(lines)


def work_of(plan: Plan) -> float:
    """Return the expected number of records in all steps together, as a measure of computing time."""
    return plan.steps * plan.expected_batch_size


def how_to_test(config: Config, plan: Plan, folder: Path, test_records: int) -> str:
    if config.data.own_records:
        return "No command tests it: attacks read the records of all processes."
    run = shlex.quote(str(folder))
    if config.data.date is not None:
        return "No command tests a run by date: attacks train on random halves of the records."
    refusal = ""
    try:
        AuditSlots(1).check_plan(plan)
        if not config.audit.slots and work_of(plan_with_room(plan, USUAL_SLOTS)) > MOST_WORK:
            refusal = "a planted experiment would take too long without [audit] slots."
    except TacitError as problem:
        refusal = str(problem)

    if config.data.rows_per_user is None and config.data.chosen is None:
        if test_records < FEWEST_TESTS:
            return f"No command tests it: an attack needs at least {FEWEST_TESTS} test records."
        return f"tacit {'attack' if refusal else 'audit'} {run}"
    if refusal:
        return f"No command tests it: attacks test single rows, and {refusal}"
    return f"tacit audit {run}"
