"""The memorisation of planted secrets by a language model, with and without privacy.

Each canary "pin xy ddddd" is planted in the training data 1, 4 or 16 times, or left out by a coin flip.  The
attacker knows "pin xy " and ranks all 100,000 numbers by the probability that the model gives them.  On the
same data and from the same initial weights, one model is trained by plain Adam and others by Adam on private
gradients.
"""

from __future__ import annotations

import copy
import itertools
import math
import statistics
import string
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.base import DELTA, NO_SEARCH, Request, Row, write_results
from experiments.laboratory.recitation import (
    Remembered,
    RepeatProbe,
    probe_by_repeating,
    remembered_secret,
    rows_of,
)
from tacit.audits.attacks import (
    Canary,
    SecretSpace,
    exposure_bound,
    plant_canaries,
    planted_records,
)
from tacit.datasets import TensorPair
from tacit.datasets.text import NAMES_ALPHABET, NAMES_LONGEST, Alphabet, load_names, token_pair
from tacit.models import WindowModel
from tacit.plan import Plan
from tacit.report.canvas import BLUE, GREEN, GREY, MARKERS, ORANGE, new_figure, save_figure
from tacit.report.findings import bits_above_bound, whole_bits
from tacit.runs.attack import next_token
from tacit.runs.model import text_loss
from tacit.training import PrivateSession, evaluate

Array: TypeAlias = NDArray[np.float64]

_NAME = "names-memorisation"
_ALPHABET = Alphabet(NAMES_ALPHABET)
_SPACE = SecretSpace(string.digits, 5)
_CONFIDENCE = 0.95
_COLOURS = {1: BLUE, 4: GREEN, 16: ORANGE}


@dataclass(frozen=True)
class _Setting:
    """Settings of training; ``canaries`` are pairs (copies, number of canaries), half of them planted."""

    names: int = 6000
    held_out: int = 2000
    canaries: tuple[tuple[int, int], ...] = ((1, 64), (4, 24), (16, 12))
    plain_passes: float = 20.0
    plain_batch: int = 64
    plain_rate: float = 2e-3
    private_passes: float = 12.0
    private_batch: int = 256
    private_rate: float = 3e-3


_SETTING = _Setting()


@dataclass(frozen=True)
class _Data:
    """The canaries, the training records with planted canaries, and held-out names."""

    canaries: list[Canary]
    train: TensorPair
    test: TensorPair


@dataclass
class _Found:
    """The results of the attacks on the models of one plan, over all repeats."""

    plan: Plan | None
    accuracies: list[float] = field(default_factory=list)
    secrets: list[Remembered] = field(default_factory=list)
    probes: list[RepeatProbe] = field(default_factory=list)
    seconds: float = 0.0

    def exposures(self, copies: int, *, included: bool = True) -> Array:
        """Return the sorted exposures of the canaries with this number of copies, planted or left out."""
        found = [one.exposure for one in self.chosen(copies, included=included)]
        return np.sort(np.array(found, dtype=np.float64))

    def chosen(self, copies: int, *, included: bool = True) -> list[Remembered]:
        """Return the results on the canaries with this number of copies, planted or left out."""
        wanted = (copies, included)
        return [one for one in self.secrets if (one.canary.copies, one.canary.included) == wanted]

    @property
    def title(self) -> str:
        return _title(math.inf if self.plan is None else self.plan.epsilon)


def _title(epsilon: float) -> str:
    return f"ε = {epsilon:.3g}" if math.isfinite(epsilon) else "no privacy"


def run(request: Request) -> list[Row]:
    """Return a row without privacy and one per epsilon, and draw ``names-memorisation.png``."""
    request.choose_dataset(("names",))
    names = load_names()
    kinds = [_Found(None)]
    kinds += [_Found(_plan(epsilon)) for epsilon in request.choose_epsilons((8.0,))]
    for number in range(request.seeds):
        data = _data(names, np.random.default_rng())
        start = WindowModel(_ALPHABET.tokens)
        for kind in kinds:
            clock = time.perf_counter()
            model = copy.deepcopy(start)
            _train(model, data, kind.plan, request)
            kind.accuracies.append(evaluate(model, *data.test).score)
            _attack(kind, model, data)
            kind.seconds += time.perf_counter() - clock
        request.listener("secrets in names", number + 1, request.seeds)
    rows = [_row(kind) for kind in kinds]
    write_results(_NAME, rows, request, notes=_notes(kinds, rows))
    _draw(rows, request)
    return rows


def _plan(epsilon: float) -> Plan:
    return Plan.calibrate(
        epsilon=epsilon,
        delta=DELTA,
        records=_SETTING.names,
        batch_size=_SETTING.private_batch,
        epochs=_SETTING.private_passes,
        clipping=1.0,
        adjacency="add-remove",
        unit="name",
    )


