"""Curves of a linear model on columns: their sum is its output at any row, and their means are 0."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tacit.columns import Column, Encoder
from tacit.columns.column import number_of_moment
from tacit.columns.encoder import TextColumn
from tacit.errors import InvalidInput
from tacit.models import MLP, Logistic
from tacit.models.additive import Curve, LeastSquaresHead, LinearModel, StandardLinear

EDGES = (-2.0, 0.5, 3.0)
DAY, MOMENT = dt.date(2020, 1, 1), dt.datetime(2020, 1, 1)
COLUMNS = {
    "plain": Column(kind="number", lower=-5, upper=7),
    "bins": Column(kind="number", lower=-5, upper=7, bins=4, missing="indicator"),
    "edges": Column(kind="number", lower=-5, upper=7, bins=EDGES, missing=0.5),
    "whole": Column(kind="integer", lower=-5, upper=7, bins=EDGES),
    "code": Column(kind="integer", values=(1, 2, 7), missing="indicator"),
    "word": Column(kind="category", values=("a", "other", "missing"), missing="indicator"),
    "filled": Column(kind="category", values=("a", "b"), missing="b"),
    "unlisted": Column(kind="category", values=("a",), missing="elsewhere"),
    "flag": Column(kind="boolean", missing="indicator", true=("ja",), false=("nein",)),
    "day": Column(kind="date", lower=DAY, upper=dt.date(2021, 3, 1), parts=("weekday", "month")),
    "moment": Column(
        kind="datetime", lower=MOMENT, upper=dt.datetime(2020, 1, 9), parts=("hour",), missing="indicator"
    ),
    "name": Column(kind="text"),
}
CELLS: dict[str, st.SearchStrategy[Any]] = {
    "plain": st.floats(-9, 9),
    "bins": st.none() | st.floats(-9, 9) | st.sampled_from([-5.0, -2.0, 1.0, 4.0, 7.0]),
    "edges": st.none() | st.floats(-9, 9) | st.sampled_from(EDGES),
    "whole": st.integers(-9, 9),
    "code": st.none() | st.sampled_from([1, 2, 7, 9]),
    "word": st.none() | st.sampled_from(["a", "other", "missing", "b"]),
    "filled": st.none() | st.sampled_from(["a", "b", "c"]),
    "unlisted": st.none() | st.sampled_from(["a", "b"]),
    "flag": st.none() | st.sampled_from(["ja", "nein"]),
    "day": st.integers(-9, 500).map(lambda days: DAY + dt.timedelta(days)),
    "moment": st.none() | st.integers(0, 200).map(lambda hours: MOMENT + dt.timedelta(hours=hours)),
}


def point(curve: Curve, cell: Any) -> np.ndarray:
    """Read a curve at a value, by its documented form alone."""
    if curve.kind == "category":
        if str(cell) in curve.x:
            found: np.ndarray = curve.y[[*curve.x].index(str(cell))]
            return found
        assert curve.other is not None
        return curve.other
    return between([*map(number, curve.x)], curve.y, number(cell))


def number(value: Any) -> float:
    return number_of_moment(value) if isinstance(value, dt.date) else float(value)


def between(ends: list[float], y: np.ndarray, value: float) -> np.ndarray:
    """The last straight piece that holds the value: at an edge, that which begins there."""
    value = min(max(value, ends[0]), ends[-1])
    at = next(place for place in range(len(ends) - 1, 0, -1) if ends[place - 1] <= value <= ends[place])
    share = (value - ends[at - 1]) / (ends[at] - ends[at - 1]) if ends[at] > ends[at - 1] else 1.0
    found: np.ndarray = (1 - share) * y[at - 1] + share * y[at]
    return found


def added(curve: Curve, row: dict[str, Any]) -> np.ndarray:
    name, _, part = curve.name.partition(" ")
    column = COLUMNS[name]
    cell: Any = row[name]
    if cell is None and column.missing == "indicator":
        assert curve.missing is not None
        return curve.missing
    cell = column.missing if cell is None else cell
    if part:
        cell = cell.strftime({"weekday": "%A", "month": "%B", "hour": "%H"}[part])
    return point(curve, cell)


def drawn(encoder: Encoder, outputs: int, seed: int = 0) -> LinearModel:
    rng = np.random.default_rng(seed)
    return LinearModel(rng.normal(size=(outputs, len(encoder.features))), rng.normal(size=outputs))


@settings(max_examples=150)
@given(
    chosen=st.sets(st.sampled_from(sorted(COLUMNS)), min_size=1).filter(lambda names: names != {"name"}),
    outputs=st.integers(1, 3),
    seed=st.integers(0, 9),
    data=st.data(),
)
def test_constant_and_curves_sum_to_the_output_at_any_row(
    chosen: set[str], outputs: int, seed: int, data: st.DataObject
) -> None:
    encoder = Encoder({name: COLUMNS[name] for name in sorted(chosen)})
    model = drawn(encoder, outputs, seed)
    found = model.curves(encoder)
    row = {name: data.draw(CELLS[name], label=name) for name in encoder.inputs_of}
    wanted = model.weight @ encoder.frame({name: [cell] for name, cell in row.items()})[0] + model.bias
    assert found.base + sum(added(curve, row) for curve in found.curves) == pytest.approx(wanted, abs=1e-4)


def test_the_mean_of_each_curve_is_0_over_values_or_range_and_counts_nothing_else() -> None:
    encoder = Encoder(COLUMNS)
    for curve in drawn(encoder, 2).curves(encoder).curves:
        if curve.kind == "category":
            mean = curve.y.mean(axis=0)
        else:
            ends = number(curve.x[0]), number(curve.x[-1])
            grid = np.linspace(*ends, 6001)[:-1] + (ends[1] - ends[0]) / 12000
            mean = np.mean([between([*map(number, curve.x)], curve.y, value) for value in grid], axis=0)
        assert mean == pytest.approx(np.zeros(2), abs=1e-3), curve.name
        assert curve.importance == pytest.approx(curve.y.max(0) - curve.y.min(0))


def test_an_edge_stands_twice_and_an_indicator_apart() -> None:
    encoder = Encoder({name: COLUMNS[name] for name in ("edges", "bins", "flag", "day", "moment")})
    found = {curve.name: curve for curve in drawn(encoder, 1).curves(encoder).curves}
    assert found["edges"].x == (-5.0, -2.0, -2.0, 0.5, 0.5, 3.0, 3.0, 7.0)
    assert found["flag"].x == ("nein", "ja")
    assert found["day"].x == (DAY, dt.date(2021, 3, 1))
    assert [found[name].missing is None for name in ("edges", "bins", "day weekday", "moment hour")] == [
        True, False, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize("classes", [2, 3])
def test_curves_of_classes_are_log_odds_or_each_less_their_mean(classes: int) -> None:
    model = Logistic(4, classes)
    for weights in model.parameters():
        nn.init.normal_(weights)
    linear, inputs = LinearModel.of(model), torch.randn(5, 4)
    assert linear is not None
    read = linear.log_odds()
    shares = model(inputs).softmax(1).double()
    wanted = (
        (shares[:, 1:] / shares[:, :1]).log() if classes == 2 else shares.log() - shares.log().mean(1, True)
    )
    found = inputs.double().numpy() @ read.weight.T + read.bias
    assert found == pytest.approx(wanted.detach().numpy(), abs=1e-5)


def test_numbers_are_in_the_units_of_their_bounds() -> None:
    read = LinearModel(np.array([[0.5], [0.25]]), np.array([0.0, -1.0])).in_units([(0, 10), (-4, 4)])
    assert (read.weight @ [1.0] + read.bias).tolist() == [7.5, -3.0]  # of outputs 0.5 and -0.75
    assert (read.weight @ [0.0] + read.bias).tolist() == [5.0, -4.0]


def test_least_squares_is_linear_where_its_inputs_keep_their_length() -> None:
    weight = torch.randn(2, 6)
    model, inputs = LeastSquaresHead(weight, normalise=False, constant=0.7), torch.rand(8, 5) * 2 - 1
    read = LinearModel.of(model)
    assert read is not None
    found = inputs.numpy() @ read.weight.T + read.bias
    assert found == pytest.approx(model(inputs).detach().numpy(), abs=1e-6)
    assert LinearModel.of(LeastSquaresHead(weight, normalise=True, constant=0.7)) is None


def test_a_standard_model_has_its_mean_and_spread_in_it() -> None:
    model, inputs = StandardLinear(5, 2), torch.rand(8, 5) * 2 - 1
    with torch.no_grad():
        model.about_mean.weight.copy_(model.scale * torch.tensor([[0.3, -0.2]]))
        model.about_spread.weight.copy_(model.scale * torch.tensor([[0.2, 0.1]]))
        for weights in model.layer.parameters():
            nn.init.normal_(weights)
    read = LinearModel.of(model)
    assert read is not None
    found = inputs.numpy() @ read.weight.T + read.bias
    assert found == pytest.approx(model(inputs).detach().numpy(), abs=1e-6)
    assert model.mean_and_spread()[1].tolist() == pytest.approx([0.6, 0.3])


@pytest.mark.parametrize(
    "model",
    [Logistic(4, 2, normalise=True), MLP(4, 2, hidden=(3,)), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))],
)
def test_other_models_have_no_curves(model: nn.Module) -> None:
    assert LinearModel.of(model) is None


@pytest.mark.parametrize(
    "encoder",
    [
        Encoder({"plain": COLUMNS["plain"], "bins": COLUMNS["bins"]}),
        Encoder({"plain": COLUMNS["plain"]}, text=TextColumn("name", 1)),
    ],
)
def test_an_encoder_of_another_model_is_refused(encoder: Encoder) -> None:
    with pytest.raises(InvalidInput, match=r"^the model has 2 inputs but the columns have \d features"):
        LinearModel(np.zeros((1, 2)), np.zeros(1)).curves(encoder)
