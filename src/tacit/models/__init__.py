"""Which models come with Tacit? Reference networks, tempered sigmoids, scattering, DP-PCA, least squares."""

from tacit.models.by_name import build, names
from tacit.models.dp_pca import DPPCA, fit_dp_pca
from tacit.models.least_squares import LeastSquaresHead, Moments
from tacit.models.networks import (
    MLP,
    GroupNormalise,
    Logistic,
    TemperedSigmoid,
    WindowModel,
    abadi_cifar_cnn,
    abadi_mnist_mlp,
    activation_layer,
    group_normalise,
    papernot_cifar_cnn,
    papernot_mnist_cnn,
    scattering_cnn,
    scattering_linear,
)
from tacit.models.picture_features import PictureFeatures
from tacit.models.private_ready import make_private_ready, replacements
from tacit.models.public_pictures import dead_leaves
from tacit.models.scattering import Scattering, scattering_features

__all__ = [
    "DPPCA",
    "MLP",
    "GroupNormalise",
    "LeastSquaresHead",
    "Logistic",
    "Moments",
    "PictureFeatures",
    "Scattering",
    "TemperedSigmoid",
    "WindowModel",
    "abadi_cifar_cnn",
    "abadi_mnist_mlp",
    "activation_layer",
    "build",
    "dead_leaves",
    "fit_dp_pca",
    "group_normalise",
    "make_private_ready",
    "names",
    "papernot_cifar_cnn",
    "papernot_mnist_cnn",
    "replacements",
    "scattering_cnn",
    "scattering_features",
    "scattering_linear",
]
