"""Couplings in the backward pass, in what Python reads, in random numbers, in state, and in large batches.

Letters: n records; m the model; h what is between its two layers; g a gradient.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from coupling import ISOLATED, REFUSED, Batch, Coupling
from couplings_of_values import (
    Make,
    Net,
    before,
    between,
    by,
    coupled,
    hardest,
    head,
    switched_on,
    there,
    weighted,
)
from oracles import Change, Forward, Loss, Trained, custom
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Hook = Change


def hooked(hook: Hook, above: int = 0) -> Make:
    """Add a hook to the gradient between the layers, in batches of more than a number of records."""

    def loss(m: Net, x: Tensor) -> Any:
        h = m.first(x).tanh()
        if h.requires_grad and len(x) > above:
            h.register_hook(hook)
        return m.second(h).sin().sum(1) * x.detach().abs().amax(1)

    return by(loss)


def normalised(g: Tensor) -> Any:
    return 3 * g / g.norm().clamp(min=1e-12)


def clipped_together(g: Tensor) -> Any:
    return g * (0.1 / g.norm().clamp(min=1e-12)).clamp(max=1.0)


def detached_norm(m: Net, h: Tensor) -> Any:
    """The values of each record; gradients divided by the norm of the batch."""
    values = h.detach()
    return values + (h - values) / values.norm()


def seeded(ctx: Any, g: Tensor) -> Tensor:
    """Gradients are multiplied by numbers that are the same in each backward pass."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return g * torch.randn(g.shape)


def by_own_generator(ctx: Any, g: Tensor) -> Tensor:
    return g * torch.randn(g.shape, generator=torch.Generator().manual_seed(0))


def backwards(backward: Forward) -> Any:
    """The identity, with a backward pass of its own."""
    return custom("Backwards", lambda ctx, h: h.clone(), backward)


def applied(backward: Forward) -> Make:
    return between(lambda m, h: backwards(backward)(h))


def kept_in_units(m: Net, x: Tensor) -> Tensor:
    """Store tensors for the backward pass as whole numbers, with one unit for each tensor."""

    def pack(t: Tensor) -> tuple[Tensor, Tensor]:
        unit = t.detach().abs().amax() / 100
        return (t / unit).round(), unit

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept[0] * kept[1]):
        return head(m, m.first(x).relu())


def _of_all(layer: nn.Module, gradients: Any) -> Any:
    return (normalised(gradients[0]),)


def module_hook(m: Net, x: Tensor) -> Tensor:
    if not m.second._backward_pre_hooks:
        m.second.register_full_backward_pre_hook(_of_all)
    return head(m, m.first(x))


def checkpointed(m: Net, x: Tensor) -> Tensor:
    """A part that is computed anew in the backward pass, scaled by the mean of the batch there alone."""
    seen = []

    def part(h: Tensor) -> Tensor:
        seen.append(1)
        return h * (1 + (h.mean(0) if len(seen) > 1 else 0 * h.mean(0)))

    return head(m, torch.as_tensor(checkpoint(part, m.first(x), use_reentrant=False)))


def gradient_penalty(m: Net, x: Tensor) -> Any:
    """A gradient that is taken in the forward pass, of the sum of all losses."""
    inputs = x.detach().requires_grad_(True)
    with torch.enable_grad():
        found = torch.autograd.grad(head(m, m.first(inputs)).sum(), inputs, create_graph=True)
    return head(m, m.first(x)) + torch.as_tensor(found[0]).norm()


def parameter_hook() -> Trained:
    m = Net()
    m.first.weight.register_hook(lambda g: g / g.norm())  # type: ignore[no-untyped-call]
    return m, lambda m, x: head(m, m.first(x))


def node_hook(m: Net, x: Tensor) -> Any:
    h = m.first(x).tanh()
    if h.grad_fn is not None:
        h.grad_fn.register_prehook(lambda gradients: (normalised(gradients[0]),))
    return m.second(h).sin().sum(1)


def late_hook(m: Net, x: Tensor) -> Any:
    h = m.first(x).sin()
    if m.on and h.requires_grad:
        h.register_hook(normalised)
    return m.second(h).sin().sum(1)


def zero_if_nan(m: Net, x: Tensor) -> Tensor:
    """All gradients are zeroed if one is not a number."""
    h = m.first(x)
    if h.requires_grad:
        h.register_hook(lambda g: torch.zeros_like(g) if g.isnan().any() else g)
    zero = torch.where(x.detach().amax(1, keepdim=True) > 3, h - h.detach(), torch.ones_like(h))
    return head(m, h + zero.sqrt())  # whose derivative at 0 is infinite, and times 0 is NaN


