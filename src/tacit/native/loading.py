"""Loads the kernels, if they were built from the sources in this folder."""

from __future__ import annotations

import contextlib
import ctypes
import os
from functools import cache
from pathlib import Path

from tacit.native.sources import digest

_FOLDER = Path(__file__).parent
_INT, _LONG, _DOUBLE, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
# Name -> (result, arguments) of every function that the library exports.
_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "tacit_sources": (ctypes.c_char_p, []),
    "tacit_noise_level": (_INT, []),
    "tacit_noise": (None, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_float, _LONG, _POINTER, _INT, _INT]),
    "tacit_noise_words": (None, [ctypes.c_char_p, ctypes.c_char_p, _LONG, _POINTER, _INT]),
    "tacit_noise_transform": (
        None,
        [_POINTER, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_float, _POINTER, _INT],
    ),
    "tacit_noise_far_radius": (ctypes.c_float, [_POINTER, _INT]),
    "tacit_combine_level": (_INT, []),
    "tacit_combine": (None, [_POINTER, _POINTER, _INT, _POINTER, _POINTER, _INT, _LONG, _INT, _INT, _INT]),
    "tacit_convolution_level": (_INT, []),
    "tacit_convolution": (None, [_POINTER] * 7 + [_INT] * 2),
    "tacit_convolution_input": (None, [_POINTER] * 4 + [_INT] * 2),
    "tacit_pairs": (_LONG, [*[_LONG] * 3, _POINTER, _POINTER, _LONG, _LONG, *[_POINTER] * 3]),
    "tacit_repeats": (None, [*[_LONG] * 2, *[_POINTER] * 2]),
    "tacit_add_rows": (None, [*[_LONG] * 3, *[_POINTER] * 3]),
    "tacit_depthwise": (None, [*[_POINTER] * 2, _INT, _POINTER, _INT, _POINTER, _INT, _INT]),
    "tacit_recurrent": (None, [_POINTER] * 7 + [_INT] * 2),
    "tacit_recurrent_back": (None, [_POINTER] * 11 + [_INT] * 2),
    "tacit_outer": (None, [_POINTER] * 4 + [_INT] * 2),
    "tacit_outer_sum": (None, [_POINTER] * 5 + [_INT] * 2),
    "tacit_outer_squares": (None, [_POINTER, _POINTER, _POINTER, _DOUBLE, _POINTER, _INT, _INT]),
    "tacit_convolution_ghost": (None, [_POINTER, _POINTER, _POINTER, _DOUBLE, _POINTER, _INT, _INT]),
}


def library() -> ctypes.CDLL | None:
    """Return the library of kernels, or None if there is none; :func:`why_not` says why."""
    return None if _turned_off() else _load()[0]


def why_not() -> str | None:
    """Return why there are no native kernels, or None if there are."""
    return "TACIT_NATIVE=0 turns them off" if _turned_off() else _load()[1]


def _turned_off() -> bool:
    return "TACIT_NATIVE" in os.environ and os.environ["TACIT_NATIVE"] == "0"  # ``get`` takes 5 us


@cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    return _open(_FOLDER)


def _share_openmp() -> None:
    """Let the kernels call torch's OpenMP runtime, whose file name differs between builds."""
    import torch

    home = Path(torch.__file__).parent
    brought = [*(home / "lib").glob("libgomp*.so*"), *(home.parent / "torch.libs").glob("libgomp*.so*")]
    for name in (*map(str, brought), "libgomp.so.1"):  # the last is for a torch built for the system
        with contextlib.suppress(OSError):
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            return


def _open(folder: Path) -> tuple[ctypes.CDLL | None, str | None]:
    """Load the library of ``folder`` if it was built from the sources there, else give the reason."""
    path = folder / "kernels.so"
    if not path.exists():
        return None, "they were not built: there was no compiler, or the wheel contains no kernels"
    _share_openmp()
    try:
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        return None, f"{path.name} cannot be used: {error}"
    if loaded.tacit_sources().decode() != digest(folder):
        return None, f"{path.name} was built from different sources; reinstall Tacit"
    return loaded, None
