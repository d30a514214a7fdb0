"""Losses of completions and of preferences, against loops over the tokens of one record without padding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from made import a_plan, a_session, no_noise, one_step
from peft import LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tacit import collate
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.losses import causal, completion, preference, preference_loss, without_adapters

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's own
V, LONGEST, N, CLIP, BETA, SMOOTHING = 13, 9, 10, 0.5, 0.7, 0.1
PLAN = a_plan(records=N, batch_size=None, steps=1, clipping=CLIP, adjacency="zero-out")
Row = Mapping[str, list[int]]


def gpt2(seed: int = 1, *, dropout: float = 0.0, vocabulary: int = V) -> Any:
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=16, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    torch.manual_seed(seed)
    return GPT2LMHeadModel(config).train()


def llama(seed: int = 1) -> Any:
    config = LlamaConfig(
        vocab_size=V, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=16,
    )  # fmt: skip
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).train()


def spread(model: Any) -> Any:
    """Move all trained weights away from their start, where adapters change nothing."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def with_lora(model: Any, **settings: Any) -> Any:
    targets = ["c_attn", "c_fc"] if isinstance(model, GPT2LMHeadModel) else ["q_proj", "down_proj"]
    given: dict[str, Any] = {
        "r": 2,
        "target_modules": targets,
        "fan_in_fan_out": isinstance(model, GPT2LMHeadModel),
    }
    return spread(get_peft_model(model, LoraConfig(**(given | settings))))


def prompted(model: Any, config: Any = PromptTuningConfig) -> Any:
    return spread(get_peft_model(model, config(task_type="CAUSAL_LM", num_virtual_tokens=3)))


MODELS: dict[str, Callable[[], Any]] = {
    "GPT-2": lambda: spread(gpt2()),
    "GPT-2 with LoRA": lambda: with_lora(gpt2()),
    "Llama": lambda: spread(llama()),
    "Llama with LoRA": lambda: with_lora(llama()),
    "prompt tuning": lambda: prompted(gpt2()),
    "prefix tuning": lambda: prompted(llama(), PrefixTuningConfig),
}


def words(least: int, most: int) -> list[int]:
    length = int(torch.randint(least, most + 1, ()))
    return torch.randint(1, V, (length,)).tolist()


def answers() -> list[dict[str, list[int]]]:
    """Return prompts with completions; the completion of the last one is empty."""
    torch.manual_seed(3)
    pairs = [(words(1, 4), words(1, 5)) for _ in range(N - 1)] + [(words(2, 2), [])]
    return [
        {"input_ids": prompt + answer, "completion_mask": [0] * len(prompt) + [1] * len(answer)}
        for prompt, answer in pairs
    ]


def preferences() -> list[dict[str, list[int]]]:
    """Return pairs of answers; the last one's are equal."""
    torch.manual_seed(4)
    rows = [(words(1, 4), words(1, 5), words(1, 5)) for _ in range(N - 1)] + [([1, 2], [3], [3])]
    return [{"prompt_ids": p, "chosen_ids": c, "rejected_ids": r} for p, c, r in rows]


# --- the loops: one record alone, one token after another ---------------------------------------------------


def log_probability(model: Any, tokens: list[int], first: int) -> list[Tensor]:
    """Return log p of each token from the position ``first`` on, given those before it."""
    logits = model(input_ids=torch.tensor([tokens])).logits[0]
    before = len(logits) - len(tokens) - 1  # where the token before the first of the record is, if there is
    return [
        torch.log_softmax(logits[before + t], 0)[tokens[t]]
        for t in range(first, len(tokens))
        if before + t >= 0
    ]


def mean_of_completion(model: Any, row: Row) -> Tensor:
    learned = log_probability(model, row["input_ids"], row["completion_mask"].count(0))
    nothing: Tensor = 0.0 * next(p for p in model.parameters() if p.requires_grad).sum()
    return nothing if not learned else -sum(learned, nothing) / len(learned)


def mean_of_text(model: Any, row: Row) -> Tensor:
    learned = log_probability(model, row["input_ids"], 0)
    return -sum(learned, torch.zeros(())) / len(learned)


