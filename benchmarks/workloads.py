"""The workloads of the benchmarks: models, inputs and losses, as other libraries measure them.

There are five for the CPU; GPT-2-small (with an untied head) and ResNet-50 with GroupNorm for the GPU; models
whose steps are many small operations; models with weight norm; models that people train most; and Hugging
Face's GPT-2 for whole jobs.
Inputs are N(0, 1), labels and tokens uniform, and weights have the libraries' initial values.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.models.networks import papernot_mnist_cnn

if TYPE_CHECKING:
    from tacit.training.by_record import Augmentation

__all__ = [
    "COMMON_WORKLOADS", "GPU_WORKLOADS", "JOBS", "LIBRARY_WORKLOADS", "OVERHEAD_WORKLOADS", "TINY",
    "WORKLOADS", "Transformer", "Workload", "make_workload", "moved",
]  # fmt: skip


class Block(nn.Module):
    """A pre-norm transformer block with its own attention from linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, T, d) to (n, T, d)."""
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Transformer blocks that predict the next token; the head is an untied matrix without bias."""

    def __init__(
        self, vocabulary: int = 8000, width: int = 256, length: int = 128, depth: int = 4, heads: int = 4
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Map (n, T) tokens to (n, T, vocabulary) logits."""
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids).contiguous()
        logits: Tensor = self.head(self.norm(self.blocks(self.tokens(ids) + self.places(places))))
        return logits


class Residual(nn.Module):
    """Two 3x3 convolutions with GroupNorm and a skip, which is a 1x1 convolution if shapes change."""

    def __init__(self, C: int, P: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(C, P, 3, stride, 1, bias=False), nn.GroupNorm(8, P), nn.ReLU(),
            nn.Conv2d(P, P, 3, 1, 1, bias=False), nn.GroupNorm(8, P),
        )  # fmt: skip
        same = stride == 1 and C == P
        self.skip = nn.Identity() if same else nn.Conv2d(C, P, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, C, h, w) to (n, P, h / stride, w / stride)."""
        return torch.relu(self.body(x) + self.skip(x))


class BasicBlock(nn.Module):
    """ResNet-18's block: two 3x3 convolutions with GroupNorm(32)."""

    def __init__(self, C: int, P: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(C, P, 3, stride, 1, bias=False), nn.GroupNorm(32, P), nn.ReLU(),
            nn.Conv2d(P, P, 3, 1, 1, bias=False), nn.GroupNorm(32, P),
        )  # fmt: skip
        same = stride == 1 and C == P
        change = nn.Sequential(nn.Conv2d(C, P, 1, stride, bias=False), nn.GroupNorm(32, P))
        self.skip = nn.Identity() if same else change

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, C, h, w) to (n, P, h / stride, w / stride)."""
        return torch.relu(self.body(x) + self.skip(x))


class Bottleneck(nn.Module):
    """ResNet-50's block, 1x1, 3x3 and 1x1 convolutions, with GroupNorm(32)."""

    def __init__(self, C: int, P: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(C, P, 1, bias=False), nn.GroupNorm(32, P), nn.ReLU(),
            nn.Conv2d(P, P, 3, stride, 1, bias=False), nn.GroupNorm(32, P), nn.ReLU(),
            nn.Conv2d(P, 4 * P, 1, bias=False), nn.GroupNorm(32, 4 * P),
        )  # fmt: skip
        same = stride == 1 and 4 * P == C
        change = nn.Sequential(nn.Conv2d(C, 4 * P, 1, stride, bias=False), nn.GroupNorm(32, 4 * P))
        self.skip = nn.Identity() if same else change

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, C, h, w) to (n, 4 P, h / stride, w / stride)."""
        return torch.relu(self.body(x) + self.skip(x))


def resnet18(classes: int = 10) -> nn.Module:
    """Return ResNet-18 (He et al., 1512.03385, table 1) with GroupNorm in place of BatchNorm."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.GroupNorm(32, 64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    C = 64
    for P in (64, 128, 256, 512):
        layers += [BasicBlock(C, P, 1 if P == 64 else 2), BasicBlock(P, P, 1)]
        C = P
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(C, classes))


