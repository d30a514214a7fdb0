"""One entry of the coupling table, and the measurement of how far one record moves the clipped sum.

A coupling is a model and a loss in which one record can reach the gradients of others.  Its sensitivity is
the largest ‖Σ(D) - Σ(D minus one record)‖ / C over record sets that are made for it; clipping promises 1.

Letters: n records; i the record that is left out; C the threshold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import oracles
import torch
from oracles import Loss, Trained
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.errors import TacitError

Batch = tuple[Tensor, ...]
Sum = Callable[[Batch], Tensor]
ISOLATED, REFUSED = "isolated", "refused"
KINDS = (
    "forward", "layout", "backward", "control flow", "place", "count", "random numbers", "state",
    "large batches", "norm", "none",
)  # fmt: skip
"""The means by which records mix; ``none`` for models that must stay fast."""
TOLERANCE = 1e-4
"""What single precision may add to a sensitivity of 1."""


def by_engine(model: nn.Module, loss: Loss, C: float) -> Sum:
    """The clipped sum of a batch before noise."""
    engine = FastEngine(model, loss, FlatClipping(C))
    return lambda batch: oracles.clipped_sum(engine, *batch)


def vectors(*shape: int, classes: int = 0) -> Callable[[int], Batch]:
    """Records of normal numbers, and labels that are sorted as in many files."""

    def make(n: int) -> Batch:
        x = torch.randn(n, *shape)
        return (x, torch.arange(n) * classes // n) if classes else (x,)

    return make


def flag(batch: Batch, i: int) -> None:
    """One number of record i is above 3, where those of tame records are below 2."""
    batch[0][i].view(-1)[0] = 3.5


def dominate(batch: Batch, i: int) -> None:
    """Record i is a hundred times as large as it was, and above 0."""
    batch[0][i] = 100 * batch[0][i].abs()


def alike(batch: Batch, i: int) -> None:
    """All records but i are copies of one another, so that what moves one moves all the same way."""
    for t in batch:
        own = t[i].clone()
        t.copy_(t[(i + 1) % len(t)].clone().expand_as(t))
        t[i] = own
    dominate(batch, i)


def opposed(batch: Batch, i: int) -> None:
    """Half of the others, by turns, are the same with the other sign; record i is flagged."""
    batch[0][1::2] *= -1
    flag(batch, i)


def against(batch: Batch, i: int) -> None:
    """All records but i are copies of one another; record i is the same with the other sign."""
    alike(batch, i)
    batch[0][i] = -batch[0][i - 1] if batch[0].is_floating_point() else batch[0][i]


@dataclass(frozen=True)
class RecordSet:
    """Records made for it: n of them, ``scale`` times as large, of which that at ``place`` is rigged."""

    n: int
    place: int
    rig: Callable[[Batch, int], None] = flag
    scale: float = 1.0
    bound: str = "tight"
    """C: ``small`` (all records are clipped), ``median`` of the norms, ``tight`` (the largest norm of the
    others, where record i is left out: what record i makes larger is clipped) or ``large``."""
    before: int = 2
    """Batches of tame records that the run has had."""
    seed: int = 0


QUICK = (RecordSet(8, 3, flag), RecordSet(17, 0, alike, before=0))
OTHERS = (
    RecordSet(8, -1, flag, bound="small", before=5),
    RecordSet(6, 2, dominate, scale=1e-3, seed=1),
    RecordSet(33, 16, opposed, bound="small", seed=2),
    RecordSet(33, -1, alike, bound="median", before=0, seed=3),
    RecordSet(8, 0, flag, scale=1e3, bound="small", seed=3),
    RecordSet(9, 0, against, scale=10.0, before=0, seed=4),
    RecordSet(12, 5, against, bound="large", seed=4),
)
FULL = (*QUICK, *OTHERS)


@dataclass(frozen=True)
class Coupling:
    """A model and a loss that mix records, or (kind ``none``) that the engine must recognise as isolated."""

    name: str
    kind: str
    make: Callable[[], Trained]
    expected: str
    """What is done with most record sets; of two that are as frequent, the stricter one."""
    records: Callable[[int], Batch] = field(default_factory=lambda: vectors(4))
    rig: Callable[[Batch, int], None] | None = None
    """In the place of that of the record set."""
    more: int = 0
    """Records on top of those of a record set, where a coupling sets in with many."""
    switch: Callable[[nn.Module], object] | None = None
    """What the user changes after the tame batches."""
    after: bool = False
    """Whether the sum of a tame batch behind it counts too: the record must not be in it at all."""
    draws: bool = False
    """Whether sums are random: then two of them cannot be compared, and the verdict alone is judged."""
    split: bool = False
    """Whether a batch is taken in two halves, in which shared random numbers differ."""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind


@dataclass(frozen=True)
class Finding:
    """The result of an engine, or of a computation without guards, for a record set."""

    sensitivity: float
    verdict: str
    error: str = ""


def tame(entry: Coupling, n: int, seed: int) -> Batch:
    torch.default_generator.manual_seed(1000 + seed)
    return tuple(t.clamp(-2, 2) if t.is_floating_point() else t for t in entry.records(n))


def adversarial(entry: Coupling, chosen: RecordSet) -> tuple[Batch, int]:
    """The records, and the place of the one to leave out."""
    n = chosen.n + entry.more
    batch = tame(entry, n, chosen.seed)
    batch = tuple(t * chosen.scale if t.is_floating_point() else t.clone() for t in batch)
    i = chosen.place % n
    (entry.rig or chosen.rig)(batch, i)
    return batch, i


def rows_by_loss(model: nn.Module, loss: Loss, batch: Batch) -> Tensor:
    """(n, p) gradients of each record's loss in the batch, by autograd."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    with torch.enable_grad():
        rows = [
            torch.autograd.grad(one, parameters, retain_graph=True, materialize_grads=True)
            for one in loss(model, *batch)
        ]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


