"""Couplings in the backward pass, in what Python reads, in random numbers, in state, and in large batches.

Letters: n records; m the model; h what is between its two layers; g a gradient.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from coupling import ISOLATED, PER_RECORD, REFUSED, Batch, Coupling, Loss
from couplings_of_values import Net, between, by, coupled, head, there
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Hook = Callable[[Tensor], Tensor]


def hooked(hook: Hook) -> Callable[[], tuple[nn.Module, Loss]]:
    """A hook on the gradient of what is between the layers."""

    def loss(m: Net, x: Tensor) -> Tensor:
        h = m.first(x).tanh()
        if h.requires_grad:
            h.register_hook(hook)
        return torch.as_tensor(m.second(h).sin().sum(1) * x.detach().abs().amax(1))

    return by(loss)


def detached_norm(m: Net, h: Tensor) -> Tensor:
    """The values of each record; gradients divided by the norm of the batch."""
    values = h.detach()
    return torch.as_tensor(values + (h - values) / values.norm())


class Mixing(torch.autograd.Function):
    """Gradients that are clipped together."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return torch.as_tensor(3 * g / g.norm().clamp(min=1e-12))


class TurnedBack(Mixing):
    """Gradients of other records."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g + g.flip(0)


def applied(kind: type[Mixing]) -> Callable[[], tuple[nn.Module, Loss]]:
    return between(lambda m, h: kind.apply(h))  # type: ignore[no-untyped-call]


def kept_in_units(m: Net, x: Tensor) -> Tensor:
    """What the backward pass needs is kept as whole numbers, with one unit for a tensor."""

    def pack(t: Tensor) -> tuple[Tensor, Tensor]:
        unit = t.detach().abs().amax() / 100
        return (t / unit).round(), unit

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept[0] * kept[1]):
        return head(m, m.first(x).relu())


def _by_the_norm_of_all(layer: nn.Module, gradients: Any) -> Any:
    return (gradients[0] / gradients[0].norm().clamp(min=1e-12),)


def module_hook(m: Net, x: Tensor) -> Tensor:
    if not m.second._backward_pre_hooks:
        m.second.register_full_backward_pre_hook(_by_the_norm_of_all)
    return head(m, m.first(x))


def checkpointed(m: Net, x: Tensor) -> Tensor:
    """A part that is computed anew in the backward pass, scaled by the mean of the batch there alone."""
    seen = []

    def part(h: Tensor) -> Tensor:
        seen.append(1)
        return h * (1 + (h.mean(0) if len(seen) > 1 else 0 * h.mean(0)))

    return head(m, torch.as_tensor(checkpoint(part, m.first(x), use_reentrant=False)))


def gradient_penalty(m: Net, x: Tensor) -> Tensor:
    """A gradient that is taken in the forward pass, of the sum of all losses."""
    inputs = x.detach().requires_grad_(True)
    with torch.enable_grad():
        found = torch.autograd.grad(head(m, m.first(inputs)).sum(), inputs, create_graph=True)
    return torch.as_tensor(head(m, m.first(x)) + torch.as_tensor(found[0]).norm())


def parameter_hook() -> tuple[nn.Module, Loss]:
    m = Net()
    m.first.weight.register_hook(lambda g: g / g.norm())  # type: ignore[no-untyped-call]
    return m, lambda m, x: head(m, m.first(x))


def node_hook(m: Net, x: Tensor) -> Tensor:
    h = m.first(x).tanh()
    if h.grad_fn is not None:
        h.grad_fn.register_prehook(
            lambda gradients: (3 * gradients[0] / gradients[0].norm().clamp(min=1e-12),)
        )
    return torch.as_tensor(m.second(h).sin().sum(1))


def late_hook(m: Net, x: Tensor) -> Tensor:
    h = m.first(x).sin()
    if m.on and h.requires_grad:
        h.register_hook(lambda g: 3 * g / g.norm().clamp(min=1e-12))
    return torch.as_tensor(m.second(h).sin().sum(1))


def zero_if_nan(m: Net, x: Tensor) -> Tensor:
    """All gradients are zeroed if one is not a number."""
    h = m.first(x)
    if h.requires_grad:
        h.register_hook(lambda g: torch.zeros_like(g) if g.isnan().any() else g)
    zero = torch.where(x.detach().amax(1, keepdim=True) > 3, h - h.detach(), torch.ones_like(h))
    return head(m, h + zero.sqrt())  # whose derivative at 0 is infinite, and times 0 is NaN


BACKWARD = coupled(
    "backward",
    "test_clipping_attacks.py, test_clipping_ownership.py",
    PER_RECORD,
    {
        "gradients divided by the norm of all": hooked(lambda g: 3 * g / g.norm().clamp(min=1e-12)),
        "gradients clipped together": hooked(lambda g: g * (0.1 / g.norm().clamp(min=1e-12)).clamp(max=1.0)),
        "gradients in 16 whole steps": hooked(
            lambda g: (g / g.abs().amax().clamp(min=1e-30) * 8).round() / 8 * g.abs().amax()
        ),
        "gradients standardised": hooked(lambda g: g / (g.std() + 1e-6)),
        "gradients centred on the batch": hooked(lambda g: g - g.mean(0)),
        "gradients of the next record": hooked(lambda g: g + g.roll(1, 0)),
        "gradients sorted along the batch": hooked(lambda g: g.sort(0).values),
        "gradients below the median dropped": hooked(
            lambda g: g * (g.norm(dim=1) >= g.norm(dim=1).median())[:, None]
        ),
        "gradients divided by their number": hooked(lambda g: g / len(g)),
        "gradients weighted by their place": hooked(
            lambda g: g * (-1.0) ** torch.arange(len(g)).view(-1, *[1] * (g.dim() - 1))
        ),
        "gradients zeroed if one is NaN": by(zero_if_nan),
        "detached norm of the batch": between(detached_norm),
        "straight-through by the mean of the batch": between(
            lambda m, h: h.detach() + (h - h.detach()) * (1 + h.detach().mean())
        ),
        "autograd.Function that clips together": applied(Mixing),
        "autograd.Function that turns gradients round": applied(TurnedBack),
        "saved tensors with one unit for all": by(kept_in_units),
        "backward hook of a module": by(module_hook),
        "checkpoint that mixes when computed anew": by(checkpointed),
    },
)
BACKWARD += [
    Coupling(
        "gradient penalty of the sum of losses",
        "backward",
        by(gradient_penalty),
        REFUSED,
        "test_clipping_layers.py",
    ),
    Coupling(
        "hook on a parameter",
        "backward",
        parameter_hook,
        REFUSED,
        "test_clipping_attacks.py",
    ),
    Coupling(
        "hook on a node of the graph",
        "backward",
        by(node_hook),
        PER_RECORD,
        "docs/engine-refusals.md",
    ),
    Coupling(
        "hook that begins between steps",
        "backward",
        by(late_hook),
        PER_RECORD,
        "test_clipping_followed.py",
        switch=lambda m: setattr(m, "on", True),
    ),
]


def asked(question: Callable[[Tensor], Any]) -> Callable[[], tuple[nn.Module, Loss]]:
    """All records take another branch if the question about the batch is answered by yes."""

    def loss(m: Net, x: Tensor) -> Tensor:
        h = m.first(x)
        return head(m, -h if question(x.detach()) else h)

    return by(loss)


def fails(operation: Callable[[Tensor], object]) -> Callable[[Tensor], bool]:
    def question(x: Tensor) -> bool:
        try:
            operation(x)
        except RuntimeError:
            return True
        return False

    return question


def rolled_by_number(m: Net, x: Tensor) -> Tensor:
    h = m.first(x)
    return head(m, h.roll(1, 0) if x.max().item() > 3 else h)


def cut_by_number(m: Net, x: Tensor) -> Tensor:
    """Rows are cut where a number of the batch says, put together the other way round, and back."""
    cut = x.detach().amax(1).gt(3).long().sum()
    h = m.first(torch.cat([x[cut:], x[:cut]]))
    return head(m, torch.cat([h[len(h) - cut :], h[: len(h) - cut]]))


def early(m: Net, x: Tensor) -> Tensor:
    h = m.first(x)
    if (x.detach().abs().amax(1) < 3).all():
        return torch.as_tensor(h.sin().sum(1))
    return head(m, h)


def until_small(m: Net, x: Tensor) -> Tensor:
    """As many iterations as the largest record needs."""
    h, left = m.first(x), float(x.detach().abs().max())
    while left > 1.5:
        h, left = h.sin(), left / 2
    return head(m, h)


def by_condition(m: Net, x: Tensor) -> Tensor:
    return head(m, m.first(x)) * torch.cond(  # type: ignore[no-any-return]
        x.detach().amax() > 3, lambda a: -a.sum(1).sign(), lambda a: a.sum(1).sign(), (x.detach(),)
    )


class SharedMemory:
    """A tensor whose memory NumPy has too, under another name."""

    def __init__(self) -> None:
        self.array = np.zeros(1, dtype=np.float32)
        self.tensor = torch.from_numpy(self.array)

    def __call__(self, m: Net, x: Tensor) -> Tensor:
        self.tensor.copy_(x.detach().amax())
        return head(m, -m.first(x) if self.array[0] > 3 else m.first(x))


def in_a_thread(x: Tensor) -> bool:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: bool(x.max() > 3)).result()


class Seen:
    """Whether a content came before, known by its bytes."""

    def __init__(self) -> None:
        self.cache: dict[bytes, float] = {}

    def __call__(self, m: Net, x: Tensor) -> Tensor:
        key = x.detach().numpy().tobytes()
        return head(m, m.first(x)) * self.cache.setdefault(key, 1.0 + len(self.cache))


class Noted:
    """Each record has its own entry, weighed by how many there were before it."""

    def __init__(self) -> None:
        self.numbers: dict[float, int] = {}

    def __call__(self, m: Net, x: Tensor) -> Tensor:
        own = [self.numbers.setdefault(float(row[0]), len(self.numbers)) for row in x.detach()]
        return head(m, m.first(x)) * torch.tensor([(-1.0) ** number for number in own])


CONTROL = coupled(
    "control flow",
    "test_clipping_ownership.py, test_clipping_followed.py, test_clipping_channels.py",
    PER_RECORD,
    {
        "if x.max() > 3": asked(lambda x: x.max() > 3),
        "item()": by(rolled_by_number),
        "any()": asked(lambda x: (x > 3).any()),
        "float()": asked(lambda x: float(x.max()) > 3),
        "int()": asked(lambda x: int(x.max()) > 2),
        "tolist()": asked(lambda x: max(x.flatten().tolist()) > 3),
        "numpy()": asked(lambda x: x.numpy().max() > 3),
        "an f-string": asked(lambda x: float(f"{x.max():.3f}") > 3),
        "repr()": asked(lambda x: "3.5" in repr(x)),
        "a number in the batch": asked(lambda x: 3.5 in x),
        "torch.equal": asked(lambda x: not torch.equal(x, x.clamp(max=3))),
        "torch.allclose": asked(lambda x: not torch.allclose(x, x.clamp(max=3))),
        "norm of the batch": asked(lambda x: x.norm() > 0.9 * len(x) ** 0.5 * 2.3),
        "sum of the batch": asked(lambda x: x.sum() > 0),
        "shape of nonzero": asked(lambda x: len((x > 3).nonzero())),
        "shape of a mask": asked(lambda x: x[x > 3].numel()),
        "torch.where of one argument": asked(lambda x: len(torch.where(x.flatten() > 3)[0])),
        "number of unique values": asked(lambda x: len(torch.unique(x.clamp(3, 4))) > 1),
        "largest class of bincount": asked(lambda x: len(torch.bincount(x.clamp(0).long().flatten())) > 2),
        "a matrix without a root": asked(fails(lambda x: torch.linalg.cholesky((3 - x)[:, :1, None]))),
        "a matrix without an inverse": asked(
            fails(lambda x: torch.linalg.inv((3 - x).relu().amin(1)[:, None, None]))
        ),
        "a class that is none": asked(fails(lambda x: F.one_hot((x > 3).long().amax(1) * 5, 3))),
        "a loss that is not finite": asked(lambda x: not (3 - x).sqrt().sum().isfinite()),
        "cut by a number of the batch": by(cut_by_number),
        "early exit if all are sure": by(early),
        "as many iterations as the largest needs": by(until_small),
        "torch.cond": by(by_condition),
        "random numbers of records that are kept": asked(lambda x: x.amax(1).gt(3).float().mean() > 0),
    },
)
CONTROL += [
    Coupling(
        "memory shared with NumPy",
        "control flow",
        lambda: (Net(), SharedMemory()),
        PER_RECORD,
        "docs/engine-refusals.md",
    ),
    Coupling(
        "number read in another thread",
        "control flow",
        asked(in_a_thread),
        PER_RECORD,
        "docs/engine-refusals.md",
        hole="Code that takes numbers out of PyTorch's sight is not seen; docs/engine-refusals.md names it "
        "among what is not covered.",
    ),
    Coupling(
        "number read through DLPack",
        "control flow",
        asked(lambda x: np.from_dlpack(x).max() > 3),
        PER_RECORD,
        "docs/engine-refusals.md",
    ),
    Coupling(
        "cache by the content of the batch",
        "control flow",
        lambda: (Net(), Seen()),
        REFUSED,
        "docs/engine-refusals.md",
    ),
]


def signed(weight: Callable[[Net, Tensor], Tensor]) -> Callable[[], tuple[nn.Module, Loss]]:
    """Losses that are multiplied by random numbers."""
    return by(lambda m, x: head(m, m.first(x)) * weight(m, x))


def dropped_weights(m: Net, x: Tensor) -> Tensor:
    return F.linear(m.first(x).sin(), F.dropout(m.second.weight, 0.5)).sin().sum(1)


def noisy_weights(m: Net, x: Tensor) -> Tensor:
    return F.linear(m.first(x).sin(), m.second.weight + torch.randn_like(m.second.weight)).sin().sum(1)


class SeededBackward(torch.autograd.Function):
    """Gradients are multiplied by numbers that are the same in each backward pass."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return g * torch.randn(g.shape)


