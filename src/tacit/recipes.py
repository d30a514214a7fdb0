"""Which settings does training from a public model start from? Functions of public figures alone.

The figures come from searches on public data (``benchmarks/results``); docs/how-to/which-settings.md has
them as tables.

Symbols: N records; epsilon of the run.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Recipe", "head_recipe"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a private run.

    Attributes:
        batch_size: the expected number of records of a step; None for all records.
        steps: how many steps.
        optimizer: its name, as in ``[optimizer]`` of a run file.
        learning_rate, momentum: of the optimizer.
        clipping_norm: C.
        ema_decay: of an average of the weights over the steps; None for the last weights.

    >>> Recipe(batch_size=None, steps=60, learning_rate=4.0).clipping_norm
    1.0
    """

    batch_size: int | None
    steps: int
    optimizer: str = "sgd"
    learning_rate: float
    momentum: float = 0.0
    clipping_norm: float = 1.0
    ema_decay: float | None = None


def head_recipe(records: int, epsilon: float) -> Recipe:
    """Return the settings of a linear layer on frozen features of unit length, which starts at zero.

    All records go into each step: for a convex loss, smaller batches spare nothing but time.  The sum of the
    learning rates decides how far the weights go.  The noise grows with it, and the gradient falls as the
    loss does; so the fewer records there are, and the smaller epsilon is, the sooner it is best to stop.  On
    reviews (500 to 12,500 records, epsilon 1 to 8) the best sum was a 64th of records times epsilon in each
    of twelve cases, within a factor of two.

    Args:
        records: N.
        epsilon: of the whole run.

    >>> recipe = head_recipe(12_500, 3.0)
    >>> recipe.steps, recipe.learning_rate
    (73, 8.0)
    >>> head_recipe(500, 1.0).learning_rate
    0.26
    """
    path = min(records * epsilon / 64, _LONGEST_PATH)
    steps = min(max(_FEWEST, round(path / _RATE)), _MOST)
    return Recipe(batch_size=None, steps=steps, learning_rate=float(f"{path / steps:.2g}"), momentum=0.9)


_LONGEST_PATH = 1000.0  # beyond it the noise is small, and the loss no longer falls
_FEWEST, _MOST = 30, 100  # steps: more did not help on validation records
_RATE = 8.0  # above it, steps of momentum 0.9 overshoot
