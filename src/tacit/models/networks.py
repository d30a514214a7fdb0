"""Networks and activations: plain modules without layers that mix records.

Letters: n records; L tokens per record; W tokens of context; V, the size of the vocabulary.
"""

# Every image network maps a batch ``(n, *input_shape)`` to logits (n, classes).  Tempered sigmoids are
# bounded, which keeps gradients small.

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from tacit.errors import InvalidInput, check_in, check_integer, check_real

Temper = tuple[float, float, float]
TANH_TEMPER: Temper = (2.0, 2.0, 1.0)
ACTIVATIONS = ("relu", "tanh", "tempered-sigmoid")


class TemperedSigmoid(nn.Module):
    """``scale * sigmoid(inverse_temperature * x) - offset``, elementwise (Papernot et al., 2007.14191).

    Bounded activations give smaller per-example gradients, so clipping removes less of them. Scale 2, inverse
    temperature 2 and offset 1 give tanh.

    Raises:
        InvalidInput: if the scale or the inverse temperature is not positive.

    >>> TemperedSigmoid(scale=1.0, inverse_temperature=1.0, offset=0.0)(torch.zeros(2))
    tensor([0.5000, 0.5000])
    """

    def __init__(self, *, scale: float, inverse_temperature: float, offset: float) -> None:
        super().__init__()
        self.scale = check_real("scale", scale, low=0.0, open_low=True)
        slope = check_real("inverse_temperature", inverse_temperature, low=0.0, open_low=True)
        self.inverse_temperature = slope
        self.offset = check_real("offset", offset)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to every element."""
        return self.scale * torch.sigmoid(self.inverse_temperature * x) - self.offset

    def extra_repr(self) -> str:
        """Return the three constants as text, for ``repr``."""
        return f"scale={self.scale}, inverse_temperature={self.inverse_temperature}, offset={self.offset}"


def activation_layer(name: str, *, temper: Temper = TANH_TEMPER) -> nn.Module:
    match check_in("activation", name, ACTIVATIONS):
        case "relu":
            return nn.ReLU()
        case "tanh":
            return nn.Tanh()
        case _:
            scale, inverse_temperature, offset = temper
            return TemperedSigmoid(scale=scale, inverse_temperature=inverse_temperature, offset=offset)


class Logistic(nn.Sequential):
    """Logistic regression: one linear layer from the flattened record to the logits.

    All weights start at zero. With ``normalise``, the model first scales each record to mean 0 and variance 1
    over the record's own values. This costs no budget, because it uses no other record.

    Shapes: maps records (n, ...), which it flattens to (n, ``inputs``), to logits (n, ``classes``).

    >>> sum(weight.numel() for weight in Logistic(64, 10).parameters())
    650
    """

    def __init__(self, inputs: int, classes: int, *, normalise: bool = False) -> None:
        layer = nn.Linear(_positive("inputs", inputs), _positive("classes", classes))
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        first = [nn.LayerNorm(layer.in_features, elementwise_affine=False)] if normalise else []
        super().__init__(nn.Flatten(), *first, layer)


class MLP(nn.Sequential):
    """A multilayer perceptron: linear layers with an activation between them.

    Shapes: maps records (n, ...), which it flattens to (n, ``inputs``), to logits (n, ``classes``).

    >>> MLP(64, 10, hidden=(32,))[1]
    Linear(in_features=64, out_features=32, bias=True)
    """

    def __init__(
        self,
        inputs: int,
        classes: int,
        *,
        hidden: Sequence[int] = (128,),
        activation: str = "tanh",
        temper: Temper = TANH_TEMPER,
    ) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        width = _positive("inputs", inputs)
        for position, units in enumerate(hidden):
            layers.append(nn.Linear(width, _positive(f"hidden[{position}]", units)))
            layers.append(activation_layer(activation, temper=temper))
            width = units
        super().__init__(*layers, nn.Linear(width, _positive("classes", classes)))


class GroupNormalize(nn.Module):
    """:func:`group_normalize` as a layer without weights or state."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = _positive("groups", groups)

    def forward(self, features: Tensor) -> Tensor:
        return group_normalize(features, groups=self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


def group_normalize(features: Tensor, *, groups: int) -> Tensor:
    """Apply group normalisation without scale and shift (Wu and He, 1803.08494), record by record."""
    # Every group of neighbouring channels of a record gets mean 0 and variance 1 over channels and positions.
    # This mixes no records, and no constant comes from data, so it costs no privacy. Shapes: (n, channels,
    # ...) to the same; ``groups`` must divide ``channels``.
    if features.ndim < 2 or features.shape[1] % check_integer("groups", groups, low=1):
        raise InvalidInput(
            f"groups must divide the number of channels of features (n, channels, ...); got groups={groups} "
            f"for {tuple(features.shape)}."
        )
    return F.group_norm(features, groups)


def papernot_mnist_cnn(
    *, classes: int = 10, channels: int = 1, activation: str = "tanh", temper: Temper = TANH_TEMPER
) -> nn.Sequential:
    """Build the convolutional network for MNIST and Fashion-MNIST of Papernot et al. (2007.14191)."""
    # It has 26,010 parameters for one channel and ten classes. Shapes: (n, channels, 28, 28) to (n, classes).
    return nn.Sequential(
        nn.Conv2d(_positive("channels", channels), 16, 8, stride=2, padding=2),
        activation_layer(activation, temper=temper),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        activation_layer(activation, temper=temper),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 32),
        activation_layer(activation, temper=temper),
        nn.Linear(32, _positive("classes", classes)),
    )