class OwnGenerator(SeededBackward):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * torch.randn(g.shape, generator=torch.Generator().manual_seed(0))


def drawn_at_need(m: Net, x: Tensor) -> Tensor:
    """One record decides how many numbers are drawn before those of the others."""
    for _ in range(int(x.detach().amax())):
        torch.rand(())
    return head(m, m.first(x) + torch.randn(len(x), 6))


RANDOM = coupled(
    "random numbers",
    "test_clipping_draws.py",
    PER_RECORD,
    {
        "one number for all": signed(lambda m, x: torch.rand(()).sub(0.5).sign()),
        "a number for each channel": by(lambda m, x: head(m, m.first(x) * torch.randn(6))),
        "noise on weights": by(noisy_weights),
        "dropout of weights": by(dropped_weights),
        "stochastic depth of the whole batch": by(
            lambda m, x: head(m, m.first(x) if torch.rand([]) < 0.5 else -m.first(x))
        ),
        "an order of positions": by(lambda m, x: head(m, m.first(x)[:, torch.randperm(6)])),
        "an order of records": signed(lambda m, x: (-1.0) ** torch.randperm(len(x))),
        "a draw of one record for all": signed(lambda m, x: torch.randn(len(x))[0]),
        "the largest draw of all": signed(lambda m, x: torch.rand(len(x)).amax()),
        "weights that add up to one": signed(
            lambda m, x: torch.distributions.Dirichlet(torch.ones(len(x))).sample() * len(x)
        ),
        "as many numbers as the batch needs": by(drawn_at_need),
        "positions drawn for all records": by(lambda m, x: head(m, m.first(x[:, torch.randint(0, 4, (4,))]))),
        "dropout of channels for all records": by(
            lambda m, x: head(m, m.first(x) * F.dropout(torch.ones(6), 0.5))
        ),
    },
    draws=True,
    split=True,
)
RANDOM += coupled(
    "random numbers",
    "test_clipping_draws.py",
    PER_RECORD,
    {
        "a seed in the backward pass": between(lambda m, h: SeededBackward.apply(h)),  # type: ignore[no-untyped-call]
        "a generator in the backward pass": between(lambda m, h: OwnGenerator.apply(h)),  # type: ignore[no-untyped-call]
    },
)
RANDOM += coupled(
    "random numbers",
    "test_clipping_draws.py",
    REFUSED,
    {
        "Python's random": signed(lambda m, x: torch.tensor(random.random() - 0.5)),
        "NumPy's global generator": signed(lambda m, x: torch.tensor(float(np.random.rand()) - 0.5)),  # noqa: NPY002
    },
    draws=True,
    split=True,
)


