"""The models that people fine-tune on a GPU, built by transformers, timm, peft and torch.

Each has a full and a tiny form, with two layers on tiny inputs.  Weights are random, inputs N(0, 1), labels
and tokens uniform.  Dropout and attention have the library's defaults.  Transformers run with AdamW under
bfloat16 autocast, which is inside the loss.  The wide residual network also runs under autocast, and, like
all other models, with SGD and momentum.  ``MODELS`` is in order of importance.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from workloads import Residual, Workload, class_losses, hugging_face_gpt2, mlp, moved, pictures, tokens

from tacit.training import FlipAndCrop

__all__ = ["MODELS", "LibraryModel", "Recurrent", "make_model"]

BF16 = torch.bfloat16
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
PICTURE = {"image_size": 32, "patch_size": 8}


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of transformers models, over the trained weights."""
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of the other models."""
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


# --- transformers ----------------------------------------------------------------------------------------


def bert(n: int, length: int, vocabulary: int = 30522, **shape: Any) -> Workload:
    """Return BERT-base with a head of two classes, on n sequences without padding."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=vocabulary, num_labels=2, **shape)
    ids, labels = torch.randint(0, vocabulary, (n, length)), torch.randint(0, 2, (n,))
    build = lambda: BertForSequenceClassification(config).train()  # noqa: E731
    return Workload("BERT", build, ids, labels, class_losses, BF16, adamw)


def vit(n: int, size: int = 224, classes: int = 1000, **shape: Any) -> Workload:
    """Return ViT-B/16 of transformers on n pictures."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(num_labels=classes, **shape)
    build = lambda: ViTForImageClassification(config).train()  # noqa: E731
    drawn = pictures("ViT", build, n, 3, size, size, classes=classes, autocast=BF16)
    return replace(drawn, optimizer=adamw)


def timm_vit(n: int, size: int = 224, classes: int = 1000, **shape: Any) -> Workload:
    """Return ViT-B/16 of timm on n pictures."""
    import timm

    build = partial(timm.create_model, "vit_base_patch16_224", num_classes=classes, **shape)
    drawn = pictures("ViT", build, n, 3, size, size, classes=classes, autocast=BF16)
    return replace(drawn, optimizer=adamw)


def gpt2(n: int, length: int, vocabulary: int = 50257, **shape: int) -> Workload:
    """Return GPT-2 of transformers with a tied head, in the small size unless ``shape`` changes it."""
    build = partial(
        hugging_face_gpt2, vocabulary, **({"width": 768, "length": 1024, "depth": 12, "heads": 12} | shape)
    )
    return replace(tokens("GPT-2", n, length, vocabulary, autocast=BF16), build=build, optimizer=adamw)


TINY_LLAMA: dict[str, Any] = {
    "hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
    "intermediate_size": 5632,
}  # fmt: skip


def llama(n: int, length: int, vocabulary: int = 32000, *, lora: bool, **shape: Any) -> Workload:
    """Return TinyLlama (1.1 billion weights): all trained, or in bfloat16 with LoRA of rank 16."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary, max_position_embeddings=2048, use_cache=False, **(TINY_LLAMA | shape)
    )
    adapters = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")

    def build() -> nn.Module:
        model = LlamaForCausalLM(config).train()
        return get_peft_model(model.to(BF16), adapters) if lora else model

    return replace(tokens("Llama", n, length, vocabulary, autocast=BF16), build=build, optimizer=adamw)


def own(n: int, length: int, vocabulary: int, **shape: int) -> Workload:
    """Return the Transformer of the other benchmarks in the shape of GPT-2 small, with an untied head."""
    return replace(tokens("own", n, length, vocabulary, autocast=BF16, **shape), optimizer=adamw)


# --- others ----------------------------------------------------------------------------------------------


