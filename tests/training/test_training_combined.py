"""Sums of long rows: they agree with NumPy in double precision, and do not depend on the cut of the rows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tacit import native
from tacit.training import correlated as combined
from tacit.training.correlated import combine

SIZES = [0, 1, 15, 16, 17, 31, 32, 33, 511, 512, 513, 5000]


def rows(number: int, size: int, dtype: torch.dtype, seed: int) -> list[Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return [torch.randn(size, dtype=dtype, generator=draws) for _ in range(number)]


def numbers(sums: int, count: int) -> tuple[list[float], list[list[float]]]:
    draws = np.random.default_rng(0)
    scales = draws.standard_normal(sums)
    scales[::2] = 1.0
    return scales.tolist(), draws.standard_normal((sums, count)).tolist()


@pytest.fixture(params=["native", "python"])
def _way(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setenv("TACIT_NATIVE", "0")
    elif native.library() is None:
        pytest.skip(f"there are no kernels: {native.why_not()}")


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("sums", "count"), [(1, 0), (1, 1), (1, 63), (3, 5), (8, 20), (9, 4), (17, 2)])
def test_the_sums_are_those_of_numpy(sums: int, count: int, dtype: torch.dtype) -> None:
    for size in SIZES:
        outs, given = rows(sums, size, dtype, 1), rows(count, size, dtype, 2)
        scales, factors = numbers(sums, count)
        held = np.array([out.double().numpy() for out in outs]).reshape(sums, size)
        added = np.array([row.double().numpy() for row in given]).reshape(count, size)
        want = np.array(scales)[:, None] * held + np.array(factors).reshape(sums, count) @ added
        combine(outs, scales, factors, given)
        found = np.array([out.double().numpy() for out in outs]).reshape(sums, size)
        assert np.abs(found - want).max(initial=0.0) < 100 * (1 + count) * torch.finfo(dtype).eps


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sums", [1, 8])
def test_each_number_has_the_same_bits_however_the_rows_are_cut(sums: int, dtype: torch.dtype) -> None:
    scales, factors = numbers(sums, 20)
    whole, given = rows(sums, 5000, dtype, 1), rows(20, 5000, dtype, 2)
    parts = [out.clone() for out in whole]
    combine(whole, scales, factors, given)
    cuts = [0, 1, 2, 19, 530, 1100, 1101, 4000, 5000]
    for first, last in itertools.pairwise(cuts):
        combine(
            [out[first:last] for out in parts], scales, factors, [row[first:last].clone() for row in given]
        )
    assert all(torch.equal(out, part) for out, part in zip(whole, parts, strict=True))


def test_planted_bug_a_kernel_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native.library()
    if library is None:
        pytest.skip(f"there are no kernels: {native.why_not()}")
    assert combined._level.__wrapped__(library) == library.tacit_combine_level()
    real = combined._call

    def wrong(library: Any, level: int, outs: Any, *rest: Any) -> None:
        real(library, level, outs, *rest)
        outs[4][512] += 1e-4

    monkeypatch.setattr(combined, "_call", wrong)
    assert combined._level.__wrapped__(library) == 0


@pytest.mark.usefixtures("_way")
def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    """The rows are long enough for several threads."""
    scales, factors = numbers(2, 10)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(rows(2, 200_001, torch.float32, 1))
            combine(found[-1], scales, factors, rows(10, 200_001, torch.float32, 2))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, out) for outs in found for one, out in zip(found[0], outs, strict=True))