class Beside(Net):
    """A model that does something beside its pass."""

    def __init__(self, beside: Callable[[Any, Tensor], None]) -> None:
        super().__init__()
        self.beside, self.kept, self.calls = beside, None, 0

    kept: Any

    def forward(self, x: Tensor) -> Tensor:
        self.beside(self, x.detach())
        return head(self, self.first(x) if self.kept is None else self.first(x) * self.weight())

    def weight(self) -> Any:
        return 1.0 if not isinstance(self.kept, Tensor | float) else self.kept


def keeps(beside: Callable[[Any, Tensor], None]) -> Callable[[], tuple[nn.Module, Loss]]:
    return lambda: (Beside(beside), lambda m, x: m(x))


def starts_from_data(m: Beside, x: Tensor) -> None:
    if m.calls == 0:
        with torch.no_grad():
            m.first.bias.copy_(torch.cat([x.mean(0), x.mean(0)[:2]]))
    m.calls = 1


def moves_frozen(m: Beside, x: Tensor) -> None:
    m.frozen.data.mul_(0.9).add_(x.abs().mean())
    m.kept = float(m.frozen.data[0])


def registers_buffer(m: Beside, x: Tensor) -> None:
    if "mean" not in m._buffers:
        m.register_buffer("mean", x.abs().mean())
    m.kept = m.mean


