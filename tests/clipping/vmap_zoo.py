"""Unchanged models of transformers and torch, tiny, with random weights: a long list of what people bring.

Letters: n records of T tokens, or of images of S x S; V words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from tacit.models import make_private_ready

V, T, S, D = 19, 5, 16, 16
"""Words, positions, pixels a side and width."""
Loss = Callable[..., Tensor]
Batch = tuple[Tensor, ...]
Settings = dict[str, Any]


class Entry(NamedTuple):
    """A model of the zoo: its constructor, its inputs (n, ...) and its losses (n,).

    ``double``: whether the model itself can be computed in float64.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Loss
    double: bool = True


def words(n: int) -> Batch:
    """Tokens of which those of the first record are padded."""
    ids = torch.randint(2, V, (n, T))
    ids[0, 3:] = 0
    return (ids,)


def images(n: int) -> Batch:
    return (torch.randn(n, 3, S, S),)


def vectors(*shape: int) -> Callable[[int], Batch]:
    return lambda n: (torch.randn(n, *shape),)


def weighted(states: Tensor) -> Tensor:
    """Losses of any output: no two numbers have the same weight, and no gradient is 0."""
    flat = states.flatten(1)
    weights = torch.linspace(-1, 1, flat.shape[1], dtype=flat.dtype)
    return (flat * weights).sum(1) + flat.square().mean(1)


