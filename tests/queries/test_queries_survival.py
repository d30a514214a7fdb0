"""Survival: counts row by row, the curve of Kaplan and Meier, intervals that cover, clear refusals."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from query_oracles import fix_bits, integers, policy_of

from tacit.errors import InvalidInput
from tacit.ledger import Column, Ledger
from tacit.queries import (
    Answer,
    CumulativeHazard,
    PrivateTable,
    Query,
    RestrictedMean,
    Survival,
    register_table,
)
from tacit.queries import survival as estimates
from tacit.queries.measures import Lifetimes
from tacit.queries.plan import compile_query
from tacit.queries.private_table import AnswerRow, Estimate
from tacit.queries.sql import parse
from tacit.queries.survival import Counts
from tacit.report.curves import plot_curves

fixed_bits = pytest.fixture(autouse=True)(fix_bits)

COLUMNS = {
    "months": Column(kind="number", lower=0, upper=24),
    "weeks": Column(kind="integer", lower=0, upper=12),
    "early": Column(kind="number", lower=-1, upper=24),
    "died": Column(kind="boolean"),
    "event": Column(kind="integer", lower=0, upper=1),
    "stage": Column(kind="integer", lower=0, upper=3),
    "arm": Column(kind="category", values=("new", "old")),
}
SCHEMA = pa.schema(
    [("months", pa.float64()), ("died", pa.bool_()), ("event", pa.int64()), ("arm", pa.string())]
)
Floats = NDArray[np.float64]


# --- the counts ------------------------------------------------------------------------------------------

rows = st.fixed_dictionaries(
    {
        "months": st.sampled_from(
            [None, math.nan, -3.0, 0.0, 1.0, 6.0, 6.5, 12.0, 23.9, 24.0, 24.5, math.inf]
        ),
        "died": st.sampled_from([True, False, None]),
        "event": st.sampled_from([0, 1, None]),
        "arm": st.sampled_from(["new", "old"]),
    }
)
EDGES = (0, 6, 12, 24)


def cell_of(time: float, event: bool) -> int:
    """The place of a row among the counts, written down anew."""
    if time > EDGES[-1] or (time == EDGES[-1] and not event):
        return 6
    place = next(number for number, end in enumerate(EDGES[1:]) if time <= end)
    return place + (3 if event else 0)


@settings(max_examples=40, deadline=None)
@given(st.lists(rows, max_size=12), st.sampled_from(["died", "event"]))
def test_every_row_is_in_one_bin(table: list[dict[str, Any]], event: str) -> None:
    query = Query((Survival("months", event, EDGES),), by=("arm",))
    compiled = compile_query(query, policy_of(COLUMNS), epsilon=1.0)
    (found,) = integers(compiled, table, SCHEMA).values()
    expected = {("new",): [0] * 7, ("old",): [0] * 7}
    for row in table:
        time = row["months"]
        if time is not None and not math.isnan(time) and row[event] is not None:
            expected[row["arm"],][cell_of(time, bool(row[event]))] += 1
    assert {key: found.get(key, [0] * 7) for key in expected} == expected


def test_edges_come_from_the_question_the_policy_or_the_bound() -> None:
    declared = COLUMNS | {"months": Column(kind="number", lower=0, upper=24, bins=(3.0, 9.0))}
    for columns, edges, expected in (
        (declared, None, (0, 3, 9, 24)),
        (declared, (0, 5), (0, 5)),
        (COLUMNS, None, tuple(1.2 * place for place in range(21))),
    ):
        query = Query((Survival("months", "died", edges), RestrictedMean("months", "died", edges)))
        (release,) = compile_query(query, policy_of(columns), epsilon=1.0).releases
        assert isinstance(release.measure, Lifetimes)
        assert release.measure.edges == pytest.approx(expected)
        assert release.scale == 1


# --- the curves ------------------------------------------------------------------------------------------


def counts_of(
    times: Floats,
    events: NDArray[np.bool_],
    edges: tuple[float, ...],
    *,
    variance: float = 0.0,
    whole: bool = True,
) -> Counts:
    bins = len(edges) - 1
    beyond = (times > edges[-1]) | ((times == edges[-1]) & ~events)
    place = np.clip(np.searchsorted(edges, times, side="left") - 1, 0, bins - 1)
    where = np.where(beyond, 2 * bins, place + bins * events)
    return Counts(np.bincount(where, minlength=2 * bins + 1).astype(float), edges, variance, whole)


def kaplan_meier(times: Floats, events: NDArray[np.bool_]) -> dict[float, tuple[float, float, float]]:
    """Survival, its negative logarithm and Greenwood's sum at each time, from single rows."""
    survival, greenwood, curve = 1.0, 0.0, {}
    for time in sorted(set(times.tolist())):
        risk, d = int((times >= time).sum()), int(((times == time) & events).sum())
        survival *= 1 - d / risk
        greenwood += d / (risk * (risk - d)) if risk > d else 0.0
        curve[time] = survival, -math.log(survival) if survival else math.inf, greenwood
    return curve


