"""The networks that a configuration file can name.

Every network maps a batch (n, *input_shape) to logits (n, classes), except ``window``, which maps texts to
the logits of each next character.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from tacit.errors import InvalidInput, check_in, check_integer
from tacit.models.networks import (
    MLP,
    Logistic,
    WindowModel,
    abadi_cifar_cnn,
    abadi_mnist_mlp,
    papernot_cifar_cnn,
    papernot_mnist_cnn,
    scattering_cnn,
    scattering_linear,
)


def build(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int,
    activation: str | None = None,
    temper: Sequence[float] | None = None,
    hidden: Sequence[int] | None = None,
    groups: int | None = None,
    normalise: bool | None = None,
) -> nn.Module:
    """Build a network by its name, as a configuration file does.

    Args:
        name: one of :func:`names`.
        input_shape: the shape of one record.
        classes: the number of logits.
        activation: "relu", "tanh" or "tempered-sigmoid", for mlp, ``papernot-*`` and scattering-cnn.
        temper: (scale, inverse temperature, offset) of "tempered-sigmoid".
        hidden: for mlp, the widths of the hidden layers; for window, a list of the one width.
        groups: for ``scattering-*``, the number of groups in the normalisation.
        normalise: for logistic, whether each record is first normalised to mean 0 and variance 1.

    Raises:
        InvalidInput: the name is unknown, the network does not have an option, or the shape does not fit it.

    >>> build("mlp", input_shape=(1, 8, 8), classes=10, hidden=[32])[1]
    Linear(in_features=64, out_features=32, bias=True)
    """
    entry = _NETWORKS[check_in("model", name, names())]
    arguments = {
        "activation": activation,
        "temper": temper,
        "hidden": hidden,
        "groups": groups,
        "normalise": normalise,
    }
    options: dict[str, Any] = {option: value for option, value in arguments.items() if value is not None}
    for option in options:
        if option not in entry.options:
            raise InvalidInput(
                f"the network {name!r} has no option {option!r}; it has {', '.join(entry.options) or 'none'}."
            )
    shape = tuple(check_integer("input_shape", size, low=1) for size in input_shape)
    if temper is not None and (activation != "tempered-sigmoid" or len(temper) != 3):
        raise InvalidInput(
            "temper must be (scale, inverse temperature, offset), with activation 'tempered-sigmoid'; "
            f"got {temper!r} with activation {activation!r}."
        )
    return entry.make(_Shape(name, shape), check_integer("classes", classes, low=1), **options)


def names() -> tuple[str, ...]:
    """Return the names that :func:`build` knows.

    >>> names()[:2]
    ('linear', 'additive')
    """
    return tuple(_NETWORKS)


@dataclass(frozen=True)
class _Shape:
    """The shape of one record, with the name of the network for error messages."""

    network: str
    sizes: tuple[int, ...]

    @property
    def values(self) -> int:
        return math.prod(self.sizes)

    def images(self) -> tuple[int, int, int]:
        if len(self.sizes) != 3:
            raise InvalidInput(
                f"{self.network} takes (channels, height, width); got input_shape {self.sizes}."
            )
        channels, height, width = self.sizes
        return channels, height, width

    def channels_of(self, side: int) -> int:
        channels, height, width = self.images()
        if (height, width) != (side, side):
            raise InvalidInput(f"{self.network} takes images of {side}x{side}; got input_shape {self.sizes}.")
        return channels

    def square(self) -> int:
        _, height, width = self.images()
        if height != width:
            raise InvalidInput(f"{self.network} takes square images; got input_shape {self.sizes}.")
        return height


@dataclass(frozen=True)
class _Network:
    """A network: ``make`` takes a record's shape, the number of classes, and any of the ``options``."""

    make: Callable[..., nn.Module]
    options: tuple[str, ...] = ()


_NETWORKS: dict[str, _Network] = {
    "linear": _Network(lambda shape, classes: Logistic(shape.values, classes)),
    "additive": _Network(lambda shape, classes: Logistic(shape.values, classes)),
    "logistic": _Network(lambda shape, classes, **o: Logistic(shape.values, classes, **o), ("normalise",)),
    "mlp": _Network(
        lambda shape, classes, **o: MLP(shape.values, classes, **o), ("hidden", "activation", "temper")
    ),
    "papernot-mnist-cnn": _Network(
        lambda shape, classes, **o: papernot_mnist_cnn(classes=classes, channels=shape.channels_of(28), **o),
        ("activation", "temper"),
    ),
    "papernot-cifar-cnn": _Network(
        lambda shape, classes, **o: papernot_cifar_cnn(classes=classes, channels=shape.channels_of(32), **o),
        ("activation", "temper"),
    ),
    "scattering-linear": _Network(
        lambda shape, classes, **o: scattering_linear(input_shape=shape.images(), classes=classes, **o),
        ("groups",),
    ),
    "scattering-cnn": _Network(
        lambda shape, classes, **o: scattering_cnn(input_shape=shape.images(), classes=classes, **o),
        ("groups", "activation", "temper"),
    ),
    "window": _Network(
        lambda _, classes, hidden=(128,): WindowModel(classes, hidden=_one_width(hidden)), ("hidden",)
    ),
    "abadi-mnist-mlp": _Network(lambda shape, classes: abadi_mnist_mlp(shape.values, 1000, classes)),
    "abadi-cifar-cnn": _Network(
        lambda shape, classes: abadi_cifar_cnn(
            size=shape.square(), classes=classes, channels=shape.images()[0]
        )
    ),
}


def _one_width(hidden: Sequence[int]) -> int:
    if len(hidden) != 1:
        raise InvalidInput(f"the network window has one hidden layer; got hidden={list(hidden)}.")
    return hidden[0]
