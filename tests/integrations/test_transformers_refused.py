"""Refusals of PrivateTrainer: each setting by its name, all in one message, before anything is written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from made import a_plan
from torch import nn
from transformers import DataCollatorWithFlattening, TrainingArguments

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.integrations import transformers
from tacit.integrations.transformers import PrivateTrainer, training_arguments
from tacit.losses import regression
from tacit.training import UserRecords

PLAN = a_plan(records=20, batch_size=5, steps=8, clipping=1.0)
ROWS = [{"x": torch.ones(2), "labels": torch.ones(1)} for _ in range(20)]


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


def arguments(folder: Path, **changes: Any) -> Any:
    given: dict[str, Any] = {"save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True}
    return training_arguments(PLAN, str(folder / "out"), **(given | changes))


def trainer(args: Any, **changes: Any) -> PrivateTrainer:
    given: dict[str, Any] = {"loss": regression(), "train_dataset": ROWS} | changes
    return PrivateTrainer(Line(), args, PLAN, **given)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gradient_accumulation_steps": 4}, "physical_batch_size"),
        ({"auto_find_batch_size": True}, "batch size of the plan"),
        ({"label_smoothing_factor": 0.1}, "classification(label_smoothing=0.1)"),
        ({"train_sampling_strategy": "group_by_length"}, 'Set it to "random"'),
        ({"train_sampling_strategy": "sequential"}, 'Set it to "random"'),
        ({"fp16_full_eval": True}, "rounds the trained weights"),
        ({"bf16_full_eval": True}, "rounds the trained weights"),
        ({"bf16": True}, "dtype=torch.bfloat16"),
        ({"neftune_noise_alpha": 5.0}, "per batch, not per record"),
        ({"debug": "underflow_overflow"}, "prints values of records"),
        ({"include_num_input_tokens_seen": "all"}, "the number of tokens"),
        ({"optim": "lomo"}, "steps inside the backward pass"),
        ({"optim": "galore_adamw_layerwise"}, "steps inside the backward pass"),
        ({"use_liger_kernel": True}, "mix the records"),
        ({"torch_compile": True}, "traces the model itself"),
    ],
    ids=lambda value: "-".join(map(str, *value.items())) if isinstance(value, dict) else "",
)
def test_what_would_break_the_promise_is_refused_by_name(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    args = arguments(tmp_path, **changes)
    with pytest.raises(PrivacyRefusal) as refusal:
        trainer(args)
    (name,) = changes
    assert f"- {name}=" in str(refusal.value)
    assert why in str(refusal.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["fp16", "deepspeed", "fsdp", "parallelism_config"])
def test_so_is_what_cannot_be_set_without_a_device_or_package(name: str, tmp_path: Path) -> None:
    args = arguments(tmp_path)
    setattr(args, name, {"some": "configuration"})
    with pytest.raises(PrivacyRefusal, match=f"- {name}="):
        trainer(args)


def test_several_devices_in_one_process_are_refused(tmp_path: Path) -> None:
    args = arguments(tmp_path)
    args._n_gpu = 2
    args.per_device_train_batch_size = 5
    with pytest.raises(PrivacyRefusal, match="2 GPUs in one process: DataParallel"):
        trainer(args)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"max_grad_norm": 1.0}, r"the plan clips the gradient of each record.*Set it to 0"),
        ({"max_steps": 9}, r"max_steps=9: the plan and its noise are for 8 steps.*Set max_steps=8"),
        ({"max_steps": -1}, r"max_steps=-1: the plan and its noise are for 8 steps"),
        ({"per_device_train_batch_size": 8}, r"take 5 records on average. Set per_device_train_batch_size=5"),
        ({"ignore_data_skip": True}, "continues where it stopped"),
        ({"enable_jit_checkpoint": True}, "lack the session's state"),
        ({"torch_empty_cache_steps": 3}, "ignores it"),
    ],
    ids=lambda value: "-".join(map(str, *value.items())) if isinstance(value, dict) else "",
)
def test_what_contradicts_the_plan_or_would_be_ignored_is_refused(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=why):
        trainer(arguments(tmp_path, **changes))


def test_the_defaults_of_transformers_are_told_all_at_once(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path / "out"), save_strategy="no", use_cpu=True, report_to=[])
    with pytest.raises(InvalidInput) as refusal:
        trainer(args)
    lines = str(refusal.value).splitlines()
    assert lines[0] == "private training refuses 3 settings of TrainingArguments:"
    assert [line.split("=")[0] for line in lines[1:4]] == [
        "- max_grad_norm", "- max_steps", "- per_device_train_batch_size",
    ]  # fmt: skip
    assert "training_arguments(plan, output_dir, ...)" in lines[4]
    with pytest.raises(InvalidInput, match="args must be TrainingArguments; got dict"):
        trainer({"output_dir": "out"})


def test_every_setting_of_the_table_is_one_of_transformers() -> None:
    breaks, disagrees = transformers._BREAKS.keys(), transformers._DISAGREES.keys()
    of_trl = {"packing", "padding_free"}  # test_transformers_trl.py finds them there
    assert (breaks | disagrees) - of_trl <= TrainingArguments.__dataclass_fields__.keys()
    assert not breaks & disagrees


def test_checkpoints_are_turned_off_with_a_warning(tmp_path: Path) -> None:
    args = arguments(tmp_path, activation_checkpointing=True)
    with pytest.warns(UserWarning, match=r"checkpointing is off .* Set activation_checkpointing=False"):
        made = trainer(args)
    assert made.args.activation_checkpointing is made.args.gradient_checkpointing is False
    assert args.activation_checkpointing  # the user's own are as they were


def test_packed_rows_are_refused_by_what_they_leave(tmp_path: Path) -> None:
    args = arguments(tmp_path, remove_unused_columns=False)
    rows = [row | {"seq_lengths": [1, 1]} for row in ROWS]
    owned = UserRecords(rows, list(range(20)), rows_per_user=1)
    for data in (rows, owned, type("Columns", (list,), {"column_names": ["x", "seq_lengths"]})(ROWS)):
        with pytest.raises(PrivacyRefusal, match=r"packed, as seq_lengths shows.* for one row"):
            trainer(args, train_dataset=data)

    def run(positions: list[int]) -> None:
        rows = [
            {"x": torch.tensor(positions), "position_ids": positions, "labels": torch.ones(4)} for _ in ROWS
        ]
        made = PrivateTrainer(Positioned(), args, PLAN, loss=regression(), train_dataset=rows)
        made.session.step(next(made.session.batches()))

    run([0, 1, 2, 3])
    run([0, 1, 0, 0])  # padded
    run([0, 0, 1, 2])  # padded on the left
    with pytest.raises(PrivacyRefusal, match="packed, as position_ids shows"):
        run([0, 1, 0, 1])


class Positioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        return self.scale * x * position_ids


def test_a_mask_of_tokens_is_not_dropped_unread(tmp_path: Path) -> None:
    rows = [{"x": torch.ones(2), "completion_mask": torch.ones(2)} for _ in ROWS]
    with pytest.raises(InvalidInput, match=r"have completion_mask but no labels.*losses\.completion\(\)"):
        trainer(arguments(tmp_path), train_dataset=rows)


def accelerator(**changes: Any) -> Any:
    """Make the parts of accelerate's object that the checks read; the process has only one."""
    plain = {"dynamo_plugin": SimpleNamespace(backend=SimpleNamespace(value="NO"))}
    state = {name: value for name, value in changes.items() if name.endswith("_plugin")}
    others = {name: value for name, value in changes.items() if name not in state}
    given = {"mixed_precision": "no", "gradient_accumulation_steps": 1} | others
    return SimpleNamespace(state=SimpleNamespace(**(plain | state)), **given)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"mixed_precision": "bf16"}, "mixed precision"),
        ({"deepspeed_plugin": object()}, "DeepSpeed"),
        ({"fsdp_plugin": object()}, "FSDP"),
        ({"gradient_accumulation_steps": 2}, "gradient accumulation"),
        ({"dynamo_plugin": SimpleNamespace(backend=SimpleNamespace(value="INDUCTOR"))}, "compilation"),
    ],
    ids=["precision", "deepspeed", "fsdp", "accumulation", "compilation"],
)
def test_what_accelerate_launch_switched_on_is_refused(changes: dict[str, Any], word: str) -> None:
    transformers.check_accelerator(accelerator())
    with pytest.raises(PrivacyRefusal, match=f"does not support {word} of accelerate"):
        transformers.check_accelerator(accelerator(**changes))


