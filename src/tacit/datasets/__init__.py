"""Loaders: bundled sets, local files, standard downloads with checksums."""

from tacit.datasets.arrays import load_idx, load_npz
from tacit.datasets.cifar import normalise
from tacit.datasets.dataset import Dataset, TensorPair
from tacit.datasets.registry import load, names

__all__ = ["Dataset", "TensorPair", "load", "load_idx", "load_npz", "names", "normalise"]