BACKWARD = coupled(
    "backward",
    REFUSED,
    {
        "gradients zeroed if one is NaN": by(zero_if_nan),
        "saved tensors with one unit for all": by(kept_in_units),
        "backward hook of a module": by(module_hook),
        "hook on a node of the graph": by(node_hook),
    },
) + coupled(
    "backward",
    ISOLATED,
    {
        "gradients divided by the norm of all": hooked(normalised),
        "gradients clipped together": hooked(clipped_together),
        "gradients standardised": hooked(lambda g: g / (g.std() + 1e-6)),
        "gradients of the next record": hooked(lambda g: g + g.roll(1, 0)),
        "each record's gradient by its own norm": hooked(lambda g: g / (1 + g.norm(dim=1, keepdim=True))),
        "autograd.Function that divides by the norm of all": applied(lambda ctx, g: normalised(g)),
        "autograd.Function that turns gradients round": applied(lambda ctx, g: g + g.flip(0)),
        "detached norm of the batch": between(detached_norm),
        "straight-through by the mean of the batch": between(
            lambda m, h: h.detach() + (h - h.detach()) * (1 + h.detach().mean())
        ),
        "checkpoint that mixes when computed anew": by(checkpointed),
    },
)
BACKWARD += coupled(
    "backward",
    REFUSED,
    {"gradient penalty of the sum of losses": by(gradient_penalty), "hook on a parameter": parameter_hook},
)
BACKWARD += [
    Coupling("hook that begins between steps", "backward", by(late_hook), ISOLATED, switch=switched_on)
]


def asked(question: Callable[[Tensor], Any]) -> Make:
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


def early(m: Net, x: Tensor) -> Any:
    h = m.first(x)
    if (x.detach().abs().amax(1) < 3).all():
        return h.sin().sum(1)
    return head(m, h)


def until_small(m: Net, x: Tensor) -> Tensor:
    """As many iterations as the largest record needs."""
    h, left = m.first(x), float(x.detach().abs().max())
    while left > 1.5:
        h, left = h.sin(), left / 2
    return head(m, h)


def by_condition(m: Net, x: Tensor) -> Any:
    return head(m, m.first(x)) * torch.cond(
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
    ISOLATED,
    {
        "a class that is none": asked(fails(lambda x: F.one_hot((x > 3).long().amax(1) * 5, 3))),
    },
) + coupled(
    "control flow",
    REFUSED,
    {
        "numpy()": asked(lambda x: x.numpy().max() > 3),
        "an f-string": asked(lambda x: float(f"{x.max():.3f}") > 3),
        "repr()": asked(lambda x: "3.5" in repr(x)),
        "shape of nonzero": asked(lambda x: len((x > 3).nonzero())),
        "shape of a mask": asked(lambda x: x[x > 3].numel()),
        "torch.where of one argument": asked(lambda x: len(torch.where(x.flatten() > 3)[0])),
        "number of unique values": asked(lambda x: len(torch.unique(x.clamp(3, 4))) > 1),
        "largest class of bincount": asked(lambda x: len(torch.bincount(x.clamp(0).long().flatten())) > 2),
        "cut by a number of the batch": by(cut_by_number),
        "torch.cond": by(by_condition),
        "memory shared with NumPy": lambda: (Net(), SharedMemory()),
        "number read in another thread": asked(in_a_thread),
        "number read through DLPack": asked(lambda x: np.from_dlpack(x).max() > 3),
        "cache by the content of the batch": lambda: (Net(), Seen()),
    },
)
CONTROL += coupled(
    "control flow",
    REFUSED,
    {
        "early exit if all are sure": by(early),
        "a loss that is not finite": asked(lambda x: not (3 - x).sqrt().sum().isfinite()),
        "torch.allclose": asked(lambda x: not torch.allclose(x, x.clamp(max=3))),
        "torch.equal": asked(lambda x: not torch.equal(x, x.clamp(max=3))),
        "a number in the batch": asked(lambda x: 3.5 in x),
        "tolist()": asked(lambda x: max(x.flatten().tolist()) > 3),
        "int()": asked(lambda x: int(x.max()) > 2),
        "float()": asked(lambda x: float(x.max()) > 3),
        "any()": asked(lambda x: (x > 3).any()),
        "item()": by(rolled_by_number),
        "if x.max() > 3": asked(lambda x: x.max() > 3),
        "norm of the batch": asked(lambda x: x.norm() > 0.9 * len(x) ** 0.5 * 2.3),
        "sum of the batch": asked(lambda x: x.sum() > 0),
        "a matrix without a root": asked(fails(lambda x: torch.linalg.cholesky((3 - x)[:, :1, None]))),
        "a matrix without an inverse": asked(
            fails(lambda x: torch.linalg.inv((3 - x).relu().amin(1)[:, None, None]))
        ),
        "as many iterations as the largest needs": by(until_small),
    },
)


