"""Checks that a private step can train a sharded model: ``fully_shard`` alone must have sharded it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from tacit.errors import UnsupportedModel
from tacit.training.ranks.processes import Ranks


def is_distributed(model: nn.Module) -> bool:
    """Return whether a parameter of the model is sharded, or a module gathers parameters."""
    if not dist.is_available() or not dist.is_initialized():
        return False  # without a process group there are no shards
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    return any(isinstance(p, DTensor) for p in model.parameters()) or any(
        isinstance(module, FSDPModule) for module in model.modules()
    )


def is_dtensor(tensor: object) -> bool:
    """Return whether a tensor is distributed, so that each process has a part of it."""
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def prepare(model: nn.Module) -> None:
    """Let ``fully_shard`` complete the setup that it would do in the first forward pass."""
    from torch.distributed.fsdp import FSDPModule

    inside: set[int] = set()
    for module in model.modules():
        if isinstance(module, FSDPModule) and id(module) not in inside:
            inside.update(id(child) for child in module.modules())
            try:
                module._get_fsdp_state()._lazy_init()
            except (ValueError, RuntimeError) as problem:
                raise UnsupportedModel(
                    f"fully_shard cannot prepare the model: {str(problem).rstrip('.')}. Apply it to the "
                    "parts of the model first and to the model last. Parts that share a parameter need one "
                    "call, fully_shard([part, other_part]), or only the call for the model."
                ) from problem


def check_sharding(
    trained: Mapping[str, nn.Parameter],
    parameters: Mapping[str, nn.Parameter],
    modules: Sequence[Any],
    ranks: Ranks,
) -> None:
    """Refuse a model unless ``fully_shard`` has sharded it over all ranks, by rows."""
    states = [module._get_fsdp_state() for module in modules]
    if not all(hasattr(state, "_fsdp_param_groups") for state in states):
        raise UnsupportedModel(
            f"PyTorch {torch.__version__} is too old for fully_shard in private training. It does not "
            "refuse all models that a private step cannot train. Take a newer PyTorch: 2.13 is tested."
        )
    groups = [group for state in states for group in state._fsdp_param_groups]
    managed = {id(one.sharded_param): one for group in groups for one in group.fsdp_params}
    for name, parameter in parameters.items():
        if not is_dtensor(parameter):
            if name in trained:
                raise UnsupportedModel(
                    f"parameter {name!r} is trained and not sharded, but others are sharded. Apply "
                    "fully_shard to the whole model last, without ignored_params; or freeze the parameter."
                )
            continue
        _check_placement(name, parameter, id(parameter) in managed, ranks)
        if managed[id(parameter)].offload_to_cpu:
            raise UnsupportedModel(
                f"parameter {name!r} is offloaded to the CPU by CPUOffloadPolicy. A private step does not "
                "support that. Call fully_shard without offload_policy."
            )


def _check_placement(name: str, parameter: Any, is_managed: bool, ranks: Ranks) -> None:
    from torch.distributed.tensor import Shard

    mesh, placements = parameter.device_mesh, parameter.placements
    how = f"parameter {name!r} is a DTensor placed as {placements} on a mesh of shape {tuple(mesh.shape)}"
    if mesh.ndim > 1 and is_managed and all(type(one).__name__ == "Replicate" for one in placements[:-1]):
        raise UnsupportedModel(
            f"{how}: hybrid sharding, with copies of each shard (HSDP). Give fully_shard a mesh of one "
            "dimension with all processes, or no mesh."
        )
    if not is_managed or mesh.ndim > 1:
        raise UnsupportedModel(
            f"{how}, and not by fully_shard alone: tensor, sequence or expert parallelism, whose parts "
            "compute a record together. A private step clips whole gradients, which no process has there. "
            "Shard the model with fully_shard alone."
        )
    if type(placements[0]) is not Shard or placements[0].dim != 0:
        raise UnsupportedModel(
            f"{how}: fully_shard was given shard_placement_fn. Leave it out, so that parameters are sharded "
            "by rows, Shard(0)."
        )
    if type(parameter.to_local().detach()) is not Tensor:
        raise UnsupportedModel(
            f"parameter {name!r} is of the tensor type {type(parameter.to_local()).__name__}. A private "
            "step cannot gather it. Keep parameters as plain tensors."
        )
    if mesh.size() != ranks.ranks or mesh.get_local_rank() != ranks.rank:
        raise UnsupportedModel(
            f"{how}, and the session has {ranks.ranks} ranks, with this as {ranks.rank}. Give fully_shard "
            "a mesh of the processes of ranks, in their order: for ProcessRanks() it needs none."
        )
