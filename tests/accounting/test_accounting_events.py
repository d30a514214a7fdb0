"""Combinations of events, adjacencies and methods, and refusals by name."""

from __future__ import annotations

import numpy as np
import pytest
from priced import curve_of

from tacit.accounting import METHODS, account
from tacit.accounting.flatten import flatten
from tacit.accounting.losses import loss_of
from tacit.accounting.price import Direction
from tacit.errors import InvalidInput, UnsupportedEvent
from tacit.events import (
    Adjacency,
    ApproximateDP,
    Compose,
    Event,
    Gaussian,
    Laplace,
    PoissonSampled,
    RandomizedResponse,
    Repeat,
)

SAMPLED = PoissonSampled(0.1, Gaussian(2.0))
SAMPLED_LAPLACE = PoissonSampled(0.1, Laplace(2.0))
REFUSED: set[tuple[str, Event]] = {
    ("gaussian", SAMPLED),
    ("zcdp", SAMPLED),
    ("gaussian", SAMPLED_LAPLACE),
    ("gaussian", Laplace(9.0)),
    ("moments", SAMPLED_LAPLACE),
    ("moments", Laplace(9.0)),
}


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("base", [Gaussian(9.0), SAMPLED, Laplace(9.0), SAMPLED_LAPLACE])
@pytest.mark.parametrize("count", [1, 5])
def test_n_fold_event_costs_what_a_list_costs(method: str, base: Event, count: int) -> None:
    ways: list[Event] = [
        Repeat(base, count),
        Compose((base,) * count),
        Compose((Compose((base,) * (count - 1)), Repeat(Repeat(base, 1), 1))),
    ]
    if (method, base) in REFUSED:
        for event in ways:
            with pytest.raises(UnsupportedEvent, match=type(base).__name__):
                curve_of(event, method)
    else:
        assert len({curve_of(event, method).epsilon(1e-6) for event in ways}) == 1


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("free", [ApproximateDP(0.0, 0.0), RandomizedResponse(1.0, 3)])
def test_what_ignores_the_records_costs_nothing(method: str, free: Event) -> None:
    curve = account(Repeat(free, 7), adjacency="replace-one", method=method)
    assert curve.epsilon(1e-5) == curve.delta(0.5) == 0.0
    both = account(Compose((free, Gaussian(2.0))), adjacency="replace-one", method="gaussian")
    assert both.epsilon(1e-5) == account(Gaussian(2.0), adjacency="replace-one", method="gaussian").epsilon(
        1e-5
    )


def test_flatten_merges_and_multiplies() -> None:
    event = Compose((Repeat(Compose((Gaussian(1.0), SAMPLED)), 3), Gaussian(1.0), Compose(())))
    assert flatten(event) == ((Gaussian(1.0), 4), (SAMPLED, 3))


def test_sampling_everything_or_nothing() -> None:
    inner = Compose((Gaussian(1.0), Repeat(Laplace(2.0), 2)))
    assert flatten(PoissonSampled(1.0, inner)) == ((Gaussian(1.0), 1), (Laplace(2.0), 2))
    assert flatten(PoissonSampled(0.0, inner)) == ()
    assert flatten(PoissonSampled(0.5, Compose(()))) == ()


def test_a_sample_of_a_sample_is_a_sample() -> None:
    assert flatten(PoissonSampled(0.5, PoissonSampled(0.2, Gaussian(1.0)))) == (
        (PoissonSampled(0.1, Gaussian(1.0)), 1),
    )
    assert flatten(PoissonSampled(0.5, Repeat(Compose((Laplace(1.0),)), 1))) == (
        (PoissonSampled(0.5, Laplace(1.0)), 1),
    )


@pytest.mark.parametrize("inner", [Repeat(Gaussian(1.0), 2), Compose((Gaussian(1.0), Laplace(1.0)))])
def test_several_releases_on_one_sample_are_refused(inner: Event) -> None:
    with pytest.raises(UnsupportedEvent, match=r"one random sample.*Draw a new sample"):
        curve_of(Compose((Gaussian(1.0), Repeat(PoissonSampled(0.1, inner), 3))))


def test_unknown_events_are_refused_at_any_depth() -> None:
    class Exponential:
        pass

    nested = Repeat(Gaussian(1.0), 2)
    object.__setattr__(nested, "event", Compose(()))
    object.__setattr__(nested.event, "events", (Exponential(),))
    for method in METHODS:
        with pytest.raises(UnsupportedEvent, match="Exponential"):
            curve_of(Compose((Gaussian(1.0), nested)), method)


def test_sampling_under_replace_one_was_never_published() -> None:
    event = Compose((Gaussian(1.0), Repeat(SAMPLED, 2)))
    with pytest.raises(UnsupportedEvent, match=r"moments.*PoissonSampled.*replace-one.*pld"):
        account(event, adjacency="replace-one", method="moments")


