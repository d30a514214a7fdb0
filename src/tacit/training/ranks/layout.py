"""The layout of trained parameters and of a step's sums: whole at each rank, or in shards.

Step and session use it through the interface :class:`Layout`.  :mod:`tacit.training.ranks.shards` has the
layout of models that ``fully_shard`` sharded.

**Guarantee**

* Buffers of whole parameters contain the rank's share of the noise before the engine adds the first gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from tacit.errors import UnsupportedModel
from tacit.noise import on_device
from tacit.noise.box_muller import DRAWS_PER_TILE, MOST_TILES_IN_A_CHUNK, TILES_APART
from tacit.noise.gaussian import NoiseAhead, StepNoise
from tacit.noise.generator import Generator
from tacit.training.ranks.processes import Ranks

_SMALL = TILES_APART * DRAWS_PER_TILE
_TOGETHER = MOST_TILES_IN_A_CHUNK * DRAWS_PER_TILE


class Sums(Mapping[str, Tensor]):
    """A step's buffers by parameter name, to which the engine adds sums; each is made on first access."""

    @property
    @abstractmethod
    def noise(self) -> Mapping[str, Tensor]:
        """This rank's part of the noise; it may be changed in place before the engine adds gradients."""

    @abstractmethod
    def released(self) -> dict[str, Tensor]:
        """Return this rank's part of the noisy sums over all ranks.  All ranks call this together."""