@given(st.integers(0, 2**32 - 1))
def test_without_noise_it_is_the_curve_of_kaplan_and_meier(seed: int) -> None:
    draw = np.random.default_rng(seed)
    times = draw.integers(1, 13, size=200).astype(float)
    events = draw.random(200) < 0.5
    counts = counts_of(times, events, tuple(map(float, range(13))))
    curve = kaplan_meier(times, events)
    survival = estimates.survival(counts, 0.95)
    hazard = estimates.cumulative_hazard(counts, 0.95)
    for at in range(1, counts.resolved + 1):
        share, summed, greenwood = curve[float(at)]
        value, low, _ = survival[at - 1]
        assert value == pytest.approx(share)
        assert low == pytest.approx(max(share - 1.959964 * share * math.sqrt(greenwood), 0.0), abs=1e-5)
        assert hazard[at - 1][0] == pytest.approx(summed, abs=1e-9)
    steps = [1.0, *(value for value, _, _ in survival)]
    area = sum((one + other) / 2 for one, other in itertools.pairwise(steps))
    assert estimates.restricted_mean(counts, 0.95)[0] == pytest.approx(area)


def test_the_log_rank_test_without_noise_is_the_textbooks() -> None:
    draw = np.random.default_rng(3)
    samples = []
    for scale in (5.0, 8.0):
        times = np.ceil(draw.exponential(scale, 300))
        samples.append((np.minimum(times, 12.0), times <= 12))
    excess = variance = 0.0
    for time in range(1, 13):
        (d1, n1), (d2, n2) = (
            (int(((times == time) & events).sum()), int((times >= time).sum())) for times, events in samples
        )
        d, n = d1 + d2, n1 + n2
        excess += d1 - d * n1 / n
        variance += d * n1 * n2 * (n - d) / (n * n * (n - 1))
    edges = tuple(map(float, range(13)))
    test = estimates.log_rank(*(counts_of(*sample, edges) for sample in samples))
    assert test is not None
    assert test[0] == pytest.approx(excess**2 / variance, rel=0.1)  # another estimate of the same variance
    assert test[1] == pytest.approx(math.erfc(math.sqrt(test[0] / 2)))


# --- the intervals ---------------------------------------------------------------------------------------


def noisy(counts: Counts, epsilon: float, draw: np.random.Generator, *, told: float = 1.0) -> Counts:
    stay = 1 - math.exp(-epsilon)
    size = len(counts.cells)
    noise = draw.geometric(stay, size) - draw.geometric(stay, size)
    return Counts(counts.cells + noise, counts.edges, told * 2 * (1 - stay) / stay**2, counts.whole)


