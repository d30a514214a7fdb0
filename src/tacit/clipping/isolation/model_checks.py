"""The modules of a model, and the checks that refuse some models and losses before a step.

Letters: n records; B rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from tacit.errors import InvalidInput, UnsupportedModel

_ONE_PROCESS = (
    "Make the model without the wrapper or the sharding. For several processes, pass the session "
    "ranks=tacit.training.ProcessRanks()."
)
_SHARDED = (
    "For a model sharded by torch.distributed.fsdp.fully_shard, make the session with "
    "ranks=tacit.training.ProcessRanks(). An engine alone needs a model in one process."
)

_OF_THE_MODEL = (
    "A loss that a model computes itself, like model(...).loss of transformers, is a mean over the batch: "
    "use tacit.losses.causal(), masked() or classification() instead."
)


def check_model(model: nn.Module) -> None:
    """Refuse a model with nothing to train, or with a layer that mixes the records of a batch."""
    if not any(p.requires_grad for p in model.parameters()):
        raise UnsupportedModel(
            "the model has no trainable parameters. Set requires_grad on the parameters to train."
        )
    for name, module in model.named_modules():
        check_module(name, module)
    for name, parameter in model.named_parameters():
        if _is_of_torch_distributed(parameter, "DTensor"):
            raise UnsupportedModel(
                f"parameter {name!r} is a DTensor: each process has only a part of it, but clipping needs "
                f"whole gradients. {_SHARDED}"
            )
        if parameter.requires_grad:
            _check_parameter(name, parameter)


def modules_of(model: nn.Module) -> list[nn.Module]:
    """Return each module once, before its submodules."""
    modules: dict[int, nn.Module] = {}
    left = [model]
    while left:
        module = left.pop()
        if id(module) not in modules:
            modules[id(module)] = module
            left += [child for child in reversed(module._modules.values()) if child is not None]
    return list(modules.values())


def _check_parameter(name: str, parameter: nn.Parameter) -> None:
    """Refuse complex parameters, and parameters with hooks that change their gradient."""
    if parameter.is_complex():
        raise UnsupportedModel(
            f"parameter {name!r} is complex, but clipping and noise need real numbers. Make "
            "torch.view_as_real(w) the parameter, and call torch.view_as_complex on it in the forward pass."
        )
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise UnsupportedModel(
            f"parameter {name!r} has a gradient hook, which a private step does not call. Remove the hook. "
            "The optimizer finds the noisy gradient in .grad."
        )


def can_mix(module: nn.Module) -> bool:
    """Return whether :func:`check_module` depends on settings of the module that may change."""
    return isinstance(module, _BatchNorm | _InstanceNorm | nn.Embedding | nn.EmbeddingBag)


def check_module(name: str, module: nn.Module) -> None:
    """Refuse a layer that mixes the records of a batch or stores data of them."""
    kind = type(module).__name__
    where = f"module {name!r} ({kind})" if name else f"the model ({kind})"
    if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
        raise UnsupportedModel(
            f"{where} normalises with batch statistics, so one record changes the gradients of all others, "
            "without a bound. Use GroupNorm: model = tacit.models.networks.make_private_ready(model)."
        )
    if isinstance(module, _InstanceNorm) and module.track_running_stats and module.training:
        raise UnsupportedModel(
            f"{where} stores running statistics of the records, which would be released without noise. "
            "Replace it: model = tacit.models.networks.make_private_ready(model)."
        )
    if isinstance(module, nn.DataParallel):
        raise UnsupportedModel(
            f"{where} copies the model to several devices, and sums gradients before clipping. Pass the "
            "module inside it (model.module), which trains on one device."
        )
    if _is_for_several(module):
        fix = _SHARDED if _is_of_torch_distributed(module, "FSDPModule") else _ONE_PROCESS
        raise UnsupportedModel(f"{where} shares gradients or weights among processes before clipping. {fix}")
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and (
        module.max_norm is not None or module.scale_grad_by_freq
    ):
        raise UnsupportedModel(
            f"{where} has the option max_norm or scale_grad_by_freq, which mixes the records of a batch. "
            "Make the layer without it."
        )


def _is_for_several(module: nn.Module) -> bool:
    """Return whether a module wraps or shards a model for training on several processes."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return True
    sharded = _is_of_torch_distributed(module, "FSDPModule") and any(True for _ in sharding_hooks(module))
    return sharded or _is_of_torch_distributed(module, "FullyShardedDataParallel")


def sharding_hooks(module: nn.Module) -> Iterator[tuple[dict[int, Any], int]]:
    """Yield table and number of each hook with which ``fully_shard`` gathers parameters or reduces gradients.

    Without these hooks, a module of a sharded model computes like any other.
    """
    for table in (module._forward_pre_hooks, module._forward_hooks):
        for number, registered in table.items():
            hook: Any = registered
            while hook is not None:
                if _is_of_torch_distributed(getattr(hook, "__self__", None), "FSDPState"):
                    yield table, number
                    break
                hook = getattr(hook, "__wrapped__", None)


def _is_of_torch_distributed(value: object, *names: str) -> bool:
    """Return whether a value has one of these classes, without importing them, which is slow or may fail."""
    return any(
        kind.__name__ in names and kind.__module__.startswith("torch.distributed")
        for kind in type(value).__mro__
    )


