"""Never looser than another implementation of the same theory, and never below what is certain."""

from __future__ import annotations

import dp_accounting as dpa
import pytest
from priced import curve_of

from tacit.accounting import account
from tacit.events import (
    Compose,
    DiscreteGaussian,
    Event,
    Gaussian,
    Laplace,
    PoissonSampled,
    PrivateSelection,
    Repeat,
    TreeAggregation,
    WithoutReplacement,
    ZeroConcentratedDP,
)


def sampled(q: float, sigma: float, steps: int) -> tuple[Event, dpa.DpEvent]:
    theirs = dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(sigma))
    return Repeat(PoissonSampled(q, Gaussian(sigma)), steps), dpa.SelfComposedDpEvent(theirs, steps)


def selected(name: str, shape: float | None) -> tuple[Event, dpa.DpEvent]:
    ours, theirs = sampled(0.01, 2.0, 500)
    event = PrivateSelection(ours, name, 10.0, shape)
    return event, dpa.dp_event.RepeatAndSelectDpEvent(theirs, 10.0, float("inf") if shape is None else shape)


CASES: dict[str, tuple[Event, dpa.DpEvent]] = {
    "sampled 4": sampled(0.01, 4.0, 10_000),
    "sampled 1": sampled(0.01, 1.0, 1_000),
    "sampled .6": sampled(0.001, 0.6, 10_000),
    "sampled half": sampled(0.5, 2.0, 50),
    "tiny rate": sampled(1e-5, 1.0, 10**6),
    "one step": sampled(0.01, 1.0, 1),
    "Gaussian": (Repeat(Gaussian(5.0), 7), dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(5.0), 7)),
    "Laplace": (Repeat(Laplace(10.0), 50), dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(10.0), 50)),
    "zCDP": (ZeroConcentratedDP(0.05), dpa.dp_event.ZCDpEvent(0.05)),
    "Poisson selection": selected("poisson", None),
    "geometric selection": selected("negative-binomial", 1.0),
    "logarithmic selection": selected("negative-binomial", 0.0),
    "mixed": (
        Compose((Repeat(PoissonSampled(0.01, Gaussian(1.0)), 1000), Gaussian(20.0), Laplace(30.0))),
        dpa.ComposedDpEvent(
            [sampled(0.01, 1.0, 1000)[1], dpa.GaussianDpEvent(20.0), dpa.LaplaceDpEvent(30.0)]
        ),
    ),
}


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_never_looser_than_dp_accounting(name: str, delta: float) -> None:
    ours, theirs = CASES[name]
    accountant = dpa.rdp.RdpAccountant()
    accountant.compose(theirs)
    assert curve_of(ours, "rdp").epsilon(delta) <= accountant.get_epsilon(delta)


def test_a_tree_costs_what_theirs_does() -> None:
    relation = dpa.NeighboringRelation.REPLACE_SPECIAL
    accountant = dpa.rdp.RdpAccountant(neighboring_relation=relation)
    accountant.compose(dpa.SingleEpochTreeAggregationDpEvent(10.0, 1023))
    found = account(TreeAggregation(10.0, 1023), adjacency="zero-out", method="rdp").epsilon(1e-6)
    assert found <= accountant.get_epsilon(1e-6) == pytest.approx(found, rel=1e-2)


@pytest.mark.parametrize(
    ("records", "batch", "sigma"), [(60_000, 600, 4.0), (1_000, 100, 5.0), (100, 50, 10.0)]
)
def test_never_looser_for_fixed_size_batches(records: int, batch: int, sigma: float) -> None:
    relation = dpa.NeighboringRelation.REPLACE_ONE
    accountant = dpa.rdp.RdpAccountant(neighboring_relation=relation)
    step = dpa.SampledWithoutReplacementDpEvent(records, batch, dpa.GaussianDpEvent(sigma))
    accountant.compose(dpa.SelfComposedDpEvent(step, 1000))
    ours = Repeat(
        WithoutReplacement(records, batch, Gaussian(2.0 * sigma)), 1000
    )  # their unit is the exchange
    found = account(ours, adjacency="replace-one", method="rdp").epsilon(1e-5)
    assert 0.1 * accountant.get_epsilon(1e-5) < found < 0.8 * accountant.get_epsilon(1e-5)


@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@pytest.mark.parametrize("steps", [1, 30])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
@pytest.mark.parametrize(
    "base",
    [
        PoissonSampled(0.05, Gaussian(0.8)),
        PoissonSampled(0.2, Laplace(1.0)),
        PoissonSampled(0.1, DiscreteGaussian(2.0, 2)),
        DiscreteGaussian(3.0),
        Laplace(3.0),
    ],
)
def test_never_below_the_lower_end_of_pld(base: Event, delta: float, steps: int) -> None:
    event = Repeat(base, steps)
    lower, _ = curve_of(event).epsilon_bounds(delta)
    assert curve_of(event, "rdp").epsilon(delta) >= lower


@pytest.mark.parametrize("method", ["rdp", "zcdp"])
def test_next_to_no_privacy_loss_at_all(method: str) -> None:
    event = Repeat(PoissonSampled(1.8e-6, Laplace(51.0)), 86)
    curve = curve_of(event, method)
    assert 0.0 <= curve.epsilon(3.6e-6) < 1e-4
    assert 0.0 <= curve.delta(1e-6) < 1e-4
