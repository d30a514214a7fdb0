"""One training step by every engine that the benchmarks compare: Tacit, plain PyTorch and other libraries.

Every step is zero_grad, forward, backward, clipping of each record to norm 1, noise of multiplier 1 and the
workload's optimizer.  All engines get the batch as one physical batch, and each other library has its best
settings.  Plain PyTorch runs convolutions in both memory formats, and the faster one counts.  Tacit has its
default settings: it divides a batch with many activations into several passes, and its pooling is faster than
torch's. ``plain PyTorch, our passes and pools`` shows what the plain step gains by both.  Threads spin while
they wait, as by default; in ``Tacit, sleeping threads`` and a plain step next to it they sleep.  Tacit's
noise is cryptographic. The other libraries use torch's generator, as Opacus' secure mode has no build for
current PyTorch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.overrides import TorchFunctionMode
from workloads import Workload

from tacit.clipping import FAST, LEAN, MemoryBudget
from tacit.clipping.fast import Microbatches
from tacit.clipping.per_example.registry import FASTER
from tacit.plan import Plan
from tacit.training import PrivateSession

__all__ = ["CHANNELS_LAST", "ENGINES", "PLAIN", "Engine", "Step"]

Step = Callable[[], None]
PLAIN = "plain PyTorch"
CHANNELS_LAST = "plain PyTorch, channels_last"


def plain(load: Workload, memory_format: torch.memory_format = torch.contiguous_format) -> Step:
    """Return the plain step, with pictures and weights of convolutions in ``memory_format``.

    It frees its gradient at the end, so that an engine that takes turns with it has the memory.
    """
    model = load.make()
    if memory_format is not torch.contiguous_format:
        model = model.to(memory_format=memory_format)
        load = replace(load, inputs=load.inputs.to(memory_format=memory_format))
    optimizer = load.optimizer(model)

    def step() -> None:
        x, y = load.rows()
        load.loss(model, x.to(memory_format=memory_format), y).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class FasterOperations(TorchFunctionMode):
    """Replaces operations without parameters by the faster ones of Tacit's engine."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return FASTER.get(func, func)(*args, **(kwargs or {}))


def our_way(load: Workload) -> Step:
    """Return the plain step with Tacit's pooling, and its gradient accumulated over Tacit's passes."""
    model = load.make()
    optimizer = load.optimizer(model)
    parameter_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    cuts = Microbatches(FAST.pass_bytes, parameter_bytes, 1, {})
    parts = cuts.cut((load.inputs, load.targets), lambda rows: load.loss(model, *rows), "")

    def step() -> None:
        optimizer.zero_grad()
        for x, y in parts:
            with FasterOperations():
                total = load.loss(model, x, y).sum()
            (total / load.batch).backward()
        optimizer.step()

    return step


def tacit(
    load: Workload, engine: str = "fast", *, memory: MemoryBudget = FAST, chunk: int | None = None
) -> Step:
    """Return Tacit's step on all records of the workload, in physical batches of ``chunk`` records."""
    model = load.make()
    plan = Plan.with_noise(
        noise_multiplier=1.0, delta=1e-9, records=load.batch, steps=10**6, clipping=1.0,
        adjacency="add-remove", unit="record", views=load.views,
    )  # fmt: skip
    session = PrivateSession(
        model, load.optimizer(model), (load.inputs, load.targets), plan,
        loss=load.loss, engine=engine, memory=memory, augmentation=load.augmentation,
        physical_batch_size=chunk or load.batch,
    )  # fmt: skip
    turns = session.batches()

    def step() -> None:
        session.step(next(turns))

    step.session = session  # type: ignore[attr-defined]
    return step


def eager(model: nn.Module) -> nn.Module:
    """Return a transformers model with its eager attention, as vmap has no rule for the other's gradient."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if hasattr(base, "set_attn_implementation"):
        base.set_attn_implementation("eager")
    return model


def by_vmap(load: Workload) -> Step:
    """Return a step with torch.func, which clips the gradient of every record and sums by an einsum."""
    model = eager(load.make())
    optimizer = load.optimizer(model)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def one(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        with load.precision():
            return load.criterion(functional_call(model, values, (x,)), y).mean()

    each = vmap(grad(one), in_dims=(None, 0, 0), randomness="different")

    def step() -> None:
        x, y = (part.unflatten(0, (load.batch, load.views)) for part in load.rows())
        gradients = each({name: p.detach() for name, p in parameters.items()}, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
        factors = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for name, p in parameters.items():
            total = torch.einsum("n,n...->...", factors, gradients[name])
            p.grad = total.add_(torch.randn_like(total)).div_(load.batch)
        optimizer.step()

    return step


class Criterion(nn.Module):
    """The loss in the form that Opacus needs: an object with a ``reduction``."""

    def __init__(self, load: Workload) -> None:
        super().__init__()
        self.load, self.reduction = load, "mean"

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return per-record losses (n,), or their reduction."""
        losses = self.load.criterion(outputs, targets)
        return losses if self.reduction == "none" else losses.mean()


