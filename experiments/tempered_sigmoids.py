"""Tempered sigmoids against ReLU (Papernot et al., 2007.14191).

Under DP-SGD unbounded activations grow, and so do gradients, and clipping then removes most of the signal.
Bounded activations keep both small.  Every activation has the same network, settings and budget.  The figure
shows the norms of activations per layer and step, and the accuracy per class, as rare classes suffer first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from experiments.base import Request, Row, Setting, percent, repeat, write_results
from experiments.standard import load
from tacit.datasets import Dataset
from tacit.models import TemperedSigmoid
from tacit.models.networks import papernot_cifar_cnn, papernot_mnist_cnn
from tacit.plan import Plan
from tacit.report.canvas import BLUE, GREEN, MARKERS, ORANGE, PALE, new_figure, save_figure
from tacit.training import Evaluation, PrivateSession

_NAME = "tempered-sigmoids"
_PROBE = 256  # the number of test pictures whose activations are measured
_PROBES = 12  # measurements per run


_SETTINGS = {  # as in the paper, except for averaged weights
    "mnist": (2.93, Setting(512, 4680, 0.5, 0.9, 0.1, 0.99)),
    "fashion-mnist": (2.7, Setting(2048, 1160, 4.0, 0.9, 0.1, 0.99)),
    "cifar10": (7.53, Setting(1024, 1440, 1.0, 0.9, 0.1, 0.99)),
}
_ACTIVATIONS: dict[str, tuple[str, tuple[float, float, float]]] = {
    "tanh = (2, 2, 1)": ("tanh", (2.0, 2.0, 1.0)),
    "ReLU": ("relu", (2.0, 2.0, 1.0)),
    "tempered (1.6, 2.4, 0.8)": ("tempered-sigmoid", (1.6, 2.4, 0.8)),
}


_SELECTION = "as published, averaging on the last 10,000 training images; test figures seen before"


def run(request: Request) -> list[Row]:
    """Return a row per activation, and draw ``tempered-sigmoids.png``."""
    name = request.choose_dataset(tuple(_SETTINGS))
    data, (published_epsilon, setting) = load(name), _SETTINGS[name]
    rows: list[Row] = []
    for epsilon in request.choose_epsilons((published_epsilon,)):
        plan = setting.plan(data, epsilon)
        for label in _ACTIVATIONS:
            probe = _Probe(data.test.inputs[:_PROBE], max(1, setting.steps // _PROBES))
            once = partial(_once, label, data, plan, setting, probe, request.device)
            found = repeat(f"{name}, ε = {epsilon:g}, {label}", request, plan, once)
            measured = {"activation_norms": probe.norms, "activation_steps": probe.steps}
            rows.append(
                found.row(
                    _NAME, name, f"Papernot CNN, {label}", selection=_SELECTION, activation=label, **measured
                )
            )
            write_results(_NAME, rows, request, notes=_NOTES)
    _draw(rows, data.classes, request)
    return rows


_NOTES = (
    "batch size, steps, learning rate, momentum and clipping norm as published; the weights are averaged "
    "(decay 0.99), chosen on the last 10,000 of the training images, by runs on the others that are not part "
    "of the stated epsilon",
    "activation norms are measured on test pictures",
)


def _once(
    label: str, data: Dataset, plan: Plan, setting: Setting, probe: _Probe, device: str, number: int
) -> Evaluation:
    activation, temper = _ACTIVATIONS[label]
    make = papernot_cifar_cnn if data.name == "cifar10" else papernot_mnist_cnn
    model = make(activation=activation, temper=temper).to(device)
    watcher = probe if number == 0 else None
    return setting.fit(model, data, plan, watcher=watcher, physical_batch_size=512)


@dataclass
class _Probe:
    """Measures the mean l2 norm of each activation layer's output on some pictures, every ``every`` steps."""

    pictures: Tensor
    every: int
    steps: list[int] = field(default_factory=list)
    norms: list[list[float]] = field(default_factory=list)

    def __call__(self, session: PrivateSession) -> None:
        if session.steps_done % self.every and session.steps_done != 1:
            return
        self.steps.append(session.steps_done)
        self.norms.append(_activation_norms(session.model, self.pictures))


def _activation_norms(model: nn.Module, pictures: Tensor) -> list[float]:
    device = next(model.parameters()).device
    found: list[float] = []
    with torch.no_grad():
        values = pictures.to(device)
        for layer in model.children():
            values = layer(values)
            if isinstance(layer, nn.ReLU | nn.Tanh | TemperedSigmoid):
                found.append(float(values.flatten(1).norm(dim=1).mean()))
    return found


def _draw(rows: list[Row], classes: tuple[str, ...], request: Request) -> None:
    figure = new_figure(10.0, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.2))
    colours = (BLUE, ORANGE, GREEN, PALE)
    layer_styles = ("-", "--", ":", "-.", (0, (1, 1)), (0, (5, 1)), (0, (3, 1, 1, 1)))
    width = 0.8 / max(1, len(rows))
    for position, (row, colour) in enumerate(zip(rows, colours, strict=False)):
        label, norms = row.details["activation"], row.details["activation_norms"]
        for layer, values in enumerate(zip(*norms, strict=True)):
            text = label if layer == 0 else None
            style = layer_styles[layer % len(layer_styles)]
            look = {"linestyle": style, "marker": MARKERS[position], "markersize": 4, "color": colour}
            left.plot(row.details["activation_steps"], values, label=text, **look)
        places = [index + (position - (len(rows) - 1) / 2) * width for index in range(len(classes))]
        heights = [100 * value for value in row.details["per_class"]]
        mean = percent(row.accuracy_mean)
        right.bar(places, heights, width, color=colour, label=f"{label}: {mean:.2f} %")
    left.set_yscale("log")
    left.set_xlabel("steps")
    left.set_ylabel("mean norm of activations; line style = layer")
    left.legend(fontsize=8)
    lowest = min(100 * value for row in rows for value in row.details["per_class"])
    right.set_ylim(max(0.0, lowest - 3), 103)  # room for the legend
    right.set_xticks(range(len(classes)), classes, rotation=45 if max(map(len, classes)) > 2 else 0)
    right.set_ylabel("test accuracy per class, %")
    right.legend(fontsize=8, loc="upper right", ncols=2)
    for axes in (left, right):
        axes.grid(alpha=0.25)
    save_figure(figure, request.folder / f"{_NAME}.png")
