"""The five workloads of the step benchmark: models, inputs and losses, as other libraries measure them.

Inputs are N(0, 1), labels and tokens uniform, weights as torch initialises them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.models import papernot_mnist_cnn

__all__ = ["WORKLOADS", "Transformer", "Workload", "make_workload"]


class Block(nn.Module):
    """A pre-norm transformer block with its own attention from linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, T, d) to (n, T, d)."""
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Blocks over tokens, predicting the next of each; the head is its own matrix, without a bias."""

    def __init__(self, vocabulary: int = 8000, width: int = 256, length: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """(n, T) tokens to (n, T, vocabulary) logits."""
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids).contiguous()
        logits: Tensor = self.head(self.norm(self.blocks(self.tokens(ids) + self.places(places))))
        return logits


class Residual(nn.Module):
    """Two 3x3 convolutions with GroupNorm, and the input, by a bare 1x1 convolution where shapes change."""

    def __init__(self, C: int, P: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(C, P, 3, stride, 1, bias=False), nn.GroupNorm(8, P), nn.ReLU(),
            nn.Conv2d(P, P, 3, 1, 1, bias=False), nn.GroupNorm(8, P),
        )  # fmt: skip
        same = stride == 1 and C == P
        self.skip = nn.Identity() if same else nn.Conv2d(C, P, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, h, w) to (n, P, h / stride, w / stride)."""
        return torch.relu(self.body(x) + self.skip(x))


def vgg() -> nn.Module:
    """Three pairs of 3x3 convolutions with tanh, max-pooling after each pair, two linear layers."""
    layers: list[nn.Module] = []
    for C, P in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(C, P, 3, padding=1), nn.Tanh(), nn.Conv2d(P, P, 3, padding=1), nn.Tanh()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10))


def residual_network() -> nn.Module:
    """A small ResNet with GroupNorm(8)."""
    shapes = ((32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1))
    first = (nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.GroupNorm(8, 32), nn.ReLU())
    last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    return nn.Sequential(*first, *(Residual(*shape) for shape in shapes), *last)


def mlp() -> nn.Module:
    """784-1000-10."""
    return nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))


def token_loss(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over the T tokens of each record: (n,)."""
    return F.cross_entropy(model(ids).transpose(1, 2), targets, reduction="none").mean(1)


def class_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy per record: (n,)."""
    return F.cross_entropy(model(x), y, reduction="none")


@dataclass(frozen=True)
class Workload:
    """A model with a batch of records and the loss of each."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Tensor
    targets: Tensor
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]

    @property
    def batch(self) -> int:
        """Records per step."""
        return len(self.inputs)


def pictures(name: str, make: Callable[[], nn.Module], n: int, *shape: int) -> Workload:
    """A classifier of ten classes on n random inputs."""
    return Workload(name, make, torch.randn(n, *shape), torch.randint(0, 10, (n,)), class_loss)


def tokens(name: str, n: int, length: int, vocabulary: int = 8000, depth: int = 4) -> Workload:
    """A transformer on n random sequences."""
    ids = torch.randint(0, vocabulary, (n, length + 1))
    make = lambda: Transformer(vocabulary, length=length, depth=depth)  # noqa: E731
    return Workload(name, make, ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), token_loss)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "MLP": lambda: pictures("MLP", mlp, 600, 784),
    "tanh CNN": lambda: pictures("tanh CNN", papernot_mnist_cnn, 512, 1, 28, 28),
    "VGG": lambda: pictures("VGG", vgg, 256, 3, 32, 32),
    "GPT": lambda: tokens("GPT", 16, 128),
    "ResNet": lambda: pictures("ResNet", residual_network, 64, 3, 32, 32),
}


def make_workload(name: str) -> Workload:
    """The workload of this name, with fixed random inputs."""
    torch.manual_seed(0)
    return WORKLOADS[name]()
