"""TRL's prepared data train as they are, by its collators too; its settings are taken, or refused by name.

``make test-trl`` installs TRL and runs this file.
"""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from made import a_plan, no_noise, one_step
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainingArguments

pytest.importorskip("trl")

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from datasets import Dataset
from tacit import collate
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.integrations import transformers
from tacit.integrations.transformers import PrivateTrainer, training_arguments
from tacit.losses import causal, completion, preference

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of TRL, peft and transformers, about each other
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:trl.*"),
]
N, LONGEST, CLIP = 12, 16, 0.5
PLAN = a_plan(records=N, batch_size=None, steps=1, clipping=CLIP, adjacency="zero-out")
WORDS = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(12))]
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}w11 {% generation %}"
    "{{ message['content'] }} <eos> {% endgeneration %}{% else %}w10 {{ message['content'] }} {% endif %}"
    "{% endfor %}{% if add_generation_prompt %}w11 {% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    made.chat_template = TEMPLATE
    return made


def llama(seed: int = 1) -> Any:
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=8, intermediate_size=12, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).train()


def with_lora() -> Any:
    model = get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


COMPLETIONS = Dataset.from_list(
    [{"prompt": f"w{i % 5} w3", "completion": " w2 w4 w1"[: 3 * (1 + i % 3)]} for i in range(N)]
)
CHATS = Dataset.from_list(
    [
        {
            "messages": [
                {"role": "user", "content": f"w{i % 5}"},
                {"role": "assistant", "content": f"w{i % 4} w7"},
                {"role": "user", "content": "w1 w2"},
                {"role": "assistant", "content": f"w{i % 3}"},
            ]
        }
        for i in range(N)
    ]
)
PREFERENCES = Dataset.from_list(
    [
        {"prompt": f"w{i % 5} w3", "chosen": f" w{i % 7} w2", "rejected": f" w{i % 3}"}
        for i in range(N)
    ]
)  # fmt: skip


def config(folder: Path, kind: Any = SFTConfig, **changes: Any) -> Any:
    given = {
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "max_length": LONGEST,
    }
    return training_arguments(PLAN, str(folder / "out"), config=kind, **(given | changes))


def prepared(folder: Path, data: Any, tokenizer: Any, **settings: Any) -> Any:
    """TRL's own preparation."""
    args = SFTConfig(str(folder), use_cpu=True, bf16=False, report_to=[], max_length=LONGEST, **settings)
    return SFTTrainer(llama(), args=args, train_dataset=data, processing_class=tokenizer)


def of_pairs(folder: Path, tokenizer: Any, **settings: Any) -> Any:
    args = DPOConfig(str(folder), use_cpu=True, bf16=False, report_to=[], max_length=LONGEST, **settings)
    return DPOTrainer(with_lora(), args=args, train_dataset=PREFERENCES, processing_class=tokenizer)


def trained(model: Any, args: Any, patch: pytest.MonkeyPatch, **settings: Any) -> Tensor:
    """Return the sum that a step without noise gives the optimizer."""
    seen: dict[str, Tensor] = {}
    made = PrivateTrainer(model, args, PLAN, **settings)
    with patch.context() as patched:
        no_noise(patched)
        patched.setattr(made.session._run.optimizer, "step", seen.update)
        one_step(made.session)
    assert made.session.route == "fast"
    return PLAN.expected_batch_size * torch.cat([gradient.flatten() for gradient in seen.values()])


def clipped_sum(model: Any, losses: list[Tensor]) -> Tensor:
    weights = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in weights))
    for loss in losses:
        gradients = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        total += flat * min(1.0, CLIP / float(flat.norm()))
    return total


def near(found: Tensor, wanted: Tensor) -> bool:
    return float((found - wanted).norm()) <= 1e-5 * float(wanted.norm())


def of_transformers(model: Any, rows: Any) -> list[Tensor]:
    """The loss that the model itself computes for a row alone, without padding."""
    return [
        model(input_ids=torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]])).loss
        for row in rows
    ]


