"""Training of a model sharded by ``fully_shard``: whole while a step computes, otherwise in shards.

Letters: R ranks; n rows of a parameter, along its first dimension; m = ceil(n / R) rows of a shard.
"""

# For the passes of a private step, all ranks gather the parameters, and each adds the clipped sum of its
# records' whole gradients to buffers of zeros.  The sums are reduced and scattered: each rank receives its
# rows of the total, adds the noise of these rows, and takes the optimizer's step on them.
#
# **Guarantee**
#
# * The engine clips by the norm of a record's whole gradient, never by that of a shard.
# * The noise of a shard equals the noise of the same rows if one process draws it for the whole parameter.
#   So its bits do not depend on the number of ranks, and no two shards have the same noise.
# * The shards of all ranks together are the released sum, with the whole noise.  Until they are reduced,
#   sums without noise are in the memory of processes that trust each other, and travel between them.
# * A model that is sharded in another way is refused with an error that names the reason.
# * A rank writes only released values to the folder next to a resume state: weights, and the optimizer's
#   state, which is a function of noisy gradients.  Loading the folder executes no code from it.

from __future__ import annotations

import pickle
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils._pytree import tree_map

from tacit.clipping.isolation.model_checks import sharding_hooks
from tacit.errors import InvalidInput, UnsupportedModel
from tacit.files import write_atomically
from tacit.noise.gaussian import StepNoise
from tacit.noise.generator import Generator
from tacit.training.ranks import Layout, Ranks, Sums


def is_distributed(model: nn.Module) -> bool:
    if not dist.is_available() or not dist.is_initialized():
        return False  # without a process group there are no shards
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    return any(isinstance(p, DTensor) for p in model.parameters()) or any(
        isinstance(module, FSDPModule) for module in model.modules()
    )


def is_dtensor(tensor: object) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def prepare(model: nn.Module) -> None:
    """Complete the setup that ``fully_shard`` does in the first forward pass."""
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
                    "parts of the model first, and to the whole model last. Parts that share a parameter "
                    "need one call, fully_shard([part, other_part]), or only the call for the whole model."
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
            f"PyTorch {torch.__version__} is too old for fully_shard in private training. Use a newer "
            "PyTorch; 2.13 is tested."
        )
    groups = [group for state in states for group in state._fsdp_param_groups]
    managed = {id(one.sharded_param): one for group in groups for one in group.fsdp_params}
    for name, parameter in parameters.items():
        if not is_dtensor(parameter):
            if name in trained:
                raise UnsupportedModel(
                    f"trained parameter {name!r} is not sharded, but others are. Apply fully_shard to the "
                    "whole model last, without ignored_params; or freeze the parameter."
                )
            continue
        _check_placement(name, parameter, id(parameter) in managed, ranks)
        if managed[id(parameter)].offload_to_cpu:
            raise UnsupportedModel(
                f"parameter {name!r} is offloaded to the CPU by CPUOffloadPolicy, which a private step does "
                "not support. Call fully_shard without offload_policy."
            )


def _check_placement(name: str, parameter: Any, is_managed: bool, ranks: Ranks) -> None:
    from torch.distributed.tensor import Shard

    mesh, placements = parameter.device_mesh, parameter.placements
    how = f"parameter {name!r} is a DTensor placed as {placements} on a mesh of shape {tuple(mesh.shape)}"
    if mesh.ndim > 1 and is_managed and all(type(one).__name__ == "Replicate" for one in placements[:-1]):
        raise UnsupportedModel(
            f"{how}: hybrid sharding (HSDP) is not supported. Pass fully_shard a mesh of one dimension with "
            "all processes, or no mesh."
        )
    if not is_managed or mesh.ndim > 1:
        raise UnsupportedModel(
            f"{how}: tensor, sequence and expert parallelism are not supported, because a private step clips "
            "whole gradients, and there no process has them. Shard the model with fully_shard alone."
        )
    if type(placements[0]) is not Shard or placements[0].dim != 0:
        raise UnsupportedModel(
            f"{how}, by your shard_placement_fn. A private step supports Shard(0) only: remove that argument."
        )
    if type(parameter.to_local().detach()) is not Tensor:
        raise UnsupportedModel(
            f"parameter {name!r} is of the tensor type {type(parameter.to_local()).__name__}, which a "
            "private step cannot gather. Use plain tensors as parameters."
        )
    if mesh.size() != ranks.ranks or mesh.get_local_rank() != ranks.rank:
        raise UnsupportedModel(
            f"{how}, but in the session this is rank {ranks.rank} of {ranks.ranks}. Pass fully_shard a mesh "
            "of these processes in their order, or use ProcessRanks() and no mesh."
        )


_TOGETHER = 25 * 2**20
"""The most bytes of small sums that are reduced together."""


def layout_of(model: nn.Module, ranks: Ranks) -> Layout:
    if not is_distributed(model):
        return Layout(ranks)
    return Sharded(model, ranks)


