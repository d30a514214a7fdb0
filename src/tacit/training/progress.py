"""Where is a run? A bar over its steps, in a notebook and in a terminal; nothing in a file or a pipe.

It shows public figures only: steps, the epsilon of the last of them, and the noisy loss that the plan pays
for, with its standard deviation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tacit.plan import Plan
from tacit.rounding import round_up
from tacit.training.loss_noise import loss_std, noisy

__all__ = ["step_bar"]

Took = Callable[[float | None], None]


@contextmanager
def step_bar(
    title: str, *, first: int, stop: int, plan: Plan, progress: bool | None = None
) -> Iterator[Took]:
    """A bar over the steps ``first``, ..., ``stop - 1``; call what it gives with each step's noisy loss.

    Args:
        progress: whether to show it; None for a notebook and a terminal only.
    """
    if first >= stop or not (_somebody_looks() if progress is None else progress):
        yield _nothing
        return
    from tqdm.auto import tqdm  # widgets in a notebook, text elsewhere

    shown = {"dynamic_ncols": True, "leave": stop >= plan.steps}  # one bar stays, not one for each epoch
    std = loss_std(plan)
    price = round_up(plan.epsilon_after([stop])[0], 3)
    with tqdm(total=stop - first, desc=f"{title}, then ε = {price}", unit="step", **shown) as bar:

        def took(loss: float | None) -> None:
            if loss is not None:
                bar.set_postfix_str(f"noisy loss {noisy(loss, std)}", refresh=False)
            bar.update()

        yield took


def _nothing(_loss: float | None) -> None:
    """Show no bar."""


def _somebody_looks() -> bool:
    """Whether stderr is a terminal, or this is the kernel of a notebook."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    return getattr(shell, "kernel", None) is not None or (sys.stderr is not None and sys.stderr.isatty())
