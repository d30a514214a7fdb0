"""A cache of a data set's features, in the user's cache folder, in files named by a hash of the inputs.

The features are functions of single public records, so a file reveals no more than the data set does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.standard import user_cache
from tacit import __version__
from tacit.files import write_atomically


def cached_rows(
    what: str, pictures: Tensor, make: Callable[[], Tensor], folder: Path | None = None
) -> Tensor:
    """Return the features (n, d) of ``pictures`` from the cache, or compute and cache them.

    Args:
        what: the name of the features.  It, the pictures' bytes and the version of Tacit decide the file
            name.
        make: a function that computes the features.
        folder: the cache folder; by default the user's.

    >>> import tempfile
    >>> folder, pictures = Path(tempfile.mkdtemp()), torch.ones(2, 1, 8, 8)
    >>> cached_rows("means", pictures, lambda: pictures.flatten(1).mean(1, keepdim=True), folder).tolist()
    [[1.0], [1.0]]
    >>> cached_rows("means", pictures, lambda: 1 / 0, folder).tolist()  # from the file
    [[1.0], [1.0]]
    """
    digest = hashlib.sha256(f"{what} {__version__} {tuple(pictures.shape)} {pictures.dtype}".encode())
    digest.update(np.ascontiguousarray(pictures.numpy()).data)
    path = (folder or user_cache() / "features") / f"{digest.hexdigest()[:32]}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = make().numpy()
        write_atomically(path, lambda file: np.save(file, rows))
    return torch.from_numpy(np.load(path))
