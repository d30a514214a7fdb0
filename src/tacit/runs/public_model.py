"""Which public model does a run tune, and what does it train of it? Features, or a body with a head on it.

**Guarantee**

* Features of a record depend on that record and on the public model alone.

Letters: n records; d features; c ordinary columns.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from tacit.columns.encoder import TextColumn
from tacit.datasets import Dataset, TensorPair
from tacit.errors import InvalidInput
from tacit.pretrained import load_pretrained
from tacit.pretrained.base import Pretrained
from tacit.pretrained.cache import FeatureCache
from tacit.pretrained.text import PretrainedText
from tacit.pretrained.tuned import Head, TunedModel, with_all_weights, with_lora
from tacit.runs.config import Config
from tacit.runs.model_sections import FEATURES

_PIECE = 512  # records whose features are kept in one file


def public_model(config: Config) -> Pretrained:
    """The public model that a run file names.

    Raises:
        InvalidInput: its files are missing, do not fit each other, or would run code.
    """
    section = config.model
    path = Path(str(section.public))
    found = _loaded(path, section.architecture, config.data.sequence_length, section.image_size, _stamp(path))
    if isinstance(found, PretrainedText) and config.data.text is None:
        raise InvalidInput(
            f"[model] {path} is a model of texts, and the records of {config.data.source} are none. Name a "
            "table and its column of texts by [data] text, or a model of pictures."
        )
    return found


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """What tells files from those that were there before under the same names."""
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.exists() else []
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)


@functools.lru_cache(maxsize=1)
def _loaded(
    path: Path, architecture: str | None, length: int | None, image_size: int | None, _: object
) -> Pretrained:
    return load_pretrained(path, architecture=architecture, length=length, image_size=image_size)


def text_column(config: Config, name: str) -> TextColumn:
    """The column of texts as the public model reads it.

    Raises:
        InvalidInput: the public model reads pictures.
    """
    encoder = public_model(config)
    if not isinstance(encoder, PretrainedText):
        raise InvalidInput(
            f"[model] {config.model.public} is a model of pictures, and [data] text = {name!r} is a column "
            "of texts. Take a model of texts, such as BERT or a sentence transformer."
        )
    return TextColumn(name, encoder.length, encoder.tokens)


def columns_of(data: Dataset) -> int:
    """c: how many numbers of a record are ordinary columns beside the text."""
    if data.encoder is None or data.encoder.text is None:
        return 0
    return len(data.encoder.features) - data.encoder.text.length


def with_features(
    config: Config,
    data: Dataset,
    features: Callable[[Tensor], Tensor],
    progress: Callable[[str, int, int], None],
) -> Dataset:
    """The data set with ``features`` of the frozen public model in place of texts or pictures."""
    columns = columns_of(data)
    total, done = len(data.train.inputs) + len(data.test.inputs), 0

    def of(pair: TensorPair) -> TensorPair:
        nonlocal done
        found = []
        for piece in torch.split(pair.inputs, _PIECE):
            found.append(_beside(features, piece, columns))
            done += len(piece)
            progress("features of the public model", done, total)
        return TensorPair(torch.cat(found), pair.targets)

    return replace(
        data,
        train=of(data.train),
        test=of(data.test),
        source=f"{data.source}; {in_words(config)}",
        pictures=None if data.encoder is not None else data.input_shape,
    )


def in_words(config: Config) -> str:
    """What the features are, for a statement."""
    return f"features of a frozen public model, SHA-256 {public_model(config).digest}"


def features_kept(config: Config, private: Path | None) -> Callable[[Tensor], Tensor]:
    """What computes the features of a piece of records, or finds them in a run beside this one."""
    encoder = public_model(config)
    if private is None:
        return encoder.embed
    runs = sorted(private.parent.parent.glob(f"*/{private.name}/{FEATURES}"))
    own = private / FEATURES
    return FeatureCache(encoder, own, also_in=[other for other in runs if other != own])


def _beside(features: Callable[[Tensor], Tensor], records: Tensor, columns: int) -> Tensor:
    """Features (n, d) of the first numbers of the records, and the others (n, c) as they are."""
    if not columns:
        return features(records)
    return torch.cat([features(records[:, :-columns]), records[:, -columns:]], dim=1)


def new_public_model(config: Config, data: Dataset, outputs: int) -> nn.Module:
    """The model that a run trains: the head alone, on features; or body and head."""
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
