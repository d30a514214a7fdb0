"""Which data and features does a configuration name?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from tacit.datasets import Dataset, TensorPair
from tacit.models.picture_features import PictureFeatures
from tacit.models.scattering import scattering_features
from tacit.runs.config import Config
from tacit.runs.kinds import Progress, kind_of, silent

_IN_WORDS = {
    "scattering": "scattering features",
    "pictures": "scattering features, whitened by a random process",
}


def load_data(config: Config, progress: Progress = silent) -> Dataset:
    """The data that the configuration names, before any features are computed."""
    kind = kind_of(config.data)
    kind.check(config)
    return kind.load(config, progress)


def prepared_data(config: Config, progress: Progress = silent) -> Dataset:
    """The data that the configuration names, with the features that it names.

    Fixed features in place of pictures cost nothing: no data set is in them.
    """
    data, name = load_data(config, progress), config.data.features
    if name == "raw":
        return data
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


@functools.lru_cache(maxsize=4)
def features_of(name: str, shape: tuple[int, ...]) -> Callable[..., Tensor]:
    """What computes the features of that name of pictures (n, *shape); some take seconds to make."""
    if name == "scattering":
        return scattering_features
    return PictureFeatures(*shape[1:], colours=shape[0]).rows
