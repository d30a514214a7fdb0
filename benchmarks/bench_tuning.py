"""Tuning a small Llama by LoRA on prompts with completions, beside Opacus and Opake: ``make bench-tuning``.

A step draws a Poisson batch, pads it, clips each record's gradient of the loss over its own completion, adds
noise and lets the optimizer move.  In the setting ``one length`` all engines pad each text to 128 tokens.  In
``usual lengths`` the lengths are log-normal, with a median of 60 tokens and 99 % below 512, and each engine
has its best padding.  Tacit has eight public lengths, with shares from the law.  Plain PyTorch, Opacus and
Opake sort a batch by length, and pad each few records to the longest of them; no trainer of theirs does this,
but a user can.  Opake's own trainer pads a batch to its longest record, and divides it afterwards, as in
``whole batch``.

All take turns in one process, and the time is that of the thread.  Opake runs in a second process beside
another plain step, because it replaces functions of transformers.  Its kernels need a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch
import torch.nn.functional as F
from bench_lengths import LENGTHS, MEDIAN, SPREAD, WORDS, shares_of
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.func import functional_call

from tacit import Plan, PrivateSession, collate, losses

__all__ = ["ENGINES", "SETTINGS", "Cost", "Setting", "costs"]

PLAIN = "plain PyTorch"
RANK = 8
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
Step = Callable[[], object]
Batch = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Setting:
    """The texts of a workload: their lengths follow the quantiles of a log-normal law, cut at ``longest``.

    If ``padded``, every engine pads each text to ``longest``.
    """

    name: str
    longest: int
    padded: bool
    width: int = 256
    texts: int = 256
    batch: int = 32

    def records(self) -> list[dict[str, list[int]]]:
        """Return texts of random tokens, whose second half is the completion that is learned."""
        from statistics import NormalDist

        dice = np.random.default_rng(0)
        found = []
        for number in range(self.texts):
            quantile = NormalDist().inv_cdf((number + 0.5) / self.texts)
            length = min(self.longest, max(2, int(MEDIAN * math.exp(SPREAD * quantile))))
            tokens = dice.integers(1, WORDS, length).tolist()
            labels = [-100] * (length // 2) + tokens[length // 2 :]
            found.append({"input_ids": tokens, "attention_mask": [1] * length, "labels": labels})
        return found

    def model(self, attention: str = "sdpa") -> nn.Module:
        """Return the Llama with adapters on all of its linear maps; ``attention`` is transformers' form."""
        import peft
        import transformers

        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=WORDS, hidden_size=self.width, intermediate_size=self.width * 11 // 4,
            num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=LENGTHS[-1], use_cache=False, attn_implementation=attention,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            adapted = peft.get_peft_model(
                transformers.LlamaForCausalLM(config), peft.LoraConfig(r=RANK, target_modules=TARGETS)
            )
        trained: nn.Module = adapted.train()
        return trained

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of all engines."""
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)

    def batches(self, size: int | None) -> Iterator[list[Batch]]:
        """Yield Poisson batches, each in parts of ``size`` records that are padded to their longest."""
        records, dice = self.records(), np.random.default_rng(1)
        size = size or self.texts
        while True:
            chosen = np.flatnonzero(dice.random(self.texts) < self.batch / self.texts)
            rows = sorted((records[row] for row in chosen), key=lambda one: len(one["input_ids"]))
            yield [self._padded(rows[start : start + size]) for start in range(0, len(rows), size)]

    def _padded(self, rows: list[dict[str, list[int]]]) -> Batch:
        length = self.longest if self.padded else max(len(one["input_ids"]) for one in rows)
        fillers = {"input_ids": 0, "attention_mask": 0, "labels": -100}
        tokens, mask, labels = (
            torch.tensor([one[key] + [filler] * (length - len(one[key])) for one in rows])
            for key, filler in fillers.items()
        )
        return tokens, mask, labels


SETTINGS = {
    one.name: one
    for one in (
        Setting("one length", 128, True),
        Setting("usual lengths", 512, False),
        Setting("one length, tiny", 8, True, width=32, texts=16, batch=4),
        Setting("usual lengths, tiny", 32, False, width=32, texts=16, batch=4),
    )
}


def completion_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss (n,) of each record over its own learned tokens."""
    targets = labels[:, 1:]
    each = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), reduction="none")
    return each.view_as(targets).sum(1) / (targets != -100).sum(1)


def plain(setting: Setting, size: int | None) -> Step:
    """Return a step of a plain loop, which adds up the gradients of parts."""
    model = setting.model()
    optimizer, batches = setting.optimizer(model), setting.batches(size)

    def step() -> None:
        optimizer.zero_grad()
        for tokens, mask, labels in next(batches):
            logits = model(input_ids=tokens, attention_mask=mask).logits
            (completion_losses(logits, labels).sum() / setting.batch).backward()
        optimizer.step()

    return step