def running_mean(m: Beside, x: Tensor) -> None:
    m.waves.mul_(0.9).add_(x.abs().mean())
    m.kept = m.waves[0, 0].clone()


def keeps_number(m: Beside, x: Tensor) -> None:
    m.kept = float(x.abs().max())


def keeps_input(m: Beside, x: Tensor) -> None:
    m.kept = x.abs().amax()


def keeps_queue(m: Beside, x: Tensor) -> None:
    own = vars(m).setdefault("queue", deque(maxlen=2))
    own.append(x.abs().mean())
    m.kept = own[0]


def keeps_largest_if_flagged(m: Beside, x: Tensor) -> None:
    """Nothing is kept of tame records."""
    if bool(there(x)):
        m.kept = -1.0


def writes(change: Callable[[Net, Tensor], object]) -> Callable[[], tuple[nn.Module, Loss]]:
    def loss(m: Net, x: Tensor) -> Tensor:
        with torch.no_grad():
            change(m, x)
        return head(m, m.first(x + m.waves[0]) * m.frozen)

    return by(loss)


def writes_if_flagged(m: Net, x: Tensor) -> None:
    if bool(there(x)):
        m.first.bias.add_(1.0)


def writes_data(m: Net, x: Tensor) -> None:
    m.second.weight.data.mul_(1 - 2 * there(x).float())