def of_weights(change: Change) -> Make:
    return by(lambda m, x: F.linear(m.first(x).sin(), change(m.second.weight)).sin().sum(1))


def drawn_at_need(m: Net, x: Tensor) -> Tensor:
    """One record decides how many numbers are drawn before those of the others."""
    for _ in range(int(x.detach().amax())):
        torch.rand(())
    return head(m, m.first(x) + torch.randn(len(x), 6))


RANDOM = coupled(
    "random numbers",
    ISOLATED,
    {
        "one number for all": weighted(lambda x: torch.rand(()).sub(0.5).sign()),
        "a number for each channel": between(lambda m, h: h * torch.randn(6)),
        "noise on weights": of_weights(lambda w: w + torch.randn_like(w)),
        "dropout of weights": of_weights(lambda w: F.dropout(w, 0.5)),
        "an order of positions": between(lambda m, h: h[:, torch.randperm(6)]),
        "stochastic depth of the whole batch": between(lambda m, h: h if torch.rand([]) < 0.5 else -h),
        "a draw of one record for all": weighted(lambda x: torch.randn(len(x))[0]),
        "the largest draw of all": weighted(lambda x: torch.rand(len(x)).amax()),
        "positions drawn for all records": before(lambda m, x: x[:, torch.randint(0, 4, (4,))]),
        "dropout of channels for all records": between(lambda m, h: h * F.dropout(torch.ones(6), 0.5)),
    },
    draws=True,
    split=True,
) + coupled(
    "random numbers",
    REFUSED,
    {
        "as many numbers as the batch needs": by(drawn_at_need),
        "an order of records": weighted(lambda x: (-1.0) ** torch.randperm(len(x))),
        "weights that add up to one": weighted(
            lambda x: torch.distributions.Dirichlet(torch.ones(len(x))).sample() * len(x)
        ),
        "Python's random": weighted(lambda x: torch.tensor(random.random() - 0.5)),
        "NumPy's global generator": weighted(lambda x: torch.tensor(float(np.random.rand()) - 0.5)),  # noqa: NPY002
    },
    draws=True,
    split=True,
)
RANDOM += coupled(
    "random numbers",
    REFUSED,
    {
        "a seed in the backward pass": applied(seeded),
        "a generator in the backward pass": applied(by_own_generator),
    },
)


class WithSideEffect(Net):
    """A model with a side effect in its forward pass."""

    def __init__(self, side_effect: Callable[[Any, Tensor], None]) -> None:
        super().__init__()
        self.side_effect, self.kept, self.calls = side_effect, None, 0

    kept: Any

    def forward(self, x: Tensor) -> Tensor:
        self.side_effect(self, x.detach())
        return head(self, self.first(x) if self.kept is None else self.first(x) * self.weight())

    def weight(self) -> Any:
        return 1.0 if not isinstance(self.kept, Tensor | float) else self.kept


def keeps(side_effect: Callable[[Any, Tensor], None]) -> Make:
    return lambda: (WithSideEffect(side_effect), lambda m, x: m(x))


def starts_from_data(m: WithSideEffect, x: Tensor) -> None:
    if m.calls == 0:
        with torch.no_grad():
            m.first.bias.copy_(torch.cat([x.mean(0), x.mean(0)[:2]]))
    m.calls = 1


def moves_frozen(m: WithSideEffect, x: Tensor) -> None:
    m.frozen.data.mul_(0.9).add_(x.abs().mean())
    m.kept = float(m.frozen.data[0])


def registers_buffer(m: WithSideEffect, x: Tensor) -> None:
    if "mean" not in m._buffers:
        m.register_buffer("mean", x.abs().mean())
    m.kept = m.mean


def running_mean(m: WithSideEffect, x: Tensor) -> None:
    m.waves.mul_(0.9).add_(x.abs().mean())
    m.kept = m.waves[0, 0].clone()


def keeps_number(m: WithSideEffect, x: Tensor) -> None:
    m.kept = float(x.abs().max())


def keeps_input(m: WithSideEffect, x: Tensor) -> None:
    m.kept = x.abs().amax()


