"""The modules of a model, and the checks that refuse some models and losses before a step.

Letters: n records; B rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from tacit.errors import InvalidInput, UnsupportedModel

_ONE_PROCESS = (
    "Make the model without the wrapper or the sharding: a session trains it in one process, and with "
    "ranks=tacit.training.ProcessRanks() in several."
)
_SHARDED = (
    "A session gathers the parameters of a model that torch.distributed.fsdp.fully_shard sharded: make it "
    "with ranks=tacit.training.ProcessRanks(). An engine alone takes a model that is in one process."
)

_OF_THE_MODEL = (
    "A loss that a model computes itself, like model(...).loss of transformers, is a mean over the batch: "
    "use tacit.losses.causal(), masked() or classification() in its place."
)


def check_model(model: nn.Module) -> None:
    """Refuse a model with nothing to train, or with a layer that mixes the records of a batch."""
    if not any(p.requires_grad for p in model.parameters()):
        raise UnsupportedModel(
            "the model has no trainable parameters: there is nothing to train privately. "
            "Set requires_grad on the parameters to train."
        )
    for name, module in model.named_modules():
        check_module(name, module)
    for name, parameter in model.named_parameters():
        if _is_of_torch_distributed(parameter, "DTensor"):
            raise UnsupportedModel(
                f"parameter {name!r} is a DTensor: each process holds a part of it, but norms need whole "
                f"gradients. {_SHARDED}"
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
            f"parameter {name!r} is complex: clipping and noise need real numbers. Store its parts, "
            "torch.view_as_real(w), and read them by torch.view_as_complex in the forward pass."
        )
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise UnsupportedModel(
            f"parameter {name!r} has a hook on its gradient: a private step would not call it, as the "
            "gradients of records never reach the parameter. Remove the hook; the parameter has the noisy "
            "gradient in the optimizer's step."
        )


def can_mix(module: nn.Module) -> bool:
    """Return whether :func:`check_module` depends on settings of the module, which may change at any time."""
    return isinstance(module, _BatchNorm | _InstanceNorm | nn.Embedding | nn.EmbeddingBag)


def check_module(name: str, module: nn.Module) -> None:
    """Refuse a layer that mixes the records of a batch or stores data of them."""
    kind = type(module).__name__
    where = f"module {name!r} ({kind})" if name else f"the model ({kind})"
    if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
        raise UnsupportedModel(
            f"{where} normalises with statistics of the whole batch: one record reaches every "
            "gradient, and no per-record bound holds. Replace it: "
            "model = tacit.models.private_ready.make_private_ready(model) puts GroupNorm in its place."
        )
    if isinstance(module, _InstanceNorm) and module.track_running_stats and module.training:
        raise UnsupportedModel(
            f"{where} keeps running statistics of the records: they would be released with the model, "
            "without noise. Replace it: model = tacit.models.private_ready.make_private_ready(model)."
        )
    if isinstance(module, nn.DataParallel):
        raise UnsupportedModel(
            f"{where} copies the model to several devices: it sums gradients before they are clipped. Pass "
            "the module inside it (model.module), which trains on one device."
        )
    if _is_for_several(module):
        fix = _SHARDED if _is_of_torch_distributed(module, "FSDPModule") else _ONE_PROCESS
        raise UnsupportedModel(
            f"{where} shares gradients or weights among processes: it does so before clipping. {fix}"
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and (
        module.max_norm is not None or module.scale_grad_by_freq
    ):
        raise UnsupportedModel(
            f"{where} has max_norm or scale_grad_by_freq: they depend on the whole batch. "
            "Make it without these options."
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
            f"the loss function must return a tensor of losses; got {type(losses).__name__}. {_OF_THE_MODEL}"
        )
    if losses.shape != (rows,) or not losses.is_floating_point():
        fix = 'Use reduction="none", and take the mean over all dimensions but the first.'
        raise InvalidInput(
            f"the loss function must return one loss per row, shape ({rows},); got {losses.dtype} of shape "
            f"{tuple(losses.shape)}. {fix}{f' {_OF_THE_MODEL}' if losses.dim() == 0 else ''}"
        )
    return losses


@final
class Survey:
    """The modules of a model, their flags, parameters and buffers, as they are now.

    Two surveys are equal if nothing was added, replaced, frozen, or switched between training and evaluation.
    A survey holds these objects, so that their ids are not reused.
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
