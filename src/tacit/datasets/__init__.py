"""Loaders of data sets: bundled sets, and local files."""

from tacit.datasets.bundled import load
from tacit.datasets.dataset import Dataset, TensorPair
from tacit.datasets.documents import Cutting, load_documents
from tacit.datasets.pictures import load_image_folder
from tacit.datasets.tables import load_table
from tacit.datasets.text import load_text

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