def keeps_queue(m: WithSideEffect, x: Tensor) -> None:
    own = vars(m).setdefault("queue", deque(maxlen=2))
    own.append(x.abs().mean())
    m.kept = own[0]


def keeps_largest_if_flagged(m: WithSideEffect, x: Tensor) -> None:
    """Nothing is kept of tame records."""
    if bool(there(x)):
        m.kept = -1.0


def writes(change: Callable[[Net, Tensor], object]) -> Make:
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


def stateful(loss: Callable[[Net, Tensor, Any], Any]) -> Make:
    """A loss with places to keep what it likes."""

    def make() -> Trained:
        s = SimpleNamespace(calls=0, kept=None, bank=deque(maxlen=3), teacher=Net().requires_grad_(False))
        return Net(), lambda m, x: loss(m, x, s)

    return make


def by_calls(m: Net, x: Tensor, s: Any) -> Any:
    s.calls += 1
    return head(m, m.first(x)) * min(1.0, s.calls / 100)


def alternating(m: Net, x: Tensor, s: Any) -> Any:
    s.calls += 1
    found = head(m, m.first(x))
    return found * (-1) ** s.calls * (1 if found.mean().item() > -1e9 else 2)


def over_the_first_of_three(m: Net, x: Tensor, s: Any) -> Any:
    found = head(m, m.first(x))
    s.bank.append(found.detach())
    return found * s.bank[0].abs().sum()


def over_the_first(m: Net, x: Tensor, s: Any) -> Any:
    found = head(m, m.first(x))
    s.kept = found.detach().abs().mean() if s.kept is None else s.kept
    return found / s.kept


def over_the_previous(m: Net, x: Tensor, s: Any) -> Any:
    found = head(m, m.first(x))
    before, s.kept = s.kept, found.detach().abs().mean()
    return found if before is None else found / (0.1 + before)


def over_the_first_records(m: Net, x: Tensor, s: Any) -> Any:
    s.kept = 1 / (1 + x.detach().abs().mean(0)) if s.kept is None else s.kept
    return head(m, m.first(x * s.kept))


def over_the_largest(m: Net, x: Tensor, s: Any) -> Any:
    s.kept = s.kept or []
    s.kept.append(x.detach().abs().amax())
    return head(m, m.first(x / (1 + s.kept[0])))


def memory_bank(m: Net, x: Tensor, s: Any) -> Any:
    """Negatives are the representations of earlier batches."""
    h = m.second(m.first(x).sin())
    s.bank.append(h.detach().mean(0))
    return (h @ torch.stack(list(s.bank)).T).sin().sum(1)


def data_teacher(m: Net, x: Tensor, s: Any) -> Any:
    """A teacher whose weights move by what it sees."""
    s.teacher.first.bias.mul_(0.5).add_(x.detach().abs().mean())
    return head(m, m.first(x) - s.teacher.first(x))


