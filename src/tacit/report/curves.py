"""Figures of query answers: curves of survival, hazard and shares, with their intervals."""

from __future__ import annotations

import itertools
from pathlib import Path

from tacit.errors import InvalidInput
from tacit.queries.private_table import Answer, Estimate
from tacit.report.canvas import label_of, line_style, new_figure, save_figure
from tacit.rounding import pair


def _resolved(curve: list[Estimate]) -> int:
    """Return the number of points before a curve's end that stays the same because noise hides it."""
    # see tacit.queries.survival: such an end has an interval down to 0, or none above
    end = len(curve)
    while end > 1 and (
        curve[end - 1].high is None
        or (curve[end - 1].low == 0.0 < curve[end - 1].value == curve[end - 2].value)
    ):
        end -= 1
    return end


def plot_curves(answer: Answer, path: Path) -> None:
    """Draw each curve of an answer as a chart, with a line and a band of intervals for each group.

    The line of a survival curve ends where noise hides the rest; its band goes on.
    """
    curves = [place for place, points in enumerate(answer.points) if len(points) > 1]
    if not curves:
        raise InvalidInput(
            f"the answer has no curve to draw, only {', '.join(answer.columns)}. Query survival(time, "
            "event), cumulative_hazard(time, event), cdf(column) or quantiles(column, [...])."
        )
    figure = new_figure(6.4, 3.4 * len(curves))
    for number, place in enumerate(curves, start=1):
        axes = figure.add_subplot(len(curves), 1, number)
        name = answer.columns[place]
        for group, row in enumerate(answer.rows):
            parts = row.values[place]
            assert isinstance(parts, tuple)
            style = line_style(group)
            label = label_of(", ".join(map(str, row.keys)))
            at, known = list(answer.points[place]), list(parts)
            first = answer.starts[place] if answer.starts else None
            if first is not None:  # everybody is without an event at first
                at, known = [0.0, *at], [Estimate(first, first, first), *known]
            clear = _resolved(known) if first is not None else len(known)
            axes.plot(at[:clear], [part.value for part in known[:clear]], label=label, marker=".", **style)
            ends = [
                (x, part.low, part.high) for x, part in zip(at, known, strict=True) if part.high is not None
            ]
            xs, lows, highs = zip(*ends, strict=True) if ends else ((), (), ())
            axes.fill_between(xs, lows, highs, color=style["color"], alpha=0.15, linewidth=0)
        widths = {f"{after - before:g}" for before, after in itertools.pairwise((0.0, *answer.points[place]))}
        bins = f", bins of {widths.pop()}" if answer.sampled and len(widths) == 1 else ""
        axes.set_xlabel(label_of(answer.axes[place], 40) + bins)
        axes.set(ylabel=label_of(name, 40), ylim=(0, None) if axes.dataLim.ymin >= 0 else None)
        axes.grid(alpha=0.25)
        if answer.by:
            axes.legend(title=", ".join(answer.by))
    cost = pair({"epsilon": answer.epsilon, "delta": answer.delta})
    figure.suptitle(f"With noise at {cost}; bands are 95 % intervals", fontsize=11)
    save_figure(figure, path)
