"""The models that come with Tacit: networks by name, a language model, DP-PCA, image features."""

from tacit.models.dp_pca import DPPCA, fit_dp_pca
from tacit.models.networks import MLP, Logistic, TemperedSigmoid, WindowModel, build, make_private_ready
from tacit.models.picture_features import PictureFeatures

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
