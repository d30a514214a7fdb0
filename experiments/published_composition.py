"""The epsilons that the 2016 paper and talk published, to draw the old curves.  They are **not bounds**.

They are from Figure 2 of "Deep Learning with Differential Privacy" (Abadi et al. 2016, 1607.00133), and from
the table of the talk.  Docstrings say which step is not a theorem.  :func:`valid_strong_composition` is a
valid bound for comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.accounting import account
from tacit.errors import check_integer, check_probability, check_real
from tacit.events import Gaussian, PoissonSampled, Repeat


@dataclass(frozen=True)
class TalkRow:
    """One row of the talk's table: our reconstruction, the printed text, and whether it is a bound."""

    name: str
    epsilon: float
    delta: float
    printed: str
    is_bound: bool


def talk_table() -> tuple[TalkRow, ...]:
    """Return the talk's table up to the moments accountant.

    With sigma = 4, delta_0 = 1e-5, q = 0.01 and T = 10,000, each step costs
    eps_0 = sqrt(2 ln(1/delta_0)) / sigma = 1.2.  The rows are:

    * Basic composition, T eps_0 and T delta_0.  This is a theorem, given eps_0.
    * Strong composition, eps_0 sqrt(T ln(1/d)) with ln(1/d) = 9.  This formula drops a factor sqrt(2) and the
      linear term T eps_0 (e^{eps_0} - 1), which is 28,000 here, so it is not a bound.
    * Amplified, 2 q eps_0 sqrt(T ln(1/d)) with d = 1e-7 and delta q T delta_0.  This formula uses q eps_0 as
      the cost of a sampled step, so it is not a bound.

    The inputs of the last two (9 and 1e-7) are our reconstruction.

    >>> [(row.name, round(row.epsilon, 1), row.delta, row.printed) for row in talk_table()][:2]
    [('basic', 11996.3, 0.1, '12,000'), ('strong', 359.9, 0.1, '360')]
    """
    rate, steps, delta_0, sigma = 0.01, 10_000, 1e-5, 4.0
    epsilon_0 = math.sqrt(2.0 * math.log(1.0 / delta_0)) / sigma
    whole = round(steps * delta_0, 9)
    amplified = 2.0 * rate * epsilon_0 * math.sqrt(steps * math.log(1e7))
    return (
        TalkRow("basic", steps * epsilon_0, whole, "12,000", is_bound=True),
        TalkRow("strong", epsilon_0 * math.sqrt(steps * 9.0), whole, "360", is_bound=False),
        TalkRow("strong, amplified by sampling", amplified, round(rate * whole, 9), "10", is_bound=False),
    )


def figure2_strong_composition(
    steps: int, *, sampling_rate: float = 0.01, noise_multiplier: float = 4.0, delta: float = 1e-5
) -> float:
    """Return the "strong composition" epsilon in Figure 2 of the paper, which is **not a bound**.

    A step costs the classical eps_0 = sqrt(2 ln(1.25/delta_0)) / sigma.  The paper assumes that sampling
    changes it to (q eps_0, q delta_0), *which is not a theorem* (the theorem has log(1 + q (e^{eps_0} - 1))).
     Steps are composed by Theorem III.3 of Dwork, Rothblum & Vadhan 2010, with the best split of delta.  The
     paper prints
    9.34 after 10,000 steps (E = 100 epochs) and 24.22 after 40,000.  This reconstruction gives

    >>> [round(figure2_strong_composition(steps), 2) for steps in (10_000, 40_000)]
    [9.35, 24.24]
    """
    count = check_integer("steps", steps, low=1)
    rate = check_probability("sampling_rate", sampling_rate)
    sigma = check_real("noise_multiplier", noise_multiplier, low=0.0, open_low=True)
    target = check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)

    from scipy.optimize import minimize_scalar  # a slow import that is rarely needed

    def at(log_odds: float) -> float:
        share = 1.0 / (1.0 + math.exp(-log_odds))
        delta_0 = share * target / (count * max(rate, 1e-300))
        epsilon = rate * math.sqrt(2.0 * max(0.0, math.log(1.25 / delta_0))) / sigma
        spread = math.sqrt(2.0 * count * math.log(1.0 / ((1.0 - share) * target)))
        return epsilon * spread + count * epsilon * math.expm1(epsilon)

    return float(minimize_scalar(at, bounds=(-15.0, 15.0), method="bounded").fun)


def valid_strong_composition(
    steps: int, *, sampling_rate: float = 0.01, noise_multiplier: float = 4.0, delta: float = 1e-5
) -> float:
    """Return a valid upper bound by advanced composition for the sampled Gaussian, under add-remove.

    The cost of each step has the exact closed form, so only the composition is loose.

    >>> [round(valid_strong_composition(steps), 2) for steps in (10_000, 40_000)]
    [16.84, 50.74]
    """
    target = check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    event = Repeat(PoissonSampled(sampling_rate, Gaussian(noise_multiplier)), steps)
    return account(event, adjacency="add-remove", method="strong").epsilon(target)
