"""One model at all ranks: the buffers of a step, and checks that all train the same model.

Which rank reads a record depends on the records drawn before it.  So if the copies of the model differ, one
record changes what others add to the sum, and this change can exceed what the noise hides.

**Guarantee**

* Buffers of whole parameters contain the rank's share of the noise before the engine adds the first gradient.
* Before each step the ranks compare the settings of their optimizers, the mode of the model (train or eval),
  and a checksum of the bits of the trained weights, and refuse the step if they differ.
* They compare the same, and also the frozen weights, when a state is saved and after the last step.  For a
  sharded model, whose gathered weights all ranks use, they compare only settings and mode.

**Not covered**

* Buffers and frozen weights that the loop of one rank changes between two saved states.
"""

from __future__ import annotations

import re
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from tacit.errors import PrivacyRefusal, UnsupportedModel
from tacit.noise import on_device
from tacit.noise.box_muller import DRAWS_PER_TILE, MOST_TILES_IN_A_CHUNK, TILES_APART
from tacit.noise.gaussian import NoiseAhead, StepNoise
from tacit.noise.generator import Generator
from tacit.sampling.base import Indices
from tacit.training.part import Part
from tacit.training.ranks.processes import Ranks
from tacit.training.resume import differences

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


class Layout:
    """The distribution of a model's parameters over the processes that train it.  Here each has all of them.

    :class:`tacit.training.ranks.shards.Sharded` is the other one.
    """

    sharded = False
    """Whether each process has only a part of the parameters."""

    description = "whole"
    """The facts of the layout that affect what a step computes."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def whole(self) -> AbstractContextManager[None]:
        """Return a context in which the model computes with whole parameters; all ranks enter it together."""
        return nullcontext()

    def sums(self, parameters: Mapping[str, Tensor], generator: Generator, *, std: float, step: int) -> Sums:
        """Return the buffers of a step; summed over the ranks, their noise has standard deviation ``std``.

        Args:
            parameters: the whole parameters, by name.
        """
        device = next(iter(parameters.values())).device
        return _NoiseBuffers(parameters, generator, std, step, device, self._ranks)

    def trained(self, parameters: Mapping[str, nn.Parameter]) -> Mapping[str, nn.Parameter]:
        """Return the optimizer's parameters, by the names that the engine's ``parameters`` have."""
        return parameters

    def copy_from_first(self, model: nn.Module) -> None:
        """Overwrite the parameters and buffers that are whole at every rank with those of rank 0.

        Models whose parameters or buffers differ in shape are refused.
        """
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
        self._ranks.copy_from_first([*model.parameters(), *model.buffers()])

    def local(self, tensor: Tensor) -> Tensor:
        """Return this rank's part of a parameter."""
        return tensor

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the ranks if it was computed from shards of parameters."""

    def together(self, check: Callable[[], None]) -> None:
        """Call ``check``, which reads this rank's part; if it fails at one rank, no rank continues."""
        check()  # each rank has the same tensors

    def gradients(self, released: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert a step's release to gradients of the optimizer's parameters."""
        return released

    def saved(self, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the entries for weights and optimizer in the resume state at ``path``, for :meth:`load`."""
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def clean(self, path: Path, entries: Mapping[str, Any]) -> None:
        """Remove the files of earlier saves to ``path``; rank 0 calls this when the state is written."""

    def load(
        self, path: Path, entries: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        """Restore the weights from the entries of :meth:`saved`, and return the state of the optimizer."""
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


_NAMED = 3  # the most differences that an error names
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@final
class Together(Part):
    """The checks that all ranks perform the same run with the same model.  All ranks call them together.

    Args:
        trained: the parameters that the optimizer trains.
        run: a weak reference to a method that returns the facts of the run, which must be the same at all
            ranks.
        steps: the number of steps of the plan.

    Attributes:
        agreed: whether the ranks have compared these facts and found no difference.
    """

    def __init__(
        self,
        model: nn.Module,
        trained: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        layout: Layout,
        ranks: Ranks,
        run: weakref.WeakMethod[Callable[[], dict[str, Any]]],
        steps: int,
    ) -> None:
        self._model, self._trained, self._optimizer = model, trained, optimizer
        self._sharded, self._ranks, self._run, self._steps = layout.sharded, ranks, run, steps
        self.agreed = False

    def before(self, step: int, indices: Indices) -> None:
        if self._ranks.ranks > 1 and not self.agreed:
            self._agree()
        self.check_model(self._trained)

    def after(self, step: int, loss: float | None) -> None:
        if step + 1 == self._steps:
            self.check_model()

    def _agree(self) -> None:
        """Refuse to continue if the ranks do not belong to one run."""
        facts = self._run()
        assert facts is not None  # the session is alive, because it takes a step
        mine = self._ranks.each(facts)
        first = self._ranks.from_first(lambda: mine)

        def check() -> None:
            if differing := differences(first, mine):
                raise PrivacyRefusal(
                    f"process {self._ranks.rank} of this run differs from process 0 in: "
                    f"{', '.join(differing)}. All add to one sum, and must do the same run. Give each "
                    "process the same script, records, plan and settings."
                )

        self._ranks.each(check)
        self.agreed = True

    def check_model(self, weights: Mapping[str, Tensor] | None = None) -> None:
        """Compare the optimizer's settings, the model's mode and ``weights`` with those of rank 0.

        By default ``weights`` are all weights of the model.
        """
        ranks = self._ranks
        if ranks.ranks == 1:
            return
        whole = dict(self._model.named_parameters()) if weights is None else weights
        if self._sharded:
            whole = {}
        mine = ranks.each(lambda: _copy(self._model, whole, self._optimizer))
        first = ranks.from_first(lambda: mine)

        def check() -> None:
            if how := _difference(first, mine):
                raise PrivacyRefusal(
                    f"the model of process {ranks.rank} differs from that of process 0: {how}. All "
                    "processes add to one sum, and which of them reads a record depends on other records. "
                    "If their models differ, one record may change the sum by more than the noise hides. "
                    "The session takes no step with such models and saves no state of them; earlier "
                    "releases are covered. Give each process the optimizer, the settings, the schedule of "
                    "the learning rate and the loop of process 0, on processors of one kind, and go on "
                    "from the last saved state."
                )

        ranks.each(check)


@dataclass(frozen=True)
class _Copy:
    """The facts that ranks compare: the optimizer's settings, each module's mode, checksums of weights."""

    settings: dict[str, str]
    training: tuple[bool, ...]
    weights: dict[str, int]


def _copy(model: nn.Module, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> _Copy:
    sums = [_checksum(tensor) for tensor in weights.values()]
    numbers = torch.stack(sums).tolist() if sums else []  # one wait for the device
    training = tuple(module.training for module in model.modules())
    return _Copy(_settings(optimizer), training, dict(zip(weights, numbers, strict=True)))


def _difference(first: _Copy, mine: _Copy) -> str:
    """Describe how the copy of this rank differs from that of rank 0; empty if it does not."""
    if first.settings != mine.settings:
        names = [name for name in {**first.settings, **mine.settings}
                 if first.settings.get(name) != mine.settings.get(name)]  # fmt: skip
        lines = [
            f"{name} is {mine.settings.get(name, 'missing')}, not {first.settings.get(name, 'missing')}"
            for name in names
        ]
        return f"in its optimizer {_listed(lines)}"
    if first.training != mine.training:
        return "it is in another mode (model.train(), model.eval())"
    differing = [name for name in mine.weights if first.weights.get(name) != mine.weights[name]]
    return (
        f"its weights differ in {_listed(differing)}, with the same optimizer settings" if differing else ""
    )


def _settings(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return the class of the optimizer and the settings of each group of parameters, as texts.

    >>> _settings(torch.optim.SGD([torch.ones(2)], lr=0.5))["lr"]
    '0.5'
    """
    groups, texts = optimizer.param_groups, {"the class": type(optimizer).__name__}
    for number, group in enumerate(groups):
        of = f" of group {number}" if len(groups) > 1 else ""
        texts[f"the number of parameters{of}"] = str(len(group["params"]))
        texts.update({f"{name}{of}": _text_of(group[name]) for name in group if name != "params"})
    return texts


def _text_of(setting: Any) -> str:
    plain = setting.tolist() if isinstance(setting, Tensor) else setting
    return re.sub(r" at 0x[0-9a-f]+", "", repr(plain))


def _checksum(tensor: Tensor) -> Tensor:
    """Sum the bits of a tensor, read as integers, on the tensor's device.

    >>> one = torch.ones(2)
    >>> bool(_checksum(one) == _checksum(torch.ones(2)))
    True
    >>> bool(_checksum(one) == _checksum(one.nextafter(2 * one)))
    False
    """
    plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return plain.view(_WORDS[plain.element_size()]).sum(dtype=torch.int64)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
