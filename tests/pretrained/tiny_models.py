"""Public models of next to nothing, in the layout of the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from byte_model import write_model
from tokenizers import Tokenizer, processors
from transformers import BertConfig, BertModel, ConvNextConfig, ConvNextModel, ViTConfig, ViTModel

FIRST, LAST = 257, 258
LENGTH = 12


def write_gpt2(folder: Path, **changes: Any) -> Path:
    """A GPT-2 whose tokens are bytes; it reads from left to right."""
    return write_model(folder, **changes)


def write_bert(folder: Path, *, pooler: bool = True) -> Path:
    """A BERT whose tokens are bytes, between one for the beginning and one for the end."""
    write_model(folder, weights=False)
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", FIRST), ("[SEP]", LAST)]
    )
    tokenizer.save(path)
    config = BertConfig(
        vocab_size=259, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=LENGTH, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(5)
        BertModel(config, add_pooling_layer=pooler).save_pretrained(folder)
    return folder


def write_vit(folder: Path) -> Path:
    """A ViT of pictures of 8 by 8 pixels."""
    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=8,
        patch_size=4,
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        ViTModel(config).save_pretrained(folder)
    said = {"size": {"height": 8, "width": 8}, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.5, 0.25]}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    return folder


def write_convnext(folder: Path) -> Path:
    """A ConvNeXt of pictures of any size."""
    config = ConvNextConfig(hidden_sizes=[4, 8], depths=[1, 1], num_stages=2, image_size=16)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        ConvNextModel(config).save_pretrained(folder)
    return folder
