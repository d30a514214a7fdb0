"""A private Trainer for transformers: the Trainer runs the loop, and a session takes the steps."""

# Settings of the Trainer that would break the guarantee, or be ignored, are refused: one error lists all of
# them.  Only documented extension points of the Trainer are used: the loader of training batches, the
# training step, the schedule, the log, and callbacks.

from __future__ import annotations

import copy
import dataclasses
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tacit.clipping.engine import PerExampleLoss
from tacit.clipping.memory import FAST, MemoryBudget
from tacit.errors import InvalidInput, MissingExtra, PrivacyRefusal, users_level
from tacit.integrations.loops import SessionStates, SteppedBySession, ticket_loader, ticket_of
from tacit.losses import MASKS, PACKED_ROWS, logits_of, per_record
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.training import AuditSlots, PrivateSession, StepCharges, UserRecords

try:
    import accelerate  # noqa: F401 (the Trainer needs it, but reports it missing only late)
    from transformers import DataCollatorWithFlattening, Trainer, TrainerCallback, TrainingArguments
except ImportError:
    raise MissingExtra("transformers and accelerate", "transformers", "PrivateTrainer") from None


def training_arguments(
    plan: Plan, output_dir: str, *, config: type[TrainingArguments] = TrainingArguments, **settings: Any
) -> TrainingArguments:
    """Make the ``TrainingArguments`` of a private run, with the steps and the batch size of its plan.

    The Trainer does not clip gradients, because the session does. The default learning rate is 5e-4 instead
    of the Trainer's 5e-5, because private runs take few steps on large batches (Li et al., 2110.05679,
    section 3). For LoRA, pass 2e-3 (:func:`tacit.recipes.lora_recipe`).

    Args:
        plan: the private plan of the run: its steps, noise and cost.
        output_dir: the folder for the Trainer's checkpoints.
        config: the class of the arguments: ``TrainingArguments``, or a subclass such as TRL's ``SFTConfig``.
        settings: any other settings of that class.

    >>> plan = Plan.with_noise(noise_multiplier=1.0, steps=100, records=1000, batch_size=50, clipping=1.0,
    ...                        delta=1e-5, adjacency="add-remove", unit="text")
    >>> arguments = training_arguments(plan, "out", learning_rate=1e-3, report_to="none")
    >>> arguments.max_steps, arguments.per_device_train_batch_size, arguments.max_grad_norm
    (100, 50, 0.0)
    """
    return config(output_dir=output_dir, **(_DEFAULTS | _plan_settings(plan) | settings))


_DEFAULTS: dict[str, Any] = {"learning_rate": 5e-4, "bf16": False, "activation_checkpointing": False}
"""Values in place of the Trainer's and TRL's defaults."""


def _plan_settings(plan: Plan) -> dict[str, Any]:
    return {
        "max_steps": plan.steps,
        "per_device_train_batch_size": round(plan.expected_batch_size),
        "max_grad_norm": 0.0,
    }