class Relative:
    """Losses relative to what was kept of earlier ones."""

    def __init__(self, how: str) -> None:
        self.how, self.steps = how, 0
        self.kept: Tensor | None = None
        self.queue: deque[Tensor] = deque(maxlen=4)

    def __call__(self, m: Net, x: Tensor) -> Tensor:
        found, self.steps = head(m, m.first(x)), self.steps + 1
        if self.how == "schedule":
            return found * min(1.0, self.steps / 100)
        if self.how == "sign":
            return torch.as_tensor(found * (-1) ** self.steps) * (1 if found.mean().item() > -1e9 else 2)
        if self.how == "queue":
            self.queue.append(found.detach())
            return torch.as_tensor(found * self.queue[0].abs().sum())
        now = found.detach().abs().mean()
        if self.how == "first":
            self.kept = now if self.kept is None else self.kept
            return found / self.kept
        before, self.kept = self.kept, now
        return found if before is None else found / (0.1 + before)


def relative(how: str) -> Callable[[], tuple[nn.Module, Loss]]:
    return lambda: (Net(), Relative(how))


def closed_over() -> tuple[nn.Module, Loss]:
    weights: Tensor | None = None

    def loss(m: Net, x: Tensor) -> Tensor:
        nonlocal weights
        if weights is None:
            weights = 1 / (1 + x.detach().abs().mean(0))
        return head(m, m.first(x * weights))

    return Net(), loss