def rows_by_layer(model: nn.Module, loss: Loss, batch: Batch) -> Tensor:
    """(n, p) gradients of linear layers, by hooks on one backward pass of all losses."""
    n, seen = len(batch[0]), list[Tensor]()

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x = inputs[0].detach().reshape(n, -1, inputs[0].shape[-1])

        def record(g: Tensor) -> None:
            g = g.detach().reshape(n, -1, g.shape[-1])
            seen.append(torch.cat([torch.einsum("ntd,nte->ned", x, g).flatten(1), g.sum(1)], 1))

        if output.requires_grad:
            output.register_hook(record)  # type: ignore[no-untyped-call]

    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        with torch.enable_grad():
            loss(model, *batch).sum().backward()  # type: ignore[no-untyped-call]
    finally:
        for handle in handles:
            handle.remove()
        model.zero_grad(set_to_none=True)
    return torch.cat(seen, 1)


def norms_in_batch(entry: Coupling, batch: Batch) -> Any:
    """Norms of the records' gradients in the batch, as a computation without guards takes them."""
    torch.default_generator.manual_seed(7)
    model, loss = entry.make()
    backward = entry.kind in ("backward", "large batches")  # which the losses one by one do not show
    rows = (rows_by_layer if backward else rows_by_loss)(model, loss, tuple(t.clone() for t in batch))
    norms = rows.double().norm(dim=1)
    return norms[norms.isfinite() & (norms > 0)]


def _norm(parts: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))


def bound_of(entry: Coupling, batch: Batch, bound: str) -> float:
    """A threshold by the norms of a batch; 0.5 if there are none."""
    try:
        norms = norms_in_batch(entry, batch)
    except (RuntimeError, ValueError, IndexError):
        return 0.5  # of a model that plain autograd cannot carry
    if not len(norms):
        return 0.5
    of_norms = {
        "small": norms.min() / 100,
        "median": norms.median(),
        "tight": norms.max(),
        "large": 100 * norms.max(),
    }
    return float(of_norms[bound].clamp(1e-6, 1e9))


