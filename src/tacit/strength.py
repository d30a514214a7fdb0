"""Checks for promises that are too weak: a warning about a large epsilon, and a refusal of a large delta.

Tacit refuses no positive epsilon, because runs with little noise are useful on public data.  An epsilon above
:data:`MOST` promises nothing in practice, so Tacit warns.  It refuses a delta of 1/N or more.
"""

from __future__ import annotations

import math
import warnings

from tacit.errors import PrivacyRefusal, PrivacyWarning

MOST = 20.0
"""The largest epsilon without a warning: e^20 is 485 million."""


def weakness(epsilon: float) -> str | None:
    """Explain why an epsilon above :data:`MOST` is too weak; return None for a smaller one.

    >>> weakness(8.0) is None
    True
    >>> print(weakness(60.0).partition(":")[0])
    epsilon = 60 is too weak a promise to mean anything
    """
    if not MOST < epsilon < math.inf:
        return None
    return (
        f"epsilon = {epsilon:.4g} is too weak a promise to mean anything: an attacker who falsely accuses "
        "1 % of those who did not take part may find up to 100 % of those who did, as if without noise. "
        "Usual values are 0.1 to 10: 1 is strong, 3 is useful against strong attackers, 8 is weak "
        "(docs/explanation/what-epsilon-means.md)."
    )


def warn_if_weak(epsilon: float | None, *, stacklevel: int = 2) -> None:
    """Warn about an epsilon above :data:`MOST`, at the line of code that chooses it.

    Args:
        stacklevel: as in :func:`warnings.warn`, counted from the caller: 2 names the line that calls the
            caller.

    >>> warn_if_weak(3.0)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_if_weak(60.0)
    >>> caught[0].category.__name__
    'PrivacyWarning'
    """
    words = None if epsilon is None else weakness(epsilon)
    if words is not None:
        warnings.warn(words, PrivacyWarning, stacklevel=stacklevel + 1)


def check_small_delta(delta: float, records: int, unit: str) -> None:
    """Refuse a delta of 1/N or more, because a mechanism that publishes one record would satisfy it.

    >>> check_small_delta(1e-5, 1000, "row")
    """
    if delta >= 1 / records:
        raise PrivacyRefusal(
            f"= {delta:g} is not below 1/N = {1 / records:.3g}",
            argument="delta",
            why=f"For N = {records} records, a mechanism that publishes one {unit} in full would satisfy it.",
            fix=f"Choose a smaller delta, such as {records**-1.1:.1g}, or say `allow_large_delta=True`.",
        )