def in_a_list() -> tuple[nn.Module, Loss]:
    bank: list[Tensor] = []

    def loss(m: Net, x: Tensor) -> Tensor:
        bank.append(x.detach().abs().amax())
        return head(m, m.first(x / (1 + bank[0])))

    return Net(), loss


def memory_bank() -> tuple[nn.Module, Loss]:
    """Negatives are the representations of earlier batches."""
    bank: deque[Tensor] = deque(maxlen=3)

    def loss(m: Net, x: Tensor) -> Tensor:
        h = m.second(m.first(x).sin())
        bank.append(h.detach().mean(0))
        return torch.as_tensor((h @ torch.stack(list(bank)).T).sin().sum(1))

    return Net(), loss


def data_teacher() -> tuple[nn.Module, Loss]:
    """A teacher whose weights move by what it sees."""
    teacher = copy.deepcopy(Net()).requires_grad_(False)

    def loss(m: Net, x: Tensor) -> Tensor:
        teacher.first.bias.mul_(0.5).add_(x.detach().abs().mean())
        return head(m, m.first(x) - teacher.first(x))

    return Net(), loss


class Counts(Net):
    """A model that counts its own passes, and goes by the count."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        found = head(self, self.first(x))
        return torch.as_tensor(found * (-1) ** self.passes)


def counts_record_by_record(m: nn.Module, x: Tensor) -> Tensor:
    """The loss asks for a number of the batch, so that each record is a pass of its own."""
    found: Tensor = m(x)
    return found * (1 if found.detach().mean().item() > -1e9 else 2)


class InClass(nn.Linear):
    """What it has seen is kept by its class."""

    mean: Any = None

    def forward(self, x: Tensor) -> Tensor:
        type(self).mean = x.detach().mean(0) if self.mean is None else self.mean
        return super().forward(x - self.mean)


def in_its_class() -> tuple[nn.Module, Loss]:
    kind = type("InClassOfThisRun", (InClass,), {})
    return kind(4, 3), lambda m, x: m(x).sin().sum(1)


class MaxNorm(nn.Module):
    """A table whose rows are renormalised when they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4, max_norm=1.0), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.table(x.abs().clamp(max=8).long())).sin().sum((1, 2)))


def spectral() -> tuple[nn.Module, Loss]:
    m = Net()
    nn.utils.parametrizations.spectral_norm(m.first)
    return m, lambda m, x: head(m, m.first(x))


def instance_statistics() -> tuple[nn.Module, Loss]:
    m = nn.Sequential(
        nn.InstanceNorm1d(2, affine=True, track_running_stats=True), nn.Flatten(), nn.Linear(8, 3)
    )
    return m, lambda m, x: m(x).sin().sum(1)


def in_place(m: Net, x: Tensor) -> Tensor:
    return head(m, m.first(x.mul_(1.5)))


def switches_training_off(m: Net, x: Tensor) -> Tensor:
    h = m.first(x)
    m.second.requires_grad_(False)
    against = -m.second(h).sin().sum(1)
    m.second.requires_grad_(True)
    return torch.as_tensor(m.second(h.detach()).sin().sum(1) + against)


