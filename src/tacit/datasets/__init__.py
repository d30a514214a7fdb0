"""Loaders of data sets: bundled sets, local files, and standard downloads with checksums."""

from typing import TYPE_CHECKING

from tacit.datasets.dataset import Dataset, TensorPair
from tacit.datasets.documents import Cutting, load_documents
from tacit.datasets.pictures import load_image_folder
from tacit.datasets.registry import load
from tacit.datasets.tables import load_table
from tacit.datasets.text import load_text
from tacit.moved import moved as _moved

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

if not TYPE_CHECKING:  # a type checker would otherwise accept every name of the module
    __getattr__ = _moved(
        __name__,
        {
            "names": "tacit.datasets.registry.names",
            "Alphabet": "tacit.datasets.text.Alphabet",
            "Column": "tacit.columns.Column",
            "load_idx": "tacit.datasets.arrays.load_idx",
            "load_npz": "tacit.datasets.arrays.load_npz",
            "parse_schema": "tacit.columns.column.parse_columns",
        },
    )
