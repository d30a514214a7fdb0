"""Recovery of faces from a classifier: MI-Face on AT&T (Fredrikson, Jha, Ristenpart, CCS 2015, section 5).

30 people are private, and 7 pictures of each train the model.  The other 10 people are public, and the attack
starts from the mean of their faces.  A judge, a classifier trained only on the 3 other pictures of each
private person, identifies the recovered faces.  The results are compared with those of the same model trained
with differential privacy.

Letters: p = 30 private people, h and w the sides of a picture, k pictures of a person.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from experiments.base import Request, Row, Setting, write_results
from experiments.faces import load_faces
from experiments.laboratory.inversion import Inversion, Inverted, mi_face
from experiments.likeness import correlation, nearest_similarity, recognised
from tacit.audits.scores import clopper_pearson
from tacit.datasets import Dataset, TensorPair
from tacit.models import MLP, Logistic
from tacit.plan import Plan
from tacit.report.canvas import new_figure, save_figure

_NAME = "model-inversion"
_DATASET = "att-faces"
_PRIVATE, _SEEN = 30, 7
_HIDDEN, _CODE = 300, 300
_STEPS, _RATE = 300, 1e-3  # Adam's settings for all models that are trained without privacy
_SETTINGS = Inversion(total_variation=1e-4, distance=1e-3)
_CODE_SETTINGS = Inversion(learning_rate=1.0)
_PRIVATE_SETTING = Setting(None, 10, learning_rate=0.3, momentum=0.0, clipping_norm=1.0)
_SHOWN = 6  # people in the figure

_SELECTION = "these faces themselves: not a figure of what privacy costs"


@dataclass(frozen=True, eq=False)
class _Split:
    """A split: ``seen`` (p, 7, h, w) for training, ``unseen`` (p, 3, h, w) for the judge, public ``mean``."""

    seen: Tensor
    unseen: Tensor
    mean: Tensor

    @staticmethod
    def draw(faces: Tensor) -> _Split:
        """Draw a random split of people and pictures."""
        people = torch.randperm(len(faces))
        private = faces[people[:_PRIVATE]]
        order = torch.rand(private.shape[:2]).argsort(1)
        private = private[torch.arange(_PRIVATE)[:, None], order]
        return _Split(
            private[:, :_SEEN].contiguous(),
            private[:, _SEEN:].contiguous(),
            faces[people[_PRIVATE:]].flatten(0, 1).mean(0),
        )

    def pair(self, pictures: Tensor) -> TensorPair:
        """Return pictures (p, k, h, w) minus the public mean, with the people's numbers as classes."""
        people = torch.arange(_PRIVATE).repeat_interleave(pictures.shape[1])
        return TensorPair(pictures.flatten(0, 1) - self.mean, people)


@dataclass(frozen=True, eq=False)
class _Attacked:
    """A trained model, from pictures to logits, and the faces recovered from it, (p, h, w)."""

    model: nn.Module
    faces: Tensor
    steps: Tensor