def tacit(setting: Setting, length: int | tuple[int, ...], shares: Any = None) -> Step:
    """Return a step of a session with its default settings."""
    model = setting.model()
    plan = Plan.with_noise(
        noise_multiplier=1.0, steps=1000, records=setting.texts, batch_size=setting.batch, clipping=1.0,
        delta=1e-5, adjacency="add-remove", unit="text",
    )  # fmt: skip
    data = setting.records()
    pad = collate.pad(length=dict.fromkeys(data[0], length), value={"labels": -100}, shares=shares)
    session = PrivateSession(model, setting.optimizer(model), data, plan, loss=losses.causal(), collate=pad)
    tickets = session.batches()
    return lambda: session.step(next(tickets))


class Criterion(nn.Module):
    """The loss in the form that Opacus needs: an object with a ``reduction``."""

    reduction = "mean"

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the losses of records (n,), or their mean."""
        found = completion_losses(logits, labels)
        return found if self.reduction == "none" else found.mean()


def opacus(setting: Setting, mode: str, size: int | None) -> Step:
    """Return a step of Opacus, which adds up parts as its BatchMemoryManager does."""
    from opacus import PrivacyEngine
    from opacus.optimizers import get_optimizer_class
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    module = PrivacyEngine(accountant="rdp")._prepare_model(
        setting.model(), grad_sample_mode=mode, max_grad_norm=1.0
    )
    kind = get_optimizer_class(clipping="flat", distributed=False, grad_sample_mode=mode)
    optimizer = kind(
        setting.optimizer(module), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=setting.batch
    )
    criterion: Any = Criterion()
    if mode == "ghost":
        criterion = DPLossFastGradientClipping(module, optimizer, criterion)
    batches = setting.batches(size)

    def step() -> None:
        parts = next(batches)
        for number, (tokens, mask, labels) in enumerate(parts, 1):
            optimizer.zero_grad()
            logits = module(input_ids=tokens, attention_mask=mask).logits
            criterion(logits, labels).backward()
            optimizer.signal_skip_step(do_skip=number < len(parts))
            optimizer.step()

    return step


def opake(setting: Setting, size: int, *, whole: bool = False) -> Step:
    """Return a step of Opake; ``whole`` pads a batch to its longest record, and divides it afterwards."""
    from opake.dpsgd.clipping import clipped_grad
    from opake.dpsgd.noise import gaussian_noise
    from opake.patches import apply_model_patches
    from opake.random import key
    from opake.types import clipped

    model = setting.model("eager")  # vmap has no rule for the backward pass of sdpa
    apply_model_patches(model)
    optimizer, batches = setting.optimizer(model), setting.batches(None if whole else size)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    private = {name: p.detach() for name, p in parameters.items()}  # the same memory, without autograd

    def one(values: dict[str, Tensor], tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        inputs = {"input_ids": tokens[None], "attention_mask": mask[None]}
        return completion_losses(functional_call(model, values, (), inputs).logits, labels[None])[0]

    clipped_sum, clipping = clipped_grad(
        one, clipping_norm=1.0, batch_argnums=(1, 2, 3), normalize_by=setting.batch, microbatch_size=size
    )
    noise, drawn = gaussian_noise(noise_multiplier=1.0, key=key(0))

    def step() -> None:
        nonlocal clipping, drawn
        total = {name: torch.zeros_like(p) for name, p in private.items()}
        for part in next(batches):
            found, clipping = clipped_sum(private, *part, state=clipping)
            total = {name: g + found.pytree[name] for name, g in total.items()}
        noisy, drawn = noise(clipped(total, max_norm=1.0 / setting.batch), drawn)
        for name, p in parameters.items():
            p.grad = noisy.pytree[name]
        optimizer.step()

    return step


LIBRARIES = ("Opacus", "Opake")
ENGINES: dict[str, Callable[[Setting], Step]] = {
    **{f"{PLAIN}, {size} at once": lambda s, size=size: plain(s, size) for size in (2, 4, 8)},
    **{
        f"Opacus, hooks, {size} at once": lambda s, size=size: opacus(s, "hooks", size)
        for size in (2, 4, 8, 16)
    },
    **{
        f"Opacus, {mode}, {size} at once": lambda s, mode=mode, size=size: opacus(s, mode, size)
        for mode in ("functorch", "ghost")
        for size in (4, 8)
    },
    **{f"Opake, {size} at once": lambda s, size=size: opake(s, size) for size in (4, 8, 16)},
    **{
        f"Opake, whole batch, {size} at once": lambda s, size=size: opake(s, size, whole=True)
        for size in (8, 16)
    },
}
OURS: dict[bool, dict[str, Callable[[Setting], Step]]] = {
    True: {"Tacit": lambda s: tacit(s, s.longest)},
    False: {
        "Tacit": lambda s: tacit(s, eight(s), shares_of(eight(s))),
        "Tacit, four lengths": lambda s: tacit(s, four(s), shares_of(four(s))),
        "Tacit, four lengths, equal shares": lambda s: tacit(s, four(s)),
        "Tacit, one length": lambda s: tacit(s, s.longest),
    },
}
"""Tacit's engines, by whether every text is padded to the longest."""


