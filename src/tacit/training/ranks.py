"""Several processes that take each private step together: ranks, buffers, and checks of equality."""

# Every process (a *rank*) has the whole model, and can read all records or has records of its own
# (:mod:`tacit.training.own_records`).  Letters: R ranks; r a rank, from 0.
#
# **Guarantee**
#
# * All ranks draw with the key of rank 0, so each record of a step's sample is computed by exactly one
#   rank.
# * The sum of the ranks' noise has the step's variance, and is in the buffers before the first gradient.
#   One rank's share has 1/R of it, must not be released alone, and travels only between processes that
#   trust each other.
# * Which rank reads a record depends on the records drawn before it.  If the copies of the model differed,
#   one record would change what others add.  So before each step the ranks compare their optimizers'
#   settings, the mode of the model (train or eval) and a checksum of the trained weights, and refuse the
#   step if they differ; before a save and after the last step they also compare the frozen weights.  For a
#   sharded model, whose gathered weights all ranks use, they compare only settings and mode.
# * If a rank fails, no rank takes the step.
# * If torch.distributed has a process group of two or more processes, or a launcher such as torchrun
#   started two or more, a session without ``ranks`` reads no record and releases nothing.  Otherwise each
#   process would draw its own key and train its own model, and two of these models, or their average, would
#   cost more than either session reports.
#
# Not covered: buffers and frozen weights that the loop of one rank changes between two saved states.

from __future__ import annotations

import os
import pickle
import re
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, final

import torch
from torch import Tensor, nn
from torch import distributed as dist

from tacit.errors import InvalidInput, PrivacyRefusal, ProcessLost, UnsupportedModel, launched
from tacit.noise import on_device
from tacit.noise.gaussian import DRAWS_PER_TILE, MOST_TILES_IN_A_CHUNK, TILES_APART, NoiseAhead, StepNoise
from tacit.noise.generator import Generator
from tacit.sampling.samplers import Indices
from tacit.training.part import Part
from tacit.training.resume import differences

T = TypeVar("T")

_BUCKET = 25 * 2**20
"""The most bytes of small tensors that are summed together."""


