"""The models that come with Tacit: networks by name, a language model, DP-PCA, image features."""

from tacit.models.dp_pca import DPPCA, fit_dp_pca
from tacit.models.networks import MLP, Logistic, TemperedSigmoid, WindowModel, build
from tacit.models.picture_features import PictureFeatures
from tacit.models.private_ready import make_private_ready

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
