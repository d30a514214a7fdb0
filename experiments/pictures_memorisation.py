"""The reproduction of training pictures by a small generative model, with and without privacy.

A variational autoencoder (Kingma and Welling 2013, 1312.6114) learns a few hundred digits of 14 x 14 pixels.
Some are in the data 4 or 16 times, and pictures that a coin flip left out are the control.  Then the model
generates pictures, and the attack searches for each digit among them (Carlini et al. 2023, 2301.13188).

Letters: n records, d pixels, h hidden units, l latent numbers.
"""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.base import DELTA, NO_SEARCH, Request, Row, write_results
from experiments.regenerated import regenerated
from experiments.standard import load
from tacit.plan import Plan
from tacit.report.canvas import new_figure, save_figure
from tacit.training import PrivateSession
from tacit.training.by_record import Augmentation

_NAME = "pictures-memorisation"
_SIDE, _HIDDEN, _LATENT = 14, 128, 6
_PIXELS = _SIDE * _SIDE
_SPREAD = 0.1  # the standard deviation of a pixel, given the decoder's output


@dataclass(frozen=True)
class _Setting:
    """Settings of training; ``pictures`` are pairs (copies, number of pictures), half of them included."""

    pictures: tuple[tuple[int, int], ...] = ((1, 240), (4, 80), (16, 40))
    plain_passes: float = 400.0
    batch: int = 64
    rate: float = 2e-3
    private_passes: float = 60.0
    private_batch: int = 128
    private_rate: float = 3e-3
    made: int = 4096
    neighbours: int = 50


_SETTING = _Setting()


