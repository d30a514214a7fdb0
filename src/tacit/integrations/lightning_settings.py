"""Which settings of a Lightning Trainer and module does private training refuse?"""

from __future__ import annotations

from typing import Any

from tacit.errors import InvalidInput, MissingExtra, PrivacyRefusal
from tacit.plan import Plan
from tacit.training import PrivateSession

try:
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ImportError:
    raise MissingExtra("lightning", "lightning", "PrivateSteps") from None


def check_trainer(trainer: Any, plan: Plan) -> None:
    """Refuse what would break the promise or contradict the plan, all in one message.

    Lightning itself refuses gradient clipping and accumulation under manual optimisation.

    Raises:
        PrivacyRefusal: a setting would break the guarantee.
        InvalidInput: none would, but they do not fit.
    """
    breaks = _breaking(trainer)
    lines = breaks + _contradicting(trainer, plan)
    if lines:
        kind = PrivacyRefusal if breaks else InvalidInput
        raise kind("private training refuses settings of the Trainer:\n- " + "\n- ".join(lines))


def _breaking(trainer: Any) -> list[str]:
    lines = []
    if not isinstance(trainer.strategy, SingleDeviceStrategy) or trainer.world_size > 1:
        lines.append(
            f"strategy={type(trainer.strategy).__name__} on {trainer.world_size} devices: the session trains "
            'on one device with its own step. Take strategy="auto", devices=1.'
        )
    if str(trainer.precision) != "32-true":
        lines.append(
            f"precision={str(trainer.precision)!r}: it changes the model after the session was made, or "
            'scales gradients before they are noised. Take "32-true", which leaves the model as it is, and '
            "convert the model before you make the session."
        )
    if trainer.overfit_batches:
        lines.append(
            f"overfit_batches={trainer.overfit_batches}: it repeats batches, which the plan has not priced. "
            "Leave it out."
        )
    return lines


def _contradicting(trainer: Any, plan: Plan) -> list[str]:
    lines = []
    if trainer.max_steps != plan.steps:
        lines.append(
            f"max_steps={trainer.max_steps}: the plan is for {plan.steps} steps, and its noise was chosen "
            f"for so many. Set max_steps={plan.steps}."
        )
    passes = -(-plan.steps // min(plan.steps_per_epoch, plan.steps))
    if trainer.max_epochs not in (None, -1) and trainer.max_epochs < passes:
        lines.append(
            f"max_epochs={trainer.max_epochs}: the plan's steps are {passes} passes over the records. Leave "
            "it out."
        )
    if trainer.min_steps:
        lines.append(f"min_steps={trainer.min_steps}: a ledger may end the run earlier. Leave it out.")
    if trainer.limit_train_batches != 1.0:
        lines.append(
            f"limit_train_batches={trainer.limit_train_batches}: the plan has {plan.steps_per_epoch} steps "
            "in a pass over the records. Leave it out; for a short try make a plan with few steps."
        )
    return lines


def check_module(module: Any, session: PrivateSession) -> None:
    """Refuse a module that would train without the session.

    Raises:
        PrivacyRefusal: it optimises automatically.
        InvalidInput: the session's model is not a part of it.
    """
    name = type(module).__name__
    if module.automatic_optimization:
        raise PrivacyRefusal(
            f"{name} has automatic optimisation: Lightning would compute gradients of the batch and step "
            "with them, without noise. Set self.automatic_optimization = False in its __init__, and call "
            "self.private.step(batch) in training_step."
        )
    if not any(part is session.model for part in module.modules()):
        raise InvalidInput(
            f"the session trains a {type(session.model).__name__} that is no part of {name}, so Lightning "
            "would validate and save another model. Make the session of the module's own model."
        )