_TYPE_OF_WEIGHTS = "the engine computes in the dtype of the weights. Load the model in the dtype you want"
_ONE_DEVICE = "the session trains on one device here. Remove it"
_BREAKS: dict[str, str] = {
    "gradient_accumulation_steps": (
        "a private step adds noise once for its whole batch. Set it to 1, give the plan the larger batch, "
        "and limit memory by physical_batch_size"
    ),
    "auto_find_batch_size": "it would change the batch size of the plan. Set it to False",
    "label_smoothing_factor": (
        "it belongs to the Trainer's own loss, a mean over the batch. Set it in loss=, as in "
        "tacit.losses.classification(label_smoothing=0.1)"
    ),
    "train_sampling_strategy": (
        'the plan accounts for random batches; batches by length, or in order, cost more. Set it to "random"'
    ),
    "fp16": f"a gradient scaler reads gradients before noise, and {_TYPE_OF_WEIGHTS}",
    "bf16": (
        f"it changes the model's forward pass. Set it to False; {_TYPE_OF_WEIGHTS}, such as "
        "dtype=torch.bfloat16"
    ),
    "fp16_full_eval": "it rounds the trained weights in place. Set it to False",
    "bf16_full_eval": "it rounds the trained weights in place. Set it to False",
    "deepspeed": f"it computes its own gradients and steps. {_ONE_DEVICE}",
    "fsdp": f"it shards the weights, and the session needs each record's whole gradient. {_ONE_DEVICE}",
    "parallelism_config": _ONE_DEVICE,
    "torch_compile": "the engine traces the model itself. Remove it",
    "use_liger_kernel": "it puts kernels into the model whose losses and gradients mix the records",
    "neftune_noise_alpha": "it draws random numbers per batch, not per record. Use dropout in the model",
    "packing": (
        "it packs several examples into a row, and the guarantee is for one row. Set it to False; "
        "tacit.collate.pad pads each example"
    ),
    "padding_free": "it joins the examples of a batch into one row. Set it to False",
    "debug": (
        "it prints values of records if one is not finite. Remove it: training that diverges raises "
        "tacit.errors.Diverged"
    ),
    "include_num_input_tokens_seen": (
        'it logs the number of tokens of each batch, which leaks. Set it to "no"'
    ),
    "optim": (
        "it steps inside the backward pass, before clipping and noise, or needs modes that the session does "
        "not set. Use another, such as adamw_torch"
    ),
}
"""Why settings must be off, or have an allowed value, for the guarantee to be true."""
_DISAGREES: dict[str, str] = {
    "ignore_data_skip": "a resumed run continues where it stopped. Set it to False",
    "enable_jit_checkpoint": (
        "the checkpoint would lack the session's state. Set it to False; save_steps limits the lost steps"
    ),
    "torch_empty_cache_steps": "a private step ignores it. Remove it",
    "max_grad_norm": (
        "the plan clips the gradient of each record; the noisy sum is not clipped again (the default of "
        "TrainingArguments is 1.0). Set it to 0"
    ),
}
"""Why settings would be ignored or contradict the plan."""
_OF_TRL = (
    "loss_type", "loss_weights", "beta", "label_smoothing", "ld_alpha", "f_divergence_type",
    "f_alpha_divergence_coef", "use_weighting", "discopop_tau", "sync_ref_model", "ref_model_mixup_alpha",
    "ref_model_sync_steps", "router_aux_loss_coef", "activation_offloading",
)  # fmt: skip
"""TRL's settings of a training step. Its other settings prepare the data."""
_FITS: dict[str, Callable[[Any], bool]] = {
    "gradient_accumulation_steps": lambda value: not value or value == 1,
    "train_sampling_strategy": lambda value: not value or value == "random",
    "optim": lambda value: not re.search("lomo|layerwise|schedule_free", str(value).lower()),
}
"""Tests for allowed values of some settings; all other settings must be empty or "no"."""


def _fits(name: str, value: Any) -> bool:
    return _FITS[name](value) if name in _FITS else not value or value == "no"