class Counts(Net):
    """A model that counts its own passes, and goes by the count."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, x: Tensor) -> Any:
        self.passes += 1
        found = head(self, self.first(x))
        return found * (-1) ** self.passes


def counts_record_by_record(m: nn.Module, x: Tensor) -> Tensor:
    """The loss reads a number of the batch, so each record takes a separate pass."""
    found: Tensor = m(x)
    return found * (1 if found.detach().mean().item() > -1e9 else 2)


class InClass(nn.Linear):
    """A model whose class stores values of earlier batches."""

    mean: Any = None

    def forward(self, x: Tensor) -> Tensor:
        type(self).mean = x.detach().mean(0) if self.mean is None else self.mean
        return super().forward(x - self.mean)


def in_its_class() -> Trained:
    kind = type("InClassOfThisRun", (InClass,), {})
    return kind(4, 3), lambda m, x: m(x).sin().sum(1)


def max_norm() -> Trained:
    """A table whose rows are renormalised when they are read."""
    m = nn.Sequential(nn.Embedding(9, 4, max_norm=1.0), nn.Linear(4, 3))
    return m, lambda m, x: m(x.abs().clamp(max=8).long()).sin().sum((1, 2))


def spectral() -> Trained:
    m = Net()
    nn.utils.parametrizations.spectral_norm(m.first)
    return m, lambda m, x: head(m, m.first(x))


def instance_statistics() -> Trained:
    m = nn.Sequential(
        nn.InstanceNorm1d(2, affine=True, track_running_stats=True), nn.Flatten(), nn.Linear(8, 3)
    )
    return m, lambda m, x: m(x).sin().sum(1)


def switches_training_off(m: Net, x: Tensor) -> Any:
    h = m.first(x)
    m.second.requires_grad_(False)
    against = -m.second(h).sin().sum(1)
    m.second.requires_grad_(True)
    return m.second(h.detach()).sin().sum(1) + against


def stale() -> Trained:
    """Reads a tensor that was computed from its parameter before the batch came."""
    m = Net()
    old = m.first.weight * 2
    return m, lambda m, x: head(m, m.first(x) + F.linear(x, old))


STATE = coupled(
    "state",
    REFUSED,
    {
        "model that counts its passes": lambda: (Counts(), lambda m, x: m(x)),
        "attribute set by a flagged record": keeps(keeps_largest_if_flagged),
        "loss that counts its calls": stateful(by_calls),
        "losses over the previous losses": stateful(over_the_previous),
        "loss that alternates by its calls": stateful(alternating),
        "model that counts its passes, record by record": lambda: (Counts(), counts_record_by_record),
        "queue of losses": stateful(over_the_first_of_three),
        "weights set from the first batch": keeps(starts_from_data),
        "running mean in a frozen parameter": keeps(moves_frozen),
        "running mean in a buffer": keeps(running_mean),
        "number kept in an attribute": keeps(keeps_number),
        "tensor kept in an attribute": keeps(keeps_input),
        "queue kept in an attribute": keeps(keeps_queue),
        "memory bank": stateful(memory_bank),
        "teacher that moves by the records": stateful(data_teacher),
        "bias moved by a record": writes(writes_if_flagged),
        "running statistics of InstanceNorm": instance_statistics,
        "Embedding with max_norm": max_norm,
        "spectral_norm in training": spectral,
        "tensor computed before the batch": stale,
        "records numbered as they come": lambda: (Net(), Noted()),
    },
    after=True,
) + coupled(
    "state",
    REFUSED,
    {
        "weights flipped by a record": writes(lambda m, x: m.second.weight.mul_(1 - 2 * there(x).float())),
        "weights flipped through .data": writes(writes_data),
        "frozen parameter moved by a record": writes(lambda m, x: m.frozen.add_(there(x).float())),
        "buffer moved by a record": writes(lambda m, x: m.waves.add_(there(x).float())),
        "requires_grad switched in the loss": by(switches_training_off),
    },
    after=True,
)
STATE += coupled(
    "state",
    ISOLATED,
    {
        "buffer registered in the first pass": keeps(registers_buffer),
        "losses over the first losses": stateful(over_the_first),
        "first batch kept in a closure": stateful(over_the_first_records),
        "first batch kept in a list": stateful(over_the_largest),
        "first batch kept by the class": in_its_class,
        "batch changed in place": before(lambda m, x: x.mul_(1.5)),
    },
    after=True,
)


def crowded(capacity: int) -> Loss:
    """An expert that takes the first records that want it, and leaves the others as they are."""

    def loss(m: Net, x: Tensor) -> Tensor:
        wanted = x.detach()[:, 0] > 0
        taken = wanted & (torch.ones(len(x), len(x)).tril() @ wanted.float() <= capacity)
        h = m.first(x)
        return head(m, torch.where(taken[:, None], h, -h))

    return loss


def if_many(limit: int, change: Change) -> Loss:
    return lambda m, x: head(m, change(m.first(x)) if len(x) > limit else m.first(x))


def one_loud(batch: Batch, i: int) -> None:
    batch[0][i] *= 1e3


def shared_scale(x: Tensor) -> Tensor:
    return torch.cat(
        [part.detach().abs().amax().clamp(min=2).expand(len(part)) for part in torch.split(x, 32)]
    )


LARGE = coupled(
    "large batches",
    ISOLATED,
    {
        "experts with a capacity of 16": by(crowded(16)),
        "hardest 16 examples": by(hardest(16)),
        "mean taken off above 64 records": by(if_many(64, lambda h: h - h.mean(0))),
        "a divisor above 16 records": weighted(lambda x: min(1.0, 16 / len(x))),
        "an odd number above 64 records": weighted(lambda x: 1 - 2 * (len(x) % 2) if len(x) > 64 else 1),
        "the 65th record of a batch": weighted(lambda x: 1 - 2 * (torch.arange(len(x)) >= 64).float()),
        "gradients standardised above 40 records": hooked(lambda g: g / (g.std() + 1e-6), above=40),
    },
    more=66,
    rig=one_loud,
)
LARGE += coupled("large batches", REFUSED, {"blocks of 32 share a scale": weighted(shared_scale)}, more=66)

OF_STEPS = [*BACKWARD, *CONTROL, *RANDOM, *STATE, *LARGE]
