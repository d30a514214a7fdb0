"""Are the arguments of a session of the right kind? Checked first, so that none fails deep within."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import is_lazy

from tacit.clipping.memory import MemoryBudget
from tacit.errors import InvalidInput, UnsupportedModel
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.training.augmentation import Augmentation
from tacit.training.parts.audit_slots import AuditSlots
from tacit.training.parts.ledger_charges import StepCharges
from tacit.training.ranks.layout import Layout
from tacit.training.ranks.processes import Ranks


def check_arguments(
    model: object,
    plan: object,
    *,
    augmentation: object,
    memory: object,
    audit: object,
    charges: object,
    ranks: object,
    generator: object,
) -> None:
    """Refuse arguments of another kind than the session takes.

    Raises:
        InvalidInput: an argument is of another kind.
    """
    wanted: tuple[tuple[str, object, type, str], ...] = (
        ("model", model, nn.Module, "a torch.nn.Module, such as nn.Sequential(...)"),
        ("plan", plan, Plan, "a tacit.Plan; make one by Plan.calibrate(epsilon=..., delta=..., ...)"),
        ("augmentation", augmentation, Augmentation, "a tacit.training.Augmentation, such as FlipAndCrop(4)"),
        ("memory", memory, MemoryBudget, "tacit.clipping.FAST or LEAN"),
        ("audit", audit, AuditSlots, "tacit.training.AuditSlots(1000), or None for none"),
        ("charges", charges, StepCharges, "a tacit.training.StepCharges, or None without a ledger"),
        ("ranks", ranks, Ranks, "tacit.training.ProcessRanks() or Alone(), or None for one process"),
        ("generator", generator, Generator, "left out; it is for tests, from tacit.testing"),
    )
    for name, value, kind, words in wanted:
        if isinstance(value, kind) or (value is None and name not in ("model", "plan", "memory")):
            continue
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise InvalidInput(f"{name} must be {words}; got {got}.")


def check_layout(layout: Layout, *, ema_decay: object, audit: object) -> None:
    """Refuse what a session does not do with a sharded model.

    Raises:
        InvalidInput: one of these arguments is given.
    """
    if layout.sharded and ema_decay is not None:
        raise InvalidInput(
            "ema_decay makes a copy of the model with averaged weights, and a model that fully_shard sharded "
            "cannot be copied. Leave it out, or average the weights of saved models."
        )
    if layout.sharded and audit is not None:
        raise InvalidInput(
            "audit plants canaries in a model around yours, in which fully_shard has no part. Leave it out, "
            "or audit a run of the same plan whose model is not sharded."
        )


def check_ready(model: nn.Module, layout: Layout) -> None:
    """Refuse a model that is not ready to train.

    Raises:
        InvalidInput: weights are NaN or infinite.
        UnsupportedModel: parameters have no values yet, or none that can be trained.
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
        if not bool(layout.local(parameter.detach()).isfinite().all()):
            raise InvalidInput(
                f"parameter {name!r} holds NaN or infinite values before training, so that each loss would "
                "be NaN. Initialise the model again, or load other weights."
            )