def sample(draw: np.random.Generator, size: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Exponential times, censored uniformly."""
    times, censored = draw.exponential(10.0, size), draw.uniform(0, 40, size)
    return np.minimum(times, censored), times <= censored


MONTHS = tuple(float(2 * place) for place in range(11))


def coverage(epsilon: float, told: float, runs: int = 200) -> list[float]:
    """Return how often the three kinds of intervals contain the value of the population."""
    draw, hits = np.random.default_rng(5), []
    truth = np.exp(-np.array(MONTHS[1:]) / 10)
    for _ in range(runs):
        counts = noisy(counts_of(*sample(draw, 800), MONTHS, whole=False), epsilon, draw, told=told)
        curve = np.array(estimates.survival(counts, 0.95))
        inside = np.mean((curve[:, 1] <= truth) & (truth <= curve[:, 2]))
        hazard = estimates.cumulative_hazard(counts, 0.95)
        also = [
            low <= -math.log(at) <= (high or math.inf)
            for at, (_, low, high) in zip(truth, hazard, strict=True)
        ]
        _, low, high = estimates.restricted_mean(counts, 0.95)
        hits.append([inside, np.mean(also), low <= 10 * (1 - truth[-1]) <= (high or 0.0)])
    return list(np.mean(hits, axis=0))


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_intervals_cover_at_their_rate(epsilon: float) -> None:
    assert all(0.92 < rate < 0.985 for rate in coverage(epsilon, 1.0))


def test_intervals_that_forget_the_noise_are_found() -> None:
    assert min(coverage(0.2, 0.0)) < 0.85


def test_the_log_rank_test_keeps_its_level_and_finds_a_difference() -> None:
    draw = np.random.default_rng(7)

    def rejected(factor: float) -> float:
        found = 0
        for _ in range(300):
            groups = []
            for scale in (1.0, factor):
                times, events = sample(draw, 300)
                groups.append(noisy(counts_of(times * scale, events, MONTHS, whole=False), 0.5, draw))
            test = estimates.log_rank(*groups)
            found += test is not None and test[1] < 0.05
        return found / 300

    assert rejected(1.0) < 0.09
    assert rejected(2.0) > 0.9


@pytest.mark.parametrize("size", [0, 3, 500])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_answers_are_sound_whatever_the_rows(size: int, share: float) -> None:
    """Nobody, three people, everybody censored, everybody with the event, a bin without anybody."""
    draw = np.random.default_rng(9)
    for upper in (4.0, 100.0):
        times, events = draw.uniform(0, upper, size), draw.random(size) < share
        counts = noisy(counts_of(times, events, MONTHS, whole=False), 1.0, draw)
        curve = estimates.survival(counts, 0.95)
        assert all(0 <= low <= value <= (high or 0.0) <= 1 for value, low, high in curve)
        assert all(one[0] >= other[0] for one, other in itertools.pairwise(curve))
        hazard = estimates.cumulative_hazard(counts, 0.95)
        assert all(0 <= low <= value <= (math.inf if high is None else high) for value, low, high in hazard)
        assert all(one[0] <= other[0] for one, other in itertools.pairwise(hazard))
        value, low, high = estimates.restricted_mean(counts, 0.95)
        assert 0 <= low <= value <= (high or 0.0) <= 20
        assert math.isfinite((estimates.log_rank(counts, counts) or (0.0, 0.0))[0])


def test_bins_after_the_last_person_do_not_disturb_the_log_rank_test() -> None:
    counts = Counts(np.array([0.0, 0, 0, 90, 0, 0, 0]), (0.0, 1.0, 2.0, 3.0), 2.0, whole=True)
    more = Counts(np.array([50.0, 0, 0, 40, 0, 0, 0]), (0.0, 1.0, 2.0, 3.0), 2.0, whole=True)
    assert (counts.resolved, more.resolved) == (0, 1)
    assert estimates.log_rank(more, more) == (0.0, 1.0)
    assert estimates.log_rank(counts, more) is None


# --- questions -------------------------------------------------------------------------------------------


@pytest.fixture
def table() -> PrivateTable:
    draw = np.random.default_rng(11)
    times, events = sample(draw, 400)
    frame = pd.DataFrame(
        {
            "months": np.minimum(times, 24.0),
            "died": events & (times <= 24),
            "arm": ["new", "old"] * 200,
        }
    )
    ledger = Ledger.create("sqlite://")
    columns = {name: COLUMNS[name] for name in map(str, frame)}
    ledger.open_dataset("trial", policy_of(columns))
    register_table(frame, ledger=ledger, dataset="trial")
    return PrivateTable(frame, ledger=ledger, dataset="trial")


def test_one_charge_pays_for_the_curves_of_two_groups(table: PrivateTable) -> None:
    answer = table.survival("months", "died", edges=(0, 6, 12, 24), groups=["arm"], epsilon=1.0)
    assert answer.epsilon == 1.0
    assert answer.columns == ("survival", "hazard", "restricted_mean")
    assert [*map(list, answer.points)] == [[6, 12, 24], [6, 12, 24], [24]]
    assert len(answer.value("survival", ("new",))) == 3
    assert answer.log_rank is not None
    assert "Log-rank test of the two groups" in answer.to_text()
    assert answer.mechanism == (
        "number of rows in each bin of months, with and without died: discrete Laplace noise of scale 1, "
        "sensitivity 1",
    )
    again = table.survival("months", "died", edges=(0, 6, 12, 24), groups=["arm"], epsilon=1.0)
    assert again.repeated
    assert again.rows == answer.rows
    assert again.log_rank == answer.log_rank


def test_sql_shows_each_time_in_one_line(table: PrivateTable) -> None:
    answer = table.sql(
        "SELECT survival(months, died, [0, 12, 24]), restricted_mean(months, died, [0, 12, 24]) FROM trial",
        epsilon=1.0,
    )
    head, first, last = answer.cells()
    assert head == ("at", "survival_months", "restricted_mean_months")
    assert (first[0], first[2], last[0]) == ("12", "", "24")
    assert answer.log_rank is None


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("survival(months)", "it takes a time, an event"),
        ("survival(months, died, arm)", "rows have no weights"),
        ("survival(months, died, [0, 6], [0, 6])", "rows have no weights"),
        ("survival(early, died)", "Declare lower = 0"),
        ("survival(months, stage)", "an event must be true or false"),
        ("survival(months, arm)", "an event must be true or false"),
        ("survival(died, died)", "needs a numeric column"),
        ("survival(months, died, [6, 12])", "must begin with 0"),
        ("survival(months, died, [0, 12, 36])", "at or below 24, the declared upper bound"),
        ("survival(months, died, [0, 12, 6])", "strictly increasing"),
        ("cumulative_hazard(months, died, [0])", "2 or more numbers"),
        ("restricted_mean(months, gone)", "declares no column 'gone'"),
    ],
)
def test_bad_questions_are_refused_before_any_charge(question: str, told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(f"SELECT {question} FROM trial", policy_of(COLUMNS))
    assert told.lower() in str(caught.value).lower()


def test_python_refuses_the_same(table: PrivateTable) -> None:
    with pytest.raises(InvalidInput, match="an event must be true or false"):
        compile_query(Query((CumulativeHazard("months", "stage"),)), policy_of(COLUMNS), epsilon=1.0)
    with pytest.raises(InvalidInput, match="at most 201"):
        table.survival("months", "died", edges=range(300), epsilon=1.0)
    with pytest.raises(InvalidInput, match="edges must be a tuple or list; got 12"):
        table.survival("months", "died", edges=12, epsilon=1.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"groups must be a list of columns; got 'arm'"):
        table.survival("months", "died", groups="arm", epsilon=1.0)
    with pytest.raises(InvalidInput, match="epsilon is missing"):
        table.survival("months", "died")


def test_several_rows_of_a_unit_are_refused_for_curves() -> None:
    """Their times are not independent, and the intervals would be too narrow."""
    rules = policy_of(COLUMNS, unit_column="pid", rows_per_unit=3)
    for item in (Survival("months", "died"), CumulativeHazard("months", "died")):
        with pytest.raises(InvalidInput, match=r"rows_per_unit = 1.*has 3.*one row per patient"):
            compile_query(Query((item,)), rules, epsilon=1.0)
    one = policy_of(COLUMNS, unit_column="pid")
    assert compile_query(Query((Survival("months", "died"),)), one, epsilon=1.0).releases


def test_the_axis_of_a_figure_names_the_time_and_its_bins(
    table: PrivateTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("tacit.report.curves.save_figure", lambda figure, path: drawn.append(figure))
    for edges in (range(0, 25, 6), (0, 6, 24)):
        plot_curves(table.survival("months", "died", edges=edges, epsilon=1.0), Path("curves.png"))
    plot_curves(table.sql("SELECT boxplot(months) FROM trial", epsilon=1.0), Path("box.png"))
    labels = [axes.get_xlabel() for figure in drawn for axes in figure.axes]
    assert labels == ["months, bins of 6"] * 2 + ["months"] * 2 + ["share"]


def test_lines_begin_at_time_0_and_end_where_noise_hides_the_rest(
    table: PrivateTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the names of the columns of the answer are."""
    drawn: list[Any] = []
    monkeypatch.setattr("tacit.report.curves.save_figure", lambda figure, path: drawn.append(figure))
    text = (
        "cumulative_hazard(months, died, [0, 12, 24]) AS survival_h, survival(months, died, [0, 12, 24]) AS s"
    )
    plot_curves(table.sql(f"SELECT {text} FROM trial", epsilon=1.0), Path("curves.png"))
    first = [line.get_xydata()[0].tolist() for axes in drawn[0].axes for line in axes.lines]
    assert first == [[0.0, 0.0], [0.0, 1.0]]
    answer = table.sql("SELECT survival(months, died) FROM trial", epsilon=1.0)
    clear = (Estimate(0.9, 0.8, 1.0), Estimate(0.7, 0.4, 0.9))
    hidden = dataclasses.replace(answer, rows=(AnswerRow((), ((*clear, *[Estimate(0.7, 0.0, 0.9)] * 18),)),))
    plot_curves(hidden, Path("hidden.png"))
    assert len(drawn[1].axes[0].lines[0].get_xdata()) == 3  # with time 0


def test_numbers_are_shown_as_precisely_as_they_are_known() -> None:
    known = (Estimate(0.658088, 0.639197, 0.676979), Estimate(1.5, 1.25), Estimate(1, 1.0, 1.0))
    row = AnswerRow((), (known, Estimate(12, 8, 16), Estimate(176912.25, 176582.25, 177241.5)))
    points: Any = ((1.0, 2.0, 3.0), (), ())
    answer = Answer((), ("s", "n", "t"), (row,), (), ((), (), ()), "k", 1.0, 0.0, 1.0, False, points=points)
    (_, *lines) = answer.cells()
    assert [line[1] for line in lines[:3]] == ["0.658 (0.639 to 0.677)", "1.50 (1.25 or more)", "1 (1 to 1)"]
    assert lines[3][2:] == ("12 (8 to 16)", "176,912 (176,582 to 177,242)")


def test_curves_are_drawn(table: PrivateTable, tmp_path: Path) -> None:
    answer = table.survival("months", "died", groups=["arm"], epsilon=1.0)
    plot_curves(answer, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    with pytest.raises(InvalidInput, match="no curve to draw"):
        plot_curves(table.sql("SELECT count(*) FROM trial", epsilon=1.0), tmp_path / "count.png")
    assert not (tmp_path / "count.png").exists()