def test_arguments_that_mix_records_are_refused(tmp_path: Path) -> None:
    args = arguments(tmp_path)
    with pytest.raises(PrivacyRefusal, match=r"takes no compute_loss_func: .* one number for a batch"):
        trainer(args, compute_loss_func=lambda *_: None)
    with pytest.raises(PrivacyRefusal, match=r"takes no model_init: .* each trial spends budget"):
        trainer(args, model_init=Line)
    with pytest.raises(TypeError, match="unexpected keyword argument 'tokenizer'"):
        trainer(args, tokenizer=object())
    with pytest.raises(PrivacyRefusal, match="DataCollatorWithFlattening joins the records"):
        trainer(args, data_collator=DataCollatorWithFlattening())


def test_training_records_are_not_evaluated(tmp_path: Path) -> None:
    for data in (ROWS, {"held out": ROWS[:2], "training": ROWS}):
        with pytest.raises(PrivacyRefusal, match="eval_dataset must not be train_dataset"):
            trainer(arguments(tmp_path), eval_dataset=data)
    made = trainer(arguments(tmp_path, label_names=["labels"]))
    with pytest.raises(PrivacyRefusal, match="metrics on training records would be logged"):
        made.evaluate(ROWS)
    with torch.no_grad():
        wanted = float((made.model(torch.ones(1, 2)) - 1).square())
    assert made.evaluate(ROWS[:3])["eval_loss"] == pytest.approx(wanted)


def test_a_search_and_a_schedule_of_another_optimizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PrivacyRefusal, match="has no hyperparameter_search: "):
        trainer(arguments(tmp_path)).hyperparameter_search(n_trials=2)
    model = Line()
    mine, other = (torch.optim.SGD(model.parameters(), lr=rate) for rate in (0.1, 0.2))
    schedule = torch.optim.lr_scheduler.LambdaLR(other, lambda step: 1.0)
    with pytest.raises(InvalidInput, match="belongs to another optimizer"):
        PrivateTrainer(
            model, arguments(tmp_path), PLAN, loss=regression(), train_dataset=ROWS,
            optimizers=(mine, schedule),
        )  # fmt: skip
