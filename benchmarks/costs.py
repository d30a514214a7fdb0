"""The costs of a private step that can be counted: kernels, operations, bytes, and waits for a device.

They are counted on a CPU, for models of transformers and peft with eight small layers, next to a plain step
of the same model, loss and optimizer.  As on a GPU, Python reads no norm before it is used.  A kernel is an
operation that torch dispatches and that computes or copies something; most are one launch on a GPU.  A wait
is an operation for which Python, or the shape of a result, needs a number that the device has computed.
Bytes are the largest amount that a step has allocated at once.

``python benchmarks/costs.py`` prints the table.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import library_models
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from workloads import Workload

from tacit.clipping import fast
from tacit.plan import Plan
from tacit.training import PrivateSession

__all__ = ["MODELS", "Costs", "costs", "steps_of"]

STEADY = 11
"""The number of a step without checks: weights are checked in the first ten steps and every tenth one."""
_ALLOCATE = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_", "detach"}
    | {"lift_fresh", "_unsafe_view", "is_same_size", "sym_size", "promote_types", "_local_scalar_dense"}
)
_WAITS = frozenset(
    {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select"}
    | {"_unique2", "unique_dim", "unique_consecutive"}
)
_IN_PLACE = {"addmm_": "addmm", "baddbmm_": "baddbmm"}

SHAPE = {"hidden_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4, "intermediate_size": 512}
LLAMA = SHAPE | {"num_key_value_heads": 2, "intermediate_size": 352}
MODELS: dict[str, Callable[[], Workload]] = {
    "BERT": lambda: library_models.bert(8, 32, 1000, **SHAPE),
    "GPT-2": lambda: library_models.gpt2(8, 32, 1000, width=128, depth=8, heads=4),
    "ViT": lambda: library_models.vit(24, 32, 10, image_size=32, patch_size=8, **SHAPE),
    "Llama": lambda: library_models.llama(8, 32, 1000, lora=False, **LLAMA),
    "Llama, LoRA": lambda: library_models.llama(8, 32, 1000, lora=True, **LLAMA),
}


@dataclass(frozen=True)
class Costs:
    """The counted costs of one step."""

    kernels: int
    operations: int
    bytes: int
    waits: int


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that torch dispatches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.operations = 0
        self._on_host: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        name = packet.__name__
        returns = [each.alias_info for each in func._schema.returns]
        view = any(alias is not None and not alias.is_write for alias in returns)
        if not view and name not in _ALLOCATE:
            self.kernels[name] += 1
        formula = flop_registry.get(getattr(torch.ops.aten, _IN_PLACE.get(name, ""), packet))
        if formula is not None:
            self.operations += formula(*args, **(kwargs or {}), out_val=out)
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if not given and name == "randint":  # a random seed, on the host
            self._on_host.add(out.untyped_storage()._cdata)
        of_host = all(t.untyped_storage()._cdata in self._on_host or t.dtype == torch.uint8 for t in given)
        by_mask = name == "index" and any(t is not None and t.dtype == torch.bool for t in args[1])
        if (name in _WAITS and not of_host) or by_mask:
            self.waits[name] += 1
        return out


def _peak(step: Callable[[], object]) -> int:
    """Return the largest number of bytes that are allocated at once, above those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    found: Any = seen.profiler
    events = [e for e in found.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def costs(step: Callable[[], object]) -> Costs:
    """Return the costs of a step, which runs twice."""
    # A step under a mode is refused, as it shows all records; those of a benchmark are synthetic.
    with patch("tacit.clipping.engine.refuse_modes"), _Counted() as counted:
        step()
    return Costs(counted.kernels.total(), counted.operations, _peak(step), counted.waits.total())


def steps_of(load: Workload) -> Iterator[Callable[[], object]]:
    """Yield a warm plain step of the workload, and then a private one with all records."""
    torch.manual_seed(0)
    model = load.build()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1e-6, foreach=True)

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", load.autocast or torch.bfloat16, enabled=load.autocast is not None):
            return load.criterion(model(x), y)

    def plain() -> None:
        optimizer.zero_grad()
        losses(model, load.inputs, load.targets).mean().backward()
        optimizer.step()

    plain()
    yield plain
    optimizer.zero_grad()
    plan = Plan.with_noise(
        noise_multiplier=1.0, delta=1e-3, records=load.batch, steps=100, clipping=1.0,
        adjacency="add-remove", unit="row",
    )  # fmt: skip
    session = PrivateSession(
        model, optimizer, (load.inputs, load.targets), loss=losses, plan=plan, physical_batch_size=load.batch
    )
    tickets = iter(session.batches())
    with patch.object(fast, "_skip_zeros", lambda _: True):  # as on a GPU
        for _ in range(STEADY):
            session.step(next(tickets))
        assert session.route == "fast"
        yield lambda: session.step(next(tickets))


def of_model(name: str) -> tuple[Costs, Costs]:
    """Return the costs of the plain and of the private step."""
    plain, private = (costs(step) for step in steps_of(MODELS[name]()))
    return plain, private


def main() -> int:
    """Print the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    shown = Table("model", "kernels", "operations", "MiB", "waits")
    for name in sys.argv[1:] or MODELS:
        plain, ours = of_model(name)
        shown.add_row(
            name,
            f"{plain.kernels} to {ours.kernels}, {ours.kernels / plain.kernels:.2f}",
            f"{ours.operations / plain.operations:.2f}",
            f"{plain.bytes / 2**20:.1f} to {ours.bytes / 2**20:.1f}, {ours.bytes / plain.bytes:.2f}",
            f"{plain.waits} to {ours.waits}",
        )
    Console(width=100).print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
