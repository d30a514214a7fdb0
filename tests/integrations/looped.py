"""Helpers for tests of other libraries' loops: a tiny GPT-2, a session over it, the bare loop."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from made import a_plan, a_session, weights
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from tacit import Plan, PrivateSession
from tacit.errors import BudgetExceeded
from tacit.events import ApproximateDP
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.losses import causal
from tacit.testing import seeded_generator

V, L, N, STEPS, RATE = 11, 5, 24, 7, 0.01
SCHEDULE = [0.0, 0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]
"""Of a linear schedule over 7 steps with 2 of warm-up, by hand, and after them."""
plan = partial(a_plan, records=N, batch_size=8, steps=STEPS, clipping=1.0, unit="sequence")


def texts(count: int = N, seed: int = 0) -> Tensor:
    return torch.randint(1, V, (count, L), generator=torch.Generator().manual_seed(seed))


def rows(tokens: Tensor, **others: Any) -> list[dict[str, Any]]:
    return [{"input_ids": row, "labels": row, **others} for row in tokens]


def gpt2() -> Any:
    """With dropout, so that its draws are compared too."""
    config = GPT2Config(
        vocab_size=V, n_positions=L, n_embd=4, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return GPT2LMHeadModel(config).train()


def new_session(the_plan: Plan, data: Any, **settings: Any) -> PrivateSession:
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    given = {"loss": causal(), "generator": seeded_generator(5), **settings}
    return a_session(model, data, the_plan, optimizer=optimizer, **given)


class Bare(NamedTuple):
    weights: Tensor
    losses: list[float]


def bare_loop(session: PrivateSession) -> Bare:
    """The ordinary loop over a session, with the schedule by hand."""
    losses = []
    for part, ticket in zip(SCHEDULE, session.batches(), strict=False):
        session.optimizer.param_groups[0]["lr"] = part * RATE
        losses.append(session.step(ticket).loss or math.nan)
    return Bare(weights(session), losses)


def holds(file: Path, key: bytes) -> bool:
    """In plain bytes, or as pickle, json and print write them."""
    forms = (key, key.decode("latin-1").encode(), key.hex().encode(), repr(key).encode())
    return any(form in file.read_bytes() for form in forms)


def ledger_of_texts(path: Path) -> Ledger:
    ledger = Ledger.create(path)
    budget = RenyiBudget(epsilon=8.0, delta=1e-5, orders=(3.0, 6.0))
    ledger.open_dataset("texts", Policy(unit="sequence", adjacency="add-remove", budget=budget))
    return ledger


def spend(ledger: Ledger) -> None:
    """Spend the rest of the budget, as another analyst would."""
    for number in range(30):
        with suppress(BudgetExceeded):
            ledger.reserve("texts", ApproximateDP(0.5), key=f"another {number}", request={})
