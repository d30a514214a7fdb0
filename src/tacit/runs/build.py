"""Which session does a configuration describe?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tacit.datasets import Dataset
from tacit.errors import InvalidInput
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.runs.canaries import draw_canaries, with_canaries
from tacit.runs.charging import check_test_records
from tacit.runs.config import Config, TrainingSection
from tacit.runs.load import Progress, prepared_data
from tacit.runs.losses import losses_of
from tacit.runs.model import check_shapes, device_of, new_model, new_optimizer
from tacit.runs.owners import records_of
from tacit.runs.plan import make_plan
from tacit.runs.stream import in_order_of_dates
from tacit.training.augmentation import FlipAndCrop
from tacit.training.data.records import Records, as_records
from tacit.training.parts.audit_slots import AuditSlots
from tacit.training.parts.ledger_charges import StepCharges
from tacit.training.ranks.processes import Alone, Ranks
from tacit.training.session import PrivateSession

if TYPE_CHECKING:
    from tacit.training.data.streamed import StreamedBatches


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
