"""The public model that a run fine-tunes: only a new head on frozen features, or body and head.

Letters: n records; d features; c columns in addition to the text.
"""

# Guarantee:
# * Features of a record depend only on that record and on the public model.

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.columns.encoder import TextColumn
from tacit.datasets import Dataset, TensorPair
from tacit.errors import TacitError, spelled
from tacit.pretrained.loading import load_called
from tacit.pretrained.model import (
    PIECE,
    FeatureCache,
    Head,
    Pretrained,
    TunedModel,
    check_isolated,
    with_all_weights,
    with_lora,
)
from tacit.pretrained.networks import PretrainedText
from tacit.runs.config import Config
from tacit.runs.sections import FEATURES, in_run_file

_TOKENS, _PICTURE = 16, (3, 32, 32)  # the sizes of dummy records


def public_model(config: Config) -> Pretrained:
    path = Path(str(config.model.public))
    with spelled(in_run_file):
        return _loaded(path, config.model.public_key, _stamp(path), **config.public_settings)


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Return the names, times and sizes of the model's files, which change if a file is replaced."""
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.exists() else []
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)


@functools.lru_cache(maxsize=1)
def _loaded(path: Path, key: str, _stamp: object, **settings: Any) -> Pretrained:
    return load_called(key, path, settings)


@functools.lru_cache(maxsize=1)
def _check_isolated(encoder: Pretrained, key: str) -> None:
    """Refuse a frozen model that mixes records, by a check on short dummy text or small dummy images."""
    shape = getattr(encoder, "shape", _PICTURE)
    shape = (min(encoder.length, _TOKENS),) if isinstance(encoder, PretrainedText) else shape
    try:
        check_isolated(encoder, torch.zeros((1, *shape)))
    except TacitError as problem:
        raise type(problem)(f"{key}: {problem}") from None


def text_column(config: Config, name: str) -> TextColumn:
    """Return the text column, with the public model's tokenizer and maximum length."""
    encoder = public_model(config)
    assert isinstance(encoder, PretrainedText), "as was checked"
    return TextColumn(name, encoder.length, encoder.tokens)


def columns_of(data: Dataset) -> int:
    """Return c, the number of inputs that come from columns other than the text; 0 without a text."""
    if data.encoder is None or data.encoder.text is None:
        return 0
    return len(data.encoder.features) - data.encoder.text.length


def with_features(
    config: Config,
    data: Dataset,
    features: Callable[[Tensor], Tensor],
    progress: Callable[[str, int, int], None],
) -> Dataset:
    """Return the data set with ``features`` of the frozen public model in place of text or images."""
    columns = columns_of(data)
    total, done = len(data.train.inputs) + len(data.test.inputs), 0

    def of(pair: TensorPair) -> TensorPair:
        nonlocal done
        parts = []
        for piece in torch.split(pair.inputs, PIECE):
            parts.append(_with_columns(features, piece, columns))
            done += len(piece)
            progress("features of the public model", done, total)
        return TensorPair(torch.cat(parts), pair.targets)

    return replace(
        data,
        train=of(data.train),
        test=of(data.test),
        source=f"{data.source}; {in_words(config)}",
        pictures=None if data.encoder is not None else data.input_shape,
    )


def in_words(config: Config) -> str:
    return f"features of a frozen public model, SHA-256 {public_model(config).digest}"


def cached_features(config: Config, private: Path | None) -> Callable[[Tensor], Tensor]:
    """Return a function that computes features of records, or reads them from caches of this and other runs.

    The other runs are those in neighbouring folders.
    """
    encoder, model = public_model(config), config.model
    _check_isolated(encoder, f'{model.public_key} = "{model.public}"')
    if private is None:
        return encoder.embed
    runs = sorted(private.parent.parent.glob(f"*/{private.name}/{FEATURES}"))
    own = private / FEATURES
    return FeatureCache(encoder, own, also_in=[other for other in runs if other != own])


def _with_columns(features: Callable[[Tensor], Tensor], records: Tensor, columns: int) -> Tensor:
    """Return (n, d + c): features of the records without their last c columns, then these columns."""
    if not columns:
        return features(records)
    return torch.cat([features(records[:, :-columns]), records[:, -columns:]], dim=1)


def new_public_model(config: Config, data: Dataset, outputs: int) -> nn.Module:
    """Make the model that a run trains: only a head on precomputed features, or body and head."""
    encoder, columns = public_model(config), columns_of(data)
    head = Head(encoder.features, outputs, columns=columns)
    if config.model.tune == "head":
        return head
    model = TunedModel(copy.deepcopy(encoder), head, columns)
    if config.model.tune == "full":
        return with_all_weights(model)
    lora = config.lora
    assert lora.rank is not None, "the recipe or the user has said it"
    return with_lora(
        model, rank=lora.rank, alpha=lora.alpha or lora.rank, targets=lora.targets, blocks=lora.blocks
    )
