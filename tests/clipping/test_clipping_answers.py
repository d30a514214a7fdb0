"""What each record alone would answer, against asking each part of the batch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tacit.clipping.isolation.control_flow import Answers

N = 4
ASKED: dict[str, Callable[[Tensor], object]] = {
    "any": lambda x: bool((x > 2).any()),
    "not all": lambda x: bool(~(x > 1).all()),
    "all, by a sum": lambda x: bool((x > 1).sum() == x.numel()),
    "largest": lambda x: bool(x.max() > 2),
    "least is not": lambda x: bool(x.min().ne(1)),
    "number": lambda x: float(x.amax()),
    "contains": lambda x: 3.0 in x,
    "of rows": lambda x: bool((x > 1).all(1).any()),
    "any, by a sum": lambda x: bool((x > 2).sum() > 0),
    "none, by a sum": lambda x: bool((x > 2).sum() == 0),
    "a sum that is a number": lambda x: bool(torch.isnan(x.sum())),
    "a mean that is finite": lambda x: bool(~x.mean().isfinite()),
    "size of the largest": lambda x: bool(x.min().neg().abs() < 2),
}


class Watched(TorchFunctionMode):
    """Notes what is asked, as a recorder does."""

    def __init__(self, n: int, by_row: bool = True) -> None:
        super().__init__()
        self.answers, self.dissent = Answers(n, lambda _: by_row), torch.zeros(n, dtype=torch.bool)
        self.unknown = False

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        del types
        result = func(*args, **(kwargs or {}))
        if func in (Tensor.__bool__, Tensor.__float__, Tensor.__contains__):
            found = self.answers.disagree(func, args, result)
            self.unknown |= found is None
            self.dissent |= found if found is not None else False
        else:
            self.answers.note(func, args, kwargs or {}, result)
        return result


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=N, max_size=N))
def test_where_all_agree_each_part_says_the_same(
    asked: Callable[[Tensor], object], rows: list[list[int]]
) -> None:
    x = torch.tensor(rows, dtype=torch.float32)
    with Watched(N) as watched:
        answer = asked(x)
    assert not watched.unknown
    alone = torch.tensor([asked(row[None]) != answer for row in x])
    assert torch.equal(watched.dissent, alone)
    if not bool(alone.any()):
        for size in range(1, N):
            for part in combinations(range(N), size):
                assert asked(x[list(part)]) == answer


@pytest.mark.parametrize(
    "asked",
    [
        lambda x: bool(x.sum() > 3),
        lambda x: bool(x.norm() > 3),
        lambda x: bool(x.max() > x.min()),
        lambda x: bool(torch.gt(x.max(), other=x.min())),
        lambda x: bool(x.max().add_(1) > 3),
        lambda x: bool((x > 1).sum() == 3),
        lambda x: bool(x.t().flatten()[:3].max() > 1),
    ],
)
def test_what_is_computed_of_all_is_not_known(asked: Callable[[Tensor], object]) -> None:
    with Watched(N) as watched:
        asked(torch.arange(8.0).view(N, 2))
    assert watched.unknown


def test_rows_in_another_order_say_nothing_of_records() -> None:
    with Watched(N, by_row=False) as watched:
        bool((torch.arange(8.0).view(N, 2) > 3).any())
    assert watched.unknown