def dpo(model: Any, reference: Any, row: Row) -> Tensor:
    """Equation 7 of 2305.18290, with labels that may be wrong as in conservative DPO."""
    rewards = []
    for answer in (row["chosen_ids"], row["rejected_ids"]):
        text, start = row["prompt_ids"] + answer, len(row["prompt_ids"])
        with torch.no_grad():
            public = sum(log_probability(reference, text, start), torch.zeros(()))
        rewards.append(BETA * (sum(log_probability(model, text, start), torch.zeros(())) - public))
    right = torch.sigmoid(rewards[0] - rewards[1])
    loss: Tensor = -(1 - SMOOTHING) * torch.log(right) - SMOOTHING * torch.log(1 - right)
    return loss


def clipped_sum(model: Any, losses: Callable[[Any, Row], Tensor], rows: list[Any]) -> Tensor:
    trained = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in trained))
    for row in rows:
        gradients = torch.autograd.grad(
            losses(model, row), trained, allow_unused=True, materialize_grads=True
        )
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        total += flat * min(1.0, CLIP / max(float(flat.norm()), 1e-9))
    return total


def released(model: Any, rows: Any, loss: Any, patch: pytest.MonkeyPatch, **settings: Any) -> Tensor:
    """Return the sum of a step of the fast engine, without its noise."""
    run = a_session(model, rows, PLAN, loss=loss, **settings)
    seen: dict[str, Tensor] = {}
    with patch.context() as patched:
        no_noise(patched)
        patched.setattr(run._run.optimizer, "step", seen.update)
        one_step(run)
    assert run.route == "fast"
    parts = [seen[name].flatten() for name, p in model.named_parameters() if p.requires_grad]
    return PLAN.expected_batch_size * torch.cat(parts)


def each(model: Any, rows: list[Any], loss: Any, pad: Any) -> Tensor:
    """Return the losses of all rows in one call."""
    batches = [pad([row]) for row in rows]
    together = {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}
    found: Tensor = loss(model, **together)
    return found


PAD = collate.pad(length=LONGEST)
PAIRS = collate.pairs(length=LONGEST)


def close(found: Tensor, wanted: Tensor) -> bool:
    """Whether losses agree to 1e-6, of their size if that is above 1."""
    return float((found - wanted).detach().abs().max()) <= 1e-6 * max(1.0, float(wanted.detach().abs().max()))


def near(found: Tensor, wanted: Tensor) -> bool:
    """Whether sums of clipped gradients agree, but for the rounding that norms are enlarged by."""
    return float((found - wanted).norm()) <= 1e-5 * float(wanted.norm())


# --- completions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_of_a_completion_is_that_of_a_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = MODELS[name](), answers()
    found = each(model, rows, completion(), PAD)
    assert close(found, torch.stack([mean_of_completion(model, row) for row in rows]))
    assert torch.equal(found[-1], torch.zeros(()))
    wanted = clipped_sum(model, mean_of_completion, rows)
    assert near(released(model, rows, completion(), monkeypatch, collate=PAD), wanted)


def labelled(rows: list[dict[str, list[int]]]) -> list[dict[str, list[int]]]:
    """Return the rows as TRL's SFTTrainer prepares them."""
    return [
        {
            "input_ids": row["input_ids"],
            "labels": [
                token if learned else -100
                for token, learned in zip(row["input_ids"], row["completion_mask"], strict=True)
            ],
        }
        for row in rows
    ]


def test_labels_say_the_same_as_a_mask() -> None:
    model, rows = MODELS["Llama with LoRA"](), answers()
    wanted = each(model, rows, completion(), PAD)
    pad = collate.pad(length={"input_ids": LONGEST, "labels": LONGEST}, value={"labels": -100})
    for loss in (causal(), completion()):
        assert torch.equal(each(model, labelled(rows), loss, pad), wanted)
    both = [
        {**row, "assistant_masks": [1] * len(row["input_ids"]), "attention_mask": [1] * len(row["input_ids"])}
        for row in rows
    ]
    assert close(each(model, both, completion(), PAD), wanted)
    none = [{**row, "assistant_masks": [0] * len(row["input_ids"])} for row in rows]
    assert torch.equal(each(model, none, completion(), PAD), torch.zeros(N))


def of_batch(model: Any, input_ids: Tensor, completion_mask: Tensor) -> Tensor:
    """The mistake of a mean over the tokens of the batch."""
    of_records = completion()(model, input_ids=input_ids, completion_mask=completion_mask)
    count = completion_mask[:, 1:].sum(1)
    return of_records * count * len(count) / count.sum()