def opacus(load: Workload, mode: str) -> Step:
    """Return Opacus' step: hooks, functorch and ew form per-example gradients, ghost has two backward passes.

    Opacus' LSTM replaces torch's, which Opacus refuses.  Transformers get a row of position_ids for each
    record, as Opacus needs.  It does not support several views of a record.
    """
    if load.views > 1:
        raise ValueError("Opacus has no views of a record")
    from opacus import PrivacyEngine
    from opacus.optimizers import get_optimizer_class
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from opacus.validators import ModuleValidator

    model = load.make()
    if any(isinstance(layer, nn.RNNBase) for layer in model.modules()):
        model = ModuleValidator.fix(model)
    ghost = mode == "ghost"
    module = PrivacyEngine(accountant="rdp")._prepare_model(model, grad_sample_mode=mode, max_grad_norm=1.0)
    kind = get_optimizer_class(clipping="flat", distributed=False, grad_sample_mode=mode)
    optimizer = kind(
        load.optimizer(model), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=load.batch
    )
    criterion: Callable[..., Tensor] = Criterion(load)
    places = {}
    if hasattr(model, "config") and load.inputs.dim() == 2:
        places["position_ids"] = torch.arange(load.inputs.shape[1]).repeat(load.batch, 1)
    if ghost:
        criterion = DPLossFastGradientClipping(module, optimizer, criterion)

    def step() -> None:
        optimizer.zero_grad()
        with load.precision():
            loss = criterion(module(load.inputs, **places), load.targets)
        loss.backward()
        optimizer.step()

    return step


def fastdp(load: Workload, mode: str) -> Step:
    """Return the step of fastDP (book-keeping), whose optimizer adds the noise."""
    import transformers  # noqa: F401 (fastDP looks for it in loaded modules)
    from fastDP import PrivacyEngine

    model = load.make()
    optimizer = load.optimizer(model)
    PrivacyEngine(
        model, batch_size=load.batch, sample_size=100 * load.batch, epochs=1, noise_multiplier=1.0,
        max_grad_norm=1.0, clipping_mode=mode, clipping_fn="Abadi", origin_params=None,
    ).attach(optimizer)  # fmt: skip

    def step() -> None:
        load.loss(model, load.inputs, load.targets).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def opake(load: Workload, microbatch: int | None) -> Step:
    """Return the step of JetBrains' Opake (vmap of grad), on ``microbatch`` records at a time, or on all."""
    if load.views > 1:
        raise ValueError("Opake has no views of a record")
    from opake.dpsgd.clipping import clipped_grad
    from opake.dpsgd.noise import gaussian_noise
    from opake.random import key

    model = eager(load.make())
    if hasattr(model, "config"):
        from opake.exceptions import ConfigurationError
        from opake.patches import apply_model_patches

        with suppress(ConfigurationError):  # it has no patches for this model, which may need none
            apply_model_patches(model)
    optimizer = load.optimizer(model)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    private = {name: p.detach() for name, p in parameters.items()}  # the same memory, without autograd

    def one(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        with load.precision():
            return load.criterion(functional_call(model, values, (x[None],)), y[None]).mean()

    clipped, clipping = clipped_grad(
        one, clipping_norm=1.0, batch_argnums=(1, 2), normalize_by=load.batch, microbatch_size=microbatch
    )
    noise, drawn = gaussian_noise(noise_multiplier=1.0, key=key(0))

    def step() -> None:
        nonlocal clipping, drawn
        gradients, clipping = clipped(private, load.inputs, load.targets, state=clipping)
        noisy, drawn = noise(gradients, drawn)
        for name, p in parameters.items():
            p.grad = noisy.pytree[name]
        optimizer.step()

    return step


@dataclass(frozen=True)
class Engine:
    """An engine: the function that makes its step, its package and environment, and if a GPU measures it.

    An engine that is ``apart`` replaces functions of transformers, and has a process with another plain step.
    """

    make: Callable[[Workload], Step]
    package: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    for_gpu: bool = True
    apart: bool = False

    def missing(self) -> str | None:
        """Return the reason why it cannot run here, or None."""
        if self.package is None or importlib.util.find_spec(self.package) is not None:
            return None
        return f"{self.package} is not installed"


ENGINES: dict[str, Engine] = {
    PLAIN: Engine(plain),
    CHANNELS_LAST: Engine(lambda load: plain(load, torch.channels_last)),
    "plain PyTorch, our passes and pools": Engine(our_way, for_gpu=False),
    "Tacit": Engine(tacit),
    "Tacit, lean": Engine(lambda load: tacit(load, memory=LEAN)),
    "Tacit, sleeping threads": Engine(tacit, environment={"OMP_WAIT_POLICY": "passive"}, for_gpu=False),
    "Tacit, no compiler": Engine(tacit, environment={"TACIT_NATIVE": "0"}, for_gpu=False),
    "Tacit, reference": Engine(lambda load: tacit(load, "reference"), for_gpu=False),
    "Opacus, hooks": Engine(lambda load: opacus(load, "hooks"), "opacus"),
    "Opacus, functorch": Engine(lambda load: opacus(load, "functorch"), "opacus"),
    "Opacus, ew": Engine(lambda load: opacus(load, "ew"), "opacus"),
    "Opacus, ghost": Engine(lambda load: opacus(load, "ghost"), "opacus"),
    "Opake": Engine(lambda load: opake(load, None), "opake", apart=True),
    **{
        f"Opake, microbatches of {size}": Engine(
            lambda load, size=size: opake(load, size), "opake", apart=True
        )
        for size in (1, 4, 16, 64)
    },
    "torch.func": Engine(by_vmap),
    "fastDP, MixOpt": Engine(lambda load: fastdp(load, "MixOpt"), "fastDP"),
    "fastDP, ghost": Engine(lambda load: fastdp(load, "ghost"), "fastDP"),
}
