"""Which settings does training from a public model start from? Functions of public figures alone.

The figures come from searches on public data (``experiments/searches``, ``experiments/LOG.md``);
docs/how-to/which-settings.md has them as tables.

Symbols: N records; epsilon of the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.errors import InvalidInput, check_integer, check_real
from tacit.plan import Plan

__all__ = ["full_recipe", "head_recipe", "lora_recipe", "lora_targets"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a private run.

    Attributes:
        batch_size: the expected number of records of a step; None for all records.
        steps: how many steps.
        optimizer: its name, as in ``[optimizer]`` of a run file.
        learning_rate, momentum: of the optimizer.
        head_learning_rate: of the head beside a body that is trained too; None for the same.
        falling: from half of the steps on, the rates fall to zero in a straight line.
        rank, alpha: of LoRA, whose corrections count alpha / rank times; None for other training.
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
    head_learning_rate: float | None = None
    falling: bool = False
    rank: int | None = None
    alpha: int | None = None

    def share_of_rate(self, step: int) -> float:
        """What to take of the learning rates in step 0, 1, ... of the run.

        >>> [round(lora_recipe(6000, 8.0, 19_202).share_of_rate(step), 3) for step in (0, 15, 29)]
        [1.0, 1.0, 0.067]
        """
        return min(1.0, 2.0 * (1.0 - step / self.steps)) if self.falling else 1.0


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


def lora_targets(model_type: str) -> tuple[str, ...]:
    """Return the last names of the layers that get a correction: query and value.

    Hu et al. (2106.09685, section 7.1) found these two best for a number of weights.  GPT-2 and its like hold
    query, key and value in one layer, which gets one correction.

    Args:
        model_type: as in a model's config.json.

    Raises:
        InvalidInput: of this type it is not known how query and value are named.

    >>> lora_targets("bert"), lora_targets("gpt2")
    (('query', 'value'), ('c_attn',))
    """
    for names, types in _TARGETS.items():
        if model_type in types:
            return names
    raise InvalidInput(
        f"model_type {model_type!r} has no LoRA targets here: which layers of it are query and value is not "
        'known. Name them in [lora] targets, such as ["q_proj", "v_proj"]; print(model) shows the names.'
    )


def lora_recipe(records: int, epsilon: float, weights: int) -> Recipe:
    """Return the settings of LoRA on query and value with a new head (Yu et al., 2110.06500).

    With few trained weights a small share of the records does in each step.  On 6,000 reviews at epsilon 8,
    with corrections in the upper half of MiniLM's layers, one run ended 3 points above the head and 2 above
    the head without DP, on equal texts; at epsilon 3 one ended 1 point above, which may be chance.

    Args:
        records: N.
        epsilon: of the whole run.
        weights: how many are trained at this rank, the head's among them.

    >>> recipe = lora_recipe(12_500, 8.0, 37_634)
    >>> recipe.rank, recipe.batch_size, recipe.steps, recipe.learning_rate, recipe.head_learning_rate
    (4, 250, 30, 0.002, 0.1)
    """
    return _of_a_body(records, epsilon, weights, rate=_LORA_RATE, rank=LORA_RANK)


def full_recipe(records: int, epsilon: float, weights: int) -> Recipe:
    """Return where to start with training all weights and a new head (Li et al., 2110.05679).

    The batch follows from the noise; the rates were not tried privately, as so many records a step take hours
    on a CPU.

    Args:
        records: N.
        epsilon: of the whole run.
        weights: how many are trained.

    >>> full_recipe(12_500, 8.0, 10_647_554).batch_size is None
    True
    """
    return _of_a_body(records, epsilon, weights, rate=_FULL_RATE, rank=None)


def _of_a_body(records: int, epsilon: float, weights: int, *, rate: float, rank: int | None) -> Recipe:
    check_integer("records", records, low=1)
    check_integer("weights", weights, low=1)
    check_real("epsilon", epsilon, low=0.0, open_low=True)
    return Recipe(
        batch_size=_batch_size(records, epsilon, weights),
        steps=_BODY_STEPS,
        optimizer="adam",
        learning_rate=rate,
        head_learning_rate=_HEAD_RATE,
        falling=True,
        rank=rank,
        alpha=None if rank is None else 4 * rank,
    )


def _batch_size(records: int, epsilon: float, weights: int) -> int | None:
    """The fewest records of a step with which the noise of the run is small; None for all records.

    What the plan's delta and adjacency change of it is left out: it is where to start, and no promise.
    """
    for parts in _PARTS:
        if (batch_size := round(records / parts)) >= _SMALLEST_BATCH:
            plan = Plan.calibrate(
                epsilon=epsilon,
                delta=min(1e-5, 0.1 / records),
                records=records,
                batch_size=batch_size,
                steps=_BODY_STEPS,
                clipping=1.0,
                adjacency="add-remove",
                unit="record",
            )
            if plan.noise_multiplier * math.sqrt(weights / _BODY_STEPS) / batch_size <= _SMALL_NOISE:
                return batch_size
    return None


_TARGETS = {
    ("query", "value"): ("albert", "bert", "camembert", "electra", "roberta", "xlm-roberta"),
    ("q_lin", "v_lin"): ("distilbert",),
    ("q", "v"): ("mpnet",),
    ("query_proj", "value_proj"): ("deberta-v2",),
    ("q_proj", "v_proj"): (
        *("beit", "deit", "dinov2", "gemma", "gemma2", "llama", "mistral", "opt", "qwen2", "qwen3", "vit"),
    ),
    ("c_attn",): ("gpt2",),
    ("query_key_value",): ("gpt_neox",),
    ("Wqkv",): ("modernbert",),
}
LORA_RANK = 4
"""Directions of a correction."""
_LORA_RATE, _FULL_RATE, _HEAD_RATE = 2e-3, 2e-4, 0.1  # of Adam
_BODY_STEPS = 30
_PARTS = (100, 50, 20, 10, 4)  # a step takes one of them
_SMALLEST_BATCH = 250  # below it, chance tells a mean gradient more than noise does
_SMALL_NOISE = 0.12
"""Length of the noise of a run's mean gradient, in clipping norms: a tenth of the gain is lost to it."""