def check_losses(losses: object, rows: int) -> Tensor:
    """Return ``losses`` if it is a (rows,) floating tensor, else raise an error that says how to get one.

    >>> check_losses(Tensor([0.5, 2.0]), 2).shape
    torch.Size([2])
    """
    if not isinstance(losses, Tensor):
        raise InvalidInput(
            f"the loss must return a tensor of losses; got {type(losses).__name__}. {_OF_THE_MODEL}"
        )
    if losses.shape != (rows,) or not losses.is_floating_point():
        fix = 'Use reduction="none", and take the mean over all dimensions but the first.'
        raise InvalidInput(
            f"the loss must return one loss per row, shape ({rows},); got {losses.dtype} of shape "
            f"{tuple(losses.shape)}. {fix}{f' {_OF_THE_MODEL}' if losses.dim() == 0 else ''}"
        )
    return losses


@final
class Survey:
    """The modules of a model, their flags, parameters and buffers, as they are now.

    Two surveys are equal if nothing was added, replaced, frozen, or switched between training and evaluation.
    A survey references these objects, so that their ids are not reused.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules = modules_of(model)
        self.flags = tuple(module.training for module in self.modules)
        self.parameters: list[nn.Parameter] = []
        self.buffers: list[tuple[nn.Module, str, Tensor]] = []
        for module in self.modules:
            self.parameters += [p for p in module._parameters.values() if p is not None]
            self.buffers += [(module, name, b) for name, b in module._buffers.items() if b is not None]
        self._signature = (
            self.flags,
            tuple(map(id, self.modules)),
            tuple(map(id, self.parameters)),
            tuple(p.requires_grad for p in self.parameters),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Survey) and self._signature == other._signature

    def __hash__(self) -> int:
        return hash(self._signature)


# The tensors of a model that a pass may change, and those of a pass that a model may keep.


_OF_TORCH = frozenset(vars(nn.Module()))
"""The attributes of every module: its tables, and the flag ``training``."""
_PLAIN = frozenset({bool, int, float, str, type(None)})
"""The types of most attributes, whose values hold no tensor of a record."""
KEPT = (
    "the forward pass stores values of records in the model: {}. They would be released, or reach later "
    "steps, without noise. Return them instead, and compute statistics before training, on public records."
)


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse a model in which a pass under vmap left a tensor of records, in an attribute or a list."""
    keeping = {id(module): keys for module in modules_of(model) if (keys := _keys_of_wrapped(module))}
    if keeping:
        names = [
            f"{name}.{key}".lstrip(".")
            for name, module in model.named_modules()
            for key in keeping.get(id(module), ())
        ]
        raise UnsupportedModel(KEPT.format(", ".join(sorted(names))))


def _keys_of_wrapped(module: nn.Module) -> list[str]:
    return [
        key
        for table in (module._parameters, module._buffers, vars(module))
        for key, value in table.items()
        if type(value) not in _PLAIN and key not in _OF_TORCH and _holds_wrapped(value)
    ]


def _holds_wrapped(value: object) -> bool:
    if isinstance(value, Tensor):
        return is_functorch_wrapped_tensor(value)
    if isinstance(value, list | tuple | deque):
        return any(map(_holds_wrapped, value))
    return isinstance(value, dict) and any(map(_holds_wrapped, value.values()))


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal; NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def version_of(tensor: Tensor) -> int | None:
    """Return torch's count of writes to a tensor; None if torch does not count them."""
    return None if tensor.is_inference() else tensor._version


@final
class Writes:
    """Detects writes to ``parameters`` by torch's counters, or by value.

    Under vmap a pass can only write public values, such as weights that a model normalises. It may do so in
    each pass or in none: a model that sets its weights from its first batch would be set from zeros.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._allowed: Set[int] = set()

    def versions(self) -> list[int | None]:
        return list(map(version_of, self._parameters))

    def since(self, versions: list[int | None]) -> set[int]:
        """Return the places of the parameters that were written since."""
        pairs = zip(versions, self.versions(), strict=True)
        return {place for place, (before, now) in enumerate(pairs) if before != now}

    def allow(self, model: nn.Module, first: Set[int], later: Set[int]) -> None:
        """Allow writes to the parameters that a first and a later pass of synthetic records write."""
        if first - later:
            raise UnsupportedModel(
                f"the first forward pass sets the parameters {self._names(model, first - later)}, and "
                "Tacit's first pass has only zeros as input. Set them from public records before training."
            )
        self._allowed = later

    @contextmanager
    def refused(self, model: nn.Module, *, keep: bool) -> Iterator[None]:
        """Run a step of the ``model``.

        With ``keep``, compare values of parameters, and restore them; no write is allowed then.
        """
        versions = self.versions()
        before = [parameter.detach().clone() for parameter in self._parameters] if keep else []
        try:
            yield
        except BaseException:
            self._put_back(before)
            raise
        if keep:
            pairs = zip(self._parameters, before, strict=True)
            changed = {place for place, (now, then) in enumerate(pairs) if not same(now, then)}
        else:
            changed = self.since(versions)
        changed -= set() if keep else self._allowed
        if not changed:
            return
        self._put_back(before)
        raise UnsupportedModel(
            f"the forward pass writes to the parameters {self._names(model, changed)}, values that may "
            "depend on records and have no noise. Compute a new tensor in place of writing to a parameter "
            "(torch.nn.utils.parametrize), or write between steps. Do not release the weights of earlier "
            "steps."
        )

    def _names(self, model: nn.Module, places: Set[int]) -> list[str]:
        parameters = [self._parameters[place] for place in places]
        return [name for name, p in model.named_parameters() if any(p is each for each in parameters)]

    def _put_back(self, before: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for parameter, copy in zip(self._parameters, before, strict=False):
                if not same(parameter, copy):
                    parameter.copy_(copy)