def resnet50(width: int = 64, depths: tuple[int, int, int, int] = (3, 4, 6, 3)) -> nn.Module:
    """Return ResNet-50 (He et al., 1512.03385, table 1) with GroupNorm in place of BatchNorm."""
    C = width
    layers: list[nn.Module] = [nn.Conv2d(3, C, 7, 2, 3, bias=False), nn.GroupNorm(32, C), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for stage, depth in enumerate(depths):
        P = width * 2**stage
        for position in range(depth):
            layers.append(Bottleneck(C, P, 2 if stage > 0 and position == 0 else 1))
            C = 4 * P
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(C, 1000))


def vgg() -> nn.Module:
    """Return three pairs of 3x3 convolutions with tanh and max-pooling, and two linear layers."""
    layers: list[nn.Module] = []
    for C, P in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(C, P, 3, padding=1), nn.Tanh(), nn.Conv2d(P, P, 3, padding=1), nn.Tanh()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10))


def residual_network() -> nn.Module:
    """Return a small ResNet with GroupNorm(8)."""
    shapes = ((32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1))
    first = (nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.GroupNorm(8, 32), nn.ReLU())
    last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    return nn.Sequential(*first, *(Residual(*shape) for shape in shapes), *last)


def mlp(width: int = 1000, depth: int = 1) -> nn.Module:
    """Return a 784-1000-10 perceptron, or one with ``depth`` hidden layers of another width."""
    widths = [784, *[width] * depth]
    hidden = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def weight_normed(parametrized: bool) -> nn.Module:
    """Return a 784-512-10 perceptron with weight norm, as a parametrization or by the older forward hook."""
    norm = nn.utils.parametrizations.weight_norm if parametrized else nn.utils.weight_norm
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the older form is deprecated, but still in use
        return nn.Sequential(norm(nn.Linear(784, 512)), nn.ReLU(), norm(nn.Linear(512, 10)))