def papernot_cifar_cnn(
    *, classes: int = 10, channels: int = 3, activation: str = "tanh", temper: Temper = TANH_TEMPER
) -> nn.Sequential:
    """Build the convolutional network for CIFAR-10 of Papernot et al. (2007.14191)."""
    # It has 550,570 parameters for three channels and ten classes. Shapes: (n, channels, 32, 32) to (n,
    # classes).
    layers: list[nn.Module] = []
    width = _positive("channels", channels)
    for filters in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(width, filters, 3, padding=1), activation_layer(activation, temper=temper)]
            width = filters
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(2048, 128), activation_layer(activation, temper=temper)]
    return nn.Sequential(*layers, nn.Linear(128, _positive("classes", classes)))


def scattering_linear(
    *, input_shape: tuple[int, int, int], classes: int = 10, groups: int = 27
) -> nn.Sequential:
    """Build a linear model on scattering features, normalised in groups (Tramèr and Boneh, 2011.11660)."""
    # For ten classes it has 39,700 parameters with features (81, 7, 7), and 155,530 with (243, 8, 8). Shapes:
    # ``(n, *input_shape)`` to (n, classes).
    _check_groups(input_shape[0], groups)
    return nn.Sequential(GroupNormalize(groups), Logistic(math.prod(input_shape), classes))


def scattering_cnn(
    *,
    input_shape: tuple[int, int, int],
    classes: int = 10,
    groups: int = 27,
    activation: str = "tanh",
    temper: Temper = TANH_TEMPER,
) -> nn.Sequential:
    """Build a small convolutional network on scattering features (Tramèr and Boneh, 2011.11660)."""
    # There are two variants: for features (channels, 7, 7), of 28x28 images, and (channels, 8, 8), of 32x32.
    # Shapes: ``(n, *input_shape)`` to (n, classes).
    channels, *size = input_shape
    _check_groups(channels, groups)
    _positive("classes", classes)

    def act() -> nn.Module:
        return activation_layer(activation, temper=temper)

    if size == [7, 7]:
        return nn.Sequential(
            GroupNormalize(groups),
            *(nn.Conv2d(channels, 16, 3, stride=2, padding=1), act()),
            *(nn.Conv2d(16, 32, 3, padding=1), act()),
            *(nn.Flatten(), nn.Linear(512, 32), act()),
            nn.Linear(32, classes),
        )
    if size == [8, 8]:
        return nn.Sequential(
            GroupNormalize(groups),
            *(nn.Conv2d(channels, 64, 3, padding=1), act(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 64, 3, padding=1), act()),
            *(nn.Flatten(), nn.Linear(1024, classes)),
        )
    raise InvalidInput(
        "scattering-cnn takes features of shape (channels, 7, 7) for 28x28 images, or (channels, 8, 8) for "
        f"32x32; got {input_shape}."
    )


def abadi_mnist_mlp(inputs: int = 60, hidden: int = 1000, classes: int = 10) -> MLP:
    """Build a network with one hidden layer of ReLUs for DP-PCA projections (1607.00133, section 5.2)."""
    # Shapes: (n, inputs) to (n, classes).
    return MLP(inputs, classes, hidden=(hidden,), activation="relu")


