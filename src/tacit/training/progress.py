"""A progress bar of the noisy losses, and a test of whether they fall, from released values alone.

Letters: B expected batch size; q sampling rate; m steps in the first third; x_t = log t for t = 1, ..., m.
"""

# The judgement is made after the first third of the steps, and assumes a loss that is linear in the logarithm
# of the number of steps.  The losses have *hardly fallen* if both of these hold:
#
# * With 99 % confidence, the fall is less than a tenth of the first loss; or, if the loss before the first
#   step is public, the mean of the later half is less than a tenth below it.
# * The fall is less than 1.28 times its standard error, so a loss that does not fall is seen nine times in
#   ten.

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
from scipy.special import stdtrit

from tacit.errors import LossWarning
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.rounding import shown_epsilon
from tacit.training.part import Part

SMOOTHING = 0.9
"""The weight of the previous value in a running mean of losses."""
_MOST_DECIMALS = 6


def loss_std(plan: Plan) -> float | None:
    """Return an upper bound on the standard deviation of a step's noisy loss; None without a loss report.

    A scaled loss is at most 1/2 from the centre, so sampling adds at most B (1 - q) / 4 to the variance.
    """
    if plan.loss_report is None or plan.loss_noise is None:
        return None
    variance = plan.expected_batch_size * max(0.0, 1.0 - plan.sampling_rate) / 4
    return plan.loss_report.bound * math.sqrt(plan.loss_noise**2 + variance) / plan.expected_batch_size


def smoothed_std(std: float | None, weight: float) -> float | None:
    """Return the standard deviation of the running mean of losses, whose weights add up to ``weight``."""
    if std is None or weight <= 0.0:
        return None
    return std * math.sqrt((1 - SMOOTHING) / (1 + SMOOTHING) * (2 - weight) / weight)


def noisy(loss: float, std: float | None) -> str:
    """Return a noisy loss and its standard deviation as text, rounded to the first digit of the deviation.

    >>> noisy(-0.1083, 0.318), noisy(0.69314, 0.0124), noisy(25.0, 31.0), noisy(0.5, None)
    ('-0.1 ± 0.3', '0.69 ± 0.01', '25 ± 31', '0.500')
    >>> noisy(-0.04, 0.2)
    '0.0 ± 0.2'
    """
    if not std:
        return f"{loss:.3f}"
    decimals = min(max(0, -math.floor(math.log10(std))), _MOST_DECIMALS)
    return f"{loss:z.{decimals}f} ± {std:.{decimals}f}"


