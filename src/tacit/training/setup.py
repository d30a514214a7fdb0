"""Setup of a session: checks of its arguments and model, its key and its engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tacit.accounting.flatten import LEAST_NOISE
from tacit.clipping.engine import GradientEngine, PerExampleLoss
from tacit.clipping.fast import FastEngine
from tacit.clipping.memory import FAST, MemoryBudget
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import InvalidInput, PrivacyRefusal, UnsupportedModel, check_in
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.sampling.base import Indices
from tacit.training.augmentation import Augmentation, check_by_record
from tacit.training.data.items import check_items
from tacit.training.data.prefetch import DrawnRecords
from tacit.training.data.records import DatasetRecords, Records
from tacit.training.data.structure import check_loss_takes, is_positional, with_record
from tacit.training.data.users import rows_read
from tacit.training.part import Part
from tacit.training.parts.audit_slots import AuditSlots
from tacit.training.parts.ledger_charges import StepCharges
from tacit.training.ranks.layout import Layout
from tacit.training.ranks.processes import Ranks

_CHECKED = 4  # the number of records on which data set and augmentation are checked
_KINDS: dict[str, tuple[type, str]] = {
    "model": (nn.Module, "a torch.nn.Module, such as nn.Sequential(...)"),
    "plan": (Plan, "a tacit.Plan; make one by Plan.calibrate(epsilon=..., delta=..., ...)"),
    "memory": (MemoryBudget, "tacit.clipping.FAST or LEAN"),
    "augmentation": (Augmentation, "a tacit.training.Augmentation, such as FlipAndCrop(4)"),
    "audit": (AuditSlots, "tacit.training.AuditSlots(1000), or None for none"),
    "charges": (StepCharges, "a tacit.training.StepCharges, or None without a ledger"),
    "ranks": (Ranks, "tacit.training.ProcessRanks() or Alone(), or None for one process"),
    "generator": (Generator, "left out; it is for tests, from tacit.testing"),
}
_NEEDED = ("model", "plan", "memory")


def check_kinds(arguments: object) -> None:
    """Refuse arguments of a wrong type; optional arguments may be None.

    Raises:
        InvalidInput: an argument has the wrong type.
    """
    for name, (kind, words) in _KINDS.items():
        value = getattr(arguments, name)
        if isinstance(value, kind) or (value is None and name not in _NEEDED):
            continue
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise InvalidInput(f"{name} must be {words}; got {got}.")


def check_layout(layout: Layout, *, ema_decay: object, audit: object) -> None:
    """Refuse arguments that a session does not support for a sharded model.

    Raises:
        InvalidInput: the model is sharded, and ``ema_decay`` or ``audit`` is given.
    """
    if layout.sharded and ema_decay is not None:
        raise InvalidInput(
            "ema_decay does not support a model sharded by fully_shard. It makes a copy of the model, and "
            "a sharded model cannot be copied. Leave it out, or average the weights of saved models."
        )
    if layout.sharded and audit is not None:
        raise InvalidInput(
            "audit does not support a model sharded by fully_shard. It adds parameters for the canaries, "
            "which fully_shard does not shard. Leave it out, or audit a run of the same plan whose model "
            "is not sharded."
        )


def check_ready(model: nn.Module, layout: Layout) -> None:
    """Refuse a model that is not ready to train.

    Raises:
        InvalidInput: weights are NaN or infinite.
        UnsupportedModel: parameters have no values yet, cannot be trained, or are on several devices.
    """
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise UnsupportedModel(
                f"parameter {name!r} has no shape yet: its layer is lazy and waits for a first batch. Run "
                "the model once on records of zeros before you make the optimizer and the session: "
                "model(torch.zeros(2, ...))."
            )
        if parameter.is_meta:
            raise UnsupportedModel(
                f"parameter {name!r} is on the meta device and has no values. Make the model on a real "
                'device, or fill it first: model.to_empty(device="cpu"), then load its weights.'
            )
        if parameter.is_inference():
            raise UnsupportedModel(
                f"parameter {name!r} was made under torch.inference_mode(), so it cannot be trained. Make or "
                "load the model outside of it."
            )
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        raise UnsupportedModel(
            f"the model is on several devices ({', '.join(devices)}). A private step computes on one; "
            f'device_map="auto" of transformers uses several. Load the model with device_map={{"": 0}}, or '
            'without device_map and then model.to("cuda"). A model that is too large for one device is '
            "trained by several processes, in shards of torch.distributed.fsdp.fully_shard "
            "(docs/sharded-models.md)."
        )
    _check_finite({name: layout.local(parameter.detach()) for name, parameter in model.named_parameters()})


def _check_finite(parameters: Mapping[str, Tensor]) -> None:
    """Refuse NaN and infinite values; if all are finite, the host waits for the device only once."""
    real = [torch.view_as_real(p) if p.is_complex() else p for p in parameters.values()]
    sums = [p.sum(dtype=torch.float32).to(real[0].device) for p in real]
    if not sums or math.isfinite(torch.stack(sums).sum()):  # else a value is not finite, or the sum overflows
        return
    for name, parameter in parameters.items():
        if not bool(parameter.isfinite().all()):
            raise InvalidInput(
                f"parameter {name!r} holds NaN or infinite values before training. Each loss would be NaN. "
                "Initialise the model again, or load other weights."
            )


def loss_of(loss: PerExampleLoss, records: Records, items: DatasetRecords | None) -> PerExampleLoss:
    """Return the loss in the form that the engines call, with the tensors of records as arguments.

    The structure of a data set's records is known only when the first step reads its first item.
    """
    if items is None:
        check_loss_takes(loss, records.template)
        if is_positional(records.template):
            return loss
    return with_record(loss, lambda: records.template)


def key_of_run(
    generator: Generator | None, plan: Plan, batches: DrawnRecords | None, charges: StepCharges | None
) -> Generator:
    """Return the generator of a run.

    It is that of the batches drawn beforehand, if there are any, else that of the charges, else
    ``generator``, else a fresh one.

    Raises:
        PrivacyRefusal: the batches were drawn with another key than that of ``generator``, or the noise is so
            small that a few records move a draw beyond the largest.
        InvalidInput: the charges have another key, or another plan.
    """
    if batches is not None:
        drawn_by = batches.generator_for(plan)
        if generator is not None and generator.secret_state() != drawn_by.secret_state():
            raise PrivacyRefusal(
                "the batches were drawn with another key than this run's. A run goes on with the batches "
                "that it began with."
            )
        generator = drawn_by
    if charges is not None:
        generator = charges.generator_of(plan, generator)
    if generator is None:
        generator = Generator.from_os()
    if generator.secure and plan.noise_multiplier < LEAST_NOISE:
        raise PrivacyRefusal(
            f"must be at least {LEAST_NOISE:g} in a private session",
            argument="noise_multiplier",
            value=plan.noise_multiplier,
            why="With less, epsilon is in the hundreds, and a few records can move a draw beyond 150 "
            "standard deviations, where computed noise ends.",
            fix="Take more; 1 is a usual value. To see what a model learns without noise, pass "
            "generator=tacit.testing.seeded_generator(0).",
        )
    return generator


def check_fit(plan: Plan, records: int, augmentation: Augmentation | None) -> None:
    """Refuse records or views that do not fit the plan."""
    plan.check_records(records)
    if augmentation is None and plan.views > 1:
        raise InvalidInput(f"the plan has {plan.views} views per record. Pass an augmentation to make them.")


def make_engine(
    name: str, model: nn.Module, loss: PerExampleLoss, plan: Plan, memory: MemoryBudget, rows: int
) -> GradientEngine:
    """Make the engine called ``name``, for records of ``rows`` rows.

    Raises:
        InvalidInput: there is no such engine, or it does not support this ``memory``.
    """
    views = plan.views * rows
    if check_in("engine", name, ("fast", "reference")) == "fast":
        return FastEngine(model, loss, plan.clipping, views=views, budget=memory)
    if memory != FAST:
        raise InvalidInput(
            f"memory={memory} does not apply to the reference engine. It limits what the fast engine "
            'stores, and the reference engine stores nothing. Leave it out, or take engine="fast".'
        )
    return ReferenceEngine(model, loss, plan.clipping, views=views)


@final
class FirstRecords(Part):
    """Checks, on the first participants, that items, loss and augmentation fit and do not mix records.

    Args:
        records: the records of the data, without canaries.
        items: the records again if they are a data set, whose items must be checked; else None.
        loss: the user's loss.
    """

    def __init__(
        self,
        records: Records,
        items: DatasetRecords | None,
        loss: PerExampleLoss,
        augmentation: Augmentation | None,
        views: int,
        ranks: Ranks,
    ) -> None:
        self._records, self._items, self._loss = records, items, loss
        self._augmentation, self._views, self._ranks = augmentation, views, ranks

    def before(self, step: int, indices: Indices) -> None:
        self._ranks.each(lambda: self._check(step, indices[indices < len(self._records)][:_CHECKED]))

    def _check(self, step: int, real: Indices) -> None:
        self._records.begin(step)
        if self._items is not None and len(real) > 0:
            check_items(self._items, rows_read(self._records, real)[:_CHECKED])
            check_loss_takes(self._loss, self._items.template)
            self._items = None
        if self._augmentation is not None:  # in the first step, whether or not a record takes part
            shape = self._records.take(real[:0], seed=0)[0]
            zeros = shape.new_zeros(()).expand(_CHECKED, *shape.shape[1:])
            check_by_record(self._augmentation, zeros, self._views)
            self._augmentation = None