@final
class Sharded(Layout):
    """A model that ``fully_shard`` sharded over all processes of ``ranks``."""

    sharded = True

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        from torch.distributed.fsdp import FSDPModule

        super().__init__(ranks)
        self._modules: list[Any] = [module for module in model.modules() if isinstance(module, FSDPModule)]
        policies = {repr(module._get_fsdp_state()._mp_policy) for module in self._modules}
        self.description = f"by fully_shard, {', '.join(sorted(policies))}"
        prepare(model)
        for module in self._modules:
            module.reshard()
        self.parameters = dict(model.named_parameters())
        """All parameters, including frozen ones, as they are stored between passes."""
        self.buffers = dict(model.named_buffers())
        self._trained: dict[str, Any] = {n: p for n, p in self.parameters.items() if p.requires_grad}
        check_sharding(self._trained, self.parameters, self._modules, ranks)
        self._group = next(iter(self._trained.values())).device_mesh.get_group()

    @contextmanager
    def whole(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module in self._modules:
                stack.enter_context(_gathered(module, self._ranks))
            yield

    def sums(self, parameters: Mapping[str, Tensor], generator: Generator, *, std: float, step: int) -> Sums:
        return _ShardSums(self._trained, parameters, StepNoise(generator, std=std, step=step), self._ranks)

    def trained(self, parameters: Mapping[str, nn.Parameter]) -> Mapping[str, nn.Parameter]:
        return self._trained

    def copy_from_first(self, model: nn.Module) -> None:
        plain = [p for p in self.parameters.values() if not is_dtensor(p)]
        self._ranks.copy_from_first([*plain, *self.buffers.values()])

    def local(self, tensor: Tensor) -> Tensor:
        return tensor.detach().to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]

    def add_up(self, tensor: Tensor) -> None:
        self._ranks.sum_([tensor])

    def together(self, check: Callable[[], None]) -> None:
        self._ranks.each(check)

    def gradients(self, released: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: _sharded(part.to(self._trained[name].dtype), self._trained[name])
            for name, part in released.items()
        }

    def saved(self, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        folder = self._ranks.from_first(lambda: new_folder(path))
        state = optimizer.state_dict()
        shards = [(n, name) for n, of in state["state"].items() for name, v in of.items() if is_dtensor(v)]
        part = {"weights": self._tensors(), "optimizer": state, "shards": shards}
        own = tree_map(lambda v: self.local(v).clone() if isinstance(v, Tensor) else v, part)
        self._ranks.each(lambda: write_part(path.parent / folder, self._ranks.rank, own))
        return {"folder": folder}

    def clean(self, path: Path, entries: Mapping[str, Any]) -> None:
        remove_others(path, entries["folder"])

    def load(
        self, path: Path, entries: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for module in self._modules:
            module.reshard()  # an evaluation may have left old gathered parameters
        with read_part(path.parent / entries["folder"], self._ranks.rank) as own:
            for name, tensor in self._tensors().items():
                self.local(tensor).copy_(own["weights"][name])
            state: dict[str, Any] = own["optimizer"]
            for number, name in own["shards"]:
                state["state"][number][name] = _sharded(state["state"][number][name], parameters[number])
        return state

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {**self.parameters, **self.buffers}
        return {name: tensor.detach() for name, tensor in tensors.items()}


def _sharded(rows: Tensor, like: Any) -> Tensor:
    from torch.distributed.tensor import DTensor

    rows, mesh = rows.to(like.to_local().device), like.device_mesh
    return DTensor.from_local(
        rows, mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


@final
class _ShardSums(Sums):
    """A buffer of zeros for each whole parameter; :meth:`released` returns the noisy rows of this rank."""

    def __init__(
        self, trained: Mapping[str, Any], parameters: Mapping[str, Tensor], noise: StepNoise, ranks: Ranks
    ) -> None:
        self._trained, self._parameters, self._noise, self._ranks = trained, parameters, noise, ranks
        self._index = {name: index for index, name in enumerate(trained)}
        self._raw_sums: dict[str, Tensor] = {}
        self._drawn: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._raw_sums:
            parameter = self._parameters[name]
            self._raw_sums[name] = torch.zeros(
                tuple(parameter.shape), dtype=self._type(name), device=parameter.device
            )
        return self._raw_sums[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._trained)

    def __len__(self) -> int:
        return len(self._trained)

    @property
    def noise(self) -> Mapping[str, Tensor]:
        """The noise of this rank's rows; if unread, :meth:`released` draws it, one parameter at a time."""
        if not self._drawn:
            self._drawn = {name: self._draw(name) for name in self._trained}
        return self._drawn

    def released(self) -> dict[str, Tensor]:
        released: dict[str, Tensor] = {}
        for names in self._pieces():
            group = self._trained[names[0]].device_mesh.get_group()
            ranks = dist.get_world_size(group)
            rows = [_by_rank(self[name], ranks) for name in names]
            for name in names:
                del self._raw_sums[name]
            raw_sums = rows[0].contiguous() if len(rows) == 1 else torch.cat(rows, 1)
            sizes = [part.shape[1] for part in rows]
            del rows
            raw_own = raw_sums.new_empty(raw_sums.shape[1])
            with self._ranks.reached():
                _reduce_scatter(raw_own, raw_sums.view(-1), group)
            del raw_sums
            for name, raw_part in zip(names, raw_own.split_with_sizes(sizes), strict=True):
                released[name] = self._noisy(name, raw_part)
        return {name: released[name] for name in self._trained}

    def _noisy(self, name: str, raw_rows: Tensor) -> Tensor:
        """Return ``raw_rows``, the sums of this rank's rows, with noise and without padding at the end."""
        noise = self._drawn.pop(name) if name in self._drawn else self._draw(name)
        return noise.to(raw_rows.device).add_(raw_rows[: noise.numel()].view_as(noise))

    def _draw(self, name: str) -> Tensor:
        local = self._trained[name].to_local()
        whole = self._trained[name].shape
        noise = torch.empty(tuple(local.shape), dtype=self._type(name))
        if noise.numel():
            m = -(-whole[0] // self._ranks.ranks)
            first = self._ranks.rank * m * (noise.numel() // noise.shape[0])
            self._noise.fill_part(noise, self._index[name], first)
        return noise.to(local.device)

    def _type(self, name: str) -> torch.dtype:
        return torch.float64 if self._trained[name].dtype == torch.float64 else torch.float32

    def _pieces(self) -> Iterator[list[str]]:
        """Yield the names whose sums are reduced together, the same at all ranks."""
        piece: list[str] = []
        room = 0
        for name, parameter in self._trained.items():
            size = parameter.numel() * self._type(name).itemsize
            if piece and (size > room or self._type(name) != self._type(piece[0])):
                yield piece
                piece = []
            if not piece:
                room = _TOGETHER
            piece.append(name)
            room -= size
        if piece:
            yield piece


def _by_rank(whole: Tensor, ranks: int) -> Tensor:
    """Reshape a tensor to (R, ...): the m rows of each rank in one row, padded with zeros."""
    m = -(-whole.shape[0] // ranks)
    if missing := m * ranks - whole.shape[0]:
        whole = torch.cat([whole, whole.new_zeros(missing, *whole.shape[1:])])
    return whole.reshape(ranks, -1)


def _reduce_scatter(out: Tensor, raw_sums: Tensor, group: dist.ProcessGroup) -> None:
    by_name = vars(dist)  # newer versions of torch warn about the older of the two names
    reduce = by_name.get("reduce_scatter_single") or by_name["reduce_scatter_tensor"]
    reduce(out, raw_sums, op=dist.ReduceOp.SUM, group=group)


@contextmanager
def _gathered(module: Any, ranks: Ranks) -> Iterator[None]:
    """Gather a module's parameters within the context, and remove the hooks of ``fully_shard`` there."""
    with ranks.reached():
        module.reshard()  # an evaluation may have left gathered parameters from before the last step
        module.unshard()
    state = module._get_fsdp_state()
    tables = [(table, dict(table)) for table in (module._forward_pre_hooks, module._forward_hooks)]
    for table, number in list(sharding_hooks(module)):
        del table[number]
    casts = _casts(module, state._mp_policy)
    try:
        yield
    finally:
        for handle in casts:
            handle.remove()
        for table, before in tables:
            now = dict(table)
            table.clear()
            table.update(before | now)
        module.reshard()


def _casts(module: nn.Module, policy: Any) -> list[Any]:
    """Register the hooks of ``fully_shard`` that a pass needs: casts of inputs and outputs."""
    handles: list[Any] = []
    if policy.param_dtype is not None and policy.cast_forward_inputs:
        cast = partial(_cast, dtype=policy.param_dtype)

        def before(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
            return tree_map(cast, args), tree_map(cast, kwargs)

        handles.append(module.register_forward_pre_hook(before, prepend=True, with_kwargs=True))
    if policy.output_dtype is not None:
        cast_output = partial(_cast, dtype=policy.output_dtype)
        handles.append(module.register_forward_hook(lambda *call: tree_map(cast_output, call[2])))
    return handles


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def new_folder(path: Path) -> str:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = path.parent / f"{path.name}.shards-{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    return folder.name


def write_part(folder: Path, rank: int, part: Mapping[str, Any]) -> None:
    """Write a rank's part of weights and optimizer state to the folder."""
    write_atomically(folder / f"{rank}.pt", lambda file: torch.save(part, file), mode=0o600)


@contextmanager
def read_part(folder: Path, rank: int) -> Iterator[dict[str, Any]]:
    """Yield the part from :func:`write_part`, and explain errors of restoring it within the context."""
    try:
        yield torch.load(folder / f"{rank}.pt", map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, LookupError, EOFError, pickle.UnpicklingError) as problem:
        raise InvalidInput(
            f"{folder}, the weights of the resume state next to it, is incomplete or damaged. Restore "
            "folder and state from a copy, or start a new run."
        ) from problem


def remove_others(path: Path, folder: str) -> None:
    for other in path.parent.iterdir():
        if other.name.startswith(f"{path.name}.shards-") and other.name != folder:
            shutil.rmtree(other, ignore_errors=True)