def of_all(model: Any, input_ids: Tensor, completion_mask: Tensor) -> Tensor:
    """The mistake that prompts are learned."""
    return causal()(model, input_ids=input_ids, labels=input_ids)


def of_rows(model: Any, input_ids: Tensor, completion_mask: Tensor) -> Tensor:
    """The mistake that labels are not shifted."""
    each = nn.functional.cross_entropy(model(input_ids).logits.transpose(1, 2), input_ids, reduction="none")
    return (each * completion_mask).sum(1) / completion_mask.sum(1).clamp(min=1)


@pytest.mark.parametrize("mistake", [of_batch, of_all, of_rows], ids=lambda one: one.__name__)
def test_mistakes_are_found(mistake: Any) -> None:
    model, rows = MODELS["Llama with LoRA"](), answers()
    wanted = torch.stack([mean_of_completion(model, row) for row in rows])
    assert float((each(model, rows, mistake, PAD) - wanted).detach().abs().max()) > 0.005


def test_a_mask_is_never_left_unread() -> None:
    tokens = torch.ones(1, 3, dtype=torch.long)
    model = nn.Embedding(V, V)
    for mask in ("completion_mask", "assistant_masks"):
        with pytest.raises(InvalidInput, match=rf"has {mask}, but .*causal ignores it.*completion\(\)"):
            causal()(model, input_ids=tokens, **{mask: tokens})
    with pytest.raises(InvalidInput, match=r"no completion_mask, .* to choose the tokens to train on"):
        completion()(model, input_ids=tokens)
    for key in ("seq_lengths", "cu_seq_lens_q"):
        for loss in (causal(), completion()):
            with pytest.raises(PrivacyRefusal, match=rf"packed, as {key} shows\. .* guarantee for one row"):
                loss(model, input_ids=tokens, labels=tokens, **{key: tokens})


# --- virtual tokens -----------------------------------------------------------------------------------------


def test_virtual_tokens_have_no_label_as_in_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = MODELS["prompt tuning"](), answers()
    tokens = torch.tensor([row["input_ids"] for row in rows if len(row["input_ids"]) == 6])
    found = causal()(model, input_ids=tokens)
    wanted = [model(input_ids=row[None], labels=row[None]).loss for row in tokens]  # peft's own
    assert close(found, torch.stack(wanted))
    wanted_sum = clipped_sum(model, mean_of_text, rows)
    pad = collate.pad(length={"input_ids": LONGEST, "labels": LONGEST}, value={"labels": -100})
    texts = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in rows]
    assert near(released(model, texts, causal(), monkeypatch, collate=pad), wanted_sum)


def test_labels_of_another_length_than_the_tokens_are_refused() -> None:
    tokens = torch.ones(1, 6, dtype=torch.long)
    for labels in (tokens[:, :4], torch.ones(1, 8, dtype=torch.long)):
        with pytest.raises(InvalidInput, match=rf"6.*{labels.shape[1]}"):
            causal()(nn.Embedding(V, V), input_ids=tokens, labels=labels)
    short = nn.Sequential(nn.Embedding(V, V))
    short.register_forward_hook(lambda *inputs: inputs[-1][:, 1:])
    with pytest.raises(InvalidInput, match="Give one label per token"):
        causal()(short, tokens)


# --- preferences --------------------------------------------------------------------------------------------


FROZEN = gpt2(5).eval().requires_grad_(False)
PAIRED: dict[str, tuple[Callable[[], Any], Callable[[], Any], Any]] = {
    "a frozen copy": (lambda: spread(gpt2()), lambda: FROZEN, FROZEN),
    "a frozen copy, with LoRA": (lambda: with_lora(gpt2()), lambda: FROZEN, FROZEN),
    "adapters off, GPT-2": (lambda: with_lora(gpt2()), gpt2, None),
    "adapters off, Llama": (lambda: with_lora(llama()), llama, None),
    "adapters off, and a head of its own": (
        lambda: with_lora(llama(), modules_to_save=["lm_head"], target_modules=["q_proj"]), llama, None
    ),
    "prompts off": (lambda: prompted(gpt2()), gpt2, None),
    "prefixes off": (lambda: prompted(llama(), PrefixTuningConfig), llama, None),
}  # fmt: skip
"""Model, the loop's reference, which shares nothing with the model, and the loss's."""


