"""Events print, serialise and refuse."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import InvalidInput, UnsupportedEvent
from tacit.events import (
    Adjacency,
    ApproximateDP,
    BallsInBins,
    Compose,
    CyclicPoissonSampled,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    GroupPrivacy,
    Laplace,
    MatrixFactorization,
    Partitioned,
    PoissonSampled,
    PrivateSelection,
    RandomizedResponse,
    Repeat,
    Shuffled,
    ShuffledReports,
    SparseVector,
    TreeAggregation,
    TruncatedPoissonSampled,
    WithoutReplacement,
    WithReplacement,
    ZeroConcentratedDP,
    event_from_json,
    event_to_json,
)
from tacit.events.base import EVENTS

positive = st.floats(1e-6, 1e6)
whole = st.integers(1, 10**9)
shares = st.floats(0, 1)
leaves: st.SearchStrategy[Event] = st.one_of(
    positive.map(Gaussian),
    positive.map(Laplace),
    st.builds(DiscreteGaussian, positive, whole),
    st.builds(DiscreteLaplace, positive, whole),
    st.builds(RandomizedResponse, shares, st.integers(2, 99)),
    st.builds(ShuffledReports, whole, st.floats(1e-6, 99), st.none() | st.integers(2, 99)),
    st.builds(ApproximateDP, positive, shares),
    positive.map(ZeroConcentratedDP),
    positive.map(ExponentialMechanism),
    st.builds(SparseVector, positive, positive, whole, st.booleans()),
    st.builds(lambda s, w: GaussianMixture(s, (0, s), (1 - w, w)), positive, shares),
    st.builds(TreeAggregation, positive, whole, whole, whole),
    st.builds(
        MatrixFactorization, positive, st.tuples(positive, st.floats(-9, 9)), st.integers(2, 99), whole
    ),
    st.builds(CyclicPoissonSampled, shares, whole, st.just(MatrixFactorization(1.0, (1.0,), 5))),
)


def _grow(inner: st.SearchStrategy[Event]) -> st.SearchStrategy[Event]:
    return st.one_of(
        st.builds(PoissonSampled, shares, inner),
        st.builds(TruncatedPoissonSampled, shares, whole, whole, inner),
        st.builds(WithoutReplacement, st.just(10**9), whole, inner),
        st.builds(WithReplacement, whole, whole, inner),
        st.builds(BallsInBins, whole, inner, whole),
        st.builds(Partitioned, whole, inner),
        st.builds(Shuffled, whole, inner),
        st.builds(Repeat, inner, whole),
        st.builds(GroupPrivacy, inner, whole),
        st.builds(PrivateSelection, inner, st.just("poisson"), positive),
        st.builds(PrivateSelection, inner, st.just("negative-binomial"), st.floats(1.1, 9), positive),
        st.lists(inner, max_size=3).map(lambda items: Compose(tuple(items))),
    )


@given(st.recursive(leaves, _grow, max_leaves=6))
def test_json_round_trip_is_exact(event: Event) -> None:
    assert event_from_json(event_to_json(event)) == event


def test_all_events_are_drawn_above() -> None:
    drawn = {name for name in EVENTS if name in globals()}
    ours = {
        event.__name__ for event in Event.__subclasses__() if event.__module__.startswith("tacit.events.")
    }
    assert drawn == set(EVENTS) == ours
    for event in EVENTS.values():
        assert event.__doc__
        assert not event.__doc__.startswith(event.__name__)
        assert event.__dataclass_params__.frozen


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
    "make",
    [
        lambda x: PoissonSampled(0.1, x),
        lambda x: Repeat(x, 2),
        lambda x: Compose((x,)),
        lambda x: TruncatedPoissonSampled(0.1, 10, 5, x),
        lambda x: WithoutReplacement(10, 5, x),
        lambda x: WithReplacement(10, 5, x),
        lambda x: BallsInBins(3, x),
        lambda x: Partitioned(3, x),
        lambda x: Shuffled(3, x),
        lambda x: CyclicPoissonSampled(0.1, 3, x),
        lambda x: GroupPrivacy(x, 2),
        lambda x: PrivateSelection(x, "poisson", 1.0),
        event_to_json,
    ],
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
        (
            '{"event": "Compose", "of": {"event": "Gaussian", "noise_multiplier": 1}}',
            InvalidInput,
            "event Compose cannot be made",
        ),
        ('{"event": "Compose", "of": [{"kind": "FlatClipping"}]}', InvalidInput, "with the key 'event'"),
        ('{"event": "Repeat", "count": 2, "of": {"event": "Magic"}}', UnsupportedEvent, "Magic"),
    ],
)
def test_reading_refuses_by_name(text: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        event_from_json(text)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DiscreteGaussian(0.0), "scale"),
        (lambda: DiscreteGaussian(1.0, 0), "sensitivity"),
        (lambda: DiscreteLaplace(1.0, 1.5), "sensitivity"),  # type: ignore[arg-type]
        (lambda: RandomizedResponse(1.5, 2), "noise"),
        (lambda: RandomizedResponse(0.5, 1), "categories"),
        (lambda: ApproximateDP(-1.0), "epsilon"),
        (lambda: ApproximateDP(1.0, 1.5), "delta"),
        (lambda: ZeroConcentratedDP(float("inf")), "rho"),
        (lambda: ExponentialMechanism(0.0), "epsilon"),
        (lambda: SparseVector(1.0, 0.0, 1), "epsilon_queries"),
        (lambda: SparseVector(1.0, 1.0, 0), "hits"),
        (lambda: SparseVector(1.0, 1.0, 1, 1), "monotonic"),  # type: ignore[arg-type]
        (lambda: GaussianMixture(1.0, (1.0,), (0.5, 0.5)), "same length"),
        (lambda: GaussianMixture(1.0, (0.0, 1.0), (0.5, 0.4)), "add up to 1"),
        (lambda: GaussianMixture(1.0, (), ()), "non-empty"),
        (lambda: GaussianMixture(1.0, (-1.0,), (1.0,)), r"sensitivities\[0\]"),
        (lambda: TruncatedPoissonSampled(0.1, 10, 0, Gaussian(1.0)), "largest_batch"),
        (lambda: WithoutReplacement(10, 11, Gaussian(1.0)), "batch_size"),
        (lambda: WithReplacement(0, 1, Gaussian(1.0)), "records"),
        (lambda: BallsInBins(0, Gaussian(1.0)), "bins"),
        (lambda: BallsInBins(2, Gaussian(1.0), 0), "passes"),
        (lambda: Shuffled(0, Gaussian(1.0)), "batches"),
        (lambda: Partitioned(0, Gaussian(1.0)), "batches"),
        (lambda: GroupPrivacy(Gaussian(1.0), 0), "size"),
        (lambda: PrivateSelection(Gaussian(1.0), "uniform", 1.0), "poisson, negative-binomial"),
        (lambda: PrivateSelection(Gaussian(1.0), "poisson", 0.0), "mean"),
        (lambda: PrivateSelection(Gaussian(1.0), "poisson", 1.0, 1.0), "shape is not allowed"),
        (lambda: PrivateSelection(Gaussian(1.0), "negative-binomial", 2.0), "shape"),
        (lambda: PrivateSelection(Gaussian(1.0), "negative-binomial", 1.0, 1.0), "mean"),
        (lambda: PrivateSelection(Gaussian(1.0), "negative-binomial", 2.0, -1.0), "shape"),
        (lambda: TreeAggregation(1.0, 0), "leaves"),
        (lambda: TreeAggregation(1.0, 4, participations=0), "participations"),
        (lambda: TreeAggregation(1.0, 4, separation=0), "separation"),
        (lambda: MatrixFactorization(1.0, (), 4), "non-empty"),
        (lambda: MatrixFactorization(1.0, "11", 4), "non-empty"),  # type: ignore[arg-type]
        (lambda: MatrixFactorization(1.0, (0.0, 1.0), 4), "no inverse"),
        (lambda: MatrixFactorization(1.0, (1.0, float("nan")), 4), r"coefficients\[1\]"),
        (lambda: MatrixFactorization(1.0, (1.7e308, 1.7e308), 4), "so large"),
        (lambda: MatrixFactorization(1.0, (1.0, 1.0), 1), "got 2 for 1"),
        (
            lambda: CyclicPoissonSampled(0.1, 2, MatrixFactorization(1.0, (1.0,), 4, 2)),
            "participations and separation must be 1",
        ),
        (
            lambda: CyclicPoissonSampled(0.1, 1, MatrixFactorization(1.0, (1.0, 0.5), 4)),
            "correlated between two uses",
        ),
    ],
)
def test_settings_are_checked_by_name(make: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        make()


def test_a_class_that_is_no_event_of_ours_is_refused_in_json() -> None:
    @dataclasses.dataclass(frozen=True)
    class Magic(Event):
        pass

    with pytest.raises(UnsupportedEvent, match="Magic"):
        event_to_json(Repeat(Magic(), 2))


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
