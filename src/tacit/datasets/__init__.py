"""Where do data sets come from? Loaders: bundled sets, local files, standard downloads with checksums."""

from tacit.columns import Column
from tacit.columns.column import parse_columns as parse_schema
from tacit.datasets.arrays import load_idx, load_npz
from tacit.datasets.cifar import normalise
from tacit.datasets.dataset import Dataset, TensorPair
from tacit.datasets.documents import Cutting, load_documents
from tacit.datasets.pictures import load_image_folder
from tacit.datasets.registry import load, names
from tacit.datasets.tables import Categorical, Numeric, load_table
from tacit.datasets.text import Alphabet, load_text

__all__ = [
    "Alphabet",
    "Categorical",
    "Column",
    "Cutting",
    "Dataset",
    "Numeric",
    "TensorPair",
    "load",
    "load_documents",
    "load_idx",
    "load_image_folder",
    "load_npz",
    "load_table",
    "load_text",
    "names",
    "normalise",
    "parse_schema",
]