def hugging_face_gpt2(vocabulary: int, width: int, length: int, depth: int, heads: int) -> nn.Module:
    """Return GPT-2 with its default settings: the head tied to the embedding, and dropout of 0.1."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocabulary, n_positions=length, n_embd=width, n_layer=depth, n_head=heads,
        bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    model: nn.Module = GPT2LMHeadModel(config)
    return model.train()


class Words(nn.Module):
    """A classifier of tokens by the last state of a recurrent layer, or by the mean of their vectors."""

    def __init__(self, vocabulary: int, width: int, classes: int, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.layer = layer
        last = width if layer is None else int(layer.hidden_size)  # type: ignore[arg-type]
        hidden = [nn.Linear(width, width), nn.ReLU()] if layer is None else []
        self.head = nn.Sequential(*hidden, nn.Linear(last, classes))

    def forward(self, ids: Tensor) -> Tensor:
        """Map (n, T) tokens to (n, classes) logits."""
        h = self.table(ids)
        read: Tensor = self.head(h.mean(1) if self.layer is None else self.layer(h)[0][:, -1])
        return read


def opacus_mnist() -> nn.Module:
    """Return the network of Opacus's MNIST example."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def opacus_cifar() -> nn.Module:
    """Return the network of Opacus's CIFAR example."""
    layers: list[nn.Module] = []
    for C, P in ((3, 32), (32, 64), (64, 64), (64, 128)):
        layers += [nn.Conv2d(C, P, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
    return nn.Sequential(*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def convnext() -> nn.Module:
    """Return a small ConvNeXt of transformers, for pictures of 64 x 64."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(
        hidden_sizes=[64, 128, 256, 256], depths=[2, 2, 4, 2], num_labels=10, image_size=64
    )
    model: nn.Module = ConvNextForImageClassification(config)
    return model


def bert_with_lora() -> nn.Module:
    """Return BERT with adapters of rank 8 on query and value; its dropout is 0.1."""
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=2000,
        num_labels=2,
    )  # fmt: skip
    adapters = LoraConfig(r=8, lora_dropout=0.1, target_modules=["query", "value"], task_type="SEQ_CLS")
    model: nn.Module = get_peft_model(BertForSequenceClassification(config), adapters)
    return model.train()


def logits_of(outputs: Any) -> Tensor:
    """Return the logits; models of transformers return them as a field."""
    found: Tensor = outputs if isinstance(outputs, Tensor) else outputs.logits
    return found


def token_losses(outputs: Any, targets: Tensor) -> Tensor:
    """Return each record's mean cross-entropy over T tokens, (n,), from logits (n, T, V) and (n, T)."""
    losses = F.cross_entropy(logits_of(outputs).flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view_as(targets).mean(1)


def class_losses(outputs: Any, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each record, (n,), from logits (n, classes) and labels (n,)."""
    return F.cross_entropy(logits_of(outputs), targets, reduction="none")


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of these workloads."""
    return torch.optim.SGD(model.parameters(), lr=1e-3)


@dataclass(frozen=True)
class Workload:
    """A model with a batch of records; ``criterion`` maps outputs and targets to the losses (n,).

    With ``autocast``, forward pass and loss run in that type, and the weights keep their type.  With
    ``augmentation``, a step uses the mean over ``views`` random views of each record.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Tensor
    targets: Tensor
    criterion: Callable[[Any, Tensor], Tensor]
    autocast: torch.dtype | None = None
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd
    views: int = 1
    augmentation: Augmentation | None = None

    @property
    def batch(self) -> int:
        """The number of records per step."""
        return len(self.inputs)

    @property
    def convolutional(self) -> bool:
        """Whether the inputs are pictures, for which torch has two memory formats."""
        return self.inputs.dim() == 4

    @property
    def device(self) -> torch.device:
        """The device of the inputs and the model."""
        return self.inputs.device

    def make(self) -> nn.Module:
        """Return a new model, whose weights are drawn on its device."""
        with self.device:
            return self.build().to(self.device)

    def rows(self) -> tuple[Tensor, Tensor]:
        """Return a plain step's inputs and targets, or new views of them, (n K, ...), in record order."""
        if self.augmentation is None:
            return self.inputs, self.targets
        uniforms = torch.rand(self.batch, self.views, self.augmentation.draws, device=self.device)
        return self.augmentation.views(self.inputs, uniforms), self.targets.repeat_interleave(self.views)

    def precision(self) -> AbstractContextManager[object]:
        """Return the context in which forward pass and loss run."""
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, self.autocast)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return one loss per record, (n,)."""
        with self.precision():
            return self.criterion(model(x), y)


def pictures(
    name: str,
    build: Callable[[], nn.Module],
    n: int,
    *shape: int,
    classes: int = 10,
    autocast: torch.dtype | None = None,
) -> Workload:
    """Return a workload of a classifier on n random inputs."""
    labels = torch.randint(0, classes, (n,))
    return Workload(name, build, torch.randn(n, *shape), labels, class_losses, autocast)


def tokens(
    name: str,
    n: int,
    length: int,
    vocabulary: int = 8000,
    *,
    width: int = 256,
    depth: int = 4,
    heads: int = 4,
    autocast: torch.dtype | None = None,
) -> Workload:
    """Return a workload of a transformer on n random sequences."""
    ids = torch.randint(0, vocabulary, (n, length + 1))
    build = lambda: Transformer(vocabulary, width, length, depth, heads)  # noqa: E731
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return Workload(name, build, inputs, targets, token_losses, autocast)


def gpt2(name: str, n: int, length: int = 128, vocabulary: int = 8000, **shape: int) -> Workload:
    """Return a workload of Hugging Face's GPT-2 on n random sequences."""
    drawn = tokens(name, n, length, vocabulary)
    shape = {"width": 256, "depth": 4, "heads": 4} | shape
    build = partial(hugging_face_gpt2, vocabulary, length=length, **shape)
    return replace(drawn, build=build)


# Each function gets the number of records, by default that of a step.
WORKLOADS: dict[str, Callable[..., Workload]] = {
    "MLP": lambda n=600: pictures("MLP", mlp, n, 784),
    "tanh CNN": lambda n=512: pictures("tanh CNN", papernot_mnist_cnn, n, 1, 28, 28),
    "VGG": lambda n=256: pictures("VGG", vgg, n, 3, 32, 32),
    "GPT": lambda n=16: tokens("GPT", n, 128),
    "ResNet": lambda n=64: pictures("ResNet", residual_network, n, 3, 32, 32),
}


def words(
    name: str,
    build: Callable[[], nn.Module],
    n: int,
    length: int,
    *,
    vocabulary: int = 2000,
    classes: int = 10,
) -> Workload:
    """Return a workload of a classifier of n random sequences."""
    ids = torch.randint(0, vocabulary, (n, length))
    return Workload(name, build, ids, torch.randint(0, classes, (n,)), class_losses)


def recurrent(layer: Callable[..., nn.Module], vocabulary: int = 100) -> Callable[[], nn.Module]:
    """Return how to make a classifier with a recurrent layer, 64 -> 128."""
    return lambda: Words(vocabulary, 64, 10, layer(64, 128, batch_first=True))


COMMON_WORKLOADS: dict[str, Callable[..., Workload]] = {
    "LSTM": lambda n=32: words("LSTM", recurrent(nn.LSTM), n, 64, vocabulary=100),
    "GRU": lambda n=32: words("GRU", recurrent(nn.GRU), n, 64, vocabulary=100),
    "char-LSTM": lambda n=800: words("char-LSTM", recurrent(nn.LSTM, 256), n, 15, vocabulary=256),
    "text mean": lambda n=64: words(
        "text mean", partial(Words, 10_000, 16, 2), n, 256, vocabulary=10_000, classes=2
    ),
    "Opacus's MNIST network": lambda n=64: pictures("Opacus's MNIST network", opacus_mnist, n, 1, 28, 28),
    "Opacus's CIFAR network": lambda n=128: pictures("Opacus's CIFAR network", opacus_cifar, n, 3, 32, 32),
    "ResNet-18": lambda n=32: pictures("ResNet-18", resnet18, n, 3, 64, 64),
    "ConvNeXt": lambda n=16: pictures("ConvNeXt", convnext, n, 3, 64, 64),
    "BERT with LoRA": lambda n=16: words("BERT with LoRA", bert_with_lora, n, 128, classes=2),
}
"""Models that people train, beside those of the first suite."""


def small_bert() -> nn.Module:
    """Return BERT with a head of two classes, 256 wide, with dropout of 0.1."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=2000,
        num_labels=2,
    )  # fmt: skip
    model: nn.Module = BertForSequenceClassification(config)
    return model.train()


def small_llama(*, lora: bool) -> nn.Module:
    """Return a Llama that is 256 wide: all weights trained, or adapters of rank 8 on all linear maps."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=2000, hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, use_cache=False,
    )  # fmt: skip
    model: nn.Module = LlamaForCausalLM(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, about itself
        if lora:
            adapters = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
            model = get_peft_model(model, adapters)
    return model.train()


def small_vit() -> nn.Module:
    """Return a ViT of transformers, 256 wide, for pictures of 64 x 64 in patches of 8 x 8."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, image_size=64,
        patch_size=8, num_labels=10,
    )  # fmt: skip
    model: nn.Module = ViTForImageClassification(config)
    return model.train()


def bert_base() -> nn.Module:
    """Return BERT-base with a head of two classes, with dropout of 0.1."""
    from transformers import BertConfig, BertForSequenceClassification

    model: nn.Module = BertForSequenceClassification(BertConfig(num_labels=2))
    return model.train()


def small_tokens(name: str, build: Callable[[], nn.Module], n: int) -> Workload:
    """Return a workload of a language model on n random sequences of 128 tokens."""
    return replace(tokens(name, n, 128, 2000), build=build)


LIBRARY_WORKLOADS: dict[str, Callable[..., Workload]] = {
    "GPT-2": lambda n=8: gpt2("GPT-2", n),
    "BERT": lambda n=16: words("BERT", small_bert, n, 128, classes=2),
    "Llama": lambda n=16: small_tokens("Llama", partial(small_llama, lora=False), n),
    "Llama with LoRA": lambda n=16: small_tokens("Llama with LoRA", partial(small_llama, lora=True), n),
    "ViT": lambda n=16: pictures("ViT", small_vit, n, 3, 64, 64),
    "ConvNeXt": COMMON_WORKLOADS["ConvNeXt"],
    "LSTM, 256 wide": lambda n=16: words(
        "LSTM, 256 wide", lambda: Words(2000, 256, 10, nn.LSTM(256, 256, batch_first=True)), n, 128
    ),
    "BERT-base": lambda n=8: words("BERT-base", bert_base, n, 64, vocabulary=30522, classes=2),
}
"""Models of transformers, peft and torch that are 256 wide, and BERT-base."""

JOBS: dict[str, Callable[..., Workload]] = WORKLOADS | {"GPT-2": LIBRARY_WORKLOADS["GPT-2"]}
"""The workloads of whole jobs."""


def narrow_gpt(depth: int) -> Callable[..., Workload]:
    """Return a transformer of width 64 on few tokens, whose operations cost less than their launches."""
    name = f"GPT, width 64, depth {depth}"
    return lambda n=8: tokens(name, n, 16, width=64, depth=depth)


OVERHEAD_WORKLOADS: dict[str, Callable[..., Workload]] = {
    f"GPT, width 64, depth {depth}": narrow_gpt(depth) for depth in (1, 6, 24)
} | {
    "MLP, weight norm": lambda n=512: pictures("MLP, weight norm", partial(weight_normed, True), n, 784),
    "MLP, weight norm by a hook": lambda n=512: pictures(
        "MLP, weight norm by a hook", partial(weight_normed, False), n, 784
    ),
}
"""Workloads whose cost is the number of operations, or weights that are computed in each step."""

_BF16 = torch.bfloat16


def gpt2_small(name: str, n: int) -> Workload:
    """Return a workload of GPT-2-small's shape on n sequences of 1,024 tokens."""
    return tokens(name, n, 1024, 50257, width=768, depth=12, heads=12, autocast=_BF16)


def resnet50_pictures(name: str, n: int) -> Workload:
    """Return a workload of ResNet-50 with GroupNorm on n pictures of 224 x 224."""
    return pictures(name, resnet50, n, 3, 224, 224, classes=1000, autocast=_BF16)


# Batches that fill a current GPU, and small ones, whose steps wait for the processor's launches.
GPU_WORKLOADS: dict[str, Callable[..., Workload]] = {
    "GPT-2 small": lambda: gpt2_small("GPT-2 small", 16),
    "ResNet-50": lambda: resnet50_pictures("ResNet-50", 128),
    "GPT-2 small, 4 records": lambda: gpt2_small("GPT-2 small, 4 records", 4),
    "ResNet-50, 32 records": lambda: resnet50_pictures("ResNet-50, 32 records", 32),
}

TINY: dict[str, Callable[..., Workload]] = {
    "MLP": lambda n=8: pictures("MLP", mlp, n, 784),  # as many as take the same libraries as many more
    "tanh CNN": lambda n=4: pictures("tanh CNN", papernot_mnist_cnn, n, 1, 28, 28),
    "VGG": lambda n=2: pictures("VGG", vgg, n, 3, 32, 32),
    "GPT": lambda n=2: tokens("GPT", n, 8, 50, width=32, depth=1),
    "ResNet": lambda n=2: pictures("ResNet", residual_network, n, 3, 32, 32),
    "GPT-2": lambda n=2: gpt2("GPT-2", n, 8, 50, width=32, depth=1),
    "GPT-2 small": lambda n=2: tokens("GPT-2 small", n, 8, 50, width=24, depth=2, heads=12, autocast=_BF16),
    "ResNet-50": lambda n=2: pictures(
        "ResNet-50", lambda: resnet50(32, (1, 1, 1, 1)), n, 3, 32, 32, autocast=_BF16
    ),
}
"""Tiny workloads of the same models, to test the benchmarks."""
TINY |= {name: TINY[name.split(",")[0]] for name in GPU_WORKLOADS}
TINY = {
    name: lambda n=2, make=make: make(n) for name, make in (COMMON_WORKLOADS | LIBRARY_WORKLOADS).items()
} | TINY
TINY |= {name: lambda n=2, make=make: make(n) for name, make in OVERHEAD_WORKLOADS.items()}


def make_workload(
    name: str, *, tiny: bool = False, device: str = "cpu", records: int | None = None
) -> Workload:
    """Return the workload of this name with fixed random inputs, of ``records`` records or its default."""
    torch.manual_seed(0)
    full = JOBS | OVERHEAD_WORKLOADS | COMMON_WORKLOADS | LIBRARY_WORKLOADS | GPU_WORKLOADS
    make = (TINY if tiny else full)[name]
    return moved(make() if records is None else make(records), device)


def moved(load: Workload, device: str) -> Workload:
    """Return the workload on another device."""
    return replace(load, inputs=load.inputs.to(device), targets=load.targets.to(device))