def next_token(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean cross-entropy of all tokens but the first, of which padding does not count."""
    logits: Tensor = model(input_ids=ids, attention_mask=(ids > 0).long()).logits
    each = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none", ignore_index=0)
    return each.mean(1)


def masked_word(model: nn.Module, ids: Tensor) -> Tensor:
    mask = ids > 0
    logits: Tensor = model(input_ids=ids, attention_mask=mask.long()).logits
    each = F.cross_entropy(logits.transpose(1, 2), ids, reduction="none", ignore_index=0)
    return (each * mask).sum(1) / mask.sum(1)


def category(model: nn.Module, ids: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=ids, attention_mask=(ids > 0).long()).logits
    return F.cross_entropy(logits, ids[:, 0] % 3, reduction="none")


def translated(model: nn.Module, ids: Tensor) -> Tensor:
    """An encoder and a decoder, which is taught the record's own words backwards."""
    logits: Tensor = model(
        input_ids=ids, attention_mask=(ids > 0).long(), decoder_input_ids=ids.flip(1)
    ).logits
    return F.cross_entropy(logits.transpose(1, 2), ids, reduction="none").mean(1)


def spoken(model: nn.Module, sound: Tensor, ids: Tensor) -> Tensor:
    logits: Tensor = model(input_features=sound, decoder_input_ids=ids).logits
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def heard(model: nn.Module, sound: Tensor) -> Tensor:
    return weighted(model(sound).last_hidden_state)


def seen(model: nn.Module, pixels: Tensor) -> Tensor:
    return weighted(model(pixel_values=pixels).logits)


def looked_at(model: nn.Module, pixels: Tensor) -> Tensor:
    found = model(pixel_values=pixels)
    return weighted(found.last_hidden_state) + weighted(found.pooler_output)


def states_of(model: nn.Module, ids: Tensor) -> Tensor:
    mask = (ids > 0).long()
    return weighted(model(input_ids=ids, attention_mask=mask).last_hidden_state * mask[..., None])


def unmasked(model: nn.Module, ids: Tensor) -> Tensor:
    return weighted(model(input_ids=ids).last_hidden_state)


def features(model: nn.Module, pixels: Tensor) -> Tensor:
    return weighted(model(pixel_values=pixels).last_hidden_state)


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    found = model(x)
    return weighted(found[0] if isinstance(found, tuple) else found)


def of(kind: str, loss: Loss, batch: Callable[[int], Batch] = words, **settings: Any) -> Entry:
    """A model of transformers by the name of its class, in training mode."""

    def make() -> nn.Module:
        model = getattr(transformers, kind)
        return make_private_ready(model(model.config_class(**settings)).train())

    return Entry(make, batch, loss, settings.get("experts_implementation") != "grouped_mm")


def without_draws(model: nn.Module) -> nn.Module:
    """The same without dropout of numbers, paths and layers: a loop draws others than a batch."""
    for module in model.modules():
        rates = [name for name, value in vars(module).items() if "drop" in name and isinstance(value, float)]
        for name in [*rates, *(["p"] if isinstance(module, nn.Dropout) else [])]:
            setattr(module, name, 0.0)
        if hasattr(module, "config") and hasattr(module.config, "layerdrop"):
            module.config.layerdrop = 0.0
    return model


COMMON: Settings = {"vocab_size": V, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
SIZES: Settings = {"hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": 2}
GPT2: Settings = COMMON | {"n_positions": 12, "n_embd": D, "n_layer": 2, "n_head": 2}
T5: Settings = {"vocab_size": V, "d_model": D, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
T5 |= {"decoder_start_token_id": 0}
LLAMA: Settings = (
    COMMON | SIZES | {"intermediate_size": 24, "num_key_value_heads": 1, "max_position_embeddings": 12}
)
BERT: Settings = COMMON | SIZES | {"intermediate_size": 24, "max_position_embeddings": 12}
EXPERTS: Settings = {"moe_intermediate_size": 12, "shared_expert_intermediate_size": 12, "num_experts": 4}
GEMMA: Settings = LLAMA | {"head_dim": 8}
MIXTRAL: Settings = LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN: Settings = LLAMA | EXPERTS | {"num_experts_per_tok": 2}
VISION: Settings = {"image_size": S, "num_labels": 3}
STAGES: Settings = {"depths": [1, 1], "hidden_sizes": [8, 16], "num_labels": 3}
SOUND: Settings = SIZES | {
    "intermediate_size": 24,
    "conv_dim": (8, 8),
    "conv_kernel": (4, 3),
    "conv_stride": (4, 2),
}
SOUND |= {"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
PATCHES: Settings = SIZES | {"image_size": S, "patch_size": 8, "intermediate_size": 24}
BOTH: Settings = {f"{half}_{name}": number for half in ("encoder", "decoder") for name, number in
    (("layers", 2), ("attention_heads", 2), ("ffn_dim", 24))}  # fmt: skip
GROUPED: Settings = {"experts_implementation": "grouped_mm"}
BATCHED: Settings = {"experts_implementation": "batched_mm"}
EAGER: Settings = {"experts_implementation": "eager"}
"""The first is what these models choose themselves; torch has it for float32 and narrower types alone."""

ZOO: dict[str, Entry] = {
    "GPT-2": of("GPT2LMHeadModel", next_token, **GPT2),
    "GPT-NeoX": of("GPTNeoXForCausalLM", next_token, **BERT),
    "Llama": of("LlamaForCausalLM", next_token, **LLAMA),
    "Mistral": of("MistralForCausalLM", next_token, sliding_window=3, **LLAMA),
    "Qwen 2": of("Qwen2ForCausalLM", next_token, **LLAMA),
    "Qwen 3": of("Qwen3ForCausalLM", next_token, head_dim=8, **LLAMA),
    "Gemma": of("GemmaForCausalLM", next_token, **GEMMA),
    "Gemma 2": of("Gemma2ForCausalLM", next_token, sliding_window=3, **GEMMA),
    "Gemma 3": of("Gemma3ForCausalLM", next_token, sliding_window=3, **GEMMA),
    "Phi 3": of("Phi3ForCausalLM", next_token, **LLAMA),
    "OLMo 2": of("Olmo2ForCausalLM", next_token, **LLAMA),
    "OPT": of(
        "OPTForCausalLM", next_token,
        hidden_size=D, num_hidden_layers=2, num_attention_heads=2, ffn_dim=24, max_position_embeddings=12,
        word_embed_proj_dim=D, layerdrop=0.3, **COMMON,
    ),
    "Bloom": of("BloomForCausalLM", next_token, hidden_size=D, n_layer=2, n_head=2, **COMMON),
    "BERT": of("BertForSequenceClassification", category, num_labels=3, **BERT),
    "DistilBERT": of(
        "DistilBertForMaskedLM", masked_word,
        dim=D, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=12, **COMMON,
    ),
    "RoBERTa": of("RobertaForMaskedLM", masked_word, **BERT),
    "ALBERT": of("AlbertForMaskedLM", masked_word, embedding_size=8, **BERT),
    "ELECTRA": of(
        "ElectraForSequenceClassification", category, embedding_size=8, num_labels=3, **BERT
    ),
    "ModernBERT": of(
        "ModernBertForMaskedLM", masked_word,
        local_attention=4, cls_token_id=1, sep_token_id=1, **BERT,
    ),
    "DeBERTa-v2": of(
        "DebertaV2ForMaskedLM", masked_word,
        relative_attention=True, position_buckets=4, pos_att_type=["c2p", "p2c"], **BERT,
    ),
    "T5": of("T5ForConditionalGeneration", translated, **T5),
    "BART": of(
        "BartForConditionalGeneration", translated,
        d_model=D, **BOTH, max_position_embeddings=12, decoder_start_token_id=1,
        encoder_layerdrop=0.3, decoder_layerdrop=0.3, **COMMON,
    ),
    "Whisper": of(
        "WhisperForConditionalGeneration", spoken,
        lambda n: (torch.randn(n, 8, 12), torch.randint(2, V, (n, T))),
        d_model=D, **BOTH, max_source_positions=6, max_target_positions=8,
        num_mel_bins=8, decoder_start_token_id=1, **COMMON,
    ),
    "ViT": of(
        "ViTForImageClassification", seen, images,
        num_labels=3, **PATCHES,
    ),
    "Swin": of(
        "SwinForImageClassification", seen, images,
        image_size=S, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4, num_labels=3,
    ),
    "ConvNeXt": of(
        "ConvNextForImageClassification", seen, images,
        patch_size=2, num_stages=2, image_size=S, drop_path_rate=0.2, **STAGES,
    ),
    "ResNet": of(
        "ResNetForImageClassification", seen, images,
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3,
    ),
    "Mamba": of(
        "MambaForCausalLM", next_token,
        hidden_size=D, state_size=4, num_hidden_layers=2, use_mambapy=False, **COMMON,
    ),
    "Mixtral": of("MixtralForCausalLM", next_token, **GROUPED, **MIXTRAL),
    "Mixtral, batched": of("MixtralForCausalLM", next_token, **BATCHED, **MIXTRAL),
    "Mixtral, eager": of("MixtralForCausalLM", next_token, **EAGER, **MIXTRAL),
    "Qwen2-MoE": of("Qwen2MoeForCausalLM", next_token, **GROUPED, **QWEN),
    "Qwen2-MoE, batched": of("Qwen2MoeForCausalLM", next_token, **BATCHED, **QWEN),
    "Qwen2-MoE, eager": of("Qwen2MoeForCausalLM", next_token, **EAGER, **QWEN),
    "Wav2Vec2": of(
        "Wav2Vec2Model", heard, vectors(80),
        mask_time_prob=0.0, layerdrop=0.3, **SOUND,
    ),
    "CLIP vision": of(
        "CLIPVisionModel", looked_at, images,
        projection_dim=8, **PATCHES,
    ),
}  # fmt: skip


class Translator(nn.Module):
    """``nn.Transformer`` between a table and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(V, D, padding_idx=0)
        self.inside = nn.Transformer(D, 2, 2, 2, 24, dropout=0.0, batch_first=True)
        self.head = nn.Linear(D, V)

    def forward(self, ids: Tensor) -> Any:
        causal = nn.Transformer.generate_square_subsequent_mask(T, dtype=self.head.weight.dtype)
        found = self.inside(
            self.table(ids), self.table(ids.flip(1)), tgt_mask=causal, tgt_is_causal=True,
            src_key_padding_mask=ids == 0,
        )  # fmt: skip
        return self.head(found)


class Bags(nn.Module):
    """The mean of a record's words."""

    def __init__(self, mode: str, **settings: Any) -> None:
        super().__init__()
        self.bags, self.head = nn.EmbeddingBag(V, D, mode=mode, **settings), nn.Linear(D, 3)

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.bags(ids).tanh())


class Words(nn.Module):
    """A recurrent layer of a record's words, of which the last state counts too."""

    def __init__(self, kind: Any, **settings: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(V, D, padding_idx=0)
        self.inside = kind(D, D, 2, batch_first=True, bidirectional=True, **settings)
        self.head = nn.Linear(2 * D, 3)

    def forward(self, ids: Tensor) -> Any:
        states, last = self.inside(self.table(ids))
        last = last[0] if isinstance(last, tuple) else last
        return self.head(states).flatten(1) + last.mean((0, 2))[:, None]


def cnn(layer: Any, norm: Any, pool: Any) -> nn.Module:
    return nn.Sequential(
        layer(2, 8, 3, padding=1), norm(2, 8), nn.ReLU(), pool(2), layer(8, 8, 3, groups=2), nn.Flatten()
    )


def torch_entry(make: Callable[[], nn.Module], batch: Callable[[int], Batch] = words) -> Entry:
    return Entry(make, batch, outputs)


def dora() -> nn.Module:
    """GPT-2 with DoRA, which makes a Parameter of a transposed weight within the forward pass."""
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, use_dora=True)
    return inject_adapter_in_model(config, ZOO["GPT-2"].make())


ZOO |= {
    "GPT-2, DoRA": ZOO["GPT-2"]._replace(make=dora),
    "nn.Transformer": torch_entry(Translator),
    "nn.Transformer, evaluated": torch_entry(lambda: Translator().eval()),
    "nn.LSTM": torch_entry(lambda: Words(nn.LSTM)),
    "nn.GRU": torch_entry(lambda: Words(nn.GRU)),
    "nn.RNN": torch_entry(lambda: Words(nn.RNN)),
    "nn.Conv1d": torch_entry(lambda: cnn(nn.Conv1d, nn.GroupNorm, nn.MaxPool1d), vectors(2, 16)),
    "nn.Conv2d": torch_entry(lambda: cnn(nn.Conv2d, nn.GroupNorm, nn.MaxPool2d), vectors(2, 8, 8)),
    "nn.Conv3d": torch_entry(lambda: cnn(nn.Conv3d, nn.GroupNorm, nn.MaxPool3d), vectors(2, 6, 6, 6)),
    "nn.EmbeddingBag, mean": torch_entry(lambda: Bags("mean", padding_idx=0)),
    "nn.EmbeddingBag, sum": torch_entry(lambda: Bags("sum")),
    "nn.EmbeddingBag, max": torch_entry(lambda: Bags("max")),
}

MORE: dict[str, Entry] = {
    "Falcon": of("FalconForCausalLM", next_token, **COMMON, **SIZES),
    "GPT-J": of(
        "GPTJForCausalLM", next_token,
        n_embd=D, n_layer=2, n_head=2, rotary_dim=4, n_positions=12, **COMMON,
    ),
    "GPT-Neo": of(
        "GPTNeoForCausalLM", next_token, hidden_size=D, num_layers=2, num_heads=2,
        attention_types=[[["global", "local"], 1]], window_size=3, max_position_embeddings=12, **COMMON,
    ),
    "StableLM": of("StableLmForCausalLM", next_token, **LLAMA),
    "Cohere": of("CohereForCausalLM", next_token, **LLAMA),
    "Granite": of("GraniteForCausalLM", next_token, **LLAMA),
    "StarCoder 2": of("Starcoder2ForCausalLM", next_token, **LLAMA),
    "Nemotron": of("NemotronForCausalLM", next_token, **LLAMA),
    "DeepSeek-V3": of(
        "DeepseekV3ForCausalLM", next_token, **BATCHED,
        **LLAMA | {"num_key_value_heads": 2}, moe_intermediate_size=12, n_routed_experts=4, n_group=1,
        topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1, q_lora_rank=8, kv_lora_rank=8,
        qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8,
    ),
    "gpt-oss": of(
        "GptOssForCausalLM", next_token, **BATCHED, **MIXTRAL,
        head_dim=8, sliding_window=3, layer_types=["sliding_attention", "full_attention"],
    ),
    "Mamba 2": of(
        "Mamba2ForCausalLM", next_token, hidden_size=D, num_heads=4, head_dim=8, expand=2,
        state_size=4, num_hidden_layers=2, n_groups=1, chunk_size=4, **COMMON,
    ),
    "RWKV": of(
        "RwkvForCausalLM", next_token, hidden_size=D, num_hidden_layers=2, context_length=12,
        attention_hidden_size=D, intermediate_size=24, **COMMON,
    ),
    "XLNet": of(
        "XLNetModel", states_of, d_model=D, n_layer=2, n_head=2, d_inner=24, **COMMON
    ),
    "FNet": of("FNetModel", unmasked, **BERT),
    "MPNet": of("MPNetModel", states_of, **BERT),
    "DeBERTa": of(
        "DebertaModel", states_of,
        relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=6, **BERT,
    ),
    "Funnel": of(
        "FunnelBaseModel", unmasked,
        block_sizes=[1, 1], d_model=D, n_head=2, d_head=8, d_inner=24, **COMMON,
    ),
    "ConvBERT": of(
        "ConvBertModel", states_of,
        embedding_size=8, head_ratio=1, conv_kernel_size=3, **BERT,
    ),
    "SqueezeBERT": of(
        "SqueezeBertModel", states_of, embedding_size=D, q_groups=2, k_groups=2,
        v_groups=2, post_attention_groups=1, intermediate_groups=2, output_groups=2, **BERT,
    ),
    "Longformer": of(
        "LongformerModel", unmasked,
        lambda n: (torch.randint(2, V, (n, 8)),), attention_window=[4, 4], **BERT,
    ),
    "CLIP text": of("CLIPTextModel", states_of, projection_dim=8, **BERT),
    "DINOv2": of(
        "Dinov2Model", features, images, image_size=S, patch_size=8, mlp_ratio=2,
        drop_path_rate=0.2, **SIZES,
    ),
    "BEiT": of(
        "BeitModel", features, images, use_relative_position_bias=True, **PATCHES,
    ),
    "VideoMAE": of(
        "VideoMAEForVideoClassification", seen, vectors(4, 3, S, S),
        num_frames=4, num_labels=3, **PATCHES,
    ),
    "Swin 2": of(
        "Swinv2ForImageClassification", seen, images,
        patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4, **VISION,
    ),
    "ConvNeXt 2": of(
        "ConvNextV2ForImageClassification", seen, images,
        patch_size=2, num_stages=2, image_size=S, **STAGES,
    ),
    "PoolFormer": of(
        "PoolFormerForImageClassification", seen, images,
        num_encoder_blocks=2, patch_sizes=[3, 3], strides=[2, 2], padding=[1, 1], **STAGES,
    ),
    "SegFormer": of(
        "SegformerForImageClassification", seen, images, num_encoder_blocks=2,
        sr_ratios=[2, 1], patch_sizes=[3, 3], strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
        **STAGES,
    ),
    "RegNet": of(
        "RegNetForImageClassification", seen, images, embedding_size=8, groups_width=4,
        **STAGES,
    ),
    "MobileNet 2": of(
        "MobileNetV2ForImageClassification", seen, images,
        depth_multiplier=0.25, num_labels=3,
    ),
    "MobileViT": of(
        "MobileViTForImageClassification", seen, images, image_size=32, num_labels=3,
        hidden_sizes=[8, 8, 8], neck_hidden_sizes=[8] * 6 + [16], num_attention_heads=2, patch_size=1,
    ),
    "HuBERT": of(
        "HubertModel", heard, vectors(80),
        mask_time_prob=0.0, **SOUND,
    ),
}  # fmt: skip


def checkpointed() -> Any:
    model: Any = ZOO["GPT-2"].make()
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    return model


def frozen_below() -> nn.Module:
    model = ZOO["BERT"].make()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layer.1" in name or "classifier" in name)
    return model


MORE |= {
    "GPT-2, eager": of("GPT2LMHeadModel", next_token, attn_implementation="eager", **GPT2),
    "GPT-2, checkpointed": ZOO["GPT-2"]._replace(make=checkpointed),
    "GPT-2, categories": of("GPT2ForSequenceClassification", category, num_labels=3, **GPT2),
    "BERT, frozen below": ZOO["BERT"]._replace(make=frozen_below),
    "BERT, masked words": of("BertForMaskedLM", masked_word, **BERT),
    "Llama, biases": of("LlamaForCausalLM", next_token, attention_bias=True, mlp_bias=True, **LLAMA),
    "Llama, tied": of("LlamaForCausalLM", next_token, tie_word_embeddings=True, **LLAMA),
    "T5 encoder": of("T5EncoderModel", states_of, **T5),
}
"""What make test-all tries too."""
UNSUPPORTED = {
    "Mixtral, eager": "the result of nonzero",
    "Qwen2-MoE, eager": "the result of nonzero",
    "nn.EmbeddingBag, max": "max",
}
"""What vmap does not carry, and the operation for which it does not."""
