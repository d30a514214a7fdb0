"""Events to and from dp_accounting's, and its second opinion."""

from __future__ import annotations

import importlib
import math
from typing import Any

import attrs
import dp_accounting
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

from tacit.accounting import account
from tacit.errors import InvalidInput, MissingExtra, UnsupportedEvent
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
)
from tacit.events.base import EVENTS
from tacit.integrations.dp_accounting import from_dp_accounting, google_epsilon, to_dp_accounting

G = Gaussian(2.0)
PAIRS: list[tuple[Event, Any]] = [
    (G, dp_event.GaussianDpEvent(2.0)),
    (Laplace(3.0), dp_event.LaplaceDpEvent(3.0)),
    (DiscreteLaplace(4.0, 2), dp_event.DiscreteLaplaceDpEvent(0.25, 2)),
    (RandomizedResponse(0.5, 3), dp_event.RandomizedResponseDpEvent(0.5, 3)),
    (
        GaussianMixture(2.0, (0.0, 1.0), (0.9, 0.1)),
        dp_event.MixtureOfGaussiansDpEvent(2.0, (0.0, 1.0), (0.9, 0.1)),
    ),
    (ZeroConcentratedDP(0.1), dp_event.ZCDpEvent(0.1)),
    (TreeAggregation(2.0, 8), dp_event.SingleEpochTreeAggregationDpEvent(2.0, 8)),
    (PoissonSampled(0.1, G), dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(2.0))),
    (
        WithoutReplacement(100, 10, G),
        dp_event.SampledWithoutReplacementDpEvent(100, 10, dp_event.GaussianDpEvent(2.0)),
    ),
    (
        WithReplacement(100, 10, G),
        dp_event.SampledWithReplacementDpEvent(100, 10, dp_event.GaussianDpEvent(2.0)),
    ),
    (
        TruncatedPoissonSampled(0.1, 100, 20, G),
        dp_event.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 2.0),
    ),
    (Repeat(G, 7), dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(2.0), 7)),
    (Compose(()), dp_event.ComposedDpEvent([])),
    (
        Compose((G, Laplace(1.0))),
        dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(2.0), dp_event.LaplaceDpEvent(1.0)]),
    ),
    (
        PrivateSelection(G, "poisson", 5.0),
        dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(2.0), 5.0, math.inf),
    ),
    (
        PrivateSelection(G, "negative-binomial", 5.0, 0.0),
        dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(2.0), 5.0, 0.0),
    ),
]
WITHOUT: list[Event] = [
    ApproximateDP(1.0),
    BallsInBins(10, G),
    CyclicPoissonSampled(0.1, 4, MatrixFactorization(1.0, (1.0,), 10)),
    DiscreteGaussian(3.0),
    ExponentialMechanism(1.0),
    GroupPrivacy(G, 2),
    MatrixFactorization(1.0, (1.0, 0.5), 10),
    Partitioned(10, G),
    Shuffled(10, G),
    ShuffledReports(10, 1.0),
    SparseVector(0.5, 0.5, 1),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda event: type(event).__name__)
def test_events_and_their_counterparts(ours: Event, theirs: Any) -> None:
    assert to_dp_accounting(ours) == theirs
    assert from_dp_accounting(theirs) == ours


@pytest.mark.parametrize("event", WITHOUT, ids=lambda event: type(event).__name__)
def test_events_without_a_counterpart_are_refused_by_name_at_any_depth(event: Event) -> None:
    for nested in (event, Repeat(event, 3), Compose((G, PoissonSampled(0.5, event)))):
        with pytest.raises(UnsupportedEvent, match=type(event).__name__):
            to_dp_accounting(nested)


def test_every_event_either_has_a_counterpart_or_is_refused() -> None:
    tried = {type(event) for event, _ in PAIRS} | {type(event) for event in WITHOUT}
    assert tried == set(EVENTS.values())


def test_every_event_of_dp_accounting_is_read_or_refused() -> None:
    known = {name for name in vars(dp_event) if name.endswith("DpEvent")}
    tried = {type(theirs).__name__ for _, theirs in PAIRS}
    assert known - tried == {"DpEvent", "NoOpDpEvent", "NonPrivateDpEvent", "UnsupportedDpEvent"}
    assert from_dp_accounting(dp_event.NoOpDpEvent()) == Compose(())
    for event in (dp_event.NonPrivateDpEvent(), dp_event.UnsupportedDpEvent()):
        for nested in (event, dp_event.SelfComposedDpEvent(event, 2)):
            with pytest.raises(UnsupportedEvent, match=type(event).__name__):
                from_dp_accounting(nested)