def _data(names: Sequence[str], generator: np.random.Generator) -> _Data:
    """Draw random names and secrets, and which canaries are planted."""
    drawn = generator.permutation(len(names))[: _SETTING.names + _SETTING.held_out]
    chosen = [names[place] for place in drawn]
    pairs = ["".join(pair) for pair in itertools.product(string.ascii_lowercase, repeat=2)]
    prefixes = iter(f"pin {pairs[place]} " for place in generator.permutation(len(pairs)))
    canaries = [
        canary
        for copies, count in _SETTING.canaries
        for canary in plant_canaries(_SPACE, list(itertools.islice(prefixes, count)), copies, generator)
    ]
    records = chosen[: _SETTING.names] + planted_records(canaries)
    pairs_of = (token_pair(part, _ALPHABET, NAMES_LONGEST) for part in (records, chosen[_SETTING.names :]))
    return _Data(canaries, *pairs_of)


def _train(model: WindowModel, data: _Data, plan: Plan | None, request: Request) -> None:
    title = "names, no privacy" if plan is None else f"names, ε = {plan.epsilon:.3g}"
    if plan is None:
        _train_plainly(model, data, title, request)
        return
    optimizer = torch.optim.Adam(model.parameters(), lr=_SETTING.private_rate)
    session = PrivateSession(model, optimizer, data.train, plan, loss=text_loss)
    for step in session.batches():
        session.step(step)
        request.listener(title, session.steps_done, plan.steps)


