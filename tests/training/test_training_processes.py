"""Several processes, and wrappers made for them: refused by name, before a record is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import warm
from made import a_ledger, a_plan, a_session, finish, losses, network, one_step
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.utils.data import Dataset

from tacit.clipping import FlatClipping
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import InvalidInput, PrivacyRefusal, UnsupportedModel
from tacit.runs import prepare
from tacit.training import PrivateSession, StepCharges, select_candidate

N = 40
PLAN = a_plan(noise_multiplier=2.0, records=N, steps=4)


class Counted(Dataset[Any]):
    """Counts how often a record is read."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        self.read += 1
        return torch.full((4,), position / N), position % 2


def session(**changes: Any) -> PrivateSession:
    net, data = changes.pop("model", None) or network(4, 2), changes.pop("data", Counted())
    return a_session(net, data, PLAN, **{"lr": 0.1, "generator": None, **changes})


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """Make a process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


RANK = """
import sys
import torch
import torch.distributed as dist
from tacit import Plan, PrivateSession
from tacit.errors import PrivacyRefusal


class Data(torch.utils.data.Dataset):
    read = 0

    def __len__(self):
        return 40

    def __getitem__(self, position):
        self.read += 1
        return torch.full((4,), position / 40), position % 2


def session(data):
    net = torch.nn.Linear(4, 2)
    plan = Plan.with_noise(
        noise_multiplier=2.0, delta=1e-3, records=40, steps=4, clipping=0.5,
        adjacency="add-remove", unit="row",
    )
    losses = lambda net, x, y: torch.nn.functional.cross_entropy(net(x), y, reduction="none")
    return PrivateSession(net, torch.optim.SGD(net.parameters(), lr=0.1), data, plan, loss=losses)


data = Data()
earlier = session(data)
turn = next(earlier.batches())
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]), world_size=2)
for go_on in (lambda: session(data), lambda: earlier.step(turn)):
    try:
        go_on()
    except PrivacyRefusal as refusal:
        print(refusal, "READ", data.read)
dist.barrier()
dist.destroy_process_group()
"""


def test_each_of_two_processes_is_refused_before_a_record_is_read(tmp_path: Path) -> None:
    """Sessions made in the group and before it are refused."""
    (tmp_path / "rank.py").write_text(RANK)
    outputs = [tmp_path / str(rank) for rank in range(2)]
    ranks = [
        warm.start(tmp_path / "rank.py", str(rank), str(tmp_path / "group"), streams=(os.devnull, output))
        for rank, output in enumerate(outputs)
    ]
    for rank in ranks:
        rank.join(warm.SECONDS)
    for told in [output.read_text() for output in outputs]:
        assert told.count("a process group of 2 processes") == 2
        assert told.count("ranks=tacit.training.ProcessRanks()") == 2
        assert told.count("READ 0") == 2


def test_one_process_in_a_group_of_its_own_goes_on(alone: None) -> None:
    made = session()
    finish(made)
    assert made.steps_done == 4


def launched(monkeypatch: pytest.MonkeyPatch, world: str, rank: str | None = "1") -> None:
    monkeypatch.setenv("WORLD_SIZE", world)
    if rank is None:
        monkeypatch.delenv("RANK", raising=False)
    else:
        monkeypatch.setenv("RANK", rank)


@pytest.mark.parametrize("door", ["session", "step", "charges", "select", "configuration"])
def test_a_script_under_torchrun_is_refused_at_every_door(
    door: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ledger = a_ledger(dataset="people")
    data = Counted()
    made = session(data=data, charges=StepCharges(ledger, "people", PLAN))
    turn = next(made.batches())
    reserved = len(ledger.status("people").charges)
    doors: dict[str, Callable[[], object]] = {
        "session": lambda: session(data=data),
        "step": lambda: made.step(turn),
        "charges": lambda: StepCharges(ledger, "people", PLAN),
        "select": lambda: select_candidate(
            [0.1], lambda _: session(), lambda _: 0.0, plan=PLAN, ledger=ledger, dataset="people", mean=2
        ),
        "configuration": lambda: prepare(tmp_path / "none.toml"),
    }
    launched(monkeypatch, "2")
    with pytest.raises(PrivacyRefusal, match=r"torchrun started this script in 2 processes.*WORLD_SIZE=2"):
        doors[door]()
    assert data.read == 0
    assert len(ledger.status("people").charges) == reserved
    ledger.close()


@pytest.mark.parametrize(("world", "rank"), [("1", "0"), ("2", None), ("", "0"), ("many", "0")])
def test_one_process_and_what_says_nothing_are_not_refused(
    world: str, rank: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "2")
    launched(monkeypatch, world, rank)
    assert session().plan is PLAN


def test_planted_bug_without_the_check_two_processes_train_two_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched(monkeypatch, "2")
    monkeypatch.setattr("tacit.training.run.check_one_process", lambda: None)
    ranks = [session() for _ in range(2)]
    for made in ranks:
        finish(made)
    one, two = (next(made.model.parameters()) for made in ranks)
    assert float((one - two).abs().max().detach()) > 1e-3  # they began with the same weights


# --- what wraps a model ----------------------------------------------------------------------------------


def sharded() -> nn.Module:
    net = nn.Linear(4, 2)
    fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
    return net


def of_dtensors(trained: bool) -> nn.Module:
    first = nn.Linear(4, 4)
    weight = distribute_tensor(first.weight.detach(), init_device_mesh("cpu", (1,)), [Replicate()])
    first.weight = nn.Parameter(weight, requires_grad=trained)
    return nn.Sequential(first, nn.Linear(4, 2))


WRAPPED: dict[str, Any] = {
    "DDP": (lambda: nn.parallel.DistributedDataParallel(nn.Linear(4, 2)), "DistributedDataParallel"),
    "DDP inside": (
        lambda: nn.Sequential(nn.Flatten(), nn.parallel.DistributedDataParallel(nn.Linear(4, 2))),
        r"module '1' \(DistributedDataParallel\)",
    ),
    "FSDP1": (
        lambda: FullyShardedDataParallel(nn.Linear(4, 2), device_id=torch.device("cpu")),
        r"the model \(FullyShardedDataParallel\)",
    ),
    "FSDP2": (sharded, r"the model \(FSDPLinear\)"),
    "DTensor": (lambda: of_dtensors(True), "parameter '0.weight' is a DTensor"),
    "frozen DTensor": (lambda: of_dtensors(False), "parameter '0.weight' is a DTensor"),
}


@pytest.mark.filterwarnings("ignore:FSDP is switching")  # in a group of one there is nothing to shard
@pytest.mark.parametrize("what", WRAPPED)
def test_models_for_several_processes_are_refused_by_name(what: str, alone: None) -> None:
    make, told = WRAPPED[what]
    net = make()
    for kind in (FastEngine, ReferenceEngine):
        with pytest.raises(UnsupportedModel, match=told) as refusal:
            kind(net, losses, FlatClipping(1.0))
        assert "ranks=tacit.training.ProcessRanks()" in str(refusal.value)
        assert "model.module" not in str(refusal.value)  # which would be accepted in silence
    if what == "FSDP2":  # which a session gathers
        assert session(model=net).plan is PLAN
        return
    with pytest.raises(UnsupportedModel, match=told):
        session(model=net)


def test_a_model_that_is_sharded_later_is_refused(alone: None) -> None:
    made = session()
    fully_shard(made.model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(UnsupportedModel, match="FSDPLinear"):
        one_step(made)


class Holder:
    """An object with a loss, as trainers have one."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return losses(self.net, x, y)