def abadi_cifar_cnn(*, size: int = 24, classes: int = 10, channels: int = 3) -> nn.Sequential:
    """Build the convolutional network for 24x24 crops of CIFAR-10 (Abadi et al., 1607.00133, section 5.3)."""
    # It has two 5x5 convolutions with 64 filters, ReLU and 2x2 max pooling, then two layers of 384 units.
    # ``size`` is the side of the square images, a multiple of 4. Shapes: (n, channels, size, size) to (n,
    # classes).
    if check_integer("size", size, low=4) % 4:
        raise InvalidInput(f"size must be a multiple of 4, because the network halves it twice; got {size}.")
    return nn.Sequential(
        *(nn.Conv2d(_positive("channels", channels), 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * (size // 4) ** 2, 384), nn.ReLU()),
        *(nn.Linear(384, 384), nn.ReLU()),
        nn.Linear(384, _positive("classes", classes)),
    )


def _positive(name: str, value: object) -> int:
    return check_integer(name, value, low=1)


def _check_groups(channels: int, groups: int) -> None:
    if channels % _positive("groups", groups):
        raise InvalidInput(
            f"groups must divide the number of channels; got {groups} for {channels} channels."
        )


_START = 0  # the token that pads the context before a record


class WindowModel(nn.Module):
    """A language model that predicts each token from the W tokens before it; W is ``context``.

    It has one hidden layer with tanh (Bengio et al., JMLR 3, 2003).

    Shapes: maps token numbers (n, L) to logits (n, L, V), for a vocabulary of V tokens. The logits at
    position l are for the token at l + 1, and depend only on the tokens at positions 0 to l.

    >>> import torch
    >>> model = WindowModel(27, context=4)
    >>> model(torch.zeros(2, 9, dtype=torch.int64)).shape
    torch.Size([2, 9, 27])
    """

    def __init__(self, vocabulary: int, *, context: int = 12, embedding: int = 12, hidden: int = 96) -> None:
        super().__init__()
        self.context = check_integer("context", context, low=1)
        check_integer("vocabulary", vocabulary, low=2)
        self.embedding = nn.Embedding(vocabulary, check_integer("embedding", embedding, low=1))
        self.hidden = nn.Linear(context * embedding, check_integer("hidden", hidden, low=1))
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return, for each position, the logits of the next token."""
        padded = F.pad(tokens, (self.context - 1, 0), value=_START)
        return self.after(padded.unfold(-1, self.context, 1))

    def after(self, contexts: Tensor) -> Tensor:
        """Return the logits (..., V) of the next token, given the last W tokens (..., W)."""
        logits: Tensor = self.output(torch.tanh(self.hidden(self.embedding(contexts).flatten(-2))))
        return logits


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
        name: the network, one of :func:`tacit.models.networks.names`.
        input_shape: the shape of one record, such as (1, 28, 28).
        classes: the number of logits.
        activation: for mlp, ``papernot-*`` and scattering-cnn: "relu", "tanh" or "tempered-sigmoid".
        temper: for "tempered-sigmoid", three numbers: scale, inverse temperature and offset.
        hidden: the widths of the hidden layers of ``mlp``; for ``window``, a list of one width.
        groups: for ``scattering-*``, the number of groups of GroupNorm.
        normalise: for logistic, whether the model first scales each record to mean 0 and variance 1.

    Raises:
        InvalidInput: if the name is unknown, this network does not have one of the options, or it can't read
            records of this shape.

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
            "temper must be three numbers (scale, inverse temperature, offset), and needs activation "
            f"'tempered-sigmoid'; got {temper!r} with activation {activation!r}."
        )
    return entry.make(_Shape(name, shape), check_integer("classes", classes, low=1), **options)


def names() -> tuple[str, ...]:
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
        raise InvalidInput(f"network 'window' must have one hidden layer; got hidden={list(hidden)}.")
    return hidden[0]


# --- layers that mix records -------------------------------------------------------------------------------
#
# Letters: C channels; G groups of channels.


def make_private_ready(model: nn.Module) -> nn.Module:
    """Return a copy of ``model`` without layers that mix records.

    The copy has GroupNorm instead of every kind of BatchNorm (De et al., 2204.13650, section 3.1). The number
    of groups divides the channels and is as large as possible: at most 32, with at least four channels per
    group. The learnt scale and bias are copied. Running statistics are dropped, also those of InstanceNorm.
    :func:`tacit.models.networks.replacements` lists the layers that change.

    **Guarantee**

    * The normalisation layers of the returned model pass Tacit's check for layers that mix records
      (``isolation.model_checks.check_model``).
    * The original is not changed, and shares no tensor with the copy.

    >>> make_private_ready(nn.BatchNorm2d(48)).num_groups
    12
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    ready = copy.deepcopy(model)
    if (new := _replacement(ready)) is not None:
        return new
    layers: dict[int, nn.Module] = {}
    for parent in list(ready.modules()):
        for name, child in list(parent._modules.items()):
            if child is None:
                continue
            new = layers.get(id(child)) or _replacement(child)
            if new is not None:
                layers[id(child)] = new
                setattr(parent, name, new)
    return ready


def replacements(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield (module name, class of the new layer) for each layer that :func:`make_private_ready` replaces."""
    for name, module in model.named_modules():
        new = _replacement(copy.deepcopy(module))
        if new is not None:
            yield name, type(new).__name__


def _replacement(module: nn.Module) -> nn.Module | None:
    """Return the layer that replaces ``module``, or None if it may stay."""
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        new: nn.Module = type(module)(
            module.num_features, eps=module.eps, affine=module.affine, track_running_stats=False
        )
    elif isinstance(module, _BatchNorm):
        new = nn.GroupNorm(_groups(module.num_features), module.num_features, module.eps, module.affine)
    else:
        return None
    new._parameters.update(module._parameters)
    return new.train(module.training)


def _groups(C: int) -> int:
    """Return the largest divisor of C up to 32 that leaves at least four channels to a group, else 1."""
    return max(g for g in range(1, 33) if C % g == 0 and (g == 1 or C // g >= 4))
