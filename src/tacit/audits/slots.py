"""How are audit slots scored? Canaries have their gradient where no other record's is nonzero.

A slot is one entry of a parameter vector that the model never uses.  If canary j takes part in a step, entry
j of the clipped sum is s_j C, with a public sign s_j; otherwise 0.  What is released of it, over s_j C, is

    x_tj = [j took part in step t] + N(0, sigma^2),

so the best membership test, given sigma, is the log-likelihood ratio of a Poisson sample,

    LLR_j = sum over t of log(1 - q + q exp((x_tj - 1/2) / sigma^2)).

A plain sum over the steps is far weaker.  The ratio must not be cut at 0: where the true noise is not sigma,
it is off centre.  Audits choose the threshold themselves.

Letters: T steps, m slots.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.attacks import Scores
from tacit.errors import InvalidInput, check_integer, check_real

Array: TypeAlias = NDArray[np.float64]


def slot_scores(observed: ArrayLike, *, sampling_rate: float, noise_multiplier: float) -> Array:
    """LLR of each slot, of shape (m,): higher means that its canary was more likely in the training set.

    :param observed: x, of shape (T, m): the slots' part of the released noisy *sum*, over sign and bound C.
    :param sampling_rate: q in (0, 1], as claimed.
    :param noise_multiplier: sigma > 0, as claimed.
    :raises InvalidInput: if an entry is not finite, or nothing was observed.

    >>> slot_scores([[1.0, 0.0], [1.0, 0.5]], sampling_rate=1.0, noise_multiplier=1.0).tolist()
    [1.0, -0.5]
    """
    q = check_real("sampling_rate", sampling_rate, low=0.0, high=1.0, open_low=True)
    sigma = check_real("noise_multiplier", noise_multiplier, low=0.0, open_low=True)
    x = np.asarray(observed, dtype=np.float64)
    if x.ndim != 2 or x.size == 0:
        raise InvalidInput(
            f"observed must have one row per step and one column per slot; got shape {x.shape}."
        )
    if not np.isfinite(x).all():
        raise InvalidInput(
            f"{int((~np.isfinite(x)).sum())} of {x.size} observed slot entries are not finite."
        )
    ratio = np.log(q) + (x - 0.5) / sigma**2
    stays = np.log1p(-q) if q < 1.0 else -np.inf
    total: Array = np.logaddexp(stays, ratio).sum(axis=0)
    return total


def rehearsed_slot_scores(
    *,
    steps: int,
    sampling_rate: float,
    noise_multiplier: float,
    rng: np.random.Generator,
    true_noise: float | None = None,
    slots: int = 10_000,
) -> Scores:
    """The scores of as many slots in as out, simulated as in a run of these settings.

    From them :func:`tacit.audits.claim_test` picks a threshold, independently of the run.

    :param true_noise: the true noise multiplier, to rehearse a bug; None: as claimed.
    :param slots: of either kind; how finely the threshold is known, no more.

    >>> rng = np.random.default_rng(0)
    >>> scores = rehearsed_slot_scores(steps=5, sampling_rate=1.0, noise_multiplier=2.0, rng=rng)
    >>> 0.75 < scores.auc() < 0.82  # Phi(sqrt(5) / 2 / sqrt(2)) = 0.785
    True
    """
    check_integer("steps", steps, low=1)
    check_integer("slots", slots, low=1)
    sigma = noise_multiplier if true_noise is None else check_real("true_noise", true_noise, low=0.0)
    total = np.zeros(2 * slots)
    for _ in range(steps):  # one step at a time: long runs have too many for one array
        part = np.concatenate([rng.random(slots) < sampling_rate, np.zeros(slots, dtype=np.bool_)])
        x = part + sigma * rng.standard_normal(2 * slots)
        total += slot_scores(x[None], sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
    return Scores(total[:slots], total[slots:])