@given(
    st.recursive(
        st.builds(Gaussian, st.floats(0.1, 100)) | st.builds(Laplace, st.floats(0.1, 100)),
        lambda inner: (
            st.builds(Repeat, inner, st.integers(1, 1000))
            | st.builds(PoissonSampled, st.floats(0, 1), inner)
            | st.builds(Compose, st.lists(inner, max_size=3).map(tuple))
        ),
        max_leaves=6,
    )
)
def test_there_and_back_is_the_same(event: Event) -> None:
    assert from_dp_accounting(to_dp_accounting(event)) == event


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (dp_event.GaussianDpEvent(0.0), "adds no noise and guarantees nothing"),
        (dp_event.LaplaceDpEvent(0), "adds no noise"),
        (dp_event.DiscreteLaplaceDpEvent(0.0, 1), "adds no noise"),
        (dp_event.MixtureOfGaussiansDpEvent(0.0, [1.0], [1.0]), "adds no noise"),
        (dp_event.TruncatedSubsampledGaussianDpEvent(10, 0.1, 2, 0.0), "adds no noise"),
        (dp_event.ZCDpEvent(0.1, 0.2), "no xi"),
        (dp_event.SingleEpochTreeAggregationDpEvent(1.0, [4, 8]), "several trees"),
    ],
)
def test_what_has_no_meaning_here_is_refused(theirs: Any, words: str) -> None:
    with pytest.raises(UnsupportedEvent, match=words):
        from_dp_accounting(dp_event.ComposedDpEvent([theirs]))


@pytest.mark.parametrize(
    "theirs",
    [
        "GaussianDpEvent",
        None,
        dp_event.GaussianDpEvent(-1.0),
        dp_event.GaussianDpEvent(math.nan),
        dp_event.PoissonSampledDpEvent(1.5, dp_event.GaussianDpEvent(1.0)),
        dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1.0), 1.5),
        dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1.0), -1),
        dp_event.ComposedDpEvent([3]),
    ],
)
def test_nonsense_is_bad_input(theirs: Any) -> None:
    with pytest.raises(InvalidInput):
        from_dp_accounting(theirs)


def test_small_conversions() -> None:
    assert from_dp_accounting(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1.0), 0)) == Compose(())
    assert from_dp_accounting(dp_event.RandomizedResponseDpEvent(0.0, 1)) == Compose(())
    assert from_dp_accounting(dp_event.SingleEpochTreeAggregationDpEvent(1.0, [4])) == TreeAggregation(1.0, 4)
    with pytest.raises(UnsupportedEvent, match="TreeAggregation"):
        to_dp_accounting(TreeAggregation(1.0, 8, participations=2, separation=4))
    with pytest.raises(UnsupportedEvent, match="TruncatedPoissonSampled"):
        to_dp_accounting(TruncatedPoissonSampled(0.1, 100, 20, Laplace(1.0)))
    with pytest.raises(UnsupportedEvent, match="must be an event"):
        to_dp_accounting("Gaussian")  # type: ignore[arg-type]


def test_an_event_of_somebody_else_is_refused_by_name() -> None:
    class GaussianDpEvent(dp_event.DpEvent):  # type: ignore[misc]
        noise_multiplier = 2.0

    with pytest.raises(UnsupportedEvent, match="GaussianDpEvent"):
        from_dp_accounting(GaussianDpEvent())


# --- the second opinion ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "adjacency", "epsilon"),
    [
        (Repeat(PoissonSampled(0.01, Gaussian(4.0)), 10_000), "add-remove", 0.94687),
        (Repeat(PoissonSampled(0.01, Gaussian(4.0)), 10_000), "replace-one", 1.99314),
        (Repeat(Gaussian(50.0), 628), "zero-out", 2.0),
        (Gaussian(4.0), "replace-one", 1.9931),  # its Renyi accountant says 1.0126
        (Repeat(Laplace(10.0), 100), "add-remove", 4.2203),
    ],
)
def test_its_answer(event: Event, adjacency: str, epsilon: float) -> None:
    opinion = google_epsilon(event, adjacency, 1e-5)
    assert opinion.epsilon == pytest.approx(epsilon, rel=2e-3)
    assert opinion.source == f"dp_accounting {importlib.metadata.version('dp-accounting')}"
    assert opinion.method.startswith("PLD")


@pytest.mark.parametrize(
    ("event", "adjacency", "method"),
    [
        (Repeat(PoissonSampled(0.1, Laplace(2.0)), 10), "add-remove", "pld"),
        (Compose((Repeat(G, 3), Laplace(5.0))), "add-remove", "pld"),
        (DiscreteLaplace(4.0, 2), "add-remove", "rdp"),
        (Repeat(RandomizedResponse(0.5, 3), 5), "replace-one", "rdp"),
        (Repeat(ZeroConcentratedDP(0.01), 3), "add-remove", "rdp"),
        (TreeAggregation(2.0, 8), "zero-out", "rdp"),
    ],
)
def test_what_is_converted_costs_the_same(event: Event, adjacency: str, method: str) -> None:
    ours = account(event, adjacency=adjacency, method=method).epsilon(1e-5)
    theirs = google_epsilon(event, adjacency, 1e-5).epsilon
    assert theirs == pytest.approx(ours, rel=3e-4)