class Layout(ABC):
    """The distribution of a model's parameters over the processes that train it."""

    sharded: bool
    """Whether each process has only a part of the parameters."""

    description: str
    """The facts of the layout that affect what a step computes."""

    @abstractmethod
    def whole(self) -> AbstractContextManager[None]:
        """Return a context in which the model computes with whole parameters; all ranks enter it together."""

    @abstractmethod
    def sums(self, parameters: Mapping[str, Tensor], generator: Generator, *, std: float, step: int) -> Sums:
        """Return the buffers of a step; summed over the ranks, their noise has standard deviation ``std``.

        Args:
            parameters: the whole parameters, by name.
        """

    @abstractmethod
    def trained(self, parameters: Mapping[str, nn.Parameter]) -> Mapping[str, nn.Parameter]:
        """Return the optimizer's parameters, by the names that the engine's ``parameters`` have."""

    @abstractmethod
    def copy_from_first(self, model: nn.Module) -> None:
        """Overwrite the parameters and buffers that are whole at every rank with those of rank 0."""

    @abstractmethod
    def local(self, tensor: Tensor) -> Tensor:
        """Return this rank's part of a parameter."""

    @abstractmethod
    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the ranks if it was computed from shards of parameters."""

    @abstractmethod
    def together(self, check: Callable[[], None]) -> None:
        """Call ``check``, which reads this rank's part; if it fails at one rank, no rank continues."""

    @abstractmethod
    def gradients(self, released: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert a step's release to gradients of the optimizer's parameters."""

    @abstractmethod
    def saved(self, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the entries for weights and optimizer in the resume state at ``path``.

        :meth:`load` reads them.  All ranks call this together.
        """

    @abstractmethod
    def clean(self, path: Path, entries: Mapping[str, Any]) -> None:
        """Remove the files of earlier saves to ``path``; rank 0 calls this when the state is written."""

    @abstractmethod
    def load(
        self, path: Path, entries: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        """Restore the weights from the entries of :meth:`saved`, and return the state of the optimizer."""


@final
class Replicated(Layout):
    """The layout in which each rank has the whole model."""

    sharded, description = False, "whole"

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def whole(self) -> AbstractContextManager[None]:
        return nullcontext()

    def sums(self, parameters: Mapping[str, Tensor], generator: Generator, *, std: float, step: int) -> Sums:
        device = next(iter(parameters.values())).device
        return _NoiseBuffers(parameters, generator, std, step, device, self._ranks)

    def trained(self, parameters: Mapping[str, nn.Parameter]) -> Mapping[str, nn.Parameter]:
        return parameters

    def copy_from_first(self, model: nn.Module) -> None:
        self._check_same(model)
        self._ranks.copy_from_first([*model.parameters(), *model.buffers()])

    def _check_same(self, model: nn.Module) -> None:
        """Refuse the model of a rank whose parameters or buffers differ in shape from those of rank 0."""
        tensors = (*model.named_parameters(), *model.named_buffers())
        mine = {name: f"{tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors}
        first = self._ranks.from_first(lambda: mine)

        def check() -> None:
            differing = sorted(name for name in mine | first if mine.get(name) != first.get(name))
            if differing:
                more = ", ..." if len(differing) > 3 else ""
                raise UnsupportedModel(
                    f"the model of process {self._ranks.rank} differs from that of process 0 in "
                    f"{', '.join(differing[:3])}{more}. Each process needs the whole model: a stage of a "
                    "pipeline, or some of the experts, is refused. Use "
                    "torch.distributed.fsdp.fully_shard to give each process a part."
                )

        self._ranks.each(check)

    def local(self, tensor: Tensor) -> Tensor:
        return tensor

    def add_up(self, tensor: Tensor) -> None:
        pass

    def together(self, check: Callable[[], None]) -> None:
        check()  # each rank has the same tensors

    def gradients(self, released: dict[str, Tensor]) -> dict[str, Tensor]:
        return released

    def saved(self, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def clean(self, path: Path, entries: Mapping[str, Any]) -> None:
        pass

    def load(
        self, path: Path, entries: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        model.load_state_dict(entries["model"])
        state: dict[str, Any] = entries["optimizer"]
        return state


@final
class _NoiseBuffers(Sums):
    """A buffer of noise N(0, std^2 / R) for each parameter, drawn when the engine first accesses it.

    The engine accesses a buffer when it adds that parameter's sum, small parameters first.  By then it has
    freed the memory of earlier sums, which the buffers reuse.  A CUDA device draws the noise itself, that of
    small parameters together.  If it cannot, a background thread draws the noise on the idle CPU.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        generator: Generator,
        std: float,
        step: int,
        device: torch.device,
        ranks: Ranks,
    ) -> None:
        self._parameters = parameters
        self._index = {name: index for index, name in enumerate(parameters)}
        self._ranks, rank, number = ranks, ranks.rank, ranks.ranks
        self._noise = StepNoise(generator, std=std, step=step, rank=rank, ranks=number)
        self._drawn: dict[str, Tensor] = {}
        self._on_device: on_device.DeviceNoise | None = None
        self._ahead: NoiseAhead | None = None
        if on_device.draws(parameters):
            self._on_device = on_device.DeviceNoise(
                generator, parameters, std=std, step=step, rank=rank, ranks=number
            )
        elif device.type == "cuda":
            self._ahead = NoiseAhead(generator, parameters, rank=rank, ranks=number)
            self._ahead.start(step=step, std=std)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._drawn:
            if self._on_device is not None:
                self._drawn |= self._on_device.piece(name)
            elif self._ahead is not None:
                self._drawn[name] = self._ahead.take(name)
            else:
                self._draw(self._together_with(name))
        return self._drawn[name]

    def _together_with(self, name: str) -> list[str]:
        """Return ``name`` and small parameters whose noise is drawn with it, up to ``_TOGETHER`` draws."""
        names, room = [name], _TOGETHER - self._parameters[name].numel()
        for other, parameter in self._parameters.items():
            if parameter.numel() <= min(room, _SMALL) and other != name and other not in self._drawn:
                names.append(other)
                room -= parameter.numel()
        return names

    def _draw(self, names: list[str]) -> None:
        buffers = {}
        for name in names:
            parameter = self._parameters[name]
            dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
            buffers[name] = torch.empty(tuple(parameter.shape), dtype=dtype)
        self._noise.fill_each({self._index[name]: buffer for name, buffer in buffers.items()})
        for name, buffer in buffers.items():
            self._drawn[name] = buffer.to(self._parameters[name].device)

    @property
    def noise(self) -> Mapping[str, Tensor]:
        return self

    def released(self) -> dict[str, Tensor]:
        self._ranks.sum_([*self.values()])
        return dict(self)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)