class Ranks:
    """The processes of a run; here one.  All call each method in the same order and wait for each other."""

    rank = 0
    ranks = 1
    own_records = False
    """Whether each rank has records of its own, which no other rank reads."""

    @property
    def first(self) -> bool:
        """True for rank 0, the only rank that writes files, charges the ledger and shows progress."""
        return self.rank == 0

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, bitwise the same on every rank."""

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite each tensor with rank 0's values, on every rank."""

    def total(self, function: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
        """Call ``function`` on every rank; return its numbers, each summed over all ranks."""
        return function()

    def each(self, function: Callable[[], T]) -> T:
        """Call ``function`` on every rank, and return this rank's result.

        If the call fails on one rank, all ranks raise an error.
        """
        return function()

    def gathered(self, function: Callable[[], T]) -> list[T]:
        """Call ``function`` on every rank, and return the list of all results, rank 0's first.

        If the call fails on one rank, all ranks raise an error.
        """
        return [function()]

    def from_first(self, function: Callable[[], T]) -> T:
        """Call ``function`` on rank 0 only; return the result, or raise the error, on all ranks."""
        return function()

    def only_first(self, function: Callable[[], T]) -> T | None:
        """Call ``function`` on rank 0 only; return the result there, and None on other ranks.

        If the call fails, all ranks raise the error.
        """
        return function()

    def share_secret(self, generator: Generator) -> Generator:
        """Return the generator for this rank, with rank 0's secret key."""
        key, secure = self.from_first(generator.secret_state)
        return generator if self.first else Generator(key, secure=secure)

    def reached(self) -> AbstractContextManager[None]:
        """Return a context manager that raises ``ProcessLost`` if this rank cannot reach the others."""
        return nullcontext()


@final
class Alone(Ranks):
    """Tells a session that this process trains alone, although a launcher started several processes.

    Pass ``ranks=Alone()`` only if no other process trains.

    >>> alone = Alone()
    >>> alone.first, alone.ranks
    (True, 1)
    """


@final
class ProcessRanks(Ranks):
    """The processes (ranks) of a ``torch.distributed`` group, which train one model together.

    Args:
        group: the process group.  Default: the one from ``torch.distributed.init_process_group``.
        own_records: False if all processes read the same records; True if each has its own.  With True, no
            record may be at two processes, nor may rows of the same person, and the plan's ``records`` is a
            public upper bound on the total.

    Raises:
        InvalidInput: if there is no process group, or this process is not in it.

    Start the script with ``torchrun --nproc-per-node 2 script.py``, and pass ``ranks=ProcessRanks()`` to the
    session.  This example has a single process:

    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> ranks = ProcessRanks()
    >>> ranks.first, ranks.ranks, ranks.total(lambda: (2.0,))
    (True, 1, (2.0,))
    >>> dist.destroy_process_group()
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, own_records: bool = False) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise InvalidInput(
                "there is no process group of torch.distributed. Call "
                "torch.distributed.init_process_group() before ProcessRanks(), and start the script with "
                "torchrun; or remove ranks= to train in one process."
            )
        self._group, self.own_records = group, own_records
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise InvalidInput(
                "this process is not in the group of ProcessRanks. Pass a group with this process."
            )
        self._process = os.getpid()
        on_gpu = dist.get_backend(group) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        with self.reached():
            pending = []
            for bucket in _buckets(tensors):
                whole = len(bucket) == 1 and bucket[0].is_contiguous()
                flat = bucket[0].view(-1) if whole else torch.cat([tensor.reshape(-1) for tensor in bucket])
                pending.append((dist.all_reduce(flat, group=self._group, async_op=True), flat, bucket, whole))
            for work, flat, bucket, whole in pending:
                work.wait()
                if not whole:
                    parts = torch.split(flat, [tensor.numel() for tensor in bucket])
                    for tensor, part in zip(bucket, parts, strict=True):
                        tensor.copy_(part.view_as(tensor))

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        with self.reached(), torch.no_grad():
            for tensor in tensors:
                sent = tensor.detach().to(self._device, copy=True, memory_format=torch.contiguous_format)
                dist.broadcast(sent.view(-1).view(torch.uint8), group=self._group, group_src=0)
                tensor.copy_(sent)

    def total(self, function: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
        try:
            own = function()
        except BaseException:
            with self.reached():
                self._failures(failed=True)
            raise
        with self.reached():
            failed = self._failures(failed=False)
            if failed:
                raise ProcessLost(_failed(failed))
            if not own:
                return own
            sums = torch.tensor(own, dtype=torch.float64, device=self._device)
            dist.all_reduce(sums, group=self._group)
        return tuple(sums.tolist())

    def each(self, function: Callable[[], T]) -> T:
        results: list[T] = []

        def call() -> tuple[float, ...]:
            results.append(function())
            return ()

        self.total(call)
        return results[0]

    def gathered(self, function: Callable[[], T]) -> list[T]:
        own = self.each(function)
        results: list[Any] = [None] * self.ranks
        with self.reached():
            dist.all_gather_object(results, own, group=self._group)
        return results

    def only_first(self, function: Callable[[], T]) -> T | None:
        results: list[T] = []
        self.from_first(lambda: results.append(function()))
        return results[0] if results else None

    def _failures(self, *, failed: bool) -> list[int]:
        flags = torch.zeros(self.ranks, dtype=torch.int32, device=self._device)
        flags[self.rank] = int(failed)
        dist.all_reduce(flags, group=self._group)
        return [rank for rank, flag in enumerate(flags.tolist()) if flag]

    def from_first(self, function: Callable[[], T]) -> T:
        outcome: list[Any] = [None, None]  # the result of the function, and its error
        if self.first:
            try:
                outcome[0] = function()
            except BaseException as problem:  # noqa: BLE001 (raised below, at all ranks)
                outcome[1] = problem
        with self.reached():
            sent = outcome if self.first and _picklable(outcome[1]) else [None, ProcessLost(_failed([0]))]
            dist.broadcast_object_list(sent, group=self._group, group_src=0, device=self._device)
        outcome = outcome if self.first else sent
        if outcome[1] is not None:
            raise outcome[1]
        return cast("T", outcome[0])

    @contextmanager
    def reached(self) -> Iterator[None]:
        if self._process != os.getpid():
            raise PrivacyRefusal(
                "a forked process cannot act as the rank of its parent. Start the processes with torchrun."
            )
        try:
            yield
        except ProcessLost:
            raise
        except RuntimeError as problem:
            raise ProcessLost(
                "another process of this run cannot be reached: it has ended, or the connection is lost. The "
                "current step was not taken here. Restart all processes, and resume from the last saved "
                "state."
            ) from problem


def _failed(ranks: Sequence[int]) -> str:
    who = f"process {ranks[0]}" if len(ranks) == 1 else f"processes {', '.join(map(str, ranks))}"
    return (
        f"{who} of this run failed; see its own output. No process took the current step. Fix the cause, "
        "restart all processes and resume from the last saved state."
    )


def _picklable(problem: BaseException | None) -> bool:
    try:
        pickle.loads(pickle.dumps(problem))  # some errors can be pickled but not unpickled
    except (pickle.PicklingError, TypeError, AttributeError):
        return False
    return True


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield groups of tensors of one type and device to sum together."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for of_kind in kinds.values():
        bucket: list[Tensor] = []
        for tensor in of_kind:
            if bucket and sum(t.nbytes for t in bucket) + tensor.nbytes > _BUCKET:
                yield bucket
                bucket = []
            bucket.append(tensor)
        if bucket:
            yield bucket


def check_one_process() -> None:
    """Refuse to train in one of several processes.

    torchrun and accelerate set ``WORLD_SIZE`` and ``RANK``, even if the script never makes a process group.
    """
    if dist.is_available() and dist.is_initialized() and (count := dist.get_world_size()) > 1:
        situation = f"torch.distributed has a process group of {count} processes here"
        way_out = (
            "To train one model in all of them, pass ranks=tacit.training.ProcessRanks() to the session. To "
            "train in one process, start the script once, with python, without init_process_group."
        )
    elif "WORLD_SIZE" in os.environ and (launch := launched()).processes > 1:
        situation = (
            "a launcher such as torchrun started this script in "
            f"{launch.processes} processes (WORLD_SIZE={launch.processes}, RANK={launch.rank})"
        )
        way_out = (
            "To train one model in all of them, call torch.distributed.init_process_group() and pass "
            "ranks=tacit.training.ProcessRanks() to the session. To train in one, start the script once, "
            "with python. If no other process trains, pass ranks=tacit.training.Alone()."
        )
    else:
        return
    raise PrivacyRefusal(
        f"{situation}, but the session has no ranks. Each process would train a separate model on the same "
        f"records, but session.epsilon covers only one model. {way_out}"
    )


_DRAWING = ("cuda",)  # the types of devices that may draw noise themselves
_SMALL = TILES_APART * DRAWS_PER_TILE
_TOGETHER = MOST_TILES_IN_A_CHUNK * DRAWS_PER_TILE


class Sums(Mapping[str, Tensor]):
    """A step's buffers by parameter name, made on first access, to which the engine adds sums."""

    @property
    @abstractmethod
    def noise(self) -> Mapping[str, Tensor]:
        """This rank's part of the noise, which may be changed in place before gradients are added."""

    @abstractmethod
    def released(self) -> dict[str, Tensor]:
        """Return this rank's part of the noisy sums over all ranks."""


class Layout:
    """The distribution of parameters over processes: whole here, in parts in ``shards.Sharded``."""

    sharded = False
    """Whether each process has only a part of the parameters."""

    description = "whole"
    """The facts of the layout that affect what a step computes."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def whole(self) -> AbstractContextManager[None]:
        """Return a context in which the model has whole parameters; all ranks enter it together."""
        return nullcontext()

    def sums(self, parameters: Mapping[str, Tensor], generator: Generator, *, std: float, step: int) -> Sums:
        """Return a step's buffers; summed over the ranks, their noise has standard deviation ``std``."""
        device = next(iter(parameters.values())).device
        return _NoiseBuffers(parameters, generator, std, step, device, self._ranks)

    def trained(self, parameters: Mapping[str, nn.Parameter]) -> Mapping[str, nn.Parameter]:
        """Return the optimizer's parameters, by the names in the engine's ``parameters``."""
        return parameters

    def copy_from_first(self, model: nn.Module) -> None:
        """Overwrite the parameters and buffers that are whole at every rank with those of rank 0."""
        tensors = (*model.named_parameters(), *model.named_buffers())
        mine = {name: f"{tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors}
        first = self._ranks.from_first(lambda: mine)

        def check() -> None:
            differing = sorted(name for name in mine | first if mine.get(name) != first.get(name))
            if differing:
                more = ", ..." if len(differing) > 3 else ""
                raise UnsupportedModel(
                    f"the model of process {self._ranks.rank} differs from that of process 0 in "
                    f"{', '.join(differing[:3])}{more}. Each process needs the whole model, without pipeline "
                    "or expert parallelism. Use torch.distributed.fsdp.fully_shard to shard it."
                )

        self._ranks.each(check)
        self._ranks.copy_from_first([*model.parameters(), *model.buffers()])

    def local(self, tensor: Tensor) -> Tensor:
        return tensor

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor computed from shards of parameters by its sum over the ranks."""

    def together(self, check: Callable[[], None]) -> None:
        """Call ``check``, which reads this rank's part; if it fails at one rank, no rank continues."""
        check()  # each rank has the same tensors

    def gradients(self, released: dict[str, Tensor]) -> dict[str, Tensor]:
        return released

    def saved(self, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def clean(self, path: Path, entries: Mapping[str, Any]) -> None:
        """Remove the files of earlier saves to ``path``; rank 0 calls this when the state is written."""

    def load(
        self, path: Path, entries: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        model.load_state_dict(entries["model"])
        state: dict[str, Any] = entries["optimizer"]
        return state


@final
class _NoiseBuffers(Sums):
    """A buffer of noise N(0, std^2 / R) for each parameter, drawn when the engine first accesses it."""

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
        if device.type in _DRAWING and on_device.draws(parameters):
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
                self._draw(name)
        return self._drawn[name]

    def _draw(self, name: str) -> None:
        # Small parameters are drawn with this one, as few operations are faster.
        names = [name]
        room = _TOGETHER - self._parameters[name].numel()
        for other, parameter in self._parameters.items():
            if parameter.numel() <= min(room, _SMALL) and other != name and other not in self._drawn:
                names.append(other)
                room -= parameter.numel()

        buffers = {}
        for each in names:
            parameter = self._parameters[each]
            dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
            buffers[self._index[each]] = torch.empty(tuple(parameter.shape), dtype=dtype)
        self._noise.fill_each(buffers)
        for each, buffer in zip(names, buffers.values(), strict=True):
            self._drawn[each] = buffer.to(self._parameters[each].device)

    @property
    def noise(self) -> Mapping[str, Tensor]:
        return self

    def released(self) -> dict[str, Tensor]:
        sums = {name: self[name] for name in self._parameters}
        self._ranks.sum_([*sums.values()])
        return sums

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


_NAMED = 3  # the most differences that an error names
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@final
class Together(Part):
    """Checks that all ranks perform the same run, with the facts of ``run``, and the same model."""

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
        self.agreed, self.idle = False, ranks.ranks == 1

    def before(self, step: int, indices: Indices) -> None:
        self.agree()
        self.check_model(self._trained)

    def after(self, step: int, loss: float | None) -> None:
        if step + 1 == self._steps:
            self.check_model()

    def agree(self) -> None:
        """Refuse a rank whose run differs from that of rank 0; the ranks compare their runs once."""
        if self.agreed or self.idle:
            return
        facts = self._run()
        assert facts is not None  # the session is alive, because it takes a step
        mine = self._ranks.each(facts)
        first = self._ranks.from_first(lambda: mine)

        def check() -> None:
            if differing := differences(first, mine):
                raise PrivacyRefusal(
                    f"process {self._ranks.rank} of this run differs from process 0 in: "
                    f"{', '.join(differing)}. Give each process the same script, records, plan and settings."
                )

        self._ranks.each(check)
        self.agreed = True

    def check_model(self, weights: Mapping[str, Tensor] | None = None) -> None:
        """Compare the optimizer's settings, the model's mode and ``weights`` (default: all) with rank 0."""
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
                    f"the model of process {ranks.rank} differs from that of process 0: {how}. No step was "
                    "taken. Adding a record can move others to another process. With different models, this "
                    "could change the sum by more than the noise hides. Give each process the same "
                    "optimizer, settings, schedule and loop, on the same kind of processor. Then resume "
                    "from the last saved state."
                )

        ranks.each(check)


@dataclass(frozen=True)
class _Copy:
    """The facts that ranks compare: the optimizer's settings, each module's mode, sums of weight bits."""

    settings: dict[str, str]
    training: tuple[bool, ...]
    weights: dict[str, int]


def _copy(model: nn.Module, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> _Copy:
    sums = []
    for tensor in weights.values():
        plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        sums.append(plain.view(_WORDS[plain.element_size()]).sum(dtype=torch.int64))
    numbers = torch.stack(sums).tolist() if sums else []  # one wait for the device
    training = tuple(module.training for module in model.modules())
    return _Copy(_settings(optimizer), training, dict(zip(weights, numbers, strict=True)))


def _difference(first: _Copy, mine: _Copy) -> str:
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
    groups, texts = optimizer.param_groups, {"the class": type(optimizer).__name__}
    for number, group in enumerate(groups):
        of = f" of group {number}" if len(groups) > 1 else ""
        texts[f"the number of parameters{of}"] = str(len(group["params"]))
        texts.update({f"{name}{of}": _text_of(group[name]) for name in group if name != "params"})
    return texts


def _text_of(setting: Any) -> str:
    plain = setting.tolist() if isinstance(setting, Tensor) else setting
    return re.sub(r" at 0x[0-9a-f]+", "", repr(plain))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