@final
class Progress:
    """The bars of a session, and the noisy loss of its last step.

    In a notebook, each epoch reuses the bar of the previous epoch.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.loss: float | None = None
        self.shown: Any = None  # the bar that is on the screen
        self._last: tuple[Any, object] | None = None  # the bar of the last epoch, and the cell above it

    def update(self) -> None:
        if self.loss is not None:
            words = f"noisy loss {noisy(self.loss, loss_std(self._plan))}"
            self.shown.set_postfix_str(words, refresh=False)
        self.shown.update()

    @contextmanager
    def bar(
        self, title: str, first: int, stop: int, *, progress: bool | None, keep: bool = False
    ) -> Iterator[None]:
        """Show a bar over these steps, by default in a notebook or terminal; ``keep`` reuses it."""
        if first >= stop or not (_is_watched() if progress is None else progress):
            yield
            return
        words = f"{title}, then ε = {shown_epsilon(self._plan.epsilon_after([stop])[0])}"
        last = stop >= self._plan.steps
        bar = self._reused(words, stop - first) if keep else None
        if bar is None:
            from tqdm.auto import tqdm  # widgets in a notebook, text elsewhere

            bar = tqdm(total=stop - first, desc=words, unit="step", dynamic_ncols=True, leave=last)
            if hasattr(bar, "container"):
                bar.leave = True  # the last epoch may reuse it
        self.shown = bar
        try:
            yield
        except BaseException:
            bar.close()
            raise
        finally:
            self.shown = None
        if keep and not last and hasattr(bar, "container"):
            self._last = bar, _cell()
        else:
            bar.close()

    def _reused(self, words: str, total: int) -> Any:
        """Reset and return the bar of the previous epoch if the running cell made it; otherwise None."""
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


def _cell() -> object:
    return getattr(_shell(), "execution_count", None)


def _shell() -> Any:
    python = sys.modules.get("IPython")
    return None if python is None else python.get_ipython()


def _is_watched() -> bool:
    return getattr(_shell(), "kernel", None) is not None or (sys.stderr is not None and sys.stderr.isatty())


_FEWEST = 6  # the fewest losses for a judgement
_TENTH = 0.1  # the fall that must be ruled out, as a share of the first loss
_SURE, _SEEN = 0.99, 1.28
_CAUSES = (
    "The noise of a step may be too strong for the number of weights, or the learning rate too low or too "
    "high."
)


@dataclass(frozen=True)
class Fall:
    """Mean losses of the two halves of the first third of the run, with their standard deviations."""

    steps: int
    first: float
    first_std: float
    later: float
    later_std: float
    hardly: bool

    def in_words(self) -> str:
        half = self.steps // 2
        return (
            f"from {noisy(self.first, self.first_std)} (mean of steps 1 to {half}) to "
            f"{noisy(self.later, self.later_std)} (steps {half + 1} to {self.steps})"
        )


def fall_of(losses: Sequence[float], noise: float, *, start: float | None = None) -> Fall | None:
    """Compare the noisy losses of the first steps; None if there are too few, or one is not finite.

    ``noise`` is the standard deviation of a loss's noise.  The variance from sampling is estimated from the
    residuals of a fitted line.  ``start`` is the loss before the first step, if it is public.
    """
    values, m = np.asarray(losses, dtype=np.float64), len(losses)
    if m < _FEWEST or not np.isfinite(values).all():
        return None
    x = np.log(np.arange(1, m + 1))
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ values) / spread
    rest = values - values.mean() - slope * centred
    std = math.sqrt(max(noise**2, float(rest @ rest) / (m - 2)))
    half, sure = m // 2, float(stdtrit(m - 2, _SURE))
    later, later_std = float(values[half:].mean()), std / math.sqrt(m - half)
    fall, error = -slope * x[-1], std * x[-1] / math.sqrt(spread)
    begin = values.mean() - slope * x.mean()  # the first loss on the fitted line
    little = fall + sure * error < _TENTH * begin
    if start is not None:
        little |= start - later + sure * later_std < _TENTH * start
    return Fall(
        m, float(values[:half].mean()), std / math.sqrt(half), later, later_std,
        bool(little and fall < _SEEN * error),
    )  # fmt: skip


@final
class Falling(Part):
    """Warns once after the first third of the steps if the noisy losses have hardly fallen.

    ``start`` is the public loss before the first step, ``why`` the likely reason according to the plan.
    """

    start: float | None = None
    why: str | None = None

    def __init__(self, plan: Plan) -> None:
        report, noise = plan.loss_report, plan.loss_noise
        has_losses = report is not None and noise is not None
        self._noise = report.bound * noise / plan.expected_batch_size if has_losses else 0.0  # type: ignore[union-attr, operator]
        self._third, self._steps = math.ceil(plan.steps / 3) if has_losses else 0, plan.steps
        self.idle = self._third == 0
        self._losses: list[float] = []
        self.fall: Fall | None = None

    def after(self, step: int, loss: float | None) -> None:
        if loss is None or step >= self._third:
            return
        self._losses.append(loss)
        if step + 1 < self._third or len(self._losses) < self._third:
            return
        self.fall = fall_of(self._losses, self._noise, start=self.start)
        if message := self.said():
            warnings.warn(
                f"{message} The remaining {self._steps - self._third:,} steps cost budget too; if you stop "
                "now, you pay only for the steps so far.",
                LossWarning,
                stacklevel=4,
            )

    def said(self) -> str:
        if self.fall is None or not self.fall.hardly:
            return ""
        return (
            f"The noisy training loss has hardly fallen in the first third of the run: "
            f"{self.fall.in_words()}. {self.why or _CAUSES}"
        )

    def state(self, done: int) -> dict[str, Any]:
        return {"falling": {"losses": self._losses, "found": self.fall and asdict(self.fall)}}

    def load(self, state: Mapping[str, Any], generator: Generator) -> None:
        entry = state["falling"]
        self._losses = list(entry["losses"])
        self.fall = None if entry["found"] is None else Fall(**entry["found"])
