"""The picture that explains the choice of a plan: noise by batch size."""

from __future__ import annotations

from pathlib import Path

from tacit.planner import PlanAdvice
from tacit.planner.advice import NEAR_FLOOR
from tacit.report.pages.canvas import BLUE, GREY, ORANGE, new_figure, save_figure


def plot_advice(advice: PlanAdvice, path: Path) -> None:
    """Draw total noise against batch size, with the recommended batch size.

    A line shows the floor, the total noise of full batches, and a band shows the values near it.

    Raises:
        MissingExtra: matplotlib is not installed.
        InvalidInput: the name of the file does not end in a known format.
    """
    question, best = advice.question, advice.recommended
    figure = new_figure(6.4, 4.0)
    axes = figure.add_subplot()
    options = sorted(advice.options, key=lambda option: option.batch_size)
    sizes = [option.batch_size for option in options]
    axes.loglog(sizes, [option.total_noise for option in options], color=BLUE, marker="o", markersize=4)
    axes.axhline(advice.floor, color=GREY, linewidth=1)
    axes.axhspan(advice.floor, (1 + NEAR_FLOOR) * advice.floor, color=GREY, alpha=0.15, linewidth=0)
    across = axes.get_yaxis_transform()
    axes.text(0.02, advice.floor, "full batch", transform=across, va="top", color=GREY, fontsize=9)
    axes.plot([best.batch_size], [best.total_noise], "o", color=ORANGE)
    label = f"batches of {best.batch_size:,}\n{best.steps:,} steps, σ = {best.noise_multiplier:.3g}"
    axes.text(0.97, 0.95, label, transform=axes.transAxes, ha="right", va="top", color=ORANGE)
    axes.set_ylim(bottom=0.8 * min(advice.floor, *(option.total_noise for option in options)))
    axes.set(xlabel="batch size B", ylabel="total noise σ / (B √T), in clipping norms")
    axes.set_title(f"Total noise by batch size at {question.budget_in_words}", fontsize=11)
    axes.grid(alpha=0.25, which="both")
    save_figure(figure, path)