@pytest.mark.parametrize("name", PAIRED)
def test_the_loss_of_a_preference_is_that_of_a_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, make_public, reference = PAIRED[name]
    model, public, rows = make(), make_public(), preferences()
    loss = preference(BETA, label_smoothing=SMOOTHING, reference=reference)
    wanted = torch.stack([dpo(model, public, row) for row in rows])
    assert close(each(model, rows, loss, PAIRS), wanted)
    total = clipped_sum(model, lambda model, row: dpo(model, public, row), rows)
    assert near(released(model, rows, loss, monkeypatch, collate=PAIRS), total)


def known_sum(reference: Any, row: Row, answer: str) -> float:
    text, start = row["prompt_ids"] + row[answer], len(row["prompt_ids"])
    return float(sum(log_probability(reference, text, start), torch.zeros(())).detach())


def test_a_reference_may_be_computed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference, rows = with_lora(gpt2()), gpt2(), preferences()
    known = [
        {
            **row,
            "ref_chosen_logps": known_sum(reference, row, "chosen_ids"),
            "ref_rejected_logps": known_sum(reference, row, "rejected_ids"),
        }
        for row in rows
    ]
    loss = preference(BETA, label_smoothing=SMOOTHING)
    total = clipped_sum(model, lambda model, row: dpo(model, reference, row), rows)
    assert near(released(model, known, loss, monkeypatch, collate=PAIRS), total)
    two = preference(BETA, reference=gpt2().eval().requires_grad_(False))
    with pytest.raises(InvalidInput, match="have only one of"):
        each(model, known, two, PAIRS)
    with pytest.raises(InvalidInput, match="have only one of"):
        each(model, [{k: v for k, v in row.items() if k != "ref_chosen_logps"} for row in known], loss, PAIRS)


def adapters_on(model: Any, **pair: Tensor) -> Tensor:
    """The mistake of a reference with adapters, frozen."""
    return preference(BETA, reference=copy.deepcopy(model).eval().requires_grad_(False))(model, **pair)


def prompts_too(model: Any, **pair: Tensor) -> Tensor:
    """The mistake that prompts and padding count; a prompt of both answers cancels, padding does not."""
    everywhere = torch.ones_like(pair["completion_mask"])
    return preference(BETA, label_smoothing=SMOOTHING)(model, **{**pair, "completion_mask": everywhere})


def other_order(model: Any, **pair: Tensor) -> Tensor:
    turned = {key: part.flip(1) for key, part in pair.items()}
    return preference(BETA, label_smoothing=SMOOTHING)(model, **turned)


@pytest.mark.parametrize("mistake", [adapters_on, prompts_too, other_order], ids=lambda one: one.__name__)
def test_mistakes_of_preferences_are_found(mistake: Any) -> None:
    model, reference, rows = with_lora(llama()), llama(), preferences()
    wanted = torch.stack([dpo(model, reference, row) for row in rows])
    assert float((each(model, rows, mistake, PAIRS) - wanted).detach().abs().max()) > 0.005


def test_the_core_is_that_of_the_paper() -> None:
    torch.manual_seed(0)
    one, two, three, four = -5 * torch.rand(4, 6)
    for beta, smoothing in ((0.1, 0.0), (2.0, 0.3)):
        right = torch.sigmoid(beta * (one - three) - beta * (two - four))
        wanted = -(1 - smoothing) * right.log() - smoothing * (1 - right).log()
        assert close(preference_loss(one, two, three, four, beta, smoothing), wanted)
    zero = torch.zeros(1)
    far = preference_loss(torch.tensor([-1e4]), zero, zero, zero, 1.0, 0.0)
    assert float(far) == 1e4  # no infinity


def test_a_reference_draws_no_dropout_and_all_is_as_it_was() -> None:
    model = with_lora(gpt2(dropout=0.5), lora_dropout=0.5)
    modes = [(part.training, getattr(part, "_disable_adapters", None)) for part in model.modules()]
    tokens = torch.ones(2, 4, dtype=torch.long)
    with torch.no_grad(), without_adapters(model) as public:
        assert torch.equal(public(input_ids=tokens).logits, gpt2().eval()(input_ids=tokens).logits)
    assert modes == [(part.training, getattr(part, "_disable_adapters", None)) for part in model.modules()]
    assert any(p.requires_grad for p in model.parameters())


