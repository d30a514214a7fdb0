"""Losses, small models, the clipped sum by its definition and by an engine, and how far one record moves it.

Letters: C the threshold; K the views of a record; i the record that is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tacit import native
from tacit.clipping import AdaptiveClipping, AutomaticClipping, ClippingRule, FlatClipping, PerLayerClipping
from tacit.clipping.engine import GradientEngine, RawStatistics
from tacit.clipping.fast import FastEngine
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import UnsupportedModel
from tacit.plan import Plan
from tacit.training import PrivateSession

both = pytest.mark.parametrize("kind", [FastEngine, ReferenceEngine])
one_or_two_views = pytest.mark.parametrize("views", [1, 2])
Loss = Callable[..., Tensor]
Batch = tuple[Tensor, ...]
Sums = dict[str, Tensor]
Shape = tuple[int, ...]
Kind = type[GradientEngine]
Maker = Callable[[], nn.Module]
# Of a module and its input.
Forward = Callable[[Any, Tensor], Any]
Change = Callable[[Tensor], Tensor]
# A model and its loss.
Trained = tuple[nn.Module, Loss]


def each(names: str, table: Mapping[str, Any]) -> pytest.MarkDecorator:
    """A case for each row of a table, by its name."""
    return pytest.mark.parametrize(names, table.values(), ids=table)


# --- models and losses --------------------------------------------------------------------------------------


class Of(nn.Module):
    """Layers, parameters and buffers by name, and a function of the module and of its inputs."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, *batch: Tensor) -> Any:
        return self.function(self, *batch)


def called(function: Forward, *makers: Maker) -> Callable[[], Of]:
    """Make layers, and a function of those in a row and of the input."""
    return lambda: Of(lambda m, x: function(m.layers, x), layers=nn.ModuleList(make() for make in makers))


def custom(name: str, forward: Callable[..., Any], backward: Callable[..., Any], **more: Any) -> Any:
    """Return a function that applies a torch.autograd.Function of these methods and attributes."""
    methods = {"forward": forward, "backward": backward, **more}
    attributes = {key: staticmethod(value) if callable(value) else value for key, value in methods.items()}
    kind: Any = type(name, (torch.autograd.Function,), attributes)
    return lambda *args: kind.apply(*args)


def with_rule(name: str, vmap: Callable[..., Any]) -> Any:
    """The identity for one record, with a rule for vmap, which is given all records."""
    return custom(name, lambda x: x.clone(), lambda ctx, *g: g[0], setup_context=lambda *_: None, vmap=vmap)


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def squares(model: nn.Module, *batch: Tensor) -> Tensor:
    out: Tensor = model(*batch).flatten(1)
    return out.square().mean(1) + out.sum(1)


def waves(model: nn.Module, *batch: Tensor) -> Tensor:
    """A loss whose gradient has another size and direction at each number of the output, and in each row."""
    result = model(*batch)
    out: Tensor = (result[0] if isinstance(result, tuple) else result).flatten(1)
    weights = torch.linspace(0.2, 1.0, out.shape[1], dtype=out.dtype, device=out.device)
    return (out * weights).sum(1).sin() + (out**2).mean(1)


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# --- by definition ------------------------------------------------------------------------------------------


def factor_of(rule: ClippingRule, norm: float, groups: int) -> float:
    """Return the factor of a gradient, or of its part in one of the groups, by the papers' formulas."""
    match rule:
        case AutomaticClipping(norm=C, stability=s):
            return C / (norm + s)
        case PerLayerClipping(norm=C):
            C /= math.sqrt(groups)
        case FlatClipping(norm=C) | AdaptiveClipping(initial_norm=C):
            pass
        case _:
            raise AssertionError(rule)
    return min(1.0, C / max(norm, 1e-300))


def loop(
    model: nn.Module, loss: Loss, batch: Batch, rule: ClippingRule | float, views: int = 1
) -> tuple[Sums, Tensor]:
    """The clipped sum by name and the norms (n, groups), by one backward pass of autograd for each record."""
    rule = FlatClipping(rule) if isinstance(rule, float) else rule
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    by_layer = isinstance(rule, PerLayerClipping)
    layer_of = {name: name.rpartition(".")[0] if by_layer else "" for name in parameters}
    layers, norms = dict.fromkeys(layer_of.values()), []
    for start in range(0, len(batch[0]), views):
        mean = loss(model, *(t[start : start + views].clone() for t in batch)).mean()
        found = torch.autograd.grad(
            mean, list(parameters.values()), allow_unused=True, materialize_grads=True
        )
        gradients = dict(zip(parameters, found, strict=True))
        for layer in layers:
            own = {name: g for name, g in gradients.items() if layer_of[name] == layer}
            norms.append(float(torch.cat([g.flatten().double() for g in own.values()]).norm()))
            for name, g in own.items():
                total[name] += g * factor_of(rule, norms[-1], len(layers))
    return total, torch.tensor(norms, dtype=torch.float64).view(-1, len(layers))


