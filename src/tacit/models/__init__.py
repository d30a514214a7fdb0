"""The models that come with Tacit: networks by name, a language model, DP-PCA, image features."""

from typing import TYPE_CHECKING

from tacit.models.by_name import build
from tacit.models.dp_pca import DPPCA, fit_dp_pca
from tacit.models.networks import MLP, Logistic, TemperedSigmoid, WindowModel
from tacit.models.picture_features import PictureFeatures
from tacit.models.private_ready import make_private_ready
from tacit.moved import moved as _moved

__all__ = [
    "DPPCA",
    "MLP",
    "Logistic",
    "PictureFeatures",
    "TemperedSigmoid",
    "WindowModel",
    "build",
    "fit_dp_pca",
    "make_private_ready",
]

if not TYPE_CHECKING:  # a type checker would otherwise accept every name of the module
    __getattr__ = _moved(
        __name__,
        {
            "names": "tacit.models.by_name.names",
            "GroupNormalise": "tacit.models.networks.GroupNormalize",
            "LeastSquaresHead": "tacit.models.least_squares.LeastSquaresHead",
            "Moments": "tacit.models.least_squares.Moments",
            "Scattering": "tacit.models.scattering.Scattering",
            "abadi_cifar_cnn": "tacit.models.networks.abadi_cifar_cnn",
            "abadi_mnist_mlp": "tacit.models.networks.abadi_mnist_mlp",
            "activation_layer": "tacit.models.networks.activation_layer",
            "dead_leaves": "tacit.models.public_pictures.dead_leaves",
            "group_normalise": "tacit.models.networks.group_normalize",
            "papernot_cifar_cnn": "tacit.models.networks.papernot_cifar_cnn",
            "papernot_mnist_cnn": "tacit.models.networks.papernot_mnist_cnn",
            "replacements": "tacit.models.private_ready.replacements",
            "scattering_cnn": "tacit.models.networks.scattering_cnn",
            "scattering_features": "tacit.models.scattering.scattering_features",
            "scattering_linear": "tacit.models.networks.scattering_linear",
        },
    )
