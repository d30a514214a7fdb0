"""Reference networks, tempered sigmoids, scattering features, DP-PCA."""

from tacit.models.activations import TemperedSigmoid, activation_layer
from tacit.models.networks import (
    MLP,
    GroupNormalise,
    Logistic,
    abadi_cifar_cnn,
    abadi_mnist_mlp,
    build,
    group_normalise,
    names,
    papernot_cifar_cnn,
    papernot_mnist_cnn,
    scattering_cnn,
    scattering_linear,
)

__all__ = [
    "MLP",
    "GroupNormalise",
    "Logistic",
    "TemperedSigmoid",
    "abadi_cifar_cnn",
    "abadi_mnist_mlp",
    "activation_layer",
    "build",
    "group_normalise",
    "names",
    "papernot_cifar_cnn",
    "papernot_mnist_cnn",
    "scattering_cnn",
    "scattering_linear",
]
