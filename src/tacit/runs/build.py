"""Which session does a configuration describe?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tacit.datasets import Dataset
from tacit.errors import InvalidInput
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.runs.canaries import draw_canaries, with_canaries
from tacit.runs.config import Config
from tacit.runs.kinds import Progress
from tacit.runs.load import prepared_data
from tacit.runs.model import check_shapes, device_of, losses_of, new_model, new_optimizer
from tacit.runs.participants import in_order_of_dates, records_of
from tacit.runs.plan import make_plan
from tacit.runs.sections import TrainingSection
from tacit.training.augmentation import FlipAndCrop
from tacit.training.data.records import Records, as_records
from tacit.training.parts.audit_slots import AuditSlots
from tacit.training.parts.ledger_charges import StepCharges, register
from tacit.training.ranks.processes import Alone, Ranks
from tacit.training.session import PrivateSession

if TYPE_CHECKING:
    from tacit.training.data.streamed import StreamedBatches
from tacit.errors import PrivacyRefusal
from tacit.ledger import Ledger
from tacit.runs.checks import check_ledger
from tacit.runs.sections import LedgerSection


def make_session(
    config: Config,
    *,
    plan: Plan | None = None,
    charges: StepCharges | None = None,
    generator: Generator | None = None,
    ranks: Ranks | None = None,
    batches: StreamedBatches | None = None,
    progress: Progress | None = None,
) -> tuple[Dataset, PrivateSession]:
    """The data and the session that a configuration describes.

    Of several ranks each reads the records; all draw by the key of the first, which alone charges.

    Args:
        plan: the configuration's, if it exists already.
        charges: what the run charges to a ledger; the configuration alone charges nothing.
        generator: of the noise; by default a fresh one, or that of the charges, where there are any.
        ranks: the processes that train together, as the session takes them.
        batches: where the training records are, if ``tacit batches`` wrote them.
        progress: called during long preparations, with (title, done, total).

    >>> from pathlib import Path
    >>> import tacit.runs
    >>> demo = Path(tacit.runs.__file__).with_name("demo.toml")
    >>> data, session = make_session(tacit.runs.read_config(demo))
    >>> len(data.train.inputs), session.plan.steps
    (1437, 30)
    """
    plan = make_plan(config) if plan is None else plan
    device_of(config.run.device)
    together = Alone() if ranks is None else ranks
    generator = together.share_secret(_generator(generator, charges))
    canaries = draw_canaries(config, generator)
    if batches is not None:
        from tacit.runs.batches import data_of_batches  # imports pyarrow

        data = together.each(lambda: data_of_batches(config, batches))
    else:
        data = _data(config, progress, together)

    def check() -> None:
        if canaries and charges is not None:  # with planted records, the ledger would not recognise the data
            charges.recognise(as_records(data.train).content)
        if charges is not None:
            check_test_records(data, plan, charges)

    together.only_first(check)
    trained_on = with_canaries(data, canaries)
    session = session_on(
        config, trained_on, plan, charges=charges, generator=generator, ranks=ranks, records=batches
    )
    return data, session


def _data(config: Config, progress: Progress | None, ranks: Ranks) -> Dataset:
    """The data, which each rank reads; the first downloads them before the others do."""
    if not config.data.download:
        return ranks.each(lambda: prepared_data(config, progress))
    first = ranks.only_first(lambda: prepared_data(config, progress))
    return ranks.each(lambda: prepared_data(config, progress) if first is None else first)


def _generator(given: Generator | None, charges: StepCharges | None) -> Generator:
    """The given generator, else that of the charges, else a fresh one."""
    if given is not None:
        return given
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
    """A session of the configuration's model and settings by ``plan``, on ``records`` or ``data.train``."""
    own = _generator(generator, charges)
    together = Alone() if ranks is None else ranks
    model = together.each(lambda: new_model(config, data, own))
    session = PrivateSession(
        model,
        new_optimizer(config, model),
        in_order_of_dates(config, data, records_of(config, data)) if records is None else records,
        plan,
        loss=losses_of(data, config.training.loss, config.training.class_weights),
        engine=config.training.engine,
        physical_batch_size=config.training.physical_batch_size,
        augmentation=_augmentation(config.training, data.input_shape),
        ema_decay=config.training.ema_decay,
        audit=AuditSlots(config.audit.slots) if config.audit.slots else None,
        charges=charges,
        ranks=ranks,
        generator=own,
    )
    check_shapes(config.model, model, data)
    return session


def _augmentation(training: TrainingSection, shape: tuple[int, ...]) -> FlipAndCrop | None:
    if training.views == 1:
        return None
    if len(shape) != 3:
        raise InvalidInput(
            f"[training] views = {training.views} makes flipped and shifted copies, which needs pictures "
            f"(channels, height, width); the records have shape {shape}. Take views = 1."
        )
    if training.crop_padding >= min(shape[1:]):
        raise InvalidInput(
            f"[training] crop_padding = {training.crop_padding} must be below the height and width of the "
            f"pictures, {shape[1]} and {shape[2]}."
        )
    return FlipAndCrop(training.crop_padding)


def opened_batches(batches: Path | None) -> StreamedBatches | None:
    """The records whose batches ``tacit batches`` wrote to a folder, if there is one."""
    if batches is None:
        return None
    from tacit.training.data.streamed import StreamedBatches  # imports pyarrow

    return StreamedBatches(batches)


def make_charges(
    section: LedgerSection,
    plan: Plan,
    generator: Generator,
    ranks: Ranks | None = None,
    *,
    owned_by: str | None = None,
) -> StepCharges | None:
    """What a run of ``plan`` charges to the ledger that ``section`` names; None if it names none.

    Of several ``ranks`` the first calls this.  ``owned_by``: the column of people with several rows each.

    Raises:
        InvalidInput: the section is incomplete, or names a ledger or data set that does not exist.
        PrivacyRefusal: plan and data set promise different things.
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
    """Let the ledger record test records that are scored with noise; refuse exact scores of records it knows.

    Raises:
        PrivacyRefusal: the ledger knows the test records as another data set; or they are to be scored
            exactly and are the training records, or the ledger knows them.
    """
    ledger = charges.ledger
    content = as_records(data.test).content
    if plan.score_report is not None:
        register(ledger, charges.dataset, content(), block=charges.block)
        return
    found, trained_on = content(), as_records(data.train).content()
    if found is None or trained_on is None:
        return
    fingerprint = ledger.fingerprint(found)
    known = [
        status.name
        for status in ledger.datasets()
        for entry in ledger.history(status.name)
        if entry.kind == "content" and entry.body["fingerprint"] == fingerprint
    ]
    if fingerprint == ledger.fingerprint(trained_on):
        known = [charges.dataset]
    if known:
        raise PrivacyRefusal(
            f"the ledger knows the test records as records of the data set {known[0]!r}: "
            "exact scores of them would be released and not charged. Say [privacy] test_noise for one noisy "
            "score as a part of the budget, or test on other records."
        )
