"""Which networks can a configuration file name?

Every network takes a batch (n, *input_shape) to logits (n, classes); window takes text to logits of each
next character.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from tacit.errors import InvalidInput, check_in, check_integer
from tacit.models.networks import (
    MLP,
    TANH_TEMPER,
    Logistic,
    Temper,
    WindowModel,
    abadi_cifar_cnn,
    abadi_mnist_mlp,
    papernot_cifar_cnn,
    papernot_mnist_cnn,
    scattering_cnn,
    scattering_linear,
)


@dataclass(frozen=True)
class _Options:
    """The options of :func:`build` with their values, None where the user gave none."""

    activation: str
    temper: Temper
    hidden: tuple[int, ...]
    groups: int
    normalise: bool


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
    """Build a network by its name, as a configuration file does; see :func:`names`.

    * ``activation``: "relu", "tanh" or "tempered-sigmoid", for mlp, ``papernot-*`` and scattering-cnn;
    * ``temper``: (scale, inverse temperature, offset) of "tempered-sigmoid";
    * ``hidden``: widths of the hidden layers of mlp; of window, which has one, that one in a list;
    * ``groups``: groups of the normalisation of ``scattering-*``;
    * ``normalise``: whether logistic brings each record to mean 0 and variance 1 first.

    Errors: :class:`InvalidInput` for an unknown name, an option that the network does not have, or a shape
    that does not fit it.

    >>> build("mlp", input_shape=(1, 8, 8), classes=10, hidden=[32])[1]
    Linear(in_features=64, out_features=32, bias=True)
    """
    entry = _NETWORKS[check_in("model", name, names())]
    given = {
        "activation": activation,
        "temper": temper,
        "hidden": hidden,
        "groups": groups,
        "normalise": normalise,
    }
    for option, value in given.items():
        if value is not None and option not in entry.options:
            raise InvalidInput(
                f"the network {name!r} has no option {option!r}; it has {', '.join(entry.options) or 'none'}."
            )
    shape = tuple(check_integer("input_shape", size, low=1) for size in input_shape)
    if temper is not None and (activation != "tempered-sigmoid" or len(temper) != 3):
        raise InvalidInput(
            "temper must be the three numbers (scale, inverse temperature, offset), beside "
            f"activation 'tempered-sigmoid'; got {temper!r} with activation {activation!r}."
        )
    options = _Options(
        activation=activation or "tanh",
        temper=TANH_TEMPER if temper is None else (temper[0], temper[1], temper[2]),
        hidden=(128,) if hidden is None else tuple(hidden),
        groups=27 if groups is None else groups,
        normalise=bool(normalise),
    )
    return entry.make(_Shape(name, shape), check_integer("classes", classes, low=1), options)


def names() -> tuple[str, ...]:
    """The names that :func:`build` knows.

    >>> names()[:2]
    ('logistic', 'mlp')
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
    make: Callable[[_Shape, int, _Options], nn.Module]
    options: tuple[str, ...] = ()


_NETWORKS: dict[str, _Network] = {
    "logistic": _Network(
        lambda shape, classes, o: Logistic(shape.values, classes, normalise=o.normalise), ("normalise",)
    ),
    "mlp": _Network(
        lambda shape, classes, o: MLP(
            shape.values, classes, hidden=o.hidden, activation=o.activation, temper=o.temper
        ),
        ("hidden", "activation", "temper"),
    ),
    "papernot-mnist-cnn": _Network(
        lambda shape, classes, o: papernot_mnist_cnn(
            classes=classes, channels=shape.channels_of(28), activation=o.activation, temper=o.temper
        ),
        ("activation", "temper"),
    ),
    "papernot-cifar-cnn": _Network(
        lambda shape, classes, o: papernot_cifar_cnn(
            classes=classes, channels=shape.channels_of(32), activation=o.activation, temper=o.temper
        ),
        ("activation", "temper"),
    ),
    "scattering-linear": _Network(
        lambda shape, classes, o: scattering_linear(
            input_shape=shape.images(), classes=classes, groups=o.groups
        ),
        ("groups",),
    ),
    "scattering-cnn": _Network(
        lambda shape, classes, o: scattering_cnn(
            input_shape=shape.images(),
            classes=classes,
            groups=o.groups,
            activation=o.activation,
            temper=o.temper,
        ),
        ("groups", "activation", "temper"),
    ),
    "window": _Network(lambda _, classes, o: WindowModel(classes, hidden=_only(o.hidden)), ("hidden",)),
    "abadi-mnist-mlp": _Network(lambda shape, classes, _: abadi_mnist_mlp(shape.values, 1000, classes)),
    "abadi-cifar-cnn": _Network(
        lambda shape, classes, _: abadi_cifar_cnn(
            size=shape.square(), classes=classes, channels=shape.images()[0]
        )
    ),
}


def _only(hidden: tuple[int, ...]) -> int:
    if len(hidden) != 1:
        raise InvalidInput(f"window has one hidden layer; got hidden={list(hidden)}.")
    return hidden[0]
