"""Hugging Face's GPT-2, BERT, Llama and T5, as they come: fast, equal to a loop, and trained by a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import by_definition, equal, sums_of
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.plan import Plan
from tacit.training import PrivateSession

V, T, C = 19, 6, 0.3


def gpt2(kind: Any = GPT2LMHeadModel, dropout: float = 0.0, attention: str = "sdpa") -> nn.Module:
    config: Any = GPT2Config(
        vocab_size=V, n_positions=12, n_embd=8, n_layer=2, n_head=2, pad_token_id=0,
        bos_token_id=1, eos_token_id=1, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    config.num_labels, config._attn_implementation = 3, attention
    model: nn.Module = kind(config)
    return model.train()


def bert(kind: Any = BertForSequenceClassification, dropout: float = 0.0) -> nn.Module:
    config: Any = BertConfig(
        vocab_size=V, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=12, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    config.num_labels = 3
    model: nn.Module = kind(config)
    return model.train()


def llama(tied: bool = False, biases: bool = False) -> nn.Module:
    model: nn.Module = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=V, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            intermediate_size=16, max_position_embeddings=12, tie_word_embeddings=tied,
            attention_bias=biases, mlp_bias=biases,
        )
    )  # fmt: skip
    return model.train()


def t5(kind: Any = T5EncoderModel, dropout: float = 0.0) -> nn.Module:
    """With learned biases of relative positions, which attention takes as its mask."""
    config: Any = T5Config(
        vocab_size=V, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, dropout_rate=dropout
    )
    config.decoder_start_token_id = 0
    model: nn.Module = kind(config)
    return model.train()


def energy(model: nn.Module, ids: Tensor) -> Tensor:
    states: Tensor = model(input_ids=ids).last_hidden_state
    return (states * torch.linspace(-1, 1, states.shape[-1], dtype=states.dtype)).square().mean((1, 2))


def padded_energy(model: nn.Module, ids: Tensor) -> Tensor:
    """Its mask is added to the biases, and left out where it hides nothing."""
    mask = (ids > 0).long()
    states: Tensor = model(input_ids=ids, attention_mask=mask).last_hidden_state
    each = (states * torch.linspace(-1, 1, states.shape[-1], dtype=states.dtype)).square().sum(2)
    return (each * mask).sum(1)


def translated(model: nn.Module, ids: Tensor) -> Tensor:
    """An encoder and a decoder."""
    mask = (ids > 0).long()
    logits: Tensor = model(input_ids=ids, attention_mask=mask, decoder_input_ids=ids.flip(1)).logits
    each = F.cross_entropy(logits.transpose(1, 2), ids, reduction="none", ignore_index=0)
    return each.sum(1) / T


def next_token(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean cross-entropy per record of all tokens but the first."""
    logits: Tensor = model(input_ids=ids).logits
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def padded_next_token(model: nn.Module, ids: Tensor) -> Tensor:
    """The same with an attention mask, without the tokens that are padding."""
    logits: Tensor = model(input_ids=ids, attention_mask=(ids > 0).long()).logits
    each = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none", ignore_index=0)
    return each.sum(1) / (T - 1)


def category(model: nn.Module, ids: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=ids, attention_mask=(ids > 0).long()).logits
    return F.cross_entropy(logits, ids[:, 0] % 3, reduction="none")


def checkpointed(model: Any) -> nn.Module:
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    return model  # type: ignore[no-any-return]


def frozen_below(model: nn.Module) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layer.1" in name or "classifier" in name)
    return model


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = {
    "gpt2": (gpt2, next_token),
    "gpt2, padded": (gpt2, padded_next_token),
    "gpt2, eager attention": (lambda: gpt2(attention="eager"), padded_next_token),
    "gpt2, checkpointed": (lambda: checkpointed(gpt2()), next_token),
    "gpt2, categories": (lambda: gpt2(GPT2ForSequenceClassification), category),
    "bert": (bert, category),
    "bert, frozen below": (lambda: frozen_below(bert()), category),
    "bert, masked words": (lambda: bert(BertForMaskedLM), padded_next_token),
    "llama": (llama, next_token),
    "llama, padded, biases": (lambda: llama(biases=True), padded_next_token),
    "llama, tied": (lambda: llama(tied=True), next_token),
    "t5": (t5, energy),
    "t5, padded": (t5, padded_energy),
    "t5, encoder and decoder": (lambda: t5(T5ForConditionalGeneration), translated),
}


def tokens(n: int, padded: int = 0) -> Tensor:
    ids = torch.randint(1, V, (n, T))
    ids[padded, 4:] = 0
    return ids


@pytest.mark.thorough(cases=6)
@pytest.mark.untraced
@pytest.mark.parametrize("padded", [0, 4])
@pytest.mark.parametrize(("make", "loss"), CASES.values(), ids=CASES)
def test_the_fast_route_equals_a_loop(
    make: Callable[[], nn.Module], loss: Callable[..., Tensor], padded: int
) -> None:
    """Whether it is among the first that a record is padded, of which the models ask, or not."""
    torch.manual_seed(0)
    model, ids = make().double(), tokens(5, padded)
    engine = FastEngine(model, loss, FlatClipping(C))
    found = sums_of(engine, ids)
    assert engine.route == "fast"
    equal(found, by_definition(model, loss, (ids,), C))


TRAINED: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = {
    "gpt2": (lambda: gpt2(dropout=0.1), next_token),
    "bert": (lambda: bert(dropout=0.1), category),
    "llama": (llama, next_token),
    "t5": (lambda: t5(T5ForConditionalGeneration, dropout=0.1), translated),
}


@pytest.mark.thorough(cases=1)
@pytest.mark.untraced
@pytest.mark.parametrize(("make", "loss"), TRAINED.values(), ids=TRAINED)
def test_a_session_trains_them_unchanged(make: Callable[[], nn.Module], loss: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    model = make()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    plan = Plan.with_noise(
        noise_multiplier=1.0, delta=1e-3, records=40, batch_size=8, steps=2, clipping=1.0,
        adjacency="add-remove", unit="text",
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = PrivateSession(model, optimizer, (tokens(40),), plan, loss=loss, physical_batch_size=5)
    for batch in session.batches():
        session.step(batch)
    assert session.route == "fast"
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all()
        assert not torch.equal(parameter, before[name]), name
        assert parameter.grad is None
