"""Jobs of two processes for the tests of several ranks, by name; each also runs in one process alone.

Run as a script it is one rank of a pool; :class:`Pool` starts two and sends both the same job.
"""

from __future__ import annotations

import faulthandler
import gc
import math
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import warm
from made import a_plan, finish
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.clipping import AdaptiveClipping
from tacit.collate import pad
from tacit.correlation import BLT, Banded
from tacit.ledger import Ledger
from tacit.noise.gaussian import StepNoise
from tacit.plan import LossReport, Plan
from tacit.sampling import ByDate, CyclicPoissonSampling, PoissonSampling, ShuffledBatches
from tacit.testing import seeded_generator
from tacit.training import (
    Alone,
    AuditSlots,
    DatedRecords,
    FlipAndCrop,
    PrivateSession,
    ProcessRanks,
    StepCharges,
    UserRecords,
    step,
)
from tacit.training.charges import Payment
from tacit.training.ranks import Ranks, Together

N, D, CLASSES = 60, 5, 3
SECONDS = 25
"""After so many a rank that waits prints where, and ends."""

Rows = NDArray[np.float64]


# --- a session -------------------------------------------------------------------------------------------


def data(shape: tuple[int, ...] = (D,), dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(3)
    return torch.randn(N, *shape, generator=draws, dtype=dtype), torch.arange(N) % CLASSES


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x.flatten(1)), y, reduction="none")