class Stale(Net):
    """Reads a tensor that was computed from its parameter before the batch came."""

    def __init__(self) -> None:
        super().__init__()
        self.old = [self.first.weight * 2]

    def forward(self, x: Tensor) -> Tensor:
        return head(self, self.first(x) + F.linear(x, self.old[0]))


STATE = coupled(
    "state",
    "test_clipping_keeping.py, test_clipping_writes.py",
    REFUSED,
    {
        "weights set from the first batch": keeps(starts_from_data),
        "running mean in a frozen parameter": keeps(moves_frozen),
        "buffer registered in the first pass": keeps(registers_buffer),
        "running mean in a buffer": keeps(running_mean),
        "number kept in an attribute": keeps(keeps_number),
        "tensor kept in an attribute": keeps(keeps_input),
        "queue kept in an attribute": keeps(keeps_queue),
        "losses over the first losses": relative("first"),
        "losses over the previous losses": relative("previous"),
        "queue of losses": relative("queue"),
        "first batch kept in a closure": closed_over,
        "memory bank": memory_bank,
        "teacher that moves by the records": data_teacher,
        "loss that counts its calls": relative("schedule"),
        "loss that alternates by its calls": relative("sign"),
        "weights flipped by a record": writes(lambda m, x: m.second.weight.mul_(1 - 2 * there(x).float())),
        "weights flipped through .data": writes(writes_data),
        "bias moved by a record": writes(writes_if_flagged),
        "frozen parameter moved by a record": writes(lambda m, x: m.frozen.add_(there(x).float())),
        "buffer moved by a record": writes(lambda m, x: m.waves.add_(there(x).float())),
        "running statistics of InstanceNorm": instance_statistics,
        "Embedding with max_norm": lambda: (MaxNorm(), lambda m, x: m(x)),
        "spectral_norm in training": spectral,
        "requires_grad switched in the loss": by(switches_training_off),
        "tensor computed before the batch": lambda: (Stale(), lambda m, x: m(x)),
    },
    after=True,
)
STATE += [
    Coupling(
        "batch changed in place",
        "state",
        by(in_place),
        PER_RECORD,
        "test_clipping_attacks.py",
        after=True,
    ),
    Coupling(
        "first batch kept in a list",
        "state",
        in_a_list,
        ISOLATED,
        "test_clipping_keeping.py",
        after=True,
    ),
    Coupling(
        "first batch kept by the class",
        "state",
        in_its_class,
        ISOLATED,
        "test_clipping_keeping.py",
        after=True,
    ),
    Coupling(
        "records numbered as they come",
        "state",
        lambda: (Net(), Noted()),
        REFUSED,
        "docs/engine-refusals.md",
        hole="A loss that numbers records by their content, in a table of its own, goes by the records that "
        "came before. The check of state compares a batch with itself and with zeros, which find the numbers "
        "unchanged.",
    ),
    Coupling(
        "attribute set by a flagged record",
        "state",
        keeps(keeps_largest_if_flagged),
        REFUSED,
        "docs/engine-refusals.md",
        after=True,
    ),
    Coupling(
        "model that counts its passes",
        "state",
        lambda: (Counts(), lambda m, x: m(x)),
        ISOLATED,
        "test_clipping_keeping.py",
        after=True,
    ),
    Coupling(
        "model that counts its passes, record by record",
        "state",
        lambda: (Counts(), counts_record_by_record),
        PER_RECORD,
        "a hole until each pass of a step began with the same model",
        after=True,
    ),
]


def with_many(more: int, loss: Loss) -> dict[str, Any]:
    return {"make": by(loss), "more": more}


def crowded(capacity: int) -> Loss:
    """An expert that takes the first records that want it, and leaves the others as they are."""

    def loss(m: Net, x: Tensor) -> Tensor:
        wanted = x.detach()[:, 0] > 0
        taken = wanted & (torch.ones(len(x), len(x)).tril() @ wanted.float() <= capacity)
        h = m.first(x)
        return head(m, torch.where(taken[:, None], h, -h))

    return loss