def check_settings(args: TrainingArguments, plan: Plan) -> None:
    """Refuse settings that break the guarantee, are ignored or contradict the plan; one error lists all."""
    if not isinstance(args, TrainingArguments):
        raise InvalidInput(
            f"args must be TrainingArguments; got {type(args).__name__}. Make them with "
            "tacit.integrations.transformers.training_arguments(plan, output_dir)."
        )
    reasons = _BREAKS | _DISAGREES
    wrong = [name for name in reasons if not _fits(name, getattr(args, name, None))]
    lines = [f"{name}={_plain(getattr(args, name))}: {reasons[name]}." for name in wrong]
    lines += _of_trl(args)
    lines += _contradictions(args, plan)
    if args.n_gpu > 1:
        lines.append(
            f"{args.n_gpu} GPUs in one process: DataParallel would copy the model to each. Set "
            "CUDA_VISIBLE_DEVICES=0."
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


def _of_trl(args: TrainingArguments) -> list[str]:
    if not any(kind.__module__.startswith("trl.") for kind in type(args).__mro__):
        return []
    defaults = {
        field.name: field.default_factory() if callable(field.default_factory) else field.default
        for field in dataclasses.fields(args)
        if field.name in _OF_TRL
    }
    return [
        f"{name}={_plain(getattr(args, name))}: PrivateTrainer ignores this setting of TRL's trainer. Set it "
        "in loss=, as in tacit.losses.preference(beta=0.3)."
        for name, default in defaults.items()
        if getattr(args, name) != default
    ]


def _contradictions(args: TrainingArguments, plan: Plan) -> list[str]:
    decided = _plan_settings(plan)
    lines = []
    if args.max_steps != decided["max_steps"]:
        lines.append(
            f"max_steps={args.max_steps}: the plan and its noise are for {plan.steps} steps. Set "
            f"max_steps={plan.steps}, which overrides num_train_epochs."
        )
    if args.train_batch_size != (size := decided["per_device_train_batch_size"]):
        lines.append(
            f"per_device_train_batch_size={args.per_device_train_batch_size}: the plan's steps take "
            f"{plan.expected_batch_size:g} records on average. Set per_device_train_batch_size={size}, and "
            "limit memory by physical_batch_size of PrivateTrainer."
        )
    return lines


def check_accelerator(accelerator: Any) -> None:
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
            f"private training does not support {', '.join(names)} of accelerate. Start the script with "
            "python instead of accelerate launch, or remove this from accelerate's configuration and from "
            "environment variables ACCELERATE_..."
        )


_REFUSED_ARGUMENTS = {
    "compute_loss_func": "it returns one number for a batch. Pass loss=, which returns one per record: "
    "docs/how-to/public-models.md",
    "model_init": "it makes a model for each trial of a search, and each trial spends budget. Pass model=; "
    "tacit.training.select_candidate chooses settings at a known privacy cost",
}


def refuse_arguments(*, compute_loss_func: object, model_init: object) -> None:
    for name, value in (("compute_loss_func", compute_loss_func), ("model_init", model_init)):
        if value is not None:
            raise PrivacyRefusal(f"PrivateTrainer takes no {name}: {_REFUSED_ARGUMENTS[name]}.")


def check_collator(collator: object) -> None:
    if isinstance(collator, DataCollatorWithFlattening):
        raise PrivacyRefusal(
            "DataCollatorWithFlattening joins the records into one row, which mixes them. Give each record "
            "its own row: DataCollatorWithPadding with padding='max_length'."
        )


def names_of(data: Any) -> Sequence[str]:
    """Return the columns of a dataset, or the keys of its first row; empty for rows without keys."""
    if isinstance(data, UserRecords):
        return names_of(data.data)
    if (columns := getattr(data, "column_names", None)) is not None:
        return [*columns]
    row = data[0] if hasattr(data, "__getitem__") and len(data) else None
    return [*row] if isinstance(row, Mapping) else []


def check_columns(names: Sequence[str], loss: object) -> None:
    """Refuse packed rows, and token masks that the loss ignores."""
    if "seq_lengths" in names:
        raise PrivacyRefusal(PACKED_ROWS.format("seq_lengths"))
    masks = [name for name in MASKS if name in names]
    if masks and "labels" not in names and not {*masks} & {*getattr(loss, "columns", ())}:
        raise InvalidInput(
            f"the rows have {masks[0]} but no labels, and the loss ignores {masks[0]}: the model would learn "
            "all tokens. Pass loss=tacit.losses.completion()."
        )


