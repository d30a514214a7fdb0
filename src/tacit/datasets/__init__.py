"""Loaders of datasets: bundled ones, and local files."""

from tacit.datasets.dataset import Dataset, TensorPair
from tacit.datasets.pictures import load_image_folder
from tacit.datasets.tables import load, load_table
from tacit.datasets.text import Cutting, load_documents, load_text

__all__ = [
    "Cutting",
    "Dataset",
    "TensorPair",
    "load",
    "load_documents",
    "load_image_folder",
    "load_table",
    "load_text",
]
