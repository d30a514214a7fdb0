"""A progress bar over the steps of a run, shown in a notebook and in a terminal, but not in a file or a pipe.

It shows only public figures: the steps, the epsilon after the last of them, and the noisy loss that the plan
accounts for, with its standard deviation.  Without the standard deviation, a noisy loss of -0.1 would look
like an error.  The loss varies for two reasons: the plan's noise, and the sampling of the step.

Letters: B the expected batch size; q the sampling rate.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from tacit.plan import Plan
from tacit.rounding import round_up
from tacit.training.part import Part

SMOOTHING = 0.9
"""The weight of the previous value in a running mean of losses."""
_MOST_DECIMALS = 6


def loss_std(plan: Plan) -> float | None:
    """Return an upper bound on the standard deviation of a step's noisy loss; None without a loss report.

    A scaled loss is at most 1/2 from the centre, so sampling adds to the sum a variance of at most
    B (1 - q) / 4.

    >>> from tacit.plan import LossReport
    >>> plan = Plan.with_noise(noise_multiplier=1.0, steps=9, records=150, batch_size=30, clipping=1.0,
    ...                        delta=1e-3, adjacency="add-remove", unit="row", loss_report=LossReport(2.0))
    >>> round(loss_std(plan), 2)  # 2 sqrt(5^2 + 30 (1 - 0.2) / 4) / 30
    0.37
    """
    if plan.loss_report is None or plan.loss_noise is None:
        return None
    variance = plan.expected_batch_size * max(0.0, 1.0 - plan.sampling_rate) / 4
    return plan.loss_report.bound * math.sqrt(plan.loss_noise**2 + variance) / plan.expected_batch_size


def smoothed_std(std: float | None, weight: float) -> float | None:
    """Return the standard deviation of the bias-corrected running mean of losses that have ``std`` each.

    ``weight`` is the total weight of the losses in the running mean, 1 - SMOOTHING^t after t losses.

    >>> smoothed_std(0.5, weight=1 - SMOOTHING)  # after one loss
    0.5
    >>> round(smoothed_std(0.5, weight=1.0), 4)  # after many losses
    0.1147
    """
    if std is None or weight <= 0.0:
        return None
    return std * math.sqrt((1 - SMOOTHING) / (1 + SMOOTHING) * (2 - weight) / weight)


def noisy(loss: float, std: float | None) -> str:
    """Return a noisy loss and its standard deviation as text, rounded to the first digit of the deviation.

    >>> noisy(-0.1083, 0.318), noisy(0.69314, 0.0124), noisy(25.0, 31.0), noisy(0.5, None)
    ('-0.1 ± 0.3', '0.69 ± 0.01', '25 ± 31', '0.500')
    """
    if not std:
        return f"{loss:.3f}"
    decimals = min(max(0, -math.floor(math.log10(std))), _MOST_DECIMALS)
    return f"{loss:.{decimals}f} ± {std:.{decimals}f}"


@final
class Progress(Part):
    """The bars of a session, and the noisy loss of its last step.

    A notebook would show a new bar for each epoch, so an epoch reuses the bar of the epoch before.  A
    terminal wipes the bar at the end of an epoch, so that the output of the user's loop has a separate line.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.loss: float | None = None
        self._bar: Any = None
        self._last: tuple[Any, object] | None = None  # the bar of the last epoch, and the cell above it

    def after(self, step: int, loss: float | None) -> None:
        self.loss = loss
        if self._bar is not None:
            if loss is not None:
                self._bar.set_postfix_str(f"noisy loss {noisy(loss, loss_std(self._plan))}", refresh=False)
            self._bar.update()

    @contextmanager
    def bar(
        self, title: str, first: int, stop: int, *, progress: bool | None, keep: bool = False
    ) -> Iterator[None]:
        """Show a bar over the steps ``first``, ..., ``stop - 1``.

        Args:
            progress: whether to show a bar; None shows it in a notebook or a terminal only.
            keep: whether the bar is for one of several epochs.
        """
        if first >= stop or not (_is_watched() if progress is None else progress):
            yield
            return
        words = f"{title}, then ε = {round_up(self._plan.epsilon_after([stop])[0], 3)}"
        last = stop >= self._plan.steps
        bar = self._reused(words, stop - first) if keep else None
        self._bar = bar = _new_bar(words, stop - first, leave=last) if bar is None else bar
        try:
            yield
        except BaseException:
            bar.close()
            raise
        finally:
            self._bar = None
        if keep and not last and hasattr(bar, "container"):
            self._last = bar, _cell()
        else:
            bar.close()

    def _reused(self, words: str, total: int) -> Any:
        """Reset and return the bar of the epoch before, if the running cell made it; else return None."""
        last, self._last = self._last, None
        if last is None:
            return None
        bar, cell = last
        if cell != _cell():
            bar.close()
            return None
        bar.reset(total=total)
        bar.set_description(words)
        return bar


def _new_bar(words: str, total: int, *, leave: bool) -> Any:
    from tqdm.auto import tqdm  # widgets in a notebook, text elsewhere

    bar = tqdm(total=total, desc=words, unit="step", dynamic_ncols=True, leave=leave)
    if hasattr(bar, "container"):
        bar.leave = True  # the last epoch may reuse it
    return bar


def _cell() -> object:
    """Return the number of the running cell in a notebook."""
    return getattr(_shell(), "execution_count", None)


def _shell() -> Any:
    python = sys.modules.get("IPython")
    return None if python is None else python.get_ipython()


def _is_watched() -> bool:
    """Return whether stderr is a terminal, or this process is the kernel of a notebook."""
    return getattr(_shell(), "kernel", None) is not None or (sys.stderr is not None and sys.stderr.isatty())
