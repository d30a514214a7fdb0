"""The report on a price: its quotes, its risk, and the picture, whose texts and lines are looked at."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import texts_of
from PIL import Image
from scipy.stats import norm

from tacit.accounting import account
from tacit.errors import InvalidInput, MissingExtra, UnsupportedEvent
from tacit.events import Compose, Event, Gaussian, Laplace, PoissonSampled, Repeat
from tacit.report import canvas
from tacit.report import plots as guarantee_figures
from tacit.report.canvas import figure_path, save_figure
from tacit.report.plots import draw_pricing, prepare_drawing
from tacit.report.pricing import Pricing, price_event
from tacit.rounding import shown_epsilon

RUN = Repeat(Gaussian(30.0), 100)


def priced(event: Event = RUN, *methods: str, delta: float = 1e-5) -> Pricing:
    return price_event(event, adjacency="add-remove", delta=delta, methods=methods or ("gaussian", "rdp"))


# --- the figures in words ---------------------------------------------------------------------------------


def test_quotes_are_those_of_the_accountants_and_the_best_is_the_smallest() -> None:
    pricing = priced(RUN, "rdp", "gaussian")
    for quote in pricing.quotes:
        curve = account(RUN, adjacency="add-remove", method=quote.method)
        assert (quote.lower, quote.upper) == curve.epsilon_bounds(1e-5)
    assert pricing.best.method == "gaussian"
    assert pricing.epsilon == min(quote.upper for quote in pricing.quotes)


def test_risk_of_a_gaussian_is_the_closed_form() -> None:
    """100 steps at 30 are one at 3, so mu = 1/3."""
    risk, mu = priced().risk, 1.0 / 3.0
    assert risk.advantage == pytest.approx(2.0 * norm.cdf(mu / 2.0) - 1.0, rel=1e-10)
    assert risk.success == pytest.approx(norm.cdf(mu / 2.0), rel=1e-10)
    for rate, found in risk.detected:
        exact = float(norm.sf(norm.isf(rate) - mu))
        assert exact <= found <= exact + 1e-5
    for before, after in risk.posteriors:
        assert before < after < 1.0


def test_refusals_are_raised_or_quoted_but_never_lost() -> None:
    sampled = PoissonSampled(0.1, Gaussian(2.0))
    with pytest.raises(UnsupportedEvent, match="only supports Gaussian noise"):
        priced(sampled, "moments", "gaussian")
    pricing = price_event(
        sampled, adjacency="add-remove", delta=1e-5, methods=["gaussian", "moments"], skip_refusals=True
    )
    refused = pricing.quotes[0]
    assert refused.refusal is not None
    assert math.isnan(refused.upper)
    assert pricing.best.method == "moments"
    assert pricing.to_data()["methods"][0] == {"method": "gaussian", "refused": refused.refusal}
    with pytest.raises(UnsupportedEvent, match="none of the accountants gaussian can bound"):
        price_event(sampled, adjacency="add-remove", delta=1e-5, methods=["gaussian"], skip_refusals=True)


@pytest.mark.parametrize("methods", [[], ["rdp", "rdp"], ["nothing"]])
def test_methods_that_make_no_sense(methods: list[str]) -> None:
    with pytest.raises(InvalidInput, match="method"):
        price_event(RUN, adjacency="add-remove", delta=1e-5, methods=methods)


# --- the picture ------------------------------------------------------------------------------------------


def drawn(pricing: Pricing, path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The figure that was written, once no text lies outside of it or on another."""
    kept: list[Any] = []

    def listening(figure: Any, where: Path) -> None:
        save_figure(figure, where)
        kept.append(figure)

    monkeypatch.setattr(guarantee_figures, "save_figure", listening)
    draw_pricing(prepare_drawing(pricing), path)
    (figure,) = kept
    texts_of(figure)
    return figure


def test_the_lines_are_the_figures_of_the_accountants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = drawn(priced(), tmp_path / "cost.png", monkeypatch)
    over_counts, profile, trade_off = figure.axes
    for line, method in zip(over_counts.get_lines(), ("gaussian", "rdp"), strict=True):
        x, y = line.get_data()
        assert (x[0], x[-1]) == (1, 100)
        assert (np.diff(y) > 0.0).all()
        assert y[-1] == account(RUN, adjacency="add-remove", method=method).epsilon(1e-5)
    epsilons, deltas = profile.get_lines()[0].get_data()
    curve = account(RUN, adjacency="add-remove", method="gaussian")
    np.testing.assert_allclose(curve.epsilon(np.asarray(deltas)), epsilons)
    a, f = trade_off.get_lines()[0].get_data()
    np.testing.assert_allclose(f, norm.cdf(norm.isf(a) - 1.0 / 3.0), atol=1e-6)
    assert (a[0], a[-1]) == (0.0, 1.0)
    words = {text.get_text() for axes in figure.axes for text in (axes.title, axes.xaxis.label, *axes.texts)}
    assert {"Cost at δ = 1e-05", "steps", "The limits of a test for membership"} <= words
    assert f"ε = {shown_epsilon(priced().epsilon)}" in words
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["gaussian", "rdp"]
    with Image.open(tmp_path / "cost.png") as picture:
        assert picture.size == (1638, 533)


@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize(
    "event", [Compose(()), Gaussian(1e-200), Gaussian(0.5), Compose((Gaussian(1.0), Laplace(1.0)))]
)
def test_whatever_there_is_to_draw(event: Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing released, everything released, and what is not a repetition."""
    figure = drawn(priced(event, "rdp"), tmp_path / "cost.png", monkeypatch)
    assert figure.axes[0].get_xlabel() == "times the whole event"
    assert not figure.legends


def test_a_full_disk_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cost.png"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(canvas.os, "replace", full)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="No space"):
        save_figure(canvas.new_figure(1.0, 1.0), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["cost", "cost.jpg", ".png"])
def test_kinds_of_files(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"Use .*\.png, for example"):
        figure_path(Path(name))


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[plots\]'"):
        canvas.new_figure(1.0, 1.0)


def test_reports_on_prices_need_no_torch() -> None:
    code = "import sys, tacit.report.plots; print({'torch', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