# --- completions and chats ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["completions", "chats"])
def test_what_sft_prepares_trains_unchanged(
    kind: str, tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {} if kind == "completions" else {"assistant_only_loss": True}
    theirs = prepared(tmp_path, COMPLETIONS if kind == "completions" else CHATS, tokenizer, **settings)
    rows = theirs.train_dataset
    assert any(-100 in row["labels"] for row in rows)
    model = llama()
    wanted = clipped_sum(model, of_transformers(model, rows))
    pad = collate.pad(length={"input_ids": LONGEST, "labels": LONGEST}, value={"labels": -100})
    own = type(theirs.data_collator)(pad_token_id=0, pad_to_multiple_of=LONGEST)
    for collator in (pad, own):
        for loss in (causal(), completion()):
            found = trained(
                llama(), config(tmp_path, **settings), monkeypatch,
                loss=loss, train_dataset=rows, data_collator=collator,
            )  # fmt: skip
            assert near(found, wanted)


def test_a_model_that_was_in_a_trainer_of_trl_trains_as_before(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_lora()
    args = SFTConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[], max_length=LONGEST)
    theirs = SFTTrainer(model, args=args, train_dataset=COMPLETIONS, processing_class=tokenizer)
    wanted = clipped_sum(model, of_transformers(model, theirs.train_dataset))
    pad = collate.pad(length={"input_ids": LONGEST, "labels": LONGEST}, value={"labels": -100})
    found = trained(
        model,
        config(tmp_path),
        monkeypatch,
        loss=causal(),
        train_dataset=theirs.train_dataset,
        data_collator=pad,
    )
    assert near(found, wanted)


def test_masks_are_read_or_refused(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = prepared(tmp_path, COMPLETIONS, tokenizer).train_dataset
    masked = rows.map(
        lambda row: {"completion_mask": [int(label != -100) for label in row["labels"]]}
    ).remove_columns("labels")
    model = llama()
    wanted = clipped_sum(model, of_transformers(model, rows))
    pad = collate.pad(length={"input_ids": LONGEST, "completion_mask": LONGEST})
    given = {"train_dataset": masked, "data_collator": pad, "eval_dataset": masked.select(range(5))}
    args = config(tmp_path, eval_strategy="no")
    assert near(trained(llama(), args, monkeypatch, loss=completion(), **given), wanted)
    with pytest.raises(InvalidInput, match=r"have completion_mask but no labels.*completion\(\)"):
        PrivateTrainer(llama(), args, PLAN, loss=causal(), **given)
    made = PrivateTrainer(model, args, PLAN, loss=completion(), **given)
    with torch.no_grad():
        held_out = torch.stack(of_transformers(model, rows.select(range(5)))).mean()
    assert made.evaluate()["eval_loss"] == pytest.approx(float(held_out), rel=1e-5)


# --- pairs --------------------------------------------------------------------------------------------------


def dpo_losses(model: Any, rows: Any, beta: float) -> list[Tensor]:
    """The loss of each pair alone, by peft's own switch."""

    def log_p(tokens: list[int], start: int) -> Tensor:
        logits = model(input_ids=torch.tensor([tokens])).logits[0].log_softmax(1)
        return torch.stack([logits[t - 1, tokens[t]] for t in range(start, len(tokens))]).sum()

    found = []
    for row in rows:
        start = len(row["prompt_ids"])
        pair = [row["prompt_ids"] + row[name] for name in ("chosen_ids", "rejected_ids")]
        with torch.no_grad(), model.disable_adapter():
            public = [log_p(tokens, start) for tokens in pair]
        gains = [log_p(tokens, start) - before for tokens, before in zip(pair, public, strict=True)]
        found.append(torch.log1p(torch.exp(-beta * (gains[0] - gains[1]))))
    return found


def test_what_dpo_prepares_trains_unchanged(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = of_pairs(tmp_path, tokenizer)
    rows = theirs.train_dataset
    torch.manual_seed(7)
    model = with_lora()
    losses = dpo_losses(model, rows, 0.1)
    wanted = clipped_sum(model, losses)
    own = type(theirs.data_collator)(pad_token_id=0, max_length=LONGEST, pad_to_multiple_of=LONGEST)
    for collator in (collate.pairs(length=LONGEST), own):
        torch.manual_seed(7)
        made = with_lora()
        args = config(tmp_path, DPOConfig)
        given = {"train_dataset": rows, "data_collator": collator, "eval_dataset": rows.select(range(5))}
        assert near(trained(made, args, monkeypatch, loss=preference(), **given), wanted)
        torch.manual_seed(7)
        measured = PrivateTrainer(with_lora(), args, PLAN, loss=preference(), **given).evaluate()["eval_loss"]
        assert measured == pytest.approx(float(torch.stack(losses[:5]).detach().mean()), rel=1e-5)


def test_references_that_trl_has_computed_are_read(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = of_pairs(tmp_path, tokenizer, precompute_ref_log_probs=True).train_dataset
    assert {"ref_chosen_logps", "ref_rejected_logps"} <= {*rows.column_names}
    shifted = rows.map(lambda row: {"ref_chosen_logps": row["ref_chosen_logps"] + 3.0})
    found = [
        trained(
            llama(), config(tmp_path, DPOConfig), monkeypatch,
            loss=preference(), train_dataset=data, data_collator=collate.pairs(length=LONGEST),
        )
        for data in (rows, shifted)
    ]  # fmt: skip
    assert not near(*found)


# --- packed rows --------------------------------------------------------------------------------------------


def test_packed_rows_are_refused_by_what_they_leave(tmp_path: Path, tokenizer: Any) -> None:
    packed = prepared(tmp_path, COMPLETIONS, tokenizer, packing=True).train_dataset
    assert "seq_lengths" in packed.column_names
    assert len(packed) < N
    given: dict[str, Any] = {"loss": causal(), "data_collator": collate.pad(length=LONGEST)}
    with pytest.raises(PrivacyRefusal, match=r"packed, as seq_lengths shows: .*packing=False in TRL"):
        PrivateTrainer(llama(), config(tmp_path), PLAN, train_dataset=packed, **given)
    with pytest.raises(PrivacyRefusal, match="- packing=True: it packs several examples into a row"):
        PrivateTrainer(llama(), config(tmp_path, packing=True), PLAN, train_dataset=COMPLETIONS, **given)


# --- settings -----------------------------------------------------------------------------------------------


PREPARATION = {
    "dataset_text_field", "dataset_kwargs", "dataset_num_proc", "eos_token", "pad_token", "max_length",
    "truncation_mode", "shuffle_dataset", "packing_strategy", "pad_to_multiple_of", "eval_packing",
    "completion_only_loss", "assistant_only_loss", "chat_template_path", "model_init_kwargs",
    "trust_remote_code", "precompute_ref_log_probs", "precompute_ref_batch_size",
}  # fmt: skip
"""Read before the training, or for held-out rows."""
OF_THE_MODEL = {"disable_dropout"}  # as the page says, dropout is the model's own


@pytest.mark.parametrize("kind", [SFTConfig, DPOConfig])
def test_every_setting_of_trl_is_taken_or_refused(kind: Any) -> None:
    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    new = {field.name for field in dataclasses.fields(kind)} - known
    refused = {*transformers._OF_TRL, "packing", "padding_free"}
    assert new - refused == new & (PREPARATION | OF_THE_MODEL)
    assert refused - new <= {
        field.name for other in (SFTConfig, DPOConfig) for field in dataclasses.fields(other)
    }


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        (SFTConfig, {"padding_free": True}, "- padding_free=True: it joins the examples"),
        (SFTConfig, {"loss_type": "dft"}, "- loss_type='dft': PrivateTrainer ignores this setting"),
        (DPOConfig, {"beta": 0.3}, r"- beta=0.3: .* as in tacit\.losses\.preference\(beta=0\.3\)"),
        (DPOConfig, {"loss_type": ["ipo"]}, r"- loss_type=\['ipo'\]: PrivateTrainer ignores"),
        (DPOConfig, {"sync_ref_model": True}, "- sync_ref_model=True: PrivateTrainer ignores"),
        (SFTConfig, {"bf16": True}, "- bf16=True: .*Set it to False"),
    ],
)
def test_settings_of_trl_that_would_be_ignored_are_refused(
    kind: Any, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises((InvalidInput, PrivacyRefusal), match=words):
        PrivateTrainer(
            llama(), config(tmp_path, kind, **changes), PLAN, loss=causal(), train_dataset=COMPLETIONS
        )


def test_trls_own_defaults_are_told_at_once(tmp_path: Path) -> None:
    args = SFTConfig(str(tmp_path), use_cpu=True, report_to=[], save_strategy="no")
    with pytest.raises(PrivacyRefusal) as refusal:
        PrivateTrainer(llama(), args, PLAN, loss=causal(), train_dataset=COMPLETIONS)
    named = [line.split("=")[0] for line in str(refusal.value).splitlines() if line.startswith("- ")]
    assert named == ["- bf16", "- max_grad_norm", "- max_steps", "- per_device_train_batch_size"]


def test_checkpointing_is_turned_off_with_a_word(tmp_path: Path, tokenizer: Any) -> None:
    args = SFTConfig(
        str(tmp_path / "out"), use_cpu=True, report_to=[], save_strategy="no", bf16=False, max_grad_norm=0.0,
        max_steps=PLAN.steps, per_device_train_batch_size=N, max_length=LONGEST, disable_tqdm=True,
    )  # fmt: skip
    assert args.gradient_checkpointing
    rows = prepared(tmp_path, COMPLETIONS, tokenizer).train_dataset
    pad = collate.pad(length={"input_ids": LONGEST, "labels": LONGEST}, value={"labels": -100})
    given: dict[str, Any] = {"loss": causal(), "train_dataset": rows, "data_collator": pad}
    with pytest.warns(UserWarning, match="gradient checkpointing is off in this run"):
        made = PrivateTrainer(llama(), args, PLAN, **given)
    made.train()
    assert not made.model.is_activation_checkpointing
    assert args.gradient_checkpointing  # the user's own are as they were
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        PrivateTrainer(llama(), config(tmp_path), PLAN, **given)