def by_definition(
    model: nn.Module, loss: Loss, batch: Batch, rule: ClippingRule | float, views: int = 1
) -> Sums:
    return loop(model, loss, batch, rule, views)[0]


# --- by an engine -------------------------------------------------------------------------------------------


def step(
    engine: GradientEngine,
    *batch: Tensor,
    mask: Tensor | None = None,
    into: Any = None,
    dtype: torch.dtype | None = None,
) -> tuple[Sums, RawStatistics]:
    """The clipped sums of a batch by an engine, by name, in the parameters' own types, and its statistics."""
    if into is None:
        into = {name: torch.zeros_like(p, dtype=dtype) for name, p in engine.parameters.items()}
    thresholds = torch.tensor(engine.rule.initial_thresholds(engine.names), dtype=torch.float64)
    return into, engine.add_clipped_sum(into, batch, mask, thresholds)


def sums_of(engine: GradientEngine, *batch: Tensor, dtype: torch.dtype = torch.float64) -> Sums:
    """The clipped sum by an engine, by name."""
    return step(engine, *batch, dtype=dtype)[0]


def norms_found(engine: GradientEngine, *batch: Tensor) -> Tensor:
    """(n,) norms by an engine."""
    return step(engine, *batch)[1].raw_norms[:, 0]


def clipped_sum(engine: GradientEngine, *batch: Tensor) -> Tensor:
    """The clipped sum by an engine, all parameters in a row."""
    return torch.cat([value.flatten() for value in sums_of(engine, *batch).values()])


def equal(found: Any, wanted: Any, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    """Compare tensors, or tensors by name."""
    if isinstance(wanted, Mapping):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value.to(found[name]), rtol=rtol, atol=atol, msg=name)
    else:
        torch.testing.assert_close(found, wanted.to(found), rtol=rtol, atol=atol)


def equals_a_loop(engine: GradientEngine, *batch: Tensor, rtol: float = 1e-10, atol: float = 1e-12) -> Sums:
    """Sums and norms are those of the definition, and the engine has taken its own way; return the sums."""
    sums, found = step(engine, *batch)
    wanted, norms = loop(engine.model, engine.per_example_loss, batch, engine.rule, engine.views)
    equal(sums, wanted, rtol, atol)
    equal(found.raw_norms, norms, rtol, atol)
    assert engine.route == ("fast" if isinstance(engine, FastEngine) else "reference")
    return wanted


def is_refused(reason: str, engine: GradientEngine, *batch: Tensor) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        step(engine, *batch)


def moved_by(
    make: Maker,
    loss: Loss,
    batches: Sequence[Batch],
    i: int,
    C: float,
    *,
    kind: Kind = FastEngine,
    changed: int = -1,
) -> float:
    """By how many C record i of the ``changed`` batch moves the sums of a run, from it to the last."""
    found = []
    for without in (False, True):
        torch.manual_seed(1)
        engine = kind(make(), loss, FlatClipping(C))
        sums = []
        for number, batch in enumerate(batches):
            if without and number == changed % len(batches):
                batch = tuple(torch.cat([t[:i], t[i + 1 :]]) for t in batch)
            sums.append(clipped_sum(engine, *batch))
        found.append(torch.cat(sums[changed % len(batches) :]))
    return float((found[0] - found[1]).norm()) / C


def most_moved(engine: GradientEngine, *batch: Tensor, records: Sequence[int] | None = None) -> float:
    """The largest |sum(D) - sum(D less record i)| / C over the records, or over some."""
    C = engine.rule.sensitivity(engine.rule.initial_thresholds(engine.names))
    whole, K, apart = clipped_sum(engine, *batch), engine.views, [0.0]
    for i in range(len(batch[0]) // K) if records is None else records:
        rest = clipped_sum(engine, *(torch.cat([t[: i * K], t[(i + 1) * K :]]) for t in batch))
        apart.append(float((whole - rest).norm()) / C)
    return max(apart)


class Watched(TorchDispatchMode):
    """Tells a function of each operation, of what it was given and of what it found."""

    def __init__(self, note: Callable[[Any, Any, Any], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.note(func, args, found)
        return found


# --- sessions -----------------------------------------------------------------------------------------------


def plan(records: int, **changes: Any) -> Plan:
    """A plan for a session of a test."""
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-3, "steps": 2, "clipping": 1.0}
    return Plan.with_noise(records=records, adjacency="add-remove", unit="row", **(settings | changes))


def run(session: PrivateSession) -> None:
    """All steps of a session."""
    for batch in session.batches():
        session.step(batch)


@contextmanager
def running(level: int, threads: int) -> Iterator[None]:
    """Limit the kernels to the instructions of this level, and to this number of threads."""
    library = native.library()
    assert library is not None
    level, before = min(level, library.tacit_convolution_level()), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "tacit_convolution_level", lambda: level)
        try:
            torch.set_num_threads(threads)
            yield
        finally:
            torch.set_num_threads(before)
