"""How far may the noisy loss of a step be from the mean loss? Its standard deviation, from public numbers.

A noisy loss of -0.1 looks like an error until its noise of 0.3 stands beside it.  Two things move it: the
noise that the plan adds, and who is drawn for the step.

Letters: B expected batch size, q sampling rate; s_l noise on the centred sum of scaled losses, b their bound
(:class:`tacit.plan.LossReport`); w weight of what a running mean has seen, 1 - SMOOTHING^t after t losses.
"""

from __future__ import annotations

import math

from tacit.plan import Plan

SMOOTHING = 0.9
"""The share that a running mean of losses gives to what it was before."""
_MOST_DECIMALS = 6


def loss_std(plan: Plan) -> float | None:
    """The standard deviation of a step's noisy loss, at most; None without a loss report.

    A scaled loss is at most 1/2 from the centre, so that the draw moves their sum by a variance of at most
    B (1 - q) / 4.

    >>> from tacit.plan import LossReport
    >>> plan = Plan.with_noise(noise_multiplier=1.0, steps=9, records=150, batch_size=30, clipping=1.0,
    ...                        delta=1e-3, adjacency="add-remove", unit="row", loss_report=LossReport(2.0))
    >>> round(loss_std(plan), 2)  # 2 sqrt(5^2 + 30 (1 - 0.2) / 4) / 30
    0.37
    """
    if plan.loss_report is None or plan.loss_noise is None:
        return None
    drawn = plan.expected_batch_size * max(0.0, 1.0 - plan.sampling_rate) / 4
    return plan.loss_report.bound * math.sqrt(plan.loss_noise**2 + drawn) / plan.expected_batch_size


def smoothed_std(std: float | None, weight: float) -> float | None:
    """The standard deviation of the bias-corrected running mean of losses that have ``std`` each.

    >>> smoothed_std(0.5, weight=1 - SMOOTHING)  # of one loss
    0.5
    >>> round(smoothed_std(0.5, weight=1.0), 4)  # of many
    0.1147
    """
    if std is None or weight <= 0.0:
        return None
    return std * math.sqrt((1 - SMOOTHING) / (1 + SMOOTHING) * (2 - weight) / weight)


def noisy(loss: float, std: float | None) -> str:
    """A noisy loss and its standard deviation, to the first digit of the latter.

    >>> noisy(-0.1083, 0.318), noisy(0.69314, 0.0124), noisy(25.0, 31.0), noisy(0.5, None)
    ('-0.1 ± 0.3', '0.69 ± 0.01', '25 ± 31', '0.500')
    """
    if not std:
        return f"{loss:.3f}"
    decimals = min(max(0, -math.floor(math.log10(std))), _MOST_DECIMALS)
    return f"{loss:.{decimals}f} ± {std:.{decimals}f}"
