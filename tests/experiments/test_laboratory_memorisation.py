"""Extrapolated exposure, extractable answers and the divergence probe: known answers, planted bugs."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_models import memoriser, table_model
from numpy.typing import NDArray
from scipy import stats

from experiments.laboratory.memorisation import (
    Divergence,
    TrainingText,
    after_repetition,
    extrapolated_exposure,
    queries_needed,
    sampled,
    skew_normal_log_cdf,
)
from tacit.audits.attacks import greedy, log_likelihoods, sampled_exposure
from tacit.errors import InvalidInput

Integers = NDArray[np.int64]


@pytest.mark.thorough(cases=18)
@pytest.mark.parametrize("shape", [-6.0, -1.0, 0.0, 0.5, 3.0, 12.0])
@pytest.mark.parametrize("z", [-8.0, -3.0, -0.4, 0.0, 1.0, 4.0])
def test_the_skew_normal_tail_against_thirty_digits(shape: float, z: float) -> None:
    with mpmath.workdps(30):
        points = [-mpmath.inf, -20, -10, z - 1, z - 0.1, z] if z > -8 else [-mpmath.inf, z - 3, z - 0.1, z]
        whole = mpmath.quad(
            lambda u: 2 * mpmath.npdf(u) * mpmath.erfc(-shape * u / mpmath.sqrt(2)) / 2, sorted(points)
        )
    assert skew_normal_log_cdf(z, shape) == pytest.approx(float(mpmath.log(whole)), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("shape", [0.0, 3.0, -3.0])
def test_extrapolation_finds_the_exposure_that_it_cannot_see(shape: float) -> None:
    law = stats.skewnorm(shape, loc=40.0, scale=5.0)  # of log-perplexities
    others = law.rvs(4000, random_state=np.random.default_rng(7))
    secret = float(law.ppf(2.0**-14))
    found = extrapolated_exposure(-secret, -others)
    assert found.exposure == pytest.approx(14.0, abs=1.5)
    assert found.p_value > 0.01
    assert extrapolated_exposure(-float(law.ppf(0.5)), -others).exposure == pytest.approx(1.0, abs=0.1)
    assert sampled_exposure(-secret, -others) <= math.log2(4001)


def test_a_bad_fit_is_refused() -> None:
    generator = np.random.default_rng(0)
    two_hills = np.concatenate([generator.normal(10, 1, 1000), generator.normal(30, 1, 1000)])
    with pytest.raises(InvalidInput, match="do not follow a skew normal"):
        extrapolated_exposure(-5.0, -two_hills)
    with pytest.raises(InvalidInput, match="not all equal"):
        extrapolated_exposure(-5.0, np.zeros(500))
    with pytest.raises(InvalidInput, match="at least 100"):
        extrapolated_exposure(-5.0, generator.normal(size=50))


def test_a_memorised_record_is_drawn_at_once() -> None:
    model = memoriser([9, 1, 2, 3], [8, 4, 4, 4])
    said, unsaid = log_likelihoods(model, [9], [[1, 2, 3], [1, 2, 4]])
    assert queries_needed(said, 0.9) == 1.0
    assert queries_needed(unsaid, 0.9) > 1e6
    draws = sampled(model, [9], 3, count=50, generator=np.random.default_rng(0))
    assert (draws == [1, 2, 3]).all()


def test_draws_follow_the_likelihoods_and_the_greedy_ending_takes_the_likeliest_token() -> None:
    model, count = table_model(11), 4000
    draws = sampled(model, [2], 2, count=count, generator=np.random.default_rng(5))
    strings = np.array(list(np.ndindex(5, 5)))
    p = np.exp(log_likelihoods(model, [2], strings))
    assert p.sum() == pytest.approx(1.0)
    seen = np.array([(draws == string).all(axis=1).sum() for string in strings])
    assert stats.chisquare(seen, count * p).pvalue > 1e-3
    other = np.exp(log_likelihoods(lambda contexts: model(contexts) / 0.7, [2], strings))
    assert stats.chisquare(seen, count * other).pvalue < 1e-6, "another law is told apart"
    first = int(np.argmax(p.reshape(5, 5).sum(axis=1)))
    assert greedy(model, [2], 2).tolist() == [first, int(np.argmax(p.reshape(5, 5)[first]))]


@pytest.mark.parametrize(
    ("p_z", "confidence", "queries"), [(0.01, 0.9, 230), (0.5, 0.5, 1), (1e-12, 0.9, 2302585092993)]
)
def test_queries(p_z: float, confidence: float, queries: int) -> None:
    assert queries_needed(math.log(p_z), confidence) == pytest.approx(queries, rel=1e-9)
    n = queries_needed(math.log(p_z), confidence)
    assert -math.expm1(n * math.log1p(-p_z)) >= confidence - 1e-9


def test_queries_at_the_ends_and_bad_input() -> None:
    assert queries_needed(0.0, 0.9) == 1.0
    assert queries_needed(-1e4, 0.9) == math.inf
    with pytest.raises(InvalidInput, match="log_probability"):
        queries_needed(0.1, 0.9)
    with pytest.raises(InvalidInput, match="confidence"):
        queries_needed(-1.0, 1.0)


def test_a_model_that_falls_out_of_a_repetition_into_its_training_data_is_seen() -> None:
    secret = [3, 1, 4, 1, 5, 9, 2, 6]
    reciter = memoriser([7] * 6 + secret)
    text = TrainingText([secret], window=4)
    generator = np.random.default_rng(0)

    def probed(token: int) -> Divergence:
        answers = sampled(reciter, [token] * 5, 9, count=20, generator=generator)
        return after_repetition(answers, token, text)

    found = probed(7)
    assert (found.answers, found.diverged, found.tokens) == (20, 20, 160)
    assert found.share == 1.0
    assert probed(8).share < 0.1
    never = after_repetition(np.full((3, 5), 7), 7, text)
    assert (never.diverged, never.share) == (0, 0.0)


@given(st.lists(st.integers(0, 2), max_size=20), st.lists(st.integers(0, 2), max_size=12), st.integers(1, 4))
def test_recited_tokens_are_those_inside_common_pieces(record: list[int], answer: list[int], w: int) -> None:
    pieces = [record[i : i + w] for i in range(len(record) - w + 1)]
    wanted = [
        any(answer[s : s + w] in pieces for s in range(max(0, t - w + 1), t + 1) if s + w <= len(answer))
        for t in range(len(answer))
    ]
    assert TrainingText([record], window=w).recited(answer).tolist() == wanted