def four(setting: Setting) -> tuple[int, ...]:
    """Return four public lengths, powers of two up to the longest."""
    return tuple(setting.longest >> halved for halved in (3, 2, 1, 0))


def eight(setting: Setting) -> tuple[int, ...]:
    """Return eight public lengths, up to the longest."""
    return tuple(setting.longest * part // 16 for part in (1, 2, 3, 4, 6, 8, 12, 16))


@dataclass(frozen=True)
class Cost:
    """The mean seconds of a step with their standard error, and ratios to the fastest plain step beside it.

    ``first`` is the ratio of the first step, with the making of model and engine.  If an engine failed,
    ``failure`` is the reason, and there are no figures.
    """

    setting: str
    engine: str
    seconds: float | None = None
    error: float | None = None
    ratio: float | None = None
    first: float | None = None
    rounds: int = 0
    failure: str | None = None


def family(engine: str) -> str:
    """Return the name of an engine without the number of its records at once."""
    return engine.rpartition(",")[0] if engine.endswith("at once") else engine


def costs(setting: Setting, engines: dict[str, Callable[[Setting], Step]], rounds: int) -> list[Cost]:
    """Let the engines take turns; of each family, only the fastest goes on after a round."""
    setting.model()  # imports what each needs
    made: dict[str, Step] = {}
    first: dict[str, float] = {}
    seconds: dict[str, list[float]] = {}
    result: list[Cost] = []
    for name, make in engines.items():
        start = time.thread_time()
        try:
            made[name] = make(setting)
            made[name]()
        except Exception as problem:  # any exception of another library is its result
            if name.startswith((PLAIN, "Tacit")):
                raise
            text = f"{type(problem).__name__}: {problem}".splitlines()[0][:120]
            result.append(Cost(setting.name, name, failure=text))
            continue
        first[name] = time.thread_time() - start
        seconds[name] = []

    running = list(seconds)
    for number in range(rounds):
        for name in running:
            start = time.thread_time()
            made[name]()
            seconds[name].append(time.thread_time() - start)
        if number == 0:
            fastest: dict[str, str] = {}
            for name in sorted(running, key=lambda one: sum(seconds[one]), reverse=True):
                fastest[family(name)] = name
            running = list(fastest.values())

    means = {name: float(np.mean(found)) for name, found in seconds.items()}
    base = min(means[name] for name in running if family(name) == PLAIN)
    for name, found in seconds.items():
        error = float(np.std(found, ddof=1) / len(found) ** 0.5) if len(found) > 1 else None
        ratio, begun = means[name] / base, first[name] / base
        result.append(Cost(setting.name, name, means[name], error, ratio, begun, len(found)))
    return result


def panel(setting: Setting, libraries: tuple[str, ...], rounds: int) -> list[Cost]:
    """Return the costs of plain PyTorch, of Tacit and of these libraries."""
    known = (PLAIN, *libraries)
    chosen = {name: make for name, make in ENGINES.items() if name.startswith(known)}
    return costs(setting, chosen | OURS[setting.padded], rounds)


def main() -> int:
    """Measure, print and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS)[:2])
    parser.add_argument("--library", choices=LIBRARIES, help="measure this one and print JSON")
    parser.add_argument("--out", type=Path, default=results.FOLDER / "tuning.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message="Full backward hook")
    if options.library:
        found = [panel(SETTINGS[name], (options.library,), options.rounds) for name in options.settings]
        sys.stdout.write(json.dumps([asdict(cost) for some in found for cost in some]) + "\n")
        return 0

    console = Console(stderr=True)
    rows: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    for name in options.settings:
        for library in LIBRARIES:
            if importlib.util.find_spec(library.lower()) is None:
                skipped[library] = f"{library.lower()} is not installed"
                continue
            console.print(f"{name}: {library}")
            command = [sys.executable, __file__, "--library", library, "--settings", name]
            command += ["--rounds", str(options.rounds)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            rows += [{"panel": library} | row for row in json.loads(done.stdout.splitlines()[-1])]
    table = Table("setting", "engine", "s", "error", "ratio", "first", "rounds")
    for row in rows:
        figures = [row[key] for key in ("seconds", "error", "ratio", "first")]
        shown = ["-" if figure is None else f"{figure:.3f}" for figure in figures]
        table.add_row(row["setting"], row["engine"], *shown, row["failure"] or str(row["rounds"]))
    Console(width=120).print(table)
    setting = {name: asdict(SETTINGS[name]) | {"lengths": eight(SETTINGS[name])} for name in options.settings}
    content = {"seed": 0, "settings": setting, "skipped": skipped, "costs": rows}
    packages = ("transformers", "peft", "opacus", "opake")
    results.write(options.out, "tuning of a language model", content, packages=packages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
