"""Which data and features does a configuration name?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tacit.datasets import (
    Cutting,
    Dataset,
    TensorPair,
    load,
    load_documents,
    load_image_folder,
    load_table,
    load_text,
)
from tacit.models.picture_features import PictureFeatures
from tacit.models.scattering import scattering_features
from tacit.runs.checks import check_data
from tacit.runs.config import Config, DataSection
from tacit.runs.language_section import check_language
from tacit.runs.owners import check_unit_column

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called during long work, with (title, done, total)."""


def prepared_data(config: Config, progress: Progress | None = None) -> Dataset:
    """The data that the configuration names, with the features that it names."""
    return _features(config, load_data(config, progress), progress)


def load_data(config: Config, progress: Progress | None = None) -> Dataset:
    """The data that the configuration names, before any features are computed."""
    section, unit = config.data, config.privacy.unit
    check_data(section)
    if section.corpus is not None:
        return _load_documents(config)
    if section.lines is not None:
        return _load_text(section, unit)
    if section.table is not None:
        check_unit_column(config)
        return load_table(
            Path(section.table),
            target=str(section.target),
            schema=config.read_columns(),
            dialect=config.read_dialect(),
            test_fraction=section.test_fraction,
            test_path=None if section.test_table is None else Path(section.test_table),
            missing=section.missing,
            user=section.user,
            date=section.date,
            unit=unit,
            records=config.privacy.records * (section.rows_per_user or 1),
        )
    if section.images is not None:
        return load_image_folder(
            Path(section.images),
            size=(section.size[0], section.size[1]),
            classes=tuple(section.classes),
            colours=section.colours,
            test_fraction=section.test_fraction,
            unit=unit,
            progress=None if progress is None else partial(progress, "reading pictures"),
        )
    folder = None if section.folder is None else Path(section.folder)
    return load(str(section.name), folder=folder, download=section.download)


def _load_text(section: DataSection, unit: str) -> Dataset:
    assert section.alphabet is not None  # as ``check_data`` found
    assert section.longest is not None
    return load_text(
        Path(str(section.lines)),
        alphabet=section.alphabet,
        longest=section.longest,
        test_fraction=section.test_fraction,
        test_path=None if section.test_text is None else Path(section.test_text),
        unit=unit,
    )


def _load_documents(config: Config) -> Dataset:
    from tacit.runs.tokens import tokens_of  # imports tokenizers

    check_language(config)
    section, tokens = config.data, tokens_of(str(config.model.huggingface))
    assert section.sequence_length is not None  # as ``check_language`` found
    assert section.documents is not None
    return load_documents(
        Path(str(section.corpus)),
        text=str(section.text),
        encode=tokens.encode,
        vocabulary=tokens.vocabulary,
        spelling=tokens.spelling,
        cutting=Cutting(section.sequence_length, section.documents, tokens.padding),
        user=section.user,
        several=section.rows_per_user is not None,
        date=section.date,
        test_fraction=section.test_fraction,
        test_path=None if section.test_corpus is None else Path(section.test_corpus),
        unit=config.privacy.unit,
    )


def _features(config: Config, data: Dataset, progress: Progress | None) -> Dataset:
    """Fixed features in place of pictures, where configured: no data set is in them, so they cost nothing."""
    if config.data.features == "raw":
        return data
    if config.data.features == "pictures":
        return _picture_rows(data, progress)
    parts = []
    for title, pair in (("features of train", data.train), ("features of test", data.test)):
        callback = None if progress is None else partial(progress, title)
        parts.append(TensorPair(scattering_features(pair.inputs, progress=callback), pair.targets))
    return replace(
        data,
        train=parts[0],
        test=parts[1],
        source=f"{data.source}; scattering features",
        pictures=data.input_shape,
    )


def _picture_rows(data: Dataset, progress: Progress | None) -> Dataset:
    features = PictureFeatures(*data.input_shape[1:], colours=data.input_shape[0])
    train, test = (
        TensorPair(
            features.rows(pair.inputs, None if progress is None else partial(progress, title)), pair.targets
        )
        for title, pair in (("features of train", data.train), ("features of test", data.test))
    )
    source = f"{data.source}; scattering features, whitened by a random process"
    return replace(data, train=train, test=test, source=source, pictures=data.input_shape)