@dataclass
class _Figures:
    """The results of each split."""

    accuracy: list[float] = field(default_factory=list)
    judged: list[float] = field(default_factory=list)
    recognised: list[float] = field(default_factory=list)
    matched: list[float] = field(default_factory=list)
    correlation: list[float] = field(default_factory=list)
    correlation_without_mean: list[float] = field(default_factory=list)
    closest_seen: list[float] = field(default_factory=list)
    closest_unseen: list[float] = field(default_factory=list)
    ssim_seen: list[float] = field(default_factory=list)
    ssim_unseen: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)

    def add(self, split: _Split, attacked: _Attacked, judge: nn.Module) -> None:
        """Add a split's results; compare three seen pictures per person, as there are three unseen."""
        faces, mean, k = attacked.faces, split.mean, split.unseen.shape[1]
        own = torch.cat([split.seen, split.unseen], 1).mean(1)
        seen, unseen = split.seen[:, :k], split.unseen
        test = split.pair(split.unseen)
        self.accuracy.append(_accuracy(attacked.model, test.inputs + mean, test.targets))
        self.judged.append(_accuracy(judge, faces - mean, torch.arange(_PRIVATE)))
        self.recognised.append(float(recognised(faces, split.unseen, without=mean).mean()))
        match = correlation(test.inputs[:, None] + mean, faces[None], without=mean)
        self.matched.append(float((match.argmax(1) == test.targets.numpy()).mean()))
        self.correlation.append(float(correlation(faces, own).mean()))
        self.correlation_without_mean.append(float(correlation(faces, own, without=mean).mean()))
        for name, album in (("seen", seen), ("unseen", unseen)):
            closest = correlation(faces[:, None], album, without=mean).max(1).mean()
            getattr(self, f"closest_{name}").append(float(closest))
            getattr(self, f"ssim_{name}").append(float(nearest_similarity(faces, album).mean()))
        self.steps.append(float(attacked.steps.double().mean()))

    def row(self, model: str, plan: Plan | None, seconds: float) -> Row:
        """Return a row with means over the splits, and with the results of every split in the details."""
        n = _PRIVATE * len(self.judged)
        interval = clopper_pearson(round(sum(self.judged) * _PRIVATE), n, confidence=0.95)
        details: dict[str, Any] = {name: values for name, values in vars(self).items() if name != "accuracy"}
        return Row(
            experiment=_NAME,
            dataset=_DATASET,
            model=model,
            epsilon=math.inf if plan is None else plan.epsilon,
            delta=0.0 if plan is None else plan.delta,
            accountant="none" if plan is None else "pld",
            noise_multiplier=None if plan is None else plan.noise_multiplier,
            accuracy_mean=statistics.mean(self.accuracy),
            accuracy_std=statistics.stdev(self.accuracy) if len(self.accuracy) > 1 else None,
            seeds=len(self.accuracy),
            wall_seconds=seconds,
            selection=_SELECTION,
            details={
                "attacked": {
                    "identified": interval.value,
                    "recognised": statistics.mean(self.recognised),
                    "unseen picture to face": statistics.mean(self.matched),
                    "closest seen picture, correlation": statistics.mean(self.closest_seen),
                    "closest unseen": statistics.mean(self.closest_unseen),
                    "SSIM to seen": statistics.mean(self.ssim_seen),
                    "SSIM to unseen": statistics.mean(self.ssim_unseen),
                },
                "identified": interval.value,
                "identified_interval_95": [interval.low, interval.high],
                "means": {name: statistics.mean(values) for name, values in details.items()},
                "accuracies": self.accuracy,
                **details,
            },
        )


def run(request: Request) -> list[Row]:
    """Return a row per model, the private one last, and draw ``model-inversion.png`` with recovered faces."""
    request.choose_dataset((_DATASET,))
    faces = load_faces()
    trainers: dict[str, tuple[Plan | None, Callable[[_Split], _Attacked]]] = {
        "softmax regression": (None, _softmax),
        f"MLP, {_HIDDEN} hidden": (None, _mlp),
        f"denoising autoencoder, {_CODE} hidden": (None, _autoencoder),
    }
    for epsilon in request.choose_epsilons((8.0,)):
        plan = _PRIVATE_SETTING.plan(_as_dataset(_Split.draw(faces)), epsilon)
        trainers[f"softmax regression, ε = {epsilon:g}"] = (plan, partial(_private, plan))
    figures = {name: _Figures() for name in trainers}
    seconds = dict.fromkeys(trainers, 0.0)
    shown: dict[str, Tensor] = {}
    for number in range(request.seeds):
        split = _Split.draw(faces)
        judge = _fit(Logistic(split.mean.numel(), _PRIVATE), split.pair(split.unseen))
        for name, (_, train) in trainers.items():
            start = time.perf_counter()
            attacked = train(split)
            figures[name].add(split, attacked, judge)
            seconds[name] += time.perf_counter() - start
            shown[name] = attacked.faces
            request.listener(name, number + 1, request.seeds)
    _draw(split, shown, request)
    rows = [figures[name].row(name, plan, seconds[name]) for name, (plan, _) in trainers.items()]
    write_results(_NAME, rows, request, notes=_NOTES)
    return rows


_NOTES = (
    "identified: share of recovered faces that a softmax regression, trained on the 3 other pictures of each "
    "person, gives to the right one of 30 people; recognised: the same by correlation with the mean of the 3",
    "unseen picture to face: share of unseen pictures whose most correlated recovered face is the right one",
    "closest and SSIM: to the nearest of 3 pictures that trained the model (seen) and of 3 that did not; "
    "correlations are those of what is left without the public mean",
    "what is recovered is mostly what a person looks like, not a picture that was trained on: the model is "
    "asked to tell these people apart, and does it by their looks. Differential privacy of records promises "
    "to hide any one picture, not the class; to hide a person, make the person the unit",
    "under differential privacy the unit is one picture, add-remove; the settings were chosen on these faces "
    "and that choice is not part of the stated epsilon",
)


def _softmax(split: _Split) -> _Attacked:
    return _attack(_fit(Logistic(split.mean.numel(), _PRIVATE), split.pair(split.seen)), split)


def _mlp(split: _Split) -> _Attacked:
    model = MLP(split.mean.numel(), _PRIVATE, hidden=(_HIDDEN,), activation="tanh")
    return _attack(_fit(model, split.pair(split.seen)), split)