class Wide(Residual):
    """A block of a wide residual network: GroupNorm(16) and ReLU come before each convolution."""

    def __init__(self, C: int, P: int, stride: int) -> None:
        super().__init__(C, P, stride)
        self.body = nn.Sequential(
            nn.GroupNorm(16, C), nn.ReLU(), nn.Conv2d(C, P, 3, stride, 1, bias=False),
            nn.GroupNorm(16, P), nn.ReLU(), nn.Conv2d(P, P, 3, 1, 1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, C, h, w) to (n, P, h / stride, w / stride)."""
        out: Tensor = self.body(x) + self.skip(x)
        return out


def wide_resnet(width: int, blocks: int) -> nn.Module:
    """Return a wide residual network (Zagoruyko, Komodakis, 1605.07146) of three stages with GroupNorm."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    C = 16
    for stage in range(3):
        for block in range(blocks):
            P = 16 * width * 2**stage
            layers.append(Wide(C, P, 2 if stage > 0 and block == 0 else 1))
            C = P
    last = (nn.GroupNorm(16, C), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(C, 10))
    return nn.Sequential(*layers, *last)


def wrn(n: int, *, width: int = 4, blocks: int = 2, size: int = 32, views: int = 1) -> Workload:
    """Return WRN-16-4 on n pictures of CIFAR-10's shape, each in ``views`` random flips and crops."""
    drawn = pictures("WRN", partial(wide_resnet, width, blocks), n, 3, size, size, autocast=BF16)
    return replace(drawn, optimizer=momentum, views=views, augmentation=FlipAndCrop() if views > 1 else None)


class Recurrent(nn.Module):
    """A classifier on the last state of an LSTM."""

    def __init__(self, inputs: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, T, inputs) to (n, 10)."""
        logits: Tensor = self.head(self.lstm(x)[0][:, -1])
        return logits


def lstm(n: int, length: int, *, inputs: int = 64, hidden: int = 512) -> Workload:
    """Return a two-layer float32 LSTM on n sequences; plain PyTorch runs it by cuDNN."""
    drawn = pictures("LSTM", partial(Recurrent, inputs, hidden, 2), n, length, inputs)
    return replace(drawn, optimizer=momentum)


def perceptron(n: int) -> Workload:
    """Return the 784-1000-10 perceptron in float32."""
    return replace(pictures("MLP", mlp, n, 784), optimizer=momentum)


# --- the list --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LibraryModel:
    """A model: its title, functions that make its full and tiny workload, and the package that it needs."""

    title: str
    full: Callable[[], Workload]
    tiny: Callable[[], Workload]
    package: str = "torch"

    def missing(self) -> str | None:
        """Return the reason why it cannot run here, or None."""
        return None if importlib.util.find_spec(self.package) else f"{self.package} is not installed"


SMALL_LLAMA = SMALL | {"num_key_value_heads": 2}
SMALL_PICTURES = {"size": 32, "classes": 10}
SMALL_GPT2 = {"vocabulary": 64, "width": 32, "depth": 2, "heads": 4}

MODELS: dict[str, LibraryModel] = {
    "vit-timm": LibraryModel(
        "ViT-B/16 of timm, 64 x 224", partial(timm_vit, 64),
        partial(timm_vit, 2, **SMALL_PICTURES, img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4),
        "timm",
    ),
    "bert-256": LibraryModel(
        "BERT-base, 256 x 128", partial(bert, 256, 128), partial(bert, 4, 8, 64, **SMALL), "transformers"
    ),
    "bert-32": LibraryModel(
        "BERT-base, 32 x 128", partial(bert, 32, 128), partial(bert, 2, 8, 64, **SMALL), "transformers"
    ),
    "gpt2-small": LibraryModel(
        "GPT-2 small, 16 x 1,024", partial(gpt2, 16, 1024), partial(gpt2, 2, 8, **SMALL_GPT2),
        "transformers",
    ),
    "gpt2-medium": LibraryModel(
        "GPT-2 medium, 8 x 512", partial(gpt2, 8, 512, width=1024, depth=24, heads=16),
        partial(gpt2, 2, 4, **SMALL_GPT2), "transformers",
    ),
    "llama-lora": LibraryModel(
        "Llama 1.1B with LoRA, 8 x 1,024", partial(llama, 8, 1024, lora=True),
        partial(llama, 2, 8, 64, lora=True, **SMALL_LLAMA), "peft",
    ),
    "llama": LibraryModel(
        "Llama 1.1B, all weights, 4 x 1,024", partial(llama, 4, 1024, lora=False),
        partial(llama, 2, 8, 64, lora=False, **SMALL_LLAMA), "peft",
    ),
    "wrn": LibraryModel(
        "WRN-16-4 with GroupNorm, 2,048", partial(wrn, 2048), partial(wrn, 2, width=1, blocks=1, size=16)
    ),
    "lstm": LibraryModel(
        "LSTM 2 x 512, 256 x 200", partial(lstm, 256, 200), partial(lstm, 2, 4, inputs=8, hidden=16)
    ),
    "mlp": LibraryModel("MLP 784-1000-10, 4,096", partial(perceptron, 4096), partial(perceptron, 8)),
    "vit": LibraryModel(
        "ViT-B/16 of transformers, 64 x 224", partial(vit, 64),
        partial(vit, 2, **SMALL_PICTURES, **SMALL, **PICTURE), "transformers",
    ),
    "wrn-views": LibraryModel(
        "WRN-16-4 with GroupNorm, 512 in 4 views", partial(wrn, 512, views=4),
        partial(wrn, 2, width=1, blocks=1, size=16, views=2),
    ),
    "own": LibraryModel(
        "the Transformer of these benchmarks, 16 x 1,024",
        partial(own, 16, 1024, 50257, width=768, depth=12, heads=12),
        partial(own, 2, 8, 64, width=32, depth=2, heads=4),
    ),
}  # fmt: skip
"""The models by short name, in order of importance."""


def make_model(name: str, *, tiny: bool = False, device: str = "cpu") -> Workload:
    """Return the workload of a model, with fixed random inputs."""
    torch.manual_seed(0)
    row = MODELS[name]
    load = (row.tiny if tiny else row.full)()
    return moved(replace(load, name=row.title), device)
