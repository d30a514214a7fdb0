"""Texts of usual lengths: a private step with several lengths, beside a plain loop that pads by batch.

The lengths are log-normal, with a median of 60 tokens and 99 % below 512.  The plain loop pads each small
batch to its longest text, and adds up the gradients of a step.  Ratios are to the faster of two sizes of
such batches.  All take turns in one process, and the time is that of the thread.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import measure
import numpy as np
import results
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from tacit import Plan, PrivateSession, collate, losses

__all__ = ["Cost", "costs", "shares_of", "texts_of"]

LENGTHS, MEDIAN, LONGEST, WORDS = (64, 128, 256, 512), 60, 512, 2048
SPREAD = math.log(LONGEST / MEDIAN) / 2.326  # 99 % of the lengths are below the longest
SIZES = (8, 16)
PLAIN = "plain, padded by {}"
JOB = 20  # the steps of a job, which begins with the making of model and session
Step = Callable[[], object]


@dataclass(frozen=True)
class Cost:
    """Seconds of a step, and the ratios of a step, a first step and the whole job to the plain loop's."""

    model: str
    trained: str
    contestant: str
    seconds: float
    ratio: float
    first: float
    job: float


def texts_of(count: int) -> list[list[int]]:
    """Return texts of random tokens, with lengths as those of usual answers."""
    dice = np.random.default_rng(0)
    lengths = np.clip(dice.lognormal(math.log(MEDIAN), SPREAD, count).astype(int), 2, LONGEST)
    return [dice.integers(1, WORDS, length).tolist() for length in lengths]


def shares_of(lengths: tuple[int, ...]) -> tuple[float, ...]:
    """Return the shares of the texts that each length holds, from the law of their lengths."""
    below = [0.5 * (1 + math.erf(math.log(one / MEDIAN) / SPREAD / math.sqrt(2))) for one in lengths[:-1]]
    return tuple(b - a for a, b in pairwise([0.0, *below, 1.0]))


def network(name: str, *, lora: bool) -> nn.Module:
    """Return a small language model, with adapters if ``lora``."""
    import transformers

    torch.manual_seed(0)
    if name == "Llama":
        config: Any = transformers.LlamaConfig(
            vocab_size=WORDS, hidden_size=128, intermediate_size=352, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LONGEST,
        )  # fmt: skip
        model, targets = transformers.LlamaForCausalLM(config), ["q_proj", "v_proj"]
    else:
        config = transformers.GPT2Config(
            vocab_size=WORDS, n_positions=LONGEST, n_embd=128, n_layer=4, n_head=4,
            bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        model, targets = transformers.GPT2LMHeadModel(config), ["c_attn"]
    if lora:
        import peft

        settings = peft.LoraConfig(r=8, target_modules=targets, fan_in_fan_out=name != "Llama")
        model = peft.get_peft_model(model, settings)
    return model.train()


def plain(model: nn.Module, texts: list[list[int]], batch: int, size: int) -> Step:
    """Return a step of a plain loop, which pads ``size`` texts at a time to the longest of them."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    dice = np.random.default_rng(1)

    def step() -> None:
        rows = dice.choice(len(texts), batch, replace=False)
        optimizer.zero_grad()
        for start in range(0, batch, size):
            some = [torch.tensor(texts[row]) for row in rows[start : start + size]]
            tokens, labels = (pad_sequence(some, batch_first=True, padding_value=v) for v in (0, -100))
            mask = pad_sequence([torch.ones_like(one) for one in some], batch_first=True)
            output = model(input_ids=tokens, attention_mask=mask, labels=labels)
            (output.loss * len(some) / batch).backward()
        optimizer.step()

    return step


def private(model: nn.Module, texts: list[list[int]], batch: int, length: Any, shares: Any) -> Step:
    """Return a private step at one length or several."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    plan = Plan.with_noise(
        noise_multiplier=1.0,
        steps=1000,
        records=len(texts),
        batch_size=batch,
        clipping=1.0,
        delta=1e-5,
        adjacency="add-remove",
        unit="text",
    )
    data = [{"input_ids": text, "attention_mask": [1] * len(text), "labels": text} for text in texts]
    pad = collate.pad(length=dict.fromkeys(data[0], length), value={"labels": -100}, shares=shares)
    session = PrivateSession(model, optimizer, data, plan, loss=losses.causal(), collate=pad)
    tickets = session.batches()
    return lambda: session.step(next(tickets))


def costs(name: str, *, lora: bool, texts: int, batch: int, rounds: int) -> list[Cost]:
    """Let the contestants take turns."""
    data = texts_of(texts)
    shares = shares_of(LENGTHS)
    makers: dict[str, Callable[[], Step]] = {
        PLAIN.format(size): lambda size=size: plain(network(name, lora=lora), data, batch, size)  # type: ignore[misc]
        for size in SIZES
    }
    makers["Tacit, four lengths"] = lambda: private(network(name, lora=lora), data, batch, LENGTHS, shares)
    makers["Tacit, equal shares"] = lambda: private(network(name, lora=lora), data, batch, LENGTHS, None)
    makers["Tacit, one length"] = lambda: private(network(name, lora=lora), data, batch, LONGEST, None)

    network(name, lora=lora)  # imports what each needs
    made: dict[str, Step] = {}
    seconds: dict[str, list[float]] = {}
    for contestant, make in makers.items():
        start = time.thread_time()
        made[contestant] = make()
        seconds[contestant] = [time.thread_time() - start]
    for number in range(rounds + 1):
        for contestant, step in made.items():
            if contestant == "Tacit, one length" and number > 1:  # takes several times as long
                continue
            start = time.thread_time()
            step()
            seconds[contestant].append(time.thread_time() - start)

    usual = {one: measure.quartiles(found[2:])[1] for one, found in seconds.items()}
    best = min((PLAIN.format(size) for size in SIZES), key=usual.__getitem__)

    def job(contestant: str) -> float:
        return sum(seconds[contestant][:2]) + (JOB - 1) * usual[contestant]

    return [
        Cost(
            name,
            "LoRA" if lora else "all weights",
            one,
            usual[one],
            usual[one] / usual[best],
            seconds[one][1] / usual[best],
            job(one) / job(best),
        )
        for one in made
    ]


def main() -> int:
    """Measure, print and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--models", nargs="+", default=["Llama", "GPT-2"])
    parser.add_argument("--out", type=Path, default=results.FOLDER / "lengths.json")
    options = parser.parse_args()
    found = [
        cost
        for name in options.models
        for lora in (True, False)
        for cost in costs(name, lora=lora, texts=options.texts, batch=options.batch, rounds=options.rounds)
    ]
    table = Table("model", "trained", "contestant", "s per step", "ratio", "first step", "job")
    for c in found:
        figures = (f"{value:.2f}" for value in (c.seconds, c.ratio, c.first, c.job))
        table.add_row(c.model, c.trained, c.contestant, *figures)
    Console().print(table)
    setting = {
        "texts": options.texts, "batch": options.batch, "rounds": options.rounds, "lengths": LENGTHS,
        "shares": shares_of(LENGTHS), "steps_of_job": JOB,
    }  # fmt: skip
    content = {"seed": 0, "setting": setting, "costs": [asdict(c) for c in found]}
    results.write(options.out, "texts of several lengths", content, packages=("transformers", "peft"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