def padded_losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the losses of records that may be shorter."""
    return losses(model, F.pad(x, (0, D - x.shape[1])), y)


class Items(torch.utils.data.Dataset[Any]):
    """Gives the same records one by one; reading ``broken`` fails."""

    def __init__(self) -> None:
        self.x, self.y = data()
        self.broken: int | None = None

    def __len__(self) -> int:
        return N

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        if position == self.broken:
            raise OSError(5, "Input/output error")
        return self.x[position], self.y[position]


def plan(**changes: Any) -> Plan:
    return a_plan(**{"steps": 24, **changes})


KINDS: dict[str, dict[str, Any]] = {
    "arrays": {},
    "small batches": {"plan": {"batch_size": 1}},
    "once an epoch": {"plan": {"sampling": "epochs"}, "items": True, "workers": 1},
    "users": {"plan": {"records": 20, "batch_size": 7, "unit": "user"}, "owners": 20},
    "correlated": {"plan": {"correlation": Banded.square_root(3), "sampling": CyclicPoissonSampling(1.0, 3)}},
    "stream": {
        "plan": {
            "records": 20,
            "unit": "user",
            "correlation": BLT((0.9,), (0.3,)),
            "sampling": ByDate(3, 2),
            "steps": 50,
        },
        "owners": 20,
        "dated": "2026-03-01",
    },
    "adaptive": {"plan": {"clipping": AdaptiveClipping(0.5), "loss_report": LossReport(bound=3.0)}},
    "views": {"plan": {"views": 2}, "augmentation": FlipAndCrop(1), "shape": (1, 2, 3)},
    "audited": {"audit": AuditSlots(8)},
    "reference": {"engine": "reference"},
    "workers": {"items": True, "workers": 1},
    "lengths": {"loss": padded_losses, "collate": pad(length={0: (2, D)}), "short": True},
}
BY_PERSON = {"owners": np.arange(N) // 3, "plan": {"records": 20, "batch_size": 7, "unit": "user"}}
OF_OWN: dict[str, dict[str, Any]] = {
    **{kind: settings for kind, settings in KINDS.items() if kind not in ("users", "stream", "views")},
    "people": BY_PERSON,
    "rows of people": {"owners": BY_PERSON["owners"], "plan": {"rows_per_user": 2, "unit": "user"}},
    "largest batch": {"plan": {"largest_batch": 24}},
    "shuffled": {"plan": {"sampling": ShuffledBatches(20, N), "adjacency": "zero-out"}},
    "all": {"plan": {"batch_size": N}},
}
"""Runs whose ranks may have records of their own."""
CUT = 24  # the first record of rank 1


def session(
    ranks: Ranks, kind: str = "arrays", *, width: int = 4, dtype: str = "float64", **changes: Any
) -> PrivateSession:
    """Model and key differ by rank, and the session makes them those of rank 0."""
    settings = {**(OF_OWN | KINDS)[kind], **changes}
    shape = settings.pop("shape", (D,))
    the_plan = plan(**settings.pop("plan", {}))
    torch.manual_seed(1 + ranks.rank)
    size = math.prod(shape)
    net = nn.Sequential(nn.Linear(size, width), nn.Tanh(), nn.Linear(width, CLASSES)).to(
        getattr(torch, dtype)
    )
    if settings.pop("short", False):
        x, y = data()
        settings["records"] = (x * (torch.arange(N) % 3 > 0)[:, None].where(torch.arange(D) > 1, True), y)
    records: Any = settings.pop("records", Items() if settings.pop("items", False) else data(shape))
    mine = np.arange(N)
    if settings.pop("own", False) and ranks.ranks > 1:
        ranks = ProcessRanks(own_records=True)
        mine = settings.pop("mine", [mine[:CUT], mine[CUT:]])[ranks.rank]
        if isinstance(records, tuple):
            records = tuple(part[mine] for part in records)
        else:
            records = torch.utils.data.Subset(records, mine.tolist())
    if (users := settings.pop("owners", None)) is not None:
        of_row = np.arange(N) % users if isinstance(users, int) else users
        records = UserRecords(records, of_row[mine], rows_per_user=2)
    if (until := settings.pop("dated", None)) is not None:
        days = np.datetime64("2026-01-01") + np.arange(N) // 2
        records = DatedRecords(records, days, first="2026-01-01", until=until, too_often="skip")
    return PrivateSession(
        net,
        settings.pop("optimizer", lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9))(net.parameters()),
        records,
        the_plan,
        loss=settings.pop("loss", losses),
        ranks=settings.pop("given", ranks),
        generator=seeded_generator(8 + ranks.rank),
        **settings,
    )


def weights(run: PrivateSession) -> Rows:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()]).double().numpy()


# --- planted bugs ----------------------------------------------------------------------------------------


def noise_times(factor: float) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        made = StepNoise.__init__

        def scaled(self: StepNoise, *rest: Any, **options: Any) -> None:
            made(self, *rest, **options)
            self._std *= factor

        patch.setattr(StepNoise, "__init__", scaled)

    return plant


def _own_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ranks, "share_secret", lambda ranks, generator: generator)


def _own_key_unnoticed(patch: pytest.MonkeyPatch) -> None:
    _own_key(patch)
    patch.setattr(Together, "agree", lambda together: None)


def _empty_slice_is_skipped(patch: pytest.MonkeyPatch) -> None:
    parts = step._parts

    def noted(run: Any, number: int, count: int) -> Iterator[Any]:
        StepNoise._skip = count <= run.ranks.rank  # type: ignore[attr-defined]
        return parts(run, number, count)

    fill = StepNoise.fill_each

    def skipped(self: StepNoise, outs: Any) -> None:
        fill(self, outs)
        for out in outs.values() if StepNoise._skip else ():  # type: ignore[attr-defined]
            out.zero_()

    patch.setattr(step, "_parts", noted)
    patch.setattr(StepNoise, "fill_each", skipped)


def _no_sum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProcessRanks, "sum_", lambda ranks, tensors: None)


def _mean(patch: pytest.MonkeyPatch) -> None:
    whole = ProcessRanks.sum_

    def halved(ranks: ProcessRanks, tensors: Any) -> None:
        whole(ranks, tensors)
        for tensor in tensors:
            tensor.div_(ranks.ranks)

    patch.setattr(ProcessRanks, "sum_", halved)


def _every_rank_takes_all(patch: pytest.MonkeyPatch) -> None:
    parts = step._parts

    def of_all(run: Any, number: int, count: int) -> Iterator[Any]:
        return parts(SimpleNamespace(plan=run.plan, physical=run.physical, ranks=Alone()), number, count)

    patch.setattr(step, "_parts", of_all)


def _every_rank_charges(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrivateSession, "_is_paid_for", lambda run: True)
    make = Payment.__init__

    def own(payment: Payment, charges: StepCharges | None, *rest: Any) -> None:
        make(payment, charges, *rest)
        payment.charges = charges

    patch.setattr(Payment, "__init__", own)
    patch.setattr(ProcessRanks, "from_first", lambda ranks, function: function())
    patch.setattr(Together, "agree", lambda together: None)
    patch.setattr(Ranks, "share_secret", lambda ranks, generator: generator)


def _same_addresses(patch: pytest.MonkeyPatch) -> None:
    within = PoissonSampling.indices_within

    def from_zero(sampling: PoissonSampling, generator: Any, step: int, records: int, own: range) -> Any:
        return within(sampling, generator, step, records, range(len(own))) + own.start

    patch.setattr(PoissonSampling, "indices_within", from_zero)


def _one_forgets_its_noise(patch: pytest.MonkeyPatch) -> None:
    fill = StepNoise.fill_each

    def forgotten(self: StepNoise, outs: Any) -> None:
        fill(self, outs)
        for out in outs.values() if self._rank == 1 else ():
            out.zero_()

    patch.setattr(StepNoise, "fill_each", forgotten)


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "same addresses": _same_addresses,
    "one rank forgets its noise": _one_forgets_its_noise,
    "full noise at each rank": noise_times(math.sqrt(2)),
    "noise divided by R": noise_times(1 / math.sqrt(2)),
    "own key": _own_key,
    "own key, unnoticed": _own_key_unnoticed,
    "an empty slice adds no noise": _empty_slice_is_skipped,
    "no sum": _no_sum,
    "mean for sum": _mean,
    "every rank takes all": _every_rank_takes_all,
    "every rank charges": _every_rank_charges,
}


@contextmanager
def planted(
    bug: str | None, bugs: Mapping[str, Callable[[pytest.MonkeyPatch], None]] = PLANTED
) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if bug is not None:
            bugs[bug](patch)
        yield


# --- jobs ------------------------------------------------------------------------------------------------


def released(
    ranks: Ranks,
    *,
    kind: str = "arrays",
    steps: int = 3,
    noise: bool = False,
    bug: str | None = None,
    **changes: Any,
) -> tuple[Rows, list[Any]]:
    """Return the sums (T, P) that the steps give the optimizer, times B, at fixed weights; and scalars."""
    rows, scalars = [], []
    with planted(bug), pytest.MonkeyPatch.context() as patch:
        if not noise:
            patch.setattr(StepNoise, "fill_each", lambda _, outs: [out.zero_() for out in outs.values()])
        run = session(ranks, kind, **changes)
        patch.setattr(
            run._run.optimizer,
            "step",
            lambda gradients: rows.append(torch.cat([g.flatten() for g in gradients.values()])),
        )
        for ticket in run.batches():
            report = run.step(ticket)
            scalars.append((report.loss, *run.thresholds))
            if run.steps_done == steps:
                break
    return (torch.stack(rows) * run.plan.expected_batch_size).numpy(), scalars


def trained(
    ranks: Ranks,
    *,
    kind: str = "arrays",
    stop: int | None = None,
    save: Path | None = None,
    load: Path | None = None,
    **changes: Any,
) -> Rows:
    """Return the weights after ``stop`` steps, or after all."""
    run = session(ranks, kind, **changes)
    if load is not None:
        run.load(load)
        if kind == "stream":  # which may have further days than the state
            run.save(load)
    finish(run, stop)
    if save is not None:
        run.save(save)
    return weights(run)


def charged(
    ranks: Ranks, *, url: str, bug: str | None = None, each: bool = True, own: bool = False
) -> dict[str, Any]:
    """Train on a ledger; with ``each``, every rank gives the session its charges, as one script does."""
    with planted(bug), closing(Ledger.open(url)) as ledger:
        the_plan = plan()
        charges = None
        if each or ranks.first:
            generator = seeded_generator(8 + ranks.rank)
            charges = StepCharges(ledger, "people", the_plan, ranks=ranks, generator=generator)
        run = finish(session(ranks, charges=charges, audit=None, own=own))
        return {"done": run.steps_done, "stopped": run.stopped, "refusal": repr(run.refusal)}


def short(ranks: Ranks, *, rank: int | None, physical: int | str = 8, steps: int = 3) -> tuple[Rows, int]:
    """Return the weights after some steps, and the last batch size; one rank has memory for a size of 3."""
    run = session(ranks, physical_batch_size=physical, plan={"steps": steps})
    engine: Any = run._run.engine
    add = engine._add

    def limited(sums: Any, batch: Any, thresholds: Tensor, scale: float) -> Any:
        found = add(sums, batch, thresholds, scale)
        physical = run._run.physical
        size = physical.at(run.steps_done) if physical._sizes else len(batch[0])
        if size > 3 and ranks.rank == rank:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return found

    engine._add = limited
    run._run.physical._sizes = {} if physical == "auto" else run._run.physical._sizes  # as on a device
    finish(run)
    return weights(run), run._run.physical.at(steps)


def failing(ranks: Ranks, *, rank: int) -> tuple[int, str, str, bool]:
    """Return each rank's error about a record that one cannot read, and whether its model stayed the same."""
    items = Items()
    run = session(ranks, records=items)
    run.step(next(run.batches()))
    if ranks.rank == rank:
        items.broken = int(plan().sampling.indices(seeded_generator(8), 1, N)[rank])
    before = weights(run)
    try:
        run.step(next(run.batches()))
    except Exception as problem:  # noqa: BLE001 (the test looks at it)
        told = type(problem).__name__, str(problem)
    return run.steps_done, *told, bool((weights(run) == before).all())