class _Autoencoder(nn.Module):
    """An autoencoder: pictures joined with normal noise, (n, d + l), to the negative evidence bound, (n,)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(_PIXELS, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, 2 * _LATENT))
        self.decoder = nn.Sequential(nn.Linear(_LATENT, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, _PIXELS))

    def forward(self, rows: Tensor) -> Tensor:
        """Return an upper bound on -log p(picture) up to a constant, (n,)."""
        pictures, noise = rows[:, :_PIXELS], rows[:, _PIXELS:]
        mean, log_std = self.encoder(pictures).chunk(2, dim=1)
        decoded = torch.sigmoid(self.decoder(mean + log_std.exp() * noise))
        distance = (pictures - decoded).square().sum(dim=1) / (2.0 * _SPREAD**2)
        divergence = 0.5 * (mean.square() + (2.0 * log_std).exp() - 1.0).sum(dim=1) - log_std.sum(dim=1)
        bound: Tensor = distance + divergence
        return bound

    @torch.no_grad()
    def made(self, count: int) -> Tensor:
        """Generate (count, d) pictures from random latent codes."""
        return torch.sigmoid(self.decoder(torch.randn(count, _LATENT)))


class _WithNoise(Augmentation):
    """Joins pictures (n, d) with the normal noise of their latent codes, to (n, d + l)."""

    @property
    def draws(self) -> int:
        return _LATENT

    def views(self, inputs: Tensor, uniforms: Tensor) -> Tensor:
        noise = torch.special.ndtri(uniforms.reshape(-1, _LATENT).clamp(1e-7, 1.0 - 1e-7))
        return torch.cat([inputs.repeat_interleave(uniforms.shape[1], dim=0), noise.to(inputs)], dim=1)


def _loss(model: nn.Module, rows: Tensor) -> Tensor:
    found: Tensor = model(rows)
    return found


@dataclass(frozen=True)
class _Data:
    """``pictures`` (N, d), the ``copies`` of each if it is included, and whether it is ``included``."""

    pictures: Tensor
    copies: NDArray[np.int64]
    included: NDArray[np.bool_]

    @property
    def records(self) -> Tensor:
        """The training records, (n, d)."""
        return self.pictures.repeat_interleave(torch.from_numpy(self.copies * self.included), dim=0)


@dataclass
class _Found:
    """The results on the models of one plan: (included, copies, extracted) per picture, and pairs to draw."""

    plan: Plan | None
    pictures: list[tuple[bool, int, bool]] = field(default_factory=list)
    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def title(self) -> str:
        return "no privacy" if self.plan is None else f"ε = {self.plan.epsilon:.3g}"

    def counts(self, copies: int | None) -> dict[str, int | None]:
        """Count the extracted pictures with this number of copies, or of those left out for None."""
        mine = [out for inside, c, out in self.pictures if (c if inside else None) == copies]
        return {"copies": copies, "pictures": len(mine), "extracted": sum(mine)}


def run(request: Request) -> list[Row]:
    """Return a row without privacy and one per epsilon, and draw ``pictures-memorisation.png``."""
    request.choose_dataset(("mnist",))
    kinds = [_Found(None)]
    kinds += [_Found(_plan(epsilon)) for epsilon in request.choose_epsilons((8.0,))]
    digits = F.avg_pool2d(load("mnist").train.inputs, 2).flatten(1)
    for number in range(request.seeds):
        data, start = _data(digits, np.random.default_rng()), _Autoencoder()
        for kind in kinds:
            clock = time.perf_counter()
            model = copy.deepcopy(start)
            _train(model, data.records, kind.plan)
            _attack(model, data, kind)
            kind.seconds += time.perf_counter() - clock
        request.listener("pictures", number + 1, request.seeds)
    rows = [_row(kind, request.seeds) for kind in kinds]
    write_results(_NAME, rows, request, notes=_notes(kinds))
    _draw(kinds, request)
    return rows


def _expected_records() -> int:
    return sum(copies * count for copies, count in _SETTING.pictures) // 2


def _plan(epsilon: float) -> Plan:
    return Plan.calibrate(
        epsilon=epsilon,
        delta=DELTA,
        records=_expected_records(),
        batch_size=_SETTING.private_batch,
        epochs=_SETTING.private_passes,
        clipping=1.0,
        adjacency="add-remove",
        unit="picture",
    )


def _data(digits: Tensor, generator: np.random.Generator) -> _Data:
    copies = np.array([copies for copies, count in _SETTING.pictures for _ in range(count)])
    drawn = generator.permutation(len(digits))[: copies.size]
    return _Data(digits[torch.from_numpy(drawn)], copies, generator.integers(2, size=copies.size) == 1)


def _train(model: _Autoencoder, records: Tensor, plan: Plan | None) -> None:
    if plan is not None:
        optimizer = torch.optim.Adam(model.parameters(), lr=_SETTING.private_rate)
        session = PrivateSession(model, optimizer, (records,), plan, loss=_loss, augmentation=_WithNoise())
        for step in session.batches():
            session.step(step)
        return
    optimizer = torch.optim.Adam(model.parameters(), lr=_SETTING.rate)
    for _ in range(math.ceil(_SETTING.plain_passes)):
        for rows in torch.split(torch.randperm(len(records)), _SETTING.batch):
            optimizer.zero_grad()
            model(torch.cat([records[rows], torch.randn(len(rows), _LATENT)], dim=1)).mean().backward()
            optimizer.step()


def _attack(model: _Autoencoder, data: _Data, kind: _Found) -> None:
    made = model.made(_SETTING.made)
    found = regenerated(made.numpy(), data.pictures.numpy(), neighbours=_SETTING.neighbours)
    kind.pictures += zip(data.included.tolist(), data.copies.tolist(), found.extracted.tolist(), strict=True)
    if not kind.pairs:
        inside = np.flatnonzero(data.included)
        best = inside[np.argsort(-found.closeness[inside])][:8]
        kind.pairs = [(data.pictures[i], made[found.by[i]]) for i in best]


def _row(kind: _Found, seeds: int) -> Row:
    plan = kind.plan
    return Row(
        experiment=_NAME,
        dataset="mnist",
        model=f"variational autoencoder, {_HIDDEN} hidden, {_LATENT} latent",
        epsilon=math.inf if plan is None else plan.epsilon,
        delta=0.0 if plan is None else plan.delta,
        accountant="none" if plan is None else "pld",
        noise_multiplier=None if plan is None else plan.noise_multiplier,
        accuracy_mean=None,
        accuracy_std=None,
        seeds=seeds,
        wall_seconds=kind.seconds,
        selection=NO_SEARCH,
        details={"made": _SETTING.made, "counts": [kind.counts(copies) for copies in _copies()]},
    )


def _copies() -> list[int | None]:
    return [*(copies for copies, _ in _SETTING.pictures), None]


def _notes(kinds: Sequence[_Found]) -> list[str]:
    notes = [
        f"digits of {_SIDE} x {_SIDE} pixels, about half of the pictures drawn are in the data, 1, 4 or 16 "
        f"times; {_SETTING.made:,} pictures are made; one is extracted if a made picture is twice as near to "
        f"it as to its {_SETTING.neighbours} nearest on average; pictures that were left out are the control",
    ]
    for kind in kinds:
        parts = []
        for copies in _copies():
            found = kind.counts(copies)
            label = "left out" if copies is None else f"copies: {copies}"
            parts.append(f"{label}: {found['extracted']} of {found['pictures']}")
        notes.append(f"{kind.title}, extracted, {'; '.join(parts)}")
    return notes


def _draw(kinds: Sequence[_Found], request: Request) -> None:
    """Draw, for each model, the best reproduced training pictures above the generated pictures."""
    width = max(len(kind.pairs) for kind in kinds)
    figure = new_figure(0.8 * width + 0.4, 2.1 * len(kinds))
    for part, kind in zip(figure.subfigures(len(kinds), 1, squeeze=False)[:, 0], kinds, strict=True):
        part.suptitle(f"{kind.title}: training pictures (above) and the nearest that were made", fontsize=9)
        grid = part.subplots(2, width, squeeze=False)
        for axes, (row, column) in zip(grid.ravel(), itertools.product(range(2), range(width)), strict=True):
            axes.set_axis_off()
            if column < len(kind.pairs):
                picture = kind.pairs[column][row].view(_SIDE, _SIDE)
                axes.imshow(picture.numpy(), cmap="gray_r", vmin=0.0, vmax=1.0)
    save_figure(figure, request.folder / f"{_NAME}.png")