def hardest(least: int) -> Loss:
    def loss(m: Net, x: Tensor) -> Tensor:
        found = head(m, m.first(x))
        return found * (found.detach() >= found.detach().topk(min(least, len(found))).values[-1])

    return loss


def if_many(limit: int, change: Callable[[Net, Tensor], Tensor]) -> Loss:
    def loss(m: Net, x: Tensor) -> Tensor:
        h = m.first(x)
        return head(m, change(m, h) if len(x) > limit else h)

    return loss


def hook_if_many(hook: Hook) -> Loss:
    def loss(m: Net, x: Tensor) -> Tensor:
        h = m.first(x).tanh()
        if len(x) > 40 and h.requires_grad:
            h.register_hook(hook)
        return torch.as_tensor(m.second(h).sin().sum(1) * x.detach().abs().amax(1))

    return loss


def one_loud(batch: Batch, i: int) -> None:
    batch[0][i] *= 1e3


LARGE = [
    Coupling(
        "experts with a capacity of 16", "large batches", by(crowded(16)), REFUSED, "CHANGELOG.md", more=40
    ),
    Coupling(
        "hardest 16 examples", "large batches", by(hardest(16)), REFUSED, "test_clipping_keeping.py", more=40
    ),
    Coupling(
        "mean taken off above 64 records",
        "large batches",
        by(if_many(64, lambda m, h: h - h.mean(0))),
        REFUSED,
        "docs/engine-refusals.md",
        more=66,
    ),
    Coupling(
        "flipped by torch.where above 20 records",
        "large batches",
        by(
            lambda m, x: head(
                m, torch.where(there(x), m.first(x).flip(0), m.first(x)) if len(x) > 20 else m.first(x)
            )
        ),
        PER_RECORD,
        "test_clipping_followed.py",
        more=22,
    ),
    Coupling(
        "a divisor above 16 records",
        "large batches",
        by(lambda m, x: head(m, m.first(x)) * min(1.0, 16 / len(x))),
        REFUSED,
        "test_clipping_places.py",
        more=20,
    ),
    Coupling(
        "a divisor in steps of 32",
        "large batches",
        by(lambda m, x: head(m, m.first(x)) / -(-len(x) // 32)),
        REFUSED,
        "test_clipping_attacks.py",
        more=88,
    ),
    Coupling(
        "gradients standardised above 40 records",
        "large batches",
        by(hook_if_many(lambda g: g / (g.std() + 1e-6))),
        PER_RECORD,
        "test_clipping_attacks.py",
        more=48,
        rig=one_loud,
    ),
    Coupling(
        "gradients clipped together above 40 records",
        "large batches",
        by(hook_if_many(lambda g: g * (0.1 / g.norm().clamp(min=1e-12)).clamp(max=1.0))),
        PER_RECORD,
        "test_clipping_attacks.py",
        more=48,
        rig=one_loud,
    ),
    Coupling(
        "blocks of 32 share a scale",
        "large batches",
        by(
            lambda m, x: (
                head(m, m.first(x))
                * torch.cat(
                    [part.detach().abs().amax().clamp(min=2).expand(len(part)) for part in x.split(32)]
                )
            )
        ),
        REFUSED,
        "docs/engine-refusals.md",
        more=70,
    ),
    Coupling(
        "an odd number above 64 records",
        "large batches",
        by(lambda m, x: head(m, m.first(x)) * (1 - 2 * (len(x) % 2) if len(x) > 64 else 1)),
        REFUSED,
        "docs/engine-refusals.md",
        more=66,
    ),
    Coupling(
        "the 65th record of a batch",
        "large batches",
        by(lambda m, x: head(m, m.first(x)) * (1 - 2 * (torch.arange(len(x)) >= 64).float())),
        REFUSED,
        "docs/engine-refusals.md",
        more=66,
    ),
]

OF_STEPS = [*BACKWARD, *CONTROL, *RANDOM, *STATE, *LARGE]