@pytest.mark.parametrize(("largest", "epsilon"), [(800, 0.946868), (700, 0.947118), (660, 1.003971)])
def test_what_is_converted_costs_the_same_on_truncated_samples(largest: int, epsilon: float) -> None:
    """Figures that dp_accounting gave on a finer grid, from its own constructor."""
    event = Repeat(TruncatedPoissonSampled(0.01, 60_000, largest, Gaussian(4.0)), 10_000)
    assert google_epsilon(event, "add-remove", 1e-5).epsilon == pytest.approx(epsilon, rel=3e-4)


def test_its_renyi_accountant_is_asked_where_its_pld_has_no_answer_and_is_right() -> None:
    event = Repeat(ZeroConcentratedDP(0.01), 3)
    opinion = google_epsilon(event, "add-remove", 1e-6)
    assert opinion.method.startswith("Renyi")
    assert opinion.epsilon is not None
    assert 1.0 < opinion.epsilon < 0.03 + 2 * math.sqrt(0.03 * math.log(1e6))
    refused = google_epsilon(event, "replace-one", 1e-6)
    assert refused.epsilon is None
    assert "sensitivity 1 instead of 2" in refused.why_not


def test_where_it_has_no_answer_it_says_why() -> None:
    for event, adjacency, words in (
        (BallsInBins(10, G), "add-remove", "no equivalent of BallsInBins"),
        (RandomizedResponse(0.5, 2), "add-remove", "no bound for this event under add-remove"),
        (
            Repeat(RandomizedResponse(0.5, 2), 5000),
            "replace-one",
            "does not support 5000 randomised responses",
        ),
    ):
        opinion = google_epsilon(event, adjacency, 1e-5)
        assert opinion.epsilon is None
        assert words in opinion.why_not


def test_repeated_randomised_response_is_counted() -> None:
    """dp_accounting 0.6.0 prices 20 repeated responses as one, but not as 20 events of a composition."""
    event = Repeat(RandomizedResponse(0.5, 2), 20)
    wrong = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE).compose(to_dp_accounting(event))
    opinion = google_epsilon(event, "replace-one", 1e-6)
    assert wrong.get_epsilon(1e-6) == pytest.approx(math.log(3), rel=1e-3)
    assert opinion.epsilon is not None
    assert opinion.epsilon > 10
    nested = google_epsilon(Repeat(Repeat(Compose((RandomizedResponse(0.5, 2),)), 4), 5), "replace-one", 1e-6)
    assert nested == opinion


def test_bad_questions() -> None:
    with pytest.raises(InvalidInput, match="adjacency must be one of"):
        google_epsilon(G, "neighbours", 1e-5)
    with pytest.raises(InvalidInput, match="delta must be"):
        google_epsilon(G, Adjacency.ADD_REMOVE, 0.0)


@attrs.frozen
class DiscreteGaussianDpEvent(dp_event.DpEvent):  # type: ignore[misc]
    sigma: float
    sensitivity: float = 1.0
    dimension: int | None = None


@attrs.frozen
class EpsilonDeltaDpEvent(dp_event.DpEvent):  # type: ignore[misc]
    epsilon: float
    delta: float


@attrs.frozen
class ExponentialMechanismDpEvent(dp_event.DpEvent):  # type: ignore[misc]
    epsilon: float


def test_events_newer_than_dp_accounting_0_6_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the fields of dp_accounting's source of August 2026, where 0.6.0 has no such classes."""
    for kind in (DiscreteGaussianDpEvent, EpsilonDeltaDpEvent, ExponentialMechanismDpEvent):
        monkeypatch.setattr(dp_event, kind.__name__, kind, raising=False)
    assert from_dp_accounting(EpsilonDeltaDpEvent(1.0, 1e-6)) == ApproximateDP(1.0, 1e-6)
    assert from_dp_accounting(ExponentialMechanismDpEvent(0.5)) == ExponentialMechanism(0.5)
    one = DiscreteGaussianDpEvent(3.0, sensitivity=2.0, dimension=1)
    repeated = dp_event.SelfComposedDpEvent(one, 4)
    assert from_dp_accounting(repeated) == Repeat(DiscreteGaussian(3.0, sensitivity=2), 4)
    for refused in (
        DiscreteGaussianDpEvent(3.0),
        DiscreteGaussianDpEvent(3.0, dimension=2),
        DiscreteGaussianDpEvent(3.0, sensitivity=1.5, dimension=1),
        DiscreteGaussianDpEvent(0.0, dimension=1),
    ):
        with pytest.raises(UnsupportedEvent):
            from_dp_accounting(refused)


def test_without_dp_accounting_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def missing(name: str, package: str | None = None) -> Any:
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    for ask in (
        lambda: to_dp_accounting(G),
        lambda: from_dp_accounting(dp_event.GaussianDpEvent(1.0)),
        lambda: google_epsilon(G, "add-remove", 1e-5),
    ):
        with pytest.raises(MissingExtra, match=r"pip install -e '\.\[second-opinion\]'"):
            ask()
