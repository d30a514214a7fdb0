"""Which names may a configuration file use? Those of data sets and networks, known without torch."""

from __future__ import annotations

DATA_SETS = (
    "digits", "breast-cancer", "wine", "iris", "diabetes", "names",
    "mnist", "fashion-mnist", "cifar10", "cifar100",
)  # fmt: skip
"""The names that :func:`tacit.datasets.load` knows."""

NAMES_ALPHABET, NAMES_LONGEST = " abcdefghijklmnopqrstuvwxyz0123456789", 15
"""What a line of the data set names may hold, and how long it may be."""

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
