"""Measures of how much a recovered picture looks like a person.

If a recovered picture resembles training pictures no more than unseen pictures of the same person, it only
shows what the *class* looks like.  So every measure is computed twice: against pictures on which the model
was trained, and against unseen pictures of the same people.

Letters: p recovered pictures, one for each person; k pictures per person; h and w their sides.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import gaussian_filter

from tacit.errors import InvalidInput

Array: TypeAlias = NDArray[np.float64]

_WINDOW = 1.5  # standard deviation of the Gaussian window, in pixels
_LUMINANCE, _CONTRAST = 0.01**2, 0.03**2  # K1² and K2² of the paper, for pixels in [0, 1]


def correlation(pictures: ArrayLike, others: ArrayLike, *, without: ArrayLike | None = None) -> Array:
    """Return Pearson's correlation of the pixels of each pair of pictures, (...), from two (..., h, w).

    Args:
        without: a picture that is subtracted from both, such as the mean of public faces.  All faces
            correlate with each other, and only the difference from the mean identifies a person.

    Raises:
        InvalidInput: if a picture is constant, or shapes do not fit.

    >>> correlation([[1.0, 2.0], [3.0, 4.0]], [[8.0, 6.0], [4.0, 2.0]]).round(6).item()
    -1.0
    """
    a, b = _pictures("pictures", pictures), _pictures("others", others)
    if without is not None:
        common = _pictures("without", without)
        a, b = a - common, b - common
    a = a - a.mean(axis=(-2, -1), keepdims=True)
    b = b - b.mean(axis=(-2, -1), keepdims=True)
    spread = np.sqrt((a**2).sum(axis=(-2, -1)) * (b**2).sum(axis=(-2, -1)))
    if not (spread > 0.0).all():
        raise InvalidInput("a picture is constant, or equals what is subtracted: nothing can correlate.")
    found: Array = np.asarray((a * b).sum(axis=(-2, -1)) / spread)
    return found


def structural_similarity(pictures: ArrayLike, others: ArrayLike) -> Array:
    """Return the SSIM of each pair of pictures, (...), from two (..., h, w) with pixels in [0, 1].

    This is equation 13 of Wang, Bovik, Sheikh, Simoncelli (2004, IEEE TIP 13(4)).  The window is a Gaussian
    with a standard deviation of 1.5 pixels, cut off at 3.5 standard deviations, and the border is mirrored.

    >>> structural_similarity(np.eye(8), np.eye(8)).item()
    1.0
    """
    a, b = _pictures("pictures", pictures), _pictures("others", others)
    mean_a, mean_b = _smooth(a), _smooth(b)
    var_a = _smooth(a * a) - mean_a**2
    var_b = _smooth(b * b) - mean_b**2
    both = _smooth(a * b) - mean_a * mean_b
    found = (2.0 * mean_a * mean_b + _LUMINANCE) * (2.0 * both + _CONTRAST)
    found /= (mean_a**2 + mean_b**2 + _LUMINANCE) * (var_a + var_b + _CONTRAST)
    return np.asarray(found.mean(axis=(-2, -1)))


def nearest_similarity(recovered: ArrayLike, albums: ArrayLike) -> Array:
    """Return the SSIM of each recovered picture to the most similar picture in the person's album.

    Args:
        recovered: of shape (p, h, w).
        albums: of shape (p, k, h, w).  A larger album contains a more similar picture by chance, so compare
            only results for the same k.
    """
    x, album = _pictures("recovered", recovered), _pictures("albums", albums)
    _check_albums(x, album)
    similarity = structural_similarity(x[:, None], album)
    return np.asarray(similarity.max(axis=1))


def recognised(recovered: ArrayLike, albums: ArrayLike, *, without: ArrayLike) -> NDArray[np.bool_]:
    """Return whether each recovered picture correlates most with the right person's album, (p,).

    The correlation is with the mean picture of each album, after subtracting ``without``.

    Args:
        recovered: of shape (p, h, w).
        albums: of shape (p, k, h, w), of pictures that the model was not trained on.
        without: the mean of public faces, of shape (h, w).
    """
    x, album = _pictures("recovered", recovered), _pictures("albums", albums)
    _check_albums(x, album)
    match = correlation(x[:, None], album.mean(axis=1)[None], without=without)  # (p, p)
    return np.asarray(match.argmax(axis=1) == np.arange(len(x)))


def _smooth(x: Array) -> Array:
    std = (0.0,) * (x.ndim - 2) + (_WINDOW, _WINDOW)
    return np.asarray(gaussian_filter(x, std, truncate=3.5))


def _pictures(name: str, values: ArrayLike) -> Array:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim < 2 or x.size == 0 or not np.isfinite(x).all():
        raise InvalidInput(f"{name} must be pictures (..., h, w) of finite numbers; got shape {x.shape}.")
    return x


def _check_albums(x: Array, album: Array) -> None:
    if x.ndim != 3 or album.ndim != 4 or (len(x), *x.shape[1:]) != (len(album), *album.shape[2:]):
        raise InvalidInput(
            f"there must be one album (k, h, w) for each recovered picture (h, w); got {x.shape} and "
            f"{album.shape}."
        )
