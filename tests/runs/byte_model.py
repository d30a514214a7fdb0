"""A language model of next to nothing, in the layout of the hub, whose tokens are bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel

END = 256


def write_model(folder: Path, *, weights: bool = True, **changes: Any) -> Path:
    """A GPT-2 of next to nothing whose tokens are bytes, and an end."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={one: place for place, one in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    settings: dict[str, Any] = {
        "vocab_size": 257, "n_positions": 12, "n_embd": 8, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": END, "eos_token_id": END,
    }  # fmt: skip
    config = GPT2Config(**(settings | changes))
    if weights:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            GPT2LMHeadModel(config).save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    return folder
