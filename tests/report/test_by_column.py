"""The effect of each column in a linear model, as data, charts and a picture."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.container import BarContainer
from pictures import texts_of
from PIL import Image
from torch import nn

from tacit.columns import Column, Encoder
from tacit.columns.encoder import TextColumn
from tacit.models.additive import LinearModel
from tacit.report import canvas
from tacit.report import evaluation_charts as column_charts
from tacit.report.evaluation import by_column, evaluation_data, evaluation_page
from tacit.report.evaluation_charts import charts_of_columns, legend_of, panels_of, plot_columns
from tacit.training import evaluate

INPUTS = {
    "age": Column(kind="number", lower=0, upper=100, bins=4, missing="indicator"),
    "smoker": Column(kind="boolean"),
    "day": Column(kind="date", lower="2019-01-01", upper="2024-06-01", missing="indicator"),
    "pay": Column(kind="category", values=[f"over ${n}, under ${n + 1}" for n in range(12)]),
}
CLASS = {"out": Column(kind="category", values=["no", "yes"])}
THREE = {"out": Column(kind="category", values=["a", "b", "c"])}
LABELS = {"left": Column(kind="boolean"), "right": Column(kind="boolean")}
PRICE = {"price": Column(kind="number", lower=0, upper=1000)}
BOTH = {**PRICE, "rate": Column(kind="number", lower=-1, upper=1)}


def encoded(targets: dict[str, Column], inputs: dict[str, Column] = INPUTS) -> Encoder:
    return Encoder(inputs | targets, next(iter(targets)) if len(targets) == 1 else [*targets])


def network(encoder: Encoder, seed: int = 0) -> nn.Linear:
    outputs = len(encoder.classes) or len(encoder.target_names)
    model = nn.Linear(len(encoder.features), outputs)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for weights in model.parameters():
            nn.init.normal_(weights)
    return model


def told(targets: dict[str, Column], inputs: dict[str, Column] = INPUTS) -> dict[str, Any]:
    encoder = encoded(targets, inputs)
    found = by_column(network(encoder), encoder)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("targets", "of", "outputs"),
    [
        (CLASS, "log odds", ["yes"]),
        (THREE, "logits", ["a", "b", "c"]),
        (LABELS, "log odds", ["left", "right"]),
        (PRICE, "numbers", ["price"]),
        (BOTH, "numbers", ["price", "rate"]),
    ],
)
def test_the_data_sum_to_what_the_model_predicts(
    targets: dict[str, Column], of: str, outputs: list[str]
) -> None:
    encoder, found = encoded(targets), told(targets)
    assert (found["of"], found["outputs"]) == (of, outputs)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    row = {"age": [None], "smoker": ["true"], "day": ["2024-06-01"], "pay": ["over $3, under $4"]}
    logits = network(encoder)(torch.from_numpy(encoder.frame(row))).detach().double().numpy()[0]
    match of:
        case "numbers":
            low, high = np.array(encoder.target_bounds).T
            wanted = low + (logits + 1) / 2 * (high - low)
        case "logits":
            wanted = logits - logits.mean()
        case _:
            wanted = logits if len(outputs) == 2 else logits[1:] - logits[:1]
    age, smoker, day, pay = found["columns"]
    added = [age["missing"], *([k[at] for k in one["y"]] for one, at in ((smoker, 1), (day, 1), (pay, 3)))]
    assert found["constant"] + np.sum(added, axis=0) == pytest.approx(
        wanted, rel=1e-4, abs=1e-2 if of == "numbers" else 1e-4
    )
    assert [one["column"] for one in found["columns"]] == [*INPUTS]
    assert day["x"] == ["2019-01-01", "2024-06-01"]
    assert ("other" in pay, "missing" in pay, "other" in age) == (True, False, False)
    assert age["importance"] == pytest.approx([max(k) - min(k) for k in age["y"]], rel=1e-2)


def test_models_that_are_no_sum_over_columns_have_no_data() -> None:
    encoder = encoded(CLASS)
    deep = nn.Sequential(network(encoder), nn.Linear(2, 2))
    assert by_column(deep, encoder) is None
    diverged = network(encoder)
    with torch.no_grad():
        diverged.weight[0, 0] = torch.nan
    assert by_column(diverged, encoder) is None
    reads = Encoder(INPUTS | CLASS, "out", text=TextColumn("note", 3))
    assert by_column(nn.Linear(len(reads.features), 2), reads) is None


def test_outputs_share_a_scale_but_where_each_has_units_of_its_own() -> None:
    assert [panels.outputs for panels in panels_of(told(THREE))] == [(0, 1, 2)]
    price, rate = panels_of(told(BOTH))
    assert (price.outputs, price.names, price.axis) == ((0,), ("price",), "added to price")
    assert (rate.outputs, rate.names, rate.axis) == ((1,), ("rate",), "added to rate")
    assert price.limits[1] > 100 > 10 > rate.limits[1]
    nine = {"out": Column(kind="category", values=[*"abcdefghi"])}
    assert panels_of(told(nine)) == []


def test_the_twelve_columns_of_the_largest_range_are_drawn_in_this_order() -> None:
    inputs = {f"x{place}": Column(kind="number", lower=0, upper=1) for place in range(15)}
    (panels,) = panels_of(told(PRICE, inputs))
    weights = np.abs(network(encoded(PRICE, inputs)).weight.detach().numpy()[0])
    ranked = [f"x{place}" for place in np.argsort(-weights)]
    assert [column["column"] for column in panels.columns] == ranked[:12]
    assert [*panels.rest] == ranked[12:]


def test_a_chart_draws_what_the_data_say() -> None:
    data = told(CLASS)
    (panels,) = panels_of(data)
    charts = charts_of_columns(panels)
    columns = {one["column"]: one for one in data["columns"]}
    assert set(charts) == set(columns)
    zero, line, missing = charts["age"].get_lines()
    assert np.asarray(zero.get_ydata()).tolist() == [0, 0]
    for found, wanted in ((line.get_xdata(), "x"), (line.get_ydata(), "y"), (missing.get_ydata(), "missing")):
        assert np.asarray(found).tolist() == (
            columns["age"][wanted][0] if wanted == "y" else columns["age"][wanted]
        )
    assert "missing" in [text.get_text() for text in charts["age"].texts]
    bars = [bar for one in charts["pay"].containers if isinstance(one, BarContainer) for bar in one]
    added = dict(zip(columns["pay"]["x"], columns["pay"]["y"][0], strict=True))
    furthest = sorted(added, key=lambda name: -abs(added[name]))[:10]
    shown = [value for name, value in added.items() if name in furthest]
    assert [bar.get_width() for bar in bars] == shown + columns["pay"]["other"]
    for name, axes in charts.items():
        low, high = axes.get_xlim() if columns[name]["kind"] == "category" else axes.get_ylim()
        assert (low, high) == panels.limits
        drawn = [*columns[name]["y"][0], *columns[name].get("other", []), *columns[name].get("missing", [])]
        assert low < min(drawn) <= max(drawn) < high


def test_classes_have_lines_and_marks_of_their_own_and_a_legend() -> None:
    (panels,) = panels_of(told(THREE))
    charts, legend = charts_of_columns(panels), legend_of(panels)
    assert legend is not None
    assert legend.get_legend_handles_labels()[1] == ["a", "b", "c"]
    lines = charts["age"].get_lines()[1:4]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 3
    assert len({line.get_marker() for line in charts["smoker"].get_lines()[1:]}) == 3
    (one,) = panels_of(told(CLASS))
    assert legend_of(one) is None


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("targets", [CLASS, THREE, LABELS, PRICE, BOTH])
def test_the_picture_names_scale_zero_and_noise(
    targets: dict[str, Column], private: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    real = canvas.save_figure

    def listening(figure: Any, path: Path) -> None:
        real(figure, path)
        said.extend([figure.get_suptitle(), *texts_of(figure)])

    monkeypatch.setattr(column_charts, "save_figure", listening)
    assert plot_columns(told(targets), tmp_path / "columns.png", private=private)
    with Image.open(tmp_path / "columns.png") as picture:
        assert picture.format == "PNG"
    assert ("NOT PRIVATE" in said[0]) is not private
    words = {"out": "the log odds of “yes”", "left": "the log odds of each label", "price": "“price”"}
    named = "the logit of each class" if targets is THREE else words[next(iter(targets))]
    assert f"column on {'each target' if targets is BOTH else named}\n" in said[0]
    assert "0 is the mean over" in said[0]
    assert "bends of a few bins may be noise" in said[0]
    assert set(INPUTS) <= set(said)


def test_no_picture_of_nine_classes(tmp_path: Path) -> None:
    nine = {"out": Column(kind="category", values=[*"abcdefghi"])}
    assert not plot_columns(told(nine), tmp_path / "columns.png")
    assert not [*tmp_path.iterdir()]


def page_of(targets: dict[str, Column], inputs: dict[str, Column] = INPUTS) -> str:
    encoder = encoded(targets, inputs)
    model, classes = network(encoder), len(encoder.classes)
    rng = torch.Generator().manual_seed(0)
    inputs_of = torch.rand(60, len(encoder.features), generator=rng)
    y = torch.randint(0, classes, (60,), generator=rng) if classes else torch.rand(60, len(targets))
    found = evaluation_data(
        evaluate(model, inputs_of, y > 0.5 if encoder.labels else y),
        classes=encoder.classes or encoder.labels,
        targets=encoder.target_names,
    )
    return evaluation_page(found | {"by_column": by_column(model, encoder)}, title="run")


@pytest.mark.parametrize(
    ("targets", "scale"),
    [
        (CLASS, "“yes” is more likely: the scale is of log odds"),
        (THREE, "is a more likely class: the scale is of logits"),
        (LABELS, "is a more likely label: the scale is of log odds"),
        (PRICE, "is a higher prediction, in the units of the target"),
        (BOTH, "is a higher prediction, in the units of the target"),
    ],
)
def test_the_page_says_what_scale_and_zero_are(targets: dict[str, Column], scale: str) -> None:
    page = page_of(targets)
    assert scale in page
    for words in (
        "What the model says, column by column", "they cost no more privacy",
        "0, the dashed line, is the mean", "share an effect",
        "bends of a few bins may be noise", ">age</figcaption>",
    ):  # fmt: skip
        assert words in page
    assert re.search(r">over \$\d+, under \$\d+<", page), "a dollar is no mathematics"
    panels = 2 if targets is BOTH else 1
    assert page.count("</figcaption><svg") == panels * len(INPUTS)


def test_the_page_names_what_it_does_not_draw_and_escapes_names() -> None:
    inputs = {f"<b>{place}": Column(kind="number", lower=0, upper=1) for place in range(14)}
    page = page_of(PRICE, inputs)
    (panels,) = panels_of(told(PRICE, inputs))
    listed = ", ".join(panels.rest).replace("<b>", "&lt;b&gt;")
    assert f"Not drawn, as their range is smaller: {listed}." in page
    assert "<b>1" not in page
    nine = {"out": Column(kind="category", values=[*"abcdefghi"])}
    assert "Charts are drawn for up to eight classes" in page_of(nine)


def test_the_data_are_a_function_of_weights_and_declarations() -> None:
    """The encoder has read no record; the model is what a file holds of it."""
    encoder = encoded(CLASS)
    model = network(encoder)
    again = nn.Linear(model.in_features, 2)
    again.load_state_dict(model.state_dict())
    assert by_column(again, Encoder.from_data(encoder.to_data())) == by_column(model, encoder)
    assert LinearModel.of(model) is not None
