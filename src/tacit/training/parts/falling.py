"""A judgement whether the noisy loss falls, made once after the first third of the steps.

A run whose noise exceeds its gradients by far costs as much as one that learns, and its losses show it early.
The judgement uses only released losses and public figures, so it costs nothing.  It assumes that a falling
loss is linear in the logarithm of the number of steps, which holds roughly for quick and for slow falls.  The
losses have *hardly fallen* if both of these hold:

* With 99 % confidence, the fall is less than a tenth of the first loss.  So a run whose loss falls by a tenth
  is misjudged at most once in a hundred times.
* The fall is less than 1.28 times its standard error.  So a run whose loss does not fall is recognised nine
  times in ten, if the first condition holds.

If the noise is too large to rule out a fall of a tenth, the first condition fails.  If the loss before the
first step is public, such as the loss of equal probabilities, there is a more precise alternative to the
condition: it compares the mean loss of the later half with that loss.  Because this mean lags behind the last
loss, the bound of one misjudgement in a hundred then holds only for a run whose loss falls by a fifth.

Letters: m steps in the first third; x_t = log t for step t = 1, ..., m.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
from scipy.special import stdtrit

from tacit.errors import LossWarning
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.training.part import Part
from tacit.training.parts.progress import noisy

_FEWEST = 6  # the fewest losses for a judgement
_TENTH = 0.1  # the fall that must be ruled out, as a share of the first loss
_SURE, _SEEN = 0.99, 1.28
_CAUSES = (
    "The noise of a step may be too strong for the number of weights, or the learning rate too low or too "
    "high."
)


@dataclass(frozen=True)
class Fall:
    """A verdict on the losses of the first ``steps`` steps, the first third of the run.

    ``first`` and ``later`` are the mean losses of the two halves of these steps, with the standard deviations
    ``first_std`` and ``later_std``.  ``hardly`` says whether the losses have hardly fallen.

    >>> Fall(steps=20, first=0.7, first_std=0.02, later=0.69, later_std=0.02, hardly=True).in_words()
    'from 0.70 ± 0.02 (mean of steps 1 to 10) to 0.69 ± 0.02 (steps 11 to 20)'
    """

    steps: int
    first: float
    first_std: float
    later: float
    later_std: float
    hardly: bool

    def in_words(self) -> str:
        """Return both means and their standard deviations as text."""
        half = self.steps // 2
        return (
            f"from {noisy(self.first, self.first_std)} (mean of steps 1 to {half}) to "
            f"{noisy(self.later, self.later_std)} (steps {half + 1} to {self.steps})"
        )


def fall_of(losses: Sequence[float], noise: float, *, start: float | None = None) -> Fall | None:
    """Judge the noisy losses of the first steps of a run.

    Args:
        losses: the losses of the steps 1, ..., m.
        noise: the standard deviation of the noise that the plan adds to each loss.  Sampling adds variance
            too, which is estimated from the spread of the losses about the fitted line.
        start: the loss before the first step, if it is public.

    Returns:
        None if there are too few losses, or one of them is not finite.

    >>> fall_of([0.7, 0.68, 0.69, 0.71, 0.69, 0.7, 0.69, 0.7], 0.01).hardly
    True
    >>> fall_of([0.7, 0.6, 0.5, 0.5, 0.45, 0.44, 0.42, 0.4], 0.01).hardly
    False
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
    """Judges the noisy losses after the first third of the steps, and warns once if they have hardly fallen.

    ``start`` is the public loss before the first step, if it is known.  ``why`` is the likely reason that the
    plan's numbers suggest.

    Args:
        plan: the plan of the run.
    """

    start: float | None = None
    why: str | None = None

    def __init__(self, plan: Plan) -> None:
        report, noise = plan.loss_report, plan.loss_noise
        has_losses = report is not None and noise is not None
        self._noise = report.bound * noise / plan.expected_batch_size if has_losses else 0.0  # type: ignore[union-attr, operator]
        self._third, self._steps = math.ceil(plan.steps / 3) if has_losses else 0, plan.steps
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
                f"{message} The {self._steps - self._third:,} steps that are left cost budget as well; "
                "steps that are not taken cost nothing. The cost of the steps so far stays spent.",
                LossWarning,
                stacklevel=4,
            )

    def said(self) -> str:
        """Return the statement that the loss has hardly fallen, and why; empty if it has fallen."""
        if self.fall is None or not self.fall.hardly:
            return ""
        return (
            f"The noisy training loss has hardly fallen in the first third of the run: "
            f"{self.fall.in_words()}. {self.why or _CAUSES}"
        )

    def state(self, done: int) -> dict[str, Any]:
        return {"falling": {"losses": self._losses, "found": self.fall and asdict(self.fall)}}

    def load(self, state: Mapping[str, Any], generator: Generator) -> None:
        entry = state.get("falling", {"losses": [], "found": None})  # older versions saved no losses
        self._losses = list(entry["losses"])
        self.fall = None if entry["found"] is None else Fall(**entry["found"])