Way = Callable[[nn.Module, Loss, float], Sum]


def sums(entry: Coupling, chosen: RecordSet, batch: Batch, C: float, way: Way) -> list[Tensor]:
    """A run from its beginning: tame batches, the batch, and one more where the record must be forgotten."""
    torch.default_generator.manual_seed(chosen.seed)
    model, loss = entry.make()
    clipped_sum = way(model, loss, C)
    n = chosen.n + entry.more
    for number in range(chosen.before):
        clipped_sum(tame(entry, n, 100 + number))
    if entry.switch is not None:
        entry.switch(model)
    torch.default_generator.manual_seed(chosen.seed)
    half = n // 2
    parts = [batch] if not entry.split else [tuple(t[:half] for t in batch), tuple(t[half:] for t in batch)]
    found = [torch.stack([clipped_sum(tuple(t.clone() for t in part)) for part in parts]).sum(0)]
    if entry.after:
        found.append(clipped_sum(tame(entry, n, 200)))
    return found


def sensitivity(entry: Coupling, chosen: RecordSet, way: Way = by_engine) -> Finding:
    """‖Σ(D) - Σ(D minus record i)‖ / C of two runs that differ in that record."""
    batch, i = adversarial(entry, chosen)
    keep = [k for k in range(len(batch[0])) if k != i]
    without = tuple(t[keep] for t in batch)
    C = bound_of(entry, without, chosen.bound)
    try:
        pairs = zip(*(sums(entry, chosen, rows, C, way) for rows in (batch, without)), strict=True)
        apart = [whole - rest for whole, rest in pairs]
    except TacitError as error:
        return Finding(0.0, REFUSED, f"{type(error).__name__}: {str(error).split('. ')[0][:110]}")
    return Finding(_norm(apart) / C, ISOLATED)


def without_guards(rows: Callable[[nn.Module, Loss, Batch], Tensor]) -> Way:
    """No engine: per-record gradients are clipped and summed as they come."""
    return lambda model, loss, C: lambda batch: clipped(rows(model, loss, batch), C)


def clipped(rows: Tensor, C: float) -> Any:
    """The sum of (n, p) gradients, each clipped; those that are not finite are left out."""
    rows = rows.detach().double()
    rows = rows[rows.isfinite().all(1)]
    return ((C / rows.norm(dim=1)).clamp(max=1.0)[:, None] * rows).sum(0)


def unguarded(entry: Coupling, sets: Sequence[RecordSet]) -> float | None:
    """The largest sensitivity of the two computations that have no guards; None if none can be made."""
    found = []
    for way in map(without_guards, (rows_by_loss, rows_by_layer)):
        for chosen in sets:
            try:
                found.append(sensitivity(entry, chosen, way).sensitivity)
            except (RuntimeError, ValueError, TypeError, IndexError, KeyError):
                continue  # a model that this computation is not made for
    return max((one for one in found if math.isfinite(one)), default=None)


@dataclass(frozen=True)
class Row:
    """A row of the table: the largest sensitivity, and the number of each verdict of the engine."""

    sensitivity: float
    verdicts: dict[str, int]
    error: str

    @property
    def verdict(self) -> str:
        """The verdict for most record sets."""
        return max(self.verdicts, key=lambda name: (self.verdicts[name], name))


def measure(entry: Coupling, sets: Sequence[RecordSet], way: Way = by_engine) -> Row:
    """Measure the engine on an entry with these record sets."""
    found = [sensitivity(entry, chosen, way) for chosen in sets]
    worst = 0.0 if entry.draws else max(one.sensitivity for one in found)
    errors = Counter(one.error for one in found if one.error).most_common(1)
    return Row(worst, dict(Counter(one.verdict for one in found)), errors[0][0] if errors else "")
