"""Query clients and a training run on one ledger, all killed again and again: a program, for it forks.

``python torture_end_to_end.py '{"url": ..., "folder": ..., "clients": 20}'`` prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from torture_processes import Log, demand, fork, kill, shown

from tacit.errors import BudgetExceeded, PrivacyRefusal
from tacit.ledger import Column, Ledger, Policy, RenyiBudget
from tacit.plan import Plan
from tacit.queries import Compare, Count, PrivateTable, Query, register_table
from tacit.report.certificate import check_certificate, make_certificate
from tacit.training import PrivateSession, StepCharges

PEOPLE = 300
STEPS, CHUNK = 60, 4
QUESTIONS = 30
POLICY = Policy(
    unit="patient",
    adjacency="add-remove",
    budget=RenyiBudget(epsilon=6.0, delta=1e-5),
    columns={"age": Column(kind="integer", lower=0, upper=120)},
)


def table() -> pd.DataFrame:
    """The people, the same in every process."""
    dice = np.random.default_rng(0)
    return pd.DataFrame({"age": dice.integers(0, 100, PEOPLE), "ill": dice.integers(0, 2, PEOPLE)})


def ask(url: str, folder: Path, client: int, pause: float) -> None:
    """Ask one question after the other, those of earlier lives too; show each answer."""
    log = Log(folder / f"client-{client}.log")
    ledger = Ledger.open(url)
    with closing(ledger), PrivateTable(table(), ledger=ledger, dataset="visits") as private:
        for number in range(QUESTIONS):
            query = Query((Count(),), where=Compare("age", ">", number * 100 + client))
            try:
                answer = private.ask(query, epsilon=0.05, by=f"client {client}")
            except BudgetExceeded:
                log.write(refused=number)
                return
            except PrivacyRefusal:  # an earlier life died with the answer: it is spent, and not shown
                log.write(lost=number)
                continue
            log.write(key=answer.charge, rows=repr(answer.rows), repeated=answer.repeated)
            time.sleep(pause)


def losses(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the loss of each person."""
    return F.cross_entropy(model(x), y, reduction="none")


def learn(url: str, folder: Path, pause: float) -> None:
    """Train from where an earlier life was saved; show each step before it is told anybody."""
    torch.manual_seed(0)
    log, state = Log(folder / "run.log"), folder / "resume.pt"
    people = table()
    x = torch.tensor(people["age"].to_numpy() / 100.0, dtype=torch.float32)[:, None]
    y = torch.tensor(people["ill"].to_numpy())
    plan = Plan.with_noise(
        noise_multiplier=4.0,
        delta=1e-5,
        records=PEOPLE,
        batch_size=30,
        steps=STEPS,
        clipping=1.0,
        adjacency="add-remove",
        unit="patient",
    )
    with closing(Ledger.open(url)) as ledger:
        charges = StepCharges(ledger, "visits", plan, chunk=CHUNK)
        model = nn.Linear(1, 2)
        run = PrivateSession(
            model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), plan, loss=losses, charges=charges
        )
        if state.exists():
            run.load(state)
        else:
            run.save(state)
        for batch in run.batches():
            run.step(batch)
            log.write(
                run=charges.run,
                step=run.steps_done - 1,
                time=time.time(),
                weights=[float(w) for p in model.parameters() for w in p.detach().flatten()],
            )
            if run.steps_done % 5 == 0:
                run.save(state)
            time.sleep(pause)
        log.write(run=charges.run, done=run.steps_done, stopped=run.stopped)