def _private(plan: Plan, split: _Split) -> _Attacked:
    model = Logistic(split.mean.numel(), _PRIVATE)
    _PRIVATE_SETTING.fit(model, _as_dataset(split), plan)
    return _attack(model, split)


def _as_dataset(split: _Split) -> Dataset:
    people = tuple(f"person {number}" for number in range(_PRIVATE))
    source = "AT&T faces, less the mean of public people"
    return Dataset(_DATASET, split.pair(split.seen), split.pair(split.unseen), people, source, "image")


def _attack(model: nn.Module, split: _Split) -> _Attacked:
    """Attack a model by gradient steps on the pixels."""
    whole = nn.Sequential(_TakeOff(split.mean), model)
    start = split.mean.expand(_PRIVATE, *split.mean.shape)
    found = mi_face(whole, torch.arange(_PRIVATE), start, settings=_SETTINGS)
    return _Attacked(whole, found.pictures, found.steps)


def _autoencoder(split: _Split) -> _Attacked:
    """Invert the softmax layer in the space of codes, as in the paper, and decode the resulting codes.

    The paper also decodes the code of every step, denoises the picture and encodes it (Algorithm 2).  This is
    left out here: with this autoencoder it moves codes to the mean face faster than a step moves them away.
    """
    h, w = split.mean.shape
    encode = nn.Sequential(_TakeOff(split.mean), nn.Flatten(), nn.Linear(h * w, _CODE), nn.Sigmoid())
    decode = nn.Sequential(nn.Linear(_CODE, h * w), nn.Sigmoid(), nn.Unflatten(1, (h, w)))
    pictures, people = split.seen.flatten(0, 1), split.pair(split.seen).targets

    def reconstruction() -> Tensor:
        noisy = pictures * (torch.rand_like(pictures) > 0.1)
        again: Tensor = decode(encode(noisy))
        return (again - pictures).square().sum((1, 2)).mean()

    _minimise(nn.ModuleList([encode, decode]), reconstruction)
    with torch.no_grad():
        codes = encode(pictures)
        start = encode(split.mean[None]).expand(_PRIVATE, _CODE)
    head = _fit(nn.Linear(_CODE, _PRIVATE), TensorPair(codes, people), rate=1e-2)

    found: Inverted = mi_face(head, torch.arange(_PRIVATE), start, settings=_CODE_SETTINGS)
    with torch.no_grad():
        faces = decode(found.pictures)
    return _Attacked(nn.Sequential(encode, head), faces, found.steps)


class _TakeOff(nn.Module):
    """Subtracts a public picture from pictures (n, h, w)."""

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.mean = nn.Buffer(mean)

    def forward(self, pictures: Tensor) -> Tensor:
        centred: Tensor = pictures - self.mean
        return centred


def _fit(model: nn.Module, data: TensorPair, *, rate: float = _RATE) -> nn.Module:
    """Train without privacy, by the cross-entropy on all records at once."""
    _minimise(model, lambda: nn.functional.cross_entropy(model(data.inputs), data.targets), rate=rate)
    return model


def _minimise(model: nn.Module, loss: Callable[[], Tensor], *, rate: float = _RATE) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _accuracy(model: nn.Module, pictures: Tensor, people: Tensor) -> float:
    with torch.no_grad():
        return float((model(pictures).argmax(1) == people).double().mean())


def _draw(split: _Split, shown: dict[str, Tensor], request: Request) -> None:
    """Draw people as columns; the first two rows are a training picture and an unseen picture."""
    rows = {"trained on": split.seen[:, 0], "never seen": split.unseen[:, 0]} | shown
    rows["start: the public mean"] = split.mean.expand(_PRIVATE, *split.mean.shape)
    figure = new_figure(1.15 * _SHOWN + 1.8, 1.35 * len(rows))
    for line, (axes, (name, pictures)) in enumerate(
        zip(figure.subplots(len(rows), _SHOWN), rows.items(), strict=True)
    ):
        for person, place in enumerate(axes):
            place.imshow(pictures[person].numpy(), cmap="gray", vmin=0.0, vmax=1.0)
            place.set_xticks([])
            place.set_yticks([])
            if line == 0:
                place.set_title(f"person {person + 1}", fontsize=8)
        label = (
            name.replace(", ", ",\n")
            .replace("denoising ", "denoising\n")
            .replace(" regression", "\nregression")
        )
        axes[0].set_ylabel(label, fontsize=8, rotation=0, ha="right", va="center")
    save_figure(figure, request.folder / f"{_NAME}.png")
