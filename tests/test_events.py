"""Events print, serialise and refuse."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import InvalidInput, UnsupportedEvent
from tacit.events import (
    Adjacency,
    Compose,
    Event,
    Gaussian,
    Laplace,
    PoissonSampled,
    Repeat,
    event_from_json,
    event_to_json,
)

positive = st.floats(1e-6, 1e6)
leaves: st.SearchStrategy[Event] = positive.map(Gaussian) | positive.map(Laplace)


def _grow(inner: st.SearchStrategy[Event]) -> st.SearchStrategy[Event]:
    sampled: st.SearchStrategy[Event] = st.builds(PoissonSampled, st.floats(0, 1), inner)
    repeated: st.SearchStrategy[Event] = st.builds(Repeat, inner, st.integers(1, 10**9))
    composed: st.SearchStrategy[Event] = st.lists(inner, max_size=3).map(lambda items: Compose(tuple(items)))
    return sampled | repeated | composed


@given(st.recursive(leaves, _grow, max_leaves=6))
def test_json_round_trip_is_exact(event: Event) -> None:
    assert event_from_json(event_to_json(event)) == event


@given(st.recursive(leaves, _grow, max_leaves=6))
def test_repr_is_the_definition(event: Event) -> None:
    assert eval(repr(event)) == event


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), "1", True, None])
def test_noise_multiplier_must_be_positive(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="noise_multiplier"):
        Gaussian(bad)
    with pytest.raises(InvalidInput, match="noise_multiplier"):
        Laplace(bad)


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_sampling_rate_must_be_a_probability(bad: float) -> None:
    with pytest.raises(InvalidInput, match="sampling_rate"):
        PoissonSampled(bad, Gaussian(1.0))


@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_count_must_be_a_positive_integer(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="count"):
        Repeat(Gaussian(1.0), bad)


@pytest.mark.parametrize(
    "make", [lambda x: PoissonSampled(0.1, x), lambda x: Repeat(x, 2), lambda x: Compose((x,))]
)
def test_only_events_nest(make: Any) -> None:
    with pytest.raises(UnsupportedEvent, match="got 'Gaussian'"):
        make("Gaussian")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("{", InvalidInput, "not an event"),
        ("[]", InvalidInput, "'event'"),
        ('{"event": "Magic"}', UnsupportedEvent, "Magic"),
        ('{"event": ["Gaussian"]}', UnsupportedEvent, "unknown"),
        ('{"event": "Gaussian"}', InvalidInput, "noise_multiplier"),
        ('{"event": "Gaussian", "noise_multiplier": 1, "sensitivity": 9}', InvalidInput, "exactly"),
        ('{"event": "Compose", "of": {"event": "Gaussian"}}', InvalidInput, "list"),
        ('{"event": "Repeat", "count": 2, "of": {"event": "Magic"}}', UnsupportedEvent, "Magic"),
    ],
)
def test_reading_refuses_by_name(text: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        event_from_json(text)


def test_adjacency_parses_and_refuses() -> None:
    assert Adjacency.parse("replace-one") is Adjacency.REPLACE_ONE
    assert Adjacency.parse(Adjacency.ZERO_OUT) is Adjacency.ZERO_OUT
    with pytest.raises(InvalidInput, match="add-remove, replace-one, zero-out"):
        Adjacency.parse("add_remove")


def test_json_is_readable() -> None:
    assert json.loads(event_to_json(PoissonSampled(0.5, Laplace(2)))) == {
        "event": "PoissonSampled",
        "sampling_rate": 0.5,
        "of": {"event": "Laplace", "noise_multiplier": 2.0},
    }