def end_to_end(url: str, folder: Path, *, clients: int, kills: int, seed: int = 0) -> dict[str, Any]:
    """Kill everything, again and again, then let it end, and hold the ledger against all that was shown.

    Each kill comes at a random moment after a random number of steps of the run.
    """
    dice = random.Random(seed)
    torch.set_num_threads(1)
    with closing(Ledger.create(url)) as ledger:
        ledger.open_dataset("visits", POLICY)
        register_table(table(), ledger=ledger, dataset="visits")
    lines: list[dict[str, Any]] = []
    for life in range(kills + 1):
        pause = 0.2 if life < kills else 0.0
        children = [fork(partial(learn, url, folder, pause / 10))]
        children += [fork(partial(ask, url, folder, client, pause)) for client in range(clients)]
        if life < kills:
            wait_for(folder / "run.log", dice.randrange(1, STEPS // (kills + 1)))
            time.sleep(dice.uniform(0.0, 0.1))
            kill(children)
        else:
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            demand(not any(codes), f"a client died too early: {codes}")
        lines += shown(folder)
    with closing(Ledger.open(url)) as ledger:
        return {"clients": clients, "kills": kills} | compared(ledger, lines)


def wait_for(log: Path, lines: int) -> None:
    """Wait until a log has ``lines`` lines."""
    for _ in range(30_000):
        if log.exists() and log.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.01)
    demand(False, f"{log.name} has not {lines} lines after five minutes")


def compared(ledger: Ledger, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Hold what was shown against the ledger, and the ledger against its certificate."""
    found = ledger.verify("visits", anchor=ledger.anchor("visits"))
    demand(found.ok, f"{found.problems}")
    status, entries = ledger.status("visits"), ledger.history("visits")
    reserved = [entry for entry in entries if entry.kind == "reserve"]
    replayed = tuple(map(sum, zip(*(entry.body["cost"] for entry in reserved), strict=True)))
    certificate = make_certificate(ledger, "visits")
    certified = tuple(certificate.data["guarantee"]["spent"]["units"])
    demand(replayed == found.spent == status.spent == certified, f"{replayed}, {status.spent}, {certified}")
    check = check_certificate(certificate.data, ledger=ledger)
    demand(check.agrees, f"{check.problems}")
    demand(status.spent_epsilon <= status.cap_epsilon, "the cap is overspent")
    answers: dict[str, Any] = {}
    for line in lines:
        if "rows" in line:
            demand(answers.setdefault(line["key"], line["rows"]) == line["rows"], "two answers to a question")
    for key in answers:
        charge = ledger.find("visits", key)
        demand(charge is not None and charge.state == "SETTLED", f"an answer without its charge: {charge}")
    steps = check_steps(reserved, [line for line in lines if "weights" in line])
    return {
        "charges": status.charges,
        "answers": len(answers),
        "asked again": sum(line.get("repeated", False) for line in lines),
        "lost": len({entry.body["key"] for entry in reserved if "/" not in entry.body["key"]} - set(answers)),
        "refused": sum("refused" in line for line in lines),
        "steps": steps,
        "steps taken again": sum("weights" in line for line in lines) - steps,
        "epsilon, certified and replayed": certificate.data["guarantee"]["spent"]["epsilon"],
        "cap": status.cap_epsilon,
    }


def check_steps(reserved: list[Any], steps: list[dict[str, Any]]) -> int:
    """No step without an earlier reservation; a step that is taken again is the same step.  Their number."""
    paid: dict[tuple[str, int], float] = {}
    for entry in reserved:
        kind, *rest = entry.body["key"].split("/")
        if kind == "training" and rest:
            first, stop = map(int, rest[1].split("-"))
            paid |= {(rest[0], step): entry.time.timestamp() for step in range(first, stop)}
    weights: dict[tuple[str, int], Any] = {}
    for line in steps:
        step = line["run"], line["step"]
        demand(step in paid, f"step {step} is not paid for")
        demand(paid[step] <= line["time"], f"step {step} was taken before it was paid for")
        demand(weights.setdefault(step, line["weights"]) == line["weights"], f"step {step} differs")
    demand(len({run for run, _ in weights}) <= 1, "a resumed run is another run")
    return len(weights)


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    result = end_to_end(order.pop("url"), Path(order.pop("folder")), **order)
    sys.stdout.write(json.dumps(result) + "\n")
