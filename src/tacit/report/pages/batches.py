"""How does noise depend on the batch size? A picture of a plan's choice, down to the least noise."""

from __future__ import annotations

from pathlib import Path

from tacit.planner import NEAR_FLOOR, Advice
from tacit.report.pages.canvas import BLUE, GREY, ORANGE, empty_figure, write_figure


def plot_advice(advice: Advice, path: Path) -> None:
    """Total noise against batch size, with the floor, the 5 % above it, and the recommended batch.

    :raises MissingExtra: without matplotlib.
    :raises InvalidInput: the name of the file does not end in a known format.
    """
    question, best = advice.question, advice.recommended
    figure = empty_figure(6.4, 4.0)
    axes = figure.add_subplot()
    options = sorted(advice.options, key=lambda option: option.batch_size)
    sizes = [option.batch_size for option in options]
    axes.loglog(sizes, [option.total_noise for option in options], color=BLUE, marker="o", markersize=4)
    axes.axhline(advice.floor, color=GREY, linewidth=1)
    axes.axhspan(advice.floor, (1 + NEAR_FLOOR) * advice.floor, color=GREY, alpha=0.15, linewidth=0)
    axes.text(
        0.02,
        advice.floor,
        "full batch",
        transform=axes.get_yaxis_transform(),
        va="top",
        color=GREY,
        fontsize=9,
    )
    axes.plot([best.batch_size], [best.total_noise], "o", color=ORANGE)
    chosen = f"batches of {best.batch_size:,}\n{best.steps:,} steps, σ = {best.noise_multiplier:.3g}"
    axes.text(0.97, 0.95, chosen, transform=axes.transAxes, ha="right", va="top", color=ORANGE)
    axes.set_ylim(bottom=0.8 * min(advice.floor, *(option.total_noise for option in options)))
    axes.set_xlabel("batch size B")
    axes.set_ylabel("total noise σ / (B √T), in clipping norms")
    axes.set_title(f"What a batch size costs in noise at {question.budget_in_words}", fontsize=11)
    axes.grid(alpha=0.25, which="both")
    write_figure(figure, path)
