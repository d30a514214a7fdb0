"""Kinds of data: one module for each kind, with all that runs, models and predictions need."""

# source: the interface.  A new kind needs one more class and an entry in _KINDS below.
# table: rows of a table, and numbers of a standard data set; pictures: a folder of images; texts: lines of
# text, and a corpus for a language model.

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import InvalidInput, spelled
from tacit.pretrained.finding import TEXT, look_at
from tacit.runs.config import Config
from tacit.runs.kinds.pictures import Pictures
from tacit.runs.kinds.source import Kind, Piece, Progress, Source, silent
from tacit.runs.kinds.table import Arrays, Table
from tacit.runs.kinds.texts import Documents, Text
from tacit.runs.sections import DataSection, in_run_file

if TYPE_CHECKING:  # a run file is checked without torch
    from torch import Tensor

    from tacit.datasets import Dataset, TensorPair

__all__ = [
    "Arrays",
    "Documents",
    "Kind",
    "Pictures",
    "Piece",
    "Progress",
    "Table",
    "Text",
    "check_data",
    "features_of",
    "kind_from",
    "kind_of",
    "load_data",
    "prepared_data",
    "silent",
    "source_of",
]

_IN_WORDS = {
    "scattering": "scattering features",
    "pictures": "scattering features, whitened by a random process",
}
_KINDS: tuple[type[Kind], ...] = (Table, Pictures, Text, Arrays)
_SOURCES: tuple[type[Source], ...] = (*_KINDS, Documents)


def source_of(section: DataSection) -> type[Source]:
    """Return the kind of the data that a run file names."""
    return next(kind for kind in _SOURCES if section.source in kind.sources)


def kind_of(config: Config, data: Dataset) -> Kind:
    """Return the kind that encoded the records of a run, to describe it in the file of the run's model."""
    return next(kind for kind in _KINDS if config.data.source in kind.sources).of(config, data)


def kind_from(data: Mapping[str, Any]) -> Kind:
    """Read the kind that the file of a model describes."""
    kinds = [kind for kind in _KINDS if kind.kind == data["kind"]]
    if not kinds:
        raise ValueError(f"there is no kind of data {data['kind']!r}")
    return kinds[0].from_data(data)


def check_data(config: Config) -> type[Source]:
    """Check the data of a run without torch and without reading records, and return their kind."""
    kind = source_of(config.data)
    kind.check(config)
    if config.pretrained:
        _check_public_model(config)
    return kind


def _check_public_model(config: Config) -> None:
    model, data, key = config.model, config.data, config.model.public_key
    with spelled(in_run_file):
        kind = look_at(Path(str(model.public)), key, config.public_settings).kind
    if kind == TEXT and data.text is None:
        raise InvalidInput(
            f'{key} = "{model.public}" is a text model and cannot read {data.source}. Set [data] table and '
            "text, or choose an image model."
        )
    if kind != TEXT and data.text is not None:
        raise InvalidInput(
            f'{key} = "{model.public}" cannot read the text column [data] text = {data.text!r}. Choose a '
            "text model, such as BERT or a sentence transformer."
        )


def load_data(config: Config, progress: Progress = silent) -> Dataset:
    """Load the data that the configuration names, before any features are computed."""
    return check_data(config).load(config, progress)


def prepared_data(config: Config, progress: Progress = silent, private: Path | None = None) -> Dataset:
    """Load the data that the configuration names, and compute the configured features.

    Features cost no privacy, since they are fixed in advance or come from a public model.
    """
    if config.pretrained and config.model.tune == "head":
        return _public_features(config, progress, private)
    data, name = load_data(config, progress), config.data.features
    if name == "raw":
        return data
    from tacit.datasets import TensorPair

    features = features_of(name, data.input_shape)

    def pair(title: str, of: TensorPair) -> TensorPair:
        tell = functools.partial(progress, title)
        return TensorPair(features(of.inputs, progress=tell), of.targets)

    return replace(
        data,
        train=pair("features of train", data.train),
        test=pair("features of test", data.test),
        source=f"{data.source}; {_IN_WORDS[name]}",
        pictures=data.input_shape,
    )


def _public_features(config: Config, progress: Progress, private: Path | None) -> Dataset:
    """Load the data with features of a frozen public model; images are converted as they are read."""
    from tacit.runs.public_model import cached_features, in_words, with_features  # imports transformers

    kind, features = check_data(config), cached_features(config, private)
    if not issubclass(kind, Pictures):
        return with_features(config, kind.load(config, progress), features, progress)
    data = kind.load(config, progress, features)
    return replace(data, source=f"{data.source}; {in_words(config)}")


@functools.lru_cache(maxsize=4)
def features_of(name: str, shape: tuple[int, ...]) -> Callable[..., Tensor]:
    """Return a function that computes features of images (n, *shape); its preparation may take seconds."""
    from tacit.models.picture_features import PictureFeatures, scattering_features

    if name == "scattering":
        return scattering_features
    return PictureFeatures(*shape[1:], colours=shape[0]).rows
