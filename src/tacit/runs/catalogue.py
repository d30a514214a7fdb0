"""Which names may a configuration file use? Those of data sets and networks, known without torch."""

from __future__ import annotations

__all__ = ["DATA_SETS", "NETWORKS"]

DATA_SETS = (
    "digits", "breast-cancer", "wine", "iris", "diabetes", "names",
    "mnist", "fashion-mnist", "cifar10", "cifar100",
)  # fmt: skip
"""The names that :func:`tacit.datasets.load` knows."""

NETWORKS: dict[str, tuple[str, ...]] = {
    "logistic": ("normalise",),
    "mlp": ("hidden", "activation", "temper"),
    "papernot-mnist-cnn": ("activation", "temper"),
    "papernot-cifar-cnn": ("activation", "temper"),
    "scattering-linear": ("groups",),
    "scattering-cnn": ("groups", "activation", "temper"),
    "window": ("hidden",),
    "abadi-mnist-mlp": (),
    "abadi-cifar-cnn": (),
}
"""The networks that :func:`tacit.models.build` knows, and the options of each."""