def disagreeing(ranks: Ranks, *, what: str) -> tuple[str, str]:
    """Return each rank's error if rank 1 has another setting."""
    others: dict[str, dict[str, Any]] = {
        "physical": {"physical_batch_size": 7},
        "plan": {"plan": {"steps": 23}},
        "engine": {"engine": "reference"},
    }
    run = session(ranks, **others[what] if ranks.rank == 1 else {})
    try:
        run.step(next(run.batches()))
    except Exception as problem:  # noqa: BLE001 (the test looks at it)
        return type(problem).__name__, str(problem)
    return "nothing", ""


def _frame(names: list[str], rows: slice) -> Any:
    x, y = data()
    return pd.DataFrame(x[rows, :2].numpy(), columns=names), y[rows]


def _more_losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return 2 * losses(model, x, y)


def unlike(ranks: Ranks, *, what: str, url: str) -> tuple[str, str]:
    """Return each rank's error if rank 1 has other records, or another run, with records of its own."""
    every, first = np.arange(N), ranks.first
    rows = every[:CUT] if first else every[CUT:]
    x, y = data()
    mine = (x[rows], y[rows])
    changes: dict[str, dict[str, Any]] = {
        "too many": {"records": (x, y)},
        "same": {"records": (x[:CUT], y[:CUT])},
        "columns": {"records": _frame(["age", "dose"] if first else ["dose", "age"], slice(CUT))},
        "structure": {"records": dict(zip(("x", "y") if first else ("x", "label"), mine, strict=True))},
        "tensors": {"records": (mine[0] if first else mine[0].float()[:, :4], mine[1])},
        "people": {
            "records": UserRecords(mine, rows // 5, rows_per_user=2),
            "plan": {"records": 20, "batch_size": 7, "unit": "person"},
        },
        "not own": {"ranks": ProcessRanks(own_records=first)},
        "plan": {"plan": {} if first else {"clipping": 0.6}},
        "loss": {"loss": losses if first else _more_losses},
        "dated": {
            "records": DatedRecords(mine, np.datetime64("2026-01-01") + rows, first="2026-01-01"),
            "plan": {"sampling": ByDate(), "batch_size": 1},
        },
    }
    settings = {"records": mine, "ranks": ProcessRanks(own_records=True), **changes[what]}
    the_plan, own = plan(**settings.pop("plan", {})), settings.pop("ranks")
    generator = seeded_generator(8)
    net = nn.Linear(D, CLASSES, dtype=torch.float64)
    with closing(Ledger.open(url)) as ledger:
        try:
            charges = None
            if the_plan.unit == "row":
                charges = StepCharges(ledger, "people", the_plan, ranks=own, generator=generator)
            run = PrivateSession(
                net, torch.optim.SGD(net.parameters(), lr=0.5), settings["records"], the_plan,
                loss=settings.get("loss", losses), ranks=own, charges=charges, generator=generator,
            )  # fmt: skip
            run.step(next(run.batches()))
        except Exception as problem:  # noqa: BLE001 (the test looks at it)
            return type(problem).__name__, str(problem)
    return "nothing", ""


def apart(ranks: Ranks, *, what: str, save: Path) -> dict[str, tuple[int, str, str]]:
    """Let rank 1 differ from rank 0; return the steps taken and each rank's error, by the call."""
    run = session(
        ranks, optimizer=lambda p: torch.optim.SGD(p, lr=0.5 if ranks.first or what != "lr" else 0.1)
    )
    tickets = run.batches()
    if what != "lr":
        run.step(next(tickets))
    if what == "the end":
        for _ in range(run.plan.steps - 2):
            run.step(next(tickets))

    def moved(*_: object) -> None:
        with torch.no_grad():
            next(run.model.parameters())[0, 0] += 1e-6

    if not ranks.first:
        match what:
            case "schedule":
                run.optimizer.param_groups[0]["lr"] = torch.tensor(0.25)
            case "weights":
                moved()
            case "the end":
                run.optimizer.register_step_post_hook(moved)
            case "mode":
                run.model[1].eval()  # type: ignore[index]
    calls: dict[str, Callable[[], object]] = {
        "save": lambda: run.save(save), "step": lambda: run.step(next(run.batches()))
    }  # fmt: skip
    told = {}
    for name, call in calls.items():
        try:
            call()
        except Exception as problem:  # noqa: BLE001 (the test looks at it)
            told[name] = run.steps_done, type(problem).__name__, str(problem)
    return told


def primitives(ranks: Ranks) -> dict[str, Any]:
    """Return the results of the methods of ``Ranks``."""
    own = ranks.rank + 1
    sums = [torch.full((3,), 1.0 * own), torch.full((2, 2), 10.0 * own, dtype=torch.float64), torch.zeros(0),
            torch.full((4, 2), 1.0 * own).t(), torch.full((7 * 2**20,), 1.0 * own)]  # fmt: skip
    ranks.sum_(sums)
    copied = [torch.full((2,), own), torch.tensor(own == 1), torch.full((2,), own, dtype=torch.bfloat16)]
    ranks.copy_from_first(copied)

    def refused() -> int:
        raise ValueError("only here")

    told = ""
    try:
        ranks.from_first(refused)
    except ValueError as problem:
        told = str(problem)
    return {
        "sums": [tensor.flatten()[:1].tolist() for tensor in sums],
        "copied": [tensor.tolist() for tensor in copied],
        "total": ranks.total(lambda: (1.0 * own, -2.0)),
        "from first": ranks.from_first(lambda: own),
        "told": told,
    }


JOBS: dict[str, Callable[..., Any]] = {
    job.__name__: job
    for job in (released, trained, charged, short, failing, disagreeing, unlike, apart, primitives)
}


# --- the pool --------------------------------------------------------------------------------------------


class Pool:
    """Two processes that do jobs as the ranks of one run."""

    def __init__(self, world: int = 2, *, script: str = __file__) -> None:
        self._folder = tempfile.TemporaryDirectory()
        key = secrets.token_bytes(16)
        with Listener(str(Path(self._folder.name) / "talk"), authkey=key) as listener:
            self.processes = [
                warm.start(
                    script, self._folder.name, str(world), str(rank), env={**os.environ, "TALK": key.hex()}
                )
                for rank in range(world)
            ]
            found = [listener.accept() for _ in range(world)]
        self._ranks: dict[int, Connection[Any, Any]] = {connection.recv(): connection for connection in found}

    def __call__(self, job: str, **settings: Any) -> list[Any]:
        """Return the result of the job at each rank."""
        self.send(job, **settings)
        return [self.receive(rank) for rank in range(len(self._ranks))]

    def send(self, job: str, **settings: Any) -> None:
        for connection in self._ranks.values():
            connection.send((job, settings))

    def receive(self, rank: int) -> Any:
        answer = self._ranks[rank].recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        for connection in self._ranks.values():
            connection.close()
        for process in self.processes:
            process.join(SECONDS)
        self._folder.cleanup()


def serve(jobs: dict[str, Callable[..., Any]]) -> None:
    """Run as the rank that the command line names."""
    folder, world, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    with Client(str(Path(folder) / "talk"), authkey=bytes.fromhex(os.environ["TALK"])) as connection:
        connection.send(rank)
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world)
        gc.collect()
        gc.freeze()  # each time that memory is short, the collector runs
        while True:
            try:
                job, settings = connection.recv()
            except (EOFError, ConnectionResetError):
                break
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            try:
                answer = jobs[job](ProcessRanks(), **settings)
            except Exception as problem:  # noqa: BLE001 (the test raises it)
                answer = problem
            faulthandler.cancel_dump_traceback_later()
            connection.send(answer)
        dist.destroy_process_group()


if __name__ == "__main__":
    serve(JOBS)