def one_example(collate: Callable[[list[Any]], Any], records: list[Any]) -> Any:
    """Collate, and refuse rows whose positions begin anew, as those of several packed examples do."""
    batch = collate(records)
    if isinstance(batch, Mapping) and "position_ids" in batch:
        numbers = torch.as_tensor(batch["position_ids"])
        begins = (numbers[:, :-1] == 0) & (numbers[:, 1:] == 1)  # padding may be 0 too
        if (begins.sum(1) > 1).any():
            raise PrivacyRefusal(PACKED_ROWS.format("position_ids"))
    return batch


def of_pairs(collator: Any, records: list[Any]) -> dict[str, Tensor]:
    """Return pairs (n, 2, L) by TRL's collator, which gives all chosen answers and then all rejected ones."""
    return {
        name: part if part.dim() == 1 else part.reshape(2, -1, part.shape[1]).transpose(0, 1)
        for name, part in collator(records).items()
    }


def check_held_out(data: object, eval_data: object) -> None:
    training = [data, data.data] if isinstance(data, UserRecords) else [data]
    evaluated = eval_data.values() if isinstance(eval_data, dict) else [eval_data]
    if eval_data is not None and any(one is own for one in evaluated for own in training):
        raise PrivacyRefusal(
            "eval_dataset must not be train_dataset: metrics on training records would be logged without "
            "noise. Pass held-out records; for a noisy training loss, make the plan with loss_report."
        )


__all__ = ["PrivateTrainer", "training_arguments"]

_ANOTHER_RUN = "To resume it pass resume_from_checkpoint=True to train."