# --- a record alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["completion", "preference"])
def test_no_gradient_depends_on_padding_place_or_others(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_lora(llama())
    loss: Any = completion() if kind == "completion" else preference(BETA)
    rows = answers() if kind == "completion" else preferences()
    blank = {key: [1] * len(value) for key, value in rows[0].items()}
    if kind == "completion":
        blank["completion_mask"] = [0] * len(blank["input_ids"])  # gradient 0
    else:
        blank["rejected_ids"] = blank["chosen_ids"] = [1]

    def alone(place: int, length: int, others: Any) -> Tensor:
        data = [rows[0] if i == place else others for i in range(N)]
        pad = collate.pad(length=length) if kind == "completion" else collate.pairs(length=length)
        return released(model, data, loss, monkeypatch, collate=pad)

    wanted = alone(0, LONGEST, blank)
    assert float(wanted.norm()) > 0.01
    short = {key: value[:1] for key, value in blank.items()}
    for place, length, others in ((4, LONGEST, blank), (9, 16, blank), (3, 12, short)):
        assert near(alone(place, length, others), wanted)


# --- refusals -----------------------------------------------------------------------------------------------


def test_references_that_are_none_are_refused() -> None:
    rows, small = preferences(), gpt2(vocabulary=V + 3).eval().requires_grad_(False)
    for reference in (gpt2().eval(), gpt2().requires_grad_(False)):
        with pytest.raises(InvalidInput, match="the reference must be frozen"):
            preference(reference=reference)
    with pytest.raises(InvalidInput, match=rf"a vocabulary of {V + 3} tokens, and the model one of {V}"):
        each(gpt2(), rows, preference(reference=small), PAIRS)
    merged = with_lora(llama())
    for model in (gpt2(), with_lora(llama()).merge_and_unload()):
        with pytest.raises(InvalidInput, match="has no adapters, so the loss needs a reference"):
            each(model, rows, preference(), PAIRS)
    merged.merge_adapter()
    with pytest.raises(InvalidInput, match="merged into the weights, so the loss cannot switch them off"):
        each(merged, rows, preference(), PAIRS)
    free = with_lora(llama())
    free.get_input_embeddings().weight.requires_grad_()
    with pytest.raises(InvalidInput, match=r"embed_tokens.* belong to no adapter"):
        each(free, rows, preference(), PAIRS)


def test_pairs_that_are_none_are_refused() -> None:
    pair = PAIRS([preferences()[0]])
    reference = gpt2().eval().requires_grad_(False)
    for wrong in (
        {"input_ids": pair["input_ids"]},
        {key: part[:, 0] for key, part in pair.items()},
        {key: part[:, :1] for key, part in pair.items()},
        {**pair, "completion_mask": pair["completion_mask"][..., 1:]},
    ):
        with pytest.raises(InvalidInput, match=r"a pair must be a mapping .* tacit\.collate\.pairs"):
            preference(reference=reference)(gpt2(), **wrong)
    with pytest.raises(InvalidInput, match="needs logits"):
        preference(reference=reference)(nn.Sequential(nn.Embedding(V, V), nn.Flatten()), **pair)
    with pytest.raises(InvalidInput, match="beta must be"):
        preference(0.0)
    for smoothing in (0.5, -0.1):
        with pytest.raises(InvalidInput, match="label_smoothing must be"):
            preference(label_smoothing=smoothing)


def test_a_long_pair_loses_the_beginning_of_its_prompt() -> None:
    row = {"prompt_ids": [1, 2, 3, 4], "chosen_ids": [5, 6], "rejected_ids": [7]}
    found = collate.pairs(length=4)([row])
    assert found["input_ids"].tolist() == [[[3, 4, 5, 6], [3, 4, 7, 0]]]
    assert found["completion_mask"].tolist() == [[[0, 0, 1, 1], [0, 0, 1, 0]]]
    long = collate.pairs(length=2)([{**row, "chosen_ids": [5, 6, 7]}])
    assert long["input_ids"].tolist() == [[[5, 6], [7, 0]]]
    empty = collate.pairs(length=3)([{**row, "prompt_ids": [1], "rejected_ids": []}])
    assert empty["completion_mask"].tolist() == [[[0, 1, 1], [0, 0, 0]]]
    with pytest.raises(InvalidInput, match=r"no rejected_ids\. Give the tokens"):
        collate.pairs(length=3)([{"prompt_ids": [1], "chosen_ids": [2]}])
    with pytest.raises(InvalidInput, match="length must be an integer >= 2"):
        collate.pairs(length=1)
