"""The settings of transformers' Trainer that private training refuses, each with the reason and the fix.

Some of them would break the guarantee, and others would be silently ignored. One error lists all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tacit.errors import InvalidInput, MissingExtra, PrivacyRefusal
from tacit.plan import Plan
from tacit.training import UserRecords

try:
    from transformers import DataCollatorWithFlattening, TrainingArguments
except ImportError:
    raise MissingExtra("transformers", "transformers", "PrivateTrainer") from None


def training_arguments(plan: Plan, output_dir: str, **settings: Any) -> TrainingArguments:
    """Make ``TrainingArguments`` for a plan: its steps and batch size, and no clipping by the Trainer.

    The default learning rate is 5e-4, ten times the Trainer's default: private runs take few steps on large
    batches, and at the usual rate they hardly change a model (Li et al., 2110.05679, section 3). For LoRA use
    2e-3 (:func:`tacit.recipes.lora_recipe`).

    Args:
        plan: the private plan of the run: its steps, noise and cost.
        output_dir: the folder for the Trainer's checkpoints.
        settings: any other setting of ``TrainingArguments``.

    >>> plan = Plan.with_noise(noise_multiplier=1.0, steps=100, records=1000, batch_size=50, clipping=1.0,
    ...                        delta=1e-5, adjacency="add-remove", unit="text")
    >>> arguments = training_arguments(plan, "out", learning_rate=1e-3, report_to="none")
    >>> arguments.max_steps, arguments.per_device_train_batch_size, arguments.max_grad_norm
    (100, 50, 0.0)
    """
    return TrainingArguments(output_dir=output_dir, **(_DEFAULTS | _plan_settings(plan) | settings))


_DEFAULTS: dict[str, Any] = {"learning_rate": 5e-4}


def _plan_settings(plan: Plan) -> dict[str, Any]:
    """Return the settings that follow from the plan."""
    return {
        "max_steps": plan.steps,
        "per_device_train_batch_size": round(plan.expected_batch_size),
        "max_grad_norm": 0.0,
    }


_TYPE_OF_WEIGHTS = "the engine computes in the type of the weights. Load the model in the type that you want"
_ONE_DEVICE = "the session trains on one device here, with its own step. Leave it out"
_BREAKS: dict[str, str] = {
    "gradient_accumulation_steps": (
        "a private step takes its whole sample at once, in physical batches that fit the memory, and adds "
        "its noise once. Set it to 1, give the plan the larger batch, and bound the memory by "
        "physical_batch_size"
    ),
    "auto_find_batch_size": "it would change the batch size that the plan has priced. Set it to False",
    "label_smoothing_factor": (
        "it belongs to the Trainer's own loss, a mean over the batch. Write it into the loss, as in "
        "tacit.losses.classification(label_smoothing=0.1)"
    ),
    "train_sampling_strategy": (
        "the plan accounts for batches drawn at random; batches by length, or in order, cost more. Set it to "
        '"random"'
    ),
    "fp16": f"a gradient scaler reads gradients before the noise is added, and {_TYPE_OF_WEIGHTS}",
    "bf16": f"it changes the model's forward pass; {_TYPE_OF_WEIGHTS}, such as dtype=torch.bfloat16",
    "fp16_full_eval": "it rounds the trained weights in place. Set it to False",
    "bf16_full_eval": "it rounds the trained weights in place. Set it to False",
    "deepspeed": f"it computes its own gradients and steps. {_ONE_DEVICE}",
    "fsdp": f"it splits the weights, and the session needs each record's gradient of all. {_ONE_DEVICE}",
    "parallelism_config": _ONE_DEVICE,
    "torch_compile": "the engine records the model as it is. Leave it out",
    "use_liger_kernel": "it puts kernels into the model whose losses and gradients mix the records",
    "neftune_noise_alpha": "it draws random numbers for a batch, not a record. Use dropout in the model",
    "activation_checkpointing": (
        "the engine stores what it needs itself. For less memory give physical_batch_size= or "
        "memory=tacit.clipping.LEAN to PrivateTrainer"
    ),
    "debug": (
        "it prints numbers of the records if one is not finite. Leave it out: training that diverges raises "
        "tacit.errors.Diverged"
    ),
    "include_num_input_tokens_seen": (
        'it logs the number of tokens of each batch, which reveals something of the records. Set it to "no"'
    ),
    "optim": (
        "it steps inside the backward pass, before gradients are clipped and noised, or needs modes that the "
        "session does not set. Take another, such as adamw_torch"
    ),
}
"""The reasons for settings that must be off, or have an allowed value, for the guarantee to hold."""
_DISAGREES: dict[str, str] = {
    "ignore_data_skip": "a resumed run continues at its own step of the pass. Set it to False",
    "enable_jit_checkpoint": (
        "the checkpoint would have no state of the session to resume from. Set it to False; save_steps "
        "limits the lost steps"
    ),
    "torch_empty_cache_steps": "a private step does not read it. Leave it out",
    "max_grad_norm": (
        "the plan clips the gradient of each record, and the session does not clip the noisy sum again (the "
        "default of TrainingArguments is 1.0). Set it to 0"
    ),
}
"""The reasons for settings that would be ignored, or would contradict the plan."""
_FITS: dict[str, Callable[[Any], bool]] = {
    "gradient_accumulation_steps": lambda value: not value or value == 1,
    "train_sampling_strategy": lambda value: not value or value == "random",
    "optim": lambda value: not re.search("lomo|layerwise|schedule_free", str(value).lower()),
}
"""Tests for allowed values of some settings; all other settings must be empty or "no"."""


def _fits(name: str, value: Any) -> bool:
    return _FITS[name](value) if name in _FITS else not value or value == "no"


def check_settings(args: TrainingArguments, plan: Plan) -> None:
    """Refuse settings that break the guarantee, are ignored or contradict the plan; one error lists all.

    Raises:
        PrivacyRefusal: if at least one of them would break the guarantee.
        InvalidInput: if settings would only be ignored or contradict the plan.
    """
    if not isinstance(args, TrainingArguments):
        raise InvalidInput(
            f"args must be TrainingArguments; got {type(args).__name__}. Make them by "
            "tacit.integrations.transformers.training_arguments(plan, output_dir)."
        )
    reasons = _BREAKS | _DISAGREES
    wrong = [name for name in reasons if not _fits(name, getattr(args, name, None))]
    lines = [f"{name}={_plain(getattr(args, name))}: {reasons[name]}." for name in wrong]
    lines += _contradictions(args, plan)
    if args.n_gpu > 1:
        lines.append(
            f"{args.n_gpu} GPUs in one process: DataParallel would copy the model to each of them. Let the "
            "process see one: CUDA_VISIBLE_DEVICES=0."
        )
    if not lines:
        return
    kind = PrivacyRefusal if args.n_gpu > 1 or any(name in _BREAKS for name in wrong) else InvalidInput
    raise kind(
        f"private training refuses {_counted(len(lines))} of TrainingArguments:\n- "
        + "\n- ".join(lines)
        + "\ntacit.integrations.transformers.training_arguments(plan, output_dir, ...) sets what the plan "
        + "decides."
    )


def _plain(value: Any) -> str:
    return repr(getattr(value, "value", value))


def _counted(count: int) -> str:
    return "a setting" if count == 1 else f"{count} settings"


def _contradictions(args: TrainingArguments, plan: Plan) -> list[str]:
    decided = _plan_settings(plan)
    lines = []
    if args.max_steps != decided["max_steps"]:
        lines.append(
            f"max_steps={args.max_steps}: the plan and its noise are for {plan.steps} steps. Set "
            f"max_steps={plan.steps}; num_train_epochs is then not read."
        )
    if args.train_batch_size != (size := decided["per_device_train_batch_size"]):
        lines.append(
            f"per_device_train_batch_size={args.per_device_train_batch_size}: the plan's steps take "
            f"{plan.expected_batch_size:g} records on average. Set per_device_train_batch_size={size}; "
            "physical_batch_size of PrivateTrainer bounds the memory."
        )
    return lines


def check_accelerator(accelerator: Any) -> None:
    """Refuse options that ``accelerate launch`` or its configuration file switched on.

    Raises:
        PrivacyRefusal: if an option would break the guarantee.
    """
    state = accelerator.state
    dynamo = getattr(getattr(state, "dynamo_plugin", None), "backend", None)
    switches = {
        "mixed precision": accelerator.mixed_precision not in ("no", None),
        "DeepSpeed": getattr(state, "deepspeed_plugin", None) is not None,
        "FSDP": getattr(state, "fsdp_plugin", None) is not None,
        "gradient accumulation": accelerator.gradient_accumulation_steps != 1,
        "compilation": getattr(dynamo, "value", "NO") != "NO",
    }
    if names := [name for name, on in switches.items() if on]:
        raise PrivacyRefusal(
            f"accelerate has switched on {', '.join(names)}, which private training refuses: it takes its "
            "own steps, on the model as it is. Start the script with python in place of accelerate launch, "
            "or take this out of the configuration of accelerate and out of variables named ACCELERATE_..."
        )


_REFUSED_ARGUMENTS = {
    "compute_loss_func": "it returns one number for a whole batch. Pass loss=, which returns one for each "
    "record: docs/transformers.md",
    "model_init": "it makes a model for each trial of a search, and each trial spends budget on the same "
    "records. Pass model=; tacit.training.select_candidate chooses settings at a stated price",
}


def refuse_arguments(*, compute_loss_func: object, model_init: object) -> None:
    """Refuse the two arguments of Trainer that PrivateTrainer does not support.

    Raises:
        PrivacyRefusal: if one was given; the message says what to use instead.
    """
    for name, value in (("compute_loss_func", compute_loss_func), ("model_init", model_init)):
        if value is not None:
            raise PrivacyRefusal(f"PrivateTrainer takes no {name}: {_REFUSED_ARGUMENTS[name]}.")


def check_collator(collator: object) -> None:
    """Refuse a collator that joins several records into one row.

    Raises:
        PrivacyRefusal: if it joins records.
    """
    if isinstance(collator, DataCollatorWithFlattening):
        raise PrivacyRefusal(
            "DataCollatorWithFlattening joins the records into one row: attention and padding would mix "
            "them. Give each record its own row: DataCollatorWithPadding with padding='max_length'."
        )


def check_held_out(data: object, eval_data: object) -> None:
    """Refuse to evaluate on the training records.

    Raises:
        PrivacyRefusal: if ``eval_data``, or one data set in it, is ``data`` or the rows of its users.
    """
    training = [data, data.data] if isinstance(data, UserRecords) else [data]
    if eval_data is not None and any(one is own for one in _sets(eval_data) for own in training):
        raise PrivacyRefusal(
            "eval_dataset must not be train_dataset: figures on training records are exact, and would be "
            "logged. Pass held-out records; for a noisy loss of the training records give the plan a "
            "loss_report."
        )


def _sets(eval_data: object) -> list[object]:
    return [*eval_data.values()] if isinstance(eval_data, dict) else [eval_data]