class Module(nn.Module):
    """A loss that is a module."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return losses(self.net, x, y)


@pytest.mark.parametrize("engine", [FastEngine, ReferenceEngine])
@pytest.mark.parametrize("how", ["closure", "object", "module"])
def test_a_loss_around_a_wrapper_of_the_model_clips_the_gradients_of_each_record(
    how: str, engine: type[GradientEngine], alone: None
) -> None:
    """The wrapper's hooks, which average gradients over processes, do not run: no parameter gets one."""
    net = nn.Linear(4, 2)
    wrapper = nn.parallel.DistributedDataParallel(net)
    around: dict[str, Any] = {
        "closure": lambda model, x, y: losses(wrapper, x, y),
        "object": Holder(wrapper).loss,
        "module": Module(wrapper),
    }
    sums = []
    for loss in (losses, around[how]):
        made = engine(net, loss, FlatClipping(0.5))
        total = {name: torch.zeros_like(p) for name, p in made.parameters.items()}
        made.add_clipped_sum(total, (torch.randn(6, 4, generator=seed()), torch.arange(6) % 2), None, LIMIT)
        sums.append(torch.cat([part.flatten() for part in total.values()]))
        assert all(p.grad is None for p in net.parameters())
    assert torch.equal(*sums)
    assert float(sums[0].norm()) > 0


LIMIT = torch.tensor([0.5])


def seed() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# --- what wraps an optimizer -----------------------------------------------------------------------------


class AcceleratedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer as accelerate does: a subclass of Optimizer that delegates everything."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.scaler = None

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


class Duck:
    """Is no optimizer."""

    def __init__(self, parameters: Any) -> None:
        self.param_groups = [{"params": list(parameters)}]


def test_an_optimizer_around_another_is_refused_with_the_one_inside() -> None:
    net = nn.Linear(4, 2)
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(InvalidInput, match=r"AcceleratedOptimizer wraps .* Pass .*: optimizer\.optimizer\."):
        session(model=net, optimizer=AcceleratedOptimizer(inner))
    assert session(model=net, optimizer=inner).optimizer is inner
    with pytest.raises(InvalidInput, match=r"Duck has no step hooks"):
        session(model=net, optimizer=Duck(net.parameters()))