def _train_plainly(model: WindowModel, data: _Data, title: str, request: Request) -> None:
    """Train by plain Adam on shuffled batches, with a learning rate that decays to 0."""
    contexts, targets = data.train
    steps = math.ceil(_SETTING.plain_passes * len(contexts) / _SETTING.plain_batch)
    optimizer = torch.optim.Adam(model.parameters(), lr=_SETTING.plain_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    order: Iterator[Tensor] = iter(())
    for step in range(steps):
        rows = next(order, None)
        if rows is None:
            order = iter(torch.split(torch.randperm(len(contexts)), _SETTING.plain_batch))
            rows = next(order)
        optimizer.zero_grad()
        text_loss(model, contexts[rows], targets[rows]).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        request.listener(title, step + 1, steps)


def _attack(kind: _Found, model: WindowModel, data: _Data) -> None:
    """Rank each secret among all 100,000, complete its prefix, and probe with repeated letters."""
    ask, rng = next_token(model, NAMES_LONGEST), np.random.default_rng()
    kind.secrets += [remembered_secret(ask, canary, _SPACE, _ALPHABET, rng) for canary in data.canaries]
    members, others = (rows_of(pair, whole=True) for pair in (data.train, data.test))
    letters = _ALPHABET.encode(string.ascii_lowercase)
    kind.probes.append(probe_by_repeating(ask, members, others, letters, rng))


def _row(kind: _Found) -> Row:
    plan = kind.plan
    return Row(
        experiment=_NAME,
        dataset="names",
        model="window of 12 characters, 96 hidden",
        epsilon=math.inf if plan is None else plan.epsilon,
        delta=0.0 if plan is None else plan.delta,
        accountant="none" if plan is None else "pld",
        noise_multiplier=None if plan is None else plan.noise_multiplier,
        accuracy_mean=statistics.mean(kind.accuracies),
        accuracy_std=statistics.stdev(kind.accuracies) if len(kind.accuracies) > 1 else None,
        seeds=len(kind.accuracies),
        wall_seconds=kind.seconds,
        selection=NO_SEARCH,
        details={
            "names": _SETTING.names,
            "candidates": _SPACE.size,
            "steps": None if plan is None else plan.steps,
            "canaries": [_summary(kind, copies) for copies, _ in _SETTING.canaries],
            "repeated": _repeated(kind.probes),
            "not_planted": _spread(
                np.concatenate([kind.exposures(copies, included=False) for copies, _ in _SETTING.canaries])
            ),
        },
    )


def _summary(kind: _Found, copies: int) -> dict[str, Any]:
    """Return a summary of the results on planted canaries with this number of copies."""
    mine = kind.chosen(copies)
    queries = statistics.median(one.queries for one in mine) if mine else math.inf
    return {
        "copies": copies,
        **_spread(kind.exposures(copies)),
        "best_of_all": sum(one.exposure == math.log2(_SPACE.size) for one in mine),
        "completed": sum(one.completed for one in mine),
        "extrapolated": _median([one.extrapolated for one in mine if one.extrapolated is not None]),
        "median_queries": queries if math.isfinite(queries) else None,
        "above_bound": _above_bound(kind, copies),
    }


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _repeated(probes: Sequence[RepeatProbe]) -> dict[str, Any]:
    """Return the mean results of the divergence probe over all repeats."""
    shares = ("after_repeating", "after_repeating_unseen", "asked_plainly", "asked_plainly_unseen")
    return {"repeats": probes[0].repeats, "piece": probes[0].piece} | {
        name: statistics.mean(getattr(probe, name) for probe in probes) for name in shares
    }


def _spread(exposures: Array) -> dict[str, Any]:
    found: dict[str, Any] = {"count": exposures.size, "exposures": exposures.round(2).tolist()}
    if exposures.size:
        found |= {
            "least": float(exposures[0]),
            "median": float(np.median(exposures)),
            "largest": float(exposures[-1]),
            "share_at_least_4": float((exposures >= 4.0).mean()),
        }
    return found


def _above_bound(kind: _Found, copies: int) -> list[float] | None:
    """Return the exposures, in whole bits, at which the share of canaries exceeds the bound of the guarantee.

    The excess is significant with 95 % confidence over all bits together.  The result is None without
    a bound.
    """
    exposures = kind.exposures(copies)
    if kind.plan is None or exposures.size == 0:
        return None
    bits = whole_bits(_SPACE.size)
    bound = exposure_bound(kind.plan.curve.false_negative_rate, bits, copies=copies)
    return bits_above_bound(exposures, bits, bound, confidence=_CONFIDENCE)


def _notes(kinds: Sequence[_Found], rows: Sequence[Row]) -> list[str]:
    notes = [
        f"{_SETTING.names:,} names and canaries 'pin xy ddddd' in 1, 4 or 16 copies; exposure is the rank of "
        f"the true number among all {_SPACE.size:,}, at most {math.log2(_SPACE.size):.1f} bits; one that was "
        "not planted has 4 bits or more with probability 1/16, by chance alone",
        "accuracy: characters of other names that the model guesses right",
        "one record is the unit of privacy: c copies of a secret are c records, and the promise for them is "
        "that of a group of c",
    ]
    for kind, row in zip(kinds, rows, strict=True):
        for found in row.details["canaries"]:
            if not found["count"]:
                continue
            over = "" if found["above_bound"] is None else f"; {_against_bound(found['above_bound'])}"
            notes.append(
                f"{kind.title}, copies: {found['copies']}: exposure median {found['median']:.1f}, "
                f"{found['least']:.1f} to {found['largest']:.1f}; {100 * found['share_at_least_4']:.0f} % at "
                f"4 bits or more; {found['completed']} of {found['count']} completed verbatim{over}"
            )
        made = row.details["repeated"]
        notes.append(
            f"{kind.title}: of what follows {made['repeats']} times one letter, "
            f"{100 * made['after_repeating']:.1f} % lies in pieces of {made['piece']} characters of the "
            f"training names and {100 * made['after_repeating_unseen']:.1f} % in those of others; after one "
            f"letter {100 * made['asked_plainly']:.1f} % and {100 * made['asked_plainly_unseen']:.1f} %"
        )
        others = row.details["not_planted"]
        if others["count"]:
            share = 100 * others["share_at_least_4"]
            notes.append(f"{kind.title}, not planted: {share:.0f} % of {others['count']} at 4 bits or more")
    return notes


def _against_bound(bits: Sequence[float]) -> str:
    if not bits:
        return "nowhere above the bound"
    return f"ABOVE THE BOUND at {', '.join(f'{bit:g}' for bit in bits)} bits: do not release"


def _draw(rows: Sequence[Row], request: Request) -> None:
    """Draw the share of secrets with at least each exposure, and the guarantee's bound on it."""
    figure = new_figure(4.2 * len(rows), 4.0)
    bits = np.linspace(0.0, math.log2(_SPACE.size), 60)
    for axes, row in zip(figure.subplots(1, len(rows), sharey=True, squeeze=False)[0], rows, strict=True):
        axes.plot(bits, np.exp2(-bits), ":", color=GREY, label="by chance")
        for marker, found in zip(MARKERS, row.details["canaries"], strict=False):
            if found["count"]:
                share = 1.0 - np.arange(found["count"]) / found["count"]
                axes.step(found["exposures"], share, where="pre", marker=marker, markersize=4,
                          color=_COLOURS[found["copies"]], label=f"copies: {found['copies']}")  # fmt: skip
        if math.isfinite(row.epsilon):
            bound = exposure_bound(_plan(row.epsilon).curve.false_negative_rate, bits)
            axes.plot(bits, bound, color=GREY)
            axes.fill_between(bits, bound, 1.5, color=GREY, alpha=0.15, linewidth=0,
                              label="ruled out for one copy")  # fmt: skip
        axes.set_yscale("log")
        axes.set_ylim(5e-3, 1.5)
        axes.set_xlim(0.0, bits[-1] + 0.3)
        axes.set_xlabel("exposure, bits")
        axes.set_title(_title(row.epsilon), fontsize=10)
        axes.grid(alpha=0.25)
        if row is rows[0]:
            axes.set_ylabel("share of secrets with at least that")
    lines = figure.axes[-1].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=len(lines[0]), frameon=False, fontsize=8)
    save_figure(figure, request.folder / f"{_NAME}.png")