@pytest.mark.parametrize(
    ("method", "event"),
    [
        ("gaussian", Laplace(1.0)),
        ("gaussian", SAMPLED),
        ("moments", Laplace(1.0)),
        ("moments", PoissonSampled(0.1, Laplace(1.0))),
    ],
)
def test_what_a_method_cannot_price_is_refused_by_name(method: str, event: Event) -> None:
    with pytest.raises(UnsupportedEvent, match=rf"method '{method}'.*{type(event).__name__}.*pld"):
        curve_of(Compose((Gaussian(1.0), Repeat(event, 3))), method)


def test_too_little_noise_in_a_mixture_is_refused() -> None:
    with pytest.raises(UnsupportedEvent, match=r"0\.001.*Use more noise"):
        curve_of(Repeat(PoissonSampled(0.1, Gaussian(0.001)), 2))


@pytest.mark.thorough(cases=16)
@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("base", [Gaussian(8.0), Laplace(8.0)])
@pytest.mark.parametrize("count", [1, 7])
def test_replace_one_doubles_the_sensitivity(method: str, base: Gaussian | Laplace, count: int) -> None:
    if isinstance(base, Laplace) and method in ("gaussian", "moments"):
        pytest.skip("no price for Laplace")
    half = type(base)(base.noise_multiplier / 2.0)
    replaced = account(Repeat(base, count), adjacency="replace-one", method=method)
    assert replaced.epsilon(1e-5) == curve_of(Repeat(half, count), method).epsilon(1e-5)
    added = account(Repeat(base, count), adjacency="zero-out", method=method)
    assert added.epsilon(1e-5) == curve_of(Repeat(base, count), method).epsilon(1e-5)
    assert added.epsilon(1e-5) < replaced.epsilon(1e-5)


def test_replace_one_for_sampled_is_between_one_and_two_directions() -> None:
    event = Repeat(SAMPLED, 20)
    added = curve_of(event).epsilon(1e-5)
    twice = curve_of(Repeat(PoissonSampled(0.1, Gaussian(1.0)), 20)).epsilon(1e-5)
    assert added < account(event, adjacency="replace-one").epsilon(1e-5) < twice


@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
@pytest.mark.parametrize("base", [SAMPLED, Gaussian(0.5), PoissonSampled(1e-5, Gaussian(0.3)), Laplace(0.3)])
def test_loss_position_inverts_value_and_density_integrates(
    base: Gaussian | Laplace | PoissonSampled, direction: Direction
) -> None:
    loss = loss_of(base, direction, 1e-12)
    mass = float(loss.atoms[:, 1].sum())
    for branch in loss.branches:
        x = branch.panels
        values = branch.value(x)
        assert (np.diff(values) >= -1e-15).all()
        inside = np.diff(values, prepend=values[0] - 1.0) > 1e-7
        np.testing.assert_allclose(branch.position(values)[inside], x[inside], rtol=1e-6, atol=1e-4)
        fine = np.linspace(x[0], x[-1], 40_001)
        mass += float(np.trapezoid(branch.density(fine), fine))
        assert values[-1] <= loss.supremum * (1 + 1e-12)
    assert mass == pytest.approx(1.0, abs=1e-6)


# --- inputs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, float("nan"), "1e-5", True])
def test_delta_must_be_a_probability(delta: object) -> None:
    curve = curve_of(Gaussian(1.0))
    with pytest.raises(InvalidInput, match="delta"):
        curve.epsilon(delta)  # type: ignore[type-var]
    with pytest.raises(InvalidInput, match="delta"):
        curve.epsilon_bounds(delta)  # type: ignore[type-var]


@pytest.mark.parametrize("epsilon", [-0.1, float("inf"), float("nan"), None])
def test_epsilon_must_be_finite_and_not_negative(epsilon: object) -> None:
    with pytest.raises(InvalidInput, match="epsilon"):
        curve_of(Gaussian(1.0)).delta(epsilon)  # type: ignore[type-var]


def test_method_and_adjacency_are_checked_and_have_no_guessing() -> None:
    with pytest.raises(InvalidInput, match="method must be one of pld, rdp"):
        curve_of(Gaussian(1.0), "PLD")
    with pytest.raises(InvalidInput, match="adjacency must be one of add-remove"):
        account(Gaussian(1.0), adjacency="swap")
    with pytest.raises(TypeError):
        account(Gaussian(1.0))  # type: ignore[call-arg]


def test_curve_says_what_it_is_and_takes_arrays() -> None:
    event = Repeat(Gaussian(3.0), 2)
    curve = account(event, adjacency="zero-out", method="rdp")
    assert (curve.method, curve.adjacency, curve.event) == ("rdp", Adjacency.ZERO_OUT, event)
    deltas = np.array([[1e-3, 1e-5], [1e-7, 1e-9]])
    values = curve.epsilon(deltas)
    assert values.shape == deltas.shape
    assert values[1, 0] == curve.epsilon(1e-7)
    assert (curve.delta(values) <= deltas * (1 + 1e-4)).all()
    assert "rdp" in repr(curve)