@final
class PrivateTrainer(Trainer):  # type: ignore[misc]  # transformers is not read by mypy
    """A transformers ``Trainer`` that trains with differential privacy.

    The Trainer runs the loop, and a :class:`tacit.training.PrivateSession` takes each training step.

    Args:
        model: a model of transformers, or any module that takes its inputs by keyword.
        args: the settings of the Trainer. :func:`training_arguments` makes them from a plan.
        plan: the private plan of the run: its steps, noise and cost.
        loss: a function ``loss(model, **record) -> (n,)`` with one number per record, such as the result of
            :func:`tacit.losses.causal`. The Trainer ignores the loss that a model computes itself, because it
            is a mean over the batch. ``eval_loss`` is the mean of ``loss`` over held-out records.
        train_dataset: a map-style dataset with one dictionary per record. If a user may have several records,
            :class:`~tacit.training.UserRecords` of such a dataset.
        state_folder: the folder for the session's resume states, one for each checkpoint. It must be outside
            ``output_dir``, because a state contains the secret key of the noise. Required unless
            ``save_strategy="no"`` or ``save_only_model=True``.
        data_collator: as in the Trainer, but in training it gets one record at a time and must pad every
            record to the same length. For TRL's collators, set ``pad_to_multiple_of`` to the largest length.
        eval_dataset: held-out records, or a dict from names to several such datasets.
        processing_class, compute_metrics, preprocess_logits_for_metrics: as in the Trainer.
        callbacks, optimizers, optimizer_cls_and_kwargs: as in the Trainer.
        engine, physical_batch_size, memory, audit, charges, generator: as in
            :class:`tacit.training.PrivateSession`.
        compute_loss_func, model_init: not allowed.

    Attributes:
        session: the :class:`tacit.training.PrivateSession`, for ``tacit.statement`` and ``session.epsilon``.

    **Guarantee**

    * Only noisy gradients change the model: the session takes each step, and the Trainer takes none.
    * The log contains no exact statistic of the training records. It contains the noisy loss if the plan has
      a ``loss_report``, and otherwise no loss.
    * The session's resume states, which contain the key of the noise, are outside the folders to which the
      Trainer writes.
    * A resumed run gives bitwise the result of an uninterrupted one, or raises an error.
    * Settings that would break one of these guarantees or contradict the plan raise an error that names each.

    **Not covered**

    * An example that is spread over several rows of ``train_dataset``, because each row is one record. Rows
      into which several examples are packed raise an error. Tacit cannot detect this for TRL's
      ``packing_strategy="wrapped"``.
    * The records in ``eval_dataset``: evaluation, ``compute_metrics`` and callbacks use them without noise.
    * Callbacks: like any code of yours, they can read the training records.

    Raises:
        InvalidInput: if a setting contradicts the plan, or is missing.
        PrivacyRefusal: if a setting would break the guarantee.

    >>> import tempfile
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> from tacit.losses import causal
    >>> texts = [{"input_ids": text, "labels": text} for text in torch.randint(16, (100, 8))]
    >>> plan = Plan.calibrate(epsilon=8.0, delta=1e-3, records=90, batch_size=30, steps=6, clipping=1.0,
    ...                       adjacency="add-remove", unit="text")
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2,
    ...                                    bos_token_id=0, eos_token_id=0))
    >>> arguments = training_arguments(plan, tempfile.mkdtemp(), learning_rate=0.01, save_strategy="no",
    ...                                use_cpu=True)
    >>> trainer = PrivateTrainer(model.train(), arguments, plan, loss=causal(), train_dataset=texts[:90],
    ...                          eval_dataset=texts[90:])
    >>> trainer.train().global_step
    {'train_runtime': ..., 'epsilon': ..., 'epoch': '2'}
    6
    >>> trainer.evaluate()["eval_loss"] > 0, trainer.session.epsilon <= 8.0
    (True, True)
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        plan: Plan,
        *,
        loss: PerExampleLoss | nn.Module,
        train_dataset: Any,
        state_folder: Path | str | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        compute_metrics: Callable[[Any], dict[str, float]] | None = None,
        preprocess_logits_for_metrics: Callable[[Tensor, Tensor], Tensor] | None = None,
        callbacks: Sequence[Any] = (),
        optimizers: tuple[torch.optim.Optimizer | None, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None,
        engine: str = "fast",
        physical_batch_size: int | Literal["auto"] = 512,
        memory: MemoryBudget = FAST,
        audit: AuditSlots | None = None,
        charges: StepCharges | None = None,
        generator: Generator | None = None,
        compute_loss_func: object = None,
        model_init: object = None,
    ) -> None:
        refuse_arguments(compute_loss_func=compute_loss_func, model_init=model_init)
        check_collator(data_collator)
        check_held_out(train_dataset, eval_dataset)
        check_settings(args, plan)
        names = names_of(train_dataset)
        check_columns(names, loss)
        self._columns: Sequence[str] = getattr(loss, "columns", ())
        args = copy.copy(args)
        if args.activation_checkpointing:
            args.activation_checkpointing = args.gradient_checkpointing = False
            warnings.warn(_NO_CHECKPOINTS, stacklevel=users_level())
        if args.label_names is None and self._columns and "labels" not in names:
            args.label_names = [next((name for name in MASKS if name in names), MASKS[0])]
        if any(kind.__name__ == "DataCollatorForPreference" for kind in type(data_collator).__mro__):
            data_collator = partial(of_pairs, data_collator)
        self._states = _states_of(args, state_folder)
        self._resume_at: int | None = None
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_metrics=compute_metrics,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            callbacks=[*callbacks],
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
        )
        check_accelerator(self.accelerator)
        self._loss = per_record(loss, model)
        optimizer = self.create_optimizer()
        if self.lr_scheduler is not None and self.lr_scheduler.optimizer is not optimizer:
            raise InvalidInput(
                "the schedule in optimizers= belongs to another optimizer. Make it from the optimizer in "
                "optimizers=."
            )
        loader = super().get_train_dataloader()  # the Trainer's columns and collator
        self.session = PrivateSession(
            model,
            optimizer,
            loader.dataset,
            plan,
            loss=loss,
            collate=partial(one_example, loader.collate_fn),
            engine=engine,
            physical_batch_size=physical_batch_size,
            workers=args.dataloader_num_workers,
            memory=memory,
            audit=audit,
            charges=charges,
            generator=generator,
        )
        self.optimizer = SteppedBySession(self.session)
        self.add_callback(_Checkpoints(self))

    def __init_subclass__(cls, **settings: object) -> None:
        raise PrivacyRefusal(
            f"{cls.__name__} is a subclass of PrivateTrainer, which must have none: the plan would not "
            "account for an overridden step or loss. Write a TrainerCallback, or a loop over "
            "tacit.PrivateSession."
        )

    def _set_signature_columns_if_needed(self) -> None:
        """Keep the columns that the loss reads, as TRL's trainers do."""
        super()._set_signature_columns_if_needed()
        self._signature_columns += [name for name in self._columns if name not in self._signature_columns]

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the training loader. Each of its items stands for one private step, and contains no records.

        The session itself draws the records of a step, because they must stay secret.
        """
        return ticket_loader(self.session, ended=self._end_early)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Take one private step, and return its noisy loss.

        Without a ``loss_report`` in the plan, the result is 0.
        """
        model.train()
        report = self.session.step(ticket_of(self.session, inputs))
        return torch.tensor(report.loss or 0.0, device=self.args.device)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the mean of ``loss`` over held-out records, for ``eval_loss``. Training never calls this."""
        outputs: list[Any] = []
        hook = model.register_forward_hook(lambda _, __, output: outputs.append(output))
        try:
            mean = self._loss(model, **inputs).mean()
        finally:
            hook.remove()
        if not return_outputs:
            return mean
        return mean, outputs[-1] if isinstance(outputs[-1], dict) else {"logits": logits_of(outputs[-1])}

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the Trainer's learning-rate schedule for the session's optimizer."""
        return super().create_scheduler(num_training_steps, optimizer=self.session.optimizer)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Return the Trainer's loader of held-out records.

        Raises:
            PrivacyRefusal: if ``eval_dataset`` is the training dataset.
        """
        check_held_out(self.train_dataset, eval_dataset)
        loader: DataLoader[Any] = super().get_eval_dataloader(eval_dataset)
        return loader

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log metrics as the Trainer does, and the epsilon spent.

        Metrics that a private run lacks, such as ``grad_norm``, are left out.
        """
        if "loss" in logs or "train_loss" in logs:
            logs = self._public(logs) | {"epsilon": self.session.epsilon}
        super().log(logs, start_time)

    def _public(self, logs: dict[str, float]) -> dict[str, float]:
        """Return ``logs`` without metrics that a private run lacks, which the Trainer logs as 0."""
        missing = {"grad_norm", "total_flos"}
        if self.session.plan.loss_report is None:
            missing |= {"loss", "train_loss"}
        return {name: value for name, value in logs.items() if name not in missing}

    def train(
        self,
        resume_from_checkpoint: str | Path | bool | None = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Take the remaining steps of the plan, and return the Trainer's output.

        Without a ``loss_report`` in the plan, its ``training_loss`` is NaN.

        Args:
            resume_from_checkpoint: the folder of a checkpoint from which to continue, or True for the last
                one. ``state_folder`` must contain the session's state of the same step.
            ignore_keys_for_eval: as in the Trainer.

        Raises:
            InvalidInput: if the checkpoint has no state, or the run would overwrite an earlier one.
            PrivacyRefusal: if the state belongs to another run.
        """
        checkpoint = self._checkpoint(resume_from_checkpoint)
        self._resume_at = None if checkpoint is None else _step_of(checkpoint)
        if checkpoint is None and self._states is not None:
            self._states.check_fresh(_ANOTHER_RUN)
        if checkpoint is None and self.session.steps_done > 0:
            raise InvalidInput(
                f"{self.session.steps_done} of the plan's {self.session.plan.steps} steps are taken already. "
                "Pass resume_from_checkpoint=True, or make a new PrivateTrainer for a new run, which spends "
                "budget again."
            )
        output = super().train(
            resume_from_checkpoint=None if checkpoint is None else str(checkpoint),
            ignore_keys_for_eval=ignore_keys_for_eval,
        )
        metrics = self._public(output.metrics)
        if "train_loss" in metrics:
            return output._replace(metrics=metrics)
        return output._replace(metrics=metrics, training_loss=float("nan"))

    def hyperparameter_search(self, *arguments: object, **settings: object) -> Any:
        """Refuse the search, because each trial would spend budget on the same records.

        Raises:
            PrivacyRefusal: always.
        """
        raise PrivacyRefusal(
            "PrivateTrainer has no hyperparameter_search: a plan accounts for one run, not for several "
            "trials. Use tacit.training.select_candidate, which has a known privacy cost, or search on "
            "public records."
        )

    def _checkpoint(self, source: str | Path | bool | None) -> Path | None:
        """Return the folder of the checkpoint to resume from."""
        if source is None or source is False:
            return None
        if self._states is None:
            raise InvalidInput(
                "PrivateTrainer cannot resume without the session's state. Pass state_folder= of the "
                "interrupted run."
            )
        if source is not True:
            return Path(source)
        resumable = set(self._states.steps()) & _checkpoints(self.args.output_dir).keys()
        if not resumable:
            raise InvalidInput(
                f"no checkpoint in {self.args.output_dir} matches a session state in {self._states.folder}. "
                "Check both folders; for a new run remove resume_from_checkpoint."
            )
        return _checkpoints(self.args.output_dir)[max(resumable)]

    def _end_early(self) -> None:
        """Save a checkpoint and stop, because the ledger refused the next steps."""
        self.control.should_training_stop = True
        self.control.should_save = self._states is not None

    def _begin(self) -> None:
        """Restore the session's exact state after the Trainer has loaded its checkpoint."""
        if self._states is None:
            return
        if self._resume_at is not None:
            self._states.load(self.session, self._resume_at)
            self.optimizer.follow()
        self._states.keep(_checkpoints(self.args.output_dir).keys())

    def _saved(self) -> None:
        """Save the session's state in its folder after the Trainer has written a checkpoint."""
        if self._states is not None:
            self._states.save(self.session)
            self._states.keep(_checkpoints(self.args.output_dir).keys())


_NO_CHECKPOINTS = (
    "gradient checkpointing is off in this run, because physical batches limit the memory of a private "
    "step. Set activation_checkpointing=False to silence this."
)


class _Checkpoints(TrainerCallback):  # type: ignore[misc]
    def __init__(self, trainer: PrivateTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, *arguments: object, **settings: object) -> None:
        self._trainer._begin()

    def on_save(self, *arguments: object, **settings: object) -> None:
        self._trainer._saved()


def _states_of(args: TrainingArguments, folder: Path | str | None) -> SessionStates | None:
    if folder is not None:
        return SessionStates(folder, {"output_dir": args.output_dir})
    if str(getattr(args.save_strategy, "value", args.save_strategy)) != "no" and not args.save_only_model:
        raise InvalidInput(
            "checkpoints need state_folder=, a separate folder for the session's state with the secret key "
            "of the noise. Pass state_folder=, outside output_dir. If you will not resume, set "
            'save_strategy="no" or save_only_model=True.'
        )
    return None


def _checkpoints(output_dir: str) -> dict[int, Path]:
    folders = (path for path in Path(output_dir).glob("checkpoint-*") if path.is_dir())
    return {
        int(number): path for path in folders if (number := path.name.removeprefix("checkpoint-")).isdecimal()
    }


def _step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint, from the file that the Trainer wrote into it."""
    try:
        return int(json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["global_step"])
    except (OSError, ValueError, LookupError):
        raise InvalidInput(
            f"{checkpoint} is no checkpoint of a Trainer: it has no trainer_state.json with a step. Give the "
            "folder checkpoint-N in output_dir, or True for the last one."
        ) from None
